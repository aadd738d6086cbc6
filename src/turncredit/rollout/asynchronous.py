"""Asynchronous rollout: every episode at its own pace.

A turn starts as soon as its parent is resolved. A slow response, or a long turn, delays only its own
descendants. A sample depends on its context and its seed alone, so the groups are those of the
batched rollout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Protocol, Self

from turncredit.policy.engines.base import StreamingEngine, gather_or_cancel
from turncredit.policy.tokenizer import Codec
from turncredit.rollout.state import (
    Path,
    PendingTurn,
    SeedOf,
    State,
    check_branching,
    groups_of,
    service_of,
    start,
    within_budget,
)
from turncredit.tasks.env import Request, Service, Task
from turncredit.types import Group, Item

MAX_IN_FLIGHT = 64  # requests to one service at once; a /retrieve server batches what arrives together


class AsyncService(Protocol):
    """Answers requests of one name without blocking other episodes."""

    async def answer(self, bodies: Sequence[Any]) -> list[Any]:
        """See ``Service.answer``; calls run concurrently."""
        ...


class ThreadedService:
    """Makes a blocking ``Service`` asynchronous: each call runs in a thread of a pool. Use it in a ``with``.

    Args:
        service: safe to be called from several threads at once.
        in_flight: calls at once; further ones wait.
    """

    def __init__(self, service: Service, in_flight: int = MAX_IN_FLIGHT) -> None:
        self._service = service
        self._pool = ThreadPoolExecutor(in_flight, thread_name_prefix="service")

    async def answer(self, bodies: Sequence[Any]) -> list[Any]:
        """See ``AsyncService``. A call that has begun runs to its end even if its episode is given up."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._service.answer, bodies)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self._pool.shutdown(cancel_futures=True)


def rollout(items: Sequence[Item], task: Task, engine: StreamingEngine, services: Mapping[str, Service],
            codec: Codec, *, branching: Sequence[int], seed_of: SeedOf | None, temperature: float) -> list[Group]:
    """Play the episodes of every item; see ``rollout.batched.rollout``, which returns the same groups."""
    with ExitStack() as stack:
        threaded = {name: stack.enter_context(ThreadedService(service)) for name, service in services.items()}
        return asyncio.run(rollout_async(items, task, engine, threaded, codec, branching=branching, seed_of=seed_of,
                                         temperature=temperature))


async def rollout_async(items: Sequence[Item], task: Task, engine: StreamingEngine,
                        services: Mapping[str, AsyncService], codec: Codec, *, branching: Sequence[int],
                        seed_of: SeedOf | None, temperature: float) -> list[Group]:
    """Play the episodes of every item concurrently.

    Args:
        engine: samples turns one by one.
        items, task, services, codec, branching, seed_of, temperature: see ``rollout.batched.rollout``.

    Returns:
        groups; leaves in the order of their paths.

    Raises:
        ConfigError: an item's prompt leaves no room for a turn.
        TurncreditError: what a sample or a service raised; the other episodes are given up.
    """
    check_branching(branching, task)

    async def leaves_below(state: State) -> list[State]:
        """All finished states that follow ``state``."""
        if state.stop is not None:
            return [state]
        if len(state.path) == len(branching):
            raise ValueError(f"an episode goes on after the last of {len(branching)} turns")
        live, overflowed = within_budget([state], task)
        paths = [(*state.path, child) for child in range(branching[len(state.path)])] if live else []
        below = await gather_or_cancel(turn(state, path) for path in paths)
        return overflowed + [leaf for leaves in below for leaf in leaves]

    async def turn(parent: State, path: Path) -> list[State]:
        """The leaves below one more turn of ``parent``."""
        seed = None if seed_of is None else seed_of(items[parent.item].id, path)
        sample = await engine.sample(parent.ids, seed=seed, max_tokens=task.config.max_turn_tokens,
                                     temperature=temperature, stop_tags=task.stop_tags)
        pending = PendingTurn.of(parent, path, sample, codec)
        return await leaves_below(pending.resolve(await response_to(pending.request), codec))

    async def response_to(request: Request | None) -> Any:
        if request is None:
            return None
        [response] = await service_of(request.service, services).answer([request.body])
        return response

    below = await gather_or_cancel(leaves_below(state) for state in start(items, task, codec))
    return groups_of(items, [leaf for leaves in below for leaf in leaves])
