"""Losses over sampled tokens. Pure functions of tensors; nothing is logged or changed.

Every loss is a *sum* of token terms times their weights (``TokenCredit.weight_N`` sums to 1 over a
batch). So micro-batches simply add up, and any split of a batch has the same gradient.
Shapes: ``_N``, the loss tokens of a (micro-)batch; ``_M``, the critic's tokens. Padding never gets here, nor do
observations, unless ``training.gae_tokens`` makes them the critic's.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LARGEST_K3 = 10.0
_LARGEST_LOG_RATIO = 20.0  # exp(20) is finite in float32; beyond it the clipped side decides anyway


def policy_loss(
    logprob_N: Tensor, old_logprob_N: Tensor, advantage_N: Tensor, weight_N: Tensor, *, clip_epsilon: float
) -> tuple[Tensor, Tensor]:
    """The clipped surrogate of Eq. 3 and Eq. 7, negated: -sum weight min(w A, clip(w, 1 - eps, 1 + eps) A).

    With an outcome reward only and one turn it is the surrogate of Eq. 1.

    Args:
        logprob_N, old_logprob_N: log-probabilities under the trained and the sampling policy.
        advantage_N: A_t.
        weight_N: each token's share of the objective, above 0; 1 / (G |y|) in Eq. 3.
        clip_epsilon: epsilon of the clip.

    Returns:
        the loss, a scalar; the number of tokens whose gradient the clip removed.

    >>> loss, _ = policy_loss(torch.tensor([0.5]), torch.zeros(1), torch.ones(1), torch.ones(1), clip_epsilon=0.2)
    >>> round(loss.item(), 4)
    -1.2
    """
    ratio_N = importance_ratio(logprob_N, old_logprob_N)
    surrogate_N = torch.minimum(ratio_N * advantage_N, ratio_N.clamp(1 - clip_epsilon, 1 + clip_epsilon) * advantage_N)
    return -(weight_N * surrogate_N).sum(), _clipped(ratio_N, advantage_N, advantage_N, clip_epsilon)


def tree_policy_loss(
    logprob_N: Tensor, old_logprob_N: Tensor, positive_N: Tensor, negative_N: Tensor, *, clip_epsilon: float
) -> tuple[Tensor, Tensor]:
    """``policy_loss`` summed over the leaves that share each token, with the token computed once.

    min(w A, clip(w) A) is A min(w, 1 + eps) for A > 0 and A max(w, 1 - eps) for A < 0. So the sum over
    leaves needs two numbers a token: the sum of the positive weighted advantages and that of the
    negative ones.

    Args:
        positive_N, negative_N: these sums, >= 0 and <= 0 (``TokenCredit.signed_sums_N``).
        logprob_N, old_logprob_N, clip_epsilon: see ``policy_loss``.
    """
    ratio_N = importance_ratio(logprob_N, old_logprob_N)
    surrogate_N = positive_N * ratio_N.clamp(max=1 + clip_epsilon) + negative_N * ratio_N.clamp(min=1 - clip_epsilon)
    return -surrogate_N.sum(), _clipped(ratio_N, positive_N, negative_N, clip_epsilon)


def importance_ratio(logprob_N: Tensor, old_logprob_N: Tensor) -> Tensor:
    """w_t = pi(token) / pi_old(token), with a log-ratio limited to +-20 so that it stays finite in float32.

    Beyond the limit the ratio is constant, so its gradient is 0.
    """
    return (logprob_N - old_logprob_N).clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO).exp()


@torch.no_grad()
def _clipped(ratio_N: Tensor, positive_N: Tensor, negative_N: Tensor, clip_epsilon: float) -> Tensor:
    """The number of tokens on which the clip removes the gradient of a positive or of a negative advantage."""
    above_N = (ratio_N > 1 + clip_epsilon) & (positive_N > 0)
    below_N = (ratio_N < 1 - clip_epsilon) & (negative_N < 0)
    return (above_N | below_N).sum()


def value_loss(
    value_M: Tensor, old_value_M: Tensor, return_M: Tensor, weight_M: Tensor, *, value_clip: float
) -> Tensor:
    """Half the squared error of the critic, clipped around the old value (PPO; Search-R1's form); a scalar.

    >>> value_loss(torch.tensor([1.]), torch.tensor([0.]), torch.tensor([1.]), torch.ones(1), value_clip=0.5)
    tensor(0.1250)
    """
    clipped_M = old_value_M + (value_M - old_value_M).clamp(-value_clip, value_clip)
    error_M = torch.maximum((value_M - return_M).square(), (clipped_M - return_M).square())
    return 0.5 * (weight_M * error_M).sum()


def kl_k3(logprob_N: Tensor, reference_logprob_N: Tensor, weight_N: Tensor) -> Tensor:
    """The k3 estimate of KL(policy || reference), exp(d) - d - 1 with d = log ref - log policy; a scalar.

    As in verl and Search-R1, each token's value is limited to 10 (d beyond 2.61 or -11.0), with a gradient of 0
    above: one token that the policy has left cannot fill the gradient of a step. d is limited to +-20 before, as in
    ``importance_ratio``.

    >>> kl_k3(torch.tensor([-1., -9.]), torch.zeros(2), torch.ones(2))  # e - 2, and 10 instead of e^9 - 10
    tensor(10.7183)
    """
    difference_N = (reference_logprob_N - logprob_N).clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
    return (weight_N * (difference_N.exp() - difference_N - 1).clamp(max=_LARGEST_K3)).sum()


def entropy_loss(entropy_N: Tensor, weight_N: Tensor) -> Tensor:
    """The negated mean entropy of the policy at loss tokens; a scalar."""
    return -(weight_N * entropy_N).sum()
