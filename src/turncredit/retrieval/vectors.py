"""Vectors on disk, read by memory map: shards of an encoded corpus, or a published flat FAISS file."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from turncredit.config.base import StrictModel
from turncredit.data.corpus import rebuild_index
from turncredit.errors import DataError

_FLAT_HEADER = struct.Struct("<4siqqq?iQ")  # tag, D, N, two unused, trained, metric, number of components


class ShardManifest(StrictModel):
    """Describes a shard of vectors; written beside it when the vectors are complete.

    Attributes:
        corpus_sha256: sha256 of the corpus file.
        start: first row in the corpus.
        stop: row after the last.
        encoder: ``Encoder.identity``.
        dimension: components per vector.
        storage: type of a component on disk.
        precision: floating-point type in which the encoder computes.
        seconds: duration of the encoding.
    """

    corpus_sha256: str
    start: int
    stop: int
    encoder: str
    dimension: int
    storage: str
    precision: str
    seconds: float


def shard_range(documents: int, shard: int, shards: int) -> tuple[int, int]:
    """First row of shard ``shard`` (from 0) of ``shards``, and the row after its last. Sizes differ by at most one.

    >>> [shard_range(10, n, 3) for n in range(3)]
    [(0, 3), (3, 6), (6, 10)]
    """
    return documents * shard // shards, documents * (shard + 1) // shards


def shard_path(folder: Path, shard: int, shards: int) -> Path:
    """The file of a shard's vectors; its manifest has the same name with ``.json``."""
    return folder / f"{shard:05d}-of-{shards:05d}.npy"


class Vectors:
    """Vectors of one dimension, memory-mapped and concatenated.

    Args:
        parts: arrays [n_i, D], in order.
    """

    def __init__(self, parts: Sequence[NDArray[Any]]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])
        self.dimension = int(parts[0].shape[1])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def blocks(self, rows: int) -> Iterator[NDArray[np.float32]]:
        """All vectors in order as float32, at most ``rows`` at a time."""
        for part in self._parts:
            for start in range(0, len(part), rows):
                yield np.asarray(part[start:start + rows], dtype=np.float32)

    def at(self, rows: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors [len(rows), D] of ascending ``rows``."""
        row_N = np.asarray(rows)
        first = np.concatenate([[0], self._ends[:-1]])
        part_N = np.searchsorted(self._ends, row_N, side="right")
        return np.concatenate([np.asarray(self._parts[n][row_N[part_N == n] - first[n]], dtype=np.float32)
                               for n in range(len(self._parts))])

    def sample(self, rows: int, seed: int) -> NDArray[np.float32]:
        """``rows`` distinct vectors (all, if there are fewer), drawn with ``seed``, in order."""
        return self.at(np.sort(np.random.default_rng(seed).choice(len(self), min(rows, len(self)), replace=False)))


def read_shard(path: Path) -> tuple[ShardManifest, NDArray[Any]]:
    """Read one finished shard; its vectors are memory-mapped.

    Raises:
        DataError: it is missing, unfinished or differs from its manifest.
    """
    beside = path.with_suffix(".json")
    remedy = _remake(path)
    try:
        manifest = ShardManifest.model_validate_json(beside.read_text(encoding="utf-8"))
        array = np.load(path, mmap_mode="r")
    except OSError as error:
        raise DataError(f"{error.filename or path}: {error.strerror}", rebuild_index(path.parents[1])) from error
    except (ValidationError, ValueError, EOFError) as error:
        raise DataError(f"{path}: not a finished shard: {error}", remedy) from error
    if array.shape != (manifest.stop - manifest.start, manifest.dimension) or array.dtype != manifest.storage:
        raise DataError(f"{path}: {array.dtype} {array.shape} differs from {beside.name}", remedy)
    return manifest, array


def read_shards(folder: Path, shards: int, corpus_sha256: str, documents: int) -> tuple[Vectors, str]:
    """Read all shards of a corpus; returns the vectors and the identity of their encoder.

    Raises:
        DataError: a shard is missing, or belongs to another corpus, row range or encoder.
    """
    read = [read_shard(shard_path(folder, shard, shards)) for shard in range(shards)]
    encoder = read[0][0].encoder
    for shard, (manifest, _) in enumerate(read):
        path = shard_path(folder, shard, shards)
        if manifest.corpus_sha256 != corpus_sha256 or (manifest.start, manifest.stop) != shard_range(
                documents, shard, shards):
            raise DataError(f"{path}: vectors of another corpus", _remake(path))
        if manifest.encoder != encoder:
            raise DataError(f"{path}: made by another encoder than shard 0", _remake(path))
    return Vectors([array for _, array in read]), encoder


def read_flat_file(path: Path, documents: int) -> Vectors:
    """The vectors of a flat FAISS index file (float32, inner product), memory-mapped.

    Raises:
        DataError: it is missing, truncated, another kind of index, or has another number of vectors than ``documents``.
    """
    again = f"fetch it again: turncredit fetch {path.parent.name}"
    try:
        with path.open("rb") as file:
            head = file.read(_FLAT_HEADER.size)
        tag, dimension, rows, _, _, _, _, numbers = _FLAT_HEADER.unpack(head)
        expected = _FLAT_HEADER.size + 4 * numbers
        sound = tag == b"IxFI" and numbers == rows * dimension and path.stat().st_size == expected
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", again) from error
    except struct.error as error:
        raise DataError(f"{path}: too short for an index", again) from error
    if not sound:
        raise DataError(f"{path}: not a complete flat FAISS index by inner product", again)
    if rows != documents:
        raise DataError(f"{path}: {rows} vectors, but the corpus has {documents} passages",
                        "use the corpus that it was built from")
    return Vectors([np.memmap(path, dtype=np.float32, mode="r", offset=_FLAT_HEADER.size, shape=(rows, dimension))])


def _remake(path: Path) -> str:
    return f"remove {path} and its .json, then {rebuild_index(path.parents[1])}"
