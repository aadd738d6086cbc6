"""Settings of the credit bench (docs/CREDIT_BENCH.md), and the names of its files, columns and special values."""

from __future__ import annotations

import re
from typing import Self

from pydantic import Field, field_validator, model_validator

from turncredit.config.base import StrictModel
from turncredit.config.names import ARM

INITIAL = "initial"
CREDIT_BENCH = "credit_bench"  # name of its folder of results
COLUMNS = ("scale", "base", "checkpoint", "arm", "variant", "quantity", "target", "value", "standard_error", "tokens")
FILES = ("credit_bench.csv", "manifest.json")  # results of one checkpoint
COLLECTED = ("credit_bench.csv", "manifests.json")  # results of all base policies and checkpoints, joined
TRUTH = "truth"  # in the column arm: rows about the true gradients themselves
PAID = "paid_return"  # in the column target: the sum of what the arm itself is paid
_TRAINED = re.compile(rf"{ARM}\.(final|step-[0-9]+)")


class CreditBenchConfig(StrictModel):
    """The credit bench of a scale. It trains nothing, so none of these keys is part of a run's hash."""

    experiment: str | None = None  # whose task, questions and training settings are used; null: the first one
    checkpoints: tuple[str, ...] = (INITIAL,)  # `initial`, or a trained policy of seed 0: `ARM.final`, `ARM.step-20`
    base_policies: int | None = Field(None, ge=1)  # how many are measured in the workflow; null: all of the scale
    chains: int = Field(4096, ge=8)  # episodes from which the true gradients are computed
    chains_per_question: int = Field(8, ge=2)  # how many of them each question has
    batches: int = Field(16, ge=4)  # training batches of each arm, of `training.tokens_per_step` sampled tokens each
    probes: int = Field(320, ge=8)  # episodes whose turns get Q and V from resampled continuations
    continuations: int = Field(24, ge=4, multiple_of=4)  # episodes from each state of a probe
    replicates: int = Field(4, ge=4, multiple_of=2)  # batches in which each probed turn is credited again
    sweep_batches: int = Field(8, ge=0)  # batches of each arm in the sweeps below; 0: no sweeps
    group_sizes: tuple[int, ...] = ()  # sweep of `training.group_size`
    tree_branchings: tuple[int | tuple[int, ...], ...] = ()  # sweep of `training.tree_branching`
    turn_limits: tuple[int, ...] = ()  # sweep of `task.max_turns`
    coordinates: int = Field(2**20, ge=1)  # most parameters whose gradients are compared; above it, a random subset

    @field_validator("checkpoints")
    @classmethod
    def _are_checkpoints(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name != INITIAL and not _TRAINED.fullmatch(name):
                raise ValueError(f": {name!r} is no checkpoint; use {INITIAL}, ARM.final or ARM.step-20")
        return names

    @model_validator(mode="after")
    def _questions_divide_chains(self) -> Self:
        if self.chains < 2 * self.chains_per_question:
            raise ValueError(f"chains = {self.chains}: at least two questions of {self.chains_per_question} chains")
        return self

    def quick(self) -> CreditBenchConfig:
        """The same measurements with the fewest samples: seconds instead of minutes, and wide intervals."""
        return self.model_copy(update={
            "chains": min(self.chains, 256), "chains_per_question": min(self.chains_per_question, 4), "batches": 4,
            "probes": min(self.probes, 24), "continuations": 4, "replicates": 4, "sweep_batches": 0})
