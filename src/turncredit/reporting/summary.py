"""Writes the headline: six rows and the findings for README and report, and the summary for the terminal."""

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
HEADLINES = {  # value_id -> label in the terminal
    **{ids[0]: f"{arm}, exact match" for arm, ids in ARMS.items()},
    **{ids[1]: f"{arm}, format" for arm, ids in ARMS.items()},
    **{f"t5-{arm.lower()}-exact-match": f"{arm}, two turns, exact match" for arm in ("GRPO-OR", "GRPO-MR", "MT-GRPO")},
    **{f"t5-{arm.lower()}-tool-execution": f"{arm}, two turns, tool execution (0-0.2)"
       for arm in ("GRPO-OR", "GRPO-MR", "MT-GRPO")}}
_HEADER = ("arm", "exact match: paper", "ours", "format: paper", "ours", "seeds", "runs")


def terminal_summary(entries: Sequence[Entry], findings: Sequence[str], scale: Scale) -> str:
    """The last lines of ``make reproduce``: our numbers beside the reported ones, findings, verdicts on the claims."""
    values = _values(entries)
    rows = [(label, values[key].reported, values[key].shown) for key, label in HEADLINES.items()
            if key in values and values[key].ours is not None]
    label_width, value_width = (max((len(row[column]) for row in rows), default=0) for column in (0, 1))
    caveat = "" if comparability(scale).startswith("Comparable") else "; not comparable: other policy, data"
    lines = [f"scale {scale.name}: reported | ours [95% interval over seeds]{caveat}"]
    lines += [f"  {label:<{label_width}}  {reported:>{value_width}} | {ours}" for label, reported, ours in rows]
    lines += ["findings:", *(f"  {sentence}" for sentence in findings)] if findings else []
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


def readme_section(entries: Sequence[Entry], findings: Sequence[str], scale: Scale,
                   pictures: Sequence[tuple[str, str]] = ()) -> str:
    """The README's results in Markdown: six rows, findings, verdict counts, pictures given as (alt text, path)."""
    header, rows = headline_rows(entries)
    parts = [_introduction(scale), markdown_rows([header, [":--"] * len(header), *rows]),
             "\n".join(f"- {sentence}" for sentence in findings),
             f"{verdict_counts(entries, scale)} Every comparison and reported number: "
             f"[paper_tables/shipped/{scale.name}/audit.md](paper_tables/shipped/{scale.name}/audit.md).",
             *(f"![{text}]({path})" for text, path in pictures)]
    return "\n\n".join(filter(None, parts))


def report_section(entries: Sequence[Entry], findings: Sequence[str], scale: Scale, picture: Path | None) -> str:
    """The opening of the Snakemake report in reStructuredText; the picture (PNG) is embedded."""
    header, rows = headline_rows(entries)
    table = io.StringIO()
    csv.writer(table, lineterminator="\n", quoting=csv.QUOTE_ALL).writerows([header, *rows])
    lines = "\n".join(f"   {line}" for line in table.getvalue().splitlines())
    parts = [_introduction(scale).replace("`", "``"), f".. csv-table::\n   :header-rows: 1\n\n{lines}",
             "\n".join(f"- {sentence}" for sentence in findings), verdict_counts(entries, scale).replace("`", "``")]
    if picture is not None:  # in short lines: docutils limits their length
        data = base64.encodebytes(picture.read_bytes()).decode().replace("\n", "\n   ").rstrip()
        parts.append(f".. raw:: html\n\n   <img alt=\"{picture.stem.replace('_', ' ')}\" style=\"max-width: 100%\" "
                     f'src="data:image/png;base64,{data}">')
    return "\n\n".join(filter(None, parts)) + "\n"


def headline_rows(entries: Sequence[Entry]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and one row per arm: exact match and format averaged over test sets, reported and ours, seeds, runs.

    Two columns of verdicts are added if any of these numbers is comparable with the paper's.
    """
    values, rows = _values(entries), []
    shown = {arm: tuple(values[key] for key in ids) for arm, ids in ARMS.items() if {*ids} <= {*values}}
    judged = any(e.verdict not in ("not comparable", "not reported") for pair in shown.values() for e in pair)
    for arm, pair in shown.items():
        cells = [cell for e in pair for cell in (e.reported, e.shown if e.ours is not None else "not run")]
        rows.append((arm, *cells, pair[0].seeds, pair[0].runs, *([e.verdict for e in pair] if judged else [])))
    return (*_HEADER, *(("exact match: verdict", "format: verdict") if judged else ())), rows


def update_readme(path: Path, section: str) -> None:
    """Replace the section between the markers of the README.

    Raises:
        DataError: the file or a marker is missing, or the markers are in the wrong order.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", "pass a README with the markers") from error
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise DataError(f"{path}: missing the markers {BEGIN!r} and {END!r}, in this order",
                        "put each on a line of its own where the results belong")
    write_text(path, f"{before}{BEGIN}\n\n{section}\n\n{END}{after}")


def _introduction(scale: Scale) -> str:
    return (f"Scale `{scale.name}`: means over the test sets and seeds, with 95% bootstrap intervals over seeds. "
            f"{comparability(scale)}. Differences between arms can be compared.")


def _values(entries: Sequence[Entry]) -> dict[str, Entry]:
    return {entry.id: entry for entry in entries if entry.kind == "value"}


def _shorten(text: str, width: int) -> str:
    """At most ``width`` characters, cut between words.

    >>> _shorten("one two three", 9)
    'one two …'
    """
    return text if len(text) <= width else text[:width - 1].rsplit(" ", 1)[0] + " …"
