"""Writes the audit as a page: the table of claims with its rule, all comparisons, all reported numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from turncredit.config.load import Scale
from turncredit.files import write_text
from turncredit.reporting.audit import Entry, frame
from turncredit.reporting.comparability import comparability
from turncredit.reporting.tables.render import markdown_rows

_RULE = ("A claim is *supported* if every comparison that tests it has its whole 95% interval on the claimed side, "
         "*contradicted* if at least one has it wholly on the other side, else *inconclusive*. *By construction* marks "
         "a property of the code, which a test shows; it is not a finding. Comparisons with methods and tasks that "
         "this project does not have count as *not run* and decide nothing.")
_FEW = 5  # with fewer seeds intervals are too narrow: see statistics.py


def save(entries: Sequence[Entry], scale: Scale, folder: Path) -> list[Path]:
    """Write ``audit.csv`` and ``audit.md`` in ``folder``, each atomically."""
    write_text(folder / "audit.csv", str(frame(entries).to_csv(index=False, lineterminator="\n")))
    write_text(folder / "audit.md", markdown(entries, scale))
    return [folder / "audit.csv", folder / "audit.md"]


def markdown(entries: Sequence[Entry], scale: Scale) -> str:
    """The page in Markdown: claims with the rule of their verdicts, comparisons, reported numbers."""
    claims, comparisons, values = ([e for e in entries if e.kind == kind] for kind in ("claim", "comparison", "value"))
    parts = [
        f"# Audit at scale {scale.name}",
        "## Claims",
        f"{_RULE} {chance(comparisons)}; among 20 comparisons, one often lies wholly on one side by chance. A claim "
        "with many comparisons is therefore easier to contradict than to support: look at their number.",
        "The comparisons were fixed before the runs, in `paper_tables/reported/claim_tests.csv`. Intervals are over "
        "seeds (bootstrap; score intervals for shares of seeds).",
        _table(("", "the paper's claim", f"verdict at scale {scale.name}", "comparisons", "seeds", "runs"),
               [(e.id, e.what, f"**{e.verdict}**", e.note, e.seeds, e.runs) for e in claims]),
        "## Comparisons", _table(
            ("claim", "comparison", "measured", "claimed", "ours", "seeds", "runs", "verdict", "note"),
            [(e.id, e.what, e.place, e.reported, e.shown, e.seeds, e.runs, e.verdict, e.note) for e in comparisons]),
        "## Reported numbers",
        f"{comparability(scale)}. If an arm, metric and data set of ours are analogous to a reported number, ours "
        "is shown beside it. A comparable number *agrees* if it is in our interval.",
        _table(("place", "reported number", "reported", "ours", "seeds", "runs", "verdict", "note"),
               [(e.place, e.what, e.reported, e.shown, e.seeds, e.runs, e.verdict, e.note) for e in values])]
    return "\n\n".join(parts) + "\n"


def chance(comparisons: Sequence[Entry]) -> str:
    """How often a comparison errs by chance, from the smallest number of seeds (see ``statistics``).

    >>> chance([])
    'With many seeds a comparison errs by chance in about 1 of 40 cases on either side'
    """
    fewest = min((int(n) for entry in comparisons if entry.seeds for n in entry.seeds.split("/")), default=None)
    if fewest is not None and fewest < _FEW:
        return (f"Some comparisons have {fewest} seed{'s' * (fewest > 1)}, and intervals of so few are too narrow: "
                "those of 3 seeds cover the truth of one arm in about 3 of 4 cases and of a difference in 9 of 10, so "
                "a comparison of 3 errs by chance in about 1 of 8 or 1 of 20 cases on either side")
    seeds = "many seeds" if fewest is None else f"{fewest} or more seeds"
    return f"With {seeds} a comparison errs by chance in about 1 of 40 cases on either side"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown_rows([header, [":--"] * len(header), *rows])
