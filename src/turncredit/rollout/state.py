"""Immutable episode states, their transition function, and groups of finished ones.

A state is identified by its path of child numbers from its item. Chains branch at the first turn
only; the per-state trees of the paper (section 3, appendix D) branch at every turn but the last. The
functions here are pure: the callers sample and answer requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from turncredit.errors import ConfigError, TaskError, nearest
from turncredit.policy.engines.base import Sample
from turncredit.policy.tokenizer import Codec
from turncredit.tasks.env import Environment, Request, Task
from turncredit.types import Group, Item, StopReason, Transcript, Turn, TurnStop

Path = tuple[int, ...]
SeedOf = Callable[[str, Path], int]  # item id, path of the turn -> seed
_Service = TypeVar("_Service")


@dataclass(frozen=True, slots=True)
class State:
    """An episode after the turns of ``path``; finished if ``stop`` is set.

    ``item`` is the item's place in the batch.
    """

    item: int
    path: Path
    environment: Environment
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    turns: tuple[Turn, ...] = ()
    stop: StopReason | None = None


@dataclass(frozen=True, slots=True)
class PendingTurn:
    """A sampled turn that waits for the response to its request, if it makes one.

    Attributes:
        parent: the state that it follows.
        path: its own path.
        environment: its own copy of the parent's.
        sample: the engine's sample.
        text: the decoded sample, for parsers only.
        request: what it needs from outside, or None.
    """

    parent: State
    path: Path
    environment: Environment
    sample: Sample
    text: str
    request: Request | None

    @classmethod
    def of(cls, parent: State, path: Path, sample: Sample, codec: Codec) -> PendingTurn:
        """Read a sample as the parent's next turn."""
        environment = parent.environment.fork()
        text = codec.decode(sample.ids[:-1] if sample.stop is TurnStop.END else sample.ids)
        return cls(parent, path, environment, sample, text, environment.request(text))

    def resolve(self, response: Any, codec: Codec) -> State:
        """The state after the turn, given the response to its request (None: no request)."""
        parent, sample = self.parent, self.sample
        step = self.environment.step(self.text, sample.stop, response)
        observation_ids = () if step.stop is not None else codec.encode_observation(
            step.observation.text, step.observation.role, ended=sample.stop is TurnStop.END)
        turn = Turn(self.text, sample.ids, sample.logprobs, sample.stop, step.observation, observation_ids,
                    sample.weight_version)
        return State(parent.item, self.path, self.environment, parent.prompt_ids,
                     parent.ids + sample.ids + observation_ids, (*parent.turns, turn), step.stop)


def service_of(name: str, services: Mapping[str, _Service]) -> _Service:
    """The service of this name.

    Raises:
        TaskError: there is none.
    """
    if name not in services:
        raise TaskError(f"the task requests the service {name!r}, which is not there",
                        nearest(name, services) if services else "open it in the plug-in's open_services")
    return services[name]


def check_branching(branching: Sequence[int], task: Task) -> None:
    """Check that a branching has one positive number for each turn.

    Raises:
        ValueError: it is too short, too long or holds a number below 1.
    """
    if len(branching) != task.config.max_turns or min(branching) < 1:
        raise ValueError(f"branching {tuple(branching)}: one number above 0 for each of {task.config.max_turns} turns")


def start(items: Sequence[Item], task: Task, codec: Codec) -> list[State]:
    """The states before the first turn, one per item.

    Raises:
        ConfigError: an item's prompt leaves no room for a turn.
    """
    states = []
    for number, item in enumerate(items):
        environment = task.start(item, codec.count, codec.cut)
        ids = codec.encode_prompt(environment.reset())
        if (needed := len(ids) + task.config.max_turn_tokens) > task.config.max_context_tokens:
            raise ConfigError(f"item {item.id}: its prompt and one turn take {needed} tokens, "
                              f"task.max_context_tokens is {task.config.max_context_tokens}",
                              "raise task.max_context_tokens or leave the item out")
        states.append(State(number, (), environment, ids, ids))
    return states


def within_budget(states: Sequence[State], task: Task) -> tuple[list[State], list[State]]:
    """States with room for one more turn, and the others, which end with their last sampled token."""
    most = task.config.max_context_tokens - task.config.max_turn_tokens
    fits = [state for state in states if len(state.ids) <= most]
    overflowed = [
        replace(state, stop=StopReason.CONTEXT_OVERFLOW,
                turns=(*state.turns[:-1], replace(state.turns[-1], observation_ids=())))
        for state in states if len(state.ids) > most]
    return fits, overflowed


def groups_of(items: Sequence[Item], leaves: Sequence[State]) -> list[Group]:
    """One group an item: leaves by path, turns numbered in the order of first appearance."""
    of_item: list[list[State]] = [[] for _ in items]
    for leaf in sorted(leaves, key=lambda leaf: leaf.path):
        of_item[leaf.item].append(leaf)
    groups = []
    for item, members in zip(items, of_item, strict=True):
        number: dict[Path, int] = {}
        node_L_K = tuple(
            tuple(number.setdefault(leaf.path[:k + 1], len(number)) for k in range(len(leaf.path)))
            for leaf in members)
        transcripts = []
        for leaf in members:
            assert leaf.stop is not None
            transcripts.append(Transcript(item.id, leaf.prompt_ids, leaf.turns, leaf.stop))
        groups.append(Group(tuple(transcripts), node_L_K))
    return groups
