"""The registry of estimators: their names in the configuration, and the placements and rollouts that they accept.

Only names, so that reading a configuration imports no estimator; ``base.make_estimator`` imports the
one that a run uses. A new estimator adds one line to each table.
"""

from __future__ import annotations

from typing import Literal

Placement = Literal["terminal", "delayed", "per_turn"]
Rollout = Literal["single", "chains", "tree"]

# estimator -> placement -> module:class of this package
ESTIMATORS: dict[str, dict[Placement, str]] = {
    "group": {"terminal": "grpo:GRPO", "delayed": "grpo:GRPO", "per_turn": "mt_grpo:MTGRPO"},
    "critic": {"terminal": "ppo:PPO", "delayed": "ppo:PPO", "per_turn": "ppo:PPO"},
    "rloo": {"terminal": "rloo:RLOO", "delayed": "rloo:RLOO"},
}

# estimator -> accepted rollouts. A group baseline compares several episodes of a question; a critic takes no trees.
ROLLOUTS: dict[str, tuple[Rollout, ...]] = {
    "group": ("chains", "tree"),
    "critic": ("single", "chains"),
    "rloo": ("chains", "tree"),
}
