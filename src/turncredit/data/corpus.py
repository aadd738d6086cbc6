"""Corpus files: reads and checks passages, in order or by row.

A corpus is JSON Lines in Search-R1's form: one object per line, ``{"id", "contents"}``, where ``contents`` is the title
in double quotes on the first line and the text below it. ``read_corpus`` reads a whole file. ``PassageTable`` reads
single rows through byte offsets and memory maps, so that 21 million passages never have to fit in memory.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, ValidationError

from turncredit.config.base import StrictModel
from turncredit.errors import DataError
from turncredit.files import atomic_folder
from turncredit.types import Document

_FORM = 'write each line as {"id": "...", "contents": "\\"Title\\"\\nText"}, in UTF-8'


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage of the corpus.

    >>> Passage.of("7", "Kenya", "The capital of Kenya is Nairobi.").contents
    '"Kenya"\\nThe capital of Kenya is Nairobi.'
    """

    id: str
    contents: str

    @classmethod
    def of(cls, id: str, title: str, text: str) -> Passage:
        """A passage with this title and text."""
        return cls(id, f'"{title}"\n{text}')

    def document(self, score: float = 0.0) -> Document:
        """Splits title and text; contents of a single line are text without a title."""
        title, newline, text = self.contents.partition("\n")
        if not newline:
            return Document(self.id, "", title, score)
        return Document(self.id, title.strip().strip('"'), text, score)


def parse_passage(line: str) -> Passage:
    """Parse one line.

    Raises:
        ValueError: not an object with a non-blank string ``id`` and a non-blank string ``contents``.
    """
    record: Any = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError("expected one JSON object")
    for key in ("id", "contents"):
        if not isinstance(record.get(key), str) or not record[key].strip():
            raise ValueError(f"{key!r} must be a string and not blank")
    return Passage(record["id"], record["contents"])


def read_corpus(path: Path) -> Iterator[Passage]:
    """Read and check a corpus, passage by passage.

    Raises:
        DataError: the file is missing, empty or not UTF-8; or a line is malformed or repeats an id (names file:line).
    """
    ids: set[str] = set()
    number = 0
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    passage = parse_passage(line)
                except ValueError as error:
                    raise _malformed(path, number, error) from error
                if passage.id in ids:
                    raise _duplicate(path, number, passage.id)
                ids.add(passage.id)
                yield passage
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 after line {number}: {error.reason}", "save it as UTF-8") from error
    except OSError as error:
        raise _unreadable(path, error) from error
    if not ids:
        raise _empty(path)


class TableManifest(StrictModel):
    """``passages.json``.

    Attributes:
        corpus: path of the corpus file, relative to the table's folder.
        sha256: hash of that file.
        documents: number of passages.
    """

    corpus: str
    sha256: str
    documents: int = Field(ge=1)


class PassageTable:
    """Random access to the passages of a corpus by row; reading a row touches only its own bytes.

    Args:
        folder: written by ``build_table``.

    Raises:
        DataError: the table is missing or damaged, or the corpus is missing or has another size.
    """

    def __init__(self, folder: Path) -> None:
        path = folder / "passages.json"
        self._remedy = rebuild_index(folder.parent, "passages")
        try:
            self.manifest = TableManifest.model_validate_json(path.read_text(encoding="utf-8"))
            self._starts = np.load(folder / "offsets.npy", mmap_mode="r")
            corpus = folder / self.manifest.corpus
            with corpus.open("rb") as file:
                self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise DataError(f"{error.filename or path}: {error.strerror}", self._remedy) from error
        except (ValidationError, ValueError) as error:
            raise DataError(f"{path}: damaged passage table: {error}", self._remedy) from error
        if len(self._starts) != self.manifest.documents + 1 or len(self._bytes) != self._starts[-1]:
            raise DataError(f"{corpus}: changed since {path} was written", self._remedy)

    def __len__(self) -> int:
        return self.manifest.documents

    def __getitem__(self, row: int) -> Passage:
        if not 0 <= row < len(self):
            raise IndexError(row)
        try:
            return parse_passage(self._bytes[self._starts[row]:self._starts[row + 1]].decode())
        except ValueError as error:
            raise DataError(f"passage {row}: not at the offset in the passage table: {error}", self._remedy) from error


