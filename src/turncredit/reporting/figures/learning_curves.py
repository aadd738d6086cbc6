"""Draws panels of learning curves: mean over seeds with a band or a dotted line, as the figure's title says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from turncredit.reporting import statistics
from turncredit.reporting.figures import style
from turncredit.reporting.scores import ArmRuns, Results, sources

EMA_DECAY = 0.8  # the paper states none
Kind = Literal["ema", "smooth_sd", "sd", "minmax"]
WORDS: dict[Kind, str] = {
    "ema": f"dotted: mean of the runs; solid: its moving average (EMA, decay {EMA_DECAY:g})",
    "smooth_sd": f"line: mean of the runs, smoothed (EMA, decay {EMA_DECAY:g}); band: ± 1 std. dev. over seeds",
    "sd": "line: mean of the runs; band: ± 1 standard deviation over seeds",
    "minmax": "line: mean of the runs; band: minimum to maximum over seeds"}


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: a column of metrics.csv for some arms of an experiment.

    Attributes:
        title: title above the panel; in a grid, above the first row only.
        column: the column of metrics.csv.
        arms: the arms, in drawing order.
        top: largest possible value (the smallest is 0). The axis covers both with a margin, and bands are clipped
            there. None: the axis follows the data.
        row: label beside a row of panels; may be empty.
    """

    title: str
    column: str
    arms: tuple[str, ...]
    top: float | None = 1.0
    row: str = ""

    @property
    def name(self) -> str:
        """The panel's name in the CSV."""
        return (f"{self.row}: {self.title}" if self.row else self.title).replace("\n", ", ")


def curve(runs: ArmRuns, column: str, kind: Kind) -> pd.DataFrame:
    """The curve of one arm: step, seeds, line, dotted, low, high (NaN where there is none)."""
    step_T, value_S_T = runs.curve(column)
    if kind == "ema":
        band = statistics.band(value_S_T, "sd")
        nothing = np.full(len(step_T), np.nan)
        return pd.DataFrame({"step": step_T.astype(int), "seeds": band.seeds_T, "dotted": band.mean_T, "low": nothing,
                             "line": statistics.ema(band.mean_T, EMA_DECAY), "high": nothing})
    if kind == "smooth_sd":
        value_S_T = np.stack([statistics.ema(value_T, EMA_DECAY) for value_T in value_S_T])
    band = statistics.band(value_S_T, "minmax" if kind == "minmax" else "sd")
    return pd.DataFrame({"step": step_T.astype(int), "seeds": band.seeds_T, "dotted": np.nan, "low": band.low_T,
                         "line": band.mean_T, "high": band.high_T})


def curves_figure(results: Results, experiment: str, panels: Sequence[Sequence[Panel]], kind: Kind,
                  title: str, named: Sequence[str] = ()) -> tuple[Figure, pd.DataFrame]:
    """Draw rows of panels of one experiment, with a legend above and the provenance below.

    Args:
        results: all runs.
        experiment: its name.
        panels: rows of panels; all rows have the same length.
        kind: line and band, see ``WORDS``.
        title: the figure's title.
        named: arms in legend order; empty: in the order of the panels.

    Returns:
        the figure and its data: panel, arm, step, seeds, line, dotted, low, high.
    """
    with style.applied():
        figure, axes = style.new_figure(len(panels), len(panels[0]), 7.2, 1.05 + 1.65 * len(panels))
        arms = list(dict.fromkeys(named or (arm for line in panels for panel in line for arm in panel.arms)))
        shown = [(arm, runs) for arm in arms if (runs := results.arm(experiment, arm)) and not runs.metrics.empty]
        lines = style.lines(arm for arm, _ in shown)
        data = []
        for line, axes_row in zip(panels, axes, strict=True):
            for panel, ax in zip(line, axes_row, strict=True):
                data += _draw(ax, results, experiment, panel, kind, lines)
                if axes_row is axes[0] or not panel.row:
                    ax.set_title(panel.title)
            axes_row[0].set_ylabel(line[0].row)
        for ax in axes[-1]:
            ax.set_xlabel("training step")
        labels = [(arm, f"{arm} (n = {len(runs.runs)})") for arm, runs in shown]
        style.head(figure, f"{title}\n{WORDS[kind]}", labels)
        style.footer(figure, provenance(results, experiment, arms))
    columns = ["panel", "arm", "step", "seeds", "line", "dotted", "low", "high"]
    frame = pd.concat(data, ignore_index=True)[columns] if data else pd.DataFrame(columns=columns)
    return figure, frame.dropna(axis="columns", how="all") if len(frame) else frame


def provenance(results: Results, experiment: str, arms: Sequence[str]) -> str:
    """The text below a figure: scale, origin of the runs, and PARTIAL with what is missing."""
    missing = results.missing(experiment, arms)
    partial = f"  ·  PARTIAL, {missing}" if missing else ""
    origin = sources(results.arm(experiment, arm) for arm in arms)
    return f"scale {results.scale.name}  ·  runs: {origin}  ·  n: seeds{partial}"


def _draw(ax: Axes, results: Results, experiment: str, panel: Panel, kind: Kind,
          lines: Mapping[str, style.Line]) -> list[pd.DataFrame]:
    """Draw one panel and return its data, one frame per arm."""
    drawn = []
    for arm in panel.arms:
        runs = results.arm(experiment, arm)
        if runs is None or runs.metrics.empty:
            continue
        data = curve(runs, panel.column, kind)
        look = style.look(arm)
        ax.plot(data["step"], data["dotted"], color=look.colour, linestyle=":", linewidth=0.9, alpha=0.8)
        ax.plot(data["step"], data["line"], color=look.colour, linestyle=lines[arm], marker=look.marker,
                markevery=max(len(data) // 6, 1))
        low, high = (data[end].clip(0, panel.top) for end in ("low", "high"))
        ax.fill_between(data["step"], low, high, color=look.colour, alpha=0.15, linewidth=0)
        drawn.append(data.assign(panel=panel.name, arm=arm))
    if not drawn:
        style.not_run(ax)
    if panel.top is None:
        ax.set_ylim(bottom=0)
    else:
        ax.set_ylim(-0.02 * panel.top, 1.05 * panel.top)
    return drawn
