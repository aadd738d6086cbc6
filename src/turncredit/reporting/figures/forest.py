"""Draws forest plots: differences between arms, and main effects, on the primary outcomes with their margins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from turncredit.reporting.catalogue import FACTORIAL
from turncredit.reporting.differences import differences
from turncredit.reporting.factor_effects import main_effects
from turncredit.reporting.figures import style
from turncredit.reporting.figures.learning_curves import provenance
from turncredit.reporting.outcomes import PRIMARY, Outcome
from turncredit.reporting.reported import Reported
from turncredit.reporting.samples import excludes_zero
from turncredit.reporting.scores import Results
from turncredit.reporting.statistics import Estimate

_COLUMNS = ["outcome", "experiment", "item", "value", "low", "high", "runs", "p_value", "margin", "paper"]
_WORDS = {"area": "area under\nvalidation curve", "steps_to_half": "steps to half of\nthe expert's score",
          "exact_match": "final\nexact match", "format": "final\nformat", "searches": "searches\nper episode"}


@dataclass(frozen=True)
class Row:
    """A point of a forest plot; ``filled`` means that it differs from 0."""

    experiment: str
    item: str
    outcome: Outcome
    estimate: Estimate
    filled: bool
    p_value: float | None = None
    paper: float | None = None


def differences_figure(results: Results, reported: Reported) -> tuple[Figure, pd.DataFrame]:
    """Differences between the arms of search, with the paper's where it reports one.

    Returns:
        the figure and its data: outcome, experiment, item, value, low, high, runs, p_value, margin, paper.
    """
    rows = [Row("search", found.name, found.outcome, found.estimate, found.separated, found.p_value, found.paper)
            for found in differences(results, "search", reported)]
    return _forest(results, rows, "Search: differences between arms on the training domain",
                   "separated (p ≤ 0.05 after Holm's method)", "not separated",
                   ["search"])


def effects_figure(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Main effects of content, placement, estimator, sampling and reading, each over all runs of an experiment.

    Returns:
        the figure and its data, as of ``differences_figure``.
    """
    rows = [Row(name, found.name, found.outcome, found.estimate, excludes_zero(found.estimate))
            for name in FACTORIAL for found in main_effects(results, name)]
    return _forest(results, rows, "Main effects: mean difference over all pairs of arms that differ in one factor",
                   "the interval excludes 0", "it includes 0",
                   list(dict.fromkeys(row.experiment for row in rows)))


def _forest(results: Results, rows: Sequence[Row], title: str, filled: str, unfilled: str,
            experiments: Sequence[str]) -> tuple[Figure, pd.DataFrame]:
    items = list(dict.fromkeys((row.experiment, row.item) for row in rows))
    with style.applied():
        figure, axes = style.new_figure(1, len(PRIMARY), 9.0, 1.6 + 0.22 * max(len(items), 3), sharey=True)
        for ax, outcome in zip(axes[0], PRIMARY, strict=True):
            _panel(ax, [row for row in rows if row.outcome is outcome], items, outcome)
        several = len(experiments) > 1
        axes[0][0].set_yticks(range(len(items)), [f"{item} ({name})" if several else item for name, item in items])
        axes[0][0].set_ylim(max(len(items), 1) - 0.4, -0.6)
        handles = [(Line2D([], [], color="black", marker="o"), filled),
                   (Line2D([], [], color="black", marker="o", markerfacecolor="white"), unfilled),
                   (Patch(color=style.GREY, alpha=0.15), "within the margin")]
        if any(row.paper is not None for row in rows):
            handles.append((Line2D([], [], color=style.VERMILION, marker="D", linestyle=""), "the paper's difference"))
        style.head(figure, f"{title}\npoint: mean over runs; bar: 95% interval", [], handles)
        text = [provenance(results, name, results.arm_names(name)) for name in experiments]
        style.footer(figure, "; ".join(dict.fromkeys(text)) if text else f"scale {results.scale.name}")
    records = [{"outcome": row.outcome.key, "experiment": row.experiment, "item": row.item,
                "value": row.estimate.value, "low": row.estimate.low, "high": row.estimate.high,
                "runs": "/".join(map(str, row.estimate.seeds)), "p_value": row.p_value,
                "margin": row.outcome.margin, "paper": row.paper} for row in rows]
    return figure, pd.DataFrame(records, columns=_COLUMNS)


def _panel(ax: Axes, rows: Sequence[Row], items: Sequence[tuple[str, str]], outcome: Outcome) -> None:
    ax.set_title(_WORDS[outcome.key])
    ax.grid(visible=False, axis="y")
    if not rows:
        style.not_run(ax)
        return
    ax.axvspan(-outcome.margin, outcome.margin, color=style.GREY, alpha=0.15, linewidth=0)
    ax.axvline(0, color=style.GREY, linewidth=0.8)
    for row in rows:
        y, found = items.index((row.experiment, row.item)), row.estimate
        if found.low is not None and found.high is not None:
            ax.plot([found.low, found.high], [y, y], color="black", linewidth=1.2)
        ax.plot(found.value, y, color="black", marker="o", markerfacecolor="black" if row.filled else "white")
        if row.paper is not None:
            ax.plot(row.paper, y, color=style.VERMILION, marker="D", markersize=3.5, zorder=4)
    ax.margins(x=0.08)
    style.few_ticks(ax, "x")
    ax.set_xlabel("difference")
