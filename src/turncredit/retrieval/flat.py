"""Exact search by inner product over a memory-mapped matrix of vectors: one pass, block by block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turncredit.errors import DataError
from turncredit.retrieval.sizes import BLOCK_ROWS

_ROUNDING = 1e-5  # of a product in float32, relative to 1 or the score: vectors so near the k-th are looked at again


class FlatIndex:
    """All vectors, compared with each query.

    Args:
        path: a matrix [N, D] of float16 or float32 (``.npy``).
        device: where blocks are multiplied. On a CPU they are mapped from disk; on GPUs they stay there, spread
            evenly over all that this process sees.
        block: vectors that are multiplied at once.

    Raises:
        DataError: no such matrix.
    """

    def __init__(self, path: Path, device: str = "cpu", block: int = BLOCK_ROWS) -> None:
        try:
            self._matrix: NDArray[Any] = np.load(path, mmap_mode="c")  # never written to; torch asks for it
        except (OSError, ValueError, EOFError) as error:
            raise DataError(f"{path}: no matrix of vectors: {error}", "build it again: snakemake index") from error
        parts = [torch.from_numpy(self._matrix[start:start + block]) for start in range(0, len(self._matrix), block)]
        if device == "cuda":
            gpus = torch.cuda.device_count()
            parts = [part.to(f"cuda:{n * gpus // len(parts)}") for n, part in enumerate(parts)]
        self._parts = parts

    def __len__(self) -> int:
        return len(self._matrix)

    @torch.inference_mode()
    def search(self, queries_Q_D: NDArray[np.float32], k: int) -> tuple[NDArray[np.float64],
                                                                                NDArray[np.int64]]:
        """The ``k`` best vectors of each query, best first, equal ones in their order.

        Scores are computed again in float64 for those that are returned: equal vectors have equal scores.
        """
        best = _Best(len(queries_Q_D), min(k, len(self)))
        query_Q_D, first = torch.from_numpy(queries_Q_D), 0
        floor_Q = torch.full((len(queries_Q_D),), -torch.inf)
        for part in self._parts:
            score_Q_B = query_Q_D.to(part.device) @ part.float().T
            if first == 0:  # or all of the first block would be candidates
                floor_Q = _below(score_Q_B.topk(min(best.k, len(part))).values[:, -1])
            query_N, column_N = (score_Q_B >= floor_Q.to(part.device)[:, None]).nonzero(as_tuple=True)
            floor_Q = best.add(query_N, score_Q_B[query_N, column_N], column_N + first)
            first += len(part)
        found = [self._exactly(query, rows, best.k) for query, rows in zip(queries_Q_D, best.rows(), strict=True)]
        return np.stack([scores for scores, _ in found]), np.stack([rows for _, rows in found])

    def _exactly(self, query_D: NDArray[np.float32], row_M: NDArray[np.int64], k: int) -> tuple[NDArray[np.float64],
                                                                                             NDArray[np.int64]]:
        score_M = (self._matrix[row_M].astype(np.float64) * query_D).sum(-1)
        order_K = np.lexsort((row_M, -score_M))[:k]
        return score_M[order_K], row_M[order_K]


class _Best:
    """For each query the best ``k`` of all pairs (score, row) that were added, and those that may equal the worst."""

    def __init__(self, queries: int, k: int) -> None:
        self.k = k
        self._queries = np.arange(queries)
        self._query_N = np.zeros(0, dtype=np.int64)
        self._row_N = np.zeros(0, dtype=np.int64)
        self._score_N = np.zeros(0, dtype=np.float32)

    def add(self, query_N: Tensor, score_N: Tensor, row_N: Tensor) -> Tensor:
        """Add pairs; returns each query's least score that still matters, -inf while there are fewer than ``k``."""
        query = np.concatenate([self._query_N, query_N.cpu().numpy()])
        row = np.concatenate([self._row_N, row_N.cpu().numpy()])
        score = np.concatenate([self._score_N, score_N.cpu().numpy()])
        order = np.lexsort((-score, query))
        query, row, score = query[order], row[order], score[order]
        last_Q = np.searchsorted(query, self._queries) + self.k - 1  # each query's k-th best, if it has so many
        whole_Q = last_Q < np.searchsorted(query, self._queries, side="right")
        floor_Q = torch.where(torch.from_numpy(whole_Q), _below(torch.from_numpy(score[np.where(whole_Q, last_Q, 0)])),
                              -torch.inf)
        kept = score >= floor_Q.numpy()[query]
        self._query_N, self._row_N, self._score_N = query[kept], row[kept], score[kept]
        return floor_Q

    def rows(self) -> list[NDArray[np.int64]]:
        """The rows of each query."""
        return np.split(self._row_N, np.searchsorted(self._query_N, self._queries)[1:])


def _below(score_Q: Tensor) -> Tensor:
    """Scores that may be as good, but for rounding."""
    return score_Q - _ROUNDING * score_Q.abs().clamp(min=1)
