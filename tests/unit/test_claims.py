"""Claims: what decides them, their preconditions, and the scores that they are tested on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests import synthetic_runs as synthetic
from turncredit.errors import DataError
from turncredit.reporting import statistics
from turncredit.reporting.claim_scores import collapsed
from turncredit.reporting.claims import Comparison, compare, decide, tally
from turncredit.reporting.inference import Effect, cells, effect
from turncredit.reporting.reported import ClaimTest, Need
from turncredit.reporting.scores import ArmRuns, Results
from turncredit.reporting.verdicts import Evidence, evidence


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return synthetic.results(tmp_path_factory.mktemp("runs"), {"search": 6, "untrained": 1})


def test(**changes: object) -> ClaimTest:
    base = ClaimTest(1, "a", "primary", "says", "search", "final", ("answer_correct",), ("MT-PPO",), ("PPO-OR",), "all",
                     None, None, "greater", 0.0, 0.05, None, None, None, "")
    return replace(base, **changes)  # type: ignore[arg-type]


test.__test__ = False  # type: ignore[attr-defined]


# --- verdicts --------------------------------------------------------------------------------------------------------

def made(value: float, part: str = "a", *, role: str = "primary", barrier: str = "") -> Comparison:
    """A comparison with an effect that is certain, or one that a precondition forbids."""
    line, found = test(part=part, role=role), Effect(value, ((0.001, 30.0),))
    estimate = statistics.Estimate(value, value - 0.002, value + 0.002, (6, 6))
    return Comparison(line, "answer_correct", "MT-PPO", "PPO-OR", "all", estimate, found, None if barrier else evidence(
        found, line.direction, line.threshold, line.margin), barrier, "fresh", "")


UP, DOWN, SAME = 0.2, -0.2, 0.0
OUT = Comparison(test(statistic="none"), note="another paper's method")
CODE = Comparison(test(statistic="construction", part="c"), note="shown by a test")
MISSING = Comparison(test(part="b"), note="no runs of search: PPO-OR")


@pytest.mark.parametrize(("comparisons", "verdict"), [
    ([made(UP), made(UP)], "supported"), ([made(UP), made(DOWN)], "opposite"), ([made(SAME), made(SAME)], "equivalent"),
    ([made(UP), made(SAME)], "undecided"), ([made(UP), OUT], "supported"), ([made(UP), MISSING], "undecided"),
    ([made(DOWN), MISSING], "opposite"), ([OUT], "not run"), ([MISSING, OUT], "not run"), ([CODE], "by construction"),
    ([CODE, made(UP, role="secondary")], "by construction"), ([made(UP), made(DOWN, role="secondary")], "supported"),
    ([made(UP, role="descriptive")], "not decidable"), ([made(UP, barrier="at the floor")], "not decidable"),
    ([made(UP), made(DOWN, barrier="at the floor")], "supported"),  # one data set of a part
    ([made(UP), made(UP, part="b", barrier="at the floor")], "not decidable"),  # a whole part
    ([made(DOWN), made(UP, part="b", barrier="at the floor")], "opposite")])
def test_a_claim_needs_all_its_primary_comparisons(comparisons: list[Comparison], verdict: str) -> None:
    assert decide({1: comparisons})[1].verdict == verdict


def test_the_family_is_every_claim_with_runs_decidable_or_not() -> None:
    weak = replace(made(UP), found=Evidence(0.02, 0.98, 1.0))
    assert decide({1: [weak], 2: [OUT]})[1].verdict == "undecided"  # three p-values, so 0.06
    weak = replace(weak, found=Evidence(0.01, 0.99, 1.0))
    assert decide({1: [weak], 2: [OUT]})[1].verdict == "supported"
    assert decide({1: [weak], 2: [made(UP, barrier="at the floor")]})[1].verdict == "undecided"


def test_findings_are_counted_in_words() -> None:
    assert tally([made(UP), made(DOWN), made(SAME), OUT]) == "1 holds, 1 reversed, 1 within margin, 1 not run"


@pytest.mark.parametrize(("changes", "barrier"), [
    ({}, ""), ({"most": 0.3}, "at the ceiling (0.3 or more)"), ({"least": 0.95}, "at the floor (0.95 or less)"),
    ({"most": 0.7}, ""), ({"least": 0.6}, ""),  # one arm of two has room
    ({"needs": Need("closed_book", "answer_correct", 0.9)}, "needs closed_book exact match of at least 0.9"),
    ({"needs": Need("initial", "answer_correct", 0.0)}, "")])
def test_preconditions_decide_whether_a_comparison_can(results: Results, changes: dict[str, object],
                                                       barrier: str) -> None:
    [found] = compare(test(**changes), results)
    assert found.barrier.startswith(barrier)
    assert (found.barrier == "") == (barrier == "")
    assert (found.finding == "not decidable") == (barrier != "")


def test_few_runs_decide_nothing(tmp_path: Path) -> None:
    few = synthetic.results(tmp_path, {"search": 3})
    [found] = compare(test(), few)
    assert found.barrier == "3 runs an arm, 5 needed"
    assert found.estimate is not None  # shown all the same


def test_runs_of_several_base_policies_are_paired_and_pooled(tmp_path: Path) -> None:
    """Three base policies x two seeds, read from files: enough runs, and one factor for all six arms."""
    found = synthetic.results(tmp_path, {"search": 2}, synthetic.scale(2, 3))
    [compared] = compare(test(), found)
    assert compared.estimate is not None
    assert (compared.estimate.bases, compared.estimate.seeds, compared.barrier) == (3, (6, 6), "")
    runs = {name: cells(arm.final("answer_correct", found.datasets).mean(axis=1), arm.base_S)
            for name, arm in found.arms("search").items()}
    assert compared.effect == effect([runs["MT-PPO"], runs["PPO-OR"]], [1, -1], [*runs.values()])


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
    ({"statistic": "training", "first": (0.0, 0.4)}, (1 + 2) / 2 - 2),  # step 0 is left out
    ({"statistic": "training", "first": (0.5, 1.0)}, (3 + 4 + 5) / 3 - (2 + 2 + 2) / 3),
    ({"statistic": "fall", "first": (0.0, 0.2), "second": (0.5, 1.0)}, (1 - 4) - 0),
    ({"statistic": "per_question"}, 15 / 10 - 10 / 10)])
def test_windows_by_hand(monkeypatch: pytest.MonkeyPatch, changes: dict[str, object], expected: float) -> None:
    rising, flat = np.tile(np.arange(6.0), (2, 1)), np.full((2, 6), 2.0)
    arms = {"MT-PPO": arm_with(rising, "turns_mean"), "PPO-OR": arm_with(flat, "turns_mean")}
    monkeypatch.setattr(Results, "arm", lambda self, experiment, arm: arms[arm])
    found = compare(test(metrics=("turns_mean",), datasets="", **changes), Results(synthetic.scale(), {}))
    assert found[0].estimate is not None
    assert found[0].estimate.value == pytest.approx(expected)


def test_curves_are_held_against_their_start_and_the_expert(monkeypatch: pytest.MonkeyPatch, results: Results) -> None:
    arm = arm_with(np.array([[0.3, 0.1, 0.2, 0.8], [0.3, 0.2, 0.1, 0.2]]))
    expert = results.untrained("expert", "search")
    assert expert is not None
    goal = expert.final("answer_correct", ["facts"]).mean() / 2
    monkeypatch.setattr(Results, "arm", lambda self, experiment, name: arm)
    line = test(arms_b=(), datasets="first", first=(0.3, 0.7))
    [below] = compare(replace(line, statistic="below_start"), results)
    [steps] = compare(replace(line, statistic="steps_to_half"), results)
    assert below.estimate is not None
    assert steps.estimate is not None
    assert below.estimate.value == pytest.approx(0.3 - 0.15)
    assert 0.3 < goal <= 0.8
    assert steps.estimate.value == (3 + 3) / 2  # reached in the last step, or never: the last step


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
    assert found[0].finding == "not run"
    assert "no step between" in found[0].note
    found = compare(test(datasets="sokoban"), results)
    assert "no data set sokoban" in found[0].note
    with pytest.raises(DataError, match="did you mean 'final'"):
        compare(test(statistic="finall"), results)
