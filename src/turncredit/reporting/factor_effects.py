"""Main effects of content, placement, estimator, rollout and reading, over all runs of an experiment.

An effect compares the last level of a factor with another one: the mean difference over all pairs of arms that differ
in this factor only. Two settings are no difference of their own: the one chain a question of a critic beside a group's
chains, and the placement of a content that is paid as one number. Arms without a partner are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from turncredit.reporting.arm_labels import (
    CONTENT,
    ESTIMATOR,
    LEVELS,
    PAID_ONCE,
    PLACEMENT,
    ROLLOUT,
    WORDS,
    Factors,
    factors,
)
from turncredit.reporting.outcomes import PRIMARY, Outcome, measured
from turncredit.reporting.samples import Sample, contrast, share_bases
from turncredit.reporting.scores import Results
from turncredit.reporting.statistics import Estimate


@dataclass(frozen=True)
class MainEffect:
    """The effect of one factor on one outcome.

    Attributes:
        experiment: the experiment whose runs it uses.
        factor: content, placement, estimator, rollout or reading.
        low: the level that is subtracted.
        high: the other level.
        outcome: the outcome that is compared.
        estimate: mean at ``high`` minus mean at ``low``.
        pairs: number of pairs of arms.
    """

    experiment: str
    factor: str
    low: str
    high: str
    outcome: Outcome
    estimate: Estimate
    pairs: int

    @property
    def name(self) -> str:
        """The factor and its levels in words."""
        return f"{self.factor} ({self.high} − {self.low})"


def main_effects(results: Results, experiment: str, outcomes: tuple[Outcome, ...] = PRIMARY) -> list[MainEffect]:
    """The effects of all factors of an experiment on some outcomes; empty where it was not run."""
    if experiment not in results.scale.experiments:
        return []
    levels = factors(results.scale, experiment)
    found: list[MainEffect] = []
    for outcome in outcomes:
        samples = measured(outcome, results, experiment)
        for factor in WORDS:
            used = [level for level in LEVELS[factor] if any(arm.get(factor) == level for arm in levels.values())]
            for low, high in ((low, used[-1]) for low in used[:-1]):
                partners = pairs_of_arms(levels, factor, low, high)
                measured_pairs = [pair for pair in partners if {*pair} <= samples.keys()]
                if measured_pairs and share_bases(samples[arm] for pair in measured_pairs for arm in pair):
                    found.append(MainEffect(experiment, factor, low, high, outcome,
                                            mean_difference(samples, measured_pairs), len(measured_pairs)))
    return found


def pairs_of_arms(levels: Mapping[str, Factors], factor: str, low: str, high: str) -> list[tuple[str, str]]:
    """Pairs (arm at ``low``, arm at ``high``) that differ in ``factor`` only.

    >>> pairs_of_arms({"a": {"content": "merged", "n": "1"}, "b": {"content": "full", "n": "1"},
    ...                "c": {"content": "full", "n": "2"}}, "content", "merged", "full")
    [('a', 'b')]
    """
    def rest(arm: str) -> Factors:
        found = {key: level for key, level in levels[arm].items() if key != factor}
        if factor == ESTIMATOR and found.get(ROLLOUT) == "single":
            return found | {ROLLOUT: "chains"}
        if factor == CONTENT and {low, high} & {*PAID_ONCE}:
            return {key: level for key, level in found.items() if key != PLACEMENT}
        return found

    return [(one, other) for one in levels for other in levels
            if levels[one].get(factor) == low and levels[other].get(factor) == high and rest(one) == rest(other)]


def mean_difference(samples: Mapping[str, Sample], partners: list[tuple[str, str]]) -> Estimate:
    """Mean over pairs (low, high) of the difference high - low, with its interval over runs."""
    weights: dict[str, float] = {}
    for low, high in partners:
        weights[low] = weights.get(low, 0.0) - 1 / len(partners)
        weights[high] = weights.get(high, 0.0) + 1 / len(partners)
    return contrast([samples[arm] for arm in weights], list(weights.values()), samples.values())
