"""Losses over sampled tokens. Pure: tensors in, (loss, metrics) out; nothing is logged or changed.

Every loss is a *sum* of token terms that already carry their weight (``TokenCredit.weight_N`` sums
to 1 over a batch). So micro-batches simply add up, and any split of a batch has the same gradient.
Shapes: ``_N``, the loss tokens of a (micro-)batch; observation and padding tokens never get here.
"""

from __future__ import annotations

import torch
from torch import Tensor

Metrics = dict[str, Tensor]  # sums over the same tokens, to be added over micro-batches

_LARGEST_LOG_RATIO = 20.0  # exp(20) is finite in float32; beyond it the clipped side decides anyway


def policy_loss(
    logprob_N: Tensor, old_logprob_N: Tensor, positive_N: Tensor, negative_N: Tensor, *, clip_epsilon: float
) -> tuple[Tensor, Metrics]:
    """The clipped surrogate of Eq. 3 and 7, for tokens that one or several leaves share.

    min(w A, clip(w) A) is A min(w, 1 + eps) for A > 0 and A max(w, 1 - eps) for A < 0. A token that
    several leaves share carries the sum of their weighted positive advantages and, apart from it,
    that of their negative ones; so this sum equals the one over the leaves written out.

    Args:
        logprob_N, old_logprob_N: log-probabilities under the trained and the sampling policy.
        positive_N, negative_N: weighted advantages, >= 0 and <= 0.
        clip_epsilon: epsilon of the clip.

    Returns:
        the negated objective, a scalar; metrics ``clipped`` (tokens whose gradient the clip removed).

    >>> loss, _ = policy_loss(torch.tensor([0.5]), torch.zeros(1), torch.ones(1), torch.zeros(1), clip_epsilon=0.2)
    >>> round(loss.item(), 4)
    -1.2
    """
    ratio_N = (logprob_N - old_logprob_N).clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO).exp()
    objective_N = positive_N * ratio_N.clamp(max=1 + clip_epsilon) + negative_N * ratio_N.clamp(min=1 - clip_epsilon)
    with torch.no_grad():
        above_N = (ratio_N > 1 + clip_epsilon) & (positive_N > 0)
        below_N = (ratio_N < 1 - clip_epsilon) & (negative_N < 0)
    return -objective_N.sum(), {"clipped": (above_N | below_N).sum()}


def value_loss(
    value_N: Tensor, old_value_N: Tensor, return_N: Tensor, weight_N: Tensor, *, value_clip: float
) -> tuple[Tensor, Metrics]:
    """Half the squared error of the critic, clipped around the old value (PPO; Search-R1's form).

    >>> value_loss(torch.tensor([1.]), torch.tensor([0.]), torch.tensor([1.]), torch.ones(1), value_clip=0.5)[0]
    tensor(0.1250)
    """
    near_N = old_value_N + (value_N - old_value_N).clamp(-value_clip, value_clip)
    error_N = torch.maximum((value_N - return_N).square(), (near_N - return_N).square())
    return 0.5 * (weight_N * error_N).sum(), {"value_clipped": (near_N != value_N).sum()}


def kl_k3(logprob_N: Tensor, reference_logprob_N: Tensor, weight_N: Tensor) -> Tensor:
    """The k3 estimate of KL(policy || reference), exp(d) - d - 1 with d = log ref - log policy; a scalar."""
    difference_N = (reference_logprob_N - logprob_N).clamp(-_LARGEST_LOG_RATIO, _LARGEST_LOG_RATIO)
    return (weight_N * (difference_N.exp() - difference_N - 1)).sum()


def entropy_loss(entropy_N: Tensor, weight_N: Tensor) -> Tensor:
    """The negated mean entropy of the policy at loss tokens; a scalar."""
    return -(weight_N * entropy_N).sum()
