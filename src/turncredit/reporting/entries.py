"""Rows of the audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import pandas as pd

from turncredit.reporting.scores import METRIC_LABELS
from turncredit.reporting.statistics import Estimate
from turncredit.reporting.tables.render import number


@dataclass(frozen=True, slots=True)
class Entry:
    """A row of the audit.

    Attributes:
        kind: a claim, one comparison of a claim, a reported difference of two arms, or a reported value.
        id: claim number, claim number and part, or value_id; a difference has those of both values.
        what: the row in words.
        place: place in the paper, or what is compared.
        reported: the reported number, "not reported", or the claimed side of a comparison.
        ours: our number; None if nothing was run.
        low, high: its 95 % interval; None if there is none.
        seeds: number of runs of each arm.
        runs: origin of the runs: fresh, shipped, or imported with a label.
        verdict: of a claim: a ``verdicts.Verdict``; of a comparison: a ``claims.Finding``, which decides nothing; of
            a difference: compatible, not compatible, no interval, not run; of a value: agrees, ours is higher, ours
            is lower, no interval, not comparable, no analogue, not reported, not run.
        note: the reason, the analogue, or the counts of a claim's findings.
        bases: number of base policies that the arms share; None without runs.
        p: of a comparison: one-sided p-value of the claimed side; of a claim: the smallest of its three p-values.
        p_holm: the latter after Holm's method over the whole audit.
        margin: distances from the threshold below it do not matter.
        detects: the smallest effect that supports the claim with 80 % power, in the unit of the comparison.
        precondition: "met", or the one that fails.
        power: of a claim: the largest ``detects`` of its primary comparisons, by what is measured.
    """

    kind: Literal["value", "difference", "claim", "comparison"]
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
    bases: int | None = None
    p: float | None = None
    p_holm: float | None = None
    margin: float | None = None
    detects: float | None = None
    precondition: str = ""
    power: str = ""

    @property
    def shown(self) -> str:
        """Our number with its interval; "-" if there is none."""
        if self.ours is None:
            return "-"
        interval = "" if self.low is None or self.high is None else f" [{number(self.low)}, {number(self.high)}]"
        return number(self.ours) + interval


def frame(entries: Sequence[Entry]) -> pd.DataFrame:
    """The rows as a data frame with the columns of ``Entry``."""
    return pd.DataFrame([asdict(entry) for entry in entries], columns=list(Entry.__dataclass_fields__))


def numbers(found: Estimate | None) -> tuple[float | None, float | None, float | None, str]:
    """Value, low, high and runs of each arm, as in ``Entry``."""
    return (None, None, None, "") if found is None else (
        found.value, found.low, found.high, "/".join(map(str, found.seeds)))


def words(metric: str) -> str:
    """The name of a metric.

    >>> words("answer_correct"), words("component_xml_tags")
    ('exact match', 'xml tags')
    """
    return METRIC_LABELS.get(metric, metric.removeprefix("component_").replace("_", " "))
