"""Group baselines: GRPO on trajectories (Eq. 4) and MT-GRPO on turns (Eq. 5-6, 10-12).

Pure functions on plain arrays. A group is always one question (or one state of it): who is compared
with whom is decided by ``transcript.Group``, never here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

EPSILON = 1e-6  # beside the standard deviation, as in verl; the authors' v1 code has 1e-4


def group_zscore(reward_G: ArrayLike, std: Literal["population", "sample"] = "population") -> NDArray[np.float64]:
    """Standardise the rewards of one group: (r - mean) / (std + 1e-6) (Eq. 4).

    Args:
        reward_G: rewards of the G members.
        std: divide squares by G (``population``) or by G - 1 (``sample``, as the authors' v1 code).

    Returns:
        ``advantage_G``. Exactly 0 for a group of one and for a group whose rewards are all equal:
        such a group tells nothing.

    >>> group_zscore([1.0, 0.0, 0.0, 1.0]).round(3).tolist()
    [1.0, -1.0, -1.0, 1.0]
    >>> group_zscore([0.7, 0.7]).tolist(), group_zscore([5.0]).tolist()
    ([0.0, 0.0], [0.0])
    """
    rewards = np.asarray(reward_G, dtype=np.float64)
    if rewards.size < 2 or np.ptp(rewards) <= 1e-9:
        return np.zeros(rewards.size)
    return (rewards - rewards.mean()) / (rewards.std(ddof=int(std == "sample")) + EPSILON)


def turn_advantages(
    intermediate_L_K: Sequence[Sequence[float]],
    outcome_L: Sequence[float],
    node_L_K: Sequence[Sequence[int]],
    *,
    alpha: float = 1.0,
    std: Literal["population", "sample"] = "population",
) -> list[list[float]]:
    """MT-GRPO: the advantage of every turn of every leaf of one question's tree (Eq. 10-12).

    Actions sampled from the same state are compared by their own rewards R^I, which gives A^I; all
    leaves of the question are compared by R^O, which gives A^O. Eq. 12,
    A_k = sum_{l=k}^{K-1} alpha^(l-k) A^I_l + alpha^(K-k) A^O, is the recursion
    A_k = A^I_k + alpha A_{k+1} that starts with A_K = A^O: the last turn is not branched, so it has
    no one to be compared with and its A^I is 0. At K = 2 this is Eq. 5-6.

    A branch that ends early, at a turn that was branched, has an A^I there like its siblings, and
    none for the turns that it lacks.

    Args:
        intermediate_L_K: ragged, R^I of each leaf's turns; equal where leaves share a turn.
        outcome_L: R^O of each leaf.
        node_L_K: ragged, the number of the sampled turn (``transcript.Group.node_L_K``).
        alpha: weight of what comes later, in [0, 1].
        std: see ``group_zscore``.

    Returns:
        ragged ``advantage_L_K``.

    >>> turn_advantages([[1.0, 0.0], [0.0, 0.0]], [0.0, 1.0], [[0, 1], [2, 3]], alpha=0.5)[0]
    [0.499..., -0.999...]
    """
    reward_of: dict[int, float] = {}
    children_of: dict[int, list[int]] = {}  # state (the turn before, or -1) -> turns sampled from it
    for intermediate_K, node_K in zip(intermediate_L_K, node_L_K, strict=True):
        for state, node, reward in zip((-1, *node_K), node_K, intermediate_K, strict=False):
            if node not in reward_of:
                children_of.setdefault(state, []).append(node)
            if reward_of.setdefault(node, reward) != reward:
                raise ValueError(f"turn {node} has two intermediate rewards, {reward_of[node]} and {reward}")

    intermediate_advantage: dict[int, float] = {}
    for children in children_of.values():
        advantage_G = group_zscore([reward_of[node] for node in children], std)
        intermediate_advantage |= dict(zip(children, advantage_G.tolist(), strict=True))

    advantage_L_K = []
    for outcome_advantage, node_K in zip(group_zscore(outcome_L, std).tolist(), node_L_K, strict=True):
        later, backwards = outcome_advantage, []
        for k, node in enumerate(reversed(node_K)):
            later = intermediate_advantage[node] + (later if k == 0 else alpha * later)
            backwards.append(later)
        advantage_L_K.append(backwards[::-1])
    return advantage_L_K
