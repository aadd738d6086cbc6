"""The same episodes as ``rollout.batched``, each at its own pace.

A turn begins when its parent has been answered, whatever the others do: a slow search, or a long
turn, holds up nobody but its own descendants. A sample depends on its context and its seed alone, so
the groups are those of the batched rollout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Protocol, Self

from turncredit.policy.engines.base import StreamingEngine, gather_or_cancel
from turncredit.policy.tokenizer import Codec
from turncredit.retrieval.client import Retriever
from turncredit.rollout.state import Path, SeedOf, Spoken, State, check_branching, groups_of, start, within_budget
from turncredit.tasks.env import Task
from turncredit.types import Document, Group, Question

SEARCHES = 64  # in flight at once; a /retrieve server batches what arrives together


class AsyncRetriever(Protocol):
    """What finds passages while others wait for theirs."""

    async def search(self, queries: Sequence[str], top_k: int) -> list[list[Document]]:
        """See ``Retriever.search``; calls run beside one another."""
        ...


class ThreadedRetriever:
    """Makes a ``Retriever`` asynchronous: each search in a thread of a pool. Use it in a ``with``.

    Args:
        retriever: safe to be called from several threads at once.
        searches: in flight at once; further ones wait their turn.
    """

    def __init__(self, retriever: Retriever, searches: int = SEARCHES) -> None:
        self._retriever = retriever
        self._pool = ThreadPoolExecutor(searches, thread_name_prefix="search")

    async def search(self, queries: Sequence[str], top_k: int) -> list[list[Document]]:
        """See ``AsyncRetriever``. A search that was begun ends even if nobody waits for it any more."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._retriever.search, queries, top_k)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)


def rollout(questions: Sequence[Question], task: Task, engine: StreamingEngine, retriever: Retriever | None,
            codec: Codec, *, branching: Sequence[int], seed_of: SeedOf | None, temperature: float) -> list[Group]:
    """Play every question's episodes; see ``rollout.batched.rollout``, which gives the same groups."""
    def play(search: AsyncRetriever | None) -> list[Group]:
        return asyncio.run(rollout_async(questions, task, engine, search, codec, branching=branching,
                                         seed_of=seed_of, temperature=temperature))

    if retriever is None:
        return play(None)
    with ThreadedRetriever(retriever) as search:
        return play(search)


async def rollout_async(questions: Sequence[Question], task: Task, engine: StreamingEngine,
                        retriever: AsyncRetriever | None, codec: Codec, *, branching: Sequence[int],
                        seed_of: SeedOf | None, temperature: float) -> list[Group]:
    """Play every question's episodes beside one another.

    Args:
        engine: samples turns one by one.
        retriever: None for tasks that never ask.
        questions, task, codec, branching, seed_of, temperature: as of ``rollout.batched.rollout``.

    Returns:
        groups; leaves in the order of their paths.

    Raises:
        ConfigError: a question's prompt leaves no room for a turn.
        TurncreditError: what a sample or a search raised; the other episodes are given up.
    """
    check_branching(branching, task)

    async def leaves_below(state: State) -> list[State]:
        """All finished states that follow ``state``."""
        if state.stop is not None:
            return [state]
        if len(state.path) == len(branching):
            raise ValueError(f"an episode goes on after the last of {len(branching)} turns")
        live, overflown = within_budget([state], task)
        paths = [(*state.path, child) for child in range(branching[len(state.path)])] if live else []
        found = await gather_or_cancel(turn(state, path) for path in paths)
        return overflown + [leaf for leaves in found for leaf in leaves]

    async def turn(parent: State, path: Path) -> list[State]:
        """The leaves below one more turn of ``parent``."""
        seed = None if seed_of is None else seed_of(questions[parent.question].id, path)
        sample = await engine.sample(parent.ids, seed=seed, max_tokens=task.config.max_turn_tokens,
                                     temperature=temperature, stop_tags=task.stop_tags)
        spoken = Spoken.of(parent, path, sample, codec)
        return await leaves_below(spoken.answered(await search(spoken.query), codec))

    async def search(query: str | None) -> list[Document] | None:
        if query is None:
            return None
        if retriever is None:
            raise ValueError("the task asks for a retriever, and there is none")
        [documents] = await retriever.search([query], task.config.top_k)
        return documents

    found = await gather_or_cancel(leaves_below(state) for state in start(questions, task, codec))
    return groups_of(questions, [leaf for leaves in found for leaf in leaves])
