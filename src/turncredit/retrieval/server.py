"""The retrieval server: Search-R1's ``POST /retrieve`` in a process of its own, ``GET /health`` and ``GET /metrics``.

Started by ``service.retriever``, or by hand: ``python -m turncredit.retrieval.server INDEX --port 8000``.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.responses import PlainTextResponse
from pydantic import BaseModel, Field

from turncredit.config.retriever import RetrieverConfig, ServerConfig
from turncredit.errors import RetrieverError, TurncreditError
from turncredit.retrieval.batching import Batcher, QueueFull, Search
from turncredit.retrieval.corpus import Passage
from turncredit.retrieval.leases import Address, server_dir
from turncredit.retrieval.manifest import FaissManifest, read_manifest
from turncredit.retrieval.metrics import Metrics
from turncredit.retrieval.query import clean_query

_CONFIG = ServerConfig()
_DEFAULT_TOPK = 3
_MAX_WORDS = 256  # of a query, whoever asks
_SWEEP_S = 1.0
_RETRY_S = 1  # when a refused request may come back


class Ask(BaseModel):
    """The body of ``POST /retrieve``, as Search-R1 has it."""

    queries: list[str]
    topk: int | None = Field(None, ge=0, le=1000)
    return_scores: bool = False


def make_app(search: Search, index_sha256: str, documents: int,
             lifespan: Callable[[FastAPI], Any] | None = None, config: ServerConfig = _CONFIG) -> FastAPI:
    """The protocol over any ``search(queries, k)``, which is called from one thread only.

    ``POST /retrieve`` answers ``{"result": [hits of query 1, ...]}``, a hit being
    ``{"document": {"id", "contents"}, "score"}``, or the document alone without ``return_scores``; or 503 with
    ``Retry-After`` (seconds) where too many queries wait. ``GET /health`` tells the index and the counts,
    ``GET /metrics`` all counts in Prometheus's text format.
    """
    app = FastAPI(lifespan=lifespan)
    metrics = Metrics()
    batcher = Batcher(search, config, metrics)

    @app.get("/health")
    async def health() -> dict[str, Any]:
        return {"index_sha256": index_sha256, "documents": documents, "pid": os.getpid(),
                "queries": metrics.queries, "cut": metrics.cut, "waiting": metrics.waiting}

    @app.get("/metrics")
    async def numbers() -> PlainTextResponse:
        return PlainTextResponse(metrics.text(), media_type="text/plain; version=0.0.4")

    @app.post("/retrieve")
    async def retrieve(ask: Ask) -> dict[str, Any]:
        cleaned = [clean_query(query, _MAX_WORDS) for query in ask.queries]
        topk = _DEFAULT_TOPK if ask.topk is None else ask.topk
        try:
            found = await batcher.ask([query for query, _ in cleaned], topk)
        except QueueFull:
            raise HTTPException(503, f"{metrics.waiting} queries wait", {"Retry-After": str(_RETRY_S)}) from None
        metrics.queries += len(cleaned)
        metrics.cut += sum(was_cut for _, was_cut in cleaned)
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


def serve(index_dir: Path, config: RetrieverConfig, *, host: str | None = None, port: int = 0,
          linger_s: float | None = None) -> None:
    """Serve an index until told to stop, or until nobody holds a lease for ``linger_s`` seconds.

    With ``linger_s`` the address is published next to the index (``leases.ServerDir``, or ``SharedServerDir`` where
    the server is a job of its own). A job that finds another one serving the same index ends at once.

    Args:
        index_dir: holds ``index.json``.
        config: the retriever; says how the index is searched, and where and how the server listens.
        host: where it listens instead.
        port: 0 takes a free one.
        linger_s: see above.

    Raises:
        DataError: there is no sound index.
        ConfigError: the configuration asks for another index.
        RetrieverError: the port is taken, or Java or FAISS is missing.
    """
    words = {"loopback": "127.0.0.1", "hostname": socket.gethostname()}
    named = host or words.get(config.server.host, config.server.host)
    listening = bind(named, port)
    manifest = read_manifest(index_dir)
    index_sha256 = manifest.served(config)
    search = _open(index_dir, config)
    address = Address(url=f"http://{named}:{listening.getsockname()[1]}", pid=os.getpid(), index_sha256=index_sha256)
    place = server_dir(index_dir, config)

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
        place.retract(address)

    app = make_app(search, index_sha256, manifest.documents, lifespan, config.server)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on", timeout_keep_alive=600,
                                           timeout_graceful_shutdown=5))
    print(f"serving {index_dir} at {address.url}", flush=True)
    server.run(sockets=[listening])


def _open(index_dir: Path, config: RetrieverConfig) -> Search:
    """The index's search; libraries are loaded for its kind alone."""
    if config.faiss is None:
        from turncredit.retrieval.lucene import LuceneSearcher

        return LuceneSearcher(index_dir, threads=config.server.threads, heap=config.server.heap).search
    import torch

    from turncredit.retrieval.dense import DenseSearcher, import_faiss
    from turncredit.retrieval.encoder import Encoder

    torch.set_num_threads(config.server.threads)
    if config.faiss.index != "flat":
        import_faiss().omp_set_num_threads(config.server.threads)
    return DenseSearcher(index_dir, config.faiss, Encoder(config.faiss)).search


def _as_built(index_dir: Path) -> RetrieverConfig:
    """The settings that an index was built with."""
    manifest = read_manifest(index_dir)
    if isinstance(manifest, FaissManifest):
        return RetrieverConfig(kind="faiss", faiss=manifest.settings)
    return RetrieverConfig(k1=manifest.k1, b=manifest.b)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Serve an index behind Search-R1's /retrieve.")
    parser.add_argument("index_dir", type=Path)
    parser.add_argument("--config", type=RetrieverConfig.model_validate_json, default=None,
                        help="the section `retriever` as JSON; without it, what the index was built with")
    parser.add_argument("--host", default=None, help="instead of the configuration's")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--linger-s", type=float, default=None,
                        help="end when nobody holds a lease for so long; without it, never")
    options = parser.parse_args(arguments)
    try:
        serve(options.index_dir, options.config or _as_built(options.index_dir), host=options.host,
              port=options.port, linger_s=options.linger_s)
    except TurncreditError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
