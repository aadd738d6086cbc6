"""Schemas of a run's CSV files: cells are read as text, checked one by one, then typed.

An invalid cell raises a ``DataError`` that names the file, line, column, value and remedy.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from turncredit.errors import DataError, nearest
from turncredit.tasks.plugin import TaskPlugin
from turncredit.tasks.registry import plugin_of

Values = np.ndarray[Any, np.dtype[Any]]


class Kind(Enum):
    """Allowed cells of a column."""

    NAME = "a name, not empty"
    TEXT = "any text, or nothing"
    COUNT = "a whole number, 0 or more"
    NUMBER = "a finite number"
    RATE = "a number from 0 to 1"
    OPTIONAL = "a finite number, or nothing"
    OPTIONAL_RATE = "a number from 0 to 1, or nothing"


@dataclass(frozen=True)
class Schema:
    """Columns of one kind of file.

    Attributes:
        columns: required columns and the kind of their cells.
        key: columns whose values together identify a row.
        remedy: what to do about a broken file that is not committed (``mending``).
        after_start: columns that may be empty in the row of step 0.
        optional: columns that a file may lack, and the kind of their cells.
    """

    columns: Mapping[str, Kind]
    key: tuple[str, ...]
    remedy: str
    after_start: frozenset[str] = frozenset()
    optional: Mapping[str, Kind] = field(default_factory=dict)


_COMMITTED = {("results", "shipped"), ("paper_tables", "reported")}
_ROUNDING = 1e-9  # a mean of ones may exceed 1 by rounding
_UNREADABLE = (OSError, EOFError, zlib.error, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError)

RUN = {"experiment": Kind.NAME, "arm": Kind.NAME, "base": Kind.COUNT, "seed": Kind.COUNT}

_TRAINING = {
    "wall_s": Kind.NUMBER, "questions": Kind.COUNT, "trajectories": Kind.COUNT, "tokens_sampled": Kind.COUNT,
    "tokens_trained": Kind.COUNT, "tokens_env": Kind.COUNT, "turns_mean": Kind.NUMBER,
    "reward_total": Kind.NUMBER, "reward_outcome": Kind.NUMBER, "reward_intermediate": Kind.NUMBER,
    "policy_loss": Kind.NUMBER, "value_loss": Kind.OPTIONAL, "kl": Kind.OPTIONAL, "entropy": Kind.OPTIONAL,
    "clip_fraction": Kind.OPTIONAL, "grad_norm": Kind.NUMBER, "critic_grad_norm": Kind.OPTIONAL,
    "zero_std_groups": Kind.OPTIONAL, "sampler_trainer_kl": Kind.OPTIONAL,
    "seconds_rollout": Kind.OPTIONAL, "seconds_scoring": Kind.OPTIONAL, "seconds_update": Kind.OPTIONAL,
}
_EVALUATION = {"dataset": Kind.NAME, "question_id": Kind.NAME, "turns": Kind.COUNT, "stop_reason": Kind.NAME,
               "decoding": Kind.NAME}
_RETRAIN = "remove the run's folders under results/ and checkpoints/, and train it again"
_METRIC = {"rate": Kind.RATE, "count": Kind.COUNT, "number": Kind.NUMBER}
_CELL = {"name": Kind.NAME, "text": Kind.TEXT, "count": Kind.COUNT, "number": Kind.NUMBER}
_EMPTY = {Kind.NAME: Kind.TEXT, Kind.COUNT: Kind.OPTIONAL, Kind.NUMBER: Kind.OPTIONAL, Kind.RATE: Kind.OPTIONAL_RATE}


def metrics_schema(tasks: Iterable[str]) -> Schema:
    """The schema of metrics.csv for runs of some tasks; a column that only some have may be missing or empty.

    Raises:
        ConfigError: no task of one of these names.
    """
    shared, optional = _shared([_training_columns(plugin_of(task)) for task in dict.fromkeys(tasks)])
    training = _TRAINING | shared
    return Schema(columns={"step": Kind.COUNT, **training, "collapse": Kind.TEXT}, key=("step",), remedy=_RETRAIN,
                  after_start=frozenset(training), optional=optional)


def evaluation_schema(tasks: Iterable[str]) -> Schema:
    """The schema of evaluation.csv for episodes of some tasks; a column that only some have may be missing or empty.

    Raises:
        ConfigError: no task of one of these names.
    """
    shared, optional = _shared([_evaluation_columns(plugin_of(task)) for task in dict.fromkeys(tasks)])
    return Schema(columns=_EVALUATION | shared, key=("dataset", "question_id", "decoding"), remedy=_RETRAIN,
                  optional=optional)


def _training_columns(task: TaskPlugin) -> dict[str, Kind]:
    """The columns of metrics.csv that a task brings, its reward components aside."""
    rates = {metric.name: Kind.RATE for metric in task.metrics if metric.in_training and metric.kind == "rate"}
    means = {f"{m.name}_mean": Kind.NUMBER for m in task.metrics if m.in_training and m.kind != "rate"}
    return rates | means | {f"stop_{reason}": Kind.OPTIONAL_RATE for reason in task.stop_reasons}


def _evaluation_columns(task: TaskPlugin) -> dict[str, Kind]:
    """The columns of evaluation.csv that a task brings, its reward components aside."""
    return ({name: _CELL[cell] for name, cell in task.columns.items()}
            | {metric.name: _METRIC[metric.kind] for metric in task.metrics})


def _shared(columns: Sequence[Mapping[str, Kind]]) -> tuple[dict[str, Kind], dict[str, Kind]]:
    """The columns that all tasks have, and the others, whose cells may be empty."""
    known = {name: kind for of_task in columns for name, kind in of_task.items()}
    shared = {name: kind for name, kind in known.items() if all(name in of_task for of_task in columns)}
    return shared, {name: _EMPTY.get(kind, kind) for name, kind in known.items() if name not in shared}


def collected(schema: Schema) -> Schema:
    """The schema of collected files: the same rows after columns for experiment, arm, base and seed."""
    return Schema(columns={**RUN, **schema.columns}, key=(*RUN, *schema.key), after_start=schema.after_start,
                  remedy="collect the runs again", optional=schema.optional)


def mending(path: Path, otherwise: str) -> str:
    """The remedy for a broken file: restore a committed file with git, otherwise ``otherwise``."""
    return f"git checkout -- {path}" if _COMMITTED & {*pairwise(path.parts)} else otherwise


def line_of(cells: pd.DataFrame, row: int) -> int:
    """The line of a file (from 1) where a row (from 0) begins; quoted cells may contain line breaks.

    >>> line_of(pd.DataFrame({"a": ["two\\nlines", "x"], "b": ["1", "2"]}), 1)
    4
    """
    return 2 + row + sum(str(cell).count("\n") for name in cells.columns for cell in cells[name].iloc[:row])


def read_cells(path: Path) -> pd.DataFrame:
    """The cells of a CSV file as text; empty cells and blank lines give ``""``.

    Raises:
        DataError: the file is missing, truncated, or not CSV.
    """
    try:
        return pd.read_csv(path, dtype=str, keep_default_na=False, na_filter=False, skip_blank_lines=False)
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file", mending(path, "run snakemake to make it")) from error
    except _UNREADABLE as error:
        raise DataError(f"{path}: not a readable CSV file: {error}",
                        mending(path, "remove it and run snakemake again")) from error


def typed(cells: pd.DataFrame, schema: Schema, path: Path) -> pd.DataFrame:
    """The cells as numbers and text, checked against ``schema``. Other columns hold numbers.

    Raises:
        DataError: a missing column, an invalid cell, a repeated row, or no rows.
    """
    remedy = mending(path, schema.remedy)
    for name in schema.columns:
        if name not in cells.columns:
            raise DataError(f"{path}: column {name!r} is missing; {nearest(name, cells.columns)}", remedy)
    if cells.empty:
        raise DataError(f"{path}: no rows", remedy)
    columns: dict[str, Values] = {}
    known = {**schema.optional, **schema.columns}
    start = _parse(cells, "step", Kind.COUNT, schema, path) == 0 if "step" in schema.columns else None
    for name in map(str, cells.columns):
        fallback = RUN.get(name, Kind.OPTIONAL_RATE if name.endswith("_correct") else Kind.OPTIONAL)
        exempt = start if name in schema.after_start else None
        columns[name] = _parse(cells, name, known.get(name, fallback), schema, path, exempt)
    frame = pd.DataFrame(columns)
    repeated = frame.duplicated(subset=list(schema.key))
    if repeated.any():
        row = int(np.flatnonzero(repeated)[0])
        where = ", ".join(f"{k} = {frame[k].iloc[row]}" for k in schema.key)
        raise DataError(f"{path}: line {line_of(cells, row)} repeats an earlier one ({where})", remedy)
    return frame


def _parse(cells: pd.DataFrame, name: str, kind: Kind, schema: Schema, path: Path,
           exempt: Values | None = None) -> Values:
    """One column, typed and checked; cells may be empty in rows marked by ``exempt``."""
    text = cells[name].to_numpy(dtype=object)
    empty = text == ""
    if kind in (Kind.TEXT, Kind.NAME):
        wrong = empty & (kind is Kind.NAME)
        values = text
    else:
        values = np.fromiter((_number(cell) for cell in text), dtype=float, count=len(text))
        optional = kind in (Kind.OPTIONAL, Kind.OPTIONAL_RATE)
        may_be_empty = np.full(len(text), optional) if exempt is None or optional else exempt
        wrong = ~np.isfinite(values) & ~(empty & may_be_empty)
        if kind in (Kind.RATE, Kind.OPTIONAL_RATE):
            wrong |= (values < -_ROUNDING) | (values > 1 + _ROUNDING)
        if kind is Kind.COUNT:
            wrong |= (values < 0) | (values % 1 > 0)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        shown = "is empty" if empty[row] else f"is {text[row]!r}"
        raise DataError(f"{path}: line {line_of(cells, row)}, column {name!r} {shown}; expected {kind.value}",
                        mending(path, schema.remedy))
    return values.astype(int) if kind is Kind.COUNT and not empty.any() else values


def _number(cell: str) -> float:
    """The number in a cell; NaN if there is none."""
    try:
        return math.nan if "_" in cell else float(cell)
    except ValueError:
        return math.nan


def same_columns(frames: Sequence[pd.DataFrame]) -> list[str]:
    """All columns of the frames, in the order of first appearance."""
    return list(dict.fromkeys(name for frame in frames for name in frame.columns))
