"""Differences between arms of search on the primary outcomes, beside those that the paper reports."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from turncredit.reporting.arm_labels import CONTENT, ESTIMATOR, LEVELS, PLACEMENT, factors
from turncredit.reporting.outcomes import PRIMARY, Outcome, measured
from turncredit.reporting.reported import Reported
from turncredit.reporting.samples import difference, pairs
from turncredit.reporting.scores import Results
from turncredit.reporting.statistics import Estimate

_PLACE = "Table 2"  # the paper's final scores of search


@dataclass(frozen=True)
class Difference:
    """One outcome of an arm minus that of another.

    Attributes:
        arm_a, arm_b: the arms; the difference is a - b.
        outcome: what is compared.
        estimate: the difference with its interval.
        p_value: two-sided, adjusted by Holm's method for all pairs of arms.
        separated: whether the arms differ at the 5 % level after this adjustment.
        paper: the same difference in the paper; None where it reports none.
    """

    arm_a: str
    arm_b: str
    outcome: Outcome
    estimate: Estimate
    p_value: float
    separated: bool
    paper: float | None

    @property
    def name(self) -> str:
        """The two arms in words."""
        return f"{self.arm_a} − {self.arm_b}"


def planned_pairs(results: Results, experiment: str) -> list[tuple[str, str]]:
    """Pairs of arms with the same estimator, then pairs with the same content and placement.

    The arm with the later level of placement, content or estimator comes first.
    """
    levels = factors(results.scale, experiment) if experiment in results.scale.experiments else {}

    def rank(arm: str, factor: str) -> int:
        return LEVELS[factor].index(levels[arm][factor]) if factor in levels[arm] else 0

    def order(arm: str) -> tuple[int, ...]:
        return tuple(rank(arm, factor) for factor in (PLACEMENT, CONTENT, ESTIMATOR))

    found: list[tuple[int, int, str, str]] = []
    for place, (one, other) in enumerate(itertools.combinations(levels, 2)):
        low, high = sorted((one, other), key=order)
        same = [rank(one, factor) == rank(other, factor) for factor in (PLACEMENT, CONTENT, ESTIMATOR)]
        if same[2] or all(same[:2]):
            found.append((-rank(one, ESTIMATOR) if same[2] else 1, place, high, low))
    return [(high, low) for *_, high, low in sorted(found)]


def differences(results: Results, experiment: str, reported: Reported) -> list[Difference]:
    """The planned pairs of arms on every primary outcome; pairs that were not run are left out."""
    found: list[Difference] = []
    for outcome in PRIMARY:
        samples = measured(outcome, results, experiment)
        adjusted = {frozenset((pair.high, pair.low)): pair for pair in pairs(samples)}
        for a, b in planned_pairs(results, experiment):
            pair = adjusted.get(frozenset((a, b)))
            if pair is not None:
                gap = difference(samples[a], samples[b], samples.values())
                found.append(Difference(a, b, outcome, gap, pair.p_value, pair.separated,
                                        paper_difference(reported, outcome, a, b)))
    return found


def paper_difference(reported: Reported, outcome: Outcome, a: str, b: str) -> float | None:
    """The paper's a - b, averaged over its in-domain sets that it reports for both; None if there is none."""
    if not outcome.metric:
        return None
    score: dict[str, dict[str, float]] = {a: {}, b: {}}
    for value in reported.table(_PLACE, outcome.metric):
        if value.algorithm in score and value.value is not None and reported.datasets[value.dataset].domain == "in":
            score[value.algorithm][value.dataset] = value.value
    both = score[a].keys() & score[b].keys()
    return sum(score[a][d] - score[b][d] for d in both) / len(both) if both else None
