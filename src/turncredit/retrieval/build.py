"""Builds the index of a scale's retriever in steps: the commands ``passages``, ``embed`` and ``index``."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from turncredit.config.load import Scale
from turncredit.config.retriever import FaissConfig, RetrieverConfig
from turncredit.data.checksums import checked_file
from turncredit.data.corpus import PassageTable, build_table
from turncredit.data.fetch import fetched_file
from turncredit.data.sources import load_registry
from turncredit.errors import ConfigError, DataError, nearest
from turncredit.retrieval.manifest import Manifest
from turncredit.retrieval.vectors import Vectors, read_flat_file, read_shards

log = logging.getLogger(__name__)

_COMPARED = 16  # passages whose fetched vectors are compared with the encoder's
_MIN_COSINE = 0.99


@dataclass(frozen=True)
class IndexPaths:
    """A retriever of a scale and its folders.

    Attributes:
        root: the clone.
        config: the retriever.
        data: folder of the scale's passages.
        index: folder of the retriever's index.
    """

    root: Path
    config: RetrieverConfig
    data: Path
    index: Path

    @classmethod
    def of(cls, scale: Scale, name: str | None, root: Path) -> IndexPaths:
        """The retriever of a scale, or its further retriever ``retrievers.<name>``.

        Raises:
            ConfigError: unknown name.
        """
        if name is None:
            return cls(root, scale.retriever, root / "data" / scale.name, root / "index" / scale.name)
        if name not in scale.retrievers:
            raise ConfigError(f"retrievers: no {name!r} at scale {scale.name!r}", nearest(name, scale.retrievers))
        return cls(root, scale.retrievers[name], root / "data" / scale.name, root / "index" / scale.name / name)

    @property
    def faiss(self) -> FaissConfig:
        """Settings of a dense retriever.

        Raises:
            ConfigError: the retriever is not dense.
        """
        if self.config.faiss is None:
            raise ConfigError("retriever.kind = lucene: nothing to embed", "set kind: faiss and its section")
        return self.config.faiss


def make_table(paths: IndexPaths) -> None:
    """Write ``passages/``: the byte offset of each passage in the corpus."""
    build_table(checked_file(paths.data, "corpus.jsonl"), paths.index / "passages")


def make_shard(paths: IndexPaths, shard: int) -> None:
    """Write ``embeddings/``: the vectors of one shard of the passages."""
    from turncredit.retrieval.encoder import Encoder, embed_shard

    config = paths.faiss
    table, encoder = PassageTable(paths.index / "passages"), Encoder(config, paths.root)
    embed_shard(table, encoder, paths.index / "embeddings", shard, config.shards)


def make_index(paths: IndexPaths) -> Manifest:
    """Build the index, or import a fetched one, and write ``index.json`` last.

    Raises:
        ConfigError, DataError, RetrieverError: see ``bm25.build_index`` and ``dense.build_dense``.
    """
    if paths.config.kind == "lucene":
        from turncredit.retrieval.bm25 import build_index, import_index

        if paths.config.prebuilt is not None:
            return import_index(_prebuilt_file(paths, paths.config.prebuilt), paths.index, paths.config)
        return build_index(checked_file(paths.data, "corpus.jsonl"), paths.index, k1=paths.config.k1, b=paths.config.b,
                           heap=paths.config.server.heap)
    from turncredit.retrieval.dense import build_dense

    table = PassageTable(paths.index / "passages")
    corpus_sha256 = table.manifest.sha256
    if paths.config.prebuilt is None:
        vectors, encoder = read_shards(paths.index / "embeddings", paths.faiss.shards, corpus_sha256, len(table))
    else:
        vectors = read_flat_file(_prebuilt_file(paths, paths.config.prebuilt), len(table))
        encoder = check_vectors(vectors, table, paths.faiss, paths.root)
    return build_dense(vectors, encoder, corpus_sha256, paths.index, paths.faiss)


def check_vectors(vectors: Vectors, table: PassageTable, config: FaissConfig, root: Path) -> str:
    """Encode some passages and compare them with their fetched vectors; returns the identity of the encoder.

    Raises:
        DataError: the vectors come from another encoder or from other passages.
    """
    from turncredit.retrieval.encoder import Encoder

    encoder = Encoder(config.model_copy(update={"device": "cpu", "precision": "float32"}), root)  # a few: no GPU
    rows = np.linspace(0, len(table) - 1, min(_COMPARED, len(table)), dtype=int).tolist()
    ours = encoder.passages([table[row].contents for row in rows])
    theirs = vectors.at(rows)
    cosine = (ours * theirs).sum(-1) / np.linalg.norm(ours, axis=-1) / np.linalg.norm(theirs, axis=-1)
    log.info("%d fetched vectors compared with ours: least cosine %.4f", len(rows), cosine.min())
    if cosine.min() < _MIN_COSINE:
        raise DataError(f"passage {rows[int(cosine.argmin())]}: its fetched vector and that of {config.encoder} have a "
                        f"cosine of {cosine.min():.3f}",
                        "set the encoder, prefixes, lengths and corpus that the fetched index was built with")
    return encoder.identity


def _prebuilt_file(paths: IndexPaths, source: str) -> Path:
    """The only file of a fetched index."""
    registry = load_registry(paths.root)
    files = list(registry.source(source).files)
    if len(files) != 1:
        raise ConfigError(f"retriever.prebuilt = {source}: has {len(files)} files, not one",
                          "name an index of config/sources.yaml")
    return fetched_file(registry, source, files[0])
