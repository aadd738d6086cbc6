"""Lifecycle of a shared retrieval server: started on demand, shared by its users, ended after the last one.

``retriever`` opens a client and starts a server if none is alive, on this machine or as a SLURM job. Files next to the
index coordinate its users: ``{index}/server/{host}/`` for the users of one machine (``{host}-job-{id}`` inside a SLURM
job, whose processes die with it), and ``{index}/server/job/`` for a server that is a job of its own::

    server.json     address of the last server; it may be dead, so check its /health
    server.lock     held while a server is looked up, started or withdrawn, and while leases are taken
    leases/         a file per user
    server.log, job output of the server; id of the last submitted job
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path

import httpx
from filelock import FileLock, Timeout
from pydantic import ValidationError

from turncredit.config.base import StrictModel
from turncredit.config.retriever import RetrieverConfig, ServerConfig
from turncredit.distributed.slurm import Site
from turncredit.errors import DataError, RetrieverError
from turncredit.files import write_text
from turncredit.retrieval.client import LostServerError, RetrieverClient
from turncredit.retrieval.manifest import check_index
from turncredit.retrieval.slurm_job import is_queued_or_running, submit
from turncredit.types import Document

_log = logging.getLogger(__name__)
_POLL_S = {"local": 0.05, "job": 5.0}
_CHECK_S = 1.0  # how often a server looks at its leases
_HEARTBEATS = 9  # of a user within ``lease_s``


class Address(StrictModel):
    """Address of a server: base URL, process id, and identity of the index that it serves."""

    url: str
    pid: int
    index_sha256: str


class ServerDir:
    """The files by which the users of an index share a server.

    A lease is a file. On one machine its user holds its ``flock``, which is released at once when the user is killed.
    With ``lease_s`` the server is a SLURM job for users on all machines, and some file systems do not show locks to
    other machines: users touch their leases often, and a lease expires ``lease_s`` seconds after the last touch. Clocks
    need not agree, because the server only compares a file's time stamp with the one that it read before. Then
    ``server.lock`` must work between machines (NFS 4, Lustre with ``flock``, GPFS).
    """

    def __init__(self, index_dir: Path, lease_s: float | None = None) -> None:
        job = os.environ.get("SLURM_JOB_ID")
        machine = socket.gethostname() + (f"-job-{job}" if job else "")
        self.folder = index_dir / "server" / (machine if lease_s is None else "job")
        self.log = self.folder / "server.log"
        self._address = self.folder / "server.json"
        self._job = self.folder / "job"
        self._lock = self.folder / "server.lock"
        self._leases = self.folder / "leases"
        self._lease_s = lease_s
        self._touched: dict[Path, tuple[int, float]] = {}  # lease -> its time stamp, and when we first saw that stamp

    @contextmanager
    def locked(self, timeout_s: float) -> Iterator[None]:
        """Hold the lock that is needed to look up, start or withdraw a server, and to take a lease.

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
                                 f"see {self.log}, and stop the process that hangs") from error
        except OSError as error:
            raise DataError(f"{self.folder}: not writable: {error.strerror}",
                            "copy the index to a folder that you can write") from error
        try:
            yield
        finally:
            lock.release()

    @contextmanager
    def lease(self) -> Iterator[None]:
        """Hold a lease until the block ends or this process dies. Enter it inside ``locked``."""
        path = self._leases / f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}"
        ended = threading.Event()
        with path.open("x") as file:
            if self._lease_s is None:
                fcntl.flock(file, fcntl.LOCK_EX)
            else:
                threading.Thread(target=_touch, args=(path, self._lease_s / _HEARTBEATS, ended), daemon=True).start()
            try:
                yield
            finally:
                ended.set()
                path.unlink(missing_ok=True)

    def address(self) -> Address | None:
        """The last published address; its server may be dead."""
        try:
            return Address.model_validate_json(self._address.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValidationError):
            return None

    def publish(self, address: Address) -> None:
        """Publish the address of a server."""
        write_text(self._address, address.model_dump_json() + "\n")

    def retract(self, address: Address) -> None:
        """Remove the published address if it is this one."""
        if self._leases.is_dir() and self.address() == address:
            self._address.unlink(missing_ok=True)

    def in_use(self) -> bool:
        """Whether a process holds a lease or is about to take one; an index that was removed is not in use.

        Removes the leases of dead users.
        """
        return not self._if_unused(lambda: None)

    def retract_if_unused(self, address: Address) -> bool:
        """Remove the published address unless the server is in use; returns whether it is unused.

        The lock is held meanwhile, so no user can find the address after the check.
        """
        return self._if_unused(lambda: self.retract(address))

    def _if_unused(self, act: Callable[[], None]) -> bool:
        """Call ``act`` under the lock if no lease is left; returns whether none is."""
        if not self._leases.is_dir():
            return True
        try:
            with self.locked(timeout_s=0):
                if self._sweep():
                    return False
                act()
                return True
        except RetrieverError:
            return False  # a user holds the lock to look for a server

    @property
    def job(self) -> str | None:
        """Id of the last submitted job, which may be queued, running or ended."""
        return self._job.read_text(encoding="utf-8").strip() if self._job.exists() else None

    def record_job(self, job: str) -> None:
        """Record the id of a submitted job."""
        write_text(self._job, job + "\n")

    def _sweep(self) -> bool:
        """Remove the leases of dead users; returns whether any lease is left."""
        for path in list(self._leases.iterdir()):
            if not self._is_held(path):
                path.unlink(missing_ok=True)
                self._touched.pop(path, None)
        return any(self._leases.iterdir())

    def _is_held(self, path: Path) -> bool:
        try:
            with path.open() as file:  # opening makes a network file system return the present state
                if self._lease_s is None:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    return False
                stamp = os.fstat(file.fileno()).st_mtime_ns
        except BlockingIOError:
            return True
        except FileNotFoundError:
            return False  # its user has just ended
        now = time.monotonic()
        before, since = self._touched.get(path, (None, now))
        self._touched[path] = (stamp, since if stamp == before else now)
        return now - self._touched[path][1] <= self._lease_s


