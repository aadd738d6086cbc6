"""The lock of a run's folder: one writer at a time."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from turncredit.errors import RunLockedError
from turncredit.files import writing


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold ``folder``'s lock while the block runs.

    The kernel locks the open file (flock), so the lock is released when its owner ends, however it ends. The file
    remains and names the last owner.

    Raises:
        RunLockedError: another process holds the lock; the message names it.
        DataError: the disk is full or the folder is not writable.
    """
    path = folder / "lock.json"
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        file = path.open("ab+", buffering=0)
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = path.read_text(encoding="utf-8").strip()
            raise RunLockedError(f"{folder}: another process writes this run: {owner}",
                                 "wait for that process or stop it, then run the same command again") from None
        except OSError as error:
            raise RunLockedError(f"{path}: cannot be locked: {error.strerror}",
                                 "put the checkpoints on a file system that supports flock") from error
        owner_record = {"host": socket.gethostname(), "pid": os.getpid(),
                        "started": datetime.now(UTC).isoformat(timespec="seconds")}
        with writing(path):
            file.truncate(0)
            file.write(f"{json.dumps(owner_record)}\n".encode())
        yield
