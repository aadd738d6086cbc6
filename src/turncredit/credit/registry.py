"""Estimators by their word in the configuration, and by the reward placements that each of them takes.

A table of names only, so that reading a configuration imports no estimator. ``base.make_estimator``
imports the one that a run uses.
"""

from __future__ import annotations

from typing import Literal

Placement = Literal["terminal", "delayed", "per_turn"]

# estimator -> placement -> module:class of this package
ESTIMATORS: dict[str, dict[Placement, str]] = {
    "group": {"terminal": "grpo:GRPO", "delayed": "grpo:GRPO", "per_turn": "mt_grpo:MTGRPO"},
    "critic": {"terminal": "ppo:PPO", "delayed": "ppo:PPO", "per_turn": "ppo:PPO"},
    "rloo": {"terminal": "rloo:RLOO", "delayed": "rloo:RLOO"},
}
