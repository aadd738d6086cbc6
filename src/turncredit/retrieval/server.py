"""The retrieval server: ``POST /retrieve`` in Search-R1's protocol, and ``GET /health``.

``lifecycle.retriever`` starts it. By hand: ``python -m turncredit.retrieval.server INDEX --port 8000``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from turncredit.config.retriever import RetrieverConfig, ServerConfig
from turncredit.data.corpus import Passage
from turncredit.errors import RetrieverError, TurncreditError
from turncredit.retrieval.client import clean_query
from turncredit.retrieval.lifecycle import Address, published, server_dir
from turncredit.retrieval.manifest import FaissManifest, check_index, read_manifest

Hits = list[tuple[Passage, float]]
Search = Callable[[Sequence[str], int], list[Hits]]

_CONFIG = ServerConfig()
_DEFAULT_TOPK = 3
_MAX_WORDS = 256  # of a query of any client
_RETRY_S = 1  # Retry-After of a refused request
_MAX_BODY = 32 * 2**20  # bytes of a request


class RetrieveRequest(BaseModel):
    """Body of ``POST /retrieve``, as in Search-R1."""

    queries: list[str]
    topk: int | None = Field(None, ge=0, le=100)
    return_scores: bool = False


@dataclass
class Counts:
    """What a server has done since it started; ``GET /health`` returns it."""

    requests: int = 0  # answered or failed
    queries: int = 0  # answered
    cut: int = 0  # queries truncated to the server's limit
    refused: int = 0  # requests that found the queue full
    failed: int = 0  # requests whose search raised an error
    waiting: int = 0  # queries in the queue now
    batches: int = 0  # searches
    batched_queries: int = 0  # distinct queries of all searches
    request_seconds: float = 0.0  # of all requests, their wait included
    slowest_request_seconds: float = 0.0


class QueueFull(Exception):
    """Too many queries are waiting; try again later."""


@dataclass(eq=False)
class _Request:
    queries: list[str]
    k: int
    answer: asyncio.Future[list[Hits]]


class Batcher:
    """Merges concurrent requests into one ``search(queries, k)`` at a time, on a thread of its own.

    While a batch is searched the next one gathers. A query that is twice in a batch is searched once. Requests with
    different ``k`` are searched separately, so no answer depends on other requests.

    Args:
        search: called from one thread only.
        config: how long a batch gathers, how large it becomes, how many queries may wait.
        counts: updated in place.
    """

    def __init__(self, search: Search, config: ServerConfig, counts: Counts) -> None:
        self._search, self._config, self._counts = search, config, counts
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="search")
        self._waiting: deque[_Request] = deque()
        self._draining: asyncio.Task[None] | None = None

    async def search(self, queries: list[str], k: int, *, admitted: bool = False) -> list[Hits]:
        """The hits of each query, in order.

        Args:
            queries: to search.
            k: hits of each.
            admitted: a further part of a request; it waits however many others wait.

        Raises:
            QueueFull: more queries would wait than ``config.queue``. An empty queue takes a request of any size.
        """
        if self._counts.waiting and self._counts.waiting + len(queries) > self._config.queue and not admitted:
            self._counts.refused += 1
            raise QueueFull
        began = time.perf_counter()
        request = _Request(queries, k, asyncio.get_running_loop().create_future())
        self._waiting.append(request)
        self._counts.waiting += len(queries)
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        try:
            return await request.answer
        finally:
            seconds = time.perf_counter() - began
            self._counts.requests += 1
            self._counts.request_seconds += seconds
            self._counts.slowest_request_seconds = max(self._counts.slowest_request_seconds, seconds)

    async def _drain(self) -> None:
        try:
            while self._waiting:
                if self._config.window_ms and self._counts.waiting < self._config.max_batch:
                    await asyncio.sleep(self._config.window_ms / 1000)
                await self._answer(list(self._next_batch()))
        finally:
            self._draining = None

    def _next_batch(self) -> Iterator[_Request]:
        """Take waiting requests of up to ``max_batch`` queries in all, but at least one request."""
        taken = 0
        while self._waiting and (not taken or taken + len(self._waiting[0].queries) <= self._config.max_batch):
            request = self._waiting.popleft()
            self._counts.waiting -= len(request.queries)
            taken += len(request.queries)
            yield request

    async def _answer(self, batch: list[_Request]) -> None:
        for k in sorted({request.k for request in batch}):
            requests = [request for request in batch if request.k == k]
            distinct = list(dict.fromkeys(query for request in requests for query in request.queries))
            try:
                hits = await asyncio.get_running_loop().run_in_executor(self._thread, self._search_all, distinct, k)
            except Exception as error:  # of any kind: every request of this search gets it
                self._counts.failed += len(requests)
                for request in requests:
                    if not request.answer.done():
                        request.answer.set_exception(error)
                continue
            hits_of = dict(zip(distinct, hits, strict=True))
            for request in requests:
                if not request.answer.done():  # cancelled if its client has gone
                    request.answer.set_result([hits_of[query] for query in request.queries])

    def _search_all(self, queries: list[str], k: int) -> list[Hits]:
        hits: list[Hits] = []
        for start in range(0, len(queries), self._config.max_batch):
            part = queries[start:start + self._config.max_batch]
            self._counts.batches += 1
            self._counts.batched_queries += len(part)
            hits += self._search(part, k)
        return hits


def make_app(search: Search, index_sha256: str, documents: int,
             lifespan: Callable[[FastAPI], Any] | None = None, config: ServerConfig = _CONFIG) -> FastAPI:
    """The server's routes over any ``search(queries, k)``, which is called from one thread only.

    ``POST /retrieve`` answers ``{"result": [hits of query 1, ...]}``. A hit is ``{"document": {"id", "contents"},
    "score"}``, or without ``return_scores`` the document alone. A large request is searched in parts of ``max_batch``
    queries, between which others have their turn; the rest is dropped when its client has gone. If too many queries
    wait, the answer is 503 with ``Retry-After`` in seconds. ``GET /health`` answers the index's identity and size, the
    process id and ``Counts``.
    """
    app = FastAPI(lifespan=lifespan)
    counts = Counts()
    batcher = Batcher(search, config, counts)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"index_sha256": index_sha256, "documents": documents, "pid": os.getpid(), **asdict(counts)}

    @app.middleware("http")
    async def limit_body(request: Request, call_next: Callable[[Request], Any]) -> Any:
        length = request.headers.get("content-length", "0" if request.method == "GET" else "")
        if length.isdecimal() and int(length) <= _MAX_BODY:
            return await call_next(request)
        return JSONResponse({"detail": f"a body needs a Content-Length of at most {_MAX_BODY}"}, 413)

    @app.post("/retrieve")
    async def retrieve(request: RetrieveRequest, connection: Request) -> dict[str, Any]:
        if len(request.queries) > config.max_request:
            raise HTTPException(413, f"{len(request.queries)} queries; at most {config.max_request} in a request")
        cleaned = [clean_query(query, _MAX_WORDS) for query in request.queries]
        topk = _DEFAULT_TOPK if request.topk is None else request.topk
        results: list[Hits] = []
        try:
            for start in range(0, len(cleaned), config.max_batch):
                if start and await connection.is_disconnected():
                    raise HTTPException(400, "the client has gone")
                part = [query for query, _ in cleaned[start:start + config.max_batch]]
                results += await batcher.search(part, topk, admitted=start > 0)
        except QueueFull:
            raise HTTPException(503, f"{counts.waiting} queries wait", {"Retry-After": str(_RETRY_S)}) from None
        counts.queries += len(cleaned)
        counts.cut += sum(was_cut for _, was_cut in cleaned)
        return {"result": [[_hit(passage, score, request.return_scores) for passage, score in hits]
                           for hits in results]}

    return app


def _hit(passage: Passage, score: float, with_score: bool) -> dict[str, Any]:
    document = {"id": passage.id, "contents": passage.contents}
    return {"document": document, "score": score} if with_score else document


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one.

    Raises:
        RetrieverError: the port is taken, or the host is not this machine.
    """
    # IPPROTO_TCP is explicit because asyncio otherwise leaves TCP_NODELAY off, and each small answer waits 40 ms.
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


