"""A shared retrieval server: started by its first user, gone soon after its last."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from turncredit.config.retriever import RetrieverConfig
from turncredit.distributed.slurm import Site
from turncredit.errors import ConfigError, DataError, RetrieverError
from turncredit.retrieval.client import RetrieverClient
from turncredit.retrieval.job import is_waiting_or_running, submit
from turncredit.retrieval.leases import Address, ServerDir, SharedServerDir
from turncredit.retrieval.manifest import read_manifest

_POLL_S = {"local": 0.05, "job": 5.0}


@contextmanager
def retriever(index_dir: Path, config: RetrieverConfig, *, linger_s: float | None = None,
              poll_s: float | None = None) -> Iterator[RetrieverClient]:
    """A client of the server of the index, which is started if none is alive.

    With ``location: local`` each machine has a server of its own; with ``job`` users on all machines share one that
    is a SLURM job. Either lives on for ``linger_s`` seconds after its last user, however that user ended; this
    process's users hold leases (``leases.ServerDir``).

    Args:
        index_dir: holds ``index.json``.
        config: the retriever.
        linger_s: instead of the configuration's.
        poll_s: how often a server that starts is looked for.

    Raises:
        DataError: no index here, or one built with other parameters than ``config``'s.
        RetrieverError: the server cannot be started, or is not up in time (shows the end of its log).
    """
    index_dir = index_dir.resolve()
    try:
        index_sha256 = read_manifest(index_dir).served(config)
    except ConfigError as error:
        raise DataError(f"{index_dir / 'index.json'}: {error.message}", error.remedy) from error
    linger = config.server.linger_s if linger_s is None else linger_s
    poll = _POLL_S[config.location] if poll_s is None else poll_s
    command = [sys.executable, "-m", "turncredit.retrieval.server", str(index_dir), "--config", config.whole(),
               "--linger-s", str(linger)]
    with ExitStack() as stack:
        if config.location == "job":
            shared = SharedServerDir(index_dir, config.server.lease_s)
            address = _of_job(shared, index_sha256, command, config, poll, stack)
        else:
            address = _of_machine(ServerDir(index_dir), index_sha256, command, config, poll, stack)
        yield stack.enter_context(RetrieverClient(
            address.url, timeout_s=config.timeout_s, retries=config.retries,
            index_sha256=index_sha256, max_query_tokens=config.max_query_tokens))


def _of_machine(place: ServerDir, index_sha256: str, command: list[str], config: RetrieverConfig, poll_s: float,
                stack: ExitStack) -> Address:
    """This machine's server; others wait while it starts."""
    with place.locked(config.server.start_s + 60):
        stack.enter_context(place.lease())
        return _alive(place, index_sha256) or _start(place, command, config.server.start_s, poll_s)


def _of_job(place: SharedServerDir, index_sha256: str, command: list[str], config: RetrieverConfig, poll_s: float,
            stack: ExitStack) -> Address:
    """The server that is a job; it may wait in SLURM's queue for long, so nobody holds the lock meanwhile."""
    with place.locked(60):
        stack.enter_context(place.lease())
        if (address := _alive(place, index_sha256)) is not None:
            return address
        job = place.submitted()
        if job is None or not is_waiting_or_running(job):
            place.log.unlink(missing_ok=True)
            job = submit(command, place.log, config.server, Site.read())
            place.remember(job)
    deadline = time.monotonic() + config.server.start_s
    while time.monotonic() < deadline:
        queued = is_waiting_or_running(job)  # asked before the address, which a server that ends takes back last
        if (address := _alive(place, index_sha256)) is not None:
            return address
        if not queued:
            raise _failed(place, f"(job {job}) ended before it was up")
        time.sleep(poll_s)
    raise _failed(place, f"(job {job}) was not up after {config.server.start_s:g} s: it waits in the queue, or loads")


def _alive(place: ServerDir, index_sha256: str) -> Address | None:
    """The published server, if it is alive and serves this very index."""
    address = place.published()
    if address is None or address.index_sha256 != index_sha256:
        return None
    try:
        health = httpx.get(f"{address.url}/health", timeout=10, trust_env=False).raise_for_status().json()
    except (httpx.HTTPError, ValueError):
        return None  # dead, or the port now belongs to somebody else
    served = (health.get("index_sha256"), health.get("pid")) if isinstance(health, dict) else None
    return address if served == (index_sha256, address.pid) else None


def _start(place: ServerDir, command: list[str], start_s: float, poll_s: float) -> Address:
    """Start a server that outlives this process, and wait until it is up.

    It does not hear SIGUSR1: SLURM warns every process of a job, and a run needs its server in order to save.
    """
    pid = os.posix_spawn(sys.executable, command, os.environ, setsid=True, setsigmask=[signal.SIGUSR1], file_actions=[
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(place.log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2)])
    deadline = time.monotonic() + start_s
    while time.monotonic() < deadline:
        address = place.published()
        if address is not None and address.pid == pid:
            return address
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            raise _failed(place, f"ended with exit code {os.waitstatus_to_exitcode(status)}")
        time.sleep(poll_s)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    raise _failed(place, f"was not up after {start_s:g} s")


def _failed(place: ServerDir, how: str) -> RetrieverError:
    log = place.log.read_text(encoding="utf-8", errors="replace") if place.log.exists() else "(no log yet)"
    tail = "\n".join(log.splitlines()[-15:])
    return RetrieverError(f"the retrieval server {how}; the end of {place.log}:\n{tail}",
                          "mend what the log says, then run the same command again")
