"""The audit: verdicts follow the intervals, every claim and number has its row, and nothing is made up."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests import synthetic_runs as synthetic
from turncredit.config.load import load_scale
from turncredit.errors import DataError
from turncredit.reporting import statistics
from turncredit.reporting.audit import audit
from turncredit.reporting.audit_page import markdown, save
from turncredit.reporting.entries import Entry, frame
from turncredit.reporting.findings import findings, separated_pairs
from turncredit.reporting.reported import Reported, read_reported
from turncredit.reporting.scores import Results
from turncredit.reporting.summary import (
    ARMS,
    BEGIN,
    END,
    HEADLINES,
    headline_rows,
    readme_section,
    report_section,
    terminal_summary,
    update_readme,
    verdict_counts,
)

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "paper_tables/reported"


@pytest.fixture(scope="module")
def reported() -> Reported:
    return read_reported(FOLDER)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return synthetic.results(tmp_path_factory.mktemp("runs"), {**synthetic.ALL, "search": 6})


@pytest.fixture(scope="module")
def entries(results: Results, reported: Reported) -> list[Entry]:
    return audit(results.runs, results.scale, reported)


# --- the files of the paper ------------------------------------------------------------------------------------------

def test_every_claim_has_a_test_that_this_scale_can_run(reported: Reported) -> None:
    scale = load_scale("mini", ROOT / "config")
    assert [claim.claim_id for claim in reported.claims] == list(range(1, 25))
    for line in reported.tests:
        if line.statistic not in ("none", "construction"):
            arms = scale.experiments[line.experiment].arms
            assert set(line.arms_a) | set(line.arms_b) <= set(arms), line
            assert line.direction, line
        else:
            assert line.note, line


def test_what_holds_by_construction_names_a_test_that_is_there(reported: Reported) -> None:
    named = [line.note for line in reported.tests if line.statistic == "construction"]
    assert len(named) == 2
    for note in named:
        file, _, function = note.partition("::")
        assert f"def {function}(" in (ROOT / file).read_text()


@pytest.mark.parametrize(("file", "old", "new", "words"), [
    ("table2.csv", ",0.177,", ",0.17.7,", "'0.17.7' is not a finite number"),
    ("table2.csv", "value_id,", "id,", "'value_id' is missing"),
    ("table5.csv", "TriviaQA two-turn,", "TriviaQA three-turn,", "did you mean 'TriviaQA two-turn'"),
    ("claims.csv", "\n2,", "\n1,", "duplicate claim_id '1'"),
    ("claim_tests.csv", "greater", "grater", "did you mean 'greater'"),
    ("claims.csv", "\n24,", "\n25,", "claim 24")])
def test_a_fault_in_the_papers_files_is_named(tmp_path: Path, file: str, old: str, new: str, words: str) -> None:
    for path in FOLDER.glob("*.csv"):
        (tmp_path / path.name).write_text(path.read_text())
    text = (tmp_path / file).read_text()
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new, 1))
    with pytest.raises(DataError) as error:
        read_reported(tmp_path)
    assert words in str(error.value)


# --- rows ------------------------------------------------------------------------------------------------------------

def test_every_reported_number_and_every_claim_has_one_row(entries: list[Entry], reported: Reported) -> None:
    values = {e.id: e for e in entries if e.kind == "value"}
    assert [*values] == [v.value_id for v in reported.values]  # without analogue and without a number, too
    for value in reported.values:
        entry = values[value.value_id]
        assert (entry.reported == "not reported") == (value.value is None)
        assert entry.verdict == ("no analogue" if "no analogue here" in entry.note else
                                 "not reported" if value.value is None else "not comparable")
    assert sum(e.verdict == "no analogue" for e in values.values()) == 84
    assert [e.id for e in entries if e.kind == "claim"] == [str(n) for n in range(1, 25)]
    assert set(HEADLINES) <= {*values}


def test_reported_differences_stand_beside_ours(entries: list[Entry], results: Results) -> None:
    found = {e.what: e for e in entries if e.kind == "difference"}
    assert len(found) == 10 * 4 + 3 * 4 + 3 * 4  # pairs x sets of ours (or metrics): match, format, two turns
    mean = found["MT-PPO − PPO-OR, exact match, Average"]
    one, other = results.arm("search", "MT-PPO"), results.arm("search", "PPO-OR")
    assert one is not None
    assert other is not None
    ours = statistics.difference(*(arm.final("answer_correct", results.datasets) for arm in (one, other)))
    assert (mean.reported, mean.ours, mean.low) == ("+0.015", ours.value, ours.low)
    assert mean.verdict == "not compatible"  # about 0.3 in the synthetic runs
    out = found["MT-PPO − PPO-OR, exact match, TriviaQA, PopQA, 2WikiMultiHopQA, Musique"]
    assert float(out.reported) == pytest.approx((.008 + .003 + .042 + .010) / 4, abs=1e-4)
    assert "out-of-domain" in out.note


def test_an_analogue_is_our_number_and_is_named(entries: list[Entry], results: Results) -> None:
    found = {e.id: e for e in entries}
    arm = results.arm("search", "PPO-MR")
    assert arm is not None
    out = found["t2-ppo-mr-search-r1-musique-answer-correct"]
    assert out.ours == pytest.approx(arm.final("answer_correct", results.scale.out_of_domain).mean(), abs=1e-9)
    assert "out-of-domain" in out.note
    facts = arm.final("answer_correct", ["facts"]).mean()
    assert found["t2-ppo-mr-search-r1-nq-answer-correct"].ours == pytest.approx(facts)
    assert found["t2-ppo-otc-nq-answer-correct"].ours is None
    assert found["t2-qwen2-5-7b-base-nq-answer-correct"].seeds == "1"
    one, two = (results.arm("two_turn", name) for name in ("MT-GRPO", "GRPO-MR"))
    assert one is not None
    assert two is not None
    means = [arm.final("component_exact_match", ["facts"]).mean() for arm in (one, two)]
    gap = found["e4-mt-grpo-minus-grpo-mr-exact-match-difference"]
    assert gap.ours == pytest.approx(means[0] - means[1], abs=1e-9)


def verdict(entries: list[Entry], part: str) -> str:
    """Of the first comparison of a claim's part."""
    return next(e for e in entries if e.kind == "comparison" and e.id == part).verdict


