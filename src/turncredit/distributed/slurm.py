"""SLURM resources of each rule, for ``profiles/slurm/config.yaml``; training does not use this module.

The profile lists what each rule needs; one small file, ``SITE``, describes the cluster. Both become
Snakemake resources, whose values are expressions over ``wildcards`` and ``attempt``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

from turncredit.config.base import StrictModel, explain, read_mapping
from turncredit.errors import ConfigError, nearest

SITE = Path("profiles/slurm/site.yaml")
_ELSE = "else"

Word = Annotated[str, Field(pattern=r"^[^\s'\"]+$")]
Resources = dict[str, str | int]


@dataclass(frozen=True)
class Amount:
    """A whole number that may depend on the scale.

    >>> Amount.of({"paper": 8, "else": 1}).resource
    "(8 if wildcards.scale == 'paper' else 1)"
    >>> Amount.of(4).resource
    4
    """

    scales: Mapping[str, int]
    otherwise: int

    @classmethod
    def of(cls, written: Any) -> Amount:
        """Read a number, or a mapping from scales to numbers; the key ``else`` (default 0) is for all other scales.

        Raises:
            PydanticCustomError: another type, or a negative number.
        """
        if isinstance(written, Amount):
            return written
        numbers = dict(written) if isinstance(written, Mapping) else {_ELSE: written}
        if not all(type(number) is int and number >= 0 for number in numbers.values()):
            raise PydanticCustomError("amount", "expected a whole number >= 0 or a mapping from scales to such numbers")
        otherwise = numbers.pop(_ELSE, 0)
        return cls(numbers, otherwise)

    @property
    def resource(self) -> int | str:
        """The number, or a Snakemake expression; it has no braces, because Snakemake would expand them."""
        cases = [f"{number} if wildcards.scale == {scale!r} else " for scale, number in self.scales.items()]
        return f"({''.join(cases)}{self.otherwise})" if cases else self.otherwise


class JobNeeds(StrictModel):
    """What a job of one rule requests; null: the profile's default.

    Attributes:
        mem_mb: memory, MB.
        runtime: minutes of the first attempt; attempt n gets n times as many.
        gpu: GPUs, on one node.
        jobs_per_submission: at most so many jobs of the rule run in one submission, one after another.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    mem_mb: Annotated[Amount | None, BeforeValidator(Amount.of)] = None
    runtime: Annotated[Amount | None, BeforeValidator(Amount.of)] = None
    gpu: Annotated[Amount | None, BeforeValidator(Amount.of)] = None
    jobs_per_submission: int = Field(1, ge=1)

    def overridden_by(self, other: JobNeeds) -> JobNeeds:
        """Return a copy in which the values that ``other`` sets replace these."""
        return self.model_copy(update={key: value for key in other.model_fields_set if (value := getattr(other, key))})


class Site(StrictModel):
    """Settings of one cluster; ``profiles/slurm/site.example.yaml`` explains each key."""

    account: Word | None = None
    qos: Word | None = None
    partition: Word | None = None
    gpu_partition: Word | None = None
    gpu_model: Word | None = None
    gpus_by: Literal["gres", "gpus"] = "gres"
    constraint: Word | None = None
    extra: str = ""
    max_runtime: int = Field(1440, ge=1)
    max_mem_mb: int | None = Field(None, ge=1)
    warning_s: int = Field(900, ge=1, le=65535)
    jobs: int = Field(100, ge=1)
    status_command: Literal["squeue", "sacct"] = "squeue"
    needs: dict[str, JobNeeds] = Field(default_factory=dict)

    @classmethod
    def read(cls, path: Path = SITE) -> Site:
        """Read the site's file; without one, use the defaults (no account, the default partition).

        Raises:
            ConfigError: it is not YAML, or a key or value is invalid.
        """
        if not path.exists():
            return cls()
        try:
            return cls.model_validate(read_mapping(path))
        except ValidationError as error:
            raise ConfigError(f"{path}: {explain(error, cls)}",
                              "profiles/slurm/site.example.yaml explains every key") from None

    def default_resources(self, **needs: int) -> Resources:
        """Return Snakemake's ``default-resources``, for all that ``set_resources`` does not set."""
        return {"nodes": 1, "submission_slot": 1, **self._resources(JobNeeds.model_validate(needs)), **_quoted(
            slurm_account=self.account, slurm_partition=self.partition, qos=self.qos, constraint=self.constraint,
            slurm_extra=f"--signal=USR1@{self.warning_s} {self.extra}".rstrip())}

    def needs_of(self, rules: Mapping[str, Mapping[str, Any]]) -> dict[str, JobNeeds]:
        """Return the needs of the profile's rules, with this site's overrides.

        Raises:
            ConfigError: the site names a rule that is not in the profile.
        """
        for rule in self.needs.keys() - rules.keys():
            raise ConfigError(f"{SITE}: needs.{rule}: no such rule in the profile", nearest(rule, rules))
        return {rule: JobNeeds.model_validate(needs).overridden_by(self.needs.get(rule, JobNeeds()))
                for rule, needs in rules.items()}

    def set_resources(self, rules: Mapping[str, Mapping[str, Any]]) -> dict[str, Resources]:
        """Return Snakemake's ``set-resources`` for the profile's rules; raises as ``needs_of``."""
        return {rule: self._resources(needs) for rule, needs in self.needs_of(rules).items()}

    def _resources(self, needs: JobNeeds) -> Resources:
        resources: Resources = {}
        if needs.mem_mb:
            asked, most = needs.mem_mb.resource, self.max_mem_mb
            # the first attempt may have died for lack of memory; without a limit, more could fit on no node
            resources["mem_mb"] = asked if most is None else f"min({asked} * (attempt + 1) // 2, {most})"
        if needs.runtime:
            longest = max(1, self.max_runtime // needs.jobs_per_submission)
            resources["runtime"] = f"min({needs.runtime.resource} * attempt, {longest})"
        if needs.gpu:
            gpu = needs.gpu.resource
            model = f"{self.gpu_model}:" if self.gpu_model else ""
            resources |= ({"gres": f"'gpu:{model}' + str({gpu}) if {gpu} else None"} if self.gpus_by == "gres" else
                      {"gpu": gpu, "gpu_model": f"{self.gpu_model!r} if {gpu} else None"})
            resources["slurm_partition"] = f"{self.gpu_partition or self.partition!r} if {gpu} else {self.partition!r}"
        return resources


def _quoted(**words: str | None) -> Resources:
    """The words that are not null, quoted: Snakemake would evaluate a bare ``all`` as Python."""
    return {key: repr(word) for key, word in words.items() if word is not None}
