"""Scores of runs that claims are tested on: one value per run and data set, by the name of the statistic.

``claim_tests.csv`` names a statistic; with two arms the estimate is the difference of their means.

- ``final``: a metric of the final evaluation;
- ``hops_gap``: that metric over multi-hop questions minus over one-hop questions;
- ``validation``: mean of a validation curve over a window of steps; over all of training this is the area under the
  curve divided by its length;
- ``steps_to_half``: first validated step after 0 at half of the expert's score; the last step if none is;
- ``training``: mean of a training curve over a window;
- ``fall``: mean of a training curve over a first window minus the mean over a second window;
- ``below_start``: validation score at step 0 minus the mean over a window;
- ``drop``: the best validation score minus the last;
- ``collapsed``: 1 if validation ends below half of its best and at least 0.1 below it, else 0;
- ``per_question``: a count in metrics.csv divided by the number of questions;
- ``spread_final``, ``spread_validation``, ``spread_training``: distance of a run from the median of its arm and base
  policy, averaged over data sets or steps: how much runs differ.

Windows are fractions of the training steps. Step 0 is in no window: there, all arms of a base policy are equal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from turncredit.errors import DataError
from turncredit.reporting.inference import Array, spread
from turncredit.reporting.reported import ClaimTest
from turncredit.reporting.scores import ArmRuns, Results

COLLAPSE_SHARE, COLLAPSE_LOSS = 0.5, 0.1
LEVEL = 0.5  # of the expert's score, for steps_to_half
FINAL = ("final", "hops_gap", "spread_final")  # statistics of the final evaluation; all others use metrics.csv


class NotMeasured(Exception):
    """The runs have no such score: no step is in the window, or the data set is not in the scale."""


# (arm, line of claim_tests.csv, metric, data sets, results) -> one row a run, one column a data set
Score = Callable[[ArmRuns, ClaimTest, str, Sequence[str], Results], Array]


def windowed_curve(arm: ArmRuns, column: str, window: tuple[float, float] | None) -> Array:
    """``value_S_T`` of a column at the steps after 0 inside a window, in fractions of the last step.

    Raises:
        DataError: the claim's test has no window.
        NotMeasured: no training metrics, no such column, or no step with a value for every run.
    """
    if window is None:
        raise DataError(f"claim_tests.csv: {column!r} needs a window of steps", "fill the columns first and second")
    step_T, value_S_T = _curve(arm, column)
    fraction_T = step_T / max(arm.steps, 1)
    inside = value_S_T[:, (step_T > 0) & (fraction_T >= window[0]) & (fraction_T <= window[1])]
    inside = inside[:, ~np.isnan(inside).any(axis=0)]
    if inside.shape[1] == 0:
        raise NotMeasured(f"no step between {window[0]:g} and {window[1]:g} of training has {column} in every run")
    return inside


def first_step_at(goal: float, step_T: Array, score_S_T: Array) -> Array:
    """``step_S_1``: the first step of each run at which its score is at least ``goal``; the last step if none is.

    >>> first_step_at(0.5, np.array([0.0, 5.0, 10.0]), np.array([[0.1, 0.5, 0.9], [0.0, 0.1, 0.2]])).tolist()
    [[5.0], [10.0]]
    """
    reached_S_T = score_S_T >= goal
    first_S = np.where(reached_S_T.any(axis=1), step_T[reached_S_T.argmax(axis=1)], step_T[-1])
    return np.asarray(first_S[:, None], dtype=float)


def validation(arm: ArmRuns, metric: str, datasets: Sequence[str]) -> tuple[Array, Array]:
    """``step_T`` and ``score_S_T`` of a validation metric after step 0, averaged over data sets.

    Raises:
        NotMeasured: no step after 0 was validated in every run.
    """
    curves = [_curve(arm, f"validation_{dataset}_{metric}") for dataset in datasets]
    step_T, score_S_T = curves[0][0], np.mean([curve_S_T for _, curve_S_T in curves], axis=0)
    kept_T = (step_T > 0) & ~np.isnan(score_S_T).any(axis=0)
    if not kept_T.any():
        raise NotMeasured(f"{arm.experiment}/{arm.arm} has no validation of {metric} after step 0")
    return step_T[kept_T], score_S_T[:, kept_T]


def steps_to_level(results: Results, arm: ArmRuns, metric: str, datasets: Sequence[str]) -> Array:
    """``step_S_1``: the first validated step after 0 at half of the expert's score; the last step if none is.

    Step 0 is left out, because all arms share it: a run that starts above the level gets its first validated step.

    Raises:
        NotMeasured: no validation, or the expert policy was not evaluated on the task.
    """
    expert = results.untrained("expert", arm.experiment)
    if expert is None:
        raise NotMeasured(f"no evaluation of the expert policy on the task of {arm.experiment}")
    goal = LEVEL * float(expert.final(metric, datasets).mean())
    return first_step_at(goal, *validation(arm, metric, datasets))


def collapsed(arm: ArmRuns, metric: str, datasets: Sequence[str]) -> Array:
    """``flag_S_1``: 1 for each run whose validation score, averaged over data sets, ends far below its best."""
    curve_S_T = np.mean([windowed_curve(arm, f"validation_{d}_{metric}", (0, 1)) for d in datasets], axis=0)
    best_S, last_S = curve_S_T.max(axis=1), curve_S_T[:, -1]
    fell = (last_S < COLLAPSE_SHARE * best_S) & (last_S <= best_S - COLLAPSE_LOSS)
    return np.asarray(fell[:, None], dtype=float)


def _curve(arm: ArmRuns, column: str) -> tuple[Array, Array]:
    if arm.metrics.empty:
        raise NotMeasured(f"{arm.experiment}/{arm.arm}: evaluated only, no metrics of training ({arm.source})")
    if column not in arm.metrics.columns:
        raise NotMeasured(f"{arm.experiment}/{arm.arm} has no column {column}")
    return arm.curve(column)


def _final(arm: ArmRuns, test: ClaimTest, metric: str, datasets: Sequence[str], results: Results) -> Array:
    return arm.final(metric, datasets)


def _hops_gap(arm: ArmRuns, test: ClaimTest, metric: str, datasets: Sequence[str], results: Results) -> Array:
    try:
        return arm.final_by_hops(metric, multi=True) - arm.final_by_hops(metric, multi=False)
    except DataError as error:
        raise NotMeasured(error.message) from error


def _validation(arm: ArmRuns, test: ClaimTest, metric: str, datasets: Sequence[str], results: Results) -> Array:
    curves = [windowed_curve(arm, f"validation_{d}_{metric}", test.first) for d in datasets]
    return np.stack([curve_S_T.mean(axis=1) for curve_S_T in curves], axis=1)


def _steps_to_half(arm: ArmRuns, test: ClaimTest, metric: str, datasets: Sequence[str], results: Results) -> Array:
    return steps_to_level(results, arm, metric, datasets)


def _training(arm: ArmRuns, test: ClaimTest, metric: str, datasets: Sequence[str], results: Results) -> Array:
    return windowed_curve(arm, metric, test.first).mean(axis=1, keepdims=True)


def _fall(arm: ArmRuns, test: ClaimTest, metric: str, datasets: Sequence[str], results: Results) -> Array:
    first, second = windowed_curve(arm, metric, test.first), windowed_curve(arm, metric, test.second)
    return first.mean(axis=1, keepdims=True) - second.mean(axis=1, keepdims=True)


def _below_start(arm: ArmRuns, test: ClaimTest, metric: str, datasets: Sequence[str], results: Results) -> Array:
    columns = [f"validation_{d}_{metric}" for d in datasets]
    start = [curve_S_T[:, :1] for step_T, curve_S_T in (_curve(arm, column) for column in columns) if step_T[0] == 0]
    if len(start) < len(columns):
        raise NotMeasured(f"{arm.experiment}/{arm.arm}: no validation at step 0")
    later = [windowed_curve(arm, column, test.first).mean(axis=1, keepdims=True) for column in columns]
    return np.concatenate(start, axis=1) - np.concatenate(later, axis=1)


def _drop(arm: ArmRuns, test: ClaimTest, metric: str, datasets: Sequence[str], results: Results) -> Array:
    curves = [windowed_curve(arm, f"validation_{d}_{metric}", (0, 1)) for d in datasets]
    return np.stack([curve_S_T.max(axis=1) - curve_S_T[:, -1] for curve_S_T in curves], axis=1)


def _collapsed(arm: ArmRuns, test: ClaimTest, metric: str, datasets: Sequence[str], results: Results) -> Array:
    return collapsed(arm, metric, datasets)


def _per_question(arm: ArmRuns, test: ClaimTest, metric: str, datasets: Sequence[str], results: Results) -> Array:
    count, questions = (windowed_curve(arm, column, (0, 1)).sum(axis=1, keepdims=True)
                        for column in (metric, "questions"))
    return count / questions


def _spread_final(arm: ArmRuns, test: ClaimTest, metric: str, datasets: Sequence[str], results: Results) -> Array:
    return _spread(arm.final(metric, datasets), arm.base_S)


def _spread_validation(arm: ArmRuns, test: ClaimTest, metric: str, datasets: Sequence[str], results: Results) -> Array:
    curves = [windowed_curve(arm, f"validation_{d}_{metric}", test.first) for d in datasets]
    return _spread(np.concatenate(curves, axis=1), arm.curve_base_S)


def _spread_training(arm: ArmRuns, test: ClaimTest, metric: str, datasets: Sequence[str], results: Results) -> Array:
    return _spread(windowed_curve(arm, metric, test.first), arm.curve_base_S)


def _spread(score_S_D: Array, base_S: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Array:
    distance_S = spread(score_S_D, base_S)
    if np.isnan(distance_S).any():
        raise NotMeasured("a single seed of a base policy has no spread")
    return distance_S[:, None]


SCORES: dict[str, Score] = {
    "final": _final, "hops_gap": _hops_gap, "validation": _validation, "steps_to_half": _steps_to_half,
    "training": _training, "fall": _fall, "below_start": _below_start, "drop": _drop, "collapsed": _collapsed,
    "per_question": _per_question, "spread_final": _spread_final, "spread_validation": _spread_validation,
    "spread_training": _spread_training}
