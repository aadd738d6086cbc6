"""PPO with a critic. Uses placement (Eq. 9) and GAE (Eq. 8); the clipped objective is ``losses.policy_loss``.

The three algorithms differ in where rewards are placed:

- PPO-OR: R^O on the last token of the trajectory;
- PPO-MR: the sum of all R^I and R^O on the last token of the trajectory;
- MT-PPO: R^I on the last sampled token of its turn, R^O on the last token of the trajectory.

GAE compares each token's discounted future reward with the critic's prediction.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from turncredit.credit.base import Estimator, TokenCredit, TrajectoryRewards, check_rewards, leaf_weights
from turncredit.credit.gae import gae, whiten
from turncredit.credit.placement import place_on_tokens, place_on_turns
from turncredit.credit.rows import Row, rows_of
from turncredit.types import Group


class PPO(Estimator):
    """Whitened GAE over token rewards; the KL penalty -beta (log p - log p_ref) is part of each token's reward."""

    uses_critic = True
    kl_in_reward = True

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
            ValueError: values or reference log-probabilities are missing, leaves share turns, or see ``check_rewards``.
        """
        check_rewards(groups, rewards)
        if value_N is None:
            raise ValueError("PPO needs value_N, the critic's predictions")
        if reference_logprob_N is None and self.training.kl_coefficient:
            raise ValueError("PPO with a KL coefficient needs reference_logprob_N")
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

    def turn_credits(self, group: Group, rewards: Sequence[TrajectoryRewards]) -> list[list[float]] | None:
        """See ``Estimator.turn_credits``: the return at each turn's first token; None for a tree."""
        if group.is_tree:
            return None
        rows, tokens = rows_of([group]), group.sampled_count
        zero_N = torch.zeros(tokens)  # equal log-probabilities: no KL penalty
        credit = self.credit([group], [rewards], rows, old_logprob_N=zero_N, reference_logprob_N=zero_N, value_N=zero_N)
        assert credit.return_N is not None  # a critic has targets
        return_R = torch.split(credit.return_N, [len(row.turn_N) for row in rows])
        return [[returns[row.turn_N.tolist().index(k)].item() for k in range(len(row.transcript.turns))]
                for row, returns in zip(rows, return_R, strict=True)]
