"""Reads what the paper reports: numbers, data sets and claims, and the test that was fixed for each claim.

The files are ``paper_tables/reported/*.csv``. The tests of the claims were written before any run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from turncredit.config.load import Scale
from turncredit.errors import DataError, nearest
from turncredit.reporting.schema import line_of, read_cells

FOLDER = Path("paper_tables/reported")

_VALUES = ("value_id", "place", "method", "algorithm", "dataset", "metric", "step", "value", "paper_version", "source",
           "confidence", "note")
_TESTS = ("claim_id", "part", "role", "says", "experiment", "statistic", "metric", "arm_a", "arm_b", "datasets",
          "first", "second", "direction", "threshold", "margin", "least", "most", "needs", "note")
_CLAIMS = ("claim_id", "statement", "paper_version", "source", "confidence")
_DATASETS = ("dataset", "domain", "mark", "analogue", "name", "note")
_GRANULARITY = ("method", "reward", "advantage", "paper_version", "source", "confidence")
_REMEDY = "restore the file with git checkout, or correct the row"


@dataclass(frozen=True, slots=True)
class Value:
    """One number of the paper; ``value`` is None where the paper prints none."""

    value_id: str
    place: str
    method: str
    algorithm: str  # an arm of ours, "initial" for the initial policy, "" for a method that we lack
    dataset: str
    metric: str
    step: int | None
    value: float | None
    paper_version: str
    source: str
    confidence: str
    note: str


@dataclass(frozen=True, slots=True)
class Dataset:
    """A data set of the paper, and its analogue at a scale without it."""

    dataset: str
    domain: str  # in | out | all | ""
    mark: str  # the paper's dagger or star
    analogue: str  # "search.first" (its first training set), a set of ours, "out_of_domain", "all", or "" for none
    name: str  # in config/sources.yaml, several joined by "|"; "" for none
    note: str

    def here(self, scale: Scale) -> str:
        """Our name for the set at a scale: the set itself if the scale has it, else its analogue."""
        if self.name and {*self.name.split("|")} <= {*scale.datasets}:
            return self.name
        experiment, _, place = self.analogue.partition(".")
        if not place:
            return self.analogue
        trained = scale.experiments[experiment].train_on if experiment in scale.experiments else ()
        return dict(zip(("first", "second"), trained, strict=False)).get(place, "")


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim of the paper, in our words."""

    claim_id: int
    statement: str
    paper_version: str
    source: str
    confidence: str


@dataclass(frozen=True, slots=True)
class Need:
    """A precondition: an untrained policy's metric on the training sets is at least ``least``."""

    policy: str  # initial | expert | closed_book
    metric: str
    least: float


@dataclass(frozen=True, slots=True)
class ClaimTest:
    """One part of a claim and the comparison that tests it; ``claim_scores.py`` lists the statistics.

    Two further statistics: ``none`` (not tested; ``note`` says why) and ``construction`` (true by construction;
    ``note`` names the test that shows it).
    """

    claim_id: int
    part: str
    role: str  # primary | secondary | descriptive
    says: str
    experiment: str
    statistic: str
    metrics: tuple[str, ...]
    arms_a: tuple[str, ...]
    arms_b: tuple[str, ...]  # empty: arm a alone is compared with the threshold
    datasets: str
    first: tuple[float, float] | None  # window, in fractions of the training steps
    second: tuple[float, float] | None
    direction: str  # greater | less | similar
    threshold: float
    margin: float | None  # smaller distances from the threshold do not matter
    least: float | None  # the floor of the metric: nothing is decided if all arms are at or below it
    most: float | None  # the ceiling
    needs: Need | None
    note: str


@dataclass(frozen=True)
class Reported:
    """Everything in ``paper_tables/reported``."""

    values: tuple[Value, ...]
    datasets: dict[str, Dataset]
    claims: tuple[Claim, ...]
    tests: tuple[ClaimTest, ...]
    granularity: tuple[tuple[str, str, str], ...]  # method, reward, advantage (Table 1)

    def table(self, place: str, metric: str | None = None) -> list[Value]:
        """The numbers of one table or section of the paper, in the paper's order."""
        return [v for v in self.values if v.place == place and metric in (None, v.metric)]