def test_clear_differences_are_seen_in_both_directions(results: Results, reported: Reported,
                                                       entries: list[Entry]) -> None:
    assert verdict(entries, "12a") == "holds"
    search = results.runs["search"]
    renamed = {"MT-PPO": "PPO-OR", "PPO-OR": "MT-PPO"}
    turned = replace(search, evaluation=search.evaluation.assign(arm=search.evaluation["arm"].replace(renamed)))
    other = audit({**results.runs, "search": turned}, results.scale, reported)
    assert verdict(other, "12a") == "reversed"


def test_without_runs_nothing_is_claimed(reported: Reported) -> None:
    found = audit({}, synthetic.scale(), reported)
    claims = {e.id: e.verdict for e in found if e.kind == "claim"}
    assert {claims.pop("17"), claims.pop("19")} == {"by construction"}
    assert claims.pop("16") == "not decidable"  # a remark
    assert set(claims.values()) == {"not run"}
    assert all(e.ours is None for e in found)


def test_page_terminal_and_readme_say_the_same(entries: list[Entry], results: Results, tmp_path: Path) -> None:
    page, sentences = markdown(entries, results.scale), findings(results)
    lines, section = (function(entries, sentences, results.scale) for function in (terminal_summary, readme_section))
    best = next(e for e in entries if e.id == "t2-mt-ppo-average-answer-correct")
    unknown = next(e for e in entries if e.id == "search-mt-grpo-average-answer-correct")
    for text in (page, lines, section):
        assert f"0.447 | {best.shown}" in text
        assert f"not reported | {unknown.shown}" in text
        assert "not comparable" in text.lower()
    for text in (lines, section, report_section(entries, sentences, results.scale, None)):
        assert all(sentence in text for sentence in sentences)
    assert page.index("- *supported* if all of its primary comparisons") < page.index("| verdict at scale mini |")
    assert page.index("| verdict at scale mini |") < page.index("## Comparisons")
    assert "verdict at scale" not in section  # the table of claims stands on the audit page alone
    assert "paper_tables/shipped/mini/audit.md" in section
    assert "| not comparable |" not in section  # said once, above
    save(entries, results.scale, tmp_path)
    kept = pd.read_csv(tmp_path / "audit.csv", keep_default_na=False)
    assert kept["verdict"].tolist() == frame(entries)["verdict"].tolist()
    assert (tmp_path / "audit.md").read_text() == page


def test_the_readme_and_the_report_count_the_audits_own_verdicts(entries: list[Entry], results: Results) -> None:
    claims = [replace(entry, verdict="undecided") for entry in entries if entry.kind == "claim"]
    claims[:3] = [replace(claims[0], verdict="opposite"), replace(claims[1], verdict="not run"),
                  replace(claims[2], verdict="opposite")]
    others = [entry for entry in entries if entry.kind != "claim"]
    counts = (f"0 supported, 2 opposite, 0 equivalent, {len(claims) - 3} undecided, 0 not decidable, "
              "0 by construction, 1 not run")
    sentence = f"Verdicts on the paper's {len(claims)} claims at scale `mini`: {counts}."
    assert verdict_counts([*claims, *others], results.scale) == sentence
    assert sentence in readme_section([*claims, *others], [], results.scale)
    assert counts in report_section([*claims, *others], [], results.scale, None)


