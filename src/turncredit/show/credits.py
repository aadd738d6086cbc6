"""The credit that each turn of a group gets under each algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turncredit.config.algorithm import Algorithm
from turncredit.config.training import TrainingConfig
from turncredit.credit.base import TrajectoryRewards, make_estimator
from turncredit.types import Group

Credits = list[list[float]]  # ragged, [leaf][turn]


def all_credits(algorithms: Mapping[str, Algorithm], training: TrainingConfig, group: Group,
                rewards_of: Mapping[str, Sequence[TrajectoryRewards]]) -> dict[str, Credits | None]:
    """``Estimator.turn_credits`` of every algorithm; None where it cannot use these episodes.

    Args:
        algorithms: by name; their rollout plays no part, since the episodes are given.
        training: the run's settings.
        group: the episodes of one question.
        rewards_of: content -> rewards of each leaf, for the contents that the task has.
    """
    return {name: make_estimator(algorithm, training).turn_credits(group, rewards_of[algorithm.content])
            if algorithm.content in rewards_of else None for name, algorithm in algorithms.items()}
