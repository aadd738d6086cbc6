"""A corpus file by row: byte offsets and memory maps, so that 21 million passages are never held in memory."""

from __future__ import annotations

import hashlib
import mmap
import os
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from pydantic import Field, ValidationError

from turncredit.config.base import StrictModel
from turncredit.errors import DataError
from turncredit.files import atomic_folder
from turncredit.retrieval.corpus import Passage, parse_passage

_REBUILD = "build it again: snakemake index"


class TableManifest(StrictModel):
    """``passages.json``.

    Attributes:
        corpus: the corpus file, as a path from the table's folder.
        sha256: of that file.
        documents: passages in it.
    """

    corpus: str
    sha256: str
    documents: int = Field(ge=1)


class PassageTable:
    """The passages of a corpus, by row; reading one touches its bytes alone.

    Args:
        folder: made by ``build_table``.

    Raises:
        DataError: there is no table, or the corpus is gone or has another size.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "passages.json"
        try:
            self.manifest = TableManifest.model_validate_json(path.read_text(encoding="utf-8"))
            self._starts = np.load(folder / "offsets.npy", mmap_mode="r")
            corpus = folder / self.manifest.corpus
            with corpus.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise DataError(f"{error.filename or path}: {error.strerror}", _REBUILD) from error
        except (ValidationError, ValueError) as error:
            raise DataError(f"{path}: no table of passages: {error}", _REBUILD) from error
        if len(self._starts) != self.manifest.documents + 1 or len(self._bytes) != self._starts[-1]:
            raise DataError(f"{corpus}: not the file that {path} tells of", _REBUILD)

    def __len__(self) -> int:
        return self.manifest.documents

    def __getitem__(self, row: int) -> Passage:
        if not 0 <= row < len(self):
            raise IndexError(row)
        try:
            return parse_passage(self._bytes[self._starts[row]:self._starts[row + 1]].decode())
        except ValueError as error:
            raise DataError(f"passage {row} is not where the table says: {error}", _REBUILD) from error


def build_table(corpus: Path, folder: Path) -> TableManifest:
    """Check a corpus, passage by passage, and write where each begins: ``offsets.npy`` and ``passages.json``.

    Takes 16 bytes of memory a passage.

    Raises:
        DataError: the corpus is missing, empty or malformed, or an id stands twice (names file:line); or the
            folder cannot be written.
    """
    starts, ids, digest = array("q", [0]), array("Q"), hashlib.sha256()
    try:
        for line in _lines(corpus):
            digest.update(line)
            starts.append(starts[-1] + len(line))
            ids.append(_hash(_parsed(corpus, len(starts) - 1, line).id))
    except OSError as error:
        raise DataError(f"{corpus}: {error.strerror}", "make it with: snakemake data") from error
    if not ids:
        raise DataError(f"{corpus}: no passage in it", "make it again with: snakemake data")
    _check_ids(corpus, np.frombuffer(ids, dtype=np.uint64), starts)
    manifest = TableManifest(corpus=os.path.relpath(corpus.resolve(), folder.resolve()), sha256=digest.hexdigest(),
                             documents=len(ids))
    with atomic_folder(folder) as fresh:
        np.save(fresh / "offsets.npy", np.frombuffer(starts, dtype=np.int64))
        (fresh / "passages.json").write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return manifest


def _lines(corpus: Path) -> Iterator[bytes]:
    with corpus.open("rb") as file:
        yield from file


def _parsed(corpus: Path, number: int, line: bytes) -> Passage:
    try:
        return parse_passage(line.decode())
    except ValueError as error:
        raise DataError(f"{corpus}:{number}: not a passage: {error}",
                        'each line is {"id": "...", "contents": "\\"Title\\"\\nText"}, in UTF-8') from error


def _hash(id: str) -> int:
    return int.from_bytes(hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def _check_ids(corpus: Path, hashes: np.ndarray, starts: array[int]) -> None:
    """Lines with equal hashes are rare; their ids are compared themselves."""
    order = np.argsort(hashes, kind="stable")
    twins = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
    with corpus.open("rb") as file:
        for pair in np.stack([order[twins], order[twins + 1]], axis=1).tolist():
            read = []
            for row in pair:
                file.seek(starts[row])
                read.append(_parsed(corpus, row + 1, file.readline()).id)
            if read[0] == read[1]:
                raise DataError(f"{corpus}:{pair[1] + 1}: id {read[1]!r} stands twice",
                                "give each passage an id of its own")
