"""Tests the paper's claims: each line of claim_tests.csv gives comparisons, each with an estimate and a verdict.

Statistics (one value per seed, averaged over data sets if there are several):

- ``final``: a metric of the final evaluation;
- ``hops_gap``: that metric over multi-hop questions minus over one-hop questions;
- ``validation``, ``training``: mean of a curve over a window of training steps;
- ``fall``: mean of a training curve over a first window minus the mean over a second window;
- ``drop``: the best validation score minus the last;
- ``collapsed``: 1 if validation ends below half of its best and at least 0.1 below it, else 0. Shares of seeds get
  score intervals;
- ``per_question``: a count in metrics.csv divided by the number of questions;
- ``sd_final``, ``sd_validation``, ``sd_training``: ratio of standard deviations over seeds.

With two arms the estimate is the difference a - b (for ``sd_*`` the ratio a / b), with one arm its value. Verdicts:
``supported`` if the whole interval is beyond the threshold on the claimed side, ``contradicted`` if it is on the
other side, else ``inconclusive``; ``not run`` without runs; ``by construction`` for a property of the code, which a
test shows without any run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from turncredit.errors import DataError, nearest
from turncredit.reporting import statistics
from turncredit.reporting.reported import ClaimTest
from turncredit.reporting.scores import ArmRuns, Results, sources
from turncredit.reporting.statistics import Array, Estimate

Verdict = Literal["supported", "contradicted", "inconclusive", "by construction", "not run"]
COLLAPSE_SHARE, COLLAPSE_LOSS = 0.5, 0.1


@dataclass(frozen=True, slots=True)
class Comparison:
    """One comparison and its verdict; ``estimate`` is None where nothing was measured."""

    test: ClaimTest
    metric: str
    arm_a: str
    arm_b: str
    dataset: str
    estimate: Estimate | None
    verdict: Verdict
    runs: str
    note: str


class NotMeasured(Exception):
    """The runs cannot answer: no step is in the window, or the data set is not in the scale."""


def compare(test: ClaimTest, results: Results) -> list[Comparison]:
    """All comparisons of one line of claim_tests.csv: the product of its metrics, arms and data sets.

    Raises:
        DataError: an unknown statistic, or a metric that is not in the files.
    """
    if test.statistic == "none":
        return [Comparison(test, "", "", "", "", None, "not run", "", test.note.removeprefix("not run: "))]
    if test.statistic == "construction":
        return [Comparison(test, "", "", "", "", None, "by construction", "", f"shown by {test.note}")]
    if test.statistic not in _SCORES:
        raise DataError(f"claim {test.claim_id}{test.part}: unknown statistic {test.statistic!r}",
                        nearest(test.statistic, _SCORES))
    named = (*results.datasets,) if test.datasets == "each" else (test.datasets,)
    return [_compare(test, results, *names)
            for names in itertools.product(test.metrics, test.arms_a, test.arms_b or ("",), named)]


def claim_verdict(comparisons: Sequence[Comparison]) -> Verdict:
    """The verdict of a claim: every comparison must hold.

    A claim that holds by construction, wholly or in part, is never called supported. Parts that this project cannot
    test at any scale are ignored.
    """
    tested = [c.verdict for c in comparisons if c.test.statistic != "none"]
    if not tested or all(v == "not run" for v in tested):
        return "not run"
    if "contradicted" in tested:
        return "contradicted"
    if any(v not in ("supported", "by construction") for v in tested):
        return "inconclusive"
    return "by construction" if "by construction" in tested else "supported"


def decide(found: Estimate, direction: str, threshold: float) -> Verdict:
    """The verdict of a comparison, by the position of the interval.

    >>> decide(Estimate(0.2, 0.1, 0.3, (3, 3)), "greater", 0), decide(Estimate(0.2, -0.1, 0.5, (3, 3)), "greater", 0)
    ('supported', 'inconclusive')
    >>> decide(Estimate(0.0, -0.01, 0.02, (3, 3)), "similar", 0.05)
    'supported'
    """
    if found.low is None or found.high is None:
        return "inconclusive"
    if direction == "similar":
        inside = found.low > -threshold and found.high < threshold
        outside = found.low > threshold or found.high < -threshold
        return "supported" if inside else "contradicted" if outside else "inconclusive"
    above, below = found.low > threshold, found.high < threshold
    if direction == "less":
        above, below = below, above
    return "supported" if above else "contradicted" if below else "inconclusive"


def _compare(test: ClaimTest, results: Results, metric: str, arm_a: str, arm_b: str, dataset: str) -> Comparison:
    names = [arm for arm in (arm_a, arm_b) if arm]
    found = {arm: results.arm(test.experiment, arm) for arm in names}
    here = [arm for arm in found.values() if arm is not None]
    if len(here) < len(names):
        lacking = ", ".join(arm for arm in names if found[arm] is None)
        return Comparison(test, metric, arm_a, arm_b, dataset, None, "not run", "",
                          f"no runs of {test.experiment}: {lacking}")
    try:
        datasets = _columns(dataset, results, test.experiment)
        samples = [_SCORES[test.statistic](arm, test, metric, datasets) for arm in here]
        samples = [_gap(sample, dataset) for sample in samples]
    except NotMeasured as error:
        return Comparison(test, metric, arm_a, arm_b, dataset, None, "not run", "", str(error))
    estimate = _estimate(test.statistic, samples)
    note = test.note
    if estimate.low is None:
        alone = min(estimate.seeds) < 2
        note = "; ".join(filter(None, (note, "no interval: " + ("a single seed" if alone else "no spread over seeds"))))
    verdict = decide(estimate, test.direction, test.threshold)
    return Comparison(test, metric, arm_a, arm_b, dataset, estimate, verdict, sources(here), note)


def _estimate(statistic: str, samples: Sequence[Array]) -> Estimate:
    if statistic == "collapsed":
        counts = [(int(sample.sum()), len(sample)) for sample in samples]
        return statistics.share(*counts[0]) if len(counts) == 1 else statistics.share_difference(counts[0], counts[1])
    if statistic.startswith("sd_"):
        return statistics.ratio_of_sds(samples[0], samples[1])
    return statistics.mean(samples[0]) if len(samples) == 1 else statistics.difference(samples[0], samples[1])


def _columns(dataset: str, results: Results, experiment: str) -> tuple[str, ...]:
    """Data sets named in claim_tests.csv: ``all``, ``in``, ``out``, one set, or ``a-b`` for the gap between two."""
    named = {"all": results.datasets, "in": results.scale.in_domain, "out": results.scale.out_of_domain, "": ()}
    found = named.get(dataset, tuple(results.stand_in(word, experiment) for word in dataset.split("-")))
    for name in found:
        if name not in results.scale.datasets:
            raise NotMeasured(f"no data set {name} at scale {results.scale.name}")
    return found


def _gap(score_S_D: Array, dataset: str) -> Array:
    return score_S_D[:, :1] - score_S_D[:, 1:] if "-" in dataset else score_S_D


def _final(arm: ArmRuns, test: ClaimTest, metric: str, datasets: Sequence[str]) -> Array:
    return arm.final(metric, datasets)


def _hops_gap(arm: ArmRuns, test: ClaimTest, metric: str, datasets: Sequence[str]) -> Array:
    return arm.final_by_hops(metric, multi=True) - arm.final_by_hops(metric, multi=False)


def _validation(arm: ArmRuns, test: ClaimTest, metric: str, datasets: Sequence[str]) -> Array:
    curves = [windowed_curve(arm, f"validation_{d}_{metric}", test.first) for d in datasets]
    return np.stack([curve_S_T.mean(axis=1) for curve_S_T in curves], axis=1)


def _training(arm: ArmRuns, test: ClaimTest, metric: str, datasets: Sequence[str]) -> Array:
    return windowed_curve(arm, metric, test.first).mean(axis=1, keepdims=True)


def _fall(arm: ArmRuns, test: ClaimTest, metric: str, datasets: Sequence[str]) -> Array:
    first, second = windowed_curve(arm, metric, test.first), windowed_curve(arm, metric, test.second)
    return first.mean(axis=1, keepdims=True) - second.mean(axis=1, keepdims=True)


def _drop(arm: ArmRuns, test: ClaimTest, metric: str, datasets: Sequence[str]) -> Array:
    curves = [windowed_curve(arm, f"validation_{d}_{metric}", (0, 1)) for d in datasets]
    return np.stack([curve_S_T.max(axis=1) - curve_S_T[:, -1] for curve_S_T in curves], axis=1)


def collapsed(arm: ArmRuns, metric: str, datasets: Sequence[str]) -> Array:
    """``flag_S_1``: 1 for each seed whose validation score, averaged over data sets, ends far below its best."""
    curve_S_T = np.mean([windowed_curve(arm, f"validation_{d}_{metric}", (0, 1)) for d in datasets], axis=0)
    best_S, last_S = curve_S_T.max(axis=1), curve_S_T[:, -1]
    fell = (last_S < COLLAPSE_SHARE * best_S) & (last_S <= best_S - COLLAPSE_LOSS)
    return np.asarray(fell[:, None], dtype=float)


def _collapsed(arm: ArmRuns, test: ClaimTest, metric: str, datasets: Sequence[str]) -> Array:
    return collapsed(arm, metric, datasets)


def _per_question(arm: ArmRuns, test: ClaimTest, metric: str, datasets: Sequence[str]) -> Array:
    count, questions = (windowed_curve(arm, column, (0, 1)).sum(axis=1, keepdims=True)
                        for column in (metric, "questions"))
    return count / questions


def _validation_columns(arm: ArmRuns, test: ClaimTest, metric: str, datasets: Sequence[str]) -> Array:
    return np.concatenate([windowed_curve(arm, f"validation_{d}_{metric}", test.first) for d in datasets], axis=1)


def _training_columns(arm: ArmRuns, test: ClaimTest, metric: str, datasets: Sequence[str]) -> Array:
    return windowed_curve(arm, metric, test.first)


def windowed_curve(arm: ArmRuns, column: str, window: tuple[float, float] | None) -> Array:
    """``value_S_T`` of a column at the steps inside a window, in fractions of the last step.

    Raises:
        DataError: the claim's test has no window.
        NotMeasured: no training metrics, no such column, or no step with a value for every seed.
    """
    if window is None:
        raise DataError(f"claim_tests.csv: {column!r} needs a window of steps", "fill the columns first and second")
    if arm.metrics.empty:
        raise NotMeasured(f"{arm.experiment}/{arm.arm}: evaluated only, no metrics of training ({arm.source})")
    if column not in arm.metrics.columns:
        raise NotMeasured(f"{arm.experiment}/{arm.arm} has no column {column}")
    step_T, value_S_T = arm.curve(column)
    fraction_T = step_T / max(arm.steps, 1)
    inside = value_S_T[:, (fraction_T >= window[0]) & (fraction_T <= window[1])]
    inside = inside[:, ~np.isnan(inside).any(axis=0)]
    if inside.shape[1] == 0:
        raise NotMeasured(f"no step between {window[0]:g} and {window[1]:g} of training has {column} in every seed")
    return inside


_Score = Callable[[ArmRuns, ClaimTest, str, Sequence[str]], Array]
_SCORES: dict[str, _Score] = {
    "final": _final, "hops_gap": _hops_gap, "validation": _validation, "training": _training, "fall": _fall,
    "drop": _drop, "collapsed": _collapsed, "per_question": _per_question, "sd_final": _final,
    "sd_validation": _validation_columns, "sd_training": _training_columns}


def tally(comparisons: Iterable[Comparison]) -> str:
    """Counts of the verdicts in words.

    >>> tally([])
    ''
    """
    verdicts = [c.verdict for c in comparisons]
    order: tuple[Verdict, ...] = ("supported", "contradicted", "inconclusive", "by construction", "not run")
    return ", ".join(f"{verdicts.count(v)} {v}" for v in order if v in verdicts)
