"""Whole audits of simulated runs, for the error rate and the power of the verdicts.

``python -m tests.simulated_audits 2000`` prints how often an audit of exchangeable arms holds a false verdict, and how
often planted effects of the printed size are found. The scores come from a model with three random factors (base
policy, arm within base policy, seed); the comparisons, preconditions and verdicts are those of the project.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from turncredit.config.load import Scale, load_scale
from turncredit.reporting.claims import Comparison, Result, compare, decide, family_size, smallest_effect
from turncredit.reporting.inference import Array, Bases
from turncredit.reporting.reported import Reported, read_reported
from turncredit.reporting.scores import ArmRuns, Results

ROOT = Path(__file__).parents[1]
TRUE_VERDICTS = {9: "supported", 11: "opposite", 14: "opposite"}  # of exchangeable arms; and "equivalent" of any claim
_LEVELS = {"format_correct": 0.975, "component_tool_execution": 0.1, "component_search_answer": 0.25,
           "component_xml_format": 0.1, "turns_mean": 2.5, "searches_mean": 1.5, "trajectories": 8.0}
_SCALES = {"component_tool_execution": 0.2, "component_xml_format": 0.2, "component_search_answer": 0.5,
           "format_correct": 0.2, "turns_mean": 5.0, "searches_mean": 5.0}
_NO_ROWS = pd.DataFrame()


class _AnyColumn(pd.DataFrame):
    """A table of metrics with every column."""

    @property
    def empty(self) -> bool:
        return False

    @property
    def columns(self) -> _Everything:  # type: ignore[override]
        return _Everything()


class _Everything:
    def __contains__(self, name: object) -> bool:
        return True


@dataclass(frozen=True)
class Design:
    """What the runs of an audit are drawn from.

    Attributes:
        ratio: variance between base policies over variance over seeds, of arms within base policies.
        sd: standard deviation over seeds of exact match; other metrics follow with their scale.
        noisy: factor of the standard deviation of every second arm.
        skewed: seeds are skewed by rare large falls.
        effects: what is added to the scores of an arm.
    """

    bases: int = 3
    seeds: int = 4
    ratio: float = 0.5
    sd: float = 0.05
    noisy: float = 1.0
    skewed: bool = False
    effects: Mapping[str, float] | None = None


class SimulatedArm(ArmRuns):
    """An arm whose scores are drawn and not read; each run has one quality, and each score its own noise."""

    def __init__(self, name: str, quality_S: Array, base_S: Bases, rng: np.random.Generator, sd: float) -> None:
        super().__init__("simulated", name, _AnyColumn(), _NO_ROWS, "simulated")
        self.__dict__.update(_quality=quality_S, _base=base_S, _rng=rng, _sd=sd)

    @property
    def base_S(self) -> Bases:
        return self.__dict__["_base"]

    @property
    def curve_base_S(self) -> Bases:
        return self.__dict__["_base"]

    @property
    def steps(self) -> int:
        return 40

    def _draw(self, metric: str, columns: int) -> Array:
        quality_S, rng, sd = (self.__dict__[name] for name in ("_quality", "_rng", "_sd"))
        noise = rng.normal(0, 0.7 * sd, (len(quality_S), columns))
        scale = next((s for name, s in _SCALES.items() if name in metric), 1.0)
        level = next((s for name, s in _LEVELS.items() if name in metric), 0.5)
        return np.asarray(level + scale * (0.7 * quality_S[:, None] + noise))

    def final(self, metric: str, datasets: Sequence[str]) -> Array:
        return self._draw(metric, len(datasets))

    def final_by_hops(self, metric: str, *, multi: bool) -> Array:
        return self._draw(metric, 1)

    def curve(self, column: str) -> tuple[Array, Array]:
        step_T = np.arange(0, 41, 5.0) if column.startswith("validation") else np.arange(1.0, 41)
        if column == "questions":
            return step_T, np.ones((len(self.base_S), len(step_T)))
        return step_T, self._draw(column, len(step_T))


class SimulatedResults(Results):
    """Drawn runs of every arm; arms with ``same_as`` are the arm that they name."""

    def arm(self, experiment: str, arm: str) -> ArmRuns | None:
        return self.__dict__["arms_drawn"][self.scale.identical(experiment, arm)]

    def untrained(self, kind: str, experiment: str) -> ArmRuns | None:
        return SimulatedArm(kind, np.zeros(1), np.zeros(1, dtype=np.int64), np.random.default_rng(0), 0.0)


def draw(scale: Scale, design: Design, rng: np.random.Generator) -> Results:
    """The runs of one audit."""
    results = SimulatedResults(scale, {})
    base_S = np.repeat(np.arange(design.bases), design.seeds)
    shared_B = rng.normal(0, design.sd * np.sqrt(2.0), design.bases)
    names = {scale.identical(e, arm) for e in ("search", "two_turn", "ablation") for arm in results.arm_names(e)}
    drawn: dict[tuple[str, str], ArmRuns] = {}
    for place, key in enumerate(sorted(names)):
        sd = design.sd * (design.noisy if place % 2 else 1.0)
        own_B = shared_B + rng.normal(0, sd * np.sqrt(design.ratio), design.bases)
        seed_S = rng.normal(0, 1, len(base_S))
        if design.skewed:
            fell_S = rng.random(len(base_S)) < 0.15
            seed_S = (0.5 * seed_S - 2.4 * (fell_S - 0.15))
        effect = (design.effects or {}).get(key[1], 0.0)
        drawn[key] = SimulatedArm(key[1], own_B[base_S] + sd * seed_S + effect, base_S, rng, sd)
    results.__dict__["arms_drawn"] = drawn
    return results


def audit_once(scale: Scale, reported: Reported, design: Design,
               rng: np.random.Generator) -> tuple[dict[int, list[Comparison]], dict[int, Result]]:
    """The comparisons and the verdicts of one simulated audit, by claim."""
    results = draw(scale, design, rng)
    claims = {claim.claim_id: [c for test in reported.tests if test.claim_id == claim.claim_id
                               and test.role == "primary" for c in compare(test, results)]
              for claim in reported.claims}
    return claims, decide(claims)


def false_verdicts(verdicts: Mapping[int, Result]) -> list[tuple[int, str]]:
    """Verdicts that are false of exchangeable arms."""
    return [(claim, found.verdict) for claim, found in verdicts.items()
            if found.verdict in ("supported", "opposite") and TRUE_VERDICTS.get(claim) != found.verdict]


def error_rate(design: Design, audits: int, seed: int) -> tuple[float, float]:
    """Share of audits of exchangeable arms with a false verdict, and with a difference that looks real alone."""
    scale, reported, rng = load_scale("mini", ROOT / "config"), read_reported(ROOT / "paper_tables/reported"), (
        np.random.default_rng(seed))
    wrong = np.zeros((audits, 2))
    for row in wrong:
        claims, verdicts = audit_once(scale, reported, design, rng)
        row[0] = bool(false_verdicts(verdicts))
        row[1] = any(c.finding in ("holds", "reversed") and c.arm_b and c.test.direction != "similar"
                     and c.test.threshold == 0 for comparisons in claims.values() for c in comparisons)
    return float(wrong[:, 0].mean()), float(wrong[:, 1].mean())


def found_rate(claim: int, arm: str, design: Design, audits: int, seed: int) -> tuple[float, float]:
    """The effect that is printed (median over audits without it), and how often it is found once it is planted."""
    scale, reported, rng = load_scale("mini", ROOT / "config"), read_reported(ROOT / "paper_tables/reported"), (
        np.random.default_rng(seed))
    printed: list[float] = []
    for _ in range(40):
        claims, _ = audit_once(scale, reported, design, rng)
        family = family_size(claims.values())
        printed += [e for c in claims[claim] if (e := smallest_effect(c, claims[claim], family)) is not None]
    size = float(np.median(printed))
    planted = Design(design.bases, design.seeds, design.ratio, design.sd, design.noisy, design.skewed,
                     {arm: size / 0.7})
    found = [audit_once(scale, reported, planted, rng)[1][claim].verdict == "supported" for _ in range(audits)]
    return size, float(np.mean(found))


def main(audits: int) -> None:
    """Print the rates of several designs."""
    variants: tuple[dict[str, Any], ...] = ({}, {"noisy": 2.5}, {"skewed": True})
    for ratio in (0.0, 0.5, 2.0):
        for extra in variants:
            print(f"3 x 4, ratio {ratio}, {extra or 'normal'}:", error_rate(Design(3, 4, ratio, **extra), audits, 1),
                  flush=True)
    for bases, seeds in ((6, 4), (6, 2), (1, 10)):
        print(f"{bases} x {seeds}, ratio 0.5:", error_rate(Design(bases, seeds), audits, 1), flush=True)
    for bases, seeds in ((3, 4), (6, 2), (6, 4), (1, 10)):
        size, share = found_rate(4, "MT-PPO", Design(bases, seeds), audits, 2)
        print(f"{bases} x {seeds}: claim 4 with an effect of {size:.3f} is supported in {share:.3f}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]))