def check_reachable(name: str) -> None:
    """Check that other machines can reach this one by its name.

    Raises:
        RetrieverError: the name has no address, or only one of this machine's own, as Debian's /etc/hosts gives it.
    """
    try:
        found = {str(info[4][0]) for info in socket.getaddrinfo(name, None)}
    except OSError as error:
        raise RetrieverError(f"the host name {name!r} has no address: {error}",
                             "set retriever.server.host to a name or address that other machines can reach") from error
    if all(ip_address(address.partition("%")[0]).is_loopback for address in found):
        raise RetrieverError(f"the host name {name!r} is {', '.join(sorted(found))}: other machines cannot reach it",
                             "set retriever.server.host to a name or address that they reach, or correct /etc/hosts")


def serve(index_dir: Path, config: RetrieverConfig, *, host: str | None = None, port: int = 0,
          linger_s: float | None = None) -> None:
    """Serve an index until interrupted, or until it has had no user for ``linger_s`` seconds.

    With ``linger_s`` the address is published next to the index; see ``lifecycle``.

    Args:
        index_dir: holds ``index.json``.
        config: the retriever: how the index is searched, and how the server runs.
        host: replaces ``config.server.host``.
        port: 0 takes a free one.
        linger_s: see above.

    Raises:
        DataError: there is no index, it is damaged, or it was built in another way than ``config`` says.
        RetrieverError: the port is taken, or Java or FAISS is missing.
    """
    hosts = {"loopback": "127.0.0.1", "hostname": socket.gethostname()}
    name = host or hosts.get(config.server.host, config.server.host)
    if config.location == "job" and host is None and config.server.host == "hostname":
        check_reachable(name)
    listening = bind(name, port)
    manifest, index_sha256 = check_index(index_dir, config)
    search = _open(index_dir, config)
    address = Address(url=f"http://{name}:{listening.getsockname()[1]}", pid=os.getpid(), index_sha256=index_sha256)

    def stop() -> None:
        server.should_exit = True

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if linger_s is None:
            yield
            return
        async with published(server_dir(index_dir, config), address, linger_s, stop):
            yield

    app = make_app(search, index_sha256, manifest.documents, lifespan, config.server)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on", timeout_keep_alive=600,
                                           timeout_graceful_shutdown=5))
    print(f"serving {index_dir} at {address.url}", flush=True)
    server.run(sockets=[listening])


