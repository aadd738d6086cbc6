"""A dry run of scale paper: every job is listed, with the settings that the paper states."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.workflow.conftest import ROOT, Clone, make_clone
from turncredit.config.load import RunConfig, Scale, load_scale
from turncredit.data.sources import load_registry
from turncredit.reporting.catalogue import FIGURES, TABLES

COMMAND = re.compile(r"turncredit train --scale paper --experiment (\S+) --arm (\S+) --base 0 --seed (\d+)")


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> str:
    clone = make_clone(tmp_path_factory.mktemp("paper") / "clone")
    return clone.snakemake("--dry-run", "--printshellcmds", "--config", "scale=paper").stdout


@pytest.fixture(scope="module")
def scale() -> Scale:
    return load_scale("paper", ROOT / "config")


@pytest.fixture(scope="module")
def runs(listed: str, scale: Scale) -> list[RunConfig]:
    """The configuration of each training job."""
    return [scale.run(experiment, arm, int(seed)) for experiment, arm, seed in COMMAND.findall(listed)]


def test_the_dry_run_lists_every_job_of_the_paper(listed: str, scale: Scale) -> None:
    counted = {name: int(n) for name, n in re.findall(r"^(\w+) +(\d+)$", listed, re.MULTILINE)}
    trained = 6 * 5 + 3 * 10 + 3 * 5 + 3 * 5  # search, two_turn, and what ablation and placement do not share
    figures = {name: n for name, n in counted.items() if name.startswith("figure_")}
    assert figures == {f"figure_{name}": 1 for name in FIGURES}
    assert {name: n for name, n in counted.items() if name not in figures} == {
        "train": trained, "evaluate": trained, "evaluate_initial": 2, "evaluate_checkpoint": 4, "pretrained_policy": 1,
        "pretrained_checkpoint": 4, "world": 1, "passage_table": 1, "build_faiss_index": 1, "build_further_index": 1,
        "collect": 5, "table": len(TABLES), "audit_table": 1, "all": 1,
        "fetch_source": len(load_registry(ROOT).needed(scale)), "total": sum(counted.values()) - counted["total"]}


def test_every_run_is_trained_once_with_its_seeds(runs: list[RunConfig]) -> None:
    names = [(run.experiment, run.arm, run.seed) for run in runs]
    assert len({*names}) == len(names) == 90
    assert {seed for experiment, _, seed in names if experiment == "two_turn"} == {*range(10)}
    assert {seed for experiment, _, seed in names if experiment != "two_turn"} == {*range(5)}
    assert {arm for experiment, arm, _ in names if experiment == "search"} == {
        "GRPO-OR", "GRPO-MR", "MT-GRPO", "PPO-OR", "PPO-MR", "MT-PPO"}


def test_search_runs_have_the_papers_settings(runs: list[RunConfig]) -> None:
    for run in (run for run in runs if run.experiment != "two_turn"):
        training, task = run.training, run.task
        assert (training.steps, training.trajectories_per_step, training.minibatches) == (500, 512, 2)
        assert (training.learning_rate, training.critic_learning_rate) == (1e-6, 1e-5)
        assert (training.warmup_steps, training.critic_warmup_steps) == (int(0.285 * 500), int(0.015 * 500))
        assert (training.clip_epsilon, training.kl_coefficient, training.temperature) == (0.2, 0.001, 1.0)
        assert (training.gamma, training.gae_lambda) == (1.0, 1.0)
        assert (task.top_k, task.max_context_tokens, task.max_turn_tokens, task.max_observation_tokens) == (
            3, 4096, 500, 500)
        assert run.train_on == ("nq", "hotpotqa")
        assert len(run.evaluate_on or ()) == 7
        assert (run.launch.processes, run.launch.gradient_checkpointing) == (8, True)
        assert (run.engine.kind, run.engine.tensor_parallel, run.engine.gpu_memory_utilization) == ("vllm", 4, 0.6)
    turns = {run.arm: run.task.max_turns for run in runs if run.experiment in ("search", "ablation")}
    assert {*turns.values()} == {4, 5, 6}
    assert (turns["turns-5"], turns["turns-6"], turns["MT-PPO"]) == (5, 6, 4)
    costs = {run.arm: run.rewards.model_dump()["search_cost"] for run in runs if run.experiment == "ablation"}
    assert costs == {"lambda-0.0": 0.0, "turns-5": 0.1, "turns-6": 0.1}


def test_two_turn_runs_have_the_papers_settings(runs: list[RunConfig]) -> None:
    for run in (run for run in runs if run.experiment == "two_turn"):
        training = run.training
        assert training.steps * training.inner_epochs * training.minibatches == 300
        assert (training.group_size, training.trajectories_per_step, training.inner_epochs) == (21, 16 * 21, 2)
        assert (training.learning_rate, training.kl_coefficient, training.max_grad_norm) == (1e-6, 0.0, 0.1)
        assert (training.adam_beta1, training.adam_beta2, training.temperature) == (0.9, 0.99, 0.9)
        assert (run.task.max_turns, run.task.top_k, run.task.max_context_tokens) == (2, 1, 2048)
        assert (run.train_on, run.evaluate_on, run.retriever) == (("triviaqa_rc",), ("triviaqa_rc",), "kilt")
        assert (run.launch.processes, run.engine.mode, run.engine.gpus) == (7, "server", 1)


def test_an_imported_run_is_plotted_and_not_trained(clone: Clone) -> None:
    figure = "figures/mini/fig3_training_dynamics.pdf"
    run = clone.root / "results/imported/mini/search/MT-PPO/base-0/seed-0"
    run.mkdir(parents=True)
    for name in ("manifest.json", "metrics.csv", "evaluation.csv"):
        (run / name).touch()
    jobs = clone.jobs(figure, "--config", "runs=fresh", "bases=1", "seeds=3")
    assert (jobs["train"], jobs["evaluate"]) == (6 * 3 - 1, 6 * 3 - 1)
    assert "evaluate_imported" not in jobs
    (run / "evaluation.csv").unlink()
    (run / "policy").mkdir()
    Path(run / "metrics.csv").unlink()
    jobs = clone.jobs(figure, "--config", "runs=fresh", "bases=1", "seeds=3")
    assert (jobs["train"], jobs["evaluate_imported"]) == (6 * 3 - 1, 1)
