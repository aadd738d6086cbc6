"""The settings of one training run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

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
    tree_branching: int = Field(2, ge=2)  # turns sampled from each state of rollout `tree`: G of the paper's trees
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
