"""Episodes of a batch of questions, as chains or trees of sampled turns.

All live states of all questions take their turn together: one call of the engine, one of the
retriever. ``rollout.asynchronous`` plays the same episodes each at its own pace.
"""

from __future__ import annotations

from collections.abc import Sequence

from turncredit.policy.engines.base import Engine
from turncredit.policy.tokenizer import Codec
from turncredit.retrieval.client import Retriever
from turncredit.rollout.state import SeedOf, Spoken, check_branching, groups_of, start, within_budget
from turncredit.tasks.env import Task
from turncredit.types import Document, Group, Question


def rollout(questions: Sequence[Question], task: Task, engine: Engine, retriever: Retriever | None, codec: Codec, *,
            branching: Sequence[int], seed_of: SeedOf | None, temperature: float) -> list[Group]:
    """Play every question's episodes.

    A transcript ends with a sampled token: an observation behind the last turn (the episode ended,
    or the next turn would not fit the context) is kept in ``Turn.observation``, not as ids.

    Args:
        questions: one group each, in order.
        task: the protocol; the context budget, with room for a whole turn, is checked before each turn.
        engine: samples the turns.
        retriever: None for tasks that never ask.
        codec: the policy's tokenizer.
        branching: turns sampled from each state at turn k; chains of G are (G, 1, ..., 1).
        seed_of: seed of the turn at a path, e.g. (3, 0) is the second turn of chain 3; None is greedy.
        temperature: of sampling.

    Returns:
        groups; leaves in the order of their paths.

    Raises:
        ConfigError: a question's prompt leaves no room for a turn.
    """
    check_branching(branching, task)
    live, leaves = start(questions, task, codec), []
    for count in branching:
        live, overflown = within_budget(live, task)
        leaves += overflown
        parents = [state for state in live for _ in range(count)]
        paths = [(*state.path, child) for state in live for child in range(count)]
        seeds = None if seed_of is None else [
            seed_of(questions[state.question].id, path) for state, path in zip(parents, paths, strict=True)]
        samples = engine.generate([state.ids for state in parents], seeds=seeds, stop_tags=task.stop_tags,
                                  max_tokens=task.config.max_turn_tokens, temperature=temperature)
        spoken = [Spoken.of(*turn, codec) for turn in zip(parents, paths, samples, strict=True)]
        documents = _search([turn.query for turn in spoken], retriever, task.config.top_k)
        states = [turn.answered(found, codec) for turn, found in zip(spoken, documents, strict=True)]
        live = [state for state in states if state.stop is None]
        leaves += [state for state in states if state.stop is not None]
    if live:
        raise ValueError(f"{len(live)} episodes go on after the last of {len(branching)} turns")
    return groups_of(questions, leaves)


def _search(queries: Sequence[str | None], retriever: Retriever | None, top_k: int) -> list[list[Document] | None]:
    """What the retriever finds for each query, asked in one call; None where there is no query."""
    asked = [query for query in queries if query is not None]
    if not asked:
        return [None] * len(queries)
    if retriever is None:
        raise ValueError("the task asks for a retriever, and there is none")
    found = iter(retriever.search(asked, top_k))
    return [None if query is None else next(found) for query in queries]
