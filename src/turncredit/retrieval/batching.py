"""Requests that arrive together are searched together, and a full queue says so."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from turncredit.config.retriever import ServerConfig
from turncredit.retrieval.corpus import Passage
from turncredit.retrieval.metrics import Metrics

Hits = list[tuple[Passage, float]]
Search = Callable[[Sequence[str], int], list[Hits]]


class QueueFull(Exception):
    """Too many queries wait already; ask again later."""


@dataclass(eq=False)
class _Ask:
    queries: list[str]
    k: int
    answer: asyncio.Future[list[Hits]]


class Batcher:
    """Puts concurrent requests into one ``search(queries, k)`` at a time, on a thread of its own.

    While one batch is searched the next one gathers. A query that stands twice in a batch is searched once, and
    requests with another ``k`` are searched apart, so that no answer depends on what else was asked.

    Args:
        search: called from one thread only.
        config: how long a batch gathers, how large it becomes, how many queries may wait.
        metrics: where it counts.
    """

    def __init__(self, search: Search, config: ServerConfig, metrics: Metrics) -> None:
        self._search, self._config, self._metrics = search, config, metrics
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="search")
        self._waiting: deque[_Ask] = deque()
        self._draining: asyncio.Task[None] | None = None

    async def ask(self, queries: list[str], k: int) -> list[Hits]:
        """The hits of each query, in order.

        Raises:
            QueueFull: more queries would wait than may. A request is always taken while none waits.
        """
        if self._metrics.waiting and self._metrics.waiting + len(queries) > self._config.queue:
            self._metrics.refused += 1
            raise QueueFull
        began = time.perf_counter()
        ask = _Ask(queries, k, asyncio.get_running_loop().create_future())
        self._waiting.append(ask)
        self._metrics.waiting += len(queries)
        if self._draining is None:
            self._draining = asyncio.create_task(self._drain())
        try:
            return await ask.answer
        finally:
            self._metrics.latency.observe(time.perf_counter() - began)

    async def _drain(self) -> None:
        try:
            while self._waiting:
                if self._config.window_ms and self._metrics.waiting < self._config.max_batch:
                    await asyncio.sleep(self._config.window_ms / 1000)
                await self._answer(list(self._batch()))
        finally:
            self._draining = None

    def _batch(self) -> Iterator[_Ask]:
        """Take waiting requests up to ``max_batch`` queries; the first one whatever its size."""
        taken = 0
        while self._waiting and (not taken or taken + len(self._waiting[0].queries) <= self._config.max_batch):
            ask = self._waiting.popleft()
            self._metrics.waiting -= len(ask.queries)
            taken += len(ask.queries)
            yield ask

    async def _answer(self, batch: list[_Ask]) -> None:
        for k in sorted({ask.k for ask in batch}):
            asks = [ask for ask in batch if ask.k == k]
            distinct = list(dict.fromkeys(query for ask in asks for query in ask.queries))
            try:
                hits = await asyncio.get_running_loop().run_in_executor(self._thread, self._search_all, distinct, k)
            except Exception as error:  # whatever it was, it is the answer to those who asked
                self._metrics.failed += len(asks)
                for ask in asks:
                    if not ask.answer.done():
                        ask.answer.set_exception(error)
                continue
            found = dict(zip(distinct, hits, strict=True))
            for ask in asks:
                if not ask.answer.done():  # its asker may have gone
                    ask.answer.set_result([found[query] for query in ask.queries])

    def _search_all(self, queries: list[str], k: int) -> list[Hits]:
        found: list[Hits] = []
        for start in range(0, len(queries), self._config.max_batch):
            part = queries[start:start + self._config.max_batch]
            self._metrics.batch.observe(len(part))
            found += self._search(part, k)
        return found
