"""Corpus files in Search-R1's form: one JSON object a line, ``{"id", "contents"}``.

``contents`` is the title in double quotes on the first line and the text below it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turncredit.errors import DataError
from turncredit.types import Document


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
        """The passage of a title and a text."""
        return cls(id, f'"{title}"\n{text}')

    def document(self, score: float = 0.0) -> Document:
        """Title and text apart; contents of one line are all text."""
        title, newline, text = self.contents.partition("\n")
        if not newline:
            return Document(self.id, "", title, score)
        return Document(self.id, title.strip().strip('"'), text, score)


def parse_passage(line: str) -> Passage:
    """Read one line.

    Raises:
        ValueError: not an object with a non-blank text ``id`` and a non-blank text ``contents``.
    """
    record: Any = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError("a line holds one JSON object")
    for key in ("id", "contents"):
        if not isinstance(record.get(key), str) or not record[key].strip():
            raise ValueError(f"{key!r} is a text and not blank")
    return Passage(record["id"], record["contents"])


def read_corpus(path: Path) -> Iterator[Passage]:
    """Read and check a corpus, passage by passage.

    Raises:
        DataError: the file is missing, empty or not UTF-8, a line is malformed or an id stands
            twice; names file:line.
    """
    seen: set[str] = set()
    number = 0
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    passage = parse_passage(line)
                except ValueError as error:
                    raise DataError(f"{path}:{number}: not a passage: {error}",
                                    'each line is {"id": "...", "contents": "\\"Title\\"\\nText"}') from error
                if passage.id in seen:
                    raise DataError(f"{path}:{number}: id {passage.id!r} stands twice",
                                    "give each passage an id of its own")
                seen.add(passage.id)
                yield passage
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 after line {number}: {error.reason}", "save it as UTF-8") from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", "make it with: snakemake data") from error
    if not seen:
        raise DataError(f"{path}: no passage in it", "make it again with: snakemake data")
