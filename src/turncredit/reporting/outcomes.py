"""The primary outcomes of a run: how fast it learns, and how it ends on the data sets that it was trained on."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from turncredit.reporting.claim_scores import NotMeasured, steps_to_level, validation, windowed_curve
from turncredit.reporting.samples import Sample, final, of_curves
from turncredit.reporting.scores import ArmRuns, Results

Measure = Callable[[Results, ArmRuns], Sample]


@dataclass(frozen=True)
class Outcome:
    """A primary outcome.

    Attributes:
        key: its name in CSV files.
        words: its name in tables and figures.
        measure: gives the outcome of each run of an arm; raises ``NotMeasured`` if the runs do not have it.
        margin: smaller differences do not matter.
        sign: 1 if more is better, -1 if less is, 0 if neither.
        digits: decimals in tables.
        metric: the metric of the paper's tables that it corresponds to; "" if there is none.
    """

    key: str
    words: str
    measure: Measure
    margin: float
    sign: int = 1
    digits: int = 3
    metric: str = ""


def area(results: Results, runs: ArmRuns) -> Sample:
    """Area under the validation curve of exact match, step 0 left out, divided by its length.

    Raises:
        NotMeasured: the runs have no validation after step 0.
    """
    _, score_S_T = validation(runs, "answer_correct", trained_on(results, runs))
    return of_curves(runs, score_S_T.mean(axis=1, keepdims=True))


def steps_to_half(results: Results, runs: ArmRuns) -> Sample:
    """The first validated step after 0 at half of the expert's exact match; the last step if none is.

    Raises:
        NotMeasured: no validation, or the expert policy was not evaluated.
    """
    return of_curves(runs, steps_to_level(results, runs, "answer_correct", trained_on(results, runs)))


def trained_on(results: Results, runs: ArmRuns) -> tuple[str, ...]:
    """The data sets that an arm was trained on."""
    return results.scale.experiments[runs.experiment].train_on


def measured(outcome: Outcome, results: Results, experiment: str, arms: Iterable[str] | None = None,
             ) -> dict[str, Sample]:
    """The outcome of each arm of an experiment that has it, in the configuration's order."""
    found: dict[str, Sample] = {}
    for name, runs in results.arms(experiment).items():
        if arms is None or name in arms:
            try:
                found[name] = outcome.measure(results, runs)
            except NotMeasured:
                continue
    return found


def _final(metric: str) -> Measure:
    return lambda results, runs: final(runs, metric, trained_on(results, runs))


def _early(column: str) -> Measure:
    return lambda results, runs: of_curves(
        runs, windowed_curve(runs, column, (0, 1 / 3)).mean(axis=1, keepdims=True))


AREA, STEPS, MATCH, FORMAT, SEARCHES = PRIMARY = (
    Outcome("area", "area under the validation curve", area, 0.05),
    Outcome("steps_to_half", "steps to half of the expert's score", steps_to_half, 5, -1, 1),
    Outcome("exact_match", "final exact match", _final("answer_correct"), 0.02, metric="answer_correct"),
    Outcome("format", "final format", _final("format_correct"), 0.02, metric="format_correct"),
    Outcome("searches", "searches per episode", _final("searches"), 0.1, 0, 2))

# Not among the primary outcomes: means over the sampled episodes of the first third of training.
EARLY_SEARCHES = Outcome("early_searches", "early searches per episode", _early("searches_mean"), 0.1, 0, 2)
EARLY_FORMAT = Outcome("early_format", "early format", _early("format_correct"), 0.02)


def on_set(dataset: str, metric: str = "answer_correct") -> Outcome:
    """Final exact match, or another metric, on one data set."""
    return Outcome(dataset, f"{metric} on {dataset}", lambda results, runs: final(runs, metric, [dataset]), 0.02)
