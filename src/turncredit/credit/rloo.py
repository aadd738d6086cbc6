"""RLOO: each trajectory's return minus the mean return of the others (Ahmadian et al., arXiv 2402.14740).

What is compared: the returns of the G trajectories of one question, as in GRPO, but with a baseline
that leaves the trajectory itself out and not divided by the standard deviation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from turncredit.credit.base import GroupEstimator, TrajectoryRewards, on_all_turns
from turncredit.credit.grpo import EQUAL
from turncredit.credit.placement import trajectory_return
from turncredit.types import Group


def leave_one_out(return_G: ArrayLike) -> NDArray[np.float64]:
    """r_i - mean of all r_j with j != i, which is G / (G - 1) (r_i - mean).

    Exactly 0 for a group of one and for returns that are equal up to rounding, as in ``grpo.group_zscore``.

    >>> leave_one_out([1.0, 0.0, 0.5]).tolist()
    [0.75, -0.75, 0.0]
    """
    returns = np.asarray(return_G, dtype=np.float64)
    if returns.size < 2 or np.ptp(returns) <= EQUAL:
        return np.zeros(returns.size)
    return returns - (returns.sum() - returns) / (returns.size - 1)


class RLOO(GroupEstimator):
    """The leave-one-out advantage of each trajectory, for all of its turns."""

    def advantages(self, group: Group, rewards: Sequence[TrajectoryRewards]) -> list[list[float]]:
        """See ``GroupEstimator.advantages``."""
        return_L = [trajectory_return(self.placement, r.intermediate_K, r.outcome, self.training.gamma)
                    for r in rewards]
        return on_all_turns(leave_one_out(return_L), group)
