"""Writes the audit as a page: claims with the rule of their verdicts, comparisons, differences, reported numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isinf
from pathlib import Path

from turncredit.config.load import Scale
from turncredit.files import write_text
from turncredit.reporting.claims import FEWEST
from turncredit.reporting.comparability import comparability
from turncredit.reporting.entries import Entry, frame
from turncredit.reporting.tables.render import markdown_rows, number
from turncredit.reporting.verdicts import ALPHA, POWER, level

_VERDICTS = f"""\
Each claim has a fixed test in `paper_tables/reported/claim_tests.csv`. Its verdict is

- *supported* if all of its primary comparisons lie on the claimed side,
- *opposite* if at least one lies on the other side,
- *equivalent* if all lie within their margin around the threshold,
- *undecided* if the runs show none of these,
- *not decidable* if a part of it cannot be tested here: fewer than {FEWEST} runs an arm, all arms at the floor or the
  ceiling of the metric, or a pressure that the claim is about is missing; or if no test could decide it,
- *by construction* if it is a property of the code, which a test shows: no finding,
- *not run* without runs, or if the method or task is not part of this project."""
_FINDINGS = f"""\
Single comparisons, at 95% and without correction: they decide nothing alone. `p` is the one-sided p-value of the
claimed side. `margin`: smaller distances from the claimed threshold do not matter. `detects`: the smallest distance
from the threshold, in this comparison, at which the claim is supported with {POWER:.0%} power (*none*: no difference of
rates is that large); if it is above the margin, smaller differences that matter can be missed. *Within margin*: by two
one-sided tests at 5%."""


def save(entries: Sequence[Entry], scale: Scale, folder: Path) -> list[Path]:
    """Write ``audit.csv`` and ``audit.md`` in ``folder``, each atomically."""
    write_text(folder / "audit.csv", str(frame(entries).to_csv(index=False, lineterminator="\n", float_format="%.12g")))
    write_text(folder / "audit.md", markdown(entries, scale))
    return [folder / "audit.csv", folder / "audit.md"]


def markdown(entries: Sequence[Entry], scale: Scale) -> str:
    """The page in Markdown: claims with the rule of their verdicts, comparisons, differences, reported numbers."""
    claims, gaps, values = ([e for e in entries if e.kind == kind] for kind in ("claim", "difference", "value"))
    return "\n\n".join([
        f"# Audit at scale {scale.name}",
        "## Claims", _VERDICTS, _family(claims), _coverage(entries),
        _table(("", "the paper's claim", f"verdict at scale {scale.name}", "p (Holm)", "detects",
                "primary comparisons, or why", "runs an arm", "runs"),
               [(e.id, e.what, f"**{e.verdict}**", _p(e.p_holm), e.power, e.note, e.seeds, e.runs) for e in claims]),
        "## Comparisons", _FINDINGS, *_comparisons(entries),
        "## Reported differences",
        "The paper's difference between two arms of a table, and ours. *Compatible* means that the paper's lies in our "
        "95% interval; a wide interval is compatible with much. Data sets of the paper that have the same analogue "
        "here are averaged.",
        _table(("place", "difference", "reported", "ours", "analogue", "runs an arm", ""),
               [(e.place, e.what, e.reported, e.shown, e.note.removeprefix("ours: "), e.seeds, e.verdict)
                for e in gaps]),
        "## Reported numbers",
        f"{comparability(scale)}. If an arm, metric and data set of ours are analogous to a reported number, ours "
        "is shown beside it. A comparable number *agrees* if it is in our interval.",
        _table(("place", "reported number", "reported", "ours", "runs an arm", "runs", "verdict", "note"),
               [(e.place, e.what, e.reported, e.shown, e.seeds, e.runs, e.verdict, e.note) for e in values])]) + "\n"


def _family(claims: Sequence[Entry]) -> str:
    tested = sum(claim.p is not None for claim in claims)
    if not tested:
        return "No claim was tested."
    return (f"Holm's method corrects the three p-values (supported, opposite, equivalent) of all {tested} tested "
            f"claims together: the chance that this page holds any false verdict is at most {ALPHA:.0%}. A p-value "
            f"below {level(tested):.2g} decides in any case. The table shows the smallest of the three, corrected, "
            f"and the effect in each primary comparison at which the claim is supported with {POWER:.0%} power "
            "(the largest over its comparisons).")


def _coverage(entries: Sequence[Entry]) -> str:
    bases = {entry.bases for entry in entries if entry.kind == "comparison" and entry.bases is not None}
    if not bases:
        return ""
    several = "Base policies and seeds are random factors, and arms are paired within base policies."
    one = ("One base policy: intervals and p-values are over seeds and do not cover other base policies, so verdicts "
           "hold for this one only.")
    also = f" Some comparisons have {one[0].lower()}{one[1:]}" if 1 in bases else ""
    return (f"{one if bases == {1} else several + also} Intervals are t intervals, and score intervals for "
            "shares of runs. A difference of two arms takes its variation over base policies from all arms of the "
            "experiment (the third rule of `reporting/inference.py`, with its assumption).")


def _comparisons(entries: Sequence[Entry]) -> Iterator[str]:
    """One table for each claim with runs."""
    claim: Entry | None = None
    rows: dict[str, list[Entry]] = {}
    for entry in entries:
        claim = entry if entry.kind == "claim" else claim
        if entry.kind == "comparison" and claim is not None:
            rows.setdefault(claim.id, []).append(entry)
    claims = {entry.id: entry for entry in entries if entry.kind == "claim"}
    for key, compared in rows.items():
        if any(entry.ours is not None for entry in compared):
            yield f"### Claim {key}: {claims[key].verdict}"
            yield f"{claims[key].what}."
            yield _table(("", "comparison", "measured", "claimed", "ours", "runs", "p", "margin", "detects", "alone",
                          "note"), _rows(compared))


def _rows(compared: Sequence[Entry]) -> list[tuple[str, ...]]:
    """The rows of one claim; words and note of a part stand in its first row only."""
    rows: list[tuple[str, ...]] = []
    seen: dict[str, str] = {}
    for entry in compared:
        what = "" if entry.id in seen else entry.what
        note = "" if seen.get(entry.id) == entry.note else entry.note
        seen[entry.id] = entry.note
        rows.append(_row(entry, what, note))
    return rows


def _row(entry: Entry, what: str, note: str) -> tuple[str, ...]:
    barrier = "" if entry.precondition in ("", "met") else entry.precondition
    margin = "" if entry.margin is None else f"{entry.margin:g}"
    return (entry.id, what, entry.place, entry.reported, entry.shown, entry.seeds, _p(entry.p), margin,
            "" if entry.detects is None else "none" if isinf(entry.detects) else number(entry.detects), entry.verdict,
            "; ".join(filter(None, (barrier, note))))


def _p(value: float | None) -> str:
    """A p-value with two digits.

    >>> _p(None), _p(0.00004), _p(0.0312), _p(0.5)
    ('', '<0.0001', '0.031', '0.50')
    """
    if value is None:
        return ""
    return "<0.0001" if value < 1e-4 else f"{value:.4f}" if value < 0.001 else f"{value:.3f}" if value < 0.1 else (
        f"{value:.2f}")


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return markdown_rows([header, [":--"] * len(header), *rows])
