"""Draws final scores with intervals: the 2 x 2 design of content and placement, and all arms of search."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from turncredit.reporting import statistics
from turncredit.reporting.figures import style
from turncredit.reporting.figures.learning_curves import provenance
from turncredit.reporting.placement_effects import contrasts, placement_arms
from turncredit.reporting.scores import METRIC_LABELS, Results
from turncredit.reporting.statistics import Estimate

_PLACEMENTS = ("delayed", "per_turn")
_CONTENTS = ("retrieval", "full")


def placement_effect(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw exact match and format of the four arms, and the effects of placement, content and both.

    Returns:
        the figure and its data: panel, item, placement, value, low, high, seeds.
    """
    with style.applied():
        figure, axes = style.new_figure(2, 2, 7.2, 4.6)
        records: list[dict[str, object]] = []
        for metric, (left, right) in zip(("answer_correct", "format_correct"), axes, strict=True):
            records += _cells(left, results, metric) + _effects(right, results, metric)
        style.head(figure, "Placement and content of the reward (critic baseline), final scores over all test sets\n"
                   "points: mean over seeds; bars: 95% bootstrap interval over seeds",
                   [(content, f"{content} content{_seeds(results, content)}") for content in _CONTENTS])
        style.footer(figure, provenance(results, "placement", results.arm_names("placement")))
    return figure, pd.DataFrame(records, columns=["panel", "item", "placement", "value", "low", "high", "seeds"])


def final_scores(results: Results) -> tuple[Figure, pd.DataFrame]:
    """Draw the interquartile mean of every arm of search, in-domain and out-of-domain, with a tick for each seed.

    Returns:
        the figure and its data: panel, arm, series (IQM or seed), value, low, high, seeds.
    """
    names = results.arm_names("search")
    domains = (("in-domain", results.scale.in_domain), ("out-of-domain", results.scale.out_of_domain))
    with style.applied():
        figure, axes = style.new_figure(2, 2, 7.2, 4.4, sharey=True)
        records: list[dict[str, object]] = []
        for metric, line in zip(("answer_correct", "format_correct"), axes, strict=True):
            for (title, datasets), ax in zip(domains, line, strict=True):
                ax.set_title(f"{METRIC_LABELS[metric]}, {title}\n{', '.join(datasets)}")
                panel = f"{METRIC_LABELS[metric]}, {title}"
                records += [{"panel": panel, **record} for record in _arms(ax, results, names, metric, datasets)]
        seed = Line2D([], [], color=style.GREY, marker="|", linestyle="")
        found = Line2D([], [], color=style.GREY, marker="o")
        style.head(figure, "Search: final scores of all arms", [],
                   [(found, "interquartile mean over seeds (the tables show means), 95% bootstrap interval"),
                    (seed, "one seed")])
        style.footer(figure, provenance(results, "search", names))
    return figure, pd.DataFrame(records, columns=["panel", "arm", "series", "value", "low", "high", "seeds"])


def _arms(ax: Axes, results: Results, names: Sequence[str], metric: str,
          datasets: Sequence[str]) -> list[dict[str, object]]:
    """One row per arm: the interquartile mean with its interval, and the seeds below it."""
    import seaborn  # slow to load

    arms = results.arms("search")
    records: list[dict[str, object]] = []
    for row, name in enumerate(names):
        if name not in arms:
            ax.text(0.5, row, "not run", transform=ax.get_yaxis_transform(), ha="center", va="center", color=style.GREY,
                    fontsize=7)
            continue
        score_S_D = arms[name].final(metric, datasets)
        found, run_S = statistics.iqm(score_S_D), np.sort(score_S_D.mean(axis=1))
        seaborn.stripplot(x=run_S, y=np.full(len(run_S), row + 0.28), orient="h", native_scale=True, jitter=False,
                          marker="|", color=style.GREY, size=5, linewidth=1, ax=ax)
        _interval(ax, found, row, style.look(name))
        records.append({"arm": name, "series": "IQM", **_numbers(found)})
        records += [{"arm": name, "series": "seed", "value": value} for value in run_S]
    ax.set_yticks(range(len(names)), [f"{n} (n = {len(arms[n].runs)})" if n in arms else n for n in names])
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.margins(x=0.08)
    ax.set_xlabel("score")
    style.few_ticks(ax, "x")
    return records


def _seeds(results: Results, content: str) -> str:
    """Seeds of the arms with this content, for the legend; "" if none was run."""
    counts = {len(found.runs) for (own, _), found in placement_arms(results).items() if own == content and found}
    return f" (n = {', '.join(map(str, sorted(counts)))})" if counts else ""


def _cells(ax: Axes, results: Results, metric: str) -> list[dict[str, object]]:
    """The four arms: placement on the axis, one line per content."""
    word = METRIC_LABELS[metric]
    ax.set_title(f"{word} of the four arms")
    arms = placement_arms(results)
    records: list[dict[str, object]] = []
    for shift, content in zip((-0.04, 0.04), _CONTENTS, strict=True):
        look = style.look(content)
        points = []
        for place, placement in enumerate(_PLACEMENTS):
            found = arms.get((content, placement))
            if found is not None:
                score = statistics.mean(found.final(metric, results.datasets))
                points.append((place + shift, score))
                records.append({"panel": word, "item": f"{content} content", "placement": placement, **_numbers(score)})
        ax.plot([x for x, _ in points], [s.value for _, s in points], color=look.colour, linewidth=1)
        for x, score in points:
            ax.plot(x, score.value, color=look.colour, marker=look.marker)
            if score.low is not None and score.high is not None:
                ax.plot([x, x], [score.low, score.high], color=look.colour)
    if not records:
        style.not_run(ax)
    ax.set_xticks(range(2), ["delayed", "per-turn"])
    ax.set_xlim(-0.4, 1.4)
    ax.margins(y=0.15)
    style.few_ticks(ax, "y")
    ax.set_xlabel("placement")
    return records


def _effects(ax: Axes, results: Results, metric: str) -> list[dict[str, object]]:
    """Differences with intervals; a line marks zero."""
    word = METRIC_LABELS[metric]
    ax.set_title(f"effects on {word}")
    found = contrasts(results, metric)
    records: list[dict[str, object]] = []
    ax.axvline(0, color=style.GREY, linewidth=0.8)
    for row, (name, effect) in enumerate(found.items()):
        if effect is None:
            ax.text(0, row, "not run", va="center", color=style.GREY, fontsize=7)
            continue
        _interval(ax, effect, row, style.Look(style.GREY, "o") if "," not in name else style.Look("black", "o"))
        records.append({"panel": f"effects on {word}", "item": name, **_numbers(effect)})
    ax.set_yticks(range(len(found)), list(found))
    ax.set_ylim(len(found) - 0.4, -0.6)
    ax.margins(x=0.08)
    style.few_ticks(ax, "x")
    ax.set_xlabel("difference")
    return records


def _interval(ax: Axes, found: Estimate, row: float, look: style.Look) -> None:
    """A point with its interval on a horizontal line."""
    if found.low is not None and found.high is not None:
        ax.plot([found.low, found.high], [row, row], color=look.colour, linestyle="-")
    ax.plot(found.value, row, color=look.colour, marker=look.marker, markersize=5)


def _numbers(found: Estimate) -> dict[str, object]:
    return {"value": found.value, "low": found.low, "high": found.high, "seeds": "/".join(map(str, found.seeds))}
