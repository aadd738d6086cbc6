"""Values V_t of the bench's three critics, for every token that a critic predicts.

- ``zero``: V = 0, the critic at the start of training.
- ``fitted``: a linear map of the frozen policy's last hidden state before the token, fitted by ridge regression to
  the returns of other episodes. This is a critic with a trained head on an untrained backbone.
- ``exact``: V of the state in which a turn begins, the mean return of resampled continuations. All tokens of the turn
  have this value, so that return - V estimates Q - V of the turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from turncredit.config.training import GaeTokens, TrainingConfig
from turncredit.credit.base import Estimator, TrajectoryRewards
from turncredit.credit.rows import Row
from turncredit.errors import ConfigError
from turncredit.policy.model import hidden_states
from turncredit.training.batch import Batch
from turncredit.types import Group

Critic = Literal["zero", "fitted", "exact"]
CRITICS: tuple[Critic, ...] = ("zero", "fitted", "exact")
RIDGE = 1e-3  # of the regression, per token, for features of unit variance


@torch.no_grad()
def features(policy: PreTrainedModel, batch: Batch, settings: TrainingConfig) -> Tensor:
    """The policy's last hidden state before each of the critic's tokens, ``feature_M_H``, float32 on the CPU."""
    feature_M_H = torch.zeros(int(batch.value_start_R[-1]), policy.config.hidden_size)
    for micro in batch.micro_batches(batch.trained, settings.micro_batch_tokens):
        on_device = micro.to(policy.device)
        hidden_B_T_H = hidden_states(policy.base_model, on_device.ids_B_T, on_device.attention_B_T)
        feature_M_H[micro.flat_M] = hidden_B_T_H[:, :-1][on_device.value_mask_B_T[:, 1:]].float().cpu()
    return feature_M_H


def returns_of(estimator: Estimator, groups: Sequence[Group], rewards: Sequence[Sequence[TrajectoryRewards]],
               rows: Sequence[Row], batch: Batch) -> Tensor:
    """What a critic predicts at each of its tokens, ``return_M``: the estimator's targets at V = 0 and lambda = 1."""
    return_M = undiscounted_by_lambda(estimator).credit(
        groups, rewards, rows, old_logprob_N=batch.old_logprob_N,
        value_M=torch.zeros(int(batch.value_start_R[-1]))).return_M
    if return_M is None:
        raise ConfigError(f"estimator {type(estimator).__name__} uses a critic and gives it no targets",
                          "return return_M in TokenCredit, or set uses_critic = False")
    return return_M


def undiscounted_by_lambda(estimator: Estimator) -> Estimator:
    """The same estimator at lambda = 1; with V = 0 its critic's targets are then returns."""
    training = estimator.training.model_copy(update={"gae_lambda": 1.0})
    return type(estimator)(estimator.placement, training, estimator.settings)


def fit(feature_M_H: Tensor, return_M_A: Tensor) -> Tensor:
    """Ridge regression of the returns of A arms on hidden states.

    Returns:
        ``weight_J_A``, J = H + 1; the last row is the constant. ``predict`` applies it.
    """
    mean_H, std_H = feature_M_H.double().mean(0), feature_M_H.double().std(0).clamp(min=1e-6)
    x_M_H = (feature_M_H.double() - mean_H) / std_H
    level_A = return_M_A.double().mean(0)
    gram_H_H = x_M_H.T @ x_M_H / len(x_M_H) + RIDGE * torch.eye(x_M_H.shape[1], dtype=torch.float64)
    slope_H_A = torch.linalg.solve(gram_H_H, x_M_H.T @ (return_M_A.double() - level_A) / len(x_M_H)) / std_H[:, None]
    return torch.cat([slope_H_A, (level_A - mean_H @ slope_H_A)[None]])


def predict(feature_M_H: Tensor, weight_J: Tensor) -> Tensor:
    """Fitted values, ``value_M``, float32."""
    return (feature_M_H.double() @ weight_J[:-1] + weight_J[-1]).float()


def state_returns(estimator: Estimator, continued_K: Sequence[Group],
                  rewards_K: Sequence[Sequence[TrajectoryRewards]]) -> NDArray[np.float64]:
    """Returns from the state in which each turn of a probe begins, ``return_K_C``; their means over C are V.

    Args:
        estimator: one with a critic.
        continued_K: for each turn, C episodes that begin with the turns before it.
        rewards_K: their rewards under the arm's content.
    """
    returns, undiscounted = [], undiscounted_by_lambda(estimator)
    for turn, (group, rewards) in enumerate(zip(continued_K, rewards_K, strict=True)):
        return_L_K = undiscounted.turn_credits(group, rewards)
        if return_L_K is None:
            raise ConfigError(f"estimator {type(estimator).__name__} has no turn_credits of chains",
                              "return the returns of each turn at V = 0")
        returns.append([return_K[turn] for return_K in return_L_K])
    return np.array(returns)


def with_exact(value_M: Tensor, rows: Sequence[Row], tokens: GaeTokens,
               exact_of_row: Mapping[int, Sequence[float]]) -> Tensor:
    """``value_M`` with the values of some rows' first turns replaced.

    Args:
        value_M: values of all of the critic's tokens.
        rows: their rows.
        tokens: which tokens these are.
        exact_of_row: index of a row -> V of its first turns.
    """
    turn_R = [torch.from_numpy(row.transcript.turn_id[row.value_mask(tokens)]) for row in rows]
    parts = list(torch.split(value_M, [len(turn_S) for turn_S in turn_R]))
    for r, exact_K in exact_of_row.items():
        exact_S = torch.tensor(list(exact_K), dtype=torch.float32)[turn_R[r].clamp(max=len(exact_K) - 1)]
        parts[r] = torch.where(turn_R[r] < len(exact_K), exact_S, parts[r])
    return torch.cat(parts)
