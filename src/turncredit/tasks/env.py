"""What a task is to the rollout: a source of environments, each one episode.

Environments are pure (no I/O): the rollout asks ``query`` what a turn wants from the retriever,
fetches it together with the queries of all other live episodes, and hands the result to ``step``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from turncredit.config.task import TaskConfig
from turncredit.types import Document, Observation, StopReason, TurnStop

if TYPE_CHECKING:
    from turncredit.types import Question

Message = dict[str, str]  # {"role": ..., "content": ...}
CountTokens = Callable[[str], int]
CutTokens = Callable[[str, int], str]  # the text's beginning, in at most so many tokens


@dataclass(frozen=True, slots=True)
class Step:
    """What follows a turn: the observation, and why the episode ended (None: it goes on)."""

    observation: Observation
    stop: StopReason | None = None


class Environment(Protocol):
    """One episode in progress, single use."""

    def prompt(self) -> list[Message]:
        """The messages before the first turn."""
        ...

    def query(self, text: str) -> str | None:
        """What this turn asks the retriever, or None; changes nothing. The last turn asks nothing."""
        ...

    def step(self, text: str, stop: TurnStop, documents: Sequence[Document] | None) -> Step:
        """Advance the episode by one sampled turn.

        Args:
            text: the decoded sampled tokens of the turn.
            stop: why the engine stopped sampling.
            documents: what the retriever found for ``query(text)``; None where that was None.

        Raises:
            ValueError: the episode is over, or documents and query do not go together.
        """
        ...

    def fork(self) -> Environment:
        """An independent copy of this state, where a tree branches."""
        ...


class Task(Protocol):
    """A protocol of episodes, made from its configuration."""

    @property
    def config(self) -> TaskConfig:
        """Limits of an episode."""
        ...

    @property
    def stop_tags(self) -> tuple[str, ...]:
        """Closing tags at which the engine stops sampling a turn."""
        ...

    def start(self, question: Question, count_tokens: CountTokens, cut: CutTokens) -> Environment:
        """A new episode; its observations are measured and cut with the tokenizer's functions.

        Raises:
            ConfigError: the observation budget cannot hold the protocol's fixed texts.
        """
        ...
