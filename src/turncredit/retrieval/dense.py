"""Dense retrieval: builds an index from the vectors of a corpus, opens it by memory map and searches it in batches.

``index_dir`` holds ``index.json``, ``passages/`` (byte offsets into the corpus) and ``faiss/``, which holds
``vectors.npy`` for an exact index and ``index.faiss`` for others.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turncredit.config.retriever import FaissConfig
from turncredit.data.corpus import Passage, PassageTable, rebuild_index
from turncredit.errors import ConfigError, DataError, RetrieverError
from turncredit.files import atomic_folder, write_text
from turncredit.retrieval.manifest import BLOCK_ROWS, CENTROIDS, FaissManifest, effort, needs, read_manifest
from turncredit.retrieval.vectors import Vectors

_SEED = 1234  # of the sample on which cells and codes are trained
_EXTRA = 8  # passages requested beyond the best k, to order equal scores by row
_ROUNDING = 1e-5  # relative error of a float32 score: vectors this close to the k-th best are scored again


class QueryEncoder(Protocol):
    """Encodes queries as vectors."""

    @property
    def identity(self) -> str:
        """Equal for encoders that give equal vectors."""
        ...

    def queries(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors [N, D], in order."""
        ...


class Index(Protocol):
    """Finds the nearest vectors by inner product."""

    def __len__(self) -> int: ...

    def search(self, queries_Q_D: NDArray[np.float32], k: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """Scores and rows [Q, <= k] of the best vectors, best first, equal scores by row; row -1 means none."""
        ...


class DenseSearcher:
    """An open index with the encoder of its queries.

    Args:
        index_dir: see the module.
        config: how queries are encoded, and how much of the index they look at.
        encoder: turns queries into vectors.

    Raises:
        DataError: there is no index, its files and its manifest differ, or another encoder made its vectors.
    """

    def __init__(self, index_dir: Path, config: FaissConfig, encoder: QueryEncoder) -> None:
        manifest = read_manifest(index_dir)
        if not isinstance(manifest, FaissManifest):
            raise DataError(f"{index_dir}: not a FAISS index", rebuild_index(index_dir))
        if encoder.identity != manifest.encoder:
            raise DataError(f"{index_dir}: passages were encoded by {manifest.encoder[:12]}, queries would be encoded "
                            f"by {encoder.identity[:12]}",
                            f"name the same encoder in retriever.faiss, or {rebuild_index(index_dir)}")
        self.manifest = manifest
        self._encoder = encoder
        self._passages = PassageTable(index_dir / "passages")
        self._index = open_index(index_dir, config)
        if not len(self._index) == len(self._passages) == manifest.documents:
            raise DataError(f"{index_dir}: {len(self._index)} vectors and {len(self._passages)} passages, but "
                            f"{manifest.documents} in index.json", rebuild_index(index_dir, "index.json"))

    def search(self, queries: Sequence[str], k: int) -> list[list[tuple[Passage, float]]]:
        """The best ``k`` passages of each query with their scores, in the order of the queries.

        Equal scores are in the order of the corpus. Returns no passages for a blank query or for k = 0.
        """
        numbers = [number for number, query in enumerate(queries) if query.strip()]
        hits: list[list[tuple[Passage, float]]] = [[] for _ in queries]
        if not numbers or k == 0:
            return hits
        score_Q_K, row_Q_K = self._index.search(self._encoder.queries([queries[n] for n in numbers]), k)
        for number, scores, rows in zip(numbers, score_Q_K.tolist(), row_Q_K.tolist(), strict=True):
            hits[number] = [(self._passages[row], score) for score, row in zip(scores, rows, strict=True) if row >= 0]
        return hits


def open_index(index_dir: Path, config: FaissConfig) -> Index:
    """Open the index in ``index_dir/faiss`` by memory map.

    Raises:
        DataError: it is missing or damaged.
    """
    if config.index == "flat":
        return FlatIndex(index_dir / "faiss" / "vectors.npy", config.device)
    return AnnIndex(index_dir / "faiss" / "index.faiss", config.index, effort(config))


class AnnIndex:
    """An IVF-PQ or HNSW index of FAISS, memory-mapped; implements ``Index``.

    Args:
        path: the file ``index.faiss``.
        kind: "ivfpq" or "hnsw".
        effort: cells (IVF-PQ) or candidates (HNSW) that a query looks at.

    Raises:
        DataError: FAISS cannot open it.
    """

    def __init__(self, path: Path, kind: str, effort: int) -> None:
        faiss = import_faiss()
        try:  # maps the inverted lists of IVF, and the vectors and links of HNSW
            self._index: Any = faiss.read_index(
                str(path), faiss.IO_FLAG_MMAP if kind == "ivfpq" else faiss.IO_FLAG_MMAP_IFC)
        except RuntimeError as error:
            raise DataError(f"{path}: FAISS cannot open it: {str(error).splitlines()[0]}",
                            rebuild_index(path.parents[1], "index.json")) from error
        if kind == "ivfpq":
            faiss.extract_index_ivf(self._index).nprobe = effort
        else:
            self._index.hnsw.efSearch = effort

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def search(self, queries_Q_D: NDArray[np.float32], k: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """See ``Index``."""
        score_Q_M, row_Q_M = self._index.search(queries_Q_D, min(k + _EXTRA, len(self)))
        order_Q_M = np.lexsort((row_Q_M, -score_Q_M))[:, :k]
        return np.take_along_axis(score_Q_M, order_Q_M, 1), np.take_along_axis(row_Q_M, order_Q_M, 1)


class FlatIndex:
    """Exact search over a memory-mapped matrix of vectors, block by block in one pass; implements ``Index``.

    Args:
        path: a matrix [N, D] of float16 or float32 (``.npy``).
        device: where blocks are multiplied. On a CPU they are mapped from disk; on GPUs they stay there, spread
            evenly over all GPUs visible to this process.
        block: vectors that are multiplied at once.

    Raises:
        DataError: the matrix is missing or damaged.
    """

    def __init__(self, path: Path, device: str = "cpu", block: int = BLOCK_ROWS) -> None:
        try:
            self._matrix: NDArray[Any] = np.load(path, mmap_mode="c")  # not written, but torch requires it writable
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path}: no matrix of vectors: {error}",
                            rebuild_index(path.parents[1], "index.json")) from error
        parts = [torch.from_numpy(self._matrix[start:start + block]) for start in range(0, len(self._matrix), block)]
        if device == "cuda":
            gpus = torch.cuda.device_count()
            parts = [part.to(f"cuda:{n * gpus // len(parts)}") for n, part in enumerate(parts)]
        self._parts = parts

    def __len__(self) -> int:
        return len(self._matrix)

    @torch.inference_mode()
    def search(self, queries_Q_D: NDArray[np.float32], k: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """See ``Index``. Returned scores are computed again in float64, so equal vectors have equal scores."""
        best = _Best(len(queries_Q_D), min(k, len(self)))
        query_Q_D, first = torch.from_numpy(queries_Q_D), 0
        floor_Q = torch.full((len(queries_Q_D),), -torch.inf)
        for part in self._parts:
            score_Q_B = query_Q_D.to(part.device) @ part.float().T
            if first == 0:  # without a floor, all of the first block would be candidates
                floor_Q = _lower_bound(score_Q_B.topk(min(best.k, len(part))).values[:, -1])
            query_N, column_N = (score_Q_B >= floor_Q.to(part.device)[:, None]).nonzero(as_tuple=True)
            floor_Q = best.add(query_N, score_Q_B[query_N, column_N], column_N + first)
            first += len(part)
        ranked = [self._rank(query, rows, best.k) for query, rows in zip(queries_Q_D, best.rows(), strict=True)]
        return np.stack([scores for scores, _ in ranked]), np.stack([rows for _, rows in ranked])

    def _rank(self, query_D: NDArray[np.float32], row_M: NDArray[np.int64],
              k: int) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        score_M = (self._matrix[row_M].astype(np.float64) * query_D).sum(-1)
        order_K = np.lexsort((row_M, -score_M))[:k]
        return score_M[order_K], row_M[order_K]


class _Best:
    """For each query, the best ``k`` of all (score, row) pairs added so far, and those that may equal the worst."""

    def __init__(self, queries: int, k: int) -> None:
        self.k = k
        self._queries = np.arange(queries)
        self._query_N = np.zeros(0, dtype=np.int64)
        self._row_N = np.zeros(0, dtype=np.int64)
        self._score_N = np.zeros(0, dtype=np.float32)

    def add(self, query_N: Tensor, score_N: Tensor, row_N: Tensor) -> Tensor:
        """Add pairs; returns the least score [Q] that still matters, -inf for a query with fewer than ``k`` pairs."""
        query = np.concatenate([self._query_N, query_N.cpu().numpy()])
        row = np.concatenate([self._row_N, row_N.cpu().numpy()])
        score = np.concatenate([self._score_N, score_N.cpu().numpy()])
        order = np.lexsort((-score, query))
        query, row, score = query[order], row[order], score[order]
        last_Q = np.searchsorted(query, self._queries) + self.k - 1  # position of the k-th best, if there are k
        full_Q = last_Q < np.searchsorted(query, self._queries, side="right")
        kth_best_Q = torch.from_numpy(score[np.where(full_Q, last_Q, 0)])
        floor_Q = torch.where(torch.from_numpy(full_Q), _lower_bound(kth_best_Q), -torch.inf)
        kept = score >= floor_Q.numpy()[query]
        self._query_N, self._row_N, self._score_N = query[kept], row[kept], score[kept]
        return floor_Q

    def rows(self) -> list[NDArray[np.int64]]:
        """The rows of each query."""
        return np.split(self._row_N, np.searchsorted(self._query_N, self._queries)[1:])


def _lower_bound(score_Q: Tensor) -> Tensor:
    """Score minus the float32 rounding tolerance: vectors above it may be as good."""
    return score_Q - _ROUNDING * score_Q.abs().clamp(min=1)


def build_dense(vectors: Vectors, encoder: str, corpus_sha256: str, index_dir: Path,
                config: FaissConfig) -> FaissManifest:
    """Build ``index_dir/faiss`` from the vectors of all passages, and write ``index_dir/index.json`` last.

    The same vectors give the same exact and IVF-PQ index. HNSW is deterministic only if built by one thread.

    Args:
        vectors: one per passage, in the order of the corpus.
        encoder: identity of their encoder.
        corpus_sha256: sha256 of the corpus file.
        index_dir: folder of the index.
        config: kind and settings of the index.

    Raises:
        ConfigError: the settings do not fit the number or dimension of the vectors.
        DataError: the folder cannot be written.
    """
    started, documents = time.perf_counter(), len(vectors)
    _check_settings(config, documents, vectors.dimension)
    with atomic_folder(index_dir / "faiss") as fresh:
        (index_dir / "index.json").unlink(missing_ok=True)
        if config.index == "flat":
            _write_flat(vectors, fresh / "vectors.npy", config.storage)
        else:
            faiss = import_faiss()
            index = _empty_index(faiss, vectors, config)
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
    """The FAISS library, which exact indexes do not need.

    Raises:
        RetrieverError: it is not installed.
    """
    try:
        import faiss
    except ImportError as error:
        raise RetrieverError("faiss is not installed", "install envs/core.txt, which pins faiss-cpu") from error
    return faiss


def _check_settings(config: FaissConfig, documents: int, dimension: int) -> None:
    if config.index == "ivfpq":
        if dimension % config.code_bytes:
            raise ConfigError(f"faiss.code_bytes = {config.code_bytes}: does not divide the dimension {dimension}",
                              "choose a divisor")
        if min(documents, config.training_rows) < (least := max(config.lists, CENTROIDS)):
            raise ConfigError(f"faiss.lists = {config.lists}: needs {least} training vectors or more, and there are "
                              f"{min(documents, config.training_rows)}",
                              "set fewer lists or more training_rows, or use a flat index")


def _write_flat(vectors: Vectors, path: Path, storage: str) -> None:
    matrix = np.lib.format.open_memmap(path, mode="w+", dtype=np.dtype(storage),
                                       shape=(len(vectors), vectors.dimension))
    first = 0
    for block_B_D in vectors.blocks(BLOCK_ROWS):
        matrix[first:first + len(block_B_D)] = block_B_D
        first += len(block_B_D)
    matrix.flush()


def _empty_index(faiss: Any, vectors: Vectors, config: FaissConfig) -> Any:
    """The index before vectors are added; cells and codes are trained on a sample of them."""
    dimension, product = vectors.dimension, faiss.METRIC_INNER_PRODUCT
    if config.index == "hnsw":
        index = (faiss.IndexHNSWFlat(dimension, config.links, product) if config.storage == "float32" else
                 faiss.IndexHNSWSQ(dimension, faiss.ScalarQuantizer.QT_fp16, config.links, product))
        index.hnsw.efConstruction = config.ef_construction
        index.is_trained = True  # float16 needs no training
        return index
    rotation = f"OPQ{config.code_bytes}," if config.opq else ""
    index = faiss.index_factory(dimension, f"{rotation}IVF{config.lists},PQ{config.code_bytes}x8np", product)
    clustering = faiss.extract_index_ivf(index).cp
    clustering.min_points_per_centroid = 1  # ``_check_settings`` has checked the number of vectors
    clustering.max_points_per_centroid = -(-config.training_rows // config.lists)
    index.train(vectors.sample(config.training_rows, _SEED))
    return index
