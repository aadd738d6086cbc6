"""Common style of all figures: readable in print and with colour blindness, byte-identical on every redraw.

Colours are the palette of Okabe and Ito. Colour and marker show the reward structure (OR, MR, MT), the line style
shows the estimator (critic: solid, group: dashed), so that no two arms differ by colour alone.
"""

from __future__ import annotations

import io
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
from PIL import Image

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
    """Colour, marker and line style of an arm."""

    colour: str
    marker: str
    line: Line = "-"


LOOKS: Mapping[str, Look] = {
    "PPO-OR": Look(VERMILION, "o"), "PPO-MR": Look(BLUE, "s"), "MT-PPO": Look(GREEN, "^"),
    "GRPO-OR": Look(VERMILION, "o", "--"), "GRPO-MR": Look(BLUE, "s", "--"), "MT-GRPO": Look(GREEN, "^", "--"),
    "lambda-0.1": Look(GREEN, "^"), "lambda-0.0": Look(VERMILION, "o", "--"),
    "turns-5": Look(BLUE, "s", "--"), "turns-6": Look(PURPLE, "D", "-."),
    "retrieval": Look(BLUE, "s"), "full": Look(GREEN, "^"),
    "initial": Look(GREY, "x", ":"), "expert": Look(GREY, "+", ":")}


def look(arm: str) -> Look:
    """The look of an arm; grey with diamonds if ``LOOKS`` has none."""
    return LOOKS.get(arm, Look(GREY, "D", "-."))


@contextmanager
def applied() -> Iterator[None]:
    """Apply the common settings; the caller's settings are restored at exit."""
    with mpl.rc_context():
        mpl.rcParams.update(RC)
        yield


def lines(arms: Iterable[str]) -> dict[str, Line]:
    """Line style of each arm; all solid if all styles are equal.

    >>> lines(["GRPO-OR", "MT-GRPO"]), lines(["PPO-OR", "GRPO-OR"])
    ({'GRPO-OR': '-', 'MT-GRPO': '-'}, {'PPO-OR': '-', 'GRPO-OR': '--'})
    """
    found = {arm: look(arm).line for arm in arms}
    solid: Line = "-"
    return found if len(set(found.values())) > 1 else dict.fromkeys(found, solid)


def new_figure(rows: int, columns: int, width: float, height: float, *,
               sharey: bool = False) -> tuple[Figure, list[list[Axes]]]:
    """A figure with a grid of panels, size in inches; pyplot and its global state are not used."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [list(row) for row in figure.subplots(rows, columns, squeeze=False, sharey=sharey)]


def head(figure: Figure, title: str, arms: Sequence[tuple[str, str]], extra: Sequence[tuple[Any, str]] = ()) -> None:
    """Draw title and legend above the panels: (arm, label) pairs, then other (handle, label) pairs."""
    style = lines(arm for arm, _ in arms)
    handles: list[Any] = [Line2D([], [], color=look(arm).colour, marker=look(arm).marker, linestyle=style[arm])
                          for arm, _ in arms] + [handle for handle, _ in extra]
    labels = [label for _, label in arms] + [label for _, label in extra]
    figure.legend(handles, labels, loc="outside upper center", ncols=3 if len(handles) in (3, 6) else 4, frameon=False,
                  handlelength=2.8, title=title)


def footer(figure: Figure, text: str) -> None:
    """Draw a line of text under the panels: scale, origin of the runs, missing runs."""
    figure.supxlabel(textwrap.fill(text, 140), fontsize=6.5, color=GREY)


def few_ticks(axes: Axes, axis: Literal["x", "y"]) -> None:
    """Use few ticks, so that the numbers of narrow panels do not overlap."""
    axes.locator_params(axis=axis, nbins=4)


def not_run(axes: Axes) -> None:
    """Write "not run" into an empty panel."""
    axes.text(0.5, 0.5, "not run", transform=axes.transAxes, ha="center", va="center", color=GREY)


def save(name: str, figure: Figure, data: pd.DataFrame, folder: Path) -> list[Path]:
    """Write ``<name>.pdf``, ``.png`` and ``.csv`` (the drawn data), without dates and so byte-identical on redraw.

    The PNG has a palette of at most 256 colours, which halves its size or better and loses nothing visible.
    """
    pdf, png, csv = (folder / f"{name}.{suffix}" for suffix in ("pdf", "png", "csv"))
    pixels = io.BytesIO()
    with applied():
        with atomic(pdf) as temporary:
            figure.savefig(temporary, format="pdf", metadata={"CreationDate": None, "ModDate": None})
        figure.savefig(pixels, format="png", metadata={"Software": None})
    with atomic(png) as temporary, Image.open(pixels) as image:
        palette = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
        palette.save(temporary, format="PNG", optimize=True, dpi=image.info["dpi"])
    write_text(csv, str(data.to_csv(index=False, lineterminator="\n", float_format="%.6g")))
    return [pdf, png, csv]
