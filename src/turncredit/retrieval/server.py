"""The retrieval server: Search-R1's ``POST /retrieve`` in a process of its own, and ``GET /health``.

Started by ``service.retriever``, or by hand: ``python -m turncredit.retrieval.server INDEX --port 8000``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel, Field

from turncredit.errors import RetrieverError, TurncreditError
from turncredit.retrieval.corpus import Passage
from turncredit.retrieval.leases import Address, ServerDir
from turncredit.retrieval.query import clean_query

Search = Callable[[Sequence[str], int], list[list[tuple[Passage, float]]]]

_DEFAULT_TOPK = 3
_MAX_WORDS = 256  # of a query, whoever asks
_SWEEP_S = 1.0


class Ask(BaseModel):
    """The body of ``POST /retrieve``, as Search-R1 has it."""

    queries: list[str]
    topk: int | None = Field(None, ge=0, le=1000)
    return_scores: bool = False


@dataclass
class Counts:
    """What a server did so far."""

    queries: int = 0
    cut: int = 0  # queries longer than the server takes


def make_app(search: Search, index_sha256: str, documents: int,
             lifespan: Callable[[FastAPI], Any] | None = None) -> FastAPI:
    """The protocol over any ``search(queries, k)``, which is called from one thread only.

    ``POST /retrieve`` answers ``{"result": [hits of query 1, ...]}``, a hit being
    ``{"document": {"id", "contents"}, "score"}``, or the document alone without ``return_scores``.
    ``GET /health`` tells the index and the counts.
    """
    app = FastAPI(lifespan=lifespan)
    thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="search")
    counts = Counts()

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"index_sha256": index_sha256, "documents": documents, "pid": os.getpid(),
                "queries": counts.queries, "cut": counts.cut}

    @app.post("/retrieve")
    async def retrieve(ask: Ask) -> dict[str, Any]:
        cleaned = [clean_query(query, _MAX_WORDS) for query in ask.queries]
        counts.queries += len(cleaned)
        counts.cut += sum(was_cut for _, was_cut in cleaned)
        topk = _DEFAULT_TOPK if ask.topk is None else ask.topk
        found = await asyncio.get_running_loop().run_in_executor(
            thread, search, [query for query, _ in cleaned], topk)
        return {"result": [[_hit(passage, score, ask.return_scores) for passage, score in hits] for hits in found]}

    return app


def _hit(passage: Passage, score: float, with_score: bool) -> dict[str, Any]:
    document = {"id": passage.id, "contents": passage.contents}
    return {"document": document, "score": score} if with_score else document


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        RetrieverError: the port is taken, or the host is not this machine.
    """
    # The protocol is named, or asyncio leaves TCP_NODELAY off and each small answer waits 40 ms.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(128)
    except OSError as error:
        listening.close()
        raise RetrieverError(f"{host}:{port}: cannot listen: {error.strerror}",
                             "choose another port, or 0 for a free one") from error
    return listening


def serve(index_dir: Path, *, host: str = "127.0.0.1", port: int = 0, threads: int = 2, heap: str = "512m",
          linger_s: float | None = None) -> None:
    """Serve an index until told to stop, or until nobody holds a lease for ``linger_s`` seconds.

    With ``linger_s`` the address is published next to the index (``leases.ServerDir``).

    Raises:
        DataError: there is no sound index.
        RetrieverError: the port is taken or Java is missing.
    """
    from turncredit.retrieval.lucene import LuceneSearcher

    listening = bind(host, port)
    searcher = LuceneSearcher(index_dir, threads=threads, heap=heap)
    address = Address(url=f"http://{host}:{listening.getsockname()[1]}", pid=os.getpid(),
                      index_sha256=searcher.manifest.index_sha256)
    place = ServerDir(index_dir)

    async def end_when_unused(linger: float) -> None:
        used = asyncio.get_running_loop().time()
        while True:
            await asyncio.sleep(min(_SWEEP_S, linger))
            now = asyncio.get_running_loop().time()
            if place.in_use():
                used = now
            elif now - used > linger and place.withdraw(address):
                server.should_exit = True
                return

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if linger_s is None:
            yield
            return
        place.publish(address)
        watch = asyncio.create_task(end_when_unused(linger_s))
        yield
        watch.cancel()

    app = make_app(searcher.search, address.index_sha256, searcher.manifest.documents, lifespan)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on", timeout_keep_alive=600,
                                           timeout_graceful_shutdown=5))
    print(f"serving {index_dir} at {address.url}", flush=True)
    server.run(sockets=[listening])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Serve a Lucene index behind Search-R1's /retrieve.")
    parser.add_argument("index_dir", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--heap", default="512m", help="of Java, as in -Xmx")
    parser.add_argument("--linger-s", type=float, default=None,
                        help="end when nobody holds a lease for so long; without it, never")
    options = parser.parse_args(arguments)
    try:
        serve(**vars(options))
    except TurncreditError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
