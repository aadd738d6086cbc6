"""What a task brings to the project: one frozen ``TaskPlugin``, registered in ``tasks.registry``."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from turncredit.config.algorithm import Content
from turncredit.config.retriever import RetrieverConfig
from turncredit.config.task import RewardConfig, TaskConfig
from turncredit.errors import TaskError
from turncredit.tasks.env import Service, Task
from turncredit.types import Item, Observation, StopReason, Transcript

Kind = Literal["rate", "count", "number"]
Cell = Literal["name", "text", "count", "number"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A number that a task measures in every episode.

    Attributes:
        name: its column of evaluation.csv.
        kind: ``rate`` (0 to 1), ``count`` (whole, 0 or more) or ``number`` (any finite one).
        in_training: metrics.csv has its mean too: a rate under its own name, others as ``{name}_mean``.
    """

    name: str
    kind: Kind = "rate"
    in_training: bool = True

    def admits(self, value: float) -> bool:
        """Whether an episode may have this value."""
        match self.kind:
            case "rate":
                return 0 <= value <= 1
            case "count":
                return value >= 0 and value % 1 == 0
            case "number":
                return math.isfinite(value)


@dataclass(frozen=True, slots=True)
class Rewards:
    """The rewards and measurements of one episode of K turns.

    Attributes:
        intermediate_K: R^I of each turn, in order; 0 where a turn earns none.
        outcome: R^O.
        metrics: the task's metrics by name.
        components: every reward component by name, summed over the episode; measured whether or not it counts.
        columns: further cells of the episode's row in evaluation.csv.
    """

    intermediate_K: tuple[float, ...]
    outcome: float
    metrics: Mapping[str, float]
    components: Mapping[str, float]
    columns: Mapping[str, str | float]


class RewardFunction(Protocol):
    """A pure function of an episode and its item."""

    def __call__(self, transcript: Transcript, item: Any) -> Rewards:
        """Judge one episode."""
        ...


@dataclass(frozen=True, slots=True)
class ServiceSettings:
    """What a run's services are opened with.

    Attributes:
        retriever: the run's resolved retriever.
        index: the folder of its index.
    """

    retriever: RetrieverConfig
    index: Path

    def identity(self) -> Any:
        """The settings that decide a result, as JSON data."""
        return self.retriever.result_settings()


class Demonstrator(Protocol):
    """An agent that plays one item for the warm start: skilled, with flaws."""

    @property
    def recalled(self) -> bool:
        """Whether it has used what it knows of the true world: its episode must not be renamed."""
        ...

    def act(self) -> str:
        """The next turn's text."""
        ...

    def observe(self, observation: Observation) -> None:
        """Read what followed that turn."""
        ...


class Names(Protocol):
    """The names of the miniature world, by kind (country, city, ...)."""

    @property
    def known(self) -> Collection[str]:
        """Names of the countries whose facts a policy may know by heart."""
        ...

    @property
    def names_of(self) -> Mapping[str, Sequence[str]]:
        """Kind -> its names."""
        ...

    def kind(self, name: str) -> str:
        """The kind of a name."""
        ...

    def names_in(self, text: str) -> list[str]:
        """The names in a text, in order."""
        ...


