"""Common style of all figures: readable in print and with colour blindness, byte-identical on every redraw.

Colours are the palette of Okabe and Ito. Colour and marker show the reward structure (OR, MR, MT), the line style
shows the estimator (critic: solid, group: dashed), so that no two arms differ by colour alone.
"""

from __future__ import annotations

import io
import itertools
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
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

_CHARACTERS = 14  # of a title, per inch

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
    "GRPO-OR": Look(VERMILION, "o", "--"), "GRPO-MR": Look(BLUE, "s", "--"), "MT-GRPO": Look(GREEN, "^", "--")}
_OTHERS = (Look(GREEN, "^"), Look(VERMILION, "o", "--"), Look(BLUE, "s", "-."), Look(PURPLE, "D", ":"),
           Look(ORANGE, "v"), Look(SKY, "P", "--"))


def looks(arms: Iterable[str]) -> dict[str, Look]:
    """The look of each arm that is drawn: the paper's six have their own, others one each in order.

    Lines are solid if all arms have the same style of line.

    >>> [look.line for look in looks(["GRPO-OR", "MT-GRPO"]).values()]
    ['-', '-']
    """
    names = list(arms)
    others = iter(itertools.cycle(_OTHERS))
    found = {arm: LOOKS[arm] if arm in LOOKS else next(others) for arm in names}
    return found if len({look.line for look in found.values()}) > 1 else {
        arm: replace(look, line="-") for arm, look in found.items()}


@contextmanager
def applied() -> Iterator[None]:
    """Apply the common settings; the caller's settings are restored at exit."""
    with mpl.rc_context():
        mpl.rcParams.update(RC)
        yield


def new_figure(rows: int, columns: int, width: float, height: float, *,
               sharey: bool = False) -> tuple[Figure, list[list[Axes]]]:
    """A figure with a grid of panels, size in inches; pyplot and its global state are not used."""
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [list(row) for row in figure.subplots(rows, columns, squeeze=False, sharey=sharey)]


def head(figure: Figure, title: str, arms: Sequence[tuple[Look, str]], extra: Sequence[tuple[Any, str]] = ()) -> None:
    """Draw title and legend above the panels: (look, label) of each arm, then other (handle, label) pairs."""
    handles: list[Any] = [Line2D([], [], color=look.colour, marker=look.marker, linestyle=look.line)
                          for look, _ in arms] + [handle for handle, _ in extra]
    labels = [label for _, label in arms] + [label for _, label in extra]
    width = int(_CHARACTERS * figure.get_figwidth())
    lines = [part for line in title.splitlines() for part in textwrap.wrap(line, width)]
    figure.legend(handles, labels, loc="outside upper center", ncols=3 if len(handles) in (3, 6) else 4, frameon=False,
                  handlelength=2.8, title="\n".join(lines))


def mathematics(label: str) -> str:
    """A label with its symbols typeset.

    >>> mathematics("λ_s = 0, N_max = 4")
    '$λ_s$ = 0, $N_{max}$ = 4'
    """
    return label.replace("λ_s", "$λ_s$").replace("N_max", "$N_{max}$")


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
