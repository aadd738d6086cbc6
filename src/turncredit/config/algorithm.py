"""The settings of an algorithm: four words, each free of the others, and the estimator's own keys."""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import Field, field_validator, model_validator

from turncredit.config.base import StrictModel
from turncredit.credit.registry import ESTIMATORS, Placement
from turncredit.errors import nearest

Content = Literal["outcome", "merged", "full"]
CONTENTS: tuple[Content, ...] = get_args(Content)
Rollout = Literal["single", "chains", "tree"]


class Algorithm(StrictModel):
    """An algorithm of ``config/algorithms.yaml``."""

    estimator: str  # how advantages are estimated: a word of credit.registry.ESTIMATORS
    placement: Placement  # where rewards are placed: M1, M2, M3
    content: Content  # which reward components count
    rollout: Rollout  # how a question's episodes are sampled: one chain, G chains, a tree
    settings: dict[str, Any] = Field(default={})  # the estimator's own keys (its ``Settings``)

    @field_validator("estimator")
    @classmethod
    def _is_registered(cls, word: str) -> str:
        if word not in ESTIMATORS:
            raise ValueError(f" = {word!r}: no such estimator; {nearest(word, ESTIMATORS)}")
        return word

    @model_validator(mode="after")
    def _placement_fits_the_estimator(self) -> Algorithm:
        if self.placement not in (takes := ESTIMATORS[self.estimator]):
            raise ValueError(f"placement = {self.placement!r}: estimator {self.estimator!r} takes {', '.join(takes)}")
        return self
