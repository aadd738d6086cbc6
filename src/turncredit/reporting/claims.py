"""Tests the paper's claims: each line of claim_tests.csv gives comparisons, each with an estimate and its p-values.

``claim_scores`` lists the statistics, ``inference`` the errors of means and differences, ``verdicts`` how comparisons
become the verdict of a claim. Lines are *primary* (they decide the claim), *secondary* (shown, decide nothing) or
*descriptive* (a remark that no test can decide).

A comparison is decidable if every arm has at least ``FEWEST`` runs, the arms are not all at the floor (``least``) or
all at the ceiling (``most``) of the metric, and an untrained policy reaches the score that the claim presupposes
(``needs``; e.g. some exact match without searches, where a claim says that agents stop searching). A part of a claim
whose comparisons are all undecidable makes the claim *not decidable*, unless another part is reversed; single
undecidable comparisons of a part are left out.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

from turncredit.errors import DataError, nearest
from turncredit.reporting import statistics
from turncredit.reporting.claim_scores import FINAL, SCORES, NotMeasured
from turncredit.reporting.inference import Array, Bases, Cells, Effect, ShareEffect, cells, effect, shared_bases, shares
from turncredit.reporting.reported import ClaimTest
from turncredit.reporting.scores import METRIC_LABELS, RATES, ArmRuns, Results, sources
from turncredit.reporting.statistics import Estimate
from turncredit.reporting.tables.render import number
from turncredit.reporting.verdicts import Evidence, Judgement, Verdict, combine, detectable, evidence, judge

Finding = Literal["holds", "reversed", "within margin", "open", "not decidable", "by construction", "not run"]
FEWEST = 5  # runs an arm
_ONE_SIDED, _MARGIN = 0.025, 0.05  # levels of the words for single comparisons, which decide nothing
_LATE = "fixed after"  # so begin the notes of lines that were suggested by earlier runs
_LEVELS = {  # statistic -> the statistic whose mean is compared with the floor and the ceiling
    "final": "final", "spread_final": "final", "hops_gap": "final", "validation": "validation",
    "spread_validation": "validation", "training": "training", "spread_training": "training"}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison of a claim.

    Attributes:
        estimate: our number and its interval; None where nothing was measured.
        effect: the estimate with its error; None where nothing was measured.
        found: its p-values; None if it is not decidable or was not run.
        barrier: the precondition that fails; "" if it is decidable.
        runs: origin of the runs.
        note: the reason why nothing was measured, or the note of the line.
    """

    test: ClaimTest
    metric: str = ""
    arm_a: str = ""
    arm_b: str = ""
    dataset: str = ""
    estimate: Estimate | None = None
    effect: Effect | ShareEffect | None = None
    found: Evidence | None = None
    barrier: str = ""
    runs: str = ""
    note: str = ""

    @property
    def finding(self) -> Finding:
        """What this comparison shows by itself, at 95 % and without correction: no verdict."""
        if self.test.statistic == "construction":
            return "by construction"
        if self.estimate is None:
            return "not run"
        if self.found is None:
            return "not decidable"
        if self.found.supported <= _ONE_SIDED:
            return "holds"
        if self.found.opposite <= _ONE_SIDED:
            return "reversed"
        return "within margin" if self.found.equivalent <= _MARGIN else "open"


@dataclass(frozen=True, slots=True)
class Result:
    """A claim's verdict, the p-values behind it, and the reason in words."""

    verdict: Verdict
    judgement: Judgement | None
    note: str


def compare(test: ClaimTest, results: Results) -> list[Comparison]:
    """All comparisons of one line of claim_tests.csv: the product of its metrics, arms and data sets.

    Raises:
        DataError: an unknown statistic, or a metric that is not in the files.
    """
    if test.statistic == "none":
        return [Comparison(test, note=test.note.removeprefix("not run: "))]
    if test.statistic == "construction":
        return [Comparison(test, note=f"shown by {test.note}")]
    if test.statistic not in SCORES:
        raise DataError(f"claim {test.claim_id}{test.part}: unknown statistic {test.statistic!r}",
                        nearest(test.statistic, SCORES))
    named = {"each": results.datasets, "each-in": results.scale.in_domain}.get(test.datasets, (test.datasets,))
    found: list[Comparison] = []
    for metric in test.metrics:
        for dataset in named:
            scores = _Scores(test, metric, dataset, results)
            found += [_compare(scores, a, b) for a in _arms(test.arms_a, test.experiment, results)
                      for b in _arms(test.arms_b, test.experiment, results) or ("",)]
    return found


