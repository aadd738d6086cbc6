"""Benchmark results: a CSV file of all numbers, and tables for the terminal."""

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
    """One number.

    Attributes:
        part: section of the benchmark, printed as one table.
        subject: a row of the table.
        measure: a column of the table, with its unit.
        value: the number.
    """

    part: str
    subject: str
    measure: str
    value: float


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """A part of the benchmark that cannot be measured here, and the reason."""

    part: str
    reason: str


Result = Measured | NotMeasured
REPEATS = 5  # of what takes a second; the fastest counts, since other work can only slow it down


def with_spread(part: str, subject: str, measure: str, values: Sequence[float]) -> list[Measured]:
    """The median and the quartiles of repeated measurements."""
    low, _, high = quantiles(values, n=4, method="inclusive")
    return [Measured(part, subject, measure, median(values)), Measured(part, subject, f"{measure}, quartile 1", low),
            Measured(part, subject, f"{measure}, quartile 3", high)]


def save(found: Sequence[Result], path: Path) -> None:
    """Write one CSV row per number. A part that was not measured has its reason as the subject, and no value."""
    with atomic(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["part", "subject", "measure", "value"])
        for one in found:
            writer.writerow((one.part, one.reason, "not measured", "") if isinstance(one, NotMeasured)
                            else (one.part, one.subject, one.measure, f"{one.value:.6g}"))


def tables(found: Sequence[Result]) -> list[Table | str]:
    """One table per part (a row per subject, a column per measure), or a line with the reason why there is none."""
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
