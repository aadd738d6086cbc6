"""The numbers of a benchmark: one a row of a file, and as tables."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles

from rich import box
from rich.table import Table

from turncredit.files import atomic


@dataclass(frozen=True, slots=True)
class Measured:
    """One number: of which part of the benchmark, of what, which measure (its unit in the name)."""

    part: str
    subject: str
    measure: str
    value: float


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """A part of the benchmark that this machine cannot measure as it is, and why."""

    part: str
    reason: str


Found = Measured | NotMeasured
REPEATS = 5  # of what takes a second; the fastest counts, as disturbances only add


def with_spread(part: str, subject: str, measure: str, values: Sequence[float]) -> list[Measured]:
    """The median of repeated measurements, and their quartiles."""
    low, _, high = quantiles(values, n=4, method="inclusive")
    return [Measured(part, subject, measure, median(values)), Measured(part, subject, f"{measure}, quartile 1", low),
            Measured(part, subject, f"{measure}, quartile 3", high)]


def save(found: Sequence[Found], path: Path) -> None:
    """Write all numbers as CSV, a row each; what was not measured has its reason as the subject, and no value."""
    with atomic(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["part", "subject", "measure", "value"])
        for one in found:
            writer.writerow((one.part, one.reason, "not measured", "") if isinstance(one, NotMeasured)
                            else (one.part, one.subject, one.measure, f"{one.value:.6g}"))


def tables(found: Sequence[Found]) -> list[Table | str]:
    """A table for each part: a row a subject, a column a measure; or a line that says why there is none."""
    made: list[Table | str] = []
    for part in dict.fromkeys(one.part for one in found):
        made += [f"{part}: not measured: {one.reason}\n"
                 for one in found if isinstance(one, NotMeasured) and one.part == part]
        value = {(one.subject, one.measure): one.value
                 for one in found if isinstance(one, Measured) and one.part == part}
        if not value:
            continue
        measures = list(dict.fromkeys(measure for _, measure in value))
        table = Table("", title=part, title_justify="left", box=box.SIMPLE_HEAD)
        for measure in measures:
            table.add_column(measure, justify="right")
        for subject in dict.fromkeys(subject for subject, _ in value):
            table.add_row(subject, *(_short(value.get((subject, measure))) for measure in measures))
        made.append(table)
    return made


def _short(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
