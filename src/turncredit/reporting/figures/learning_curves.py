"""Draws panels of learning curves: a thin line for each run and a thick line for their mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

from turncredit.reporting.arm_labels import arm_labels
from turncredit.reporting.figures import style
from turncredit.reporting.inference import Array
from turncredit.reporting.scores import ArmRuns, Results, sources

WINDOW = 3  # steps of the centred mean over curves of sampled episodes
CEILING, AT_LEAST = 0.03, 3  # a curve is at the ceiling within 3 % of the top; said where three or more are
DODGE = 0.8  # steps between neighbouring arms, where curves have few points
FEW_POINTS = 15
_COLUMNS = ["panel", "arm", "step", "mean"]
WORDS = "thick: mean of the runs; thin: each run"


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel: columns of metrics.csv for some arms of an experiment.

    Attributes:
        title: title above the panel; in a grid, above the first row only.
        columns: columns of metrics.csv, averaged.
        arms: the arms, in drawing order.
        top: largest possible value (the smallest is 0); None: the axis follows the data.
        row: label beside a row of panels; may be empty.
    """

    title: str
    columns: tuple[str, ...]
    arms: tuple[str, ...]
    top: float | None = 1.0
    row: str = ""

    @property
    def name(self) -> str:
        """The panel's name in the CSV."""
        return (f"{self.row}: {self.title}" if self.row else self.title).replace("\n", ", ")

    @property
    def smooth(self) -> bool:
        """Whether the curves are of sampled episodes of training, and so smoothed."""
        return not all(column.startswith("validation_") for column in self.columns)


def curve(runs: ArmRuns, panel: Panel) -> tuple[Array, Array]:
    """``step_T`` and ``value_S_T`` of a panel's columns, smoothed if they are of training."""
    curves = [runs.curve(column) for column in panel.columns]
    step_T, value_S_T = curves[0][0], np.mean([value_S_T for _, value_S_T in curves], axis=0)
    return step_T, centred_mean(value_S_T) if panel.smooth else value_S_T


def centred_mean(value_S_T: Array, window: int = WINDOW) -> Array:
    """Mean over a centred window of steps; shorter at the ends. Missing values are left out.

    >>> centred_mean(np.array([[0.0, 3.0, 3.0, np.nan]])).tolist()
    [[1.5, 2.0, 3.0, 3.0]]
    """
    reach = window // 2
    padded = np.pad(value_S_T, ((0, 0), (reach, reach)), constant_values=np.nan)
    parts = np.stack([padded[:, shift:shift + value_S_T.shape[1]] for shift in range(window)])
    present = ~np.isnan(parts)
    return np.asarray(np.where(present, parts, 0.0).sum(axis=0) / np.where(present.any(axis=0), present.sum(axis=0),
                                                                          np.nan))


def ceiling(step_T: Array, mean_A_T: Array, top: float) -> tuple[int, float] | None:
    """How many mean curves end at the ceiling, and the first step from which they all stay there.

    None if fewer than three do.

    >>> ceiling(np.array([0., 5., 10.]), np.array([[.5, .99, 1.], [.5, .98, .99], [.4, .7, .98], [.1, .2, .3]]), 1.0)
    (3, 10.0)
    """
    near_A_T = mean_A_T >= top * (1 - CEILING)
    stays_A_T = np.logical_and.accumulate(near_A_T[:, ::-1], axis=1)[:, ::-1]
    there_A = stays_A_T[:, -1]
    if there_A.sum() < AT_LEAST:
        return None
    return int(there_A.sum()), float(step_T[stays_A_T[there_A].argmax(axis=1)].max())


def curves_figure(results: Results, experiment: str, panels: Sequence[Sequence[Panel]], title: str,
                  named: Sequence[str] = (), *, tokens: bool = False) -> tuple[Figure, pd.DataFrame]:
    """Draw rows of panels of one experiment, with a legend above and the provenance below.

    Args:
        results: all runs.
        experiment: its name.
        panels: rows of panels; all rows have the same length.
        title: the figure's title.
        named: arms in legend order; empty: in the order of the panels.
        tokens: add an axis of sampled tokens above the first row.

    Returns:
        the figure and its data: panel, arm, step, mean, and a column for each run.
    """
    labels = arm_labels(results.scale, experiment)
    with style.applied():
        figure, axes = style.new_figure(len(panels), len(panels[0]), 7.2, 1.15 + 1.65 * len(panels) + 0.25 * tokens)
        arms = list(dict.fromkeys(named or (arm for line in panels for panel in line for arm in panel.arms)))
        shown = [(arm, runs) for arm in arms if (runs := results.arm(experiment, arm)) and not runs.metrics.empty]
        looks = style.looks(arm for arm, _ in shown)
        data: list[pd.DataFrame] = []
        for line, axes_row in zip(panels, axes, strict=True):
            for panel, ax in zip(line, axes_row, strict=True):
                data += _draw(ax, results, experiment, panel, looks)
                if axes_row is axes[0] or not panel.row:
                    ax.set_title(panel.title)
                if tokens and axes_row is axes[0]:
                    _token_axis(ax, [runs for _, runs in shown])
            axes_row[0].set_ylabel(line[0].row)
        for ax in axes[-1]:
            ax.set_xlabel("training step")
        everything = [panel for line in panels for panel in line]
        notes = [WORDS]
        if any(panel.smooth for panel in everything):
            kind = "training curves: " if not all(panel.smooth for panel in everything) else ""
            notes.append(f"{kind}centred mean over {WINDOW} steps")
        if any(not panel.smooth for panel in everything):
            notes.append("points are shifted sideways, so that none hides another")
        style.head(figure, f"{title}\n{'; '.join(notes)}",
                   [(looks[arm], style.mathematics(f"{labels.get(arm, arm)} (n = {len(runs.runs)})"))
                    for arm, runs in shown])
        style.footer(figure, provenance(results, experiment, arms))
    return figure, pd.concat(data, ignore_index=True) if data else pd.DataFrame(columns=_COLUMNS)


