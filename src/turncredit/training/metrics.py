"""Makes the metrics row of a training step and writes metrics.csv. Means weight items equally, leaves by share."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from turncredit.credit.base import TokenCredit
from turncredit.evaluation import Episode
from turncredit.files import atomic
from turncredit.tasks.plugin import Metric, TaskPlugin
from turncredit.types import Group

MetricsRow = dict[str, float | int | str | None]


def fixed_columns(task: TaskPlugin) -> tuple[str, ...]:
    """Return the columns that every metrics.csv of a task has, in order."""
    return (
        "step", "wall_s", "questions", "trajectories", "tokens_sampled", "tokens_trained", "tokens_env", "turns_mean",
        *(_column(metric) for metric in task.metrics if metric.in_training and metric.kind != "rate"),
        "reward_total", "reward_outcome", "reward_intermediate", *training_rates(task), "policy_loss", "value_loss",
        "kl", "entropy", "clip_fraction", "grad_norm", "critic_grad_norm", "zero_std_groups", "sampler_trainer_kl",
        *(f"stop_{reason}" for reason in task.stop_reasons), "collapse", "seconds_rollout", "seconds_scoring",
        "seconds_update")


def training_rates(task: TaskPlugin) -> list[str]:
    """Return the names of a task's rates that metrics.csv has."""
    return [metric.name for metric in task.metrics if metric.in_training and metric.kind == "rate"]


def success_column(task: TaskPlugin) -> str:
    """Return the column of a task's measure of success, its first metric; absent if it is not measured in training."""
    return _column(task.metrics[0])


def _column(metric: Metric) -> str:
    return metric.name if metric.kind == "rate" else f"{metric.name}_mean"


def episode_means(episodes: Sequence[Episode], task: TaskPlugin) -> dict[str, float]:
    """Return the means of all per-episode measurements, weighted by the episodes' shares."""
    total = sum(episode.share for episode in episodes)
    sums: dict[str, float] = {}
    for episode in episodes:
        rewards, transcript = episode.rewards, episode.transcript
        intermediate = sum(rewards.intermediate_K)
        measured = {
            "turns_mean": len(transcript.turns),
            **{_column(metric): rewards.metrics[metric.name] for metric in task.metrics if metric.in_training},
            "reward_total": intermediate + rewards.outcome, "reward_outcome": rewards.outcome,
            "reward_intermediate": intermediate,
            **{f"stop_{reason}": float(transcript.stop is reason) for reason in task.stop_reasons},
            **{f"component_{name}": rewards.components[name] for name in task.components}}
        for name, value in measured.items():
            sums[name] = sums.get(name, 0.0) + episode.share * value
    return {name: round(value / total, 12) for name, value in sums.items()}  # no rate of 1.0000000000000002


def training_columns(groups: Sequence[Group], episodes: Sequence[Sequence[Episode]], credit: TokenCredit,
                     datasets: Sequence[str], task: TaskPlugin) -> MetricsRow:
    """Return the columns of a step's rollouts; ``episodes`` is indexed [group][leaf]."""
    flat = [episode for leaves in episodes for episode in leaves]
    row: MetricsRow = {
        "questions": len(groups), "trajectories": len(flat),
        "tokens_sampled": sum(group.sampled_count for group in groups), "tokens_trained": len(credit.weight_N),
        "tokens_env": sum(len(turn.observation_ids) for group in groups for turn in group.turns),
        "zero_std_groups": credit.zero_std_groups, **episode_means(flat, task)}
    return row | _by_dataset(flat, datasets, task)


def validation_columns(episodes: Sequence[Episode], datasets: Sequence[str], task: TaskPlugin) -> MetricsRow:
    """Return the columns of a validation: rates and turns by dataset, and means of the reward components."""
    row = _by_dataset(episodes, datasets, task)
    row |= {name: value for name, value in episode_means(episodes, task).items() if name.startswith("component_")}
    return {f"validation_{name}": value for name, value in row.items()}


def _by_dataset(episodes: Sequence[Episode], datasets: Sequence[str], task: TaskPlugin) -> MetricsRow:
    row: MetricsRow = {}
    for dataset in datasets:
        members = [episode for episode in episodes if episode.item.dataset == dataset]
        means = episode_means(members, task) if members else {}
        row |= {f"{dataset}_{name}": means.get(name) for name in (*training_rates(task), "turns_mean")}
    return row


def write_metrics(rows: Sequence[Mapping[str, object]], path: Path, task: TaskPlugin) -> None:
    """Write all rows to a CSV file, atomically; missing values are empty cells.

    Raises:
        DataError: the file cannot be written.
    """
    fixed = fixed_columns(task)
    names = dict.fromkeys(name for row in rows for name in row if name not in fixed)
    ranked = sorted(names, key=lambda name: (name.startswith("validation_"), not name.startswith("component_")))
    with atomic(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*fixed, *ranked], restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: "" if value is None else value for name, value in row.items()} for row in rows)
