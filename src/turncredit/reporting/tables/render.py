"""Renders tables as Markdown, LaTeX (booktabs only) and tidy CSV.

A table consists of blocks with their own columns, so reported numbers and ours never share a column.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd

from turncredit.files import write_text
from turncredit.reporting.statistics import Estimate

NOT_RUN, NOT_REPORTED = "not run", "not reported"


@dataclass(frozen=True, slots=True)
class Cell:
    """A number with or without an interval, or a word. ``best`` cells are bold: separated from all others."""

    estimate: Estimate | None = None
    text: str = ""
    digits: int = 3
    best: bool = False

    @property
    def words(self) -> str:
        """The cell as plain text, without emphasis.

        >>> Cell(Estimate(0.5, 0.25, 0.75, (3,))).words, Cell(Estimate(0.5, None, None, (1,))).words
        ('0.500 [0.250, 0.750]', '0.500')
        """
        if self.estimate is None:
            return self.text
        value = number(self.estimate.value, self.digits)
        if self.estimate.low is None or self.estimate.high is None:
            return value
        return f"{value} [{number(self.estimate.low, self.digits)}, {number(self.estimate.high, self.digits)}]"


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row: label, one cell per column, and a remark (seeds, origin of the runs)."""

    label: str
    cells: tuple[Cell, ...]
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Block:
    """A sub-table with its own columns."""

    title: str
    label_header: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]
    remark_header: str = ""  # "": no column of remarks


@dataclass(frozen=True, slots=True)
class Table:
    """A table; notes below it explain its numbers."""

    name: str
    title: str
    blocks: tuple[Block, ...]
    notes: tuple[str, ...] = ()


def number(value: float, digits: int = 3) -> str:
    """A number as text; zero never has a minus sign.

    >>> number(-0.0001), number(float("inf")), number(float("nan")), number(12.5, 1)
    ('0.000', 'inf', 'undefined', '12.5')
    """
    if math.isnan(value):
        return "undefined"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def embolden(rows: Sequence[TableRow], winners: Sequence[str | None]) -> tuple[TableRow, ...]:
    """The rows with the cell of each column's winner in bold; None: no cell of the column is."""
    return tuple(replace(row, cells=tuple(replace(cell, best=row.label == winner)
                                          for cell, winner in zip(row.cells, winners, strict=True))) for row in rows)


def markdown(table: Table) -> str:
    """The table as GitHub-flavoured Markdown."""
    parts = [f"# {table.title}"]
    for block in table.blocks:
        header = [block.label_header, *block.columns, *([block.remark_header] if block.remark_header else [])]
        lines = [header, [":--", *("--:" for _ in block.columns), *([":--"] if block.remark_header else [])]]
        for row in block.rows:
            cells = [f"**{cell.words}**" if cell.best else cell.words for cell in row.cells]
            lines.append([row.label, *cells, *([row.remark] if block.remark_header else [])])
        body = markdown_rows(lines)
        parts.append(f"**{block.title}**\n\n{body}" if block.title else body)
    parts += ["\n".join(f"- {note}" for note in table.notes)] if table.notes else []
    return "\n\n".join(parts) + "\n"


def markdown_rows(rows: Sequence[Sequence[str]]) -> str:
    """Rows of a Markdown table, header and alignment row included; bars inside cells are escaped."""
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows)


def latex(table: Table) -> str:
    r"""The table as LaTeX; it needs ``\usepackage{booktabs}`` only."""
    lines = [r"% needs \usepackage{booktabs}", r"\begin{table}", r"\centering\small",
             rf"\caption{{{_tex(table.title)}}}"]
    for block in table.blocks:
        width = 1 + len(block.columns) + bool(block.remark_header)
        lines += [r"\medskip", rf"\begin{{tabular}}{{l{'r' * len(block.columns)}{'l' if block.remark_header else ''}}}"]
        lines += [rf"\multicolumn{{{width}}}{{l}}{{\textit{{{_tex(block.title)}}}}} \\"] if block.title else []
        header = [block.label_header, *block.columns, *([block.remark_header] if block.remark_header else [])]
        lines += [r"\toprule", " & ".join(map(_tex, header)) + r" \\", r"\midrule"]
        for row in block.rows:
            cells = [rf"\textbf{{{_tex(c.words)}}}" if c.best else _tex(c.words) for c in row.cells]
            # After \\ LaTeX would read a cell that starts with [ as a length; {} prevents that.
            line = [_tex(row.label), *cells, *([_tex(row.remark)] if block.remark_header else [])]
            lines.append("{}" + " & ".join(line) + r" \\")
        lines += [r"\bottomrule", r"\end{tabular}", ""]
    lines += [rf"\par\medskip\footnotesize {' '.join(_tex(note) + '.' for note in table.notes)}"] if table.notes else []
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def frame(table: Table) -> pd.DataFrame:
    """One line per cell: block, row, column, value, low, high, seeds, text, best, remark."""
    records = []
    for block in table.blocks:
        for row in block.rows:
            for column, cell in zip(block.columns, row.cells, strict=True):
                e = cell.estimate
                records.append({
                    "block": block.title, "row": row.label, "column": column, "value": e.value if e else None,
                    "low": e.low if e else None, "high": e.high if e else None,
                    "seeds": "/".join(map(str, e.seeds)) if e else "", "text": cell.words, "best": int(cell.best),
                    "remark": row.remark})
    return pd.DataFrame.from_records(records)


def save(table: Table, folder: Path) -> list[Path]:
    """Write ``<name>.csv``, ``.md`` and ``.tex`` in ``folder``, each atomically."""
    tidy = str(frame(table).to_csv(index=False, lineterminator="\n"))
    forms = {"csv": tidy, "md": markdown(table), "tex": latex(table)}
    paths = [folder / f"{table.name}.{suffix}" for suffix in forms]
    for path, text in zip(paths, forms.values(), strict=True):
        write_text(path, text)
    return paths


_TEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
        "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "†": r"$^{\dagger}$",
        "‡": r"$^{\ddagger}$",
        "*": r"$^{\ast}$", "λ": r"$\lambda$", "×": r"$\times$", "±": r"$\pm$", "−": "$-$", "·": r"$\cdot$", "–": "--",
        "≥": r"$\geq$", "≤": r"$\leq$", "→": r"$\rightarrow$"}


def _tex(text: str) -> str:
    """Plain text for LaTeX.

    >>> print(_tex("50% of facts† [a_b]"))
    50\\% of facts$^{\\dagger}$ [a\\_b]
    """
    return "".join(_TEX.get(character, character) for character in text)