def build_table(corpus: Path, folder: Path) -> TableManifest:
    """Check a corpus and write the byte offset of each passage: ``offsets.npy`` and ``passages.json``.

    Takes 16 bytes of memory per passage.

    Raises:
        DataError: the corpus is missing, empty or malformed, or repeats an id (names file:line); or the folder cannot
            be written.
    """
    starts, hashes, digest = array("q", [0]), array("Q"), hashlib.sha256()
    try:
        with corpus.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                digest.update(line)
                starts.append(starts[-1] + len(line))
                hashes.append(_hash(_parse_line(corpus, number, line).id))
    except OSError as error:
        raise _unreadable(corpus, error) from error
    if not hashes:
        raise _empty(corpus)
    _check_ids(corpus, np.frombuffer(hashes, dtype=np.uint64), starts)
    manifest = TableManifest(corpus=os.path.relpath(corpus.resolve(), folder.resolve()), sha256=digest.hexdigest(),
                             documents=len(hashes))
    with atomic_folder(folder) as fresh:
        np.save(fresh / "offsets.npy", np.frombuffer(starts, dtype=np.int64))
        (fresh / "passages.json").write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
    return manifest


def rebuild_index(index_dir: Path, damaged: str | None = None) -> str:
    """The remedy for an index that is missing or cannot be used: the command that builds it.

    Args:
        index_dir: ``index/{scale}`` or ``index/{scale}/{retriever}``; other folders get "..." for the scale.
        damaged: a file in it that Snakemake takes for finished and that must be written again.

    >>> rebuild_index(Path("/clone/index/mini"))
    'build it: snakemake --cores 2 index --config scale=mini'
    >>> rebuild_index(Path("index/mini/e5"), "index.json")
    'build it again: snakemake --cores 2 index --config scale=mini --forcerun index/mini/e5/index.json'
    """
    _, marker, below = f"/{index_dir.as_posix()}".rpartition("/index/")
    command = f"snakemake --cores 2 index --config scale={below.partition('/')[0] if marker else '...'}"
    if damaged is None:
        return f"build it: {command}"
    return f"build it again: {command} --forcerun {f'index/{below}' if marker else index_dir}/{damaged}"


def _parse_line(corpus: Path, number: int, line: bytes) -> Passage:
    try:
        return parse_passage(line.decode())
    except ValueError as error:
        raise _malformed(corpus, number, error) from error


def _hash(id: str) -> int:
    return int.from_bytes(hashlib.blake2b(id.encode("utf-8", "surrogatepass"), digest_size=8).digest())


def _check_ids(corpus: Path, hashes: np.ndarray, starts: array[int]) -> None:
    """Raise if an id is repeated. Equal hashes are rare, so only their ids are read again and compared."""
    order = np.argsort(hashes, kind="stable")
    twins = np.flatnonzero(hashes[order[1:]] == hashes[order[:-1]])
    with corpus.open("rb") as file:
        for first, second in np.stack([order[twins], order[twins + 1]], axis=1).tolist():
            ids = []
            for row in (first, second):
                file.seek(starts[row])
                ids.append(_parse_line(corpus, row + 1, file.readline()).id)
            if ids[0] == ids[1]:
                raise _duplicate(corpus, second + 1, ids[1])


def _malformed(path: Path, number: int, error: ValueError) -> DataError:
    return DataError(f"{path}:{number}: not a passage: {error}", _FORM)


def _duplicate(path: Path, number: int, id: str) -> DataError:
    return DataError(f"{path}:{number}: duplicate id {id!r}", "give each passage its own id")


def _unreadable(path: Path, error: OSError) -> DataError:
    return DataError(f"{path}: {error.strerror}", "make it: snakemake --cores 2 data --config scale=...")


def _empty(path: Path) -> DataError:
    return DataError(f"{path}: no passage in it", "make it again: snakemake --cores 2 data --config scale=...")
