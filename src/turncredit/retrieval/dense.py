"""Dense retrieval: an index is built from the vectors of a corpus, opened by memory map, searched in batches.

``index_dir`` holds ``index.json``, ``passages/`` (where each passage begins in the corpus) and ``faiss/``: for an
exact index ``vectors.npy``, else ``index.faiss``.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from turncredit.config.retriever import FaissConfig
from turncredit.errors import ConfigError, DataError, RetrieverError
from turncredit.files import atomic_folder, write_text
from turncredit.retrieval.corpus import Passage
from turncredit.retrieval.manifest import REBUILD, FaissManifest, effort, read_manifest
from turncredit.retrieval.passages import PassageTable
from turncredit.retrieval.sizes import BLOCK_ROWS, CENTROIDS, needs
from turncredit.retrieval.vectors import Vectors

_SEED = 1234  # of the vectors that cells and codes are learnt from
_MORE = 8  # passages asked for beside the best k, to put equal ones in order


class QueryEncoder(Protocol):
    """What turns queries into vectors."""

    @property
    def identity(self) -> str:
        """Equal where vectors are, wherever it was loaded from."""
        ...

    def queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors [N, D], in order."""
        ...


class Index(Protocol):
    """What finds vectors: ``search(queries [Q, D], k)`` gives scores and rows [Q, <= k], best first; row -1 is none."""

    def __len__(self) -> int: ...

    def search(self, queries_Q_D: NDArray[np.float32], k: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """See the class."""
        ...


class AnnIndex:
    """An IVF-PQ or HNSW index of FAISS, memory-mapped.

    Args:
        path: of ``index.faiss``.
        kind: "ivfpq" or "hnsw".
        effort: cells (IVF-PQ) or candidates (HNSW) that a query looks at.

    Raises:
        DataError: FAISS cannot open it.
    """

    def __init__(self, path: Path, kind: str, effort: int) -> None:
        faiss = import_faiss()
        try:  # of IVF the inverted lists are mapped, of HNSW the vectors and the links
            self._index: Any = faiss.read_index(
                str(path), faiss.IO_FLAG_MMAP if kind == "ivfpq" else faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise DataError(f"{path}: FAISS cannot open it: {str(error).splitlines()[0]}", REBUILD) from error
        if kind == "ivfpq":
            faiss.extract_index_ivf(self._index).nprobe = effort
        else:
            self._index.hnsw.efSearch = effort

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def search(self, queries_Q_D: NDArray[np.float32], k: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """See ``Index``. Equal scores are in the order of rows."""
        score_Q_M, row_Q_M = self._index.search(queries_Q_D, min(k + _MORE, len(self)))
        order_Q_M = np.lexsort((row_Q_M, -score_Q_M))[:, :k]
        return np.take_along_axis(score_Q_M, order_Q_M, 1), np.take_along_axis(row_Q_M, order_Q_M, 1)


class DenseSearcher:
    """An open index with the encoder of its queries.

    Args:
        index_dir: see the module.
        config: how queries are encoded, and how much of the index they look at.
        encoder: of queries.

    Raises:
        DataError: there is no index, it is not the one that the manifest tells of, or another encoder made it.
        ConfigError: the configuration asks for another index.
    """

    def __init__(self, index_dir: Path, config: FaissConfig, encoder: QueryEncoder) -> None:
        manifest = read_manifest(index_dir)
        if not isinstance(manifest, FaissManifest):
            raise DataError(f"{index_dir}: holds no FAISS index", REBUILD)
        if encoder.identity != manifest.encoder:
            raise DataError(f"{index_dir}: its passages were encoded by {manifest.encoder[:12]}, and queries would be "
                            f"by {encoder.identity[:12]}", "name the same encoder in retriever.faiss, or build again")
        self.manifest = manifest
        self._encoder = encoder
        self._passages = PassageTable(index_dir / "passages")
        self._index = open_index(index_dir, config)
        if not len(self._index) == len(self._passages) == manifest.documents:
            raise DataError(f"{index_dir}: {len(self._index)} vectors of {len(self._passages)} passages, but "
                            f"index.json tells of {manifest.documents}", REBUILD)

    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        """The best ``k`` passages of each query with their scores, in the queries' order.

        Equal scores are in the order of the corpus. A blank query, and k = 0, have no passages.
        """
        asked = [number for number, query in enumerate(queries) if query.strip()]
        answers: list[list[tuple[Passage, float]]] = [[] for _ in queries]
        if not asked or k == 0:
            return answers
        score_Q_K, row_Q_K = self._index.search(self._encoder.queries([queries[n] for n in asked]), k)
        for number, scores, rows in zip(asked, score_Q_K.tolist(), row_Q_K.tolist(), strict=True):
            answers[number] = [(self._passages[row], score) for score, row in zip(scores, rows, strict=True)
                               if row >= 0]
        return answers


def open_index(index_dir: Path, config: FaissConfig) -> Index:
    """The index in ``index_dir/faiss``, memory-mapped.

    Raises:
        DataError: it is missing or damaged.
    """
    if config.index == "flat":
        from turncredit.retrieval.flat import FlatIndex

        return FlatIndex(index_dir / "faiss" / "vectors.npy", config.device)
    return AnnIndex(index_dir / "faiss" / "index.faiss", config.index, effort(config))


def build_dense(vectors: Vectors, encoder: str, corpus_sha256: str, index_dir: Path,
                config: FaissConfig) -> FaissManifest:
    """Build ``index_dir/faiss`` from the vectors of all passages, and write ``index_dir/index.json`` last.

    The same vectors give the same exact and IVF-PQ index; HNSW is the same only where one thread builds it.

    Args:
        vectors: one a passage, in the corpus's order.
        encoder: identity of what made them.
        corpus_sha256: of the corpus file.
        index_dir: where the index comes to lie.
        config: which index.

    Raises:
        ConfigError: the index does not go with the number or dimension of the vectors.
        DataError: the folder cannot be written.
    """
    started, documents = time.perf_counter(), len(vectors)
    _check(config, documents, vectors.dimension)
    with atomic_folder(index_dir / "faiss") as fresh:
        (index_dir / "index.json").unlink(missing_ok=True)
        if config.index == "flat":
            _write_flat(vectors, fresh / "vectors.npy", config.storage)
        else:
            faiss = import_faiss()
            index = _empty(faiss, vectors, config)
            for block_B_D in vectors.blocks(BLOCK_ROWS):
                index.add(block_B_D)
            faiss.write_index(index, str(fresh / "index.faiss"))
    manifest = FaissManifest(
        kind="faiss", sha256=corpus_sha256, documents=documents, dimension=vectors.dimension, encoder=encoder,
        settings=config, engine="exact" if config.index == "flat" else f"faiss {version('faiss-cpu')}",
        needs=needs(config, documents, vectors.dimension),
        size_bytes=sum(file.stat().st_size for file in (index_dir / "faiss").iterdir()),
        seconds=round(time.perf_counter() - started, 3))
    write_text(index_dir / "index.json", manifest.model_dump_json(indent=2) + "\n")
    return manifest


def import_faiss() -> Any:
    """The FAISS library, which only indexes other than exact ones need.

    Raises:
        RetrieverError: it is not installed.
    """
    try:
        import faiss
    except ImportError as error:
        raise RetrieverError("faiss is not installed", "install envs/retrieval.txt, which pins faiss-cpu") from error
    return faiss


def _check(config: FaissConfig, documents: int, dimension: int) -> None:
    if config.index == "ivfpq":
        if dimension % config.code_bytes:
            raise ConfigError(f"faiss.code_bytes = {config.code_bytes}: does not divide the dimension {dimension}",
                              "choose a divisor")
        if min(documents, config.training_rows) < (least := max(config.lists, CENTROIDS)):
            raise ConfigError(f"faiss.lists = {config.lists}: cells and codes are learnt from {least} vectors or more, "
                              f"and there are {min(documents, config.training_rows)}",
                              "take fewer lists or more training_rows, or a flat index")


def _write_flat(vectors: Vectors, path: Path, storage: str) -> None:
    matrix = np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(storage),
                                       shape=(len(vectors), vectors.dimension))
    first = 0
    for block_B_D in vectors.blocks(BLOCK_ROWS):
        matrix[first:first + len(block_B_D)] = block_B_D
        first += len(block_B_D)
    matrix.flush()


def _empty(faiss: Any, vectors: Vectors, config: FaissConfig) -> Any:
    """The index without its vectors; what must be learnt is learnt from a sample of them."""
    dimension, product = vectors.dimension, faiss.METRIC_INNER_PRODUCT
    if config.index == "hnsw":
        index = (faiss.IndexHNSWFlat(dimension, config.links, product) if config.storage == "float32" else
                 faiss.IndexHNSWSQ(dimension, faiss.ScalarQuantizer.QT_fp16, config.links, product))
        index.hnsw.efConstruction = config.ef_construction
        index.is_trained = True  # float16 learns nothing
        return index
    rotation = f"OPQ{config.code_bytes}," if config.opq else ""
    index = faiss.index_factory(dimension, f"{rotation}IVF{config.lists},PQ{config.code_bytes}x8np", product)
    clustering = faiss.extract_index_ivf(index).cp
    clustering.min_points_per_centroid = 1  # the least is checked before, by name
    clustering.max_points_per_centroid = -(-config.training_rows // config.lists)
    index.train(vectors.sample(config.training_rows, _SEED))
    return index

