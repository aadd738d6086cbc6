"""The settings of one training run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator

from turncredit.config.base import StrictModel, optional

GaeTokens = Literal["sampled", "response"]
Std = Literal["population", "sample"]
SingleMember = Literal["zero", "raw"]


class TrainingConfig(StrictModel):
    """One training run; the same for every arm of an experiment (equal budgets)."""

    CODE: ClassVar[Mapping[str, Any]] = {
        "group_std": "sample", "single_member": "raw", "gae_tokens": "response", "loss_aggregation": "token",
        "weight_decay": 0.01}

    steps: int = Field(60, ge=1)
    tokens_per_step: int = Field(2000, ge=1)  # sampled tokens a step, shared turns counted once
    trajectories_per_step: int | None = optional(ge=1)  # instead of tokens: episodes, the leaves of a tree each
    group_size: int = Field(8, ge=2)  # chains of rollout `chains`: G of group baselines
    # turns sampled from each state of rollout `tree`: one G for every turn but the last, or a list, one for each turn
    tree_branching: int | tuple[int, ...] = 2
    inner_epochs: int = Field(1, ge=1)  # passes over a batch (mu of GRPO, ppo_epochs of PPO)
    minibatches: int = Field(2, ge=1)  # optimiser steps a pass
    micro_batch_tokens: int = Field(8192, ge=1)  # padded tokens a forward pass
    learning_rate: float = Field(3e-4, gt=0)
    critic_learning_rate: float = Field(1e-3, gt=0)
    warmup_steps: int = Field(5, ge=0)
    critic_warmup_steps: int = Field(1, ge=0)
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.99, ge=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    max_grad_norm: float = Field(1.0, gt=0)
    clip_epsilon: float = Field(0.2, gt=0, lt=1)
    value_clip: float = Field(0.5, gt=0)
    kl_coefficient: float = Field(0.001, ge=0)  # beta
    entropy_coefficient: float = Field(0.0, ge=0)
    temperature: float = Field(1.0, gt=0)
    gamma: float = Field(1.0, ge=0, le=1)  # discount: per turn in returns (Eq. 2), per sampled token in GAE (Eq. 8)
    gae_lambda: float = Field(1.0, ge=0, le=1)  # lambda of GAE, per sampled token
    alpha: float = Field(1.0, ge=0, le=1)  # weight of A^O in Eq. 5-6 and 12
    group_std: Std = "population"
    single_member: SingleMember = "zero"  # advantage in a group of one: 0, or its reward
    gae_tokens: GaeTokens = "sampled"  # tokens of GAE, whitening and the critic's loss
    loss_aggregation: Literal["sequence", "token"] = "sequence"  # 1/|y_i| of Eq. 3, or token mean
    validate_every: int = Field(10, ge=1)
    checkpoint_every: int = Field(20, ge=1)

    @field_validator("tree_branching", mode="before")
    @classmethod
    def _a_tree_branches(cls, value: Any) -> Any:
        numbers = value if isinstance(value, list | tuple) else (value,)
        if not all(type(n) is int and n > 0 for n in numbers) or max(numbers, default=0) < 2:
            raise ValueError(f" = {value!r}: a number above 1, or a list of one number above 0 for each turn, "
                             "with one of them above 1")
        return value

    def tree_branching_K(self, max_turns: int) -> tuple[int, ...]:
        """``tree_branching`` written out: turns sampled from each state, one number for each turn.

        A list that is shorter than ``max_turns`` is filled with 1. The last turn is sampled once (appendix D). A
        tree of two turns branches at the first turn only, so with one number it is ``group_size`` chains and
        costs what they cost.

        Raises:
            ValueError: a list is longer than ``max_turns``, or branches at the last turn.

        >>> [TrainingConfig(tree_branching=given).tree_branching_K(4) for given in (3, (4, 2))]
        [(3, 3, 3, 1), (4, 2, 1, 1)]
        """
        given = self.tree_branching
        if isinstance(given, int):
            given = (self.group_size,) if max_turns <= 2 else (given,) * (max_turns - 1)
        elif len(given) > max_turns:
            raise ValueError(f"tree_branching = {[*given]}: {len(given)} numbers for {max_turns} turns "
                             "(task.max_turns)")
        elif len(given) == max_turns and given[-1] != 1:
            raise ValueError(f"tree_branching = {[*given]}: the last of {max_turns} turns (task.max_turns) is sampled "
                             "once; its number is 1")
        return given + (1,) * (max_turns - len(given))