def provenance(results: Results, experiment: str, arms: Sequence[str]) -> str:
    """The text below a figure: scale, origin of the runs, and PARTIAL with what is missing."""
    missing = results.missing(experiment, arms)
    partial = f"  ·  PARTIAL, {missing}" if missing else ""
    origin = sources(results.arm(experiment, arm) for arm in arms)
    return f"scale {results.scale.name}  ·  runs: {origin}  ·  n: runs{partial}"


def _draw(ax: Axes, results: Results, experiment: str, panel: Panel,
          looks: Mapping[str, style.Look]) -> list[pd.DataFrame]:
    """Draw one panel and return its data, one frame per arm."""
    drawn: list[pd.DataFrame] = []
    means: dict[str, pd.Series] = {}
    present = [arm for arm in panel.arms if arm in looks]
    for place, arm in enumerate(present):
        runs = results.arm(experiment, arm)
        assert runs is not None  # else it had no look
        step_T, value_S_T = curve(runs, panel)
        mean_T = np.nanmean(value_S_T, axis=0)
        shift = DODGE * (place - (len(present) - 1) / 2) if len(step_T) <= FEW_POINTS else 0.0
        look = looks[arm]
        ax.plot(step_T + shift, value_S_T.T, color=look.colour, linewidth=0.5, alpha=0.3, zorder=1.5)
        ax.plot(step_T + shift, mean_T, color=look.colour, linestyle=look.line, marker=look.marker, markersize=3.5,
                markevery=_markers(len(step_T), place, len(present)), zorder=3)
        means[arm] = pd.Series(mean_T, index=step_T)
        data = {"panel": panel.name, "arm": arm, "step": step_T.astype(int), "mean": mean_T}
        drawn.append(pd.DataFrame(data | dict(zip(_run_names(runs), value_S_T, strict=True))))
    if not drawn:
        style.not_run(ax)
    if panel.top is None:
        ax.set_ylim(bottom=0)
        return drawn
    ax.set_ylim(-0.02 * panel.top, 1.06 * panel.top)
    table = pd.DataFrame(means).dropna()
    found = ceiling(table.index.to_numpy(dtype=float), table.to_numpy(dtype=float).T, panel.top) if drawn else None
    if found is not None:
        count, step = found
        who = f"all {count}" if count == len(means) else f"{count} of {len(means)}"
        ax.text(0.98, 0.06, f"{who} at the ceiling\nfrom step {step:g}", transform=ax.transAxes, ha="right",
                va="bottom", fontsize=6.5, color=style.GREY)
    return drawn


def _markers(steps: int, place: int, arms: int) -> int | tuple[int, int]:
    """Steps with a marker: all of a few, else some, at other steps for each arm."""
    every = max(steps // 8, 1)
    return 1 if steps <= FEW_POINTS else (place * every // max(arms, 1), every)


def _run_names(runs: ArmRuns) -> list[str]:
    """Names of the rows of an arm's curves: base policy and seed."""
    rows = runs.metrics[["base", "seed"]].drop_duplicates().sort_values(["base", "seed"])
    return [f"base {base} seed {seed}" for base, seed in rows.itertuples(index=False)]


def _times(factor: float) -> Callable[[ArrayLike], ArrayLike]:
    return lambda values: np.asarray(values, dtype=float) * factor


def _token_axis(ax: Axes, arms: Sequence[ArmRuns]) -> None:
    """An axis of sampled tokens in thousands above the panel; a step has the arms' mean number."""
    per_step = float(np.mean([np.nanmean(runs.curve("tokens_sampled")[1]) for runs in arms])) / 1000 if arms else 0.0
    if per_step > 0:
        above = ax.secondary_xaxis("top", functions=(_times(per_step), _times(1 / per_step)))
        above.set_xlabel("sampled tokens (thousands)", fontsize=7)
        above.spines["top"].set_visible(True)
