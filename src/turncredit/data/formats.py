"""Readers of published files: question sets as rows, archives as the one file inside.

A bad row is an error that names the file and the row; nothing is skipped.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from tqdm import tqdm

from turncredit.data.sources import Format, Inside
from turncredit.errors import DataError
from turncredit.files import atomic, atomic_folder
from turncredit.retrieval.corpus import parse_passage

_READ_AT_ONCE = 4096  # rows of a parquet file


@dataclass(frozen=True, slots=True)
class Row:
    """A question as published: its place in the file (from 1), its set, and the accepted answers."""

    number: int
    dataset: str
    question: str
    answers: tuple[str, ...]


def read_rows(path: Path, form: Format, datasets: dict[str, int]) -> Iterator[Row]:
    """The rows of a question file, in order, checked one by one and counted.

    Args:
        path: a FlashRAG jsonl, or a parquet of Search-R1 or of TriviaQA's reading comprehension.
        form: which.
        datasets: the sets in it, with the rows of each; where there is one, rows need not name it.

    Raises:
        DataError: the file cannot be read, a row is malformed (file:row), or a set has another number of rows.
    """
    only = next(iter(datasets)) if len(datasets) == 1 else None
    records, parse = _READERS[form]
    counts = dict.fromkeys(datasets, 0)
    for number, record in records(path):
        try:
            dataset = record["data_source"] if form == "search_r1" else only
            if dataset not in counts:
                raise ValueError(f"of the set {dataset!r}, which the file does not have")
            question, answers = parse(record)
            row = Row(number, dataset, _text(question).strip(), _answers(answers))
        except (KeyError, TypeError, ValueError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise DataError(f"{path}:{number}: not a question of the form {form}: {what}",
                            "fetch the file again; if it stays so, the publisher changed it") from error
        counts[row.dataset] += 1
        yield row
    if counts != datasets:
        raise DataError(f"{path}: has {_listed(counts)}, not {_listed(datasets)}",
                        "fetch the file again, or correct the rows in config/sources.yaml")


def extract_corpus(archive: Path, inside: Inside, output: Path) -> None:
    """Write the passages of a gzip tar (or a plain gzip) as ``corpus.jsonl``, byte by byte as they are.

    Passage i has the id "i", from 0: rows of an index are known by their number alone.

    Raises:
        DataError: no archive with one file, a line is no passage or out of its place (file:row), or number, size
            or sha256 differ from what is expected. ``output`` is as before then.
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
        for what, found, expected in (("passages", number, inside.rows), ("bytes", size, inside.size),
                                      ("the sha256", digest.hexdigest(), inside.sha256)):
            if expected not in (None, found):
                raise DataError(f"{archive}: has inside {what} {found}, not {expected}",
                                "fetch it again, or correct config/sources.yaml")


def unpack_folder(archive: Path, folder: Path) -> None:
    """Unpack a gzip tar that holds one folder (a Lucene index) as ``folder``: whole, or as it was before.

    Raises:
        DataError: no such archive, or names in it lead outside.
    """
    with atomic_folder(folder) as fresh, tempfile.TemporaryDirectory(dir=fresh.parent) as name:
        try:
            with tarfile.open(archive, "r:gz") as tar:
                tar.extractall(name, filter="data")
        except (EOFError, zlib.error, gzip.BadGzipFile, tarfile.TarError) as error:
            raise DataError(f"{archive}: cannot be unpacked: {error}", "fetch it again") from error
        inside = list(Path(name).iterdir())
        if len(inside) != 1 or not inside[0].is_dir():
            raise DataError(f"{archive}: holds {len(inside)} entries, not one folder", "fetch it again")
        for path in list(inside[0].iterdir()):
            path.rename(fresh / path.name)


def _check_passage(archive: Path, number: int, line: bytes) -> None:
    try:
        passage = parse_passage(line.decode())
        if passage.id != str(number):
            raise ValueError(f"its id is {passage.id!r}, not {str(number)!r}")
    except ValueError as error:
        raise DataError(f"{archive}:{number + 1}: not the passage of this place: {error}",
                        "fetch it again; if it stays so, the publisher changed it") from error


@contextmanager
def _inside(archive: Path) -> Iterator[IO[bytes]]:
    """The only file of a gzip tar, or what a gzip holds, as a stream."""
    with ExitStack() as held:
        try:
            packed = cast(IO[bytes], held.enter_context(gzip.open(archive, "rb")))
            is_tar = packed.read(512)[257:262] == b"ustar"
            packed.seek(0)
            tar = held.enter_context(tarfile.open(fileobj=packed, mode="r|")) if is_tar else None
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
                    raise DataError(f"{path}:{number}: no JSON: {error.msg}", "fetch the file again") from error
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
                batches = file.iter_batches(_READ_AT_ONCE, columns=list(columns))
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
        raise ValueError(f"the question is a text and not blank, not {value!r}")
    return value


def _answers(value: Any) -> tuple[str, ...]:
    """The answers but for blank ones, which would match nothing; a set may write one without a list, or a number."""
    listed = value if isinstance(value, list) else [value]
    for answer in listed:
        if isinstance(answer, bool) or not isinstance(answer, str | int):
            raise ValueError(f"an answer is a text, not {answer!r}")
    answers = tuple(dict.fromkeys(text for answer in listed if (text := str(answer).strip())))
    if not answers:
        raise ValueError("no answer that is not blank")
    return answers


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} rows of {name}" for name, count in counts.items())


# Of each form: how its rows are read, and where question and answers stand in one.
_READERS: dict[Format, tuple[Callable[[Path], Iterator[tuple[int, Any]]], Callable[[Any], tuple[Any, Any]]]] = {
    "flashrag": (_json_lines, _flashrag),
    "search_r1": (_parquet("question", "golden_answers", "data_source"), _flashrag),
    "trivia_rc": (_parquet("question", "answer"), _trivia_rc),
}
