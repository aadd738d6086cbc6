"""Readers of published files: rows of question sets, and the corpus inside an archive.

No row is skipped: a malformed one is an error that names the file and the row.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from tqdm import tqdm

from turncredit.data.corpus import parse_passage
from turncredit.data.sources import Format, Inside
from turncredit.errors import DataError
from turncredit.files import atomic

_BATCH_ROWS = 4096  # rows of a parquet file that are read at once


@dataclass(frozen=True, slots=True)
class Row:
    """A published question: row number (from 1), dataset, text and accepted answers."""

    number: int
    dataset: str
    question: str
    answers: tuple[str, ...]


def read_rows(path: Path, form: Format, datasets: dict[str, int]) -> Iterator[Row]:
    """Read the rows of a question file in order; check each row and the number of rows.

    Args:
        path: a FlashRAG JSON Lines file, or a parquet file of Search-R1 or of TriviaQA's reading comprehension.
        form: the format of the file.
        datasets: expected number of rows of each dataset in it; rows need not name the dataset if there is only one.

    Raises:
        DataError: the file cannot be read, a row is malformed (file:row), or a dataset has another number of rows.
    """
    only = next(iter(datasets)) if len(datasets) == 1 else None
    records, parse = _READERS[form]
    counts = dict.fromkeys(datasets, 0)
    for number, record in records(path):
        try:
            dataset = record["data_source"] if form == "search_r1" else only
            if dataset not in counts:
                raise ValueError(f"unexpected dataset {dataset!r}")
            question, answers = parse(record)
            row = Row(number, dataset, _text(question).strip(), _answers(answers))
        except (KeyError, TypeError, ValueError) as error:
            what = f"missing key {error}" if isinstance(error, KeyError) else str(error)
            raise DataError(f"{path}:{number}: not a question of the form {form}: {what}",
                            "fetch the file again; if that does not help, the publisher changed it") from error
        counts[row.dataset] += 1
        yield row
    if counts != datasets:
        raise DataError(f"{path}: has {_listed(counts)}, not {_listed(datasets)}",
                        "fetch the file again, or correct the rows in config/sources.yaml")


def extract_corpus(archive: Path, inside: Inside, output: Path) -> None:
    """Write the only file of a gzip tar, or the content of a plain gzip, to ``output``, unchanged.

    Passage i must have the id "i", from 0: an index refers to passages by row number.

    Raises:
        DataError: not an archive of one file, a line that is malformed or has another id than its row (file:row), or
            another number of passages, size or sha256 than expected. ``output`` is unchanged then.
    """
    digest, size, number = hashlib.sha256(), 0, 0
    with atomic(output) as temporary, _inside(archive) as lines, temporary.open("wb") as file, tqdm(
            total=inside.rows, unit=" passages", unit_scale=True, desc=output.name, leave=False,
            mininterval=0.5 if sys.stderr.isatty() else 30) as bar:
        try:
            for line in lines:
                _check_passage(archive, number, line)
                file.write(line)
                digest.update(line)
                number, size = number + 1, size + len(line)
                bar.update()
        except (EOFError, gzip.BadGzipFile, zlib.error, tarfile.TarError) as error:
            raise DataError(f"{archive}: breaks off after passage {number}: {error}", "fetch it again") from error
        for what, actual, expected in (("passages", number, inside.rows), ("bytes", size, inside.size),
                                       ("the sha256", digest.hexdigest(), inside.sha256)):
            if expected not in (None, actual):
                raise DataError(f"{archive}: has inside {what} {actual}, not {expected}",
                                "fetch it again, or correct config/sources.yaml")


def _check_passage(archive: Path, number: int, line: bytes) -> None:
    try:
        passage = parse_passage(line.decode())
        if passage.id != str(number):
            raise ValueError(f"its id is {passage.id!r}, not {str(number)!r}")
    except ValueError as error:
        raise DataError(f"{archive}:{number + 1}: not the passage of this row: {error}",
                        "fetch it again; if that does not help, the publisher changed it") from error


@contextmanager
def _inside(archive: Path) -> Iterator[IO[bytes]]:
    """Stream of the only file of a gzip tar, or of the content of a plain gzip."""
    with ExitStack() as stack:
        try:
            packed = cast(IO[bytes], stack.enter_context(gzip.open(archive, "rb")))
            is_tar = packed.read(512)[257:262] == b"ustar"
            packed.seek(0)
            tar = stack.enter_context(tarfile.open(fileobj=packed, mode="r|")) if is_tar else None
            stream = packed if tar is None else _next_file(tar)
        except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
            raise DataError(f"{archive}: cannot be read as a gzip: {error}", "fetch it again") from error
        if stream is None:
            raise DataError(f"{archive}: no file in it", "fetch it again")
        yield stream
        if tar is not None and _next_file(tar) is not None:
            raise DataError(f"{archive}: more than one file in it", "name an archive of one in config/sources.yaml")


def _next_file(tar: tarfile.TarFile) -> IO[bytes] | None:
    return next((tar.extractfile(member) for member in iter(tar.next, None) if member.isfile()), None)


def _json_lines(path: Path) -> Iterator[tuple[int, Any]]:
    number = 0
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    yield number, json.loads(line)
                except json.JSONDecodeError as error:
                    raise DataError(f"{path}:{number}: not JSON: {error.msg}", "fetch the file again") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 after line {number}: {error.reason}", "fetch the file again") from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", "fetch it: turncredit fetch") from error


def _parquet(*columns: str) -> Callable[[Path], Iterator[tuple[int, Any]]]:
    def records(path: Path) -> Iterator[tuple[int, Any]]:
        import pyarrow
        from pyarrow.parquet import ParquetFile

        try:
            with ParquetFile(path) as file:
                if missing := [name for name in columns if name not in file.schema_arrow.names]:
                    raise DataError(f"{path}: no column {missing[0]!r}", "fetch the file again")
                batches = file.iter_batches(_BATCH_ROWS, columns=list(columns))
                rows = (row for batch in batches for row in batch.to_pylist())
                yield from enumerate(rows, start=1)
        except (OSError, pyarrow.ArrowException) as error:
            raise DataError(f"{path}: cannot be read as parquet: {error}", "fetch the file again") from error
    return records


def _flashrag(record: Any) -> tuple[Any, Any]:
    return record["question"], record["golden_answers"]


def _trivia_rc(record: Any) -> tuple[Any, Any]:
    return record["question"], record["answer"]["normalized_aliases"]


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"the question must be a string and not blank, not {value!r}")
    return value


def _answers(value: Any) -> tuple[str, ...]:
    """The answers without blank ones, which match nothing. One answer without a list, or a number, is accepted."""
    listed = value if isinstance(value, list) else [value]
    for answer in listed:
        if isinstance(answer, bool) or not isinstance(answer, str | int):
            raise ValueError(f"an answer must be a string, not {answer!r}")
    answers = tuple(dict.fromkeys(text for answer in listed if (text := str(answer).strip())))
    if not answers:
        raise ValueError("every answer is blank")
    return answers


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} rows of {name}" for name, count in counts.items())


# format -> reader of its rows, and getter of (question, answers) of a row
_READERS: dict[Format, tuple[Callable[[Path], Iterator[tuple[int, Any]]], Callable[[Any], tuple[Any, Any]]]] = {
    "flashrag": (_json_lines, _flashrag),
    "search_r1": (_parquet("question", "golden_answers", "data_source"), _flashrag),
    "trivia_rc": (_parquet("question", "answer"), _trivia_rc),
}
