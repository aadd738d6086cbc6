"""Who uses a shared server: files next to the index, and locks that die with their process.

``{index}/server/{host}/`` holds, for one machine::

    server.json     where the running server is; it may be dead, so ask its /health
    server.lock     held while a server is looked up, started or withdrawn, and leases come and go
    leases/         a file per user, whose flock the user holds; a killed user's lock is free at once
    server.log      what the server printed
"""

from __future__ import annotations

import fcntl
import os
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import ValidationError

from turncredit.closed import Closed
from turncredit.errors import DataError, RetrieverError
from turncredit.files import write_text


class Address(Closed):
    """A running server: base URL, process, and identity of the index that it serves."""

    url: str
    pid: int
    index_sha256: str


class ServerDir:
    """The files by which users of one index on this machine share one server."""

    def __init__(self, index_dir: Path) -> None:
        self.folder = index_dir / "server" / socket.gethostname()
        self.log = self.folder / "server.log"
        self._address = self.folder / "server.json"
        self._lock = self.folder / "server.lock"
        self._leases = self.folder / "leases"

    @contextmanager
    def locked(self, timeout_s: float) -> Iterator[None]:
        """Be the only one who looks up or starts a server, or takes a lease.

        Raises:
            RetrieverError: another process holds the lock for longer than ``timeout_s``.
            DataError: the folder is not writable.
        """
        lock = FileLock(self._lock, timeout=timeout_s)
        try:
            self._leases.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout as error:
            raise RetrieverError(f"{self._lock}: held by another process for {timeout_s:g} s",
                                 f"look at {self.log}, and end the process that hangs") from error
        except OSError as error:
            raise DataError(f"{self.folder}: not writable: {error.strerror}",
                            "copy the index to a place of your own") from error
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def lease(self) -> Iterator[None]:
        """Hold a lease until the block ends or this process dies. Enter it inside ``locked``."""
        path = self._leases / f"{os.getpid()}-{uuid.uuid4().hex}"
        with path.open("x") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                path.unlink(missing_ok=True)

    def published(self) -> Address | None:
        """The last published address, dead or alive."""
        try:
            return Address.model_validate_json(self._address.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValidationError):
            return None

    def publish(self, address: Address) -> None:
        """Tell where the server is."""
        write_text(self._address, address.model_dump_json() + "\n")

    def in_use(self) -> bool:
        """Whether anyone holds a lease, or is just about to; leases of the dead are removed."""
        if not self._leases.is_dir():
            return False  # the index was removed, and nobody can find this server any more
        try:
            with self.locked(timeout_s=0):
                return self._sweep()
        except RetrieverError:
            return True  # a user holds the lock: it looks for a server right now

    def withdraw(self, address: Address) -> bool:
        """Take the address back if still nobody needs it; True if the server must end."""
        if not self._leases.is_dir():
            return True
        try:
            with self.locked(timeout_s=0):
                if self._sweep():
                    return False
                if self.published() == address:
                    self._address.unlink()
                return True
        except RetrieverError:
            return False

    def _sweep(self) -> bool:
        held = False
        for path in self._leases.iterdir():
            with path.open() as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    held = True
                else:
                    path.unlink()
        return held
