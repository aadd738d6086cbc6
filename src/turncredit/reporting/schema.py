"""What a run's CSV files must look like: read as text, checked cell by cell, then typed.

A fault is a ``DataError`` that names the file, the row (the first row under the header is row 1),
the column, the value and the remedy.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import numpy as np
import pandas as pd

from turncredit.errors import DataError, nearest


class Kind(Enum):
    """What a cell of a column may hold."""

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
        columns: required columns and what their cells hold.
        key: columns that together name a row: no two rows agree in all of them.
        remedy: what to do about a file that breaks the schema.
        after_start: columns that are empty in rows with ``step`` 0 and obey ``columns`` in all others.
    """

    columns: Mapping[str, Kind]
    key: tuple[str, ...]
    remedy: str
    after_start: frozenset[str] = frozenset()


_UNREADABLE = (OSError, EOFError, zlib.error, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError)

RUN = {"experiment": Kind.NAME, "arm": Kind.NAME, "seed": Kind.COUNT}

_TRAINING = {
    "wall_s": Kind.NUMBER, "questions": Kind.COUNT, "trajectories": Kind.COUNT, "tokens_sampled": Kind.COUNT,
    "tokens_trained": Kind.COUNT, "tokens_env": Kind.COUNT, "turns_mean": Kind.NUMBER, "searches_mean": Kind.NUMBER,
    "reward_total": Kind.NUMBER, "reward_outcome": Kind.NUMBER, "reward_intermediate": Kind.NUMBER,
    "answer_correct": Kind.RATE, "format_correct": Kind.RATE, "retrieval_correct": Kind.RATE,
    "policy_loss": Kind.NUMBER, "value_loss": Kind.OPTIONAL, "kl": Kind.OPTIONAL, "entropy": Kind.OPTIONAL,
    "clip_fraction": Kind.OPTIONAL, "grad_norm": Kind.NUMBER, "critic_grad_norm": Kind.OPTIONAL,
    "zero_std_groups": Kind.OPTIONAL, "sampler_trainer_kl": Kind.OPTIONAL,
    "stop_answered": Kind.OPTIONAL_RATE, "stop_turn_limit": Kind.OPTIONAL_RATE,
    "stop_context_overflow": Kind.OPTIONAL_RATE, "stop_invalid_limit": Kind.OPTIONAL_RATE,
    "seconds_rollout": Kind.OPTIONAL, "seconds_scoring": Kind.OPTIONAL, "seconds_update": Kind.OPTIONAL,
}
METRICS = Schema(
    columns={"step": Kind.COUNT, **_TRAINING, "collapse": Kind.TEXT}, key=("step",),
    remedy="remove the run's folder and train it again", after_start=frozenset(_TRAINING))
EVALUATION = Schema(
    columns={
        "dataset": Kind.NAME, "question_id": Kind.NAME, "hops": Kind.COUNT, "prediction": Kind.TEXT,
        "answer_correct": Kind.RATE, "f1": Kind.RATE, "format_correct": Kind.RATE, "retrieval_correct": Kind.RATE,
        "turns": Kind.COUNT, "searches": Kind.COUNT, "stop_reason": Kind.NAME, "decoding": Kind.NAME},
    key=("dataset", "question_id", "decoding"), remedy="remove the run's folder and train it again")


def collected(schema: Schema) -> Schema:
    """The schema of the same rows collected over runs: the run's columns in front."""
    return Schema(columns={**RUN, **schema.columns}, key=(*RUN, *schema.key), after_start=schema.after_start,
                  remedy="collect the runs again, or take the shipped file from git again")


def read_cells(path: Path) -> pd.DataFrame:
    """The cells of a CSV file as the text that stands there; an empty cell is ``""``.

    Raises:
        DataError: the file is missing, cut off, or no CSV.
    """
    try:
        return pd.read_csv(path, dtype=str, keep_default_na=False, na_filter=False)
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file", "run snakemake to make it") from error
    except _UNREADABLE as error:
        raise DataError(f"{path}: not a readable CSV file: {error}", "remove it and run snakemake again") from error


def typed(cells: pd.DataFrame, schema: Schema, path: Path) -> pd.DataFrame:
    """The cells as numbers and text, checked against ``schema``. Columns it does not name hold numbers.

    Raises:
        DataError: a missing column, a cell that breaks its column's rule, a repeated row, or no row.
    """
    for name in schema.columns:
        if name not in cells.columns:
            raise DataError(f"{path}: column {name!r} is missing; {nearest(name, cells.columns)}", schema.remedy)
    if cells.empty:
        raise DataError(f"{path}: no rows", schema.remedy)
    columns: dict[str, pd.Series] = {}
    start = _parse(cells["step"], "step", Kind.COUNT, schema, path) == 0 if "step" in schema.columns else None
    for name in cells.columns:
        fallback = Kind.OPTIONAL_RATE if name.endswith("_correct") else Kind.OPTIONAL
        kind = schema.columns.get(name, fallback)
        exempt = start if name in schema.after_start else None
        columns[name] = _parse(cells[name], name, kind, schema, path, exempt)
    frame = pd.DataFrame(columns)
    repeated = frame.duplicated(subset=list(schema.key))
    if repeated.any():
        row = int(np.flatnonzero(repeated)[0])
        where = ", ".join(f"{k} = {frame[k].iloc[row]}" for k in schema.key)
        raise DataError(f"{path}: row {row + 1} repeats an earlier row ({where})", schema.remedy)
    return frame


def _parse(cells: pd.Series, name: str, kind: Kind, schema: Schema, path: Path,
           exempt: pd.Series | None = None) -> pd.Series:
    """One column, typed and checked; ``exempt`` marks the rows where it may be empty."""
    if kind is Kind.TEXT:
        return cells
    if kind is Kind.NAME:
        _refuse(cells == "", cells, name, kind, schema, path)
        return cells
    empty = cells == ""
    values = pd.to_numeric(cells.where(~empty), errors="coerce").astype(float)
    may_be_empty = kind in (Kind.OPTIONAL, Kind.OPTIONAL_RATE)
    wrong = ~np.isfinite(values) & ~(empty if may_be_empty else empty & (False if exempt is None else exempt))
    if kind in (Kind.RATE, Kind.OPTIONAL_RATE):
        wrong |= (values < 0) | (values > 1)
    if kind is Kind.COUNT:
        wrong |= (values < 0) | (values % 1 > 0)
    _refuse(pd.Series(wrong), cells, name, kind, schema, path)
    return values.astype(int) if kind is Kind.COUNT and not empty.any() else values


def _refuse(wrong: pd.Series, cells: pd.Series, name: str, kind: Kind, schema: Schema, path: Path) -> None:
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        value = cells.iloc[row]
        shown = "is empty" if value == "" else f"is {value!r}"
        raise DataError(f"{path}: row {row + 1}, column {name!r} {shown}; it must hold {kind.value}", schema.remedy)


def same_columns(frames: Sequence[pd.DataFrame]) -> list[str]:
    """All columns of the frames, in the order of first appearance."""
    return list(dict.fromkeys(name for frame in frames for name in frame.columns))
