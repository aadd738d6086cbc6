"""What every estimator shares: its interface, its result, and the way from turns to tokens."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from torch import Tensor

from turncredit.config.algorithm import Algorithm
from turncredit.config.base import StrictModel, explain
from turncredit.config.training import GaeTokens, TrainingConfig
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

    ``_M`` runs over the critic's tokens (``Row.value_mask``), which are the loss tokens unless
    ``training.gae_tokens`` is ``response``.

    Attributes:
        advantage_N: A_t. For a token that several leaves of a tree share: their weighted mean.
        weight_N: the token's share of the objective; sums to 1.
        signed_sums_N: for trees only, ``(positive_N, negative_N)``: weighted advantages summed over the leaves
            that share the token, positive and negative ones apart, because the clip treats them
            differently (``losses.tree_policy_loss``). None where no leaves share a turn.
        return_M: targets of the critic, or None.
        value_weight_M: each token's share of the critic's loss, or None; sums to 1.
        zero_std_groups: fraction of groups whose advantages are all 0, or None.
    """

    advantage_N: Tensor
    weight_N: Tensor
    signed_sums_N: tuple[Tensor, Tensor] | None = None
    return_M: Tensor | None = None
    value_weight_M: Tensor | None = None
    zero_std_groups: float | None = None


class Estimator(ABC):
    """Turns rewards into credit. The trainer uses an algorithm only through this interface.

    Args:
        placement: where rewards are placed; the registry names the placements that an estimator takes.
        training: discounts, loss aggregation and the KL coefficient.
        settings: the estimator's own configuration keys, an instance of ``Settings``.
    """

    Settings: ClassVar[type[StrictModel]] = StrictModel  # a subclass with the estimator's own keys, if it has any
    uses_critic: ClassVar[bool]
    kl_in_reward: ClassVar[bool]  # the KL penalty is part of the token rewards; else it is a term of the loss

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
        value_M: Tensor | None = None,
    ) -> TokenCredit:
        """Credit of the loss tokens of ``rows``, which must be ``rows_of(groups)``.

        Args:
            groups: the episodes of each question.
            rewards: as [group][leaf].
            rows: the same episodes as training rows.
            old_logprob_N, reference_logprob_N: log-probabilities under the sampling and the reference policy.
            value_M: the critic's predictions, where ``uses_critic``.

        Raises:
            ValueError: see ``check_rewards``.
        """

    @abstractmethod
    def turn_credits(self, group: Group, rewards: Sequence[TrajectoryRewards]) -> list[list[float]] | None:
        """Ragged ``credit_L_K`` for display: the credit of each turn of each leaf of one group.

        Advantages of a group baseline; returns of a critic, which are its advantages at V = 0, before whitening and
        without the KL penalty. None if these episodes have no such credit.
        """


class GroupEstimator(Estimator):
    """An estimator that compares the members of a group: subclasses say how in ``advantages``."""

    uses_critic = False
    kl_in_reward = False

    @abstractmethod
    def advantages(self, group: Group, rewards: Sequence[TrajectoryRewards]) -> list[list[float]]:
        """Ragged ``advantage_L_K``: the advantage of each turn of each leaf of one group."""

    def turn_credits(self, group: Group, rewards: Sequence[TrajectoryRewards]) -> list[list[float]] | None:
        """See ``Estimator.turn_credits``; None for a group of one."""
        return None if len(group.transcripts) == 1 else self.advantages(group, rewards)

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
        """See ``Estimator.credit``. A turn that leaves share sums the weighted advantages of its leaves."""
        check_rewards(groups, rewards)
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


def on_all_turns(advantage_L: NDArray[np.float64], group: Group) -> list[list[float]]:
    """Ragged ``advantage_L_K``: the advantage of a whole trajectory for each of its turns."""
    return [[advantage] * len(leaf.turns)
            for advantage, leaf in zip(advantage_L.tolist(), group.transcripts, strict=True)]


def check_rewards(groups: Sequence[Group], rewards: Sequence[Sequence[TrajectoryRewards]]) -> None:
    """Refuse rewards that do not fit their episodes, before any of them is paid.

    Raises:
        ValueError: not one set of rewards for each leaf, not one R^I for each turn, a reward that is not finite, or
            leaves that share a turn and disagree on its R^I.
    """
    if not groups or [len(leaves) for leaves in rewards] != [len(group.transcripts) for group in groups]:
        raise ValueError(f"rewards of {[len(leaves) for leaves in rewards]} leaves for groups of "
                         f"{[len(group.transcripts) for group in groups]}; each leaf has one")
    for group, leaves in zip(groups, rewards, strict=True):
        reward_of_node: dict[int, float] = {}
        for transcript, node_K, reward in zip(group.transcripts, group.node_L_K, leaves, strict=True):
            where = f"an episode of {transcript.item_id!r}"
            if len(reward.intermediate_K) != len(transcript.turns):
                raise ValueError(f"{where}: {len(reward.intermediate_K)} intermediate rewards for "
                                 f"{len(transcript.turns)} turns")
            if not all(map(math.isfinite, (*reward.intermediate_K, reward.outcome))):
                raise ValueError(f"{where}: a reward is not finite: {reward}")
            for node, value in zip(node_K, reward.intermediate_K, strict=True):
                if reward_of_node.setdefault(node, value) != value:
                    raise ValueError(f"{where}: turn {node} has two intermediate rewards, "
                                     f"{reward_of_node[node]} and {value}")


def leaf_weights(groups: Sequence[Group], aggregation: str, tokens: GaeTokens = "sampled") -> list[list[float]]:
    """The weight of each token of each leaf in the objective, as [group][leaf]; all tokens sum to 1.

    ``sequence``: equal for questions, for the leaves of a question and for the tokens of a leaf, so
    1 / (Q L |y|) (Eq. 3, Eq. 7). ``token``: equal for all tokens of the batch. ``tokens`` says which tokens
    count: the sampled ones, or the whole response. Trees weigh their leaves equally here, as the paper does;
    *metrics* weigh them by probability (``evaluation.leaf_shares``).

    Raises:
        ValueError: unknown aggregation.
    """
    count_L = [[leaf.sampled_count if tokens == "sampled" else leaf.response_count for leaf in group.transcripts]
               for group in groups]
    match aggregation:
        case "token":
            total = sum(map(sum, count_L))
            return [[1 / total for _ in counts] for counts in count_L]
        case "sequence":
            return [[1 / (len(groups) * len(counts) * count) for count in counts] for counts in count_L]
        case _:
            raise ValueError(f"unknown loss aggregation {aggregation!r}: use 'sequence' or 'token'")


def make_estimator(algorithm: Algorithm, training: TrainingConfig) -> Estimator:
    """The estimator of an algorithm.

    Raises:
        ConfigError: ``settings`` has a key or value that the estimator does not accept.
    """
    module, _, name = ESTIMATORS[algorithm.estimator][algorithm.placement].partition(":")
    kind: type[Estimator] = getattr(import_module(f"turncredit.credit.{module}"), name)
    try:
        settings = kind.Settings.model_validate(algorithm.settings)
    except ValidationError as error:
        raise ConfigError(f"algorithm.settings of estimator {algorithm.estimator!r}: {explain(error, kind.Settings)}",
                          "correct config/algorithms.yaml") from error
    return kind(algorithm.placement, training, settings)
