"""The two estimators of the grid, as the trainer sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from turncredit.config.algorithm import Algorithm, Placement
from turncredit.config.training import TrainingConfig
from turncredit.credit.gae import gae, whiten
from turncredit.credit.group import group_zscore, turn_advantages
from turncredit.credit.placement import discounted_return, place_on_tokens, place_on_turns
from turncredit.credit.rows import Row
from turncredit.types import Group


class TrajectoryRewards(Protocol):
    """What credit needs to know of a trajectory's rewards."""

    @property
    def intermediate_K(self) -> tuple[float, ...]:
        """R^I of each turn."""

    @property
    def outcome(self) -> float:
        """R^O of the trajectory."""


@dataclass(frozen=True, slots=True)
class TokenCredit:
    """Credit of every loss token of a batch, in the order of rows and tokens; float32, shape (N,).

    Attributes:
        positive_N, negative_N: weighted advantages, summed over the leaves that share the token,
            positive and negative ones apart, because clipping treats them differently.
        weight_N: the token's share of the objective; sums to 1.
        advantage_N: weighted mean of the leaves' advantages (for logs).
        return_N: targets of the critic, or None.
        zero_std_groups: share of groups whose rewards are all equal (they teach nothing), or None.
    """

    positive_N: Tensor
    negative_N: Tensor
    weight_N: Tensor
    advantage_N: Tensor
    return_N: Tensor | None = None
    zero_std_groups: float | None = None


class Estimator(Protocol):
    """How rewards become credit; all that the trainer knows of an algorithm."""

    @property
    def uses_critic(self) -> bool:
        """Whether values are needed."""

    @property
    def kl_in_reward(self) -> bool:
        """Whether the KL penalty is part of the token rewards (else it is a term of the loss)."""

    def branching(self, max_turns: int) -> tuple[int, ...]:
        """How many actions are sampled from each state, for every turn."""

    def credit(
        self,
        groups: Sequence[Group],
        rewards: Sequence[Sequence[TrajectoryRewards]],
        rows: Sequence[Row],
        *,
        old_logprob_N: Tensor,
        reference_logprob_N: Tensor | None = None,
        value_N: Tensor | None = None,
    ) -> TokenCredit:
        """Credit of the loss tokens of ``rows`` (= ``rows_of(groups)``); rewards as [group][leaf]."""


def make_estimator(algorithm: Algorithm, training: TrainingConfig) -> Estimator:
    """The estimator of a point of the grid."""
    kind = GroupEstimator if algorithm.estimator == "group" else CriticEstimator
    return kind(algorithm.placement, training)


@dataclass(frozen=True, slots=True)
class GroupEstimator:
    """GRPO-OR (terminal), GRPO-MR (delayed) and MT-GRPO (per_turn): groups instead of a critic."""

    placement: Placement
    training: TrainingConfig
    uses_critic: bool = False
    kl_in_reward: bool = False

    def branching(self, max_turns: int) -> tuple[int, ...]:
        """Chains of G for trajectory groups; a tree, not branched at the last turn, for per_turn (App. D).

        At two turns the tree is G chains, so it has as many leaves as the other arms.
        """
        if self.placement != "per_turn":
            return (self.training.group_size, *[1] * (max_turns - 1))
        if max_turns <= 2:
            return (self.training.group_size, 1)[:max_turns]
        return (*[self.training.tree_branching] * (max_turns - 1), 1)

    def advantages(self, group: Group, rewards: Sequence[TrajectoryRewards]) -> list[list[float]]:
        """``advantage_L_K`` of one group: Eq. 4 on trajectories, or Eq. 10-12 on turns."""
        settings = self.training
        if self.placement == "per_turn":
            return turn_advantages(
                [r.intermediate_K for r in rewards], [r.outcome for r in rewards], group.node_L_K,
                alpha=settings.alpha, std=settings.group_std)
        if self.placement == "terminal":
            return_L = [r.outcome for r in rewards]
        else:
            return_L = [discounted_return(place_on_turns("per_turn", r.intermediate_K, r.outcome), settings.gamma)
                        for r in rewards]
        return [[advantage] * len(leaf.turns) for advantage, leaf in
                zip(group_zscore(return_L, settings.group_std).tolist(), group.transcripts, strict=True)]

    def credit(
        self,
        groups: Sequence[Group],
        rewards: Sequence[Sequence[TrajectoryRewards]],
        rows: Sequence[Row],
        *,
        old_logprob_N: Tensor,
        reference_logprob_N: Tensor | None = None,
        value_N: Tensor | None = None,
    ) -> TokenCredit:
        """See ``Estimator.credit``; a shared turn gathers the weighted advantages of its leaves."""
        weight_of_leaf = leaf_weights(groups, self.training.loss_aggregation)
        positive, negative, weight = ([np.zeros(len(group.turns)) for group in groups] for _ in range(3))
        silent = 0
        for g, (group, group_rewards) in enumerate(zip(groups, rewards, strict=True)):
            advantage_L_K = self.advantages(group, group_rewards)
            silent += not any(any(advantage_K) for advantage_K in advantage_L_K)
            for leaf, (node_K, advantage_K) in enumerate(zip(group.node_L_K, advantage_L_K, strict=True)):
                nodes, share = list(node_K), weight_of_leaf[g][leaf]  # a leaf passes a turn once
                positive[g][nodes] += share * np.maximum(advantage_K, 0.0)
                negative[g][nodes] += share * np.minimum(advantage_K, 0.0)
                weight[g][nodes] += share

        def on_tokens(value_of_turn: list[np.ndarray]) -> Tensor:
            values, lengths = [], []
            for row in rows:
                g, leaf = row.leaf
                owned = zip(groups[g].node_L_K[leaf], row.transcript.turns, row.owned_K, strict=True)
                for node, turn, is_owned in owned:
                    if is_owned:
                        values.append(value_of_turn[g][node])
                        lengths.append(len(turn.sampled_ids))
            return torch.from_numpy(np.repeat(values, lengths)).float()

        positive_N, negative_N, weight_N = map(on_tokens, (positive, negative, weight))
        return TokenCredit(positive_N, negative_N, weight_N, (positive_N + negative_N) / weight_N,
                           zero_std_groups=silent / len(groups))


