"""README, report and terminal say the same: outcomes, findings and verdict counts, computed from the runs."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from pathlib import Path

import pytest

from turncredit.errors import DataError
from turncredit.reporting.audit import audit
from turncredit.reporting.entries import Entry
from turncredit.reporting.findings import headline
from turncredit.reporting.outcomes import PRIMARY, measured
from turncredit.reporting.reported import Reported
from turncredit.reporting.samples import mean
from turncredit.reporting.scores import Results
from turncredit.reporting.summary import (
    ARMS,
    BEGIN,
    END,
    headline_rows,
    readme_section,
    report_section,
    terminal_summary,
    update_section,
    verdict_counts,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def entries(results: Results, reported: Reported) -> list[Entry]:
    return audit(results.runs, results.scale, reported)


def test_terminal_readme_and_report_have_the_same_findings(entries: list[Entry], results: Results,
                                                           reported: Reported) -> None:
    sentences = headline(results, reported)
    assert len(sentences) > 4
    readme, terminal = readme_section(entries, results, reported), terminal_summary(entries, results, reported)
    report = report_section(entries, results, reported, None)
    for sentence in sentences:
        assert sentence in readme
        assert sentence in terminal
        assert sentence.replace("`", "``") in report
    assert verdict_counts(entries, results.scale) in readme
    assert "paper_tables/shipped/mini/audit.md" in readme
    assert "Not comparable" in readme


def test_the_headline_has_the_primary_outcomes_of_each_arm(results: Results) -> None:
    header, *rows = headline_rows(results)
    assert header[1:] == tuple(outcome.words for outcome in PRIMARY)
    assert [row[0] for row in rows] == list(ARMS)
    for column, outcome in enumerate(PRIMARY, start=1):
        for arm, sample in measured(outcome, results, "search").items():
            shown = next(row for row in rows if row[0] == arm)[column]
            numbers = [float(text) for text in re.findall(r"-?[\d.]+", shown)]
            found = mean(sample)
            assert numbers == pytest.approx([found.value, found.low, found.high], abs=10**-outcome.digits)


def test_averages_stand_beside_the_papers_where_they_are_comparable(entries: list[Entry], results: Results,
                                                                    reported: Reported) -> None:
    best = "t2-mt-ppo-average-answer-correct"
    judged = [replace(e, verdict="ours is higher") if e.id == best else e for e in entries]
    shown = next(e for e in entries if e.id == best).shown
    line = f"| MT-PPO | 0.447 | {shown} | ours is higher |"
    assert line in readme_section(judged, results, reported)
    assert line not in readme_section(entries, results, reported)


def test_the_opening_of_the_report_is_valid_and_embeds_its_picture(entries: list[Entry], results: Results,
                                                                    reported: Reported, tmp_path: Path) -> None:
    from docutils.core import publish_parts

    picture = tmp_path / "a_figure.png"
    picture.write_bytes(bytes(range(256)) * 200)
    text = report_section(entries, results, reported, picture)
    strict = {"report_level": 1, "halt_level": 1}  # any complaint of docutils is an error
    html = publish_parts(text, writer="html", settings_overrides=strict)["html_body"]
    data = re.search(r'<img alt="a figure"[^>]*base64,([^"]+)"', html)
    assert data
    assert base64.b64decode(data[1]) == picture.read_bytes()
    assert html.count("<tr>") == 1 + len(ARMS)


def test_without_runs_there_are_no_findings(results: Results, reported: Reported) -> None:
    empty = Results(results.scale, {})
    assert headline(empty, reported) == []
    assert "findings" not in terminal_summary(audit({}, empty.scale, reported), empty, reported)


def test_a_page_changes_between_its_markers_only(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    update_section(path, "| new |")
    assert path.read_text() == f"before\n{BEGIN}\n\n| new |\n\n{END}\nafter\n"
    update_section(path, "| new |")
    assert path.read_text().count("| new |") == 1
    path.write_text("no markers")
    with pytest.raises(DataError, match="markers"):
        update_section(path, "x")
    assert path.read_text() == "no markers"