def _open(index_dir: Path, config: RetrieverConfig) -> Search:
    """Open the index; only the libraries of its kind are loaded."""
    if config.faiss is None:
        from turncredit.retrieval.bm25 import LuceneSearcher

        return LuceneSearcher(index_dir, threads=config.server.threads, heap=config.server.heap).search
    import torch

    from turncredit.retrieval.dense import DenseSearcher, import_faiss
    from turncredit.retrieval.encoder import Encoder

    torch.set_num_threads(config.server.threads)
    if config.faiss.index != "flat":
        import_faiss().omp_set_num_threads(config.server.threads)
    return DenseSearcher(index_dir, config.faiss, Encoder(config.faiss)).search


def _build_config(index_dir: Path) -> RetrieverConfig:
    """The settings that an index was built with."""
    manifest = read_manifest(index_dir)
    if isinstance(manifest, FaissManifest):
        return RetrieverConfig(kind="faiss", faiss=manifest.settings)
    return RetrieverConfig(k1=manifest.k1, b=manifest.b)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Serve an index with Search-R1's /retrieve protocol.")
    parser.add_argument("index_dir", type=Path)
    parser.add_argument("--config", type=RetrieverConfig.model_validate_json, default=None,
                        help="the config section `retriever` as JSON; by default what the index was built with")
    parser.add_argument("--host", default=None, help="where to listen, instead of the config's")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--linger-s", type=float, default=None,
                        help="end after so many seconds without a user; by default never")
    options = parser.parse_args(arguments)
    try:
        serve(options.index_dir, options.config or _build_config(options.index_dir), host=options.host,
              port=options.port, linger_s=options.linger_s)
    except TurncreditError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
