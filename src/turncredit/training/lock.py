"""One writer a run: a lock that names its owner and dies with it."""

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

    The kernel holds the lock for the open file, so a dead owner's lock is gone with it; the file
    stays, and only says who the last owner was.

    Raises:
        RunLockedError: another process writes here; the message names it.
        DataError: the disk is full or the place is not writable.
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
                                 "wait for it to end, or end it, and start again") from None
        except OSError as error:
            raise RunLockedError(f"{path}: cannot be locked: {error.strerror}",
                                 "keep checkpoints on a file system with locks (flock)") from error
        me = {"host": socket.gethostname(), "pid": os.getpid(),
              "started": datetime.now(UTC).isoformat(timespec="seconds")}
        with writing(path):
            file.truncate(0)
            file.write(f"{json.dumps(me)}\n".encode())
        yield
