"""Settings of an algorithm: estimator, placement, content and rollout, and the estimator's own keys.

Content is independent of the others; an estimator accepts some placements and rollouts (``credit.registry``).
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import Field, field_validator, model_validator

from turncredit.config.base import StrictModel
from turncredit.credit.registry import ESTIMATORS, ROLLOUTS, Placement, Rollout
from turncredit.errors import nearest

Content = Literal["outcome", "merged", "retrieval", "full"]
CONTENTS: tuple[Content, ...] = get_args(Content)


class Algorithm(StrictModel):
    """An algorithm of ``config/algorithms.yaml``."""

    estimator: str  # how advantages are estimated: a name of credit.registry.ESTIMATORS
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
    def _estimator_accepts(self) -> Algorithm:
        for key, value, accepted in (("placement", self.placement, ESTIMATORS[self.estimator]),
                                     ("rollout", self.rollout, ROLLOUTS[self.estimator])):
            if value not in accepted:
                raise ValueError(f"{key} = {value!r}: estimator {self.estimator!r} accepts {', '.join(accepted)}")
        return self
