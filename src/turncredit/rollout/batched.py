"""Batched rollout: chains or trees of sampled turns, all episodes turn by turn together.

Each turn makes one call of the engine and one of each service that it requests.
``rollout.asynchronous`` plays the same episodes, each at its own pace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turncredit.policy.engines.base import Engine
from turncredit.policy.tokenizer import Codec
from turncredit.rollout.state import (
    PendingTurn,
    SeedOf,
    check_branching,
    groups_of,
    service_of,
    start,
    within_budget,
)
from turncredit.tasks.env import Request, Service, Task
from turncredit.types import Group, Item


def rollout(items: Sequence[Item], task: Task, engine: Engine, services: Mapping[str, Service], codec: Codec, *,
            branching: Sequence[int], seed_of: SeedOf | None, temperature: float) -> list[Group]:
    """Play the episodes of every item.

    A transcript ends with a sampled token: if the episode ends, or the next turn would not fit the
    context, ``Turn.observation`` keeps the last observation but the transcript has no ids of it.

    Args:
        items: one group each, in order.
        task: makes the environments; the context budget, with room for a whole turn, is checked
            before each turn.
        engine: samples the turns.
        services: answer the task's requests, by name.
        codec: the policy's tokenizer.
        branching: turns sampled from each state at turn k; G chains are (G, 1, ..., 1).
        seed_of: seed of the turn at a path, e.g. (3, 0) is the second turn of chain 3; None is greedy.
        temperature: of sampling.

    Returns:
        groups; leaves in the order of their paths.

    Raises:
        ConfigError: an item's prompt leaves no room for a turn.
        TaskError: a turn requests a service that is not there.
    """
    check_branching(branching, task)
    live, leaves = start(items, task, codec), []
    for count in branching:
        live, overflowed = within_budget(live, task)
        leaves += overflowed
        parents = [state for state in live for _ in range(count)]
        paths = [(*state.path, child) for state in live for child in range(count)]
        seeds = None if seed_of is None else [
            seed_of(items[state.item].id, path) for state, path in zip(parents, paths, strict=True)]
        samples = engine.generate([state.ids for state in parents], seeds=seeds, stop_tags=task.stop_tags,
                                  max_tokens=task.config.max_turn_tokens, temperature=temperature)
        pending = [PendingTurn.of(*turn, codec) for turn in zip(parents, paths, samples, strict=True)]
        responses = answer_requests([turn.request for turn in pending], services)
        states = [turn.resolve(response, codec) for turn, response in zip(pending, responses, strict=True)]
        live = [state for state in states if state.stop is None]
        leaves += [state for state in states if state.stop is not None]
    if live:
        raise ValueError(f"{len(live)} episodes go on after the last of {len(branching)} turns")
    return groups_of(items, leaves)


def answer_requests(requests: Sequence[Request | None], services: Mapping[str, Service]) -> list[Any]:
    """The response to each request, from one call of each service; None where there is no request.

    Raises:
        TaskError: a request to a service that is not there.
    """
    responses: list[Any] = [None] * len(requests)
    places: dict[str, list[int]] = {}
    for place, request in enumerate(requests):
        if request is not None:
            places.setdefault(request.service, []).append(place)
    for name, of_service in places.items():
        bodies = [request.body for place in of_service if (request := requests[place]) is not None]
        answers = service_of(name, services).answer(bodies)
        for place, response in zip(of_service, answers, strict=True):
            responses[place] = response
    return responses
