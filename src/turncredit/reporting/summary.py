"""Writes the headline: primary outcomes and findings for README, report and terminal; and the findings' page."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from turncredit.config.load import Scale
from turncredit.errors import DataError
from turncredit.files import write_text
from turncredit.reporting.comparability import comparability
from turncredit.reporting.entries import Entry
from turncredit.reporting.findings import DEFINITIONS, findings, headline, interval, runs_in_words
from turncredit.reporting.outcomes import PRIMARY, measured
from turncredit.reporting.reported import Reported
from turncredit.reporting.samples import mean
from turncredit.reporting.scores import Results, run_counts, sources
from turncredit.reporting.tables.render import markdown_rows
from turncredit.reporting.verdicts import Verdict

BEGIN, END = "<!-- results: begin, generated -->", "<!-- results: end -->"
ARMS = {  # arm of search -> value_ids of its average exact match and format
    "GRPO-OR": ("t2-grpo-or-search-r1-average-answer-correct", "t2-grpo-or-search-r1-average-format-correct"),
    "GRPO-MR": ("t2-grpo-mr-search-r1-average-answer-correct", "t2-grpo-mr-search-r1-average-format-correct"),
    "MT-GRPO": ("search-mt-grpo-average-answer-correct", "search-mt-grpo-average-format-correct"),
    "PPO-OR": ("t2-ppo-or-search-r1-average-answer-correct", "t2-ppo-or-search-r1-average-format-correct"),
    "PPO-MR": ("t2-ppo-mr-search-r1-average-answer-correct", "t2-ppo-mr-search-r1-average-format-correct"),
    "MT-PPO": ("t2-mt-ppo-average-answer-correct", "t2-mt-ppo-average-format-correct")}
_NUMBERS = ("arm", "exact match: paper", "ours", "verdict", "format: paper", "ours", "verdict")


def terminal_summary(entries: Sequence[Entry], results: Results, reported: Reported) -> str:
    """The last lines of ``make reproduce``: primary outcomes, findings, verdicts on the claims."""
    rows = headline_rows(results)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [f"scale {results.scale.name}: mean [95% interval] on {_trained(results)}, {_runs(results)}"]
    lines += ["  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
              for row in rows] if len(rows) > 1 else []
    found = headline(results, reported)
    lines += ["findings:", *(f"  {sentence}" for sentence in found)] if found else []
    lines.append("claims of the paper, tested on these runs:")
    for entry in entries:
        if entry.kind == "claim" and entry.verdict != "not run":
            lines.append(f"  {entry.id:>2} {entry.verdict:<15} {_shorten(entry.what, 94)}")
    left = [entry.id for entry in entries if entry.kind == "claim" and entry.verdict == "not run"]
    return "\n".join([*lines, *([f"  not run: {', '.join(left)}"] if left else [])]) + "\n"


def verdict_counts(entries: Sequence[Entry], scale: Scale) -> str:
    """One sentence: how many of the paper's claims have each verdict of the audit, zeros included."""
    verdicts = [entry.verdict for entry in entries if entry.kind == "claim"]
    counts = ", ".join(f"{verdicts.count(verdict)} {verdict}" for verdict in get_args(Verdict))
    return f"Verdicts on the paper's {len(verdicts)} claims at scale `{scale.name}`: {counts}."


def readme_section(entries: Sequence[Entry], results: Results, reported: Reported,
                   pictures: Sequence[tuple[str, str]] = ()) -> str:
    """The README's results in Markdown: outcomes, findings, verdict counts, pictures given as (alt text, path)."""
    name = results.scale.name
    parts = [_introduction(results), *(_markdown(rows) for rows in _tables(entries, results)),
             "\n".join(f"- {sentence}" for sentence in headline(results, reported)),
             f"{verdict_counts(entries, results.scale)} Every comparison and reported number: "
             f"[paper_tables/shipped/{name}/audit.md](paper_tables/shipped/{name}/audit.md).",
             *(f"![{text}]({path})" for text, path in pictures)]
    return "\n\n".join(filter(None, parts))


def experiments_section(results: Results, reported: Reported) -> str:
    """All findings in Markdown, for docs/EXPERIMENTS.md."""
    parts = [runs_in_words(results), DEFINITIONS]
    for title, sentences in findings(results, reported).items():
        parts.append("\n".join([f"**{title}**", "", *(f"- {sentence}" for sentence in sentences)]))
    return "\n\n".join(filter(None, parts))


