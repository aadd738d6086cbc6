"""The audit: one row for each claim, each comparison of a claim and each reported number.

A reported number is *comparable* only if our model, data, retriever and k are the paper's (``comparability``). Where an
arm, metric and data set of ours are analogous, our number is shown beside the reported one and the note names the
analogue. A comparable number *agrees* if it is in our interval. A number that the paper does not print has a row if
we have one. The comparisons were fixed in ``paper_tables/reported/claim_tests.csv`` before any run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import pandas as pd

from turncredit.config.load import Scale
from turncredit.reporting import statistics
from turncredit.reporting.claims import Comparison, claim_verdict, compare, tally
from turncredit.reporting.comparability import differences
from turncredit.reporting.reported import Claim, Reported, Value
from turncredit.reporting.runs import Runs
from turncredit.reporting.scores import METRIC_LABELS, ArmRuns, Results, sources
from turncredit.reporting.statistics import Estimate
from turncredit.reporting.tables.render import number

NOT_COMPARABLE, NOT_REPORTED = "not comparable", "not reported"
AGREES, ABOVE, BELOW = "agrees", "ours is higher", "ours is lower"
_NOTHING = "no analogue here"
_INITIAL = "initial"  # the word of paper_tables/reported for the policy before training
_DIFFERENCE = "component_exact_match_difference"  # in the paper's text: MT-GRPO minus GRPO-MR


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the audit.

    Attributes:
        kind: a reported value, a claim, or one comparison of a claim.
        id: value_id, claim number, or claim number and part.
        what: the row in words.
        place: place in the paper, or what is compared.
        reported: the reported number, "not reported", or the claimed side of a comparison.
        ours: our number; None if nothing was run.
        low, high: its 95 % interval; None if there is none.
        seeds: number of seeds of each arm.
        runs: origin of the runs: fresh, shipped, or imported with a label.
        verdict: for a claim or comparison: supported, contradicted, inconclusive, by construction, not run; for a
            value: not comparable, not reported, not run, agrees, ours is higher, ours is lower, or inconclusive
            (a single seed has no interval).
        note: the reason, the analogue, or the verdict counts of a claim's comparisons.
    """

    kind: Literal["value", "claim", "comparison"]
    id: str
    what: str
    place: str
    reported: str
    ours: float | None
    low: float | None
    high: float | None
    seeds: str
    runs: str
    verdict: str
    note: str

    @property
    def shown(self) -> str:
        """Our number with its interval; "-" if there is none."""
        if self.ours is None:
            return "-"
        interval = "" if self.low is None or self.high is None else f" [{number(self.low)}, {number(self.high)}]"
        return number(self.ours) + interval


def audit(runs: Mapping[str, Runs], scale: Scale, reported: Reported) -> list[Entry]:
    """All rows: each claim followed by its comparisons, then the reported numbers.

    Raises:
        DataError: the runs' files lack a metric or data set.
    """
    results = Results(scale, runs)
    entries: list[Entry] = []
    for claim in reported.claims:
        comparisons = [c for test in reported.tests if test.claim_id == claim.claim_id for c in compare(test, results)]
        entries += [_claim(claim, comparisons), *(_comparison(c) for c in comparisons)]
    values = [(value, _value(value, results, reported)) for value in reported.values]
    return entries + [entry for value, entry in values if value.value is not None or entry.ours is not None]


def frame(entries: Sequence[Entry]) -> pd.DataFrame:
    """The rows as a data frame with the columns of ``Entry``."""
    return pd.DataFrame([asdict(entry) for entry in entries], columns=list(Entry.__dataclass_fields__))


def _claim(claim: Claim, comparisons: list[Comparison]) -> Entry:
    measured = [c for c in comparisons if c.estimate is not None]
    seeds = sorted({n for c in measured if c.estimate for n in c.estimate.seeds})
    runs = "; ".join(dict.fromkeys(c.runs for c in measured))
    notes = [tally(comparisons)] if len(comparisons) > 1 else [c.note for c in comparisons if c.estimate is None]
    return Entry("claim", str(claim.claim_id), claim.statement, f"{claim.paper_version}, {claim.source}", "",
                 None, None, None, " to ".join(dict.fromkeys(map(str, (*seeds[:1], *seeds[-1:])))), runs,
                 claim_verdict(comparisons), "; ".join(filter(None, notes)))


