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
from turncredit.reporting.audit import Entry, audit, frame
from turncredit.reporting.audit_page import chance, markdown, save
from turncredit.reporting.claims import Comparison, claim_verdict, collapsed, compare, decide, tally
from turncredit.reporting.findings import findings, separated_pairs
from turncredit.reporting.reported import ClaimTest, Reported, read_reported
from turncredit.reporting.scores import ArmRuns, Results
from turncredit.reporting.statistics import Estimate
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


def test(**changes: object) -> ClaimTest:
    base = ClaimTest(1, "a", "says", "search", "final", ("answer_correct",), ("MT-PPO",), ("PPO-OR",), "all",
                     None, None, "greater", 0.0, "")
    return replace(base, **changes)  # type: ignore[arg-type]


test.__test__ = False  # type: ignore[attr-defined]


# --- verdicts --------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("low", "high", "direction", "threshold", "verdict"), [
    (0.1, 0.3, "greater", 0, "supported"), (-0.3, -0.1, "greater", 0, "contradicted"),
    (-0.1, 0.3, "greater", 0, "inconclusive"),
    (0.0, 0.3, "greater", 0, "inconclusive"), (0.0, 0.0, "greater", 0, "inconclusive"),
    (-0.3, -0.1, "less", 0, "supported"), (0.1, 0.3, "less", 0, "contradicted"), (0.5, 0.9, "less", 1, "supported"),
    (-0.01, 0.3, "greater", -0.02, "supported"), (-0.3, -0.03, "greater", -0.02, "contradicted"),
    (-0.04, 0.04, "similar", 0.05, "supported"), (0.06, 0.09, "similar", 0.05, "contradicted"),
    (-0.09, -0.06, "similar", 0.05, "contradicted"), (0.01, 0.09, "similar", 0.05, "inconclusive"),
    (None, None, "greater", 0, "inconclusive")])
def test_a_verdict_is_where_the_interval_lies(low: float | None, high: float | None, direction: str, threshold: float,
                                              verdict: str) -> None:
    assert decide(Estimate(0.0, low, high, (3, 3)), direction, threshold) == verdict


def test_a_claim_needs_all_its_comparisons() -> None:
    def made(*verdicts: str) -> list[Comparison]:
        return [Comparison(test(statistic="none" if v == "out" else "final"), "", "", "", "", None,
                           "not run" if v == "out" else v, "", "") for v in verdicts]  # type: ignore[arg-type]

    assert claim_verdict(made("supported", "supported")) == "supported"
    assert claim_verdict(made("supported", "inconclusive")) == "inconclusive"
    assert claim_verdict(made("supported", "contradicted", "inconclusive")) == "contradicted"
    assert claim_verdict(made("supported", "not run")) == "inconclusive"  # runs are missing
    assert claim_verdict(made("supported", "out")) == "supported"  # a method that no run could test here
    assert claim_verdict(made("not run", "out")) == claim_verdict(made("out")) == "not run"
    code = "by construction"
    assert claim_verdict(made(code)) == claim_verdict(made(code, "supported")) == code  # never called supported
    assert claim_verdict(made(code, "not run")) == claim_verdict(made(code, "inconclusive")) == "inconclusive"
    assert claim_verdict(made(code, "contradicted")) == "contradicted"
    assert tally(made("supported", "supported", "not run")) == "2 supported, 1 not run"


# --- statistics of the claims, by hand -------------------------------------------------------------------------------

def arm_with(curve_S_T: np.ndarray, column: str = "validation_facts_answer_correct") -> ArmRuns:
    seeds, steps = curve_S_T.shape
    metrics = pd.DataFrame({"base": 0, "seed": np.repeat(np.arange(seeds), steps),
                            "step": np.tile(np.arange(steps), seeds), column: curve_S_T.ravel(), "questions": 2})
    return ArmRuns("search", "MT-PPO", metrics, pd.DataFrame({"base": 0, "seed": np.arange(seeds)}), "fresh")


def test_a_collapse_is_a_large_fall_to_under_half() -> None:
    curves = np.array([[0.1, 0.8, 0.1], [0.1, 0.8, 0.5], [0.1, 0.15, 0.06], [0.0, 0.0, 0.0]])
    assert collapsed(arm_with(curves), "answer_correct", ["facts"])[:, 0].tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(("changes", "expected"), [
    ({"statistic": "training", "first": (0.5, 1.0)}, (3 + 4 + 5) / 3 - (2 + 2 + 2) / 3),
    ({"statistic": "fall", "first": (0.0, 0.2), "second": (0.5, 1.0)}, ((0 + 1) / 2 - 4) - 0),
    ({"statistic": "per_question"}, 15 / 12 - 12 / 12)])
def test_windows_by_hand(monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], expected: float) -> None:
    rising, flat = np.tile(np.arange(6.0), (2, 1)), np.full((2, 6), 2.0)
    arms = {"MT-PPO": arm_with(rising, "turns_mean"), "PPO-OR": arm_with(flat, "turns_mean")}
    monkeypatch.setattr(Results, "arm", lambda self, experiment, arm: arms[arm])
    found = compare(test(metrics=("turns_mean",), datasets="", **changes), Results(synthetic.scale(), {}))
    assert found[0].estimate is not None
    assert found[0].estimate.value == pytest.approx(expected)


