"""Files that are written whole or not at all."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from turncredit.errors import DataError


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary sibling of ``path`` that replaces it when the block ends without an error.

    The parent folder is made. On any error the temporary file is removed and ``path`` is as before.

    Raises:
        DataError: the disk is full or the place is not writable.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=path.suffix)
        os.close(handle)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}", "free some space or choose another place") from error
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as written:
            os.fsync(written.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror or error}",
                        "free some space or choose another place") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` (UTF-8) to ``path``, whole or not at all."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sha256(path: Path) -> str:
    """Hex digest of a file's bytes.

    Raises:
        DataError: the file is missing or unreadable.
    """
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", "make it again with snakemake") from error
