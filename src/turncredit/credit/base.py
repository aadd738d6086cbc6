"""What every estimator shares: its interface, its result, and the way from turns to tokens."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import ClassVar, Protocol

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from turncredit.config.algorithm import Algorithm
from turncredit.config.base import StrictModel, explain
from turncredit.config.training import TrainingConfig
from turncredit.credit.registry import ESTIMATORS, Placement
from turncredit.credit.rows import Row
from turncredit.errors import ConfigError
from turncredit.types import Group


class TrajectoryRewards(Protocol):
    """The rewards of one trajectory of K turns."""

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
        advantage_N: A_t. For a token that several leaves of a tree share: their weighted mean.
        weight_N: the token's share of the objective; sums to 1.
        shared_N: for trees only, ``(positive_N, negative_N)``: weighted advantages summed over the leaves
            that share the token, positive and negative ones apart, because the clip treats them
            differently (``losses.tree_policy_loss``). None where no leaves share a turn.
        return_N: targets of the critic, or None.
        zero_std_groups: share of groups whose advantages are all 0, or None.
    """

    advantage_N: Tensor
    weight_N: Tensor
    shared_N: tuple[Tensor, Tensor] | None = None
    return_N: Tensor | None = None
    zero_std_groups: float | None = None


class Estimator(ABC):
    """Turns rewards into credit. The trainer knows an algorithm only through this interface.

    Args:
        placement: where rewards are placed; the registry names the placements that an estimator takes.
        training: discounts, loss aggregation and the KL coefficient.
        settings: the estimator's own configuration keys, an instance of ``Settings``.
    """

    Settings: ClassVar[type[StrictModel]] = StrictModel  # a subclass with the estimator's own keys, if it has any
    uses_critic: ClassVar[bool]
    kl_in_reward: ClassVar[bool]  # the KL penalty is part of the token rewards; else it is a term of the loss
    compares: ClassVar[bool]  # members of a group are compared, so a question needs several
    takes_trees: ClassVar[bool]

    def __init__(self, placement: Placement, training: TrainingConfig,
                 settings: StrictModel | None = None) -> None:
        self.placement: Placement = placement
        self.training = training
        self.settings = settings or self.Settings()

    @abstractmethod
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
        """Credit of the loss tokens of ``rows`` (= ``rows_of(groups)``).

        Args:
            groups: the episodes of each question.
            rewards: as [group][leaf].
            rows: the same episodes as training rows.
            old_logprob_N, reference_logprob_N: log-probabilities under the sampling and the reference policy.
            value_N: the critic's predictions, where ``uses_critic``.
        """


class GroupEstimator(Estimator):
    """An estimator that compares the members of a group: subclasses say how in ``advantages``."""

    uses_critic = False
    kl_in_reward = False
    compares = True
    takes_trees = True

    @abstractmethod
    def advantages(self, group: Group, rewards: Sequence[TrajectoryRewards]) -> list[list[float]]:
        """Ragged ``advantage_L_K``: the advantage of each turn of each leaf of one group."""

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
        """See ``Estimator.credit``. A turn that leaves share sums the weighted advantages of its leaves."""
        weight_of_leaf = leaf_weights(groups, self.training.loss_aggregation)
        positive, negative, weight = ([np.zeros(group.turn_count) for group in groups] for _ in range(3))
        zero_groups = 0
        for g, (group, group_rewards) in enumerate(zip(groups, rewards, strict=True)):
            advantage_L_K = self.advantages(group, group_rewards)
            zero_groups += not any(any(advantage_K) for advantage_K in advantage_L_K)
            for leaf, (node_K, advantage_K) in enumerate(zip(group.node_L_K, advantage_L_K, strict=True)):
                nodes, share = list(node_K), weight_of_leaf[g][leaf]  # a leaf passes a turn once
                positive[g][nodes] += share * np.maximum(advantage_K, 0.0)
                negative[g][nodes] += share * np.minimum(advantage_K, 0.0)
                weight[g][nodes] += share

        def on_tokens(value_of_turn: Sequence[np.ndarray]) -> Tensor:
            value_R = (value_of_turn[row.group][np.array(groups[row.group].node_L_K[row.leaf])[row.turn_N]]
                       for row in rows)
            return torch.from_numpy(np.concatenate([*value_R])).float()

        positive_N, negative_N, weight_N = map(on_tokens, (positive, negative, weight))
        shared = any(group.is_tree for group in groups)
        return TokenCredit((positive_N + negative_N) / weight_N, weight_N, (positive_N, negative_N) if shared else None,
                           zero_std_groups=zero_groups / len(groups))


def leaf_weights(groups: Sequence[Group], aggregation: str) -> list[list[float]]:
    """The weight of each sampled token of each leaf, as [group][leaf]; all tokens together weigh 1.

    ``sequence``: questions weigh the same, the leaves of a question too, and the tokens of a leaf share
    its weight: 1 / (Q L |y|) (Eq. 3 and 7). ``token``: all tokens of the batch weigh the same.

    Raises:
        ValueError: unknown aggregation.
    """
    match aggregation:
        case "token":
            total = sum(leaf.sampled_count for group in groups for leaf in group.transcripts)
            return [[1 / total for _ in group.transcripts] for group in groups]
        case "sequence":
            return [[1 / (len(groups) * len(group.transcripts) * leaf.sampled_count) for leaf in group.transcripts]
                    for group in groups]
        case _:
            raise ValueError(f"unknown loss aggregation {aggregation!r}: use 'sequence' or 'token'")


def make_estimator(algorithm: Algorithm, training: TrainingConfig) -> Estimator:
    """The estimator of an algorithm.

    Raises:
        ConfigError: ``settings`` has a key or value that the estimator does not take, or the estimator
            does not go with the rollout.
    """
    module, _, name = ESTIMATORS[algorithm.estimator][algorithm.placement].partition(":")
    kind: type[Estimator] = getattr(import_module(f"turncredit.credit.{module}"), name)
    try:
        settings = kind.Settings.model_validate(algorithm.settings)
    except ValidationError as error:
        raise ConfigError(f"algorithm.settings of estimator {algorithm.estimator!r}: {explain(error, kind.Settings)}",
                          "correct config/algorithms.yaml") from error
    if kind.compares and algorithm.rollout == "single":
        raise ConfigError(f"estimator {algorithm.estimator!r} compares the episodes of a question: rollout 'single' "
                          "samples only one", "use rollout: chains or rollout: tree")
    if not kind.takes_trees and algorithm.rollout == "tree":
        raise ConfigError(f"estimator {algorithm.estimator!r} takes chains, not trees",
                          "use rollout: single or rollout: chains")
    return kind(algorithm.placement, training, settings)
