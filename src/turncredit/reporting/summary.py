"""The audit for readers: a page, a few lines for the terminal, and the results section of the README."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from turncredit.config.load import Scale
from turncredit.errors import DataError
from turncredit.files import write_text
from turncredit.reporting.audit import NOT_COMPARABLE, NOT_REPORTED, Entry, frame
from turncredit.reporting.comparability import comparability

BEGIN, END = "<!-- results: begin, generated -->", "<!-- results: end -->"
HEADLINES = {  # value_id -> what the reader wants to see first
    "t2-grpo-or-search-r1-average-answer-correct": "GRPO-OR, exact match",
    "t2-grpo-mr-search-r1-average-answer-correct": "GRPO-MR, exact match",
    "search-mt-grpo-average-answer-correct": "MT-GRPO, exact match",
    "t2-ppo-or-search-r1-average-answer-correct": "PPO-OR, exact match",
    "t2-ppo-mr-search-r1-average-answer-correct": "PPO-MR, exact match",
    "t2-mt-ppo-average-answer-correct": "MT-PPO, exact match",
    "t2-grpo-or-search-r1-average-format-correct": "GRPO-OR, format",
    "t2-grpo-mr-search-r1-average-format-correct": "GRPO-MR, format",
    "search-mt-grpo-average-format-correct": "MT-GRPO, format",
    "t2-ppo-or-search-r1-average-format-correct": "PPO-OR, format",
    "t2-ppo-mr-search-r1-average-format-correct": "PPO-MR, format",
    "t2-mt-ppo-average-format-correct": "MT-PPO, format",
    "t5-grpo-or-exact-match": "GRPO-OR, two turns, exact match",
    "t5-grpo-mr-exact-match": "GRPO-MR, two turns, exact match",
    "t5-mt-grpo-exact-match": "MT-GRPO, two turns, exact match",
    "t5-grpo-or-tool-execution": "GRPO-OR, two turns, tool execution (0-0.2)",
    "t5-grpo-mr-tool-execution": "GRPO-MR, two turns, tool execution (0-0.2)",
    "t5-mt-grpo-tool-execution": "MT-GRPO, two turns, tool execution (0-0.2)"}
_RULE = ("*supported* if every comparison that tests it has its whole 95% interval on the claimed side, *contradicted* "
         "if at least one has it wholly on the other side, else *inconclusive*; *by construction* if it is a property "
         "of the code, which a test shows, and no finding")
_FEW = 5  # with fewer seeds intervals are too narrow: see statistics.py


def save(entries: Sequence[Entry], scale: Scale, folder: Path) -> list[Path]:
    """Write ``audit.csv`` and ``audit.md`` in ``folder``; each whole or not at all."""
    write_text(folder / "audit.csv", str(frame(entries).to_csv(index=False, lineterminator="\n")))
    write_text(folder / "audit.md", markdown(entries, scale))
    return [folder / "audit.csv", folder / "audit.md"]


def markdown(entries: Sequence[Entry], scale: Scale) -> str:
    """The audit as a page: how it decides, the claims, their comparisons, the reported numbers."""
    claims, comparisons, values = ([e for e in entries if e.kind == kind] for kind in ("claim", "comparison", "value"))
    parts = [
        f"# Audit at scale {scale.name}",
        f"A claim is {_RULE}. {chance(comparisons)}, so a claim of many comparisons is easier to contradict than to "
        "support: see how many there are. Comparisons with methods and tasks that this project lacks are counted as "
        "not run and decide nothing. The comparisons were fixed before the runs, in "
        "`paper_tables/reported/claim_tests.csv`. Intervals are over seeds (bootstrap; score intervals for shares of "
        "seeds).",
        f"{comparability(scale)}. Where an arm, metric and data set of ours are the analogue of a reported number, "
        "ours stands beside it; a comparable one *agrees* if it lies in our interval.",
        "## Claims", claim_table(claims, scale),
        "## Comparisons", _table(
            ("claim", "comparison", "measured", "claimed", "ours", "seeds", "runs", "verdict", "note"),
            [(e.id, e.what, e.place, e.reported, e.shown, e.seeds, e.runs, e.verdict, e.note) for e in comparisons]),
        "## Reported numbers", _table(
            ("place", "reported number", "reported", "ours", "seeds", "runs", "verdict", "note"),
            [(e.place, e.what, e.reported, e.shown, e.seeds, e.runs, e.verdict, e.note) for e in values])]
    return "\n\n".join(parts) + "\n"


def chance(comparisons: Sequence[Entry]) -> str:
    """How often a comparison errs by chance, by the fewest seeds that one was made with (see ``statistics``).

    >>> chance([])
    'With many seeds a comparison errs by chance in about 1 of 40 cases on either side'
    """
    fewest = min((int(n) for entry in comparisons if entry.seeds for n in entry.seeds.split("/")), default=None)
    if fewest is not None and fewest < _FEW:
        return (f"Some comparisons have {fewest} seed{'s' * (fewest > 1)}, and intervals of so few are too narrow: "
                "those of 3 seeds hold the truth of one arm in about 3 of 4 cases and of a difference in 9 of 10, so a "
                "comparison of 3 errs by chance in about 1 of 8 or 1 of 20 cases on either side")
    seeds = "many seeds" if fewest is None else f"{fewest} or more seeds"
    return f"With {seeds} a comparison errs by chance in about 1 of 40 cases on either side"


def claim_table(claims: Sequence[Entry], scale: Scale) -> str:
    """One line a claim: what the paper says, the verdict, how its comparisons came out."""
    return _table(("", "the paper's claim", f"verdict at scale {scale.name}", "comparisons", "seeds", "runs"),
                  [(e.id, e.what, f"**{e.verdict}**", e.note, e.seeds, e.runs) for e in claims])


def headline(entries: Sequence[Entry], scale: Scale) -> str:
    """The lines that ``make reproduce`` ends with: numbers beside the reported ones, and the verdicts."""
    rows = [(label, entry.reported, entry.shown) for label, entry in _headlines(entries) if entry.ours is not None]
    label_width, value_width = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    lines = [f"scale {scale.name}: reported | ours [95% interval over seeds]{_apart(scale)}"]
    lines += [f"  {label:<{label_width}}  {reported:>{value_width}} | {ours}" for label, reported, ours in rows]
    lines.append("claims of the paper, tested on these runs:")
    for entry in entries:
        if entry.kind == "claim" and entry.verdict != "not run":
            lines.append(f"  {entry.id:>2} {entry.verdict:<15} {_shorten(entry.what, 94)}")
    left = [entry.id for entry in entries if entry.kind == "claim" and entry.verdict == "not run"]
    return "\n".join([*lines, *([f"  not run: {', '.join(left)}"] if left else [])]) + "\n"


def readme_section(entries: Sequence[Entry], scale: Scale, pictures: Sequence[tuple[str, str]] = ()) -> str:
    """The README's results: reported | ours, pictures (alt text, path), then the claims.

    A verdict stands beside each number only where one may be set beside the paper's.
    """
    found = _headlines(entries)
    judged = any(entry.verdict not in (NOT_COMPARABLE, NOT_REPORTED) for _, entry in found)
    columns = ("average over test sets", "reported", "ours", "seeds", "runs", *(("verdict",) if judged else ()))
    arms = [(label, e.reported, e.shown if e.ours is not None else "not run", e.seeds, e.runs, e.verdict)[:len(columns)]
            for label, e in found]
    claims, comparisons = ([e for e in entries if e.kind == kind] for kind in ("claim", "comparison"))
    parts = [
        f"Scale `{scale.name}`: means over the test sets (of the training domain for two turns) and seeds, with 95% "
        f"bootstrap intervals over seeds. {comparability(scale)}. How the arms stand to one another can always be "
        "compared; the paper's claims about that are below.",
        _table(columns, arms),
        *(f"![{text}]({path})" for text, path in pictures),
        f"A claim is {_RULE}. {chance(comparisons)}; among 20 comparisons chance alone puts one wholly on a side "
        "fairly often.",
        claim_table(claims, scale)]
    return "\n\n".join(parts)


def update_readme(path: Path, section: str) -> None:
    """Put the section between the markers of the README; the rest stays as it is.

    Raises:
        DataError: the file or a marker is missing, or the markers are not in order.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", "name the README with its markers") from error
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise DataError(f"{path}: the markers {BEGIN!r} and {END!r} are not both there, in this order",
                        "put each on a line of its own where the results belong")
    write_text(path, f"{before}{BEGIN}\n\n{section}\n\n{END}{after}")


def _apart(scale: Scale) -> str:
    return "" if comparability(scale).startswith("Comparable") else "; not comparable: other policy, data"


def _headlines(entries: Sequence[Entry]) -> list[tuple[str, Entry]]:
    found = {entry.id: entry for entry in entries if entry.kind == "value"}
    return [(label, found[key]) for key, label in HEADLINES.items() if key in found]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, [":--"] * len(header), *rows]
    return "\n".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines)


def _shorten(text: str, width: int) -> str:
    """At most ``width`` characters, cut between words.

    >>> _shorten("one two three", 9)
    'one two …'
    """
    return text if len(text) <= width else text[:width - 1].rsplit(" ", 1)[0] + " …"
