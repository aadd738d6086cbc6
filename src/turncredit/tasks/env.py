"""The protocol between a task and the rollouts: environments, their requests, and the services that answer them.

An environment plays one episode and does no I/O. For each sampled turn the rollout takes three steps:

1. ``request(text)``: what the turn needs from outside (a search, a judge), or None;
2. the ``Service`` that the request names answers it, together with the requests of other episodes;
3. ``step(text, stop, response)``: the environment returns an observation and, at the end, a stop reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from turncredit.config.task import TaskConfig
from turncredit.types import Observation, StopReason, TurnStop

Message = dict[str, str]  # {"role": ..., "content": ...}
CountTokens = Callable[[str], int]
CutTokens = Callable[[str, int], str]  # the text's beginning, in at most so many tokens


@dataclass(frozen=True, slots=True)
class Request:
    """What a turn needs from outside; hashable.

    Attributes:
        service: the name of the service that answers it.
        body: what that service is asked, e.g. a query.
    """

    service: str
    body: Any


class Service(Protocol):
    """Answers requests of one name; safe to be called from several threads at once."""

    def answer(self, bodies: Sequence[Any]) -> list[Any]:
        """One response for each body, in their order.

        Raises:
            TurncreditError: the service failed; a failure is never a response.
        """
        ...


@dataclass(frozen=True, slots=True)
class Step:
    """What follows a turn: the observation, and why the episode ended (None: it goes on)."""

    observation: Observation
    stop: StopReason | None = None


class Environment(Protocol):
    """One episode of one item."""

    def reset(self) -> list[Message]:
        """Start the episode; the messages before the first turn."""
        ...

    def request(self, text: str) -> Request | None:
        """What this turn needs from outside, or None. Pure: it changes nothing."""
        ...

    def step(self, text: str, stop: TurnStop, response: Any) -> Step:
        """Advance the episode by one sampled turn.

        Args:
            text: the decoded sampled tokens of the turn.
            stop: why the engine stopped sampling.
            response: the service's response to ``request(text)``; None if the turn requests nothing.

        Raises:
            ValueError: the episode is over, or there is a response without a request or the reverse.
        """
        ...

    def fork(self) -> Environment:
        """An independent copy of this state, for another branch of a tree."""
        ...


class Task(Protocol):
    """Makes the environments of a run."""

    @property
    def config(self) -> TaskConfig:
        """Limits of an episode."""
        ...

    @property
    def stop_tags(self) -> tuple[str, ...]:
        """Closing tags at which the engine stops sampling a turn."""
        ...

    def start(self, item: Any, count_tokens: CountTokens, cut: CutTokens) -> Environment:
        """A new environment for one item of the task's own type.

        Args:
            item: what the episode is about.
            count_tokens, cut: measure and cut observations with the policy's tokenizer.

        Raises:
            ConfigError: the observation budget cannot hold the task's fixed texts.
        """
        ...
