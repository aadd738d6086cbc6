"""The paper's numbers, and the differences between its arms, beside ours.

A reported number is *comparable* only if our model, data, retriever, k, prompt and batch are the paper's
(``comparability``); then it *agrees* if it is in our interval. Where an arm, metric and data set of ours are analogous,
our number is shown beside the reported one and the note names the analogue. Every cell of the paper has a row, with or
without analogue.

Differences between two arms of one table can be held against ours at any scale: a reported difference is *compatible*
if it is in our interval. Data sets of the paper with the same analogue here are averaged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from turncredit.config.load import Scale
from turncredit.reporting import statistics
from turncredit.reporting.comparability import differences
from turncredit.reporting.entries import Entry, numbers, words
from turncredit.reporting.inference import cells
from turncredit.reporting.reported import Reported, Value
from turncredit.reporting.scores import ArmRuns, Results, sources
from turncredit.reporting.statistics import Estimate

NOT_COMPARABLE, NOT_REPORTED, NO_ANALOGUE = "not comparable", "not reported", "no analogue"
AGREES, ABOVE, BELOW = "agrees", "ours is higher", "ours is lower"
_NOTHING = "no analogue here"
_INITIAL = "initial"  # the word of paper_tables/reported for the policy before training
_DIFFERENCE = "component_exact_match_difference"  # in the paper's text: MT-GRPO minus GRPO-MR
_GROUPS = {"out_of_domain": "mean of the out-of-domain sets", "all": "mean of all sets"}


def reported_rows(results: Results, reported: Reported) -> list[Entry]:
    """The rows of all reported differences, then of all reported numbers.

    Raises:
        DataError: the runs' files lack a metric or data set.
    """
    return [*_differences(results, reported), *(_value(value, results, reported) for value in reported.values)]


def _value(value: Value, results: Results, reported: Reported) -> Entry:
    arms, estimate, label = _analogue(value, results, reported)
    step = "" if value.step is None else f", step {value.step}"
    notes = (label, value.confidence, value.note)
    return Entry("value", value.value_id, f"{value.method}, {value.dataset}, {words(value.metric)}{step}",
                 f"{value.place} ({value.paper_version})", NOT_REPORTED if value.value is None else f"{value.value:g}",
                 *numbers(estimate), sources(arms) if arms else "", _agreement(value, estimate, label, results.scale),
                 "; ".join(filter(None, notes)), None if estimate is None else estimate.bases)


def _agreement(value: Value, found: Estimate | None, label: str, scale: Scale) -> str:
    """The verdict on a reported number. The paper prints no intervals, so ours alone decides."""
    if label == _NOTHING:
        return NO_ANALOGUE
    if value.value is None:
        return NOT_REPORTED
    public = {found.label for found in scale.checkpoints.values()}
    experiment = _experiment(value)
    trained = experiment in scale.experiments and value.algorithm in scale.experiments[experiment].arms
    if differences(scale, experiment, value.algorithm if trained and value.method not in public else None):
        return NOT_COMPARABLE
    if found is None:
        return "not run"
    if found.low is None or found.high is None:
        return "no interval"
    return ABOVE if found.low > value.value else BELOW if found.high < value.value else AGREES


def _experiment(value: Value) -> str:
    return "two_turn" if "two-turn" in value.dataset else "search"


def _datasets(value: Value, results: Results, reported: Reported) -> tuple[str, tuple[str, ...]]:
    """The word for the analogous data sets, and the sets; none where this scale has no such set."""
    name = reported.datasets[value.dataset].here(results.scale)
    groups = {"out_of_domain": results.scale.out_of_domain, "all": results.datasets}
    datasets = tuple(groups.get(name, name.split("|") if name else ()))
    return name, datasets if {*datasets} <= {*results.scale.datasets} else ()


def _analogue(value: Value, results: Results, reported: Reported) -> tuple[list[ArmRuns], Estimate | None, str]:
    """Our analogue of a reported number: its arms, the estimate, and a note that names it or says why there is none."""
    experiment = _experiment(value)
    name, datasets = _datasets(value, results, reported)
    public = {found.label: key for key, found in results.scale.checkpoints.items()}
    if value.method in public:  # a released checkpoint, evaluated here
        released = results.untrained(public[value.method], experiment) if datasets else None
        label = f"ours: {results.scale.checkpoints[public[value.method]].path_or_id}"
        return ([], None, f"{label}: not run") if released is None else (
            [released], _mean(released, value.metric, datasets), label)
    names = ["MT-GRPO", "GRPO-MR"] if value.metric == _DIFFERENCE else [value.algorithm] if value.algorithm else []
    if not names or not datasets or value.metric.endswith("relative_gain"):
        return [], None, _NOTHING
    found = [results.untrained(arm, experiment) if arm == _INITIAL else results.arm(experiment, arm) for arm in names]
    arms = [arm for arm in found if arm is not None]
    where = _GROUPS.get(name, name if len(datasets) == 1 else f"mean of {len(datasets)} sets")
    shown = ["initial policy" if arm == _INITIAL else arm for arm in names]
    label = f"ours: {' − '.join(shown)} in {experiment}, {where}"
    if len(arms) < len(names):
        return [], None, f"{label}: not run"
    renamed = {"tool_success": "component_tool_execution", _DIFFERENCE: "component_exact_match"}
    metric = renamed.get(value.metric, value.metric)
    if len(arms) == 2:
        return arms, _gap(arms[0], arms[1], metric, datasets, results), label
    largest = results.scale.rewards["tool_search"].model_dump()["tool_execution"]
    return arms, _mean(arms[0], metric, datasets, largest if value.metric == "tool_success" else 1.0), label


def _mean(arm: ArmRuns, metric: str, datasets: Sequence[str], largest: float = 1.0) -> Estimate:
    return statistics.mean(arm.final(metric, datasets) / largest, arm.base_S)


def _gap(one: ArmRuns, other: ArmRuns, metric: str, datasets: Sequence[str], results: Results) -> Estimate:
    """Our difference, with the interval of its test."""
    peers = [cells(arm.final(metric, datasets).mean(axis=1), arm.base_S)
             for arm in results.arms(one.experiment).values()]
    return statistics.difference(one.final(metric, datasets), other.final(metric, datasets),
                                 (one.base_S, other.base_S), peers)


def _differences(results: Results, reported: Reported) -> Iterator[Entry]:
    """A row for each pair of arms of a table, metric, and set of ours that stands for data sets of the paper."""
    tables: dict[tuple[str, str, str], dict[str, list[Value]]] = {}
    for value in reported.values:
        name, datasets = _datasets(value, results, reported)
        if value.value is not None and value.algorithm not in ("", _INITIAL) and datasets and (
                value.place.startswith("Table")):
            by_arm = tables.setdefault((value.place, value.metric, name), {})
            by_arm.setdefault(value.algorithm, []).append(value)
    for (place, metric, name), found in tables.items():
        # the later arm of the paper's table first: it is the proposed one
        for other, one in combinations(found, 2):
            pairs = [(a, b) for a in found[one] for b in found[other] if a.dataset == b.dataset]
            if pairs:
                yield _difference(place, metric, name, pairs, results, reported)


def _difference(place: str, metric: str, name: str, pairs: Sequence[tuple[Value, Value]], results: Results,
                reported: Reported) -> Entry:
    first, second = pairs[0]
    theirs = sum(a.value - b.value for a, b in pairs if a.value is not None and b.value is not None) / len(pairs)
    experiment, (_, datasets) = _experiment(first), _datasets(first, results, reported)
    arms = [results.arm(experiment, value.algorithm) for value in (first, second)]
    one, other = arms
    estimate = None if one is None or other is None else _gap(one, other, metric, datasets, results)
    if estimate is None:
        verdict = "not run"
    elif estimate.low is None or estimate.high is None:
        verdict = "no interval"
    else:
        verdict = "compatible" if estimate.low <= theirs <= estimate.high else "not compatible"
    where = _GROUPS.get(name, name)
    return Entry(
        "difference", f"{first.value_id}-minus-{second.value_id}",
        f"{first.algorithm} − {second.algorithm}, {words(metric)}, {', '.join(a.dataset for a, _ in pairs)}",
        f"{place} ({first.paper_version})", f"{round(theirs, 4):+g}", *numbers(estimate),
        sources(arms) if estimate is not None else "", verdict, f"ours: {where}",
        None if estimate is None else estimate.bases)
