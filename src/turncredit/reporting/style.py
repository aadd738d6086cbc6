"""One look for all figures: readable in print and to the colour-blind, the same bytes every time.

Colours are Okabe and Ito's. In the grid of algorithms the colour and marker tell the reward structure
(OR, MR, MT) and the line tells the estimator (critic: solid, group: dashed), so no two arms depend on
colour alone.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib as mpl
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from turncredit.files import atomic, write_text

ORANGE, SKY, GREEN, BLUE, VERMILION, PURPLE = "#E69F00", "#56B4E9", "#009E73", "#0072B2", "#D55E00", "#CC79A7"
GREY = "#555555"

Line = Literal["-", "--", "-.", ":"]

RC: dict[Any, Any] = {
    "font.family": "DejaVu Sans", "font.size": 8, "axes.titlesize": 8.5, "axes.labelsize": 8,
    "legend.fontsize": 8, "legend.title_fontsize": 8.5,
    "xtick.labelsize": 7, "ytick.labelsize": 7, "axes.spines.top": False, "axes.spines.right": False,
    "axes.grid": True, "grid.color": "#DDDDDD", "grid.linewidth": 0.6, "axes.axisbelow": True, "lines.linewidth": 1.6,
    "lines.markersize": 4, "figure.dpi": 100, "savefig.dpi": 200, "pdf.fonttype": 42, "svg.hashsalt": "turncredit"}


@dataclass(frozen=True, slots=True)
class Look:
    """How an arm is drawn."""

    colour: str
    marker: str
    line: Line = "-"


LOOKS: Mapping[str, Look] = {
    "PPO-OR": Look(VERMILION, "o"), "PPO-MR": Look(BLUE, "s"), "MT-PPO": Look(GREEN, "^"),
    "GRPO-OR": Look(VERMILION, "o", "--"), "GRPO-MR": Look(BLUE, "s", "--"), "MT-GRPO": Look(GREEN, "^", "--"),
    "lambda-0.1": Look(GREEN, "^"), "lambda-0.0": Look(VERMILION, "o", "--"),
    "turns-5": Look(BLUE, "s", "--"), "turns-6": Look(PURPLE, "D", "-."),
    "merged": Look(BLUE, "s"), "full": Look(GREEN, "^"), "base": Look(GREY, "x", ":"), "clean": Look(GREY, "+", ":")}


def look(arm: str) -> Look:
    """An arm's look; grey with a diamond for one that has none of its own."""
    return LOOKS.get(arm, Look(GREY, "D", "-."))


@contextmanager
def applied() -> Iterator[None]:
    """The common settings; the caller's are put back."""
    with mpl.rc_context():
        mpl.rcParams.update(RC)
        yield


def lines(arms: Iterable[str]) -> dict[str, Line]:
    """Line style of each arm; all solid where the styles tell no arms apart.

    >>> lines(["GRPO-OR", "MT-GRPO"]), lines(["PPO-OR", "GRPO-OR"])
    ({'GRPO-OR': '-', 'MT-GRPO': '-'}, {'PPO-OR': '-', 'GRPO-OR': '--'})
    """
    found = {arm: look(arm).line for arm in arms}
    solid: Line = "-"
    return found if len(set(found.values())) > 1 else dict.fromkeys(found, solid)


def new_figure(rows: int, columns: int, width: float, height: float, *,
               sharey: bool = False) -> tuple[Figure, list[list[Axes]]]:
    """A figure of panels (inches), without pyplot and its global state."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [list(row) for row in figure.subplots(rows, columns, squeeze=False, sharey=sharey)]


def head(figure: Figure, title: str, arms: Sequence[tuple[str, str]], extra: Sequence[tuple[Any, str]] = ()) -> None:
    """Title and legend above the panels: (arm, label) pairs, then other (handle, label) pairs."""
    style = lines(arm for arm, _ in arms)
    handles: list[Any] = [Line2D([], [], color=look(arm).colour, marker=look(arm).marker, linestyle=style[arm])
                          for arm, _ in arms] + [handle for handle, _ in extra]
    labels = [label for _, label in arms] + [label for _, label in extra]
    figure.legend(handles, labels, loc="outside upper center", ncols=3 if len(handles) in (3, 6) else 4, frameon=False,
                  handlelength=2.8, title=title)


def footer(figure: Figure, text: str) -> None:
    """A line under the panels: scale, whose runs, and what lacks."""
    figure.supxlabel(textwrap.fill(text, 140), fontsize=6.5, color=GREY)


def few_ticks(axes: Axes, axis: Literal["x", "y"]) -> None:
    """So few ticks that the numbers of narrow panels do not touch."""
    axes.locator_params(axis=axis, nbins=4)


def not_run(axes: Axes) -> None:
    """Say in an empty panel that it is empty."""
    axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", va="center", color=GREY)


def save(name: str, figure: Figure, data: pd.DataFrame, folder: Path) -> list[Path]:
    """Write ``<name>.pdf``, ``.png`` and ``.csv`` (what is drawn); no dates inside, the same bytes every time."""
    paths = [folder / f"{name}.{suffix}" for suffix in ("pdf", "png", "csv")]
    with applied():
        for path, metadata in zip(paths, ({"CreationDate": None, "ModDate": None}, {"Software": None}), strict=False):
            with atomic(path) as temporary:
                figure.savefig(temporary, format=path.suffix[1:], metadata=metadata)
    write_text(paths[-1], str(data.to_csv(index=False, lineterminator="\n", float_format="%.6g")))
    return paths
