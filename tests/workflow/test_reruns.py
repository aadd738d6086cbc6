"""Which jobs a later call runs again. A stub stands in for ``turncredit`` and makes the output files, empty.

``test_smoke.py`` runs the real commands.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.workflow.conftest import ROOT, Clone, make_clone
from turncredit.config.credit_bench import CREDIT_BENCH
from turncredit.reporting.catalogue import BENCH_FIGURES, FIGURES, TABLES

FRESH = ("--config", "scale=smoke", "runs=fresh")


def with_stub(root: Path) -> Clone:
    """A clone at ``root``, with an environment in which ``turncredit`` is the stub."""
    make_clone(root)
    own = Path(sys.prefix)
    environment = root / ".stub"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").symlink_to(own / "bin" / "python")
    (environment / "bin" / "turncredit").symlink_to(ROOT / "tests" / "workflow" / "stub.sh")
    shutil.copy(own / "pyvenv.cfg", environment)
    (environment / "lib").symlink_to(own / "lib")
    return Clone(root, python=environment / "bin" / "python")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
    clone = with_stub(tmp_path_factory.mktemp("reruns") / "clone")
    clone.snakemake(*FRESH)
    yield clone
    shutil.rmtree(clone.root)


@pytest.fixture
def later(finished: Clone, tmp_path: Path) -> Clone:
    """A copy of the finished clone with its file times, in a folder whose name has a space."""
    shutil.copytree(finished.root, tmp_path / "a clone", symlinks=True)
    return Clone(tmp_path / "a clone", python=tmp_path / "a clone" / ".stub" / "bin" / "python")


def test_everything_is_made_from_start_to_end(finished: Clone) -> None:
    for name in FIGURES:
        assert (finished.root / f"figures/smoke/{name}.pdf").exists()
    for name in TABLES:
        assert (finished.root / f"paper_tables/smoke/{name}.tex").exists()
    assert (finished.root / "paper_tables/smoke/headline.txt").exists()


def test_a_second_run_does_nothing_even_in_another_place(later: Clone) -> None:
    """So no parameter of a rule holds a path or a time."""
    assert later.jobs(*FRESH) == {}


def test_a_comment_reruns_nothing(later: Clone) -> None:
    for name in ("config/smoke.yaml", "src/turncredit/training/loop.py", "Snakefile", "workflow/rules/train.smk"):
        path = later.root / name
        path.write_text(path.read_text() + "\n# a comment\n")
    assert later.jobs(*FRESH) == {}


def test_editing_the_drawing_code_only_draws(later: Clone) -> None:
    path = later.root / "src/turncredit/reporting/figures/style.py"
    path.write_text(path.read_text() + "\n# a comment\n")
    assert set(later.jobs(*FRESH)) == {"table", "audit_table", *(f"figure_{name}" for name in FIGURES)}


def test_a_change_of_science_reruns_exactly_the_runs_that_it_touches(later: Clone) -> None:
    edit(later, "overrides: {rewards: {search_cost: 0.0}}", "overrides: {rewards: {search_cost: 0.05}}")
    jobs = later.jobs(*FRESH)
    assert (jobs["train"], jobs["evaluate"], jobs["collect"]) == (1, 1, 1)
    assert not {"world", "build_index", "base_policy"} & set(jobs)


def test_a_change_of_the_world_reruns_everything(later: Clone) -> None:
    edit(later, "cities: 100", "cities: 101")
    jobs = later.jobs(*FRESH)
    assert jobs["world"] == jobs["build_index"] == jobs["base_policy"] == 1
    assert jobs["train"] == jobs["evaluate"] == 14


def test_more_seeds_train_only_the_new_ones(later: Clone) -> None:
    jobs = later.jobs(*FRESH, "seeds=2")
    assert jobs["train"] == jobs["evaluate"] == 14
    assert "world" not in jobs


def test_an_evaluation_is_made_again_from_the_final_policy_without_training(later: Clone) -> None:
    evaluation = "results/smoke/search/MT-PPO/base-0/seed-0/evaluation.csv"
    (later.root / evaluation).unlink()
    assert later.jobs(evaluation, *FRESH) == {"evaluate": 1}


def test_checkpoints_that_were_deleted_are_not_missed(later: Clone) -> None:
    shutil.rmtree(later.root / "checkpoints")
    assert later.jobs(*FRESH) == {}


def test_shipping_copies_runs_and_then_the_pages_drawn_from_them(later: Clone) -> None:
    later.snakemake("ship_runs", *FRESH)
    shipped = later.root / "results/shipped/smoke"
    assert {p.name for p in shipped.iterdir()} == {
        "untrained", "search", "two_turn", "ablation", "placement", CREDIT_BENCH}
    assert (shipped / "search" / "evaluation.csv.gz").exists()
    later.snakemake("ship_pages", "--config", "scale=smoke", "runs=shipped")
    assert {p.stem for p in (later.root / "figures/shipped/smoke").iterdir()} == {*FIGURES, *BENCH_FIGURES}
    assert {p.stem for p in (later.root / "paper_tables/shipped/smoke").iterdir()} == {*TABLES, "audit", "headline"}


def edit(clone: Clone, old: str, new: str) -> None:
    path = clone.root / "config" / "smoke.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
