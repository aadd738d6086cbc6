"""Where an episode stands, as a value: what one turn makes of a state, and groups of finished ones.

A state is a path of child numbers from its question: chains branch at the first turn only, the
per-state trees of the paper (section 3, appendix D) at every turn but the last. All functions here
are pure; who samples and who searches, and in what order, is the business of their callers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from turncredit.errors import ConfigError
from turncredit.policy.engines.base import Sample
from turncredit.policy.tokenizer import Codec
from turncredit.tasks.env import Environment, Task
from turncredit.types import Document, Group, Question, StopReason, Transcript, Turn, TurnStop

Path = tuple[int, ...]
SeedOf = Callable[[str, Path], int]  # question id, path of the turn -> seed


@dataclass(frozen=True, slots=True)
class State:
    """Where an episode stands: after the turns of ``path``, or over if ``stop`` is set."""

    question: int
    path: Path
    environment: Environment
    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    turns: tuple[Turn, ...] = ()
    stop: StopReason | None = None


@dataclass(frozen=True, slots=True)
class Spoken:
    """A turn that was sampled and whose search, if it asks for one, is still to be made.

    Attributes:
        parent: the state that it follows.
        path: its own path.
        environment: its own copy of the parent's.
        sample: what the engine gave.
        text: the decoded sample, for parsers only.
        query: what it asks the retriever, or None.
    """

    parent: State
    path: Path
    environment: Environment
    sample: Sample
    text: str
    query: str | None

    @classmethod
    def of(cls, parent: State, path: Path, sample: Sample, codec: Codec) -> Spoken:
        """Read a sample as the parent's next turn."""
        environment = parent.environment.fork()
        text = codec.decode(sample.ids[:-1] if sample.stop is TurnStop.END else sample.ids)
        return cls(parent, path, environment, sample, text, environment.query(text))

    def answered(self, documents: Sequence[Document] | None, codec: Codec) -> State:
        """The state after the turn, with what the retriever found for its query (None: it asked nothing)."""
        parent, sample = self.parent, self.sample
        step = self.environment.step(self.text, sample.stop, documents)
        observation_ids = () if step.stop is not None else codec.encode_observation(
            step.observation.text, step.observation.role, ended=sample.stop is TurnStop.END)
        turn = Turn(self.text, sample.ids, sample.logprobs, sample.stop, step.observation, observation_ids,
                    sample.weight_version)
        return State(parent.question, self.path, self.environment, parent.prompt_ids,
                     parent.ids + sample.ids + observation_ids, (*parent.turns, turn), step.stop)


def check_branching(branching: Sequence[int], task: Task) -> None:
    """Refuse a branching that does not say how many turns follow each state.

    Raises:
        ValueError: it is too short, too long or holds a number below 1.
    """
    if len(branching) != task.config.max_turns or min(branching) < 1:
        raise ValueError(f"branching {tuple(branching)}: one number above 0 for each of {task.config.max_turns} turns")


def start(questions: Sequence[Question], task: Task, codec: Codec) -> list[State]:
    """The states before the first turn, one a question.

    Raises:
        ConfigError: a question's prompt leaves no room for a turn.
    """
    states = []
    for number, question in enumerate(questions):
        environment = task.start(question, codec.count, codec.cut)
        ids = codec.encode_prompt(environment.prompt())
        if (needed := len(ids) + task.config.max_turn_tokens) > task.config.max_context_tokens:
            raise ConfigError(f"question {question.id}: its prompt and one turn take {needed} tokens, "
                              f"task.max_context_tokens is {task.config.max_context_tokens}",
                              "raise task.max_context_tokens or leave the question out")
        states.append(State(number, (), environment, ids, ids))
    return states


def within_budget(states: Sequence[State], task: Task) -> tuple[list[State], list[State]]:
    """States with room for one more turn; the others, over where their last turn ended."""
    most = task.config.max_context_tokens - task.config.max_turn_tokens
    fits = [state for state in states if len(state.ids) <= most]
    overflown = [
        replace(state, stop=StopReason.CONTEXT_OVERFLOW,
                turns=(*state.turns[:-1], replace(state.turns[-1], observation_ids=())))
        for state in states if len(state.ids) > most]
    return fits, overflown


def groups_of(questions: Sequence[Question], leaves: Sequence[State]) -> list[Group]:
    """One group a question: leaves by path, turns numbered in the order of first appearance."""
    of_question: list[list[State]] = [[] for _ in questions]
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
