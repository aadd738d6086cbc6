"""Dry runs of the workflow: which runs are trained, and whose runs are plotted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.workflow.conftest import ROOT, Clone, touch
from turncredit.config.load import Scale, load_scale, scale_names
from turncredit.workflow.runs import COLLECTED

SCALES = scale_names(ROOT / "config")
FIGURE = "figures/mini/fig3_training_dynamics.pdf"


def distinct_arms(scale: Scale, *experiments: str) -> set[tuple[str, str]]:
    """Arms to train: an arm with ``same_as`` is trained once."""
    return {scale.identical(name, arm) for name in experiments for arm in scale.experiments[name].arms}


@pytest.mark.parametrize("name", SCALES)
def test_everything_trains_each_distinct_arm_once_a_base_policy_and_seed(clone: Clone, name: str) -> None:
    scale = load_scale(name, ROOT / "config")
    arms = distinct_arms(scale, *scale.experiments)
    runs = sum(scale.runs_of(experiment) for experiment, _ in arms)
    jobs = clone.jobs("--config", f"scale={name}", "runs=fresh")
    assert (jobs["train"], jobs["evaluate"]) == (runs, runs)
    assert jobs["collect"] == len(scale.experiments) + 1  # the untrained policies are collected too
    assert jobs["world"] == jobs["audit_table"] == 1
    assert jobs.get("base_policy", 0) + jobs.get("pretrained_policy", 0) == scale.base_policies
    untrained = len(["initial", "closed_book", *(["expert"] if scale.warm_start else [])])
    assert jobs["evaluate_initial"] == untrained * scale.base_policies
    indexes = sum(jobs.get(rule, 0) for rule in ("build_index", "build_further_index", "build_faiss_index"))
    assert indexes == 1 + len(scale.retrievers)


def test_each_base_policy_is_a_job_of_its_own_and_every_arm_is_trained_from_each(clone: Clone) -> None:
    jobs = clone.jobs("--config", "scale=smoke", "experiments=search", "runs=fresh", "bases=3", "seeds=2")
    assert (jobs["base_policy"], jobs["evaluate_initial"]) == (3, 3 * 3)
    assert jobs["train"] == jobs["evaluate"] == 6 * 3 * 2
    run = "results/smoke/search/MT-PPO/base-2/seed-1/metrics.csv"
    assert clone.jobs(run, "--config", "scale=smoke") == {
        "world": 1, "build_index": 1, "tokenizer": 1, "base_policy": 1, "train": 1}


def test_one_experiment_trains_its_own_arms_only(clone: Clone) -> None:
    scale = load_scale("mini", ROOT / "config")
    bases, seeds = scale.base_policies, scale.seeds_of("search")
    assert clone.jobs("--config", "experiments=search", "runs=fresh")["train"] == 6 * bases * seeds
    assert clone.jobs("--config", "experiments=search", "runs=fresh", "bases=1", "seeds=2")["train"] == 6 * 2


def test_seeds_can_differ_between_experiments(clone: Clone) -> None:
    scale = load_scale("mini", ROOT / "config")
    jobs = clone.jobs("--config", "runs=fresh", "bases=1",
                      "seeds={search: 2, two_turn: 2, ablation: 1, factorial: 1, readings: 1}")
    others = len(distinct_arms(scale, "search", "ablation", "factorial", "readings")) - 6
    assert jobs["train"] == 2 * 6 + 2 * 3 + others


def test_a_fresh_clone_plots_a_figure_from_shipped_runs_alone(clone: Clone, ship: Callable[..., None]) -> None:
    ship("search")
    assert clone.jobs(FIGURE) == {"figure_fig3_training_dynamics": 1}
    assert "results/shipped/mini/search" in clone.snakemake("--dry-run", FIGURE).stdout


def test_fresh_runs_are_trained_although_runs_are_shipped(clone: Clone, ship: Callable[..., None]) -> None:
    ship("search")
    assert clone.jobs(FIGURE, "--config", "runs=fresh", "bases=1", "seeds=3")["train"] == 6 * 3


def test_auto_prefers_fresh_runs_once_all_exist(clone: Clone, ship: Callable[..., None]) -> None:
    ship("search", "untrained")
    scale = load_scale("mini", ROOT / "config")
    runs = [clone.root / "results/mini/search" / arm / f"base-{base}" / f"seed-{seed}"
            for arm in scale.experiments["search"].arms for base in range(scale.base_policies)
            for seed in range(scale.seeds_of("search"))]
    for run in runs[:-1]:
        touch_run(run)
    assert "results/shipped/mini/search" in clone.snakemake("--dry-run", FIGURE).stdout
    touch_run(runs[-1])
    touch(clone.root / "results/mini/search")
    drawn = clone.snakemake("--dry-run", FIGURE).stdout
    assert "results/mini/search" in drawn
    assert "shipped" not in drawn
    assert clone.jobs(FIGURE) == {"figure_fig3_training_dynamics": 1}


def touch_run(run: Path) -> None:
    run.mkdir(parents=True)
    for name in ("metrics.csv", "manifest.json", "evaluation.csv"):
        (run / name).touch()


def test_shipped_runs_that_do_not_exist_are_refused(clone: Clone) -> None:
    done = clone.snakemake("--dry-run", FIGURE.replace("mini", "smoke"), "--config", "runs=shipped", check=False)
    assert done.returncode != 0
    assert "results/shipped/smoke/search: no runs are shipped\n  -> use --config runs=auto" in done.stdout


@pytest.mark.parametrize("file", COLLECTED)
def test_a_damaged_folder_of_shipped_runs_is_not_trained_again(clone: Clone, ship: Callable[..., None],
                                                               file: str) -> None:
    ship("search")
    (clone.root / "results/shipped/mini/search" / file).unlink()
    done = clone.snakemake("--dry-run", FIGURE, check=False)
    assert done.returncode != 0
    assert f"git checkout -- results/shipped/mini/search/{file}" in done.stdout


def test_fresh_runs_can_be_trained_beside_damaged_shipped_ones(clone: Clone, ship: Callable[..., None]) -> None:
    ship("search")
    (clone.root / "results/shipped/mini/search/metrics.csv").unlink()
    assert clone.jobs(FIGURE, "--config", "runs=fresh", "bases=1", "seeds=3")["train"] == 6 * 3


def test_a_page_whose_runs_neither_exist_nor_are_requested_is_refused(clone: Clone) -> None:
    done = clone.snakemake("--dry-run", "figures/smoke/fig1_tool_use.pdf", "--config", "scale=smoke",
                           "experiments=search", check=False)
    assert done.returncode != 0
    assert "no runs of two_turn at scale 'smoke' exist, and this call does not request them" in done.stdout


def test_an_experiment_without_runs_that_is_not_requested_is_left_out(clone: Clone) -> None:
    """It is not trained; its pages and rows of the audit say "not run"."""
    output = clone.snakemake("--dry-run", "--config", "scale=smoke", "experiments=two_turn").stdout
    assert "results/smoke/search" not in output
    assert "figures/smoke/fig3_training_dynamics" not in output


def test_reporting_code_is_an_input_of_pages_only(clone: Clone) -> None:
    """So an edit of it runs no training again."""
    listed = clone.snakemake("--dry-run", "--config", "scale=smoke").stdout
    readers = {block.split(":")[0] for block in listed.split("\n\n") if "src/turncredit" in block}
    assert len(readers) <= 3, readers


def test_commands_and_parameters_hold_no_absolute_path(clone: Clone) -> None:
    output = clone.snakemake("--dry-run", "--printshellcmds", "--config", "scale=smoke").stdout
    commands = [line for line in output.splitlines() if "turncredit " in line]
    assert commands
    assert not [line for line in commands if str(clone.root) in line or " /" in line]


def test_the_workflow_passes_snakemakes_lint(clone: Clone) -> None:
    assert "good condition" in clone.snakemake("--lint").stdout


@pytest.mark.parametrize(("arguments", "says"), [
    (["--config", "scale=min"], ["no scale 'min'", "did you mean 'mini'?"]),
    (["--config", "sclae=mini"], ["sclae", "did you mean 'scale'?"]),
    (["--config", "runs=fersh"], ["'fersh' is not one of", "fresh"]),
    (["--config", "seeds=0"], ["seeds", "0"]),
    (["--config", "bases=0"], ["bases", "0"]),
    (["--config", "scale=paper", "bases=2"], ["no base policy 1 at scale 'paper'"]),
    (["--config", "seeds={serach: 3}"], ["no experiment 'serach'", "did you mean 'search'?"]),
    (["--config", "experiments=serach"], ["no experiment 'serach'", "did you mean 'search'?"]),
    (["results/mini/search/MT-PPX/base-0/seed-0/metrics.csv"], ["no arm 'MT-PPX'", "did you mean 'MT-PPO'?"]),
    (["results/mini/serach/MT-PPO/base-0/seed-0/metrics.csv"], ["no experiment 'serach'", "did you mean 'search'?"]),
    (["figures/mini/fig3_training_dynamic.pdf"],
     ["no figure 'fig3_training_dynamic'", "did you mean 'fig3_training_dynamics'?"]),
    (["figures/mini/fig3_training_dynamics.pfd"], ["ends in 'pfd'", "did you mean 'pdf'?"]),
    (["figures/mimi/fig3_training_dynamics.pdf"], ["no scale 'mimi'", "did you mean 'mini'?"]),
    (["paper_tables/mini/table2_answr.csv"], ["no table 'table2_answr'", "did you mean 'table2_answer'?"]),
    (["paper_tables/mini/audti.csv"], ["no table 'audti'", "did you mean 'audit'?"]),
])
def test_a_mistyped_call_is_refused_with_the_nearest_name(clone: Clone, arguments: list[str], says: list[str]) -> None:
    done = clone.snakemake("--dry-run", *arguments, check=False)
    assert done.returncode != 0
    for words in says:
        assert words in done.stdout


def test_a_mistyped_key_of_a_scale_stops_the_workflow_before_any_job(clone: Clone) -> None:
    path = clone.root / "config" / "mini.yaml"
    path.write_text(path.read_text().replace("\nseeds:", "\nseed:"))
    done = clone.snakemake("--dry-run", check=False)
    assert done.returncode != 0
    assert "config/mini.yaml: unknown key seed; did you mean 'seeds'?" in done.stdout


def test_the_slurm_profile_is_found_by_its_name_from_the_clone(clone: Clone) -> None:
    output = clone.snakemake("--profile", "slurm", "--dry-run", "all", "--config", "scale=smoke").stdout
    assert "train: search, MT-PPO, base policy 0, seed 0" in output


def test_the_credit_bench_measures_every_checkpoint_of_its_base_policies_and_only_when_asked(clone: Clone) -> None:
    bench = load_scale("mini", ROOT / "config").credit_bench
    assert bench.base_policies == 3
    for bases, measured in ((2, 2), (6, 3)):
        jobs = clone.jobs("credit_bench", "--config", "runs=fresh", f"bases={bases}")
        assert jobs["measure_credit"] == measured * len(bench.checkpoints)
    assert jobs["collect_credit_bench"] == jobs["figure_credit_alignment"] == jobs["figure_credit_prediction"] == 1
    assert "measure_credit" not in clone.jobs("--config", "runs=fresh")
