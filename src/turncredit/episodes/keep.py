"""Chooses the few episodes of a run that are kept whole, and records them. Seeded: a rerun keeps the same ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass

from turncredit.config.algorithm import Content
from turncredit.config.load import RunConfig
from turncredit.episodes.records import EpisodeRecord, GroupRecord, RewardRecord, Source, record_turn
from turncredit.evaluation import Episode
from turncredit.policy.tokenizer import Codec
from turncredit.seeding import derive_seed
from turncredit.tasks.plugin import RewardFunction, TaskPlugin
from turncredit.tasks.registry import make_reward, plugin_of
from turncredit.types import Group

EXAMPLES = 2  # evaluation episodes of each label
LABELS = ("right", "wrong", "malformed")


def kept_steps(steps: int) -> frozenset[int]:
    """Training steps, from 1, whose rollout leaves a group: the first, the middle and the last.

    >>> sorted(kept_steps(40)), sorted(kept_steps(1))
    ([1, 20, 40], [1])
    """
    return frozenset({1, (steps + 1) // 2, steps})


def label_of(episode: Episode, plugin: TaskPlugin) -> str:
    """``malformed`` where the task measures format and it is wrong; else ``right`` or ``wrong``.

    Right: the task's first metric, its measure of success, is 1.
    """
    metrics = episode.rewards.metrics
    if metrics.get("format_correct", 1.0) < 1.0:
        return "malformed"
    return "right" if metrics[plugin.metrics[0].name] == 1.0 else "wrong"


class EpisodeRecorder:
    """Records episodes of one run with their rewards under every content of the task.

    Args:
        config: the run.
        codec: the policy's tokenizer.
    """

    def __init__(self, config: RunConfig, codec: Codec) -> None:
        self._config, self._codec = config, codec
        self._plugin = plugin_of(config.task.name)
        self._reward_of: Mapping[Content, RewardFunction] = {
            content: make_reward(config.task, content, config.rewards) for content in self._plugin.contents}

    def training(self, step: int, groups: Sequence[Group], episodes: Sequence[Sequence[Episode]]) -> list[GroupRecord]:
        """One group of a training step; among those whose rewards differ, if there are any.

        Args:
            step: from 1.
            groups: all groups of the step.
            episodes: their scored leaves, as [group][leaf].
        """
        order = sorted(range(len(groups)), key=lambda g: self._rank(episodes[g][0], step))
        differ = [g for g in order if len({(e.rewards.intermediate_K, e.rewards.outcome) for e in episodes[g]}) > 1]
        chosen = (differ or order)[0]
        return [self._record("training", step, "group", groups[chosen], episodes[chosen])]

    def evaluation(self, episodes: Sequence[Episode]) -> list[GroupRecord]:
        """Up to ``EXAMPLES`` single episodes of each label."""
        records = []
        ranked = sorted(episodes, key=lambda episode: self._rank(episode, 0))
        for label in LABELS:
            examples = [episode for episode in ranked if label_of(episode, self._plugin) == label][:EXAMPLES]
            records += [self._record("evaluation", None, label, Group.of_chains([e.transcript]), [e]) for e in examples]
        return records

    def merged(self, records: Sequence[GroupRecord]) -> list[GroupRecord]:
        """What ``evaluation`` keeps of all episodes, given what it keeps of each part of them."""
        ranked = sorted(records, key=lambda record: self._rank_of(record.dataset, record.item_id, 0))
        return [record for label in LABELS for record in
                [record for record in ranked if record.label == label][:EXAMPLES]]

    def _rank(self, episode: Episode, step: int) -> int:
        return self._rank_of(episode.item.dataset, episode.item.id, step)

    def _rank_of(self, dataset: str, item_id: str, step: int) -> int:
        return derive_seed(self._config.random_seed, "kept episodes", step, dataset, item_id)

    def _record(self, source: Source, step: int | None, label: str, group: Group,
                episodes: Sequence[Episode]) -> GroupRecord:
        item = episodes[0].item
        prompt = group.transcripts[0].prompt_ids
        run = {"experiment": self._config.experiment, "arm": self._config.arm, "base": self._config.base,
               "seed": self._config.seed}
        return GroupRecord(
            run, source, step, label, item.dataset, item.id,
            asdict(item) if is_dataclass(item) else {},
            self._codec.decode(prompt), len(prompt),
            tuple(self._leaf(nodes, episode) for nodes, episode in zip(group.node_L_K, episodes, strict=True)))

    def _leaf(self, nodes: tuple[int, ...], episode: Episode) -> EpisodeRecord:
        rewards = {}
        for content, reward in self._reward_of.items():
            found = reward(episode.transcript, episode.item)
            rewards[str(content)] = RewardRecord(found.intermediate_K, found.outcome)
        return EpisodeRecord(
            nodes, tuple(record_turn(turn, self._codec.decode) for turn in episode.transcript.turns),
            str(episode.transcript.stop), rewards, dict(episode.rewards.metrics), dict(episode.rewards.components))