def report_section(entries: Sequence[Entry], results: Results, reported: Reported, picture: Path | None) -> str:
    """The opening of the Snakemake report in reStructuredText; the picture (PNG) is embedded."""
    parts = [_introduction(results).replace("`", "``")]
    for rows in _tables(entries, results):
        table = io.StringIO()
        csv.writer(table, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows(rows)
        lines = "\n".join(f"   {line}" for line in table.getvalue().splitlines())
        parts.append(f".. csv-table::\n   :header-rows: 1\n\n{lines}")
    parts += ["\n".join(f"- {sentence}".replace("`", "``") for sentence in headline(results, reported)),
              verdict_counts(entries, results.scale).replace("`", "``")]
    if picture is not None:  # in short lines: docutils limits their length
        data = base64.encodebytes(picture.read_bytes()).decode().replace("\n", "\n   ").rstrip()
        parts.append(f".. raw:: html\n\n   <img alt=\"{picture.stem.replace('_', ' ')}\" style=\"max-width: 100%\" "
                     f'src="data:image/png;base64,{data}">')
    return "\n\n".join(filter(None, parts)) + "\n"


def headline_rows(results: Results) -> list[tuple[str, ...]]:
    """Header and one row per arm of search: primary outcomes."""
    arms = results.arms("search")
    found = [measured(outcome, results, "search") for outcome in PRIMARY]
    rows = [("arm", *(outcome.words for outcome in PRIMARY))]
    for arm in arms:
        ours = [interval(mean(by_arm[arm]), outcome.digits) if arm in by_arm else "not run"
                for outcome, by_arm in zip(PRIMARY, found, strict=True)]
        rows.append((arm, *ours))
    return rows


def comparable_rows(entries: Sequence[Entry]) -> list[tuple[str, ...]]:
    """Header and one row per arm: averages beside the paper's, with verdicts; empty if none is comparable."""
    values = _values(entries)
    shown = {arm: tuple(values[key] for key in ids) for arm, ids in ARMS.items() if {*ids} <= {*values}}
    if not any(e.verdict not in ("not comparable", "not reported") for pair in shown.values() for e in pair):
        return []
    return [_NUMBERS, *((arm, *(cell for e in pair for cell in (
        e.reported, e.shown if e.ours is not None else "not run", e.verdict))) for arm, pair in shown.items())]


def update_section(path: Path, section: str) -> None:
    """Replace the section between the markers of a page.

    Raises:
        DataError: the file or a marker is missing, or the markers are in the wrong order.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", "pass a page with the markers") from error
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise DataError(f"{path}: missing the markers {BEGIN!r} and {END!r}, in this order",
                        "put each on a line of its own where the results belong")
    write_text(path, f"{before}{BEGIN}\n\n{section}\n\n{END}{after}")


def _tables(entries: Sequence[Entry], results: Results) -> list[list[tuple[str, ...]]]:
    return [rows for rows in (headline_rows(results), comparable_rows(entries)) if len(rows) > 1]


def _markdown(rows: Sequence[Sequence[str]]) -> str:
    return markdown_rows([rows[0], [":--"] * len(rows[0]), *rows[1:]])


def _introduction(results: Results) -> str:
    return (f"Scale `{results.scale.name}`: means on {_trained(results)} with 95% t intervals over runs "
            f"({_runs(results)}). {comparability(results.scale)}. Differences between arms can be compared.")


def _runs(results: Results) -> str:
    arms = results.arms("search").values()
    return f"{run_counts(arms)} an arm, {sources(arms)}"


def _trained(results: Results) -> str:
    return " and ".join(f"`{name}`" for name in results.scale.experiments["search"].train_on
                        ) if "search" in results.scale.experiments else "the training sets"


def _values(entries: Sequence[Entry]) -> dict[str, Entry]:
    return {entry.id: entry for entry in entries if entry.kind == "value"}


def _shorten(text: str, width: int) -> str:
    """At most ``width`` characters, cut between words.

    >>> _shorten("one two three", 9)
    'one two …'
    """
    return text if len(text) <= width else text[:width - 1].rsplit(" ", 1)[0] + " …"
