"""GRPO on whole trajectories: GRPO-OR (terminal rewards) and GRPO-MR (delayed rewards). Eq. 4.

What is compared: the returns of the G trajectories of one question. Every token of a trajectory gets
the same advantage, so a group of trajectories cannot tell a good turn from a bad one.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turncredit.config.training import SingleMember, Std
from turncredit.credit.base import GroupEstimator, TrajectoryRewards, on_all_turns
from turncredit.credit.placement import trajectory_return
from turncredit.types import Group

EQUAL = 1e-9  # a range of rewards that is rounding: sums of reward components differ by less
EPSILON = 1e-6  # beside the standard deviation, as in verl; the authors' v1 code has 1e-4


def group_zscore(reward_G: ArrayLike, std: Std = "population", single_member: SingleMember = "zero",
                 ) -> NDArray[np.float64]:
    """Eq. 4: the rewards of one group, standardised, (r - mean) / (std + 1e-6).

    Args:
        reward_G: rewards of the G members.
        std: divide squares by G (``population``) or by G - 1 (``sample``, as the authors' code).
        single_member: the advantage in a group of one: 0 (``zero``), or its reward with mean 0 and std 1
            (``raw``, as the authors' code).

    Returns:
        ``advantage_G``. Exactly 0 for a group of several whose rewards are equal up to rounding (a range of
        at most 1e-9): there is nothing to compare.

    Raises:
        ValueError: unknown std or single_member.

    >>> group_zscore([1.0, 0.0, 0.0, 1.0]).round(3).tolist()
    [1.0, -1.0, -1.0, 1.0]
    >>> group_zscore([0.7, 0.7]).tolist(), group_zscore([5.0]).tolist()
    ([0.0, 0.0], [0.0])
    >>> group_zscore([5.0], single_member="raw").round(3).tolist()
    [5.0]
    """
    if std not in ("population", "sample"):
        raise ValueError(f"unknown standard deviation {std!r}: use population or sample")
    if single_member not in ("zero", "raw"):
        raise ValueError(f"unknown advantage of a single member {single_member!r}: use zero or raw")
    rewards = np.asarray(reward_G, dtype=np.float64)
    if rewards.size == 1 and single_member == "raw":
        return rewards / (1 + EPSILON)
    if rewards.size < 2 or np.ptp(rewards) <= EQUAL:
        return np.zeros(rewards.size)
    return (rewards - rewards.mean()) / (rewards.std(ddof=int(std == "sample")) + EPSILON)


class GRPO(GroupEstimator):
    """The z-score of each trajectory's return, for all of its turns (Eq. 4)."""

    def advantages(self, group: Group, rewards: Sequence[TrajectoryRewards]) -> list[list[float]]:
        """See ``GroupEstimator.advantages``."""
        return_L = [trajectory_return(self.placement, r.intermediate_K, r.outcome, self.training.gamma)
                    for r in rewards]
        return on_all_turns(group_zscore(return_L, self.training.group_std, self.training.single_member), group)
