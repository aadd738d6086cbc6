"""What SLURM is asked for, job by job: read by ``profiles/slurm/config.yaml``, never by a run.

What a rule needs stands in the profile; how clusters differ, in one small file, ``SITE``. Both become
Snakemake's resources, whose values are expressions over ``wildcards`` and ``attempt``.
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
    """A number that may differ between scales.

    >>> Amount.of({"paper": 8, "else": 1}).resource
    "(8 if wildcards.scale == 'paper' else 1)"
    >>> Amount.of(4).resource
    4
    """

    scales: Mapping[str, int]
    otherwise: int

    @classmethod
    def of(cls, written: Any) -> Amount:
        """From a number, or a mapping from scales to numbers whose key ``else`` (0 without it) is for all others.

        Raises:
            PydanticCustomError: something else, or a negative number.
        """
        if isinstance(written, Amount):
            return written
        numbers = dict(written) if isinstance(written, Mapping) else {_ELSE: written}
        if not all(type(number) is int and number >= 0 for number in numbers.values()):
            raise PydanticCustomError("amount", "neither a whole number >= 0 nor a mapping from scales to such numbers")
        otherwise = numbers.pop(_ELSE, 0)
        return cls(numbers, otherwise)

    @property
    def resource(self) -> int | str:
        """For Snakemake: the number, or an expression (without braces, over which it would trip)."""
        cases = [f"{number} if wildcards.scale == {scale!r} else " for scale, number in self.scales.items()]
        return f"({''.join(cases)}{self.otherwise})" if cases else self.otherwise


class Needs(StrictModel):
    """What a job of one rule asks for; null: what every job asks for.

    Attributes:
        mem_mb: memory, MB.
        runtime: minutes of the first attempt; the n-th gets n times as many.
        gpu: GPUs, on one node.
        together: how many jobs of the rule at most share a submission, one after another.
    """

    model_config = ConfigDict(arbitrary_types_allowed=True)

    mem_mb: Annotated[Amount | None, BeforeValidator(Amount.of)] = None
    runtime: Annotated[Amount | None, BeforeValidator(Amount.of)] = None
    gpu: Annotated[Amount | None, BeforeValidator(Amount.of)] = None
    together: int = Field(1, ge=1)

    def replaced_by(self, other: Needs) -> Needs:
        """With what ``other`` names in place of this."""
        return self.model_copy(update={key: need for key in other.model_fields_set if (need := getattr(other, key))})


class Site(StrictModel):
    """One cluster's ways; ``profiles/slurm/site.example.yaml`` tells each key."""

    account: Word | None = None
    qos: Word | None = None
    partition: Word | None = None
    gpu_partition: Word | None = None
    gpu_model: Word | None = None
    gpus_by: Literal["gres", "gpus"] = "gres"
    constraint: Word | None = None
    extra: str = ""
    max_runtime: int = Field(1440, ge=1)
    warning_s: int = Field(300, ge=1, le=65535)
    jobs: int = Field(100, ge=1)
    status_command: Literal["squeue", "sacct"] = "squeue"
    needs: dict[str, Needs] = Field(default_factory=dict)

    @classmethod
    def read(cls, path: Path = SITE) -> Site:
        """The site's file; where there is none, a cluster without accounts and with one partition.

        Raises:
            ConfigError: it is no YAML, or a key or value in it cannot be used.
        """
        if not path.exists():
            return cls()
        try:
            return cls.model_validate(read_mapping(path))
        except ValidationError as error:
            raise ConfigError(f"{path}: {explain(error, cls)}",
                              "profiles/slurm/site.example.yaml tells every key") from None

    def default_resources(self, **needs: int) -> Resources:
        """Snakemake's ``default-resources``: what a rule asks for that ``set_resources`` does not name."""
        return {"nodes": 1, "turn": 1, **self._resources(Needs.model_validate(needs)), **_words(
            slurm_account=self.account, slurm_partition=self.partition, qos=self.qos, constraint=self.constraint,
            slurm_extra=f"--signal=USR1@{self.warning_s} {self.extra}".rstrip())}

    def needs_of(self, rules: Mapping[str, Mapping[str, Any]]) -> dict[str, Needs]:
        """The needs of the profile's rules, on this site.

        Raises:
            ConfigError: the site names a rule that the profile does not name.
        """
        for rule in self.needs.keys() - rules.keys():
            raise ConfigError(f"{SITE}: needs.{rule}: no such rule in the profile", nearest(rule, rules))
        return {rule: Needs.model_validate(needs).replaced_by(self.needs.get(rule, Needs()))
                for rule, needs in rules.items()}

    def set_resources(self, rules: Mapping[str, Mapping[str, Any]]) -> dict[str, Resources]:
        """Snakemake's ``set-resources``, from the profile's rules and their needs; errors as ``needs_of``."""
        return {rule: self._resources(needs) for rule, needs in self.needs_of(rules).items()}

    def _resources(self, needs: Needs) -> Resources:
        found: Resources = {}
        if needs.mem_mb:
            found["mem_mb"] = needs.mem_mb.resource
        if needs.runtime:
            longest = max(1, self.max_runtime // needs.together)
            found["runtime"] = f"min({needs.runtime.resource} * attempt, {longest})"
        if needs.gpu:
            gpu = needs.gpu.resource
            model = f"{self.gpu_model}:" if self.gpu_model else ""
            found |= ({"gres": f"'gpu:{model}' + str({gpu}) if {gpu} else None"} if self.gpus_by == "gres" else
                      {"gpu": gpu, "gpu_model": f"{self.gpu_model!r} if {gpu} else None"})
            found["slurm_partition"] = f"{self.gpu_partition or self.partition!r} if {gpu} else {self.partition!r}"
        return found


def _words(**words: str | None) -> Resources:
    """Words that are not null, quoted: Snakemake would take a bare ``all`` for Python's."""
    return {key: repr(word) for key, word in words.items() if word is not None}