def _touch(path: Path, every_s: float, ended: threading.Event) -> None:
    while not ended.wait(every_s):
        try:
            os.utime(path)
        except FileNotFoundError:
            return  # the index was removed


class SharedRetriever:
    """A ``Retriever`` over the index's server; if it is lost, another one is looked for or started, once a search.

    Args:
        connect: opens a client of the present server, and starts one if none is alive.
    """

    def __init__(self, connect: Callable[[], RetrieverClient]) -> None:
        self._connect = connect
        self._lock = threading.Lock()  # episodes search in several threads, and one of them reconnects
        self._client = connect()

    @property
    def url(self) -> str:
        """The present server's."""
        return self._client.url

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Document]]:
        """See ``Retriever``.

        Raises:
            RetrieverError: the search failed, also at the server that was found after the first one was lost.
        """
        client = self._client
        try:
            return client.search(queries, top_k)
        except LostServerError as error:
            _log.warning("%s; looking for another server", error.message)
            with self._lock:
                if self._client is client:
                    self._client = self._connect()
                    client.close()
            return self._client.search(queries, top_k)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


def server_dir(index_dir: Path, config: RetrieverConfig) -> ServerDir:
    """The files by which users of an index find their server."""
    return ServerDir(index_dir, config.server.lease_s if config.location == "job" else None)


@contextmanager
def retriever(index_dir: Path, config: RetrieverConfig, *, linger_s: float | None = None,
              poll_s: float | None = None) -> Iterator[SharedRetriever]:
    """Open a client of the index's server; start the server if none is alive, also when it is lost later.

    With ``location: local`` each machine has its own server; with ``job`` users on all machines share one that is a
    SLURM job. The server ends ``linger_s`` seconds after its last user, however that user ended.

    Args:
        index_dir: holds ``index.json``.
        config: the retriever.
        linger_s: replaces ``config.server.linger_s``.
        poll_s: seconds between two looks for a server that starts.

    Raises:
        DataError: no index, or one that was built in another way than ``config`` says.
        RetrieverError: the server cannot be started, or is not up in time (shows the end of its log).
    """
    index_dir = index_dir.resolve()
    _, index_sha256 = check_index(index_dir, config)
    poll = _POLL_S[config.location] if poll_s is None else poll_s
    command = [sys.executable, "-m", "turncredit.retrieval.server", str(index_dir), "--config", config.to_json(),
               "--linger-s", str(config.server.linger_s if linger_s is None else linger_s)]
    files = server_dir(index_dir, config)
    find = {"local": _local_server, "job": _job_server}[config.location]
    with ExitStack() as stack:
        def connect() -> RetrieverClient:
            address = find(files, index_sha256, command, config.server, poll, stack)
            return RetrieverClient(address.url, timeout_s=config.timeout_s, retries=config.retries,
                                   index_sha256=index_sha256, max_query_tokens=config.max_query_tokens)

        yield stack.enter_context(closing(SharedRetriever(connect)))


