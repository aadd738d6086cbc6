"""Base models of a task's settings; each task extends them in ``tasks/<name>/config.py``."""

from __future__ import annotations

from pydantic import Field

from turncredit.config.base import StrictModel


class TaskConfig(StrictModel):
    """The limits of an episode, which rollout and planning read from every task."""

    name: str
    max_turns: int = Field(4, ge=1)  # N_max: the model's turns
    max_turn_tokens: int = Field(32, ge=1)  # sampled tokens of one turn
    max_observation_tokens: int = Field(96, ge=8)  # of one observation, scaffolding included
    max_context_tokens: int = Field(512, ge=16)
    max_invalid_turns: int = Field(4, ge=1)


class RewardConfig(StrictModel):
    """The values of a task's rewards."""
