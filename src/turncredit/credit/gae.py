"""Generalised advantage estimation (Eq. 8) and whitening. Pure functions."""

from __future__ import annotations

import torch
from torch import Tensor

from turncredit.config.training import Std


def gae(reward_B_T: Tensor, value_B_T: Tensor, mask_B_T: Tensor, *, gamma: float, lam: float) -> tuple[Tensor, Tensor]:
    """Advantages and value targets of every token of the recursion (Eq. 8).

    delta_t = r_t + gamma V_{t'} - V_t and A_t = delta_t + gamma lambda A_{t'}, where t' is the next
    token *of the mask*: other tokens (padding; observations, unless ``training.gae_tokens`` takes the whole
    response) neither decay nor bootstrap nor carry reward, and their values and rewards are never read.
    After the last token of the mask V and A are 0.

    Args:
        reward_B_T: r_t; counts where the mask is 1.
        value_B_T: V_t, the return predicted *before* token t is emitted.
        mask_B_T: 1 on the tokens of the recursion.
        gamma, lam: discount and lambda per token of the recursion.

    Returns:
        ``(advantage_B_T, return_B_T)``, return = advantage + value; 0 where the mask is 0.

    >>> gae(torch.tensor([[0., 9., 1.]]), torch.tensor([[.5, 9., .25]]), torch.tensor([[1, 0, 1]]), gamma=1., lam=1.)
    (tensor([[0.5000, 0.0000, 0.7500]]), tensor([[1., 0., 1.]]))
    """
    mask_B_T = mask_B_T.bool()
    advantage_B_T = torch.zeros_like(value_B_T)
    next_value_B = torch.zeros_like(value_B_T[:, 0])
    next_advantage_B = torch.zeros_like(next_value_B)
    for t in reversed(range(value_B_T.shape[1])):
        member_B = mask_B_T[:, t]
        delta_B = reward_B_T[:, t] + gamma * next_value_B - value_B_T[:, t]
        advantage_B = delta_B + gamma * lam * next_advantage_B
        advantage_B_T[:, t] = torch.where(member_B, advantage_B, 0.0)
        next_advantage_B = torch.where(member_B, advantage_B, next_advantage_B)
        next_value_B = torch.where(member_B, value_B_T[:, t], next_value_B)
    return advantage_B_T, torch.where(mask_B_T, advantage_B_T + value_B_T, 0.0)


def whiten(advantage_M: Tensor, std: Std = "population") -> Tensor:
    """Whitened advantages, (x - mean) / sqrt(variance + 1e-8).

    The variance divides by n (``population``) or by n - 1 (``sample``, as verl and Search-R1 do). Equal
    values (a variance below 1e-12) become 0: they carry no signal. NaN stays NaN.

    >>> whiten(torch.tensor([1., 3.])), whiten(torch.tensor([1., 3.]), "sample")
    (tensor([-1.,  1.]), tensor([-0.7071,  0.7071]))
    """
    centred_M = advantage_M - advantage_M.mean()
    variance = centred_M.square().mean()
    if variance <= 1e-12:
        return torch.zeros_like(advantage_M)
    if std == "sample":
        variance = variance * (len(advantage_M) / (len(advantage_M) - 1))  # len > 1: a single value has no variance
    return centred_M * torch.rsqrt(variance + 1e-8)
