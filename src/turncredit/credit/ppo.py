"""PPO with a critic: PPO-OR (terminal rewards), PPO-MR (delayed) and MT-PPO (per turn). Eq. 7-9.

What is placed: each turn's reward on its last sampled token (Eq. 9), all of them on the last token of
the trajectory, or the outcome alone. What is compared: each token's discounted future reward with the
critic's prediction (GAE, Eq. 8). The three algorithms differ in the placement only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from turncredit.credit.base import Estimator, TokenCredit, TrajectoryRewards, leaf_weights
from turncredit.credit.gae import gae, whiten
from turncredit.credit.placement import place_on_tokens, place_on_turns
from turncredit.credit.rows import Row
from turncredit.types import Group


class PPO(Estimator):
    """Whitened GAE over token rewards; the KL penalty -beta (log p - log p_ref) is part of each token's reward."""

    uses_critic = True
    kl_in_reward = True
    compares = False
    takes_trees = False

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
        """See ``Estimator.credit``.

        Raises:
            ValueError: values are missing, or leaves share turns.
        """
        if value_N is None:
            raise ValueError("PPO needs value_N, the critic's predictions")
        if any(group.is_tree for group in groups):
            raise ValueError("PPO takes chains, not trees")
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
        weight_of_row = [w for weights in leaf_weights(groups, self.training.loss_aggregation) for w in weights]
        return TokenCredit(
            advantage_N=whiten(advantage_B_S[mask_B_S]),
            weight_N=torch.tensor(weight_of_row).float().repeat_interleave(length_B),
            return_N=return_B_S[mask_B_S])
