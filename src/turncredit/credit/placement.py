"""Reward placement: the reward structures M1, M2, M3 on turns (section 2), and turns on tokens (Eq. 9).

Pure functions. No reward is lost or paid twice: what is placed sums to what was given.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from turncredit.credit.registry import Placement


def place_on_turns(placement: Placement, intermediate_K: Sequence[float], outcome: float) -> list[float]:
    """Per-turn rewards R_k of one trajectory under a reward structure (section 2; M1, M2, M3).

    Args:
        placement: ``terminal`` (M1: only R^O, on the last turn), ``delayed`` (M2: all of R^I and
            R^O merged on the last turn) or ``per_turn`` (M3, Eq. 9: R^I_k on turn k, R^O on the last).
        intermediate_K: R^I of each of the K turns.
        outcome: R^O of the trajectory.

    Returns:
        R_k for k = 1..K; sums to R^O (terminal) or to the sum of all R^I and R^O.

    Raises:
        ValueError: no turns, or an unknown placement.

    >>> place_on_turns("terminal", [0.3, 0.0], 1.0)
    [0.0, 1.0]
    >>> place_on_turns("delayed", [0.3, 0.0], 1.0)
    [0.0, 1.3]
    >>> place_on_turns("per_turn", [0.3, 0.0], 1.0)
    [0.3, 1.0]
    """
    if not intermediate_K:
        raise ValueError("a trajectory has at least one turn")
    last = len(intermediate_K) - 1
    match placement:
        case "terminal":
            return [0.0] * last + [outcome]
        case "delayed":
            return [0.0] * last + [sum(intermediate_K) + outcome]
        case "per_turn":
            return [*intermediate_K[:-1], intermediate_K[-1] + outcome]
        case _:
            raise ValueError(f"unknown placement {placement!r}: use terminal, delayed or per_turn")


def trajectory_return(placement: Placement, intermediate_K: Sequence[float], outcome: float, gamma: float) -> float:
    """R^traj, the one number by which whole trajectories are compared (section 3, before Eq. 4).

    ``terminal`` (GRPO-OR): R^O. ``delayed`` (GRPO-MR): the discounted return of the per-turn rewards.

    Raises:
        ValueError: another placement: a single number has no turns.

    >>> [trajectory_return(placement, [0.3, 0.0], 1.0, gamma=1.0) for placement in ("terminal", "delayed")]
    [1.0, 1.3]
    """
    match placement:
        case "terminal":
            return outcome
        case "delayed":
            return discounted_return(place_on_turns("per_turn", intermediate_K, outcome), gamma)
        case _:
            raise ValueError(f"a trajectory's return is terminal or delayed, not {placement!r}")


def discounted_return(reward_K: Sequence[float], gamma: float) -> float:
    """Eq. 2: the trajectory's return, sum over k = 1..K of gamma^k R_k (the first exponent is 1).

    >>> discounted_return([1.0, 2.0], 0.5)
    1.0
    """
    return sum(gamma**k * reward for k, reward in enumerate(reward_K, start=1))


def place_on_tokens(reward_B_K: Sequence[Sequence[float]], length_B_K: Sequence[Sequence[int]]) -> Tensor:
    """Eq. 9: token rewards r_t over the tokens of GAE (``Row.value_mask``), R_k on the last of turn k's tokens.

    Args:
        reward_B_K: ragged, the rewards R_k of each trajectory's turns.
        length_B_K: ragged like it, the number of tokens of each turn (at least 1).

    Returns:
        ``reward_B_S``, float32; S is the largest number of a row's tokens, zero beyond a row's end.

    Raises:
        ValueError: a trajectory has another number of rewards than of turns, or a turn without tokens.

    >>> place_on_tokens([[0.3, 1.0]], [[2, 3]])
    tensor([[0.0000, 0.3000, 0.0000, 0.0000, 1.0000]])
    """
    longest = max(sum(length_K) for length_K in length_B_K)
    reward_B_S = torch.zeros(len(reward_B_K), longest)
    for row, (reward_K, length_K) in enumerate(zip(reward_B_K, length_B_K, strict=True)):
        if len(reward_K) != len(length_K) or min(length_K) < 1:
            raise ValueError(f"row {row}: {len(reward_K)} rewards for turns of {list(length_K)} tokens; "
                             "each turn has one reward and at least one token")
        last_token_K = torch.tensor(length_K).cumsum(0) - 1
        reward_B_S[row, last_token_K] = torch.tensor(list(reward_K), dtype=torch.float32)
    return reward_B_S
