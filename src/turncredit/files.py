"""Files and folders that are written whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from turncredit.errors import DataError


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary sibling of ``path`` that replaces it when the block ends without an error.

    The parent folder is made. On any error the temporary file is removed and ``path`` is as before.

    Raises:
        DataError: the disk is full or the place is not writable.
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
    """A new, empty folder that takes the place of ``folder`` when the block ends without an error.

    The parent folder is made. On any error ``folder`` is as before and nothing else is left.

    Raises:
        DataError: the disk is full or the place is not writable.
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


def write_text(path: Path, text: str) -> None:
    """Write ``text`` (UTF-8) to ``path``, whole or not at all."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sha256(path: Path, remedy: str = "make it again with snakemake") -> str:
    """Hex digest of a file's bytes; ``remedy`` says how to make one that is not there.

    Raises:
        DataError: the file is missing or unreadable.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", remedy) from error


def json_sha256(value: Any) -> str:
    """Hex digest of a value as JSON, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def sync(path: Path) -> None:
    """Ask the disk to hold a file or folder before it is renamed or relied on."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def disk_error(error: BaseException) -> str | None:
    """What the system said when a file could not be written, whatever library tells of it; None for another fault.

    safetensors and tokenizers raise errors of their own that end with the system's number, and
    ``torch.save`` only notices that its file has not grown.

    >>> disk_error(Exception("No space left on device (os error 28)")), disk_error(ValueError("a fault"))
    ('No space left on device', None)
    """
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if numbered := re.search(r"\(os error (\d+)\)", str(error)):
        return os.strerror(int(numbered[1]))
    return "the file was cut short" if "enforce fail at inline_container" in str(error) else None


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what is raised inside, where it tells that the disk does not take ``path``, into an error that says so.

    Raises:
        DataError: the disk is full or the place is not writable.
    """
    try:
        yield
    except DataError:
        raise
    except Exception as error:
        if (reason := disk_error(error)) is None:
            raise
        raise DataError(f"{path}: cannot be written: {reason}", "free some space or choose another place") from error