class MakeDemonstrator(Protocol):
    """Makes the demonstrator of one item."""

    def __call__(self, item: Any, flaws: Mapping[str, float], names: Names, rng: random.Random) -> Demonstrator:
        """A demonstrator of ``item`` to whom each flaw happens with its chance at a decision."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations:
    """How a task is demonstrated to the policy of the warm start.

    Attributes:
        make: makes the demonstrator of one item.
        flaws: the flaws that its demonstrators may have; ``warm_start.flaws`` gives each a chance.
        kind_of: the kind of an item; flaws strike some kinds more often than others.
        fits: whether the episodes of a configuration are long enough for an item.
        is_short: whether an item takes one request; short items are learnt first.
        texts: words of the protocol, for the tokenizer that is trained here.
        recite: an item of one fact -> the beginning of a turn that decides to answer it from memory, and the rest of
            the turn; None: nothing is known by heart.
    """

    make: MakeDemonstrator
    flaws: tuple[str, ...]
    kind_of: Callable[[Any], str]
    fits: Callable[[Any, Any], bool]
    is_short: Callable[[Any], bool]
    texts: tuple[str, ...]
    recite: Callable[[Any], tuple[str, str]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlugin:
    """All that the project knows of a task.

    Attributes:
        name: as in ``task.name`` of a configuration.
        config: model of the settings ``experiments.<name>.task``.
        rewards: model of the settings ``rewards.<task>``.
        make_task: configuration -> task.
        make_reward: (configuration, content, reward values) -> reward function.
        open_services: (configuration, service settings) -> services by name, for the length of a ``with``.
        read_items: (data folder, split, data sets; None: all) -> items, in order.
        tags: names of its tags, each of which becomes one token of a tokenizer trained here.
        metrics: what it measures, in the order of the columns.
        components: names of its reward components, in the order of the columns.
        contents: the reward contents that it has.
        columns: further columns of evaluation.csv, and what their cells hold.
        stop_reasons: how its episodes end, in the order of the columns.
        datasets: its own data sets; empty: the question sets of the scale.
        demonstrations: for policies that are warm-started here; None: there are none.
    """

    name: str
    config: type[TaskConfig]
    rewards: type[RewardConfig]
    make_task: Callable[[Any], Task]
    make_reward: Callable[[Any, Any, Any], RewardFunction]
    open_services: Callable[[Any, ServiceSettings], AbstractContextManager[Mapping[str, Service]]]
    read_items: Callable[[Path, str, Sequence[str] | None], Sequence[Item]]
    tags: tuple[str, ...]
    metrics: tuple[Metric, ...]
    components: tuple[str, ...]
    columns: Mapping[str, Cell]
    contents: tuple[Content, ...] = ("outcome", "merged", "full")
    stop_reasons: tuple[StopReason, ...] = (StopReason.ANSWERED, StopReason.TURN_LIMIT, StopReason.CONTEXT_OVERFLOW,
                                            StopReason.INVALID_LIMIT)
    datasets: tuple[str, ...] = ()
    demonstrations: Demonstrations | None = None

    def check(self, rewards: Rewards, transcript: Transcript) -> None:
        """Check what the reward function returned for an episode.

        Raises:
            TaskError: not one intermediate reward a turn, a value that is not finite or not of its metric's kind,
                names other than the declared ones, or a stop reason that was not declared.
        """
        turns, given = len(transcript.turns), len(rewards.intermediate_K)
        if given != turns:
            raise self._error(transcript, f"{given} intermediate rewards for {turns} turns", "return one for each turn")
        if transcript.stop not in self.stop_reasons:
            raise self._error(transcript, f"stop reason {transcript.stop!r} is not among stop_reasons", "declare it")
        for part, names, declared in (("metrics", rewards.metrics, [metric.name for metric in self.metrics]),
                                      ("components", rewards.components, self.components),
                                      ("columns", rewards.columns, self.columns)):
            if odd := sorted(set(names) ^ set(declared)):
                what = "is missing" if odd[0] in declared else "is not declared"
                raise self._error(transcript, f"{part}: {odd[0]!r} {what}", "return what the plug-in declares")
        values = {"outcome": rewards.outcome,
                  **{f"intermediate_K[{k}]": value for k, value in enumerate(rewards.intermediate_K)},
                  **{f"components[{name!r}]": value for name, value in rewards.components.items()}}
        for where, value in values.items():
            if not math.isfinite(value):
                raise self._error(transcript, f"{where} = {value}", "return finite numbers")
        for metric in self.metrics:
            if not metric.admits(value := rewards.metrics[metric.name]):
                raise self._error(transcript, f"metrics[{metric.name!r}] = {value} is no {metric.kind}",
                                  "return a value of the declared kind")

    def _error(self, transcript: Transcript, fault: str, remedy: str) -> TaskError:
        return TaskError(f"task {self.name!r}, rewards of an episode of {transcript.item_id!r}: {fault}", remedy)
