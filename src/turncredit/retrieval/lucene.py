"""Lucene's BM25 (by Anserini): build an index, open it, search it in batches."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turncredit.errors import DataError, RetrieverError
from turncredit.files import sha256, write_text
from turncredit.retrieval import java
from turncredit.retrieval.corpus import Passage, parse_passage, read_corpus
from turncredit.retrieval.manifest import REBUILD, LuceneManifest, read_manifest

_STORED = 100_000  # passages that a searcher remembers


def build_index(corpus: Path, index_dir: Path, *, k1: float, b: float, heap: str = "512m") -> LuceneManifest:
    """Index a corpus into ``index_dir/lucene`` and write ``index_dir/index.json``.

    The Lucene files do not depend on ``k1`` and ``b``: those are applied when a query is scored.
    Passages keep the corpus order, so equal corpora rank alike, ties included.

    Raises:
        DataError: the corpus is malformed (names file:line), or the folder cannot be written.
        RetrieverError: Java is missing or failed (shows its last lines).
    """
    started = time.perf_counter()
    documents = sum(1 for _ in read_corpus(corpus))
    manifest_path, target = index_dir / "index.json", index_dir / "lucene"
    try:
        index_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=index_dir, prefix=".build-") as name:
            folder = Path(name)
            (folder / "corpus").mkdir()
            (folder / "corpus" / "corpus.jsonl").symlink_to(corpus.resolve())
            indexed = _run_indexer(folder / "corpus", folder / "lucene", heap)
            if indexed != documents:
                raise RetrieverError(f"{corpus}: {indexed} of {documents} passages were indexed",
                                     "look for passages without any word")
            manifest_path.unlink(missing_ok=True)
            if target.exists():
                shutil.rmtree(target)
            (folder / "lucene").rename(target)
    except OSError as error:
        raise DataError(f"{index_dir}: cannot be written: {error.strerror}",
                        "free some space or choose another place") from error
    manifest = LuceneManifest(
        sha256=sha256(corpus), documents=documents, k1=k1, b=b, engine=java.engine(),
        size_bytes=sum(file.stat().st_size for file in target.iterdir()),
        seconds=round(time.perf_counter() - started, 3))
    write_text(manifest_path, manifest.model_dump_json(indent=2) + "\n")
    return manifest


def _run_indexer(corpus_dir: Path, lucene_dir: Path, heap: str) -> int:
    """Run Anserini's indexer in a JVM of its own and return the number of indexed passages."""
    command = [
        str(java.java_home() / "bin" / "java"), f"-Xmx{heap}", "-cp", str(java.anserini_jar()),
        "io.anserini.index.IndexCollection", "-collection", "JsonCollection",
        "-generator", "DefaultLuceneDocumentGenerator", "-input", str(corpus_dir),
        "-index", str(lucene_dir), "-threads", "1", "-storeRaw", "-optimize"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    counted = re.search(r"\bindexed:\s+([\d,]+)", done.stdout)
    if done.returncode != 0 or counted is None:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        raise RetrieverError(f"Lucene's indexer failed with exit code {done.returncode}:\n{tail}", REBUILD)
    return int(counted[1].replace(",", ""))


class LuceneSearcher:
    """An open index. It starts the JVM: make one in the server's process only.

    Args:
        index_dir: holds ``lucene/`` and ``index.json``.
        threads: of Java, over the queries of a batch.
        heap: of Java, as in ``-Xmx``.

    Raises:
        DataError: there is no index, or it is not the one that the manifest tells of.
    """

    def __init__(self, index_dir: Path, *, threads: int = 2, heap: str = "512m") -> None:
        manifest = read_manifest(index_dir)
        if not isinstance(manifest, LuceneManifest):
            raise DataError(f"{index_dir}: holds no Lucene index", REBUILD)
        self.manifest = manifest
        self._threads = threads
        self._stored: dict[str, Passage] = {}
        autoclass = java.start_jvm(heap)
        self._list: Any = autoclass("java.util.ArrayList")
        try:
            self._searcher: Any = autoclass("io.anserini.search.SimpleSearcher")(str(index_dir / "lucene"))
            documents = self._searcher.get_total_num_docs()
        except Exception as error:  # pyjnius has one exception for all of Java's
            raise DataError(f"{index_dir / 'lucene'}: Lucene cannot open it: {str(error).splitlines()[0]}",
                            REBUILD) from None
        if documents != self.manifest.documents:
            raise DataError(f"{index_dir / 'lucene'}: {documents} passages, but index.json tells of "
                            f"{self.manifest.documents}", REBUILD)
        self._searcher.set_bm25(self.manifest.k1, self.manifest.b)

    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        """The best ``k`` passages of each query with their scores, in the queries' order.

        Equal scores are ordered by passage id. A query without a word that counts, and k = 0, have
        no passages. Queries are bags of words, cleaned by ``query.clean_query``.
        """
        asked = {number: query for number, query in enumerate(queries) if query.strip()}
        if not asked or k == 0:
            return [[] for _ in queries]
        texts, numbers = self._list(), self._list()
        for number, query in asked.items():
            texts.add(query)
            numbers.add(str(number))
        found = self._searcher.batch_search(texts, numbers, k, self._threads)
        return [[(self._passage(hit), float(hit.score)) for hit in found.get(str(number))] if number in asked else []
                for number in range(len(queries))]

    def _passage(self, hit: Any) -> Passage:
        """The stored passage; asking Java for the text is the slow part, so it is asked once."""
        passage = self._stored.get(hit.docid)
        if passage is None:
            passage = parse_passage(hit.lucene_document.get("raw"))
            if len(self._stored) < _STORED:
                self._stored[passage.id] = passage
        return passage