def test_the_drop_is_best_less_last_and_a_gap_is_between_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    facts, bridge = np.array([[0.2, 0.9, 0.7], [0.2, 0.8, 0.8]]), np.array([[0.2, 0.6, 0.1], [0.2, 0.5, 0.4]])
    arm = arm_with(facts)
    arm = replace(arm, metrics=arm.metrics.assign(validation_bridge_answer_correct=bridge.ravel()))
    monkeypatch.setattr(Results, "arm", lambda self, experiment, name: arm)
    line = test(statistic="drop", arms_b=(), datasets="bridge-facts")
    found = compare(line, Results(synthetic.scale(), {}))
    assert found[0].estimate is not None
    assert found[0].estimate.value == pytest.approx(((0.5 - 0.2) + (0.1 - 0.0)) / 2)


def test_a_line_stands_for_every_combination(results: Results) -> None:
    found = compare(test(metrics=("answer_correct", "f1"), arms_b=("PPO-OR", "PPO-MR"), datasets="each"), results)
    assert len(found) == 2 * 2 * 5
    one = next(c for c in found if (c.metric, c.arm_b, c.dataset) == ("f1", "PPO-MR", "chain"))
    a, b = results.arm("search", "MT-PPO"), results.arm("search", "PPO-MR")
    assert a is not None
    assert b is not None
    assert one.estimate == statistics.difference(a.final("f1", ["chain"]), b.final("f1", ["chain"]))


def test_what_cannot_be_measured_is_not_run_with_its_reason(results: Results) -> None:
    found = compare(test(statistic="validation", datasets="facts", first=(0.01, 0.02)), results)
    assert found[0].verdict == "not run"
    assert "no step between" in found[0].note
    found = compare(test(datasets="sokoban"), results)
    assert "no data set sokoban" in found[0].note
    with pytest.raises(DataError, match="did you mean 'final'"):
        compare(test(statistic="finall"), results)


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
    values = [e for e in entries if e.kind == "value"]
    assert [e.id for e in values if e.verdict == "not comparable"] == [
        v.value_id for v in reported.values if v.value is not None]
    silent = [e for e in values if e.verdict != "not comparable"]  # of the paper: shown where ours has a number
    assert {(e.reported, e.verdict) for e in silent} == {("not reported", "not reported")}
    assert all(e.ours is not None for e in silent)
    assert {"search-mt-grpo-average-answer-correct", "t2-ppo-mr-search-r1-average-format-correct"} <= {
        e.id for e in silent}
    assert [e.id for e in entries if e.kind == "claim"] == [str(n) for n in range(1, 25)]
    assert set(HEADLINES) <= {e.id for e in values}


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
    assert verdict(entries, "14a") == "contradicted"  # tools are executed in six of ten episodes
    assert verdict(entries, "12a") == "supported"
    search = results.runs["search"]
    renamed = {"MT-PPO": "PPO-OR", "PPO-OR": "MT-PPO"}
    turned = replace(search, evaluation=search.evaluation.assign(arm=search.evaluation["arm"].replace(renamed)))
    other = audit({**results.runs, "search": turned}, results.scale, reported)
    assert verdict(other, "12a") == "contradicted"


def test_without_runs_nothing_is_claimed(reported: Reported) -> None:
    found = audit({}, synthetic.scale(), reported)
    claims = {e.id: e.verdict for e in found if e.kind == "claim"}
    assert claims.pop("19") == "by construction"  # an identity
    assert claims.pop("17") == "inconclusive"  # half of it is
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
    assert page.index("*supported* if every comparison") < page.index("| verdict at scale mini |")
    assert page.index("| verdict at scale mini |") < page.index("## Comparisons")
    assert "verdict at scale" not in section  # the table of claims stands on the audit page alone
    assert "paper_tables/shipped/mini/audit.md" in section
    assert "| not comparable |" not in section  # said once, above
    save(entries, results.scale, tmp_path)
    kept = pd.read_csv(tmp_path / "audit.csv", keep_default_na=False)
    assert kept["verdict"].tolist() == frame(entries)["verdict"].tolist()
    assert (tmp_path / "audit.md").read_text() == page


def test_the_readme_and_the_report_count_the_audits_own_verdicts(entries: list[Entry], results: Results) -> None:
    claims = [replace(entry, verdict="inconclusive") for entry in entries if entry.kind == "claim"]
    claims[:3] = [replace(claims[0], verdict="contradicted"), replace(claims[1], verdict="not run"),
                  replace(claims[2], verdict="contradicted")]
    others = [entry for entry in entries if entry.kind != "claim"]
    counts = f"0 supported, 2 contradicted, {len(claims) - 3} inconclusive, 0 by construction, 1 not run"
    sentence = f"The audit's verdicts on the paper's {len(claims)} claims at scale `mini`: {counts}."
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


@pytest.mark.parametrize(("seeds", "says"), [
    (("10", "10/10"), "With 10 or more seeds a comparison errs by chance in about 1 of 40"),
    (("5", "10/10", ""), "With 5 or more seeds a comparison errs by chance in about 1 of 40"),
    (("10/10", "10/3"), "1 of 8 or 1 of 20"), (("2",), "Some comparisons have 2 seeds"), ((), "With many seeds")])
def test_how_often_chance_decides_is_said_by_the_fewest_seeds(
        entries: list[Entry], seeds: tuple[str, ...], says: str) -> None:
    assert says in chance([replace(entries[0], seeds=n) for n in seeds])


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
