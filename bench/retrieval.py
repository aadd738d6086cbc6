"""Rates of indexing, and of searching through the retrieval server."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.cost import seconds_of
from bench.results import Measured
from turncredit.config.retriever import RetrieverConfig
from turncredit.retrieval.bm25 import build_index
from turncredit.retrieval.client import Retriever
from turncredit.retrieval.lifecycle import ServerDir, retriever
from turncredit.retrieval.manifest import read_manifest

BATCH = 64


def retrieval_rates(data: Path, index: Path, config: RetrieverConfig, queries: Sequence[str], top_k: int,
                    scratch: Path) -> list[Measured]:
    """Passages indexed and queries answered per second; each client starts with an empty cache."""
    seconds = seconds_of(lambda: build_index(data / "corpus.jsonl", scratch, k1=config.k1, b=config.b))
    found = {"passages indexed per second, with the start of Java": read_manifest(scratch).documents / seconds}
    with retriever(index, config) as warm:
        warm.search(queries, top_k)
        for name, size in ((f"queries per second, batches of {BATCH}", BATCH), ("queries per second, one by one", 1)):
            asked = queries if size > 1 else queries[:256]
            with retriever(index, config) as cold:
                found[name] = _rate(cold, asked, size, top_k)
        server = ServerDir(index.resolve()).address()
        if server is not None:
            found["server's peak memory, GB"] = _peak_kb(server.pid) * 1024 / 1e9
    return [Measured("retrieval through the server, uncached", name, "", value) for name, value in found.items()]


def _rate(client: Retriever, queries: Sequence[str], size: int, top_k: int) -> float:
    """Queries answered per second, sent in batches of ``size``."""
    batches = [queries[start:start + size] for start in range(0, len(queries), size)]
    return len(queries) / seconds_of(lambda: [client.search(batch, top_k) for batch in batches])


def _peak_kb(pid: int) -> int:
    """The peak memory of a process of this machine, in KiB."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(status.partition("VmHWM:")[2].split()[0])
