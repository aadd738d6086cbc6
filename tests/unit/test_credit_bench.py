"""The credit bench finds what is known: exact gradients, Q - V, unbiased estimators, exact critics, useless credits."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import pytest
import torch

from tests import small_run, two_step_game
from tests.trees import random_tree
from tests.unit.test_task_plugin import GAME as TOY
from tests.unit.test_task_plugin import scale as toy_scale
from turncredit.config.algorithm import Algorithm
from turncredit.config.credit_bench import COLLECTED, COLUMNS, FILES, CreditBenchConfig
from turncredit.config.training import TrainingConfig
from turncredit.credit.base import GroupEstimator, TokenCredit, TrajectoryRewards
from turncredit.credit.registry import ESTIMATORS, ROLLOUTS
from turncredit.credit.rows import rows_of
from turncredit.credit_bench import alignment, turn_errors
from turncredit.credit_bench.alignment import Products
from turncredit.credit_bench.arms import Creditor, fit_heads, make_arms, measure_batches, questions_per_batch
from turncredit.credit_bench.bench import Bench, run_bench
from turncredit.credit_bench.gradients import GradientSpace, policy_gradients
from turncredit.credit_bench.probes import measure_probes, state_values
from turncredit.credit_bench.records import ProbeStudy
from turncredit.credit_bench.truth import Truth, measure_truth
from turncredit.errors import CheckpointError, ConfigError
from turncredit.policy.model import token_logprobs
from turncredit.reporting import credit_bench as report
from turncredit.seeding import derive_seed
from turncredit.tasks.registry import TASKS
from turncredit.training.batch import Batch
from turncredit.training.budget import Quota
from turncredit.training.run_folder import RunPaths
from turncredit.types import Group

SIZES = CreditBenchConfig(chains=8192, chains_per_question=32, batches=24, probes=32, continuations=200, replicates=8)
PER_TURN = Algorithm(estimator="critic", placement="per_turn", content="full", rollout="single")
ARMS = {"RLOO": Algorithm(estimator="rloo", placement="terminal", content="outcome", rollout="chains"),
        "per turn": PER_TURN, "delayed": PER_TURN.model_copy(update={"placement": "delayed"})}


class Permuted(GroupEstimator):
    """Leave-one-out advantages handed to the wrong episodes, which no gradient survives."""

    def advantages(self, group: Group, rewards: Sequence[TrajectoryRewards]) -> list[list[float]]:
        outcome_L = np.array([reward.outcome for reward in rewards])
        key = derive_seed("permuted", group.item_id, *group.transcripts[0].turns[0].sampled_ids)
        wrong_L = np.random.default_rng(key).permutation(outcome_L - outcome_L.mean())
        return [[float(wrong)] * len(leaf.turns) for wrong, leaf in zip(wrong_L, group.transcripts, strict=True)]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("turncredit.credit.permuted")
    module.Permuted = Permuted  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(ESTIMATORS, "permuted", {"terminal": "permuted:Permuted"})
    monkeypatch.setitem(ROLLOUTS, "permuted", ("chains",))
    monkeypatch.setitem(TASKS, "two_step", two_step_game.GAME)
    monkeypatch.setitem(TASKS, "toy", TOY)


@pytest.fixture(scope="module")
def measured() -> tuple[GradientSpace, Truth]:
    """The truth of the game, measured once."""
    space = GradientSpace.of(two_step_game.policy(), 10**9)
    TASKS["two_step"] = two_step_game.GAME
    try:
        return space, measure_truth(two_step_game.player(space.policy), space, two_step_game.BOARDS, SIZES)
    finally:
        del TASKS["two_step"]


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a.double(), b.double(), dim=0))


# The truth ------------------------------------------------------------------------------------------------------------

def test_the_truth_is_the_exact_gradient_of_a_game_that_can_be_computed(measured: tuple[GradientSpace, Truth]) -> None:
    space, truth = measured
    gradient_M_D, value_M = two_step_game.exact_gradients(space.policy)
    assert truth.names == ("won", "shaped_return")
    for m in range(2):
        found_H_D = truth.gradient_H_M_D[:, m]
        products = Products.of(gradient_M_D[m].repeat(8, 1) + 0 * found_H_D, found_H_D)
        reached, error = alignment.jackknife(alignment.cosine_of_means, products)
        assert reached == pytest.approx(1, abs=3 * error)
        assert error < 0.06
        length = alignment.squared_length(products.truth_H_H)**0.5
        assert length == pytest.approx(float(gradient_M_D[m].norm()), rel=0.15)
        sample = truth.value_H_M[:, m]
        assert sample.mean() == pytest.approx(float(value_M[m]), abs=4 * sample.std(ddof=1) / 8**0.5)


def test_halves_of_the_truth_agree_better_with_more_episodes(measured: tuple[GradientSpace, Truth]) -> None:
    space, truth = measured
    few = measure_truth(two_step_game.player(space.policy, seed=1), space, two_step_game.BOARDS,
                        SIZES.model_copy(update={"chains_per_question": 8, "chains": 512}))
    halves = [alignment.halves_cosine(Products.of(t.gradient_H_M_D[:, 0], t.gradient_H_M_D[:, 0]).truth_H_H)
              for t in (few, truth)]
    assert halves[0] + 0.1 < halves[1]
    exact = two_step_game.exact_gradients(space.policy)[0][0]
    plain = cosine(truth.gradient_H_M_D[:, 0].mean(0), exact)
    assert plain == pytest.approx(alignment.reliability(halves[1])**0.5, abs=0.05)  # the stated attenuation


def test_a_gradient_is_the_weighted_sum_of_advantages_times_scores() -> None:
    policy = two_step_game.policy()
    player = two_step_game.player(policy)
    TASKS["two_step"] = two_step_game.GAME
    rows = rows_of(player.play(two_step_game.BOARDS[:3], (2, 1), "any"))
    batch = Batch.of(rows)
    rng = torch.Generator().manual_seed(0)
    advantage_N, weight_N = (torch.rand(len(batch.old_logprob_N), generator=rng) - shift for shift in (0.5, 0.0))
    credits = [TokenCredit(advantage_N, weight_N), TokenCredit(
        advantage_N, weight_N, ((advantage_N * weight_N).clamp(min=0), (advantage_N * weight_N).clamp(max=0)))]
    space = GradientSpace.of(policy, 10**9)
    by_loss, by_tree_loss = policy_gradients(space, batch, credits, player.config.training)
    total = torch.zeros(())
    for micro in batch.micro_batches(batch.trained, 10**6):
        logprob_N, _ = token_logprobs(policy, micro.ids_B_T, micro.attention_B_T, micro.loss_mask_B_T, 1.0)
        total = total + (logprob_N * (advantage_N * weight_N)[micro.flat_N]).sum()
    by_hand = space.flat(torch.autograd.grad(total, list(policy.parameters())))
    torch.testing.assert_close(by_loss, by_hand, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(by_tree_loss, by_hand, rtol=1e-4, atol=1e-6)
    some = GradientSpace.of(policy, 500)
    assert some.size == 500
    [part] = policy_gradients(some, batch, credits[:1], player.config.training)
    assert some.chosen_D is not None
    torch.testing.assert_close(part, by_loss[some.chosen_D])


# Arms -----------------------------------------------------------------------------------------------------------------

def test_an_unbiased_estimator_has_cosine_one_and_a_permuted_credit_zero(measured: tuple[GradientSpace, Truth]) -> None:
    space, truth = measured
    player = two_step_game.player(space.policy)
    arms = make_arms({"RLOO": ARMS["RLOO"], "permuted": ARMS["RLOO"].model_copy(update={"estimator": "permuted"})},
                     player.config.training)
    made = measure_batches(Creditor(player, space, {}), arms, two_step_game.BOARDS, (16, 1), 24, SIZES.batches)
    right, wrong = (Products.of(gradient_B_D, truth.gradient_H_M_D[:, 0]) for gradient_B_D in made.gradient_A_B_D)
    of_mean, of_batch = (alignment.jackknife(statistic, right)
                         for statistic in (alignment.cosine_of_means, alignment.cosine_of_batches))
    assert of_mean.value == pytest.approx(1, abs=3 * of_mean.error)
    assert of_mean.error < 0.1
    assert 0 < of_batch.value < of_mean.value
    permuted = alignment.jackknife(alignment.cosine_of_batches, wrong)
    assert permuted.value == pytest.approx(0, abs=3 * permuted.error)
    assert permuted.value + 5 * permuted.error < of_batch.value
    assert alignment.snr(wrong, made.tokens) < alignment.snr(right, made.tokens)


# Q - V and the exact critic -------------------------------------------------------------------------------------------

def test_probes_find_the_exact_q_and_v(measured: tuple[GradientSpace, Truth]) -> None:
    policy = measured[0].policy
    player = two_step_game.player(policy)
    probes = measure_probes(player, two_step_game.BOARDS, SIZES)
    assert (len(probes.members), probes.dropped) == (32, 0)
    scores = []
    for probe in probes.members:
        before_C, after_C, end_C = (values_C_M[:, 0] for values_C_M in state_values(player, probe, ("won",)))
        with torch.no_grad():
            known = two_step_game.exact(policy, probe.item)
        [token] = probe.transcript.turns[0].sampled_ids
        q, v = float(known.won_after_V[token]), float((known.first_V * known.won_after_V).sum())
        scores += [(sample_C.mean() - p) / max((p * (1 - p) / len(sample_C))**0.5, 1e-3)
                   for sample_C, p in ((before_C, v), (after_C, q))]
        assert set(end_C) == {two_step_game.values_of(*(turn.text for turn in probe.transcript.turns))[1]}
    assert np.square(scores).mean() < 1.6
    assert np.abs(scores).max() < 4.5


def test_an_exact_critic_has_no_bias_and_makes_placements_equal(measured: tuple[GradientSpace, Truth]) -> None:
    space, truth = measured
    player = two_step_game.player(space.policy, tokens_per_step=16)
    arms = make_arms(ARMS, player.config.training)
    probes = measure_probes(player, two_step_game.BOARDS, SIZES)
    study = ProbeStudy(player, probes.members, arms)
    creditor = Creditor(player, space, fit_heads(player, space, arms, truth.items, truth.groups))
    exact = [arm for arm in arms if arm.critic == "exact"]
    batches = study.exact_batches(creditor, exact, truth)
    assert batches is not None
    torch.testing.assert_close(*batches.gradient_A_B_D, rtol=1e-4, atol=1e-5)  # gamma = lambda = 1
    single = [arm for arm in arms if arm.critic in ("exact", "zero")]
    records = pd.DataFrame(study.credit_records(creditor, single, (1, 1), 32, SIZES.replicates))
    whole = records[(records["target"] == "paid_return") & ~records["variant"].str.contains("turn=")]
    cells = whole.set_index(["arm", "variant", "quantity"])
    value, error = cells["value"], cells["standard_error"]
    for arm in ("per turn", "delayed"):
        assert value[arm, "critic=exact", "turn_bias"] == pytest.approx(
            0, abs=3 * error[arm, "critic=exact", "turn_bias"])
        assert error[arm, "critic=exact", "turn_bias"] < 0.15
        assert value[arm, "critic=zero", "turn_bias"] > 0.3
    assert value["per turn", "critic=exact", "turn_correlation"] == pytest.approx(
        value["delayed", "critic=exact", "turn_correlation"], abs=1e-3)


# Statistics -----------------------------------------------------------------------------------------------------------

def test_both_cosines_are_corrected_for_noise() -> None:
    rng = np.random.default_rng(0)
    mean, truth = rng.normal(size=(2, 400))
    mean += 0.5 * truth
    noisy = [torch.from_numpy(centre + 4 * rng.normal(size=(40, 400))) for centre in (mean, truth)]
    products = Products.of(*noisy)
    known = mean @ truth / np.linalg.norm(mean) / np.linalg.norm(truth)
    found = alignment.jackknife(alignment.cosine_of_means, products)
    assert found.value == pytest.approx(known, abs=3 * found.error)
    assert found.error < 0.1
    single = np.mean([row @ truth / np.linalg.norm(row) / np.linalg.norm(truth) for row in noisy[0].numpy()])
    batch = alignment.jackknife(alignment.cosine_of_batches, products)
    assert batch.value == pytest.approx(single, abs=3 * batch.error)
    signal = np.square(mean).sum() / (16 * 400)
    assert alignment.snr(products, 500) == pytest.approx(2 * signal, rel=0.15)


def test_predicted_change_is_that_of_adam_and_not_of_the_gradients_scale() -> None:
    rng = torch.Generator().manual_seed(0)
    gradient_B_D, truth_H_D = torch.rand(8, 30, generator=rng) - 0.2, torch.rand(8, 30, generator=rng)
    settings = {"learning_rate": 0.1, "max_norm": 1e9}
    found = alignment.predicted_change(gradient_B_D, truth_H_D, **settings)
    scaled = alignment.predicted_change(3 * gradient_B_D, truth_H_D, **settings)
    assert scaled.value == pytest.approx(found.value, rel=1e-4)
    assert alignment.predicted_change(-gradient_B_D, truth_H_D, **settings).value == pytest.approx(-found.value)
    alike = alignment.predicted_change(gradient_B_D[:1].repeat(8, 1), truth_H_D, **settings)
    assert alike.value == pytest.approx(float(0.1 * (gradient_B_D[0].sign() * truth_H_D.mean(0)).sum()), rel=1e-4)


def test_errors_of_turns_are_those_that_were_planted() -> None:
    rng = np.random.default_rng(0)
    true_P = rng.normal(size=4000)
    half_P_2 = true_P[:, None] + 0.5 * rng.normal(size=(4000, 2))
    baseline_P = rng.normal(size=4000)
    noise_P_R = rng.normal(size=(4000, 4))

    def value(credit_P_R: np.ndarray) -> dict[str, float]:
        turns = turn_errors.TurnCredits(credit_P_R, half_P_2, np.full(4000, 0.35))
        return {name: found.value for name, found in turn_errors.measure(turns).items()}

    noisy = value(3 * (true_P[:, None] + 2 * noise_P_R))  # a factor is no error
    assert noisy["turn_bias"] == pytest.approx(0, abs=0.15)
    assert noisy["turn_variance"] == pytest.approx(4, rel=0.1)
    assert noisy["turn_correlation"] == pytest.approx(5**-0.5, rel=0.1)
    shifted = value(np.repeat((true_P + 0.7 * baseline_P)[:, None], 4, axis=1))
    assert shifted["turn_bias"] == pytest.approx(0.49, rel=0.15)
    assert shifted["turn_variance"] == pytest.approx(0, abs=1e-9)
    assert value(np.repeat(true_P[:, None], 4, axis=1))["turn_sign_error"] < 0.01
    assert value(rng.permuted(np.repeat(true_P[:, None], 4, axis=1), axis=0))["turn_correlation"] == pytest.approx(
        0, abs=0.06)
    assert value(np.zeros((4000, 4)))["turn_sign_error"] == 0.5


def test_a_prediction_that_orders_the_arms_correlates_fully() -> None:
    arms = ["A", "B", "C", "D"]
    rows = [{"arm": arm, "variant": "", "quantity": "predicted_change", "value": 0.1 * n, "standard_error": 0.01}
            for n, arm in enumerate(arms)] + [{"arm": "truth", "variant": "", "quantity": "mean", "value": 0.2,
                                               "standard_error": 0.01}]
    table = pd.DataFrame([{"scale": "s", "base": base, "checkpoint": "initial", "target": "won", "tokens": 1, **row}
                          for base in (0, 1) for row in rows])
    metrics = pd.DataFrame([{"base": base, "arm": arm, "seed": 0, "step": step,
                             "won": 0.2 if step == 1 else (0.2 + 0.1 * n**3 if step <= 10 else 1.0)}
                            for base in (0, 1) for n, arm in enumerate(arms) for step in range(1, 41)])
    found = report.predictions(table, metrics, ["won"])
    assert found["observed"].tolist() == pytest.approx([0.1 * n**3 for n in range(4)] * 2)  # step 1 and late steps: no
    plain, ranks = report.correlations(found)
    assert ranks == pytest.approx(1)
    assert 0.8 < plain < 0.95


# Whole runs -----------------------------------------------------------------------------------------------------------

def test_a_bench_of_any_task_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    scale = toy_scale(tmp_path)
    paths = RunPaths.under(tmp_path, scale.run("game", "MT-PPO", 0))
    paths.data.mkdir(parents=True)
    (paths.data / "world.json").write_text("{}")
    small_run._make_policy(paths.policy)
    output = tmp_path / "results" / "test" / "credit_bench" / "base-0" / "initial"
    run_bench(scale, tmp_path, output, quick=True, chosen=["MT-PPO", "RLOO-OR", "MT-GRPO"])
    table, first = report.read_table(output / FILES[0]), (output / FILES[0]).read_bytes()
    assert tuple(table.columns) == COLUMNS
    assert set(table["arm"]) == {"truth", "MT-PPO", "RLOO-OR", "MT-GRPO"}
    assert set(table[table["quantity"] == "cosine_batch"]["target"]) == {"solved", "distance", "shaped_return"}
    shares = table[(table["quantity"] == "variance_share") & (table["target"] == "shaped_return")]["value"]
    assert shares.sum() == pytest.approx(1, abs=1e-4)
    manifest = json.loads((output / FILES[1]).read_text())
    assert manifest["policy"]
    assert manifest["algorithms"].keys() == {"MT-PPO", "RLOO-OR", "MT-GRPO"}
    with pytest.raises(CheckpointError, match=r"MT-PPO\.step-1"):
        run_bench(scale, tmp_path, output, checkpoint="MT-PPO.step-1", quick=True)
    with pytest.raises(ConfigError, match="no arm 'MT-PO' for the credit bench"):
        run_bench(scale, tmp_path, output, chosen=["MT-PO"], quick=True)
    assert (output / FILES[0]).read_bytes() == first
    run_bench(scale, tmp_path, output, quick=True, chosen=["MT-PPO", "RLOO-OR", "MT-GRPO"])
    assert (output / FILES[0]).read_bytes() == first
    report.collect([output], output.parents[1])
    joined = report.read_table(output.parents[1] / COLLECTED[0])
    pd.testing.assert_frame_equal(joined, table)
    assert "RLOO-OR" in report.summary(joined)


@pytest.mark.parametrize("training", [TrainingConfig(tokens_per_step=9000),
                                      TrainingConfig(trajectories_per_step=9000)])
def test_a_batch_is_as_large_as_a_training_step_although_episodes_end_early(training: TrainingConfig) -> None:
    chains, trees = ([random_tree(seed, branching, 3, early=0.4) for seed in range(1500)] for branching in (1, 3))
    questions = questions_per_batch(training, (3, 3, 1), chains, 10**9)
    quota = Quota.of(training, (3, 3, 1), 4)
    assert questions * np.mean([*map(quota.cost, trees)]) == pytest.approx(quota.target, rel=0.05)


def test_sweeps_measure_the_arms_that_they_change(measured: tuple[GradientSpace, Truth]) -> None:
    space, truth = measured
    player = two_step_game.player(space.policy)
    arms = make_arms(ARMS, player.config.training)
    sizes = SIZES.model_copy(update={"sweep_batches": 4, "group_sizes": (2, 4)})
    bench = Bench(player, space, two_step_game.BOARDS, sizes, arms)
    records = pd.DataFrame(bench._sweeps(Creditor(player, space, {}), truth))
    found = [*zip(records["arm"], records["variant"], strict=True)]
    assert found == [("RLOO", "group_size=2"), ("RLOO", "group_size=4")]


def test_every_point_of_the_sweeps_is_checked_before_anything_is_sampled(measured: tuple[GradientSpace, Truth]) -> None:
    """A list of branching for more turns than a point has is cut: the bench failed on it at its end."""
    space, _ = measured
    player = two_step_game.player(space.policy)
    config = player.config
    longer = config.model_copy(update={"training": config.training.model_copy(update={"tree_branching": (2, 2)}),
                                       "task": config.task.model_copy(update={"max_turns": 4})})
    tree = Algorithm(estimator="group", placement="per_turn", content="full", rollout="tree")
    arms = make_arms({"MT-GRPO": tree}, longer.training)
    sizes = SIZES.model_copy(update={"group_sizes": (), "tree_branchings": (), "turn_limits": (2, 3)})
    bench = Bench(replace(player, config=longer), space, two_step_game.BOARDS, sizes, arms)
    assert [(name, training.tree_branching, task.max_turns) for name, training, task in bench.sweep_points()] == [
        ("max_turns=2", (2,), 2), ("max_turns=3", (2, 2), 3)]
