"""The credit that each turn of a group gets under an algorithm, as a table for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from turncredit.config.algorithm import Algorithm
from turncredit.config.training import TrainingConfig
from turncredit.credit.base import GroupEstimator, TrajectoryRewards, make_estimator
from turncredit.credit.rows import rows_of
from turncredit.types import Group

Credits = list[list[float]]  # ragged, [leaf][turn]


def turn_credits(algorithm: Algorithm, training: TrainingConfig, group: Group,
                 rewards: Sequence[TrajectoryRewards]) -> Credits | None:
    """The credit of each turn of each leaf, ``credit_L_K``, by the estimator that training uses.

    Group baselines: the advantage. Critics: the return at the turn's first token, which is the
    advantage of a critic that predicts 0, before whitening and without the KL penalty.

    Args:
        algorithm, training: the run's settings; the rollout plays no part, the episodes are given.
        group: the episodes of one question.
        rewards: of each leaf, under the algorithm's content.

    Returns:
        None where the algorithm cannot use these episodes: a group of one, or a tree under a critic.
    """
    estimator = make_estimator(algorithm.model_copy(update={"rollout": "chains"}), training)
    if isinstance(estimator, GroupEstimator):
        return None if len(group.transcripts) == 1 else estimator.advantages(group, rewards)
    if group.is_tree:
        return None
    rows = rows_of([group])
    tokens = group.sampled_count
    credit = estimator.credit([group], [rewards], rows, old_logprob_N=torch.zeros(tokens), value_N=torch.zeros(tokens))
    assert credit.return_N is not None
    credits, start = [], 0
    for row in rows:
        turn_N, count = row.turn_N, int(row.loss_mask.sum())
        first_K = [start + turn_N.tolist().index(k) for k in range(len(row.transcript.turns))]
        credits.append(credit.return_N[first_K].tolist())
        start += count
    return credits


def all_credits(algorithms: Mapping[str, Algorithm], training: TrainingConfig, group: Group,
                rewards_of: Mapping[str, Sequence[TrajectoryRewards]]) -> dict[str, Credits | None]:
    """``turn_credits`` of every algorithm; ``rewards_of`` has the leaves' rewards under each content."""
    return {name: turn_credits(algorithm, training, group, rewards_of[algorithm.content])
            for name, algorithm in algorithms.items()}
