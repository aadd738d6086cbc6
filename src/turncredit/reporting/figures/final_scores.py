"""Draws final scores of all arms of search: one panel a data set, a mean with its interval, and every run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from turncredit.reporting import samples
from turncredit.reporting.figures import style
from turncredit.reporting.figures.learning_curves import provenance
from turncredit.reporting.scores import METRIC_LABELS, ArmRuns, Results

_METRICS = ("answer_correct", "format_correct")
_FIRST, _STEP, _DEEPEST = 0.2, 0.09, 0.62  # of a stack of runs below its arm, in rows


def final_scores(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw exact match and format of every arm of search on each data set.

    Returns:
        the figure and its data: panel, arm, series (mean or run), value, low, high.
    """
    names, arms = results.arm_names("search"), results.arms("search")
    datasets = results.datasets
    with style.applied():
        figure, axes = style.new_figure(len(_METRICS), max(len(datasets), 1), 1.4 + 1.45 * len(datasets), 5.2,
                                        sharey=True)
        records: list[dict[str, object]] = []
        for metric, line in zip(_METRICS, axes, strict=True):
            for dataset, ax in zip(datasets, line, strict=True):
                mark = "†" if dataset in results.scale.in_domain else ""
                ax.set_title(f"{dataset}{mark}")
                panel = f"{METRIC_LABELS[metric]}, {dataset}"
                records += [{"panel": panel, **found} for found in _arms(ax, arms, names, metric, dataset)]
                ax.set_xlabel(METRIC_LABELS[metric])
            line[0].set_yticks(range(len(names)), [f"{n} (n = {len(arms[n].runs)})" if n in arms else n
                                                   for n in names])
        run = Line2D([], [], color=style.GREY, marker="o", markersize=2, linestyle="")
        found = Line2D([], [], color=style.GREY, marker="o")
        style.head(figure, "Search: final scores of all arms on each data set († trained on)", [],
                   [(found, "mean over runs, 95% interval"), (run, "one run; equal scores are stacked")])
        style.footer(figure, provenance(results, "search", names))
    return figure, pd.DataFrame(records, columns=["panel", "arm", "series", "value", "low", "high"])


def _arms(ax: Axes, arms: Mapping[str, ArmRuns], names: Sequence[str], metric: str,
          dataset: str) -> list[dict[str, object]]:
    """One row per arm: the mean with its interval, and the runs below it."""
    records: list[dict[str, object]] = []
    looks = style.looks(names)
    for row, name in enumerate(names):
        if name not in arms:
            ax.text(0.5, row, "not run", transform=ax.get_yaxis_transform(), ha="center", va="center",
                    color=style.GREY, fontsize=7)
            continue
        sample, look = samples.final(arms[name], metric, [dataset]), looks[name]
        found, runs = samples.mean(sample), sorted(sample.run_S.tolist())
        if found.low is not None and found.high is not None:
            ax.plot([found.low, found.high], [row, row], color=look.colour)
        ax.plot(found.value, row, color=look.colour, marker=look.marker, markersize=4.5)
        ax.plot(runs, [row + depth for depth in stacked(runs)], color=style.GREY, marker="o", markersize=1.8,
                linestyle="", alpha=0.8)
        records.append({"arm": name, "series": "mean", "value": found.value, "low": found.low, "high": found.high})
        records += [{"arm": name, "series": "run", "value": value} for value in runs]
    ax.set_ylim(len(names) - 0.2, -0.5)
    ax.margins(x=0.1)
    style.few_ticks(ax, "x")
    return records


def stacked(values: Sequence[float]) -> list[float]:
    """Depth below its row of each of some sorted scores; equal scores lie below one another.

    >>> stacked([0.5, 0.5, 0.6])
    [0.2, 0.29, 0.2]
    """
    shown = [round(value, 6) for value in values]
    tallest = max(Counter(shown).values(), default=1)
    step = min(_STEP, (_DEEPEST - _FIRST) / max(tallest - 1, 1))
    seen: Counter[float] = Counter()
    depths: list[float] = []
    for value in shown:
        depths.append(round(_FIRST + step * seen[value], 6))
        seen[value] += 1
    return depths