def test_the_readme_gives_verdicts_on_numbers_where_some_may_be_set_beside_the_papers(
        entries: list[Entry], results: Results) -> None:
    best = "t2-mt-ppo-average-answer-correct"
    judged = [replace(e, verdict="ours is higher") if e.id == best else e for e in entries]
    rows = readme_section(judged, [], results.scale).splitlines()
    assert next(row for row in rows if row.startswith("| MT-PPO |")).endswith("| ours is higher | not comparable |")
    assert "verdict" in next(row for row in rows if row.startswith("| arm |"))


def test_the_headline_has_a_row_for_each_of_the_six_arms_with_its_seeds(entries: list[Entry]) -> None:
    header, rows = headline_rows(entries)
    assert [row[0] for row in rows] == list(ARMS)
    found = {e.id: e for e in entries}
    for row in rows:
        match, form = (found[key] for key in ARMS[row[0]])
        assert row[1:] == (match.reported, match.shown, form.reported, form.shown, "6", "fresh")
        assert "[" in match.shown
    assert len(header) == len(rows[0])


def test_the_opening_of_the_report_is_valid_and_embeds_its_picture(entries: list[Entry], results: Results,
                                                                    tmp_path: Path) -> None:
    from docutils.core import publish_parts

    picture = tmp_path / "a_figure.png"
    picture.write_bytes(bytes(range(256)) * 200)
    text = report_section(entries, findings(results), results.scale, picture)
    strict = {"report_level": 1, "halt_level": 1}  # any complaint of docutils is an error
    html = publish_parts(text, writer="html", settings_overrides=strict)["html_body"]
    data = re.search(r'<img alt="a figure"[^>]*base64,([^"]+)"', html)
    assert data
    assert base64.b64decode(data[1]) == picture.read_bytes()
    assert html.count("<tr>") == 1 + len(ARMS)


# --- findings ---------------------------------------------------------------------------------------------------------

def with_levels(results: Results, column: str, levels: dict[str, float]) -> Results:
    """The same runs, but for a training metric that is one number for each arm."""
    search = results.runs["search"]
    metrics = search.metrics.assign(**{column: search.metrics["arm"].map(levels).where(search.metrics["step"] > 0)})
    return replace(results, runs={**results.runs, "search": replace(search, metrics=metrics)})


@pytest.mark.parametrize(("fastest", "words"), [
    (("PPO-OR", "GRPO-OR"), "the outcome-only arms"), (("MT-GRPO", "MT-PPO"), "the per-turn arms"),
    (("PPO-MR", "GRPO-MR"), "the merged-reward arms"), (("PPO-MR", "MT-PPO"), "PPO-MR")])
def test_the_fastest_arms_are_named_by_what_the_runs_show(results: Results, fastest: tuple[str, str],
                                                          words: str) -> None:
    levels = {arm: 0.1 for arm in ARMS} | dict(zip(fastest, (0.9, 0.8), strict=True))
    sentences = findings(with_levels(results, "answer_correct", levels))
    found = next(sentence for sentence in sentences if sentence.startswith("Exact match is learnt"))
    assert f"fastest by {words}." in found
    assert f"{fastest[0]} 0.900, {fastest[1]} 0.800" in found
    assert f"9 of 15 pairs of arms are separated, most of all {fastest[0]} − " in found  # the two, and each from four


def test_separated_pairs_are_those_whose_interval_excludes_zero(results: Results) -> None:
    rng = np.random.default_rng(0)
    samples = {"a": 0.5 + 0.01 * rng.normal(size=(6, 2)), "b": 0.8 + 0.01 * rng.normal(size=(6, 2)),
               "c": 0.65 + 0.5 * rng.normal(size=(6, 2))}
    pairs = separated_pairs(samples)
    assert [(high, low) for high, low, _ in pairs] == [("b", "a")]
    assert pairs[0][2] == statistics.difference(samples["b"], samples["a"])
    assert findings(Results(results.scale, {})) == []


def test_the_readme_changes_between_its_markers_only(tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    update_readme(path, "| new |")
    assert path.read_text() == f"before\n{BEGIN}\n\n| new |\n\n{END}\nafter\n"
    update_readme(path, "| new |")
    assert path.read_text().count("| new |") == 1
    path.write_text("no markers")
    with pytest.raises(DataError, match="markers"):
        update_readme(path, "x")
    assert path.read_text() == "no markers"
