"""Plays and scores episodes: the final evaluation, and the validation during training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from turncredit.files import one_line
from turncredit.policy.engines.base import Engine, StreamingEngine
from turncredit.policy.tokenizer import Codec
from turncredit.rollout import asynchronous
from turncredit.rollout.batched import rollout
from turncredit.rollout.state import SeedOf
from turncredit.seeding import derive_seed
from turncredit.tasks.env import Service, Task
from turncredit.tasks.plugin import RewardFunction, Rewards, TaskPlugin
from turncredit.types import Group, Item, Transcript

Decoding = Literal["greedy", "sampled"]


@dataclass(frozen=True, slots=True)
class Episode:
    """A scored leaf; ``share`` is its probability weight in its item's group, where shares sum to 1."""

    item: Item
    transcript: Transcript
    rewards: Rewards
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class EpisodeRunner:
    """Plays and scores the episodes of one task.

    Attributes:
        plugin: the task's plug-in, which declares what the rewards hold.
        task: makes the environments.
        reward: judges episodes.
        engine: samples the turns.
        services: answer the task's requests, by name.
        codec: the policy's tokenizer.
    """

    plugin: TaskPlugin
    task: Task
    reward: RewardFunction
    engine: Engine
    services: Mapping[str, Service]
    codec: Codec

    def play(self, items: Sequence[Item], branching: Sequence[int], *,
             seed_of: SeedOf | None, temperature: float) -> list[Group]:
        """One group an item, in order; ``seed_of`` None is greedy (see ``rollout.batched.rollout``).

        An engine whose turns end one by one plays asynchronously.
        """
        if isinstance(self.engine, StreamingEngine):
            return asynchronous.rollout(items, self.task, self.engine, self.services, self.codec,
                                        branching=branching, seed_of=seed_of, temperature=temperature)
        return rollout(items, self.task, self.engine, self.services, self.codec, branching=branching,
                       seed_of=seed_of, temperature=temperature)

    def score(self, items: Sequence[Item], groups: Sequence[Group],
              branching: Sequence[int]) -> list[list[Episode]]:
        """The episodes of each group, as [group][leaf].

        Raises:
            TaskError: the reward function broke its protocol (see ``TaskPlugin.check``).
        """
        return [
            [Episode(item, leaf, self._judge(leaf, item), share)
             for leaf, share in zip(group.transcripts, leaf_shares(group, branching), strict=True)]
            for item, group in zip(items, groups, strict=True)]

    def chains(self, items: Sequence[Item], *, seed_of: SeedOf | None = None,
               temperature: float = 1.0) -> list[Episode]:
        """One scored episode an item; greedy by default."""
        branching = (1,) * self.task.config.max_turns
        groups = self.play(items, branching, seed_of=seed_of, temperature=temperature)
        return [episode for episodes in self.score(items, groups, branching) for episode in episodes]

    def _judge(self, transcript: Transcript, item: Item) -> Rewards:
        rewards = self.reward(transcript, item)
        self.plugin.check(rewards, transcript)
        return rewards


def leaf_shares(group: Group, branching: Sequence[int]) -> list[float]:
    """Each leaf's probability weight: a turn sampled b times from a state divides its weight by b.

    A plain mean over a tree's leaves would count episodes that go on more often than those that end
    early; weighted by these shares it estimates the policy's own mean. Sums to 1.
    """
    share_L = []
    for leaf in group.transcripts:
        share = 1.0
        for b in branching[:len(leaf.turns)]:
            share /= b
        share_L.append(share)
    total = sum(share_L)
    return [share / total for share in share_L]


def evaluate(runner: EpisodeRunner, items: Sequence[Item], decoding: Decoding = "greedy",
             seed: int = 0) -> list[Episode]:
    """Play every item once, in their order.

    Args:
        runner: the policy's engine, the task and its rewards.
        items: the test items, the same for all arms.
        decoding: ``greedy``, or ``sampled`` at temperature 1.
        seed: of sampled decoding; a sample depends on this seed and its item only.
    """
    seed_of = None if decoding == "greedy" else (lambda item, path: derive_seed("evaluation", seed, item, *path))
    return runner.chains(items, seed_of=seed_of, temperature=1.0)


def evaluation_rows(plugin: TaskPlugin, episodes: Sequence[Episode], decoding: Decoding) -> list[dict[str, Any]]:
    """One row an episode of an evaluation.

    Returns:
        cells by column of evaluation.csv: dataset, question_id, the task's columns, its metrics that are rates, turns,
        its other metrics, stop_reason, decoding, component_*.
    """
    rates = [metric.name for metric in plugin.metrics if metric.kind == "rate"]
    others = [metric.name for metric in plugin.metrics if metric.kind != "rate"]
    rows = []
    for episode in episodes:
        rewards = episode.rewards
        rows.append({
            "dataset": episode.item.dataset, "question_id": episode.item.id,
            **{name: one_line(value) if isinstance(value := rewards.columns[name], str) else value
               for name in plugin.columns},
            **{name: rewards.metrics[name] for name in rates}, "turns": len(episode.transcript.turns),
            **{name: rewards.metrics[name] for name in others},
            "stop_reason": str(episode.transcript.stop), "decoding": decoding,
            **{f"component_{name}": rewards.components[name] for name in plugin.components}})
    return rows
