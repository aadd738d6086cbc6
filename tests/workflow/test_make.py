"""The commands of the Makefile: what they ask for, and what they do not do twice."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.workflow.conftest import ROOT, Clone


@pytest.fixture
def installed(clone: Clone) -> Clone:
    """A clone in which `make setup` has been run."""
    (clone.root / ".venv").mkdir()
    (clone.root / ".venv" / ".installed").touch()
    return clone


def planned(clone: Clone, *arguments: str) -> str:
    """What make would run."""
    return clone.run("make", "--dry-run", *arguments).stdout


def test_an_old_python_is_refused_by_name(clone: Clone) -> None:
    old = clone.root / "old-python"
    old.write_text('#!/bin/sh\ntest "$1" = -V && echo "Python 3.9.2" && exit 0\nexit 1\n')
    old.chmod(0o755)
    done = clone.run("make", "setup", "PYTHON=./old-python", check=False)
    assert done.returncode != 0
    assert "Python 3.11 or newer is needed, and ./old-python is Python 3.9.2" in done.stdout
    assert not (clone.root / ".venv").exists()


def test_what_is_set_up_is_not_set_up_again(installed: Clone) -> None:
    assert "pip" not in planned(installed, "test")
    assert "pip" not in planned(installed, "reproduce")
    os.utime(installed.root / "envs" / "core.txt")
    assert "pip" in planned(installed, "test")


def test_reproduce_trains_search_afresh_from_three_seeds(installed: Clone) -> None:
    command = planned(installed, "reproduce")
    assert "--config scale=mini seeds=3 runs=fresh experiments=search -- all" in command
    assert "turncredit headline --scale mini" in command


def test_ci_runs_the_linters_and_the_tests() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make lint test" in script.read_text()


def test_every_make_target_of_the_readme_exists(installed: Clone) -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    targets = {line.split()[1] for line in lines if line.startswith("make ")}
    assert {"reproduce", "test"} <= targets
    for target in targets:
        planned(installed, target, "F=fig3_training_dynamics")


def test_clean_leaves_what_is_committed(clone: Clone, tmp_path: Path) -> None:
    tracked = sorted(p for p in clone.root.rglob("*") if p.is_file())
    for made in ("results/mini/search/metrics.csv", "figures/mini/a.pdf", "paper_tables/mini/a.csv", "data/mini/a"):
        (clone.root / made).parent.mkdir(parents=True, exist_ok=True)
        (clone.root / made).touch()
    clone.run("make", "clean")
    assert sorted(p for p in clone.root.rglob("*") if p.is_file()) == tracked


def test_another_workflow_in_the_same_folder_is_waited_for_and_then_refused(installed: Clone) -> None:
    (installed.root / ".snakemake").mkdir()
    held = ["flock", ".snakemake/owner.lock", "sh", "-c", "echo held; read line"]
    with subprocess.Popen(held, cwd=installed.root, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "held\n"
        done = installed.run("make", "smoke", check=False)
        owner.communicate("go\n")
    assert done.returncode != 0
    assert "another workflow runs in this folder" in done.stdout
