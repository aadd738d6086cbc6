"""Who uses a shared server: files next to the index, and locks that die with their process.

``{index}/server/{host}/`` holds, for one machine (``{host}-job-{id}`` for a SLURM job, whose processes die with it)::

    server.json     where the running server is; it may be dead, so ask its /health
    server.lock     held while a server is looked up, started or withdrawn, and leases come and go
    leases/         a file per user, whose flock the user holds; a killed user's lock is free at once
    server.log      what the server printed
"""

from __future__ import annotations

import fcntl
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout
from pydantic import ValidationError

from turncredit.config.base import StrictModel
from turncredit.config.retriever import RetrieverConfig
from turncredit.errors import DataError, RetrieverError
from turncredit.files import write_text

_BEATS = 9  # signs of life of a user in the time after which it counts as gone


class Address(StrictModel):
    """A running server: base URL, process, and identity of the index that it serves."""

    url: str
    pid: int
    index_sha256: str


class ServerDir:
    """The files by which users of one index on this machine share one server."""

    def __init__(self, index_dir: Path) -> None:
        self.folder = index_dir / "server" / self._name()
        self.log = self.folder / "server.log"
        self._address = self.folder / "server.json"
        self._lock = self.folder / "server.lock"
        self._leases = self.folder / "leases"

    def _name(self) -> str:
        job = os.environ.get("SLURM_JOB_ID")
        return socket.gethostname() + (f"-job-{job}" if job else "")

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

    def retract(self, address: Address) -> None:
        """Take the address back because its server was told to end."""
        if self._leases.is_dir() and self.published() == address:
            self._address.unlink(missing_ok=True)

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


class SharedServerDir(ServerDir):
    """The same for one server that users on all machines share: a job of its own (``location: job``).

    A lock that dies with its process is not seen on other machines of every file system. So a lease is a file that
    its user touches often, and that is void after ``lease_s`` seconds without. The clocks of the
    machines need not agree: the server only sees whether a file was touched since it last looked. ``server.lock``
    must work between machines (NFS 4, Lustre with ``flock``, GPFS).

    ``job`` beside it holds the number of the job that was last submitted.
    """

    def __init__(self, index_dir: Path, lease_s: float) -> None:
        super().__init__(index_dir)
        self._job = self.folder / "job"
        self._lease_s = lease_s
        self._touched: dict[Path, tuple[int, float]] = {}  # when a lease was last touched (its time, ours)

    def _name(self) -> str:
        return "job"

    @contextmanager
    def lease(self) -> Iterator[None]:
        """See ``ServerDir.lease``; the file is touched by a thread."""
        path = self._leases / f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}"
        path.touch(exist_ok=False)
        over = threading.Event()
        beat = threading.Thread(target=_touch, args=(path, self._lease_s / _BEATS, over), name="lease", daemon=True)
        beat.start()
        try:
            yield
        finally:
            over.set()
            beat.join()
            path.unlink(missing_ok=True)

    def submitted(self) -> str | None:
        """The job that was last submitted, queued, running or ended."""
        return self._job.read_text(encoding="utf-8").strip() if self._job.exists() else None

    def remember(self, job: str) -> None:
        """Tell which job was submitted."""
        write_text(self._job, job + "\n")

    def _sweep(self) -> bool:
        now, found = time.monotonic(), {}
        for path in self._leases.iterdir():
            try:
                with path.open() as file:  # opening asks a network file system for the present state
                    touched = os.fstat(file.fileno()).st_mtime_ns
            except FileNotFoundError:
                continue  # its user let go just now
            before, since = self._touched.get(path, (None, now))
            found[path] = (touched, since if touched == before else now)
            if now - found[path][1] > self._lease_s:
                path.unlink(missing_ok=True)
                del found[path]
        self._touched = found
        return bool(found)


def server_dir(index_dir: Path, config: RetrieverConfig) -> ServerDir:
    """Where the users of an index find their server."""
    return SharedServerDir(index_dir, config.server.lease_s) if config.location == "job" else ServerDir(index_dir)


def _touch(path: Path, every_s: float, over: threading.Event) -> None:
    while not over.wait(every_s):
        try:
            os.utime(path)
        except FileNotFoundError:
            return  # the index was removed
