"""GRPO on whole trajectories: GRPO-OR (terminal rewards) and GRPO-MR (delayed rewards). Eq. 4.

What is compared: the returns of the G trajectories of one question. Every token of a trajectory gets
the same advantage, so a group of trajectories cannot tell a good turn from a bad one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turncredit.credit.base import GroupEstimator, TrajectoryRewards, on_all_turns
from turncredit.credit.placement import trajectory_return
from turncredit.types import Group

Std = Literal["population", "sample"]

EQUAL = 1e-9  # a range of rewards that is rounding: sums of reward components differ by less
EPSILON = 1e-6  # beside the standard deviation, as in verl; the authors' v1 code has 1e-4


def group_zscore(reward_G: ArrayLike, std: Std = "population") -> NDArray[np.float64]:
    """Eq. 4: the rewards of one group, standardised, (r - mean) / (std + 1e-6).

    Args:
        reward_G: rewards of the G members.
        std: divide squares by G (``population``) or by G - 1 (``sample``, as the authors' v1 code).

    Returns:
        ``advantage_G``. Exactly 0 for a group of one and for a group whose rewards are equal up to rounding
        (a range of at most 1e-9): there is nothing to compare.

    Raises:
        ValueError: unknown std.

    >>> group_zscore([1.0, 0.0, 0.0, 1.0]).round(3).tolist()
    [1.0, -1.0, -1.0, 1.0]
    >>> group_zscore([0.7, 0.7]).tolist(), group_zscore([5.0]).tolist()
    ([0.0, 0.0], [0.0])
    """
    if std not in ("population", "sample"):
        raise ValueError(f"unknown standard deviation {std!r}: use population or sample")
    rewards = np.asarray(reward_G, dtype=np.float64)
    if rewards.size < 2 or np.ptp(rewards) <= EQUAL:
        return np.zeros(rewards.size)
    return (rewards - rewards.mean()) / (rewards.std(ddof=int(std == "sample")) + EPSILON)


class GRPO(GroupEstimator):
    """The z-score of each trajectory's return, for all of its turns (Eq. 4)."""

    def advantages(self, group: Group, rewards: Sequence[TrajectoryRewards]) -> list[list[float]]:
        """See ``GroupEstimator.advantages``."""
        return_L = [trajectory_return(self.placement, r.intermediate_K, r.outcome, self.training.gamma)
                    for r in rewards]
        return on_all_turns(group_zscore(return_L, self.training.group_std), group)
