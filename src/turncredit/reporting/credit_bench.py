"""Reads, joins and summarises the tables of the credit bench, and compares its predictions with training."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from turncredit.config.credit_bench import COLLECTED, COLUMNS, FILES, INITIAL, TRUTH
from turncredit.errors import DataError
from turncredit.files import atomic, write_text

EARLY = 0.25  # share of a run's training steps that counts as early
REFUTED_BELOW = 0.5  # rank correlation of predicted and observed early change below which the bench predicts nothing
STARTS_WITH = "critic=zero"  # the critic with which training starts
_REMEDY = "run turncredit credit-bench again"
_LABELS = {"scale": str, "checkpoint": str, "arm": str, "variant": str, "quantity": str, "target": str}


def read_table(path: Path) -> pd.DataFrame:
    """One table of the bench; missing numbers are NaN, missing words are empty.

    Raises:
        DataError: the file is missing, or has other columns.
    """
    try:
        table = pd.read_csv(path, dtype=_LABELS, keep_default_na=False, na_values=dict.fromkeys(
            ("value", "standard_error"), ""))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}", _REMEDY) from error
    if tuple(table.columns) != COLUMNS:
        raise DataError(f"{path}: columns {', '.join(table.columns)}, expected {', '.join(COLUMNS)}", _REMEDY)
    return table


def collect(folders: Sequence[Path], output: Path) -> None:
    """Join the tables and manifests of checkpoints, sorted by base policy and checkpoint in the order given.

    Raises:
        DataError: a file is missing, or two folders hold the same checkpoint.
    """
    tables, manifests = [], {}
    for folder in folders:
        table = read_table(folder / FILES[0])
        manifest = _manifest(folder / FILES[1])
        key = f"base-{manifest['base']}/{manifest['checkpoint']}"
        if key in manifests:
            raise DataError(f"{folder}: {key} a second time", "pass each checkpoint once")
        tables.append(table)
        manifests[key] = manifest
    joined = pd.concat(tables).sort_values("base", kind="stable")
    with atomic(output / COLLECTED[0]) as temporary:
        joined.to_csv(temporary, index=False, lineterminator="\n", float_format="%.6g")
    write_text(output / COLLECTED[1], json.dumps(manifests, indent=1, sort_keys=True) + "\n")


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}", _REMEDY) from error
    return manifest


def label(arm: str, variant: str) -> str:
    """An arm's name in figures.

    >>> label("MT-PPO", "critic=zero"), label("MT-GRPO", "")
    ('MT-PPO, V = 0', 'MT-GRPO')
    """
    words = {"": "", "critic=zero": ", V = 0", "critic=fitted": ", V fitted", "critic=exact": ", V exact"}
    return arm + words[variant]


def is_whole(table: pd.DataFrame) -> pd.Series:
    """Which rows are of an arm as it is trained, or with another critic: no sweep, no single turn, no truth."""
    return (table["arm"] != TRUTH) & table["variant"].isin(["", "critic=zero", "critic=fitted", "critic=exact"])


def summary(table: pd.DataFrame) -> str:
    """The cosine of one batch's gradient with each true gradient, in text: a row for each arm."""
    found = table[is_whole(table) & (table["quantity"] == "cosine_batch")]
    targets = [*dict.fromkeys(found["target"])]
    lines = [f"{'cosine of one batch with the true gradient of':<46}" + "".join(f"{name:>20}" for name in targets)]
    for (arm, variant), rows in found.groupby(["arm", "variant"], sort=False):
        cells = rows.set_index("target")[["value", "standard_error"]]
        lines.append(f"{label(str(arm), str(variant)):<46}" + "".join(
            f"{cells.loc[name, 'value']:>12.3f} ± {cells.loc[name, 'standard_error']:.3f}" for name in targets))
    return "\n".join(lines)


def predictions(table: pd.DataFrame, metrics: pd.DataFrame, targets: Sequence[str]) -> pd.DataFrame:
    """Predicted and observed early change of metrics, for each base policy and arm that was trained.

    Predicted: the first-order change in one step of the optimiser at the initial policy, with the critic with which
    training starts. Observed: the mean of the sampled training episodes over the first quarter of the steps, without
    the first (which the initial policy samples), minus the initial policy's own mean, over all seeds.

    Args:
        table: collected table of the bench.
        metrics: metrics.csv of the experiment's runs.
        targets: metrics of the task.

    Returns:
        columns target, base, arm, predicted, error, observed.
    """
    first = table[table["checkpoint"] == INITIAL]
    early = metrics[(metrics["step"] > 1) & (metrics["step"] <= max(2, EARLY * metrics["step"].max()))]
    records = []
    for target in targets:
        mine = first[first["target"] == target]
        start = mine[(mine["arm"] == TRUTH) & (mine["quantity"] == "mean")].set_index("base")["value"]
        rows = mine[(mine["quantity"] == "predicted_change") & mine["variant"].isin(["", STARTS_WITH])]
        cells = rows[["base", "arm", "value", "standard_error"]].itertuples(index=False)
        observed = early.groupby(["base", "arm"])[target].mean()
        records += [{"target": target, "base": base, "arm": arm, "predicted": value, "error": error,
                     "observed": observed[base, arm] - start[base]}
                    for base, arm, value, error in cells if (base, arm) in observed.index]
    return pd.DataFrame(records, columns=["target", "base", "arm", "predicted", "error", "observed"])


def correlations(found: pd.DataFrame) -> tuple[float, float]:
    """Pearson's and Spearman's correlation over arms within each base policy, averaged over base policies.

    Args:
        found: rows of ``predictions`` of one target. NaN with fewer than three arms.
    """
    pairs = [(rows["predicted"], rows["observed"]) for _, rows in found.groupby("base") if len(rows) >= 3]
    if not pairs:
        return float("nan"), float("nan")
    plain = [np.corrcoef(x, y)[0, 1] for x, y in pairs]
    ranks = [np.corrcoef(x.rank(), y.rank())[0, 1] for x, y in pairs]
    return float(np.mean(plain)), float(np.mean(ranks))
