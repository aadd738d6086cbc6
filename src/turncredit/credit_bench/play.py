"""Plays and scores the bench's episodes; replays the first turns of an episode and samples other continuations.

A sampled turn depends on its context and its seed alone. So a prefix is replayed by giving its turns the same seeds
again, with any engine and any rollout; the turns after it get other seeds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from turncredit.config.algorithm import Content
from turncredit.config.load import RunConfig
from turncredit.credit.placement import place_on_turns
from turncredit.credit.registry import Placement
from turncredit.evaluation import EpisodeRunner
from turncredit.policy.engines.base import Engine
from turncredit.policy.tokenizer import Codec
from turncredit.rollout.state import Path, SeedOf
from turncredit.seeding import derive_seed
from turncredit.tasks.env import Service
from turncredit.tasks.plugin import Rewards
from turncredit.tasks.registry import make_reward, make_task, plugin_of
from turncredit.types import Group, Item, Transcript

FULL: Content = "full"  # the content of the shaped return
SHAPED = "shaped_return"
LEAVES = 256  # most episodes played at once: larger batches lose more time to copies of the KV cache than they gain


@dataclass(frozen=True, slots=True)
class Player:
    """Plays the episodes of one task with one policy, and scores them under any content.

    Attributes:
        config: task, reward values and training settings; its algorithm is not read.
        engine, services, codec: see ``evaluation.EpisodeRunner``.
        seed: of all that the bench samples.
    """

    config: RunConfig
    engine: Engine
    services: Mapping[str, Service]
    codec: Codec
    seed: int

    def play(self, items: Sequence[Item], branching: Sequence[int], *key: int | str,
             pinned: Mapping[str, int] | None = None, every_leaf: bool = False) -> list[Group]:
        """One group an item, sampled at the temperature of training; never more than ``LEAVES`` episodes at once.

        Args:
            items: distinct items.
            branching: see ``rollout.batched.rollout``.
            key: names this sample; the same key samples the same episodes again.
            pinned: item id -> number of first turns that are replayed from the item's probe (``probe_seed``).
            every_leaf: all episodes of a group begin with the replayed turns; else only the first, on path 0, 0, ...
        """
        seed_of = self._seeds(key, pinned or {}, every_leaf=every_leaf)
        runner, at_once = self._runner(FULL), max(1, LEAVES // math.prod(branching))
        groups = []
        for start in range(0, len(items), at_once):
            groups += runner.play(items[start:start + at_once], branching, seed_of=seed_of,
                                  temperature=self.config.training.temperature)
        return groups

    def score(self, items: Sequence[Item], groups: Sequence[Group], content: Content) -> list[list[Rewards]]:
        """The rewards of each leaf under a content, as [group][leaf]."""
        flat = (1,) * self.config.task.max_turns
        return [[episode.rewards for episode in episodes]
                for episodes in self._runner(content).score(items, groups, flat)]

    def _runner(self, content: Content) -> EpisodeRunner:
        reward = make_reward(self.config.task, content, self.config.rewards)
        return EpisodeRunner(plugin_of(self.config.task.name), make_task(self.config.task), reward, self.engine,
                             self.services, self.codec)

    def _seeds(self, key: Sequence[int | str], pinned: Mapping[str, int], *, every_leaf: bool) -> SeedOf:
        def seed_of(item: str, path: Path) -> int:
            if len(path) <= pinned.get(item, 0) and (every_leaf or not any(path)):
                return probe_seed(self.seed, item, len(path))
            return derive_seed("credit bench", self.seed, *key, item, *path)
        return seed_of


def probe_seed(seed: int, item: str, turn: int) -> int:
    """The seed of turn ``turn`` (from 1) of an item's probe, the one episode of the item that is replayed."""
    return derive_seed("credit bench", seed, "probe", item, turn)


def target_names(task: str) -> tuple[str, ...]:
    """The quantities whose true gradients are computed: the task's metrics that training records, and ``SHAPED``.

    The shaped return is the sum of all rewards of content ``full``.
    """
    return (*(metric.name for metric in plugin_of(task).metrics if metric.in_training), SHAPED)


def targets_of(rewards: Rewards, names: Sequence[str]) -> list[float]:
    """The value of each target in one episode; ``rewards`` are those of content ``full``."""
    values = {**rewards.metrics, SHAPED: sum(rewards.intermediate_K) + rewards.outcome}
    return [float(values[name]) for name in names]


def paid_return(rewards: Rewards, placement: Placement) -> float:
    """The undiscounted sum of what a placement pays in one episode."""
    return sum(place_on_turns(placement, rewards.intermediate_K, rewards.outcome))


def begins_with(transcript: Transcript, probe: Transcript, turns: int) -> bool:
    """Whether the first turns of a transcript are those of a probe, token by token."""
    return len(transcript.turns) >= turns and all(
        mine.sampled_ids == its.sampled_ids for mine, its in zip(transcript.turns[:turns], probe.turns, strict=False))
