"""Vectors on disk: shards of a corpus, or a flat FAISS file that others made, read by blocks."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from turncredit.config.base import StrictModel
from turncredit.errors import DataError

_FLAT_HEADER = struct.Struct("<4siqqq?iQ")  # word, D, N, two unused, trained, metric, numbers that follow


class ShardManifest(StrictModel):
    """Beside a shard's vectors, written after them.

    Attributes:
        corpus_sha256: of the corpus file.
        start: its first row in the corpus.
        stop: the row after its last.
        encoder: ``Encoder.identity``.
        dimension: of a vector.
        storage: type of a component.
        precision: of the encoder while it ran.
        seconds: of the encoding.
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
    """First row of shard ``shard`` (from 0) of ``shards``, and the row after its last; sizes differ by one at most.

    >>> [shard_range(10, n, 3) for n in range(3)]
    [(0, 3), (3, 6), (6, 10)]
    """
    return documents * shard // shards, documents * (shard + 1) // shards


def shard_path(folder: Path, shard: int, shards: int) -> Path:
    """The vectors of a shard; its manifest has the same name with ``.json``."""
    return folder / f"{shard:05d}-of-{shards:05d}.npy"


class Vectors:
    """Many vectors of one dimension, memory-mapped.

    Args:
        parts: arrays [n_i, D] that follow one another.
    """

    def __init__(self, parts: Sequence[NDArray[Any]]) -> None:
        self._parts = parts
        self._ends = np.cumsum([len(part) for part in parts])
        self.dimension = int(parts[0].shape[1])

    def __len__(self) -> int:
        return int(self._ends[-1])

    def blocks(self, rows: int) -> Iterator[NDArray[np.float32]]:
        """All vectors in order, at most ``rows`` at a time, as float32."""
        for part in self._parts:
            for start in range(0, len(part), rows):
                yield np.asarray(part[start:start + rows], dtype=np.float32)

    def at(self, rows: Sequence[int] | NDArray[np.int64]) -> NDArray[np.float32]:
        """The vectors of ascending ``rows``."""
        asked = np.asarray(rows)
        first = np.concatenate([[0], self._ends[:-1]])
        part = np.searchsorted(self._ends, asked, side="right")
        return np.concatenate([np.asarray(self._parts[n][asked[part == n] - first[n]], dtype=np.float32)
                               for n in range(len(self._parts))])

    def sample(self, rows: int, seed: int) -> NDArray[np.float32]:
        """``rows`` distinct vectors (all, if there are fewer) drawn from ``seed``, in order."""
        return self.at(np.sort(np.random.default_rng(seed).choice(len(self), min(rows, len(self)), replace=False)))


def read_shard(path: Path) -> tuple[ShardManifest, NDArray[Any]]:
    """One finished shard, its vectors memory-mapped.

    Raises:
        DataError: it is missing, unfinished or not what its manifest tells.
    """
    told = path.with_suffix(".json")
    remedy = "make it again: remove both files, then snakemake index"
    try:
        manifest = ShardManifest.model_validate_json(told.read_text(encoding="utf-8"))
        array = np.load(path, mmap_mode="r")
    except OSError as error:
        raise DataError(f"{error.filename or path}: {error.strerror}", "make it: snakemake index") from error
    except (ValidationError, ValueError, EOFError) as error:
        raise DataError(f"{path}: no finished shard: {error}", remedy) from error
    if array.shape != (manifest.stop - manifest.start, manifest.dimension) or array.dtype != manifest.storage:
        raise DataError(f"{path}: {array.dtype} {array.shape}, and {told.name} tells of other vectors", remedy)
    return manifest, array


def read_shards(folder: Path, shards: int, corpus_sha256: str, documents: int) -> tuple[Vectors, str]:
    """All shards of a corpus, and the identity of the encoder that made them.

    Raises:
        DataError: a shard is missing, of another corpus, of another range, or by another encoder.
    """
    read = [read_shard(shard_path(folder, shard, shards)) for shard in range(shards)]
    encoder = read[0][0].encoder
    for shard, (manifest, _) in enumerate(read):
        path = shard_path(folder, shard, shards)
        if manifest.corpus_sha256 != corpus_sha256 or (manifest.start, manifest.stop) != shard_range(
                documents, shard, shards):
            raise DataError(f"{path}: vectors of another corpus", "remove it, then: snakemake index")
        if manifest.encoder != encoder:
            raise DataError(f"{path}: made by another encoder than shard 0", "remove it, then: snakemake index")
    return Vectors([array for _, array in read]), encoder


def read_flat_file(path: Path, documents: int) -> Vectors:
    """The vectors of a FAISS file of one flat index (float32, inner product), memory-mapped.

    Raises:
        DataError: it is missing, another kind of index, or of another number of vectors.
    """
    try:
        with path.open("rb") as file:
            head = file.read(_FLAT_HEADER.size)
        word, dimension, rows, _, _, _, _, numbers = _FLAT_HEADER.unpack(head)
        expected = _FLAT_HEADER.size + 4 * numbers
        sound = word == b"IxFI" and numbers == rows * dimension and path.stat().st_size == expected
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", "fetch it: snakemake fetch") from error
    except struct.error as error:
        raise DataError(f"{path}: too short for an index", "fetch it again: snakemake fetch") from error
    if not sound:
        raise DataError(f"{path}: no whole flat FAISS index by inner product", "fetch it again: snakemake fetch")
    if rows != documents:
        raise DataError(f"{path}: {rows} vectors, but the corpus has {documents} passages",
                        "use the corpus that it was made from")
    return Vectors([np.memmap(path, dtype=np.float32, mode="r", offset=_FLAT_HEADER.size, shape=(rows, dimension))])
