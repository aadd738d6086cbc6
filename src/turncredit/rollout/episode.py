"""Episodes of a batch of questions, as chains or trees of sampled turns.

A state is a path of child numbers from its question: chains branch at the first turn only, the
per-state trees of the paper (section 3, appendix D) at every turn but the last. All live states of
all questions take their turn together: one call of the engine, one of the retriever.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from turncredit.errors import ConfigError
from turncredit.policy.chat import Codec
from turncredit.policy.engine import Engine, Sample
from turncredit.retrieval.client import Retriever
from turncredit.tasks.base import Environment, Task
from turncredit.transcript import Document, Group, StopReason, Transcript, Turn, TurnStop
from turncredit.world.questions import Question

Path = tuple[int, ...]
SeedOf = Callable[[str, Path], int]  # question id, path of the turn -> seed


@dataclass(frozen=True, slots=True)
class _State:
    """Where an episode stands: after the turns of ``path``, or over if ``stop`` is set."""

    question: int
    path: Path
    environment: Environment
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    turns: tuple[Turn, ...] = ()
    stop: StopReason | None = None


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
    if len(branching) != task.config.max_turns or min(branching) < 1:
        raise ValueError(f"branching {tuple(branching)}: one number above 0 for each of {task.config.max_turns} turns")
    live, leaves = _start(questions, task, codec), []
    for count in branching:
        live, overflown = _within_budget(live, task)
        leaves += overflown
        parents = [state for state in live for _ in range(count)]
        paths = [(*state.path, child) for state in live for child in range(count)]
        seeds = None if seed_of is None else [
            seed_of(questions[state.question].id, path) for state, path in zip(parents, paths, strict=True)]
        samples = engine.generate([state.ids for state in parents], seeds=seeds, stop_tags=task.stop_tags,
                                  max_tokens=task.config.max_turn_tokens, temperature=temperature)
        states = _step(parents, paths, samples, task, retriever, codec)
        live = [state for state in states if state.stop is None]
        leaves += [state for state in states if state.stop is not None]
    if live:
        raise ValueError(f"{len(live)} episodes go on after the last of {len(branching)} turns")
    return _groups(questions, leaves)


def _start(questions: Sequence[Question], task: Task, codec: Codec) -> list[_State]:
    states = []
    for number, question in enumerate(questions):
        environment = task.start(question, codec.count, codec.cut)
        ids = codec.encode_prompt(environment.prompt())
        if (needed := len(ids) + task.config.max_turn_tokens) > task.config.max_context_tokens:
            raise ConfigError(f"question {question.id}: its prompt and one turn take {needed} tokens, "
                              f"task.max_context_tokens is {task.config.max_context_tokens}",
                              "raise task.max_context_tokens or leave the question out")
        states.append(_State(number, (), environment, ids, ids))
    return states


def _within_budget(states: Sequence[_State], task: Task) -> tuple[list[_State], list[_State]]:
    """States with room for one more turn; the others, over where their last turn ended."""
    most = task.config.max_context_tokens - task.config.max_turn_tokens
    fits = [state for state in states if len(state.ids) <= most]
    overflown = [
        replace(state, stop=StopReason.CONTEXT_OVERFLOW,
                turns=(*state.turns[:-1], replace(state.turns[-1], observation_ids=())))
        for state in states if len(state.ids) > most]
    return fits, overflown


def _step(parents: Sequence[_State], paths: Sequence[Path], samples: Sequence[Sample], task: Task,
          retriever: Retriever | None, codec: Codec) -> list[_State]:
    """The states after one sampled turn each."""
    environments = [parent.environment.fork() for parent in parents]
    texts = [codec.decode(sample.ids[:-1] if sample.stop is TurnStop.END else sample.ids) for sample in samples]
    queries = [environment.query(text) for environment, text in zip(environments, texts, strict=True)]
    documents = _search(queries, retriever, task.config.top_k)
    states = []
    for parent, path, environment, sample, text, found in zip(
            parents, paths, environments, samples, texts, documents, strict=True):
        step = environment.step(text, sample.stop, found)
        observation_ids = () if step.stop is not None else codec.encode_observation(
            step.observation.text, step.observation.role, ended=sample.stop is TurnStop.END)
        turn = Turn(text, sample.ids, sample.logprobs, sample.stop, step.observation, observation_ids)
        states.append(_State(parent.question, path, environment, parent.prompt_ids,
                             parent.ids + sample.ids + observation_ids, (*parent.turns, turn), step.stop))
    return states


def _search(queries: Sequence[str | None], retriever: Retriever | None, top_k: int) -> list[list[Document] | None]:
    """What the retriever finds for each query, asked in one call; None where there is no query."""
    asked = [query for query in queries if query is not None]
    if not asked:
        return [None] * len(queries)
    if retriever is None:
        raise ValueError("the task asks for a retriever, and there is none")
    found = iter(retriever.search(asked, top_k))
    return [None if query is None else next(found) for query in queries]


def _groups(questions: Sequence[Question], leaves: Sequence[_State]) -> list[Group]:
    """One group a question: leaves by path, turns numbered in the order of first appearance."""
    of_question: list[list[_State]] = [[] for _ in questions]
    for leaf in sorted(leaves, key=lambda leaf: leaf.path):
        of_question[leaf.question].append(leaf)
    groups = []
    for question, members in zip(questions, of_question, strict=True):
        number: dict[Path, int] = {}
        node_L_K = tuple(
            tuple(number.setdefault(leaf.path[:k + 1], len(number)) for k in range(len(leaf.path)))
            for leaf in members)
        transcripts = []
        for leaf in members:
            assert leaf.stop is not None
            transcripts.append(Transcript(question.id, leaf.prompt_ids, leaf.turns, leaf.stop))
        groups.append(Group(tuple(transcripts), node_L_K))
    return groups
