"""Makes the metrics row of a training step and writes metrics.csv. Means weight questions equally, leaves by share."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from turncredit.credit.base import TokenCredit
from turncredit.evaluation import Episode
from turncredit.files import atomic
from turncredit.types import Group, StopReason

MetricsRow = dict[str, float | int | str | None]

FIXED_COLUMNS = (
    "step", "wall_s", "questions", "trajectories", "tokens_sampled", "tokens_trained", "tokens_env", "turns_mean",
    "searches_mean", "reward_total", "reward_outcome", "reward_intermediate", "answer_correct", "format_correct",
    "retrieval_correct", "policy_loss", "value_loss", "kl", "entropy", "clip_fraction", "grad_norm",
    "critic_grad_norm", "zero_std_groups", "sampler_trainer_kl", "stop_answered", "stop_turn_limit",
    "stop_context_overflow", "stop_invalid_limit", "collapse", "seconds_rollout", "seconds_scoring", "seconds_update")

_RATES = ("answer_correct", "format_correct", "retrieval_correct", "turns_mean")
_STOPS = (StopReason.ANSWERED, StopReason.TURN_LIMIT, StopReason.CONTEXT_OVERFLOW, StopReason.INVALID_LIMIT)


def episode_means(episodes: Sequence[Episode]) -> dict[str, float]:
    """Return the means of all per-episode measurements, weighted by the episodes' shares."""
    total = sum(episode.share for episode in episodes)
    sums: dict[str, float] = {}
    for episode in episodes:
        rewards, transcript = episode.rewards, episode.transcript
        intermediate = sum(rewards.intermediate_K)
        measured = {
            "turns_mean": len(transcript.turns), "searches_mean": rewards.searches,
            "reward_total": intermediate + rewards.outcome, "reward_outcome": rewards.outcome,
            "reward_intermediate": intermediate, "answer_correct": rewards.answer_correct,
            "format_correct": rewards.format_correct, "retrieval_correct": rewards.retrieval_correct,
            **{f"stop_{reason}": float(transcript.stop is reason) for reason in _STOPS},
            **{f"component_{name}": value for name, value in rewards.components.items()}}
        for name, value in measured.items():
            sums[name] = sums.get(name, 0.0) + episode.share * value
    return {name: round(value / total, 12) for name, value in sums.items()}  # no rate of 1.0000000000000002


def training_columns(groups: Sequence[Group], episodes: Sequence[Sequence[Episode]], credit: TokenCredit,
                     datasets: Sequence[str]) -> MetricsRow:
    """Return the columns of a step's rollouts; ``episodes`` is indexed [group][leaf]."""
    flat = [episode for leaves in episodes for episode in leaves]
    row: MetricsRow = {
        "questions": len(groups), "trajectories": len(flat),
        "tokens_sampled": sum(group.sampled_count for group in groups), "tokens_trained": len(credit.weight_N),
        "tokens_env": sum(len(turn.observation_ids) for group in groups for turn in group.turns),
        "zero_std_groups": credit.zero_std_groups, **episode_means(flat)}
    return row | _by_dataset(flat, datasets)


def validation_columns(episodes: Sequence[Episode], datasets: Sequence[str]) -> MetricsRow:
    """Return the columns of a validation: rates by dataset, and means of the reward components."""
    found = _by_dataset(episodes, datasets)
    found |= {name: value for name, value in episode_means(episodes).items() if name.startswith("component_")}
    return {f"validation_{name}": value for name, value in found.items()}


def _by_dataset(episodes: Sequence[Episode], datasets: Sequence[str]) -> MetricsRow:
    row: MetricsRow = {}
    for dataset in datasets:
        mine = [episode for episode in episodes if episode.question.dataset == dataset]
        means = episode_means(mine) if mine else {}
        row |= {f"{dataset}_{name}": means.get(name) for name in _RATES}
    return row


def write_metrics(rows: Sequence[Mapping[str, object]], path: Path) -> None:
    """Write all rows to a CSV file, atomically; missing values are empty cells.

    Raises:
        DataError: the file cannot be written.
    """
    names = dict.fromkeys(name for row in rows for name in row if name not in FIXED_COLUMNS)
    ranked = sorted(names, key=lambda name: (name.startswith("validation_"), not name.startswith("component_")))
    with atomic(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*FIXED_COLUMNS, *ranked], restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: "" if value is None else value for name, value in row.items()} for row in rows)
