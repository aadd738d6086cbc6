"""The audit: verdicts follow the intervals, every claim and number has its row, and nothing is made up."""

from __future__ import annotations

import fnmatch
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from tests import synthetic_runs as synthetic
from turncredit.config.load import load_scale
from turncredit.errors import DataError
from turncredit.reporting import statistics
from turncredit.reporting.audit import audit
from turncredit.reporting.audit_page import markdown, save
from turncredit.reporting.entries import Entry, frame
from turncredit.reporting.reported import Reported, read_reported
from turncredit.reporting.scores import Results
from turncredit.reporting.summary import ARMS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "paper_tables/reported"


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
            assert all(fnmatch.filter(arms, name) for name in (*line.arms_a, *line.arms_b)), line
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
    assert {key for ids in ARMS.values() for key in ids} <= {*values}


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


def test_the_page_says_what_the_entries_say(entries: list[Entry], results: Results, tmp_path: Path) -> None:
    page = markdown(entries, results.scale)
    best = next(e for e in entries if e.id == "t2-mt-ppo-average-answer-correct")
    unknown = next(e for e in entries if e.id == "search-mt-grpo-average-answer-correct")
    assert f"0.447 | {best.shown}" in page
    assert f"not reported | {unknown.shown}" in page
    assert "not comparable" in page.lower()
    assert page.index("- *supported* if all of its primary comparisons") < page.index("| verdict at scale mini |")
    assert page.index("| verdict at scale mini |") < page.index("## Comparisons")
    save(entries, results.scale, tmp_path)
    kept = pd.read_csv(tmp_path / "audit.csv", keep_default_na=False)
    assert kept["verdict"].tolist() == frame(entries)["verdict"].tolist()
    assert (tmp_path / "audit.md").read_text() == page
