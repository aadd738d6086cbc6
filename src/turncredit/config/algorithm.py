"""The settings of an algorithm."""

from __future__ import annotations

from typing import Literal

from turncredit.config.base import Closed

Estimator = Literal["group", "critic"]


Placement = Literal["terminal", "delayed", "per_turn"]


Content = Literal["outcome", "merged", "full"]


class Algorithm(Closed):
    """A point of the 2 x 3 grid, and the reward content that goes with it (design: three words)."""

    estimator: Estimator
    placement: Placement
    content: Content