def _comparison(found: Comparison) -> Entry:
    test = found.test
    sides = {"greater": "> {:g}", "less": "< {:g}", "similar": "within ±{:g}"}
    side = sides.get(test.direction, "").format(test.threshold)
    sign = "/" if test.statistic.startswith("sd_") else "−"
    arms = f"{found.arm_a} {sign} {found.arm_b}" if found.arm_b else found.arm_a
    datasets = {"in": "in-domain", "out": "out-of-domain", "all": "all sets"}.get(found.dataset, found.dataset)
    measured = (test.experiment, arms, _words(found.metric) if arms else "", datasets)
    return Entry("comparison", f"{test.claim_id}{test.part}", test.says, ", ".join(filter(None, measured)), side,
                 *_numbers(found.estimate), found.runs, found.verdict, found.note)


def _value(value: Value, results: Results, reported: Reported) -> Entry:
    arms, estimate, label = _analogue(value, results, reported)
    step = "" if value.step is None else f", step {value.step}"
    notes = (label, value.confidence, value.note)
    return Entry("value", value.value_id, f"{value.method}, {value.dataset}, {_words(value.metric)}{step}",
                 f"{value.place} ({value.paper_version})", NOT_REPORTED if value.value is None else f"{value.value:g}",
                 *_numbers(estimate),
                 sources(arms) if arms else "", _agreement(value, estimate, label, results.scale),
                 "; ".join(filter(None, notes)))


def _agreement(value: Value, found: Estimate | None, label: str, scale: Scale) -> str:
    """The verdict on a reported number. The paper prints no intervals, so ours alone decides."""
    if value.value is None:
        return NOT_REPORTED
    if label == _NOTHING or differences(scale, _experiment(value)):
        return NOT_COMPARABLE
    if found is None:
        return "not run"
    if found.low is None or found.high is None:
        return "inconclusive"
    return ABOVE if found.low > value.value else BELOW if found.high < value.value else AGREES


def _experiment(value: Value) -> str:
    return "two_turn" if "two-turn" in value.dataset else "search"


def _words(metric: str) -> str:
    return METRIC_LABELS.get(metric, metric.removeprefix("component_").replace("_", " "))


def _numbers(found: Estimate | None) -> tuple[float | None, float | None, float | None, str]:
    """Value, low, high and seeds."""
    return (None, None, None, "") if found is None else (
        found.value, found.low, found.high, "/".join(map(str, found.seeds)))


def _analogue(value: Value, results: Results, reported: Reported) -> tuple[list[ArmRuns], Estimate | None, str]:
    """Our analogue of a reported number: its arms, the estimate, and a note that names it or says why there is none."""
    experiment = _experiment(value)
    name = reported.datasets[value.dataset].here(results.scale)
    groups = {"out_of_domain": results.scale.out_of_domain, "all": results.datasets}
    datasets = groups.get(name, tuple(name.split("|")))
    public = {found.label: key for key, found in results.scale.checkpoints.items()}
    if value.method in public:  # a released checkpoint, evaluated here
        arm = results.untrained(public[value.method], experiment) if {*datasets} <= {*results.scale.datasets} else None
        label = f"ours: {results.scale.checkpoints[public[value.method]].path_or_id}"
        return ([], None, f"{label}: not run") if arm is None else (
            [arm], statistics.mean(arm.final(value.metric, datasets)), label)
    names = ["MT-GRPO", "GRPO-MR"] if value.metric == _DIFFERENCE else [value.algorithm] if value.algorithm else []
    here = {*datasets} <= {*results.scale.datasets}
    if not names or not name or value.metric.endswith("relative_gain") or not here:
        return [], None, _NOTHING
    found = [results.untrained(arm, experiment) if arm == _INITIAL else results.arm(experiment, arm) for arm in names]
    arms = [arm for arm in found if arm is not None]
    where = {"out_of_domain": "mean of the out-of-domain sets", "all": "mean of all sets"}.get(
        name, name if len(datasets) == 1 else f"mean of {len(datasets)} sets")
    words = ["initial policy" if arm == _INITIAL else arm for arm in names]
    label = f"ours: {' − '.join(words)} in {experiment}, {where}"
    if len(arms) < len(names):
        return [], None, f"{label}: not run"
    renamed = {"tool_success": "component_tool_execution", _DIFFERENCE: "component_exact_match"}
    metric = renamed.get(value.metric, value.metric)
    samples = [arm.final(metric, datasets) for arm in arms]
    if value.metric == "tool_success":
        largest = results.scale.rewards["tool_search"].model_dump()["tool_execution"]
        samples = [sample / largest for sample in samples]
    return arms, statistics.difference(*samples) if len(samples) == 2 else statistics.mean(samples[0]), label
