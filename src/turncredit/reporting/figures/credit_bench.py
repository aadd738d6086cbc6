"""Draws the credit bench: how the arms' gradients point along the true ones, and what that predicts of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from turncredit.config.credit_bench import CREDIT_BENCH
from turncredit.reporting import statistics
from turncredit.reporting.credit_bench import REFUTED_BELOW, correlations, is_whole, label, predictions
from turncredit.reporting.figures import style
from turncredit.reporting.scores import METRIC_LABELS, Results
from turncredit.tasks.registry import plugin_of

EXPERIMENT = "search"  # whose training is compared with the predictions
NORMAL = 1.96  # standard errors of a 95 % interval
_TITLES = {"cosine_batch": "one batch", "cosine_mean": "expected gradient"}


def alignment(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the cosines of all arms with all true gradients, a panel for each checkpoint and for the expectation.

    Intervals are over base policies where there are several, else over batches.

    Returns:
        the figure and its data: checkpoint, quantity, arm, variant, target, value, low, high, bases.
    """
    table = _table(results)
    found = cosines(table)
    checkpoints = [*dict.fromkeys(found["checkpoint"])]
    panels = [*((checkpoint, "cosine_batch") for checkpoint in checkpoints),
              *((checkpoint, "cosine_mean") for checkpoint in checkpoints[:1])]
    arms = [*dict.fromkeys(zip(found["arm"], found["variant"], strict=True))]
    with style.applied():
        columns = max(len(panels), 1)
        figure, [axes] = style.new_figure(1, columns, 1.6 + 2.7 * columns, 1.4 + 0.3 * len(arms), sharey=True)
        for ax, (checkpoint, quantity) in zip(axes, panels, strict=False):
            rows = found[(found["checkpoint"] == checkpoint) & (found["quantity"] == quantity)]
            _matrix(ax, rows, arms, f"{checkpoint}: {_TITLES[quantity]}")
        if not panels:
            style.not_run(axes[0])
        style.head(figure, "Credit bench: cosine of each arm's gradient with the true gradients of the policy\n"
                   "small numbers: 95% interval", [])
        style.footer(figure, _origin(results, table))
    return figure, found[[(c, q) in panels for c, q in zip(found["checkpoint"], found["quantity"], strict=True)]]


def cosines(table: pd.DataFrame) -> pd.DataFrame:
    """Both cosines of every arm and true gradient, with intervals over base policies, or over batches of the only one.

    Returns:
        columns checkpoint, quantity, arm, variant, target, value, low, high, bases.
    """
    rows = table[is_whole(table) & table["quantity"].isin([*_TITLES])]
    records = []
    for key, group in rows.groupby(["checkpoint", "quantity", "arm", "variant", "target"], sort=False):
        values = group["value"].to_numpy(dtype=float)
        if len(values) > 1 and np.isfinite(values).all():
            mean = statistics.mean(values[:, None])
            value, low, high = mean.value, mean.low, mean.high
        else:
            value, half = float(np.nanmean(values)) if np.isfinite(values).any() else float("nan"), \
                NORMAL * float(group["standard_error"].iloc[0])
            low, high = value - half, value + half
        records.append((*key, value, low, high, len(values)))
    return pd.DataFrame(records, columns=["checkpoint", "quantity", "arm", "variant", "target", "value", "low", "high",
                                          "bases"])


def _matrix(ax: Axes, rows: pd.DataFrame, arms: Sequence[tuple[str, str]], title: str) -> None:
    targets = [*dict.fromkeys(rows["target"])]
    number_of = {(arm, variant, target): (value, low, high) for arm, variant, target, value, low, high in zip(
        *(rows[name] for name in ("arm", "variant", "target", "value", "low", "high")), strict=True)}
    unknown = (float("nan"),) * 3
    value_A_M = np.array([[number_of.get((*arm, target), unknown)[0] for target in targets] for arm in arms])
    ax.imshow(value_A_M, cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
    ax.set_title(title)
    ax.grid(visible=False)
    ax.set_xticks(range(len(targets)), [METRIC_LABELS.get(name, name.replace("_", " ")) for name in targets],
                  rotation=30, ha="right")
    ax.set_yticks(range(len(arms)), [label(*arm) for arm in arms])
    for a, arm in enumerate(arms):
        for m, target in enumerate(targets):
            value, low, high = number_of.get((*arm, target), unknown)
            if not np.isfinite(value):
                ax.text(m, a, "-", ha="center", va="center", color=style.GREY)
                continue
            colour = "white" if abs(value) > 0.6 else "black"
            ax.text(m, a - 0.12, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=7)
            if low is not None and np.isfinite(low):
                ax.text(m, a + 0.28, f"{low:.2f} .. {high:.2f}", ha="center", va="center", color=colour, fontsize=4.5)


def prediction(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the predicted against the observed early change of the task's rates, with both correlations.

    Returns:
        the figure and its data: target, base, arm, predicted, error, observed.
    """
    table, targets = _table(results), _rates(results)
    if EXPERIMENT in results.runs and len(table):
        found = predictions(table, results.runs[EXPERIMENT].metrics, targets)
    else:
        found = pd.DataFrame(columns=["target", "base", "arm", "predicted", "error", "observed"])
    looks = style.looks(dict.fromkeys(found["arm"]))
    with style.applied():
        figure, [axes] = style.new_figure(1, len(targets), 0.6 + 3.2 * len(targets), 3.2)
        for ax, target in zip(axes, targets, strict=True):
            _scatter(ax, found[found["target"] == target], target, looks)
        style.head(figure, "Credit bench: predicted against observed early change\n"
                   f"refuted as a forecast of exact match if its rank correlation is below {REFUTED_BELOW}",
                   [(look, arm) for arm, look in looks.items()])
        style.footer(figure, f"{_origin(results, table)}  ·  observed: mean of the first quarter of training "
                     "minus the initial policy; one point an arm and base policy")
    return figure, found


def _scatter(ax: Axes, found: pd.DataFrame, target: str, looks: Mapping[str, style.Look]) -> None:
    ax.set_title(METRIC_LABELS.get(target, target.replace("_", " ")))
    ax.set_xlabel("predicted change in one step")
    ax.set_ylabel("observed early change")
    style.few_ticks(ax, "x")
    if found.empty:
        style.not_run(ax)
        return
    for arm, x, error, y in zip(found["arm"], found["predicted"], found["error"], found["observed"], strict=True):
        look = looks[arm]
        ax.errorbar(x, y, xerr=NORMAL * error, color=look.colour, marker=look.marker,
                    fillstyle="none" if look.line == "--" else "full", linewidth=0.7)
    plain, ranks = correlations(found)
    ax.text(0.03, 0.97, f"r = {plain:.2f}, rank r = {ranks:.2f}", transform=ax.transAxes, va="top")


def _rates(results: Results) -> list[str]:
    task = plugin_of(results.scale.experiments[EXPERIMENT].task.name)
    return [metric.name for metric in task.metrics if metric.in_training and metric.kind == "rate"]


def _table(results: Results) -> pd.DataFrame:
    return results.runs[CREDIT_BENCH].metrics


def _origin(results: Results, table: pd.DataFrame) -> str:
    bases = table["base"].nunique()
    return f"scale {results.scale.name}  ·  bench: {results.runs[CREDIT_BENCH].source}  ·  base policies: {bases}"
