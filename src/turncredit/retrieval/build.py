"""From a scale's passages to its index, step by step: the commands ``passages``, ``embed`` and ``index``."""

from __future__ import annotations

import logging
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from turncredit.config.load import Scale
from turncredit.config.retriever import FaissConfig, RetrieverConfig
from turncredit.data.fetch import fetched
from turncredit.data.sources import load_registry
from turncredit.errors import ConfigError, DataError, RetrieverError, nearest
from turncredit.files import atomic_folder, sha256, write_text
from turncredit.miniature.build import checked
from turncredit.retrieval import java
from turncredit.retrieval.manifest import LuceneManifest, Manifest
from turncredit.retrieval.passages import PassageTable, build_table
from turncredit.retrieval.vectors import Vectors, read_flat_file, read_shards

log = logging.getLogger(__name__)

_COMPARED = 16  # passages by which a fetched index is held against the encoder
_ALIKE = 0.99  # least cosine of what both make of a passage


@dataclass(frozen=True)
class Place:
    """Where one retriever of a scale lives.

    Attributes:
        root: the clone.
        config: the retriever.
        data: the folder of the scale's passages.
        index: the folder of the retriever's index.
    """

    root: Path
    config: RetrieverConfig
    data: Path
    index: Path

    @classmethod
    def of(cls, scale: Scale, name: str | None, root: Path) -> Place:
        """The scale's retriever, or the one of ``retrievers.<name>``.

        Raises:
            ConfigError: there is none of that name.
        """
        if name is None:
            return cls(root, scale.retriever, root / "data" / scale.name, root / "index" / scale.name)
        if name not in scale.retrievers:
            raise ConfigError(f"retrievers: none is {name!r} at scale {scale.name!r}", nearest(name, scale.retrievers))
        return cls(root, scale.retrievers[name], root / "data" / scale.name, root / "index" / scale.name / name)

    @property
    def faiss(self) -> FaissConfig:
        """Settings of a dense retriever.

        Raises:
            ConfigError: it is another kind of retriever.
        """
        if self.config.faiss is None:
            raise ConfigError("retriever.kind = lucene: nothing is embedded", "write faiss, and its section")
        return self.config.faiss


def make_table(place: Place) -> None:
    """``passages/``: where each passage begins in the corpus."""
    build_table(checked(place.data, "corpus.jsonl"), place.index / "passages")


def make_shard(place: Place, shard: int) -> None:
    """``embeddings/``: the vectors of one shard of the passages."""
    from turncredit.retrieval.embed import embed_shard
    from turncredit.retrieval.encoder import Encoder

    config = place.faiss
    table, encoder = PassageTable(place.index / "passages"), Encoder(config, place.root)
    embed_shard(table, encoder, place.index / "embeddings", shard, config.shards)


def make_index(place: Place) -> Manifest:
    """``index.json`` and what it tells of, built here or brought in from what was fetched.

    Raises:
        ConfigError, DataError, RetrieverError: see ``lucene.build_index`` and ``dense.build_dense``.
    """
    if place.config.kind == "lucene":
        from turncredit.retrieval.lucene import build_index

        if place.config.prebuilt is not None:
            return unpack_lucene(_fetched(place), place.index, place.config)
        return build_index(checked(place.data, "corpus.jsonl"), place.index, k1=place.config.k1, b=place.config.b,
                           heap=place.config.server.heap)
    from turncredit.retrieval.dense import build_dense

    table = PassageTable(place.index / "passages")
    corpus_sha256, folder = table.manifest.sha256, place.index / "embeddings"
    if place.config.prebuilt is None:
        vectors, encoder = read_shards(folder, place.faiss.shards, corpus_sha256, len(table))
    else:
        vectors = read_flat_file(_fetched(place), len(table))
        encoder = compared(vectors, table, place.faiss, place.root)
    return build_dense(vectors, encoder, corpus_sha256, place.index, place.faiss)


