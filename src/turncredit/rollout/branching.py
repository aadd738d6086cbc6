"""How many turns are sampled from each state: one chain, G chains or a tree."""

from __future__ import annotations

import math
from collections.abc import Sequence

from turncredit.config.training import TrainingConfig
from turncredit.credit.registry import Rollout


def branching_of(rollout: Rollout, max_turns: int, training: TrainingConfig) -> tuple[int, ...]:
    """Turns sampled from each state, ``branching_K``, one number for each turn.

    Args:
        rollout: ``single``: one chain per question. ``chains``: ``group_size`` chains, which branch at the
            first turn only. ``tree``: see ``TrainingConfig.tree_branching_K`` (appendix D).
        max_turns: N_max.
        training: ``group_size`` and ``tree_branching``.

    Raises:
        ValueError: unknown rollout, or a ``tree_branching`` that does not fit ``max_turns``.

    >>> settings = TrainingConfig(group_size=8, tree_branching=3)
    >>> [branching_of(rollout, 4, settings) for rollout in ("single", "chains", "tree")]
    [(1, 1, 1, 1), (8, 1, 1, 1), (3, 3, 3, 1)]
    """
    later = (1,) * (max_turns - 1)
    match rollout:
        case "single":
            return (1, *later)
        case "chains":
            return (training.group_size, *later)
        case "tree":
            return training.tree_branching_K(max_turns)
        case _:
            raise ValueError(f"unknown rollout {rollout!r}: use single, chains or tree")


def copies_of(branching_K: Sequence[int]) -> list[int]:
    """``copies_K``, branching_1 * ... * branching_k: how often turn k is sampled if no episode ends early.

    >>> copies_of((3, 3, 1))
    [3, 9, 9]
    """
    return [math.prod(branching_K[:k + 1]) for k in range(len(branching_K))]