def _arms(names: Iterable[str], experiment: str, results: Results) -> list[str]:
    """The named arms; ``turns-*`` stands for all arms of the experiment whose ids begin so, at this scale."""
    found: list[str] = []
    for name in names:
        found += fnmatch.filter(results.arm_names(experiment), name) or [name]
    return found


def decide(claims: Mapping[int, Sequence[Comparison]]) -> dict[int, Result]:
    """The verdict of every claim, by claim number: the whole audit is one family."""
    family: dict[int, Evidence] = {}
    for claim, comparisons in claims.items():
        primary = _primary(comparisons)
        if any(c.estimate is not None for c in primary):
            whole = all(any(c.found is not None for c in part) and all(c.estimate is not None for c in part)
                        for part in _parts(primary))
            tested = combine([c.found for c in primary if c.found is not None])
            family[claim] = tested if whole else Evidence(1.0, tested.opposite, 1.0)
    judged = judge(family)
    return {claim: _result(comparisons, judged.get(claim)) for claim, comparisons in claims.items()}


def family_size(claims: Iterable[Sequence[Comparison]]) -> int:
    """The number of claims in the family: those with a primary comparison that was run."""
    return sum(any(c.estimate is not None for c in _primary(comparisons)) for comparisons in claims)


def smallest_effect(comparison: Comparison, comparisons: Sequence[Comparison], claims: int) -> float | None:
    """The effect that supports the claim with 80 % power, in this comparison's unit.

    Infinite if no difference of two rates is as large; None if the comparison was not measured.
    """
    if comparison.effect is None:
        return None
    size = detectable(comparison.effect, claims, sum(c.found is not None for c in _primary(comparisons)))
    rate = comparison.test.statistic == "collapsed" or comparison.metric in RATES
    return math.inf if size is not None and size > 1 and rate and comparison.test.statistic != "steps_to_half" else size


def tally(comparisons: Iterable[Comparison]) -> str:
    """Counts of the findings in words.

    >>> tally([])
    ''
    """
    findings = [c.finding for c in comparisons]
    return ", ".join(f"{findings.count(word)} {word}" for word in get_args(Finding) if word in findings)


def _primary(comparisons: Sequence[Comparison]) -> list[Comparison]:
    return [c for c in comparisons if c.test.role == "primary" and c.test.statistic not in ("none", "construction")]


def _parts(comparisons: Sequence[Comparison]) -> list[list[Comparison]]:
    parts: dict[str, list[Comparison]] = {}
    for comparison in comparisons:
        parts.setdefault(comparison.test.part, []).append(comparison)
    return [*parts.values()]


def _result(comparisons: Sequence[Comparison], judgement: Judgement | None) -> Result:
    primary = _primary(comparisons)
    if not primary:
        kinds = {c.test.statistic for c in comparisons}
        if "construction" in kinds:
            return Result("by construction", None, next(c.note for c in comparisons if c.finding == "by construction"))
        described = [c.test.note for c in comparisons if c.test.role == "descriptive"]
        return Result("not decidable", None, described[0]) if described else Result(
            "not run", None, "; ".join(dict.fromkeys(c.note for c in comparisons if c.note)))
    if judgement is None:
        return Result("not run", None, "; ".join(dict.fromkeys(c.note for c in primary)))
    barred = [part for part in _parts(primary) if all(c.finding == "not decidable" for c in part)]
    counts = tally(primary)
    if barred and judgement.verdict != "opposite":
        reasons = "; ".join(dict.fromkeys(f"{c.test.claim_id}{c.test.part}: {c.barrier}" for c, *_ in barred))
        return Result("not decidable", judgement, f"{reasons} ({counts})")
    late = dict.fromkeys(c.test.note for c in primary if c.test.note.startswith(_LATE))
    return Result(judgement.verdict, judgement, "; ".join((counts, *late)))


class _Scores:
    """The scores of an experiment's arms on one metric and data set, computed once each."""

    def __init__(self, test: ClaimTest, metric: str, dataset: str, results: Results) -> None:
        self.test, self.metric, self.dataset, self.results = test, metric, dataset, results
        self._kept: dict[tuple[str, str], Array] = {}

    def arm(self, name: str) -> ArmRuns | None:
        return self.results.arm(self.test.experiment, name)

    def of(self, name: str, statistic: str = "") -> Array:
        """``score_S``, averaged over data sets.

        Raises:
            NotMeasured: the runs do not have it.
        """
        statistic = statistic or self.test.statistic
        if (name, statistic) not in self._kept:
            runs = self.arm(name)
            if runs is None:
                raise NotMeasured(f"no runs of {self.test.experiment}: {name}")
            word = "all" if statistic != self.test.statistic and not self.dataset else self.dataset
            score_S_D = SCORES[statistic](runs, self.test, self.metric, columns(word, self.results,
                                                                                self.test.experiment), self.results)
            gap = "-" in word and statistic == self.test.statistic
            self._kept[name, statistic] = (score_S_D[:, 0] - score_S_D[:, 1] if gap else score_S_D.mean(axis=1))
        return self._kept[name, statistic]

    def bases(self, name: str) -> Bases:
        runs = self.arm(name)
        assert runs is not None
        return runs.base_S if self.test.statistic in FINAL else runs.curve_base_S

    @cached_property
    def peers(self) -> list[Cells]:
        """All arms of the experiment that have the score."""
        found: list[Cells] = []
        for name in self.results.arm_names(self.test.experiment):
            try:
                found.append(cells(self.of(name), self.bases(name)))
            except (NotMeasured, DataError):
                continue
        return found