@dataclass(frozen=True, slots=True)
class CriticEstimator:
    """PPO-OR (terminal), PPO-MR (delayed) and MT-PPO (per_turn): GAE over placed token rewards."""

    placement: Placement
    training: TrainingConfig
    uses_critic: bool = True
    kl_in_reward: bool = True

    def branching(self, max_turns: int) -> tuple[int, ...]:
        """One chain a question, as in Search-R1."""
        return (1,) * max_turns

    def credit(
        self,
        groups: Sequence[Group],
        rewards: Sequence[Sequence[TrajectoryRewards]],
        rows: Sequence[Row],
        *,
        old_logprob_N: Tensor,
        reference_logprob_N: Tensor | None = None,
        value_N: Tensor | None = None,
    ) -> TokenCredit:
        """See ``Estimator.credit``. The KL penalty -beta (log p - log p_ref) is added to each token's reward."""
        if value_N is None:
            raise ValueError("the critic family needs value_N")
        if not all(all(row.owned_K) for row in rows):
            raise ValueError("the critic family takes chains, not trees")
        length_B_K = [[len(turn.sampled_ids) for turn in row.transcript.turns] for row in rows]
        reward_B_K = [place_on_turns(self.placement, r.intermediate_K, r.outcome) for leaves in rewards for r in leaves]
        reward_B_S = place_on_tokens(reward_B_K, length_B_K)
        length_B = torch.tensor([sum(length_K) for length_K in length_B_K])
        mask_B_S = torch.arange(reward_B_S.shape[1]) < length_B[:, None]
        value_B_S = torch.zeros_like(reward_B_S)
        value_B_S[mask_B_S] = value_N.float()
        if reference_logprob_N is not None:
            reward_B_S[mask_B_S] -= self.training.kl_coefficient * (old_logprob_N - reference_logprob_N)
        advantage_B_S, return_B_S = gae(
            reward_B_S, value_B_S, mask_B_S, gamma=self.training.gamma, lam=self.training.gae_lambda)
        advantage_N = whiten(advantage_B_S[mask_B_S])
        weight_of_row = [w for weights in leaf_weights(groups, self.training.loss_aggregation) for w in weights]
        weight_N = torch.tensor(weight_of_row).float().repeat_interleave(length_B)
        return TokenCredit(weight_N * advantage_N.clamp(min=0), weight_N * advantage_N.clamp(max=0), weight_N,
                           advantage_N, return_B_S[mask_B_S])


def leaf_weights(groups: Sequence[Group], aggregation: str) -> list[list[float]]:
    """The weight of each sampled token of each leaf, as [group][leaf]; all tokens together weigh 1.

    ``sequence``: every question weighs the same, every leaf of a question too, and its tokens share
    its weight, 1 / (Q L |y|) (Eq. 3 and 7). ``token``: all tokens of the batch weigh the same.
    """
    if aggregation == "token":
        total = sum(leaf.sampled_count for group in groups for leaf in group.transcripts)
        return [[1 / total for _ in group.transcripts] for group in groups]
    return [[1 / (len(groups) * len(group.transcripts) * leaf.sampled_count) for leaf in group.transcripts]
            for group in groups]
