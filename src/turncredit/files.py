"""Atomic writing of files and folders, and their hashes."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from turncredit.errors import DataError

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Write a file atomically: yield a temporary sibling that replaces ``path`` if the block succeeds.

    Parent folders are created. After an error the temporary file is removed and ``path`` is unchanged.

    Raises:
        DataError: the disk is full or ``path`` is not writable.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            sync(temporary)
            temporary.chmod(0o644)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Write a folder atomically: yield a new, empty one that replaces ``folder`` if the block succeeds.

    Parent folders are created. After an error ``folder`` is unchanged and no temporary folder remains.

    Raises:
        DataError: the disk is full or ``folder`` is not writable.
    """
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as name:
            fresh, stale = Path(name) / "fresh", Path(name) / "stale"
            fresh.mkdir()
            yield fresh
            for path in sorted(fresh.rglob("*")):
                sync(path)
            if folder.exists():
                folder.rename(stale)
            fresh.rename(folder)
            shutil.rmtree(stale, ignore_errors=True)


def remove_unfinished(folder: Path) -> None:
    """Remove what killed calls of ``atomic_folder`` left beside ``folder``; the caller knows that none is at work."""
    for left in folder.parent.glob(f".{folder.name}.*"):
        shutil.rmtree(left, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` (UTF-8) to ``path`` atomically."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def one_line(text: str) -> str:
    """Text for a cell of a CSV file: control characters, line separators and lone surrogates become blanks.

    Text that a model sampled may hold any of them, and some readers take a lone carriage return for the end of a row.

    >>> one_line("a\\rb")
    'a b'
    """
    return _CONTROL.sub(" ", text)


def sha256(path: Path, remedy: str = "make it again with snakemake") -> str:
    """Return the hex digest of a file's bytes; ``remedy`` tells the user how to make a missing file.

    Raises:
        DataError: the file is missing or unreadable.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", remedy) from error


def json_sha256(value: Any) -> str:
    """Return the hex digest of a value as JSON; the order of keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def question_ids_sha256(ids: Iterable[tuple[str, str]]) -> str:
    """Hex digest of a set of questions, given as (data set, question id) pairs in any order."""
    return json_sha256(sorted(ids))


def sync(path: Path) -> None:
    """Flush a file or folder to disk (fsync)."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def disk_error(error: BaseException) -> str | None:
    """Return the reason if ``error`` means that a file could not be written, else None.

    safetensors and tokenizers raise their own errors, which end with the system's error number.
    ``torch.save`` only notices that its file is too short.

    >>> disk_error(Exception("No space left on device (os error 28)")), disk_error(ValueError("a fault"))
    ('No space left on device', None)
    """
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if numbered := re.search(r"\(os error (\d+)\)", str(error)):
        return os.strerror(int(numbered[1]))
    return "the file is too short" if "enforce fail at inline_container" in str(error) else None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of writing ``path``, from any library, into a ``DataError``.

    Raises:
        DataError: the disk is full or ``path`` is not writable.
    """
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        if (reason := disk_error(error)) is None:
            raise
        raise DataError(f"{path}: cannot be written: {reason}", "free some space or choose another folder") from error