def _compare(scores: _Scores, arm_a: str, arm_b: str) -> Comparison:
    test, names = scores.test, [arm for arm in (arm_a, arm_b) if arm]
    place = (test, scores.metric, arm_a, arm_b, scores.dataset)
    lacking = [name for name in names if scores.arm(name) is None]
    if lacking:
        return Comparison(*place, note=f"no runs of {test.experiment}: {', '.join(lacking)}")
    try:
        samples = [scores.of(name) for name in names]
        barrier = _barrier(scores, names)
    except NotMeasured as error:
        return Comparison(*place, note=str(error))
    bases = [scores.bases(name) for name in names]
    if not shared_bases(bases):
        return Comparison(*place, note="the arms have no base policy in common")
    counts = tuple(len(sample) for sample in samples)
    found: Effect | ShareEffect
    if test.statistic == "collapsed":
        found = shares(samples, bases)
        shown = statistics.share(*found.counts[0]) if len(names) == 1 else statistics.share_difference(*found.counts)
        estimate = Estimate(shown.value, shown.low, shown.high, counts, found.bases)
    else:
        weights = [1.0, -1.0][:len(names)]
        several = len(names) > 1 and len(shared_bases(bases)) > 1
        found = effect([cells(*arm) for arm in zip(samples, bases, strict=True)], weights,
                       scores.peers if several else ())
        estimate = statistics.estimate_of(found, counts)
    return Comparison(*place, estimate, found, None if barrier else evidence(
        found, test.direction, test.threshold, test.margin), barrier, _sources(scores, names), test.note)


def _sources(scores: _Scores, names: Sequence[str]) -> str:
    return sources(scores.arm(name) for name in names)


def _barrier(scores: _Scores, names: Sequence[str]) -> str:
    """The first precondition that fails, in words; "" if the comparison can decide."""
    test = scores.test
    fewest = min(len(scores.of(name)) for name in names)
    if fewest < FEWEST:
        return f"{fewest} run{'s' * (fewest > 1)} an arm, {FEWEST} needed"
    if test.needs is not None:
        policy = scores.results.untrained(test.needs.policy, test.experiment)
        words = f"{test.needs.policy} {METRIC_LABELS.get(test.needs.metric, test.needs.metric)}"
        if policy is None:
            return f"needs {words} of at least {test.needs.least:g}: not evaluated"
        level = float(policy.final(test.needs.metric, columns("trained", scores.results, test.experiment)).mean())
        if level < test.needs.least:
            return f"needs {words} of at least {test.needs.least:g}: {number(level)}"
    if test.statistic in _LEVELS and (test.least is not None or test.most is not None):
        levels = [float(scores.of(name, _LEVELS[test.statistic]).mean()) for name in names]
        shown = ", ".join(map(number, levels))
        if test.least is not None and max(levels) <= test.least:
            return f"at the floor ({test.least:g} or less): {shown}"
        if test.most is not None and min(levels) >= test.most:
            return f"at the ceiling ({test.most:g} or more): {shown}"
    return ""


def columns(dataset: str, results: Results, experiment: str) -> tuple[str, ...]:
    """Data sets named in claim_tests.csv.

    ``all``, ``in``, ``out``, ``trained`` (on by the experiment), one set (``first`` and ``second`` are the sets that
    the experiment trains on), or ``a-b`` for the gap between two.

    Raises:
        NotMeasured: the scale lacks the set.
    """
    trained = results.scale.experiments[experiment].train_on if experiment in results.scale.experiments else ()
    named = {"all": results.datasets, "in": results.scale.in_domain, "out": results.scale.out_of_domain, "": (),
             "trained": tuple(trained)}
    found = named.get(dataset, tuple(results.stand_in(word, experiment) for word in dataset.split("-")))
    for name in found:
        if name not in results.scale.datasets:
            raise NotMeasured(f"no data set {name} at scale {results.scale.name}")
    return found
