"""PPO with a critic. Uses placement (Eq. 9) and GAE (Eq. 8); the clipped objective is ``losses.policy_loss``.

The three algorithms differ in where rewards are placed:

- PPO-OR: R^O on the last token of the trajectory;
- PPO-MR: the sum of all R^I and R^O on the last token of the trajectory;
- MT-PPO: R^I on the last token of its turn, R^O on the last token of the trajectory.

GAE compares each token's discounted future reward with the critic's prediction. ``training.gae_tokens``
chooses its tokens. ``sampled``: R^I is on the last sampled token of its turn. ``response``: R^I is on the
turn's last observation token, and the critic predicts and is trained on observations too (the authors'
code). The policy is trained on sampled tokens in both.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from turncredit.credit.base import Estimator, TokenCredit, TrajectoryRewards, check_rewards, leaf_weights
from turncredit.credit.gae import gae, whiten
from turncredit.credit.placement import place_on_tokens, place_on_turns
from turncredit.credit.rows import Row, rows_of
from turncredit.types import Group


class PPO(Estimator):
    """Whitened GAE over token rewards; the KL penalty -beta (log p - log p_ref) is part of a sampled token's reward."""

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
        value_M: Tensor | None = None,
    ) -> TokenCredit:
        """See ``Estimator.credit``.

        Raises:
            ValueError: values or reference log-probabilities are missing, leaves share turns, or see ``check_rewards``.
        """
        settings, tokens = self.training, self.training.gae_tokens
        check_rewards(groups, rewards)
        if value_M is None:
            raise ValueError("PPO needs value_M, the critic's predictions")
        if reference_logprob_N is None and settings.kl_coefficient:
            raise ValueError("PPO with a KL coefficient needs reference_logprob_N")
        if any(group.is_tree for group in groups):
            raise ValueError("PPO takes chains, not trees")
        # _S: positions of a row's critic tokens. They are grouped by turn, so a turn's last one ends its turn.
        mask_R = [row.value_mask(tokens) for row in rows]
        length_B_K = [np.bincount(row.transcript.turn_id[mask_T]).tolist()
                      for row, mask_T in zip(rows, mask_R, strict=True)]
        sampled_M = torch.from_numpy(np.concatenate([
            row.loss_mask[mask_T] for row, mask_T in zip(rows, mask_R, strict=True)]))
        reward_B_K = [place_on_turns(self.placement, r.intermediate_K, r.outcome) for leaves in rewards for r in leaves]
        reward_B_S = place_on_tokens(reward_B_K, length_B_K)
        length_B = torch.tensor([sum(length_K) for length_K in length_B_K])
        mask_B_S = torch.arange(reward_B_S.shape[1]) < length_B[:, None]
        value_B_S = torch.zeros_like(reward_B_S)
        value_B_S[mask_B_S] = value_M.float()
        if reference_logprob_N is not None:
            sampled_B_S = mask_B_S.clone()
            sampled_B_S[mask_B_S] = sampled_M
            reward_B_S[sampled_B_S] -= settings.kl_coefficient * (old_logprob_N - reference_logprob_N)
        advantage_B_S, return_B_S = gae(
            reward_B_S, value_B_S, mask_B_S, gamma=settings.gamma, lam=settings.gae_lambda)
        # The authors' whitening counts all response tokens and divides by n - 1.
        advantage_M = whiten(advantage_B_S[mask_B_S], "sample" if tokens == "response" else "population")
        weight_M, value_weight_M = (
            torch.tensor([w for weights in leaf_weights(groups, settings.loss_aggregation, counted) for w in weights])
            .float().repeat_interleave(length_B) for counted in ("sampled", tokens))
        return TokenCredit(advantage_N=advantage_M[sampled_M], weight_N=weight_M[sampled_M],
                           return_M=return_B_S[mask_B_S], value_weight_M=value_weight_M)

    def turn_credits(self, group: Group, rewards: Sequence[TrajectoryRewards]) -> list[list[float]] | None:
        """See ``Estimator.turn_credits``: the return at each turn's first token; None for a tree."""
        if group.is_tree:
            return None
        rows, tokens = rows_of([group]), self.training.gae_tokens
        turn_R = [row.transcript.turn_id[row.value_mask(tokens)] for row in rows]  # the turn of each critic token
        zero_N = torch.zeros(group.sampled_count)  # equal log-probabilities: no KL penalty
        credit = self.credit([group], [rewards], rows, old_logprob_N=zero_N, reference_logprob_N=zero_N,
                             value_M=torch.zeros(sum(map(len, turn_R))))
        assert credit.return_M is not None  # a critic has targets
        return_R = torch.split(credit.return_M, [*map(len, turn_R)])
        return [[returns[np.flatnonzero(turns == k)[0]].item() for k in range(len(row.transcript.turns))]
                for row, turns, returns in zip(rows, turn_R, return_R, strict=True)]
