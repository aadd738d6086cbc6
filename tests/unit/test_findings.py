"""Findings say what the runs show: each sentence is built from runs whose truth is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests import synthetic_runs as synthetic
from turncredit.config.load import load_scale
from turncredit.reporting import samples
from turncredit.reporting.arm_labels import PAID_ONCE, arm_labels, changes_of, factors
from turncredit.reporting.factor_effects import main_effects, pairs_of_arms
from turncredit.reporting.figures.builders import draw
from turncredit.reporting.findings import (
    ablation_sentences,
    above_the_expert,
    changes,
    collapses,
    findings,
    leader,
    pairs_decided,
    ranking,
    same_order,
    without_searches,
)
from turncredit.reporting.outcomes import AREA, FORMAT, MATCH, SEARCHES, STEPS, measured
from turncredit.reporting.reported import read_reported
from turncredit.reporting.runs import Runs
from turncredit.reporting.samples import Sample
from turncredit.reporting.scores import Results
from turncredit.reporting.statistics import Estimate

ROOT = Path(__file__).parents[2]


def sample(level: float, spread: float = 0.01, runs: int = 6, seed: int = 0) -> Sample:
    """Runs whose mean is exactly ``level``."""
    noise = np.random.default_rng(seed).normal(size=(runs, 1))
    return Sample(level + spread * (noise - noise.mean()), np.zeros(runs, dtype=np.int64))


def changed(results: Results, experiment: str, levels: Mapping[str, float], column: str,
            step: Callable[[pd.Series], pd.Series] = lambda steps: steps >= 0) -> Results:
    """The same runs, but for a validation or training column that is one number for each arm at some steps."""
    runs = results.runs[experiment]
    value = runs.metrics["arm"].map(levels).where(step(runs.metrics["step"]), runs.metrics[column])
    metrics = runs.metrics.assign(**{column: value.where(runs.metrics[column].notna())})
    return replace(results, runs={**results.runs, experiment: replace(runs, metrics=metrics)})


# --- samples ---------------------------------------------------------------------------------------------------------

def test_pairs_are_separated_after_holms_method() -> None:
    found = samples.pairs({"a": sample(0.5), "b": sample(0.8, seed=1), "c": sample(0.65, spread=0.5, seed=2)})
    assert [(pair.high, pair.low) for pair in found if pair.separated] == [("b", "a")]
    assert found[0].gap == samples.difference(sample(0.8, seed=1), sample(0.5))
    assert samples.winner({"a": sample(0.5), "b": sample(0.8, seed=1)}) == "b"
    assert samples.winner({"a": sample(0.5), "b": sample(0.8, seed=1)}, sign=-1) == "a"
    assert samples.winner({"a": sample(0.5), "b": sample(0.501, spread=0.3, seed=1)}) is None


def test_readings_are_compared_pair_by_pair() -> None:
    text = {"a": sample(0.2), "b": sample(0.5, seed=1), "c": sample(0.8, seed=2)}
    code = {"a": sample(0.2, seed=3), "b": sample(0.9, seed=4), "c": sample(0.4, spread=0.5, seed=5)}
    opposite = {"a": sample(0.8, seed=3), "b": sample(0.5, seed=4)}
    assert same_order({AREA: {"text": text, "code": code}, MATCH: {"text": text, "code": opposite}}) == (
        "Pairs of arms that are separated under the two readings: area 1 under both, 2 under `text` only, 0 under "
        "`code` only, 0 in opposite order; exact match 0 under both, 2 under `text` only, 0 under `code` only, 1 in "
        "opposite order.")
    assert same_order({AREA: {"text": text}}) == ""


def test_equal_arms_are_seldom_separated() -> None:
    """All pairs of six arms from one distribution: some pair is separated in about 5 % of experiments."""
    rng = np.random.default_rng(0)
    false = 0
    for _ in range(200):
        arms = {name: Sample(rng.normal(size=(8, 1)), np.zeros(8, dtype=np.int64)) for name in "abcdef"}
        false += any(pair.separated for pair in samples.pairs(arms))
    assert false <= 20


def test_margins_are_those_of_the_claims() -> None:
    tests = read_reported(ROOT / "paper_tables/reported").tests
    for outcome, statistic, metric in (
            (AREA, "validation", "answer_correct"), (STEPS, "steps_to_half", "answer_correct"),
            (MATCH, "final", "answer_correct"), (FORMAT, "final", "format_correct"),
            (SEARCHES, "training", "searches_mean")):
        margins = {test.margin for test in tests if test.statistic == statistic and metric in test.metrics
                   and test.direction != "similar" and test.margin is not None and test.experiment != "two_turn"}
        assert outcome.margin in margins, outcome.key


# --- sentences -------------------------------------------------------------------------------------------------------

def test_the_leader_is_named_with_all_arms_that_are_not_separated_from_it() -> None:
    arms = {"A": sample(0.9), "B": sample(0.899, seed=1), "C": sample(0.5, seed=2)}
    assert leader(arms, AREA) == ("Exact match is learnt fastest by A (area under the validation curve, step 0 left "
                                  "out: 0.900), not separated from B.")
    assert leader({"A": arms["A"], "C": arms["C"]}, AREA).endswith("separated from every other arm.")
    assert leader({"A": arms["A"], "B": arms["B"]}, AREA).endswith("separated from no other arm.")


def test_a_ranking_puts_the_best_first_and_counts_pairs() -> None:
    arms = {"A": sample(10, 0.1), "B": sample(5, 0.1, seed=1), "C": sample(10.2, 1.0, seed=2)}
    text = ranking(arms, STEPS)  # fewer steps are better
    assert text.startswith("Steps to half of the expert's score: B 5.0, A 10.0, C 10.2; 2 of 3 pairs are separated, ")
    assert ranking({"A": arms["A"]}, STEPS) == ""


def test_pairs_are_separated_within_the_margin_or_undecided() -> None:
    arms = {"A": sample(0.9, 0.005), "B": sample(0.9, 0.005, seed=1), "C": sample(0.5, 0.005, seed=2),
            "D": sample(0.7, 0.5, seed=3)}
    assert pairs_decided({MATCH: samples.pairs(arms)}).endswith("of 6: exact match 2 / 1 / 3.")


def test_a_change_is_sorted_by_its_intervals() -> None:
    found = {AREA: Estimate(-0.1, -0.2, -0.01, (5, 5)), MATCH: Estimate(0.0, -0.01, 0.015, (5, 5)),
             SEARCHES: Estimate(0.1, -0.5, 0.7, (5, 5))}
    assert changes("X", found) == ("X changes area by -0.100 [-0.200, -0.010]; within the margin: exact match; "
                                   "undecided: searches.")
    assert changes("X", {SEARCHES: found[SEARCHES]}) == "X changes nothing for certain; undecided: searches."


def test_the_area_leaves_step_0_out_and_half_is_reached_at_a_validated_step(results: Results) -> None:
    low = {arm: 0.0 for arm in results.arm_names("search")}
    late = results
    for name in ("facts", "bridge"):
        column = f"validation_{name}_answer_correct"
        late = changed(late, "search", low, column, lambda steps: (steps > 0) & (steps < 15))
        late = changed(late, "search", {arm: 0.9 for arm in low}, column, lambda steps: steps >= 15)
    for arm, found in measured(STEPS, late, "search").items():
        assert found.score_S_D.tolist() == [[15.0]] * 3, arm
    for arm, found in measured(AREA, late, "search").items():  # steps 5 and 10 of six have 0
        assert found.value == pytest.approx(0.9 * 4 / 6), arm
    raised = changed(late, "search", {arm: 1.0 for arm in low}, "validation_facts_answer_correct", lambda s: s == 0)
    assert measured(AREA, raised, "search")["MT-PPO"].value == pytest.approx(0.9 * 4 / 6)


def test_factors_are_read_from_the_configuration() -> None:
    scale = load_scale("mini", ROOT / "config")
    assert factors(scale, "factorial")["critic-full-per_turn"] == {
        "estimator": "critic", "placement": "per turn", "content": "full", "rollout": "single"}
    assert factors(scale, "readings")["MT-PPO-code"]["reading"] == "code"  # and none of the keys that it sets
    assert ("MT-PPO", "MT-PPO-code") in pairs_of_arms(factors(scale, "readings"), "reading", "text", "code")
    assert arm_labels(scale, "readings")["PPO-OR-code"] == "PPO-OR, code"
    assert arm_labels(scale, "factorial")["tree-full-terminal"] == "full, terminal, group, tree"


def test_every_main_effect_of_the_factorial_is_the_planted_one() -> None:
    scale = load_scale("mini", ROOT / "config")
    level = {"outcome": 0.0, "merged": 0.05, "retrieval": 0.2, "full": 0.1, "terminal": 0.0, "delayed": 0.03,
             "per turn": 0.02, "group": 0.0, "critic": 0.3, "single": 0.0, "chains": 0.0, "tree": -0.05}
    metrics = pd.DataFrame([
        {"experiment": "factorial", "arm": arm, "seed": seed, "step": step, "base": 0,
         **{f"validation_{d}_answer_correct": 0.3 + 0.001 * seed + sum(
             level[word] for key, word in found.items() if key != "placement" or found["content"] not in PAID_ONCE)
            for d in scale.in_domain}}
        for arm, found in factors(scale, "factorial").items() for seed in range(4) for step in (0, 5)])
    evaluation = metrics[metrics["step"] == 5].assign(
        dataset=scale.in_domain[0], question_id="q", decoding="greedy", answer_correct=1.0)
    found = Results(scale, {"factorial": Runs("factorial", metrics, evaluation, {}, "fresh")})
    effects = {(e.factor, e.low, e.high): (round(e.estimate.value, 6), e.pairs)
               for e in main_effects(found, "factorial", (AREA,))}
    assert effects == {  # a content that is paid once meets every placement of the other: 0, 0.03 and 0.02
        ("content", "outcome", "full"): (round(0.1 + 0.05 / 3, 6), 9),
        ("content", "merged", "full"): (round(0.05 + 0.05 / 3, 6), 6),
        ("content", "retrieval", "full"): (-0.1, 2), ("placement", "terminal", "per turn"): (0.02, 3),
        ("placement", "delayed", "per turn"): (-0.01, 4), ("estimator", "group", "critic"): (0.3, 5),
        ("rollout", "chains", "tree"): (-0.05, 4)}


def test_labels_come_from_the_overrides() -> None:
    scale = synthetic.scale()
    assert arm_labels(scale, "search") == {arm: arm for arm in scale.experiments["search"].arms}
    assert arm_labels(scale, "ablation")["lambda-0.0"] == "λ_s = 0"
    assert changes_of(scale, "ablation")["turns-5"] == "N_max = 5 instead of 4"
    assert arm_labels(scale, "placement")["retrieval-per_turn"] == "retrieval, per turn"


def test_each_arm_of_the_ablation_is_compared_with_the_first(results: Results) -> None:
    levels = {"lambda-0.1": 0.4, "lambda-0.0": 0.2, "turns-5": 0.4, "turns-6": 0.4}
    found = results
    for name in ("facts", "bridge"):
        found = changed(found, "ablation", levels, f"validation_{name}_answer_correct")
    assert ablation_sentences(found, (AREA,)) == [
        "λ_s = 0 instead of 0.1 changes area by -0.200 [-0.200, -0.200].",
        "N_max = 5 instead of 4 changes nothing for certain; within the margin: area.",
        "N_max = 6 instead of 4 changes nothing for certain; within the margin: area."]


def test_arms_above_the_expert_are_named(results: Results) -> None:
    runs = results.runs["untrained"]
    evaluation = runs.evaluation.assign(answer_correct=runs.evaluation["answer_correct"].where(
        runs.evaluation["dataset"] != "bridge", 0.0))
    weak = replace(results, runs={**results.runs, "untrained": replace(runs, evaluation=evaluation)})
    [sentence] = above_the_expert(weak)
    assert f"`bridge` (0.000): {', '.join(results.arm_names('search'))}" in sentence


def test_findings_have_sentences_for_what_was_run_only(results: Results) -> None:
    reported = read_reported(ROOT / "paper_tables/reported")
    everything = findings(results, reported)
    assert "Two turns" in everything
    search = findings(Results(results.scale, {"search": results.runs["search"]}), reported)
    assert {*everything} - {*search} == {
        "Content, placement, sampling, reading", "Search cost and turn limit", "Two turns"}
    assert findings(Results(results.scale, {}), reported) == {}
    assert collapses(results).endswith("): 0 of 18.")


def test_runs_that_gave_up_searching_are_counted_by_arm(results: Results) -> None:
    runs = results.runs["search"]
    evaluation = runs.evaluation
    lost = (evaluation["arm"] == "MT-PPO") & (evaluation["seed"] > 0)
    given_up = replace(results, runs={"search": replace(runs, evaluation=evaluation.assign(
        searches=evaluation["searches"].where(~lost, 0)))})
    [sentence] = without_searches(given_up, ["search"])
    seeds = evaluation["seed"].nunique()
    assert f"MT-PPO {seeds - 1} of {seeds}, no run of GRPO-OR" in sentence
    assert without_searches(results, ["ablation", "none"]) == without_searches(results, ["ablation"])


def test_several_base_policies_are_compared_within_each(tmp_path: Path) -> None:
    """Base policy 1 is better by 0.3 for every arm, which adds nothing to the error of a difference."""
    found = synthetic.results(tmp_path, {"search": 2}, synthetic.scale(seeds=2, bases=2))
    runs = found.runs["search"]
    level = runs.metrics["arm"].map({arm: 0.1 + 0.05 * place for place, arm in enumerate(found.arm_names("search"))})
    lifted = level + 0.3 * runs.metrics["base"] + 0.001 * runs.metrics["seed"]
    validated = lifted.where(runs.metrics["step"] % 5 == 0)
    columns = {f"validation_{d}_answer_correct": validated for d in ("facts", "bridge")}
    results = replace(found, runs={"search": replace(runs, metrics=runs.metrics.assign(**columns))})
    arms = measured(AREA, results, "search")
    assert arms["MT-PPO"].base_S.tolist() == [0, 0, 1, 1]
    widest = samples.mean(arms["MT-PPO"])
    assert widest.bases == 2
    assert widest.low is not None
    assert widest.low < 0.1
    assert all(pair.separated for pair in samples.pairs(arms))
    assert leader(arms, AREA).endswith("separated from every other arm.")
    figure, data = draw("learning", results.runs, results.scale, read_reported(ROOT / "paper_tables/reported"))
    assert {f"base {base} seed {seed}" for base in (0, 1) for seed in (0, 1)} <= {*data.columns}
    assert "MT-PPO (n = 4)" in "\n".join(text.get_text() for text in figure.legends[0].get_texts())