def read_reported(folder: Path = FOLDER) -> Reported:
    """Read and check all files of ``paper_tables/reported``.

    Raises:
        DataError: a missing file or column, a duplicate id, or a cell with an invalid number or word.
    """
    values: list[Value] = []
    for path in sorted(folder.glob("*.csv")):
        if path.name not in ("claims.csv", "claim_tests.csv", "datasets.csv", "table1.csv"):
            values += [_value(row, f"{path}: line {n}") for n, row in _rows(path, _VALUES, "value_id")]
    datasets = {row["dataset"]: Dataset(**row) for _, row in _rows(folder / "datasets.csv", _DATASETS, "dataset")}
    for value in values:
        if value.dataset not in datasets:
            raise DataError(f"{folder}: {value.value_id}: dataset {value.dataset!r} is not in datasets.csv",
                            nearest(value.dataset, datasets))
    path = folder / "claims.csv"
    claims = [Claim(_integer(row["claim_id"], f"{path}: line {n}"), *(row[k] for k in _CLAIMS[1:]))
              for n, row in _rows(path, _CLAIMS, "claim_id")]
    path = folder / "claim_tests.csv"
    tests = [_test(row, f"{path}: line {n}") for n, row in _rows(path, _TESTS, None)]
    known = {claim.claim_id for claim in claims}
    if odd := known ^ {test.claim_id for test in tests}:
        raise DataError(f"{folder}: claim {min(odd)} is in only one of claims.csv and claim_tests.csv", _REMEDY)
    granularity = tuple((row["method"], row["reward"], row["advantage"])
                        for _, row in _rows(folder / "table1.csv", _GRANULARITY, "method"))
    return Reported(tuple(values), datasets, tuple(claims), tuple(tests), granularity)


def _rows(path: Path, columns: tuple[str, ...], key: str | None) -> list[tuple[int, dict[str, str]]]:
    """(line, cells) of every row, reduced to ``columns``; values of column ``key`` must be unique."""
    cells: pd.DataFrame = read_cells(path)
    for name in columns:
        if name not in cells.columns:
            raise DataError(f"{path}: column {name!r} is missing; {nearest(name, cells.columns)}", _REMEDY)
    if key is not None and cells[key].duplicated().any():
        raise DataError(f"{path}: duplicate {key} {cells[key][cells[key].duplicated()].iloc[0]!r}", _REMEDY)
    records = cells[list(columns)].to_dict("records")
    return [(line_of(cells, n), {str(k): str(v) for k, v in row.items()}) for n, row in enumerate(records)]


def _value(row: dict[str, str], where: str) -> Value:
    number = _float(row["value"], f"{where}, column 'value'") if row["value"] else None
    step = _integer(row["step"], f"{where}, column 'step'") if row["step"] else None
    return Value(**{**row, "value": number, "step": step})  # type: ignore[arg-type]


def _test(row: dict[str, str], where: str) -> ClaimTest:
    def window(text: str) -> tuple[float, float] | None:
        if not text:
            return None
        low, _, high = text.partition("-")
        return _float(low, where), _float(high, where)

    def words(text: str) -> tuple[str, ...]:
        return tuple(text.split("|")) if text else ()

    def limit(text: str) -> float | None:
        return _float(text, where) if text else None

    for column, known in (("direction", ("", "greater", "less", "similar")),
                          ("role", ("primary", "secondary", "descriptive"))):
        if row[column] not in known:
            raise DataError(f"{where}, column {column!r} is {row[column]!r}", nearest(row[column], known))
    return ClaimTest(
        _integer(row["claim_id"], where), row["part"], row["role"], row["says"], row["experiment"], row["statistic"],
        words(row["metric"]), words(row["arm_a"]), words(row["arm_b"]), row["datasets"], window(row["first"]),
        window(row["second"]), row["direction"], _float(row["threshold"] or "0", where), limit(row["margin"]),
        limit(row["least"]), limit(row["most"]), _need(row["needs"], where), row["note"])


def _need(text: str, where: str) -> Need | None:
    """Reads ``closed_book answer_correct >= 0.1``."""
    if not text:
        return None
    match text.split():
        case [policy, metric, ">=", least]:
            return Need(policy, metric, _float(least, where))
        case _:
            raise DataError(f"{where}, column 'needs' is {text!r}",
                            "write a policy, a metric, >= and a number: closed_book answer_correct >= 0.1")


def _integer(text: str, where: str) -> int:
    if not text.isdigit():
        raise DataError(f"{where}: {text!r} is not a whole number", _REMEDY)
    return int(text)


def _float(text: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise DataError(f"{where}: {text!r} is not a finite number", _REMEDY)
    return number
