"""What a scale's runs begin with: questions and their passages, and the policy before reinforcement."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from turncredit.config.base import StrictModel, optional

SEEDS_PER_BASE = 10  # warm-start seeds between one base policy's first and the next one's
Dataset = Literal["facts", "bridge", "inverse", "compose", "chain", "long_chain"]


class WorldConfig(StrictModel):
    """The mini world: real country facts as passages and questions."""

    seed: int = 0
    cities: int = Field(2000, ge=0)  # distractor passages about cities
    train_questions: int = Field(2000, ge=1)  # per in-domain dataset
    validation_questions: int = Field(64, ge=1)  # per in-domain dataset
    test_questions: int = Field(100, ge=1)  # per dataset
    in_domain: tuple[Dataset, ...] = ("facts", "bridge")
    out_of_domain: tuple[Dataset, ...] = ("inverse", "compose", "chain")
    known_countries: float = Field(0.0, ge=0, le=1)  # share of each split's countries whose facts policies know

    @model_validator(mode="after")
    def _each_dataset_once(self) -> WorldConfig:
        names = (*self.in_domain, *self.out_of_domain)
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"out_of_domain: {repeated[0]!r} is named twice; name it here or in in_domain, once")
        return self


class QuestionsConfig(StrictModel):
    """Real question sets, by their names in ``config/sources.yaml``."""

    seed: int = 0  # of the choice of questions, where a limit leaves some out
    in_domain: tuple[str, ...] = Field(min_length=1)
    out_of_domain: tuple[str, ...] = ()
    apart: tuple[str, ...] = ()  # in neither column: for experiments that name them
    train_questions: int | None = Field(None, ge=1)  # at most, a set; null: all
    validation_questions: int = Field(512, ge=1)  # a set; never among its train or test questions
    test_questions: int | None = Field(None, ge=1)  # at most, a set; null: all

    @model_validator(mode="after")
    def _each_set_once(self) -> QuestionsConfig:
        names = (*self.in_domain, *self.out_of_domain, *self.apart)
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"in_domain, out_of_domain, apart: {repeated[0]!r} is named twice; name it once")
        return self


class PolicyConfig(StrictModel):
    """The model: a small Qwen2 made here, or any path or hub id that transformers loads."""

    path_or_id: str | None = None
    revision: str | None = optional()  # of a hub id: a commit
    vocabulary: int = Field(4096, ge=256)
    hidden_size: int = Field(96, ge=8)
    layers: int = Field(3, ge=1)
    heads: int = Field(3, ge=1)
    kv_heads: int = Field(3, ge=1)
    intermediate_size: int = Field(256, ge=8)
    max_positions: int = Field(512, ge=32)


class Limits(StrictModel):
    """The least and the greatest allowed value of a number."""

    min: float | None = optional()
    max: float | None = optional()

    @model_validator(mode="after")
    def _allows_something(self) -> Limits:
        if self.min is None and self.max is None:
            raise ValueError("min and max are missing: add one of them")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min = {self.min:g}: is above max = {self.max:g}")
        return self

    def fault(self, value: float) -> str:
        """The limit that ``value`` breaks, in words; "" if none. NaN breaks every limit.

        >>> Limits(min=0.7, max=0.85).fault(0.9), Limits(min=0.7).fault(0.9)
        ('above 0.85', '')
        """
        if self.min is not None and not value >= self.min:
            return f"below {self.min:g}"
        return f"above {self.max:g}" if self.max is not None and not value <= self.max else ""


class WarmStartConfig(StrictModel):
    """Supervised start: skills from correct demonstrations, then bad habits from degraded ones."""

    seed: int = Field(0, ge=0)  # of base policy 0 and its first attempt: see ``seed_of``
    attempts: int = Field(1, ge=1, le=SEEDS_PER_BASE)  # warm starts that a base policy may try
    gates: dict[str, Limits] = Field(default={})  # limits of measured difficulty; none: the first attempt is taken
    batch: int = Field(48, ge=1)  # demonstrations an optimiser step
    expert_steps: int = Field(1200, ge=1)  # of the expert policy, which is trained on demonstrations
    degraded_steps: int = Field(300, ge=1)  # from the expert policy to a task's initial policy
    one_hop_epochs: int = Field(4, ge=0)  # passes over the one-hop questions before all of them
    expert_learning_rate: float = Field(3e-3, gt=0)
    muon_learning_rate: float = Field(2e-2, gt=0)  # of the expert policy's matrices; scales with the other
    degraded_learning_rate: float = Field(1e-3, gt=0)
    warmup_steps: int = Field(50, ge=0)
    threads: int = Field(2, ge=1)
    flaws: dict[str, Annotated[float, Field(ge=0, le=1)]]  # mean chance of each flaw of the tasks at a decision
    flaw_spread: float = Field(0.5, ge=0, lt=1)  # how unevenly flaws fall on the kinds of question
    recited: float = Field(0.0, ge=0, lt=1)  # share of the demonstrations that recite the facts of known countries

    def seed_of(self, base: int, attempt: int) -> int:
        """The warm-start seed of an attempt of a base policy, both from 0."""
        return self.seed + SEEDS_PER_BASE * base + attempt