@asynccontextmanager
async def published(files: ServerDir, address: Address, linger_s: float,
                    stop: Callable[[], None]) -> AsyncIterator[None]:
    """Publish a server's address while the block runs; call ``stop`` when it had no user for ``linger_s`` seconds."""
    async def watch() -> None:
        clock = asyncio.get_running_loop().time
        last_use = clock()
        while True:
            await asyncio.sleep(min(_CHECK_S, linger_s))
            if clock() - last_use > linger_s and files.retract_if_unused(address):
                stop()
                return
            if files.in_use():
                last_use = clock()

    files.publish(address)
    watching = asyncio.create_task(watch())
    yield
    watching.cancel()
    files.retract(address)


def _local_server(files: ServerDir, index_sha256: str, command: list[str], server: ServerConfig, poll_s: float,
                  stack: ExitStack) -> Address:
    """The server of this machine. Other users wait for the lock while it starts."""
    with files.locked(server.start_s + 60):
        stack.enter_context(files.lease())
        if (address := _live_address(files, index_sha256)) is not None:
            return address
        pid = _spawn(command, files.log)

        def end() -> str | None:
            ended, status = os.waitpid(pid, os.WNOHANG)
            return f"ended with exit code {os.waitstatus_to_exitcode(status)}" if ended else None

        if (address := _wait(files, index_sha256, end, server.start_s, poll_s)) is not None:
            return address
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise _failed(files, f"was not up after {server.start_s:g} s")


def _job_server(files: ServerDir, index_sha256: str, command: list[str], server: ServerConfig, poll_s: float,
                stack: ExitStack) -> Address:
    """The server that is a job. It may be queued for long, so the lock is not held while waiting for it."""
    with files.locked(60):
        stack.enter_context(files.lease())
        if (address := _live_address(files, index_sha256)) is not None:
            return address
        job = files.job
        if job is None or not is_queued_or_running(job):
            files.log.unlink(missing_ok=True)
            job = submit(command, files.log, server, Site.read())
            files.record_job(job)

    def end() -> str | None:
        return None if is_queued_or_running(job) else f"(job {job}) ended before it was up"

    if (address := _wait(files, index_sha256, end, server.start_s, poll_s)) is not None:
        return address
    raise _failed(files, f"(job {job}) was not up after {server.start_s:g} s: it waits in the queue, or loads")


def _wait(files: ServerDir, index_sha256: str, end: Callable[[], str | None], start_s: float,
          poll_s: float) -> Address | None:
    """The address of a starting server, or None after ``start_s`` seconds. ``end`` returns how it ended, or None."""
    deadline = time.monotonic() + start_s
    while time.monotonic() < deadline:
        ended = end()  # before the address, which a server that ends retracts last
        if (address := _live_address(files, index_sha256)) is not None:
            return address
        if ended:
            raise _failed(files, ended)
        time.sleep(poll_s)
    return None


def _live_address(files: ServerDir, index_sha256: str) -> Address | None:
    """The published address, if its server is alive and serves this index."""
    address = files.address()
    if address is None or address.index_sha256 != index_sha256:
        return None
    try:
        health = httpx.get(f"{address.url}/health", timeout=10, trust_env=False).raise_for_status().json()
    except (httpx.HTTPError, ValueError):
        return None  # dead, or another program has its port now
    served = (health.get("index_sha256"), health.get("pid")) if isinstance(health, dict) else None
    return address if served == (index_sha256, address.pid) else None


def _spawn(command: list[str], log: Path) -> int:
    """Start a process that outlives this one; returns its id.

    SIGUSR1 is blocked in it: SLURM sends that warning to all processes of a job, and a run needs its server to save.
    """
    return os.posix_spawn(sys.executable, command, os.environ, setsid=True, setsigmask=[signal.SIGUSR1], file_actions=[
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2)])


def _failed(files: ServerDir, how: str) -> RetrieverError:
    log = files.log.read_text(encoding="utf-8", errors="replace") if files.log.exists() else "(no log yet)"
    tail = "\n".join(log.splitlines()[-15:])
    return RetrieverError(f"the retrieval server {how}; the end of {files.log}:\n{tail}",
                          "fix the cause named in the log, then run the same command again")
