"""A shared retrieval server: started by its first user, gone soon after its last."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from turncredit.equipment import RetrieverConfig
from turncredit.errors import DataError, RetrieverError
from turncredit.retrieval.client import RetrieverClient
from turncredit.retrieval.leases import Address, ServerDir
from turncredit.retrieval.lucene import IndexManifest, read_manifest

_START_S = 180.0  # a JVM on a busy machine
_LINGER_S = 15.0


@contextmanager
def retriever(index_dir: Path, config: RetrieverConfig, *, linger_s: float = _LINGER_S) -> Iterator[RetrieverClient]:
    """A client of this machine's server of the index, which is started if none is alive.

    The server lives on for ``linger_s`` seconds after its last user, however that user ended; this
    process's users hold leases (``leases.ServerDir``).

    Raises:
        DataError: no index here, or one built with other parameters than ``config``'s.
        RetrieverError: the server cannot be started (shows the end of its log).
    """
    index_dir = index_dir.resolve()
    manifest = read_manifest(index_dir)
    if (manifest.k1, manifest.b) != (config.k1, config.b):
        raise DataError(f"{index_dir / 'index.json'}: built for k1 = {manifest.k1:g}, b = {manifest.b:g}, but the "
                        f"configuration says {config.k1:g}, {config.b:g}", "build it again: snakemake index")
    place = ServerDir(index_dir)
    with ExitStack() as stack:
        with place.locked(_START_S + 60):
            stack.enter_context(place.lease())
            address = _alive(place, manifest)
            if address is None:
                address = _start(place, index_dir, manifest, linger_s)
        yield stack.enter_context(RetrieverClient(
            address.url, timeout_s=config.timeout_s, retries=config.retries,
            index_sha256=manifest.index_sha256, max_query_tokens=config.max_query_tokens))


def _alive(place: ServerDir, manifest: IndexManifest) -> Address | None:
    """The published server, if it is alive and serves this very index."""
    address = place.published()
    if address is None or address.index_sha256 != manifest.index_sha256:
        return None
    try:
        health = httpx.get(f"{address.url}/health", timeout=10, trust_env=False).raise_for_status().json()
    except (httpx.HTTPError, ValueError):
        return None  # dead, or the port now belongs to somebody else
    served = (health.get("index_sha256"), health.get("pid")) if isinstance(health, dict) else None
    return address if served == (manifest.index_sha256, address.pid) else None


def _start(place: ServerDir, index_dir: Path, manifest: IndexManifest, linger_s: float) -> Address:
    """Start a server that outlives this process, and wait until it is up."""
    command = [sys.executable, "-m", "turncredit.retrieval.server", str(index_dir), "--linger-s", str(linger_s)]
    pid = os.posix_spawn(sys.executable, command, os.environ, setsid=True, file_actions=[
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(place.log), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2)])
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        address = place.published()
        if address is not None and address.pid == pid:
            return address
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            raise _failed(place, f"ended with exit code {os.waitstatus_to_exitcode(status)}")
        time.sleep(0.05)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    raise _failed(place, f"was not up after {_START_S:g} s")


def _failed(place: ServerDir, how: str) -> RetrieverError:
    tail = "\n".join(place.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
    return RetrieverError(f"the retrieval server {how}; the end of {place.log}:\n{tail}",
                          "mend what the log says, then run the same command again")
