"""The ``--config`` of a Snakemake call: scale, base policies, seeds and experiments, and which runs are plotted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from turncredit.config.load import Scale
from turncredit.errors import ConfigError, nearest

KEYS = ("scale", "bases", "seeds", "runs", "experiments")


def typed(config: Mapping[str, Any]) -> dict[str, Any]:
    """The values of ``--config`` in the types of ``workflow/schemas/config.schema.json``.

    On the command line a single experiment is a text, and the numbers inside a mapping stay text.

    >>> typed({"experiments": "search", "seeds": {"search": "10"}})
    {'experiments': ['search'], 'seeds': {'search': 10}}

    Raises:
        ConfigError: an unknown key.
    """
    for key in config:
        if key not in KEYS:
            raise ConfigError(f"--config {key}: no such key", nearest(key, KEYS))
    parsed = dict(config)
    if isinstance(parsed.get("experiments"), str):
        parsed["experiments"] = [parsed["experiments"]]
    if isinstance(parsed.get("seeds"), dict):
        parsed["seeds"] = {name: int(n) if str(n).isdigit() else n for name, n in parsed["seeds"].items()}
    return parsed


@dataclass(frozen=True, slots=True)
class WorkflowRequest:
    """What one call of the workflow requests.

    Attributes:
        scale: name of ``config/<scale>.yaml``.
        runs: which runs are plotted. ``fresh``: trained here. ``shipped``: the committed ones. ``auto``: fresh where
            all of them exist, else shipped, else trained now.
        bases: base policies of every arm; None: as the scale's config says.
        seeds: training seeds of every arm, or by experiment; None: as the scale's config says.
        experiments: the requested experiments; None: all of the scale.
    """

    scale: str
    runs: Literal["auto", "fresh", "shipped"] = "auto"
    bases: int | None = None
    seeds: int | Mapping[str, int] | None = None
    experiments: tuple[str, ...] | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any], scales: Mapping[str, Scale]) -> WorkflowRequest:
        """Make the request of a (typed and validated) ``--config``.

        Raises:
            ConfigError: no such scale, no such experiment at it, or several base policies without a warm start.
        """
        name, seeds, experiments = config["scale"], config.get("seeds"), config.get("experiments")
        if name not in scales:
            raise ConfigError(f"no scale {name!r} in config/", nearest(name, scales))
        known = scales[name].experiments
        for experiment in (*(experiments or ()), *(seeds if isinstance(seeds, dict) else ())):
            if experiment not in known:
                raise ConfigError(f"--config: no experiment {experiment!r} at scale {name!r}",
                                  nearest(experiment, known))
        bases = config.get("bases")
        scales[name].check_base((bases or 1) - 1)
        return cls(name, config["runs"], bases, seeds, None if experiments is None else tuple(experiments))

    def includes(self, experiment: str) -> bool:
        """Whether an experiment is requested."""
        return self.experiments is None or experiment in self.experiments
