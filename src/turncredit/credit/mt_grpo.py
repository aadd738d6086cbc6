"""MT-GRPO: turns compared with the other turns from the same state. Eq. 5, Eq. 6, Eq. 10, Eq. 11, Eq. 12.

What is compared: intermediate turns that were sampled from the same state, by their own R^I; and all
trajectories of the question, by R^O. Siblings exist only where the rollout branched: at the branching
turns of a tree, at the first turn of chains. A turn that ends its episode is a final turn: it has A^O
alone, and it is not compared with its siblings.
"""

from __future__ import annotations

from collections.abc import Sequence

from turncredit.config.training import SingleMember, Std
from turncredit.credit.base import GroupEstimator, TrajectoryRewards
from turncredit.credit.grpo import group_zscore
from turncredit.types import Group


def intermediate_advantages(
    intermediate_L_K: Sequence[Sequence[float]], node_L_K: Sequence[Sequence[int]], std: Std = "population"
) -> dict[int, float]:
    """Eq. 10: A^I of each intermediate turn, the z-score of its R^I among its siblings.

    Siblings are the *intermediate* turns sampled from the same state. The last turn of a leaf is a final
    turn: it is not compared, whatever its R^I.

    Args:
        intermediate_L_K: ragged, R^I of each leaf's turns; equal where leaves share a turn.
        node_L_K: ragged, the tree node of each leaf's turns (``types.Group.node_L_K``).
        std: see ``group_zscore``.

    Returns:
        node -> A^I, for intermediate turns only; 0 for a turn without siblings, whatever
        ``training.single_member`` says of whole groups.

    Raises:
        ValueError: leaves that share a turn disagree on its reward.

    >>> intermediate_advantages([[0.3, 0.0], [0.0, 0.0], [0.0]], [[0, 1], [2, 3], [4]])  # turn 4 answers at once
    {0: 0.999..., 2: -0.999...}
    """
    reward_of: dict[int, float] = {}
    siblings: dict[int, list[int]] = {}  # state (the turn before, or -1) -> intermediate turns sampled from it
    for intermediate_K, node_K in zip(intermediate_L_K, node_L_K, strict=True):
        turns = [*zip((-1, *node_K[:-1]), node_K, intermediate_K, strict=True)]
        for state, node, reward in turns[:-1]:
            if node not in reward_of:
                siblings.setdefault(state, []).append(node)
            if reward_of.setdefault(node, reward) != reward:
                raise ValueError(f"turn {node} has two intermediate rewards, {reward_of[node]} and {reward}")
    advantage_of: dict[int, float] = {}
    for nodes in siblings.values():
        advantage_G = group_zscore([reward_of[node] for node in nodes], std)
        advantage_of |= dict(zip(nodes, advantage_G.tolist(), strict=True))
    return advantage_of


def outcome_advantages(outcome_L: Sequence[float], std: Std = "population", single_member: SingleMember = "zero",
                       ) -> list[float]:
    """Eq. 11: A^O of each leaf, the z-score of its R^O among all leaves of the question (see ``group_zscore``)."""
    advantages: list[float] = group_zscore(outcome_L, std, single_member).tolist()
    return advantages


def turn_advantages(
    intermediate_advantage_K: Sequence[float], outcome_advantage: float, alpha: float
) -> list[float]:
    """Eq. 12: the advantage of each turn of one trajectory; at K = 2 it is Eq. 5 and Eq. 6.

    A_k = sum_{l=k}^{K-1} alpha^(l-k) A^I_l + alpha^(K-k) A^O, as the recursion A_k = A^I_k + alpha A_{k+1}
    from A_K = A^O.

    Args:
        intermediate_advantage_K: A^I of the K - 1 intermediate turns.
        outcome_advantage: A^O of the trajectory.
        alpha: weight of what comes later, in [0, 1].

    Returns:
        A_k of the K turns.

    >>> turn_advantages([1.0], -1.0, alpha=0.5)
    [0.5, -1.0]
    """
    advantages = [outcome_advantage]
    for intermediate in reversed(intermediate_advantage_K):
        advantages.insert(0, intermediate + alpha * advantages[0])
    return advantages


class MTGRPO(GroupEstimator):
    """The advantage of each turn from its siblings and from the outcome (Eq. 10, Eq. 11, Eq. 12)."""

    def advantages(self, group: Group, rewards: Sequence[TrajectoryRewards]) -> list[list[float]]:
        """See ``GroupEstimator.advantages``."""
        settings = self.training
        own = intermediate_advantages([r.intermediate_K for r in rewards], group.node_L_K, settings.group_std)
        outcome_L = outcome_advantages([r.outcome for r in rewards], settings.group_std, settings.single_member)
        return [turn_advantages([own[node] for node in node_K[:-1]], outcome, settings.alpha)
                for node_K, outcome in zip(group.node_L_K, outcome_L, strict=True)]