def compared(vectors: Vectors, table: PassageTable, config: FaissConfig, root: Path) -> str:
    """The identity of the configuration's encoder, after some passages were encoded again and compared with
    fetched vectors.

    Raises:
        DataError: they were made by another encoder, or of other passages.
    """
    from turncredit.retrieval.encoder import Encoder

    encoder = Encoder(config.model_copy(update={"device": "cpu", "precision": "float32"}), root)  # a few: no GPU
    rows = np.linspace(0, len(table) - 1, min(_COMPARED, len(table)), dtype=int).tolist()
    ours = encoder.passages([table[row].contents for row in rows])
    theirs = vectors.at(rows)
    cosine = (ours * theirs).sum(-1) / np.linalg.norm(ours, axis=-1) / np.linalg.norm(theirs, axis=-1)
    log.info("%d fetched vectors and ours: least cosine %.4f", len(rows), cosine.min())
    if cosine.min() < _ALIKE:
        raise DataError(f"passage {rows[int(cosine.argmin())]}: its fetched vector and that of {config.encoder} have a "
                        f"cosine of {cosine.min():.3f}", "name the encoder, prefixes, lengths and corpus of that index")
    return encoder.identity


def unpack_lucene(archive: Path, index_dir: Path, config: RetrieverConfig) -> LuceneManifest:
    """Bring in a Lucene index that others built: a tar archive of one folder, whose passages are stored with it.

    Raises:
        DataError: the archive holds no index, or the folder cannot be written.
        RetrieverError: Java is missing, or cannot read it.
    """
    started = time.perf_counter()
    with atomic_folder(index_dir / "lucene") as fresh, tempfile.TemporaryDirectory(dir=fresh) as scratch:
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(scratch, filter="data")
        except (tarfile.TarError, EOFError) as error:
            raise DataError(f"{archive}: no whole archive: {error}", "fetch it again: snakemake fetch") from error
        segments = sorted(Path(scratch).rglob("segments_*"))
        if len(segments) != 1:
            raise DataError(f"{archive}: {len(segments)} Lucene indexes in it, not one", "name another source")
        documents = count_documents(segments[0].parent)
        (index_dir / "index.json").unlink(missing_ok=True)
        for file in segments[0].parent.iterdir():
            shutil.move(file, fresh / file.name)
    manifest = LuceneManifest(
        sha256=sha256(archive), documents=documents, k1=config.k1, b=config.b,
        engine=java.engine(), size_bytes=sum(file.stat().st_size for file in (index_dir / "lucene").iterdir()),
        seconds=round(time.perf_counter() - started, 3))
    write_text(index_dir / "index.json", manifest.model_dump_json(indent=2) + "\n")
    return manifest


def count_documents(lucene_dir: Path) -> int:
    """The number of passages of a Lucene index, as Anserini counts them.

    Raises:
        RetrieverError: Java is missing, or cannot read it.
    """
    done = subprocess.run(
        [str(java.java_home() / "bin" / "java"), "-cp", str(java.anserini_jar()), "io.anserini.index.IndexReaderUtils",
         "-index", str(lucene_dir), "-stats"], capture_output=True, text=True, check=False)
    counted = re.search(r"^documents:\s+([\d,]+)", done.stdout, re.MULTILINE)
    if done.returncode != 0 or counted is None:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise RetrieverError(f"{lucene_dir}: Anserini cannot read it:\n{tail}", "name another source")
    return int(counted[1].replace(",", ""))


def _fetched(place: Place) -> Path:
    """The one file of the index that ``prebuilt`` names."""
    assert place.config.prebuilt is not None
    registry = load_registry(place.root)
    files = list(registry.source(place.config.prebuilt).files)
    if len(files) != 1:
        raise ConfigError(f"retriever.prebuilt = {place.config.prebuilt}: a source of {len(files)} files, not of one",
                          "name an index of config/sources.yaml")
    return fetched(registry, place.config.prebuilt, files[0])
