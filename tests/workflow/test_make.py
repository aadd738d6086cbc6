"""The Makefile and the script of continuous integration: what each command runs, and how failures are reported."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

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


def test_reproduce_trains_search_afresh_from_two_base_policies_with_two_seeds(installed: Clone) -> None:
    command = planned(installed, "reproduce")
    assert "--config scale=mini bases=2 seeds=2 runs=fresh experiments=search -- all" in command
    assert "turncredit headline --scale mini" in command


def stub(clone: Clone, name: str, script: str) -> None:
    """A program of the clone's environment that notes each call and then runs a shell script."""
    path = clone.root / ".venv" / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'#!/bin/sh\necho "{name} $*" >> calls\n{script}\n')
    path.chmod(0o755)


def calls(clone: Clone) -> list[str]:
    return (clone.root / "calls").read_text().splitlines()


def test_all_parts_of_the_tests_run_though_the_first_fails_and_the_end_names_it(installed: Clone) -> None:
    stub(installed, "pytest", 'case "$*" in *--ignore*) exit 1;; esac')
    done = installed.run("make", "test", check=False)
    assert done.returncode != 0
    ignoring, cluster, *kernels = calls(installed)
    assert "--ignore=tests/distributed --ignore=tests/slurm" in ignoring
    assert cluster == "pytest -q tests/distributed tests/slurm"
    assert len(kernels) == 4
    assert all("-m numeric" in call for call in kernels)
    assert "make: test: failed: test-parallel\n" in done.stdout
    assert "test-cluster" not in done.stdout.split("make: test: failed")[1]


def test_the_tests_pass_if_all_parts_do(installed: Clone) -> None:
    stub(installed, "pytest", "exit 0")
    assert installed.run("make", "test").stdout.endswith("make: test: all passed\n")


def test_each_kernel_is_tried_though_one_fails(installed: Clone) -> None:
    stub(installed, "pytest", 'echo "$ATEN_CPU_CAPABILITY$MKL_CBWR$ONEDNN_MAX_CPU_ISA" >> kernels\ntest -z "$MKL_CBWR"')
    done = installed.run("make", "test-kernels", check=False)
    assert done.returncode != 0
    assert (installed.root / "kernels").read_text().split() == ["default", "avx2", "COMPATIBLE", "AVX2"]
    assert "make: test-kernels: failed: MKL_CBWR=COMPATIBLE\n" in done.stdout


@pytest.mark.parametrize(("broken", "says"), [
    ("", "ci: all passed"), ("ruff", "ci: failed: lint"), ("pytest", "ci: failed: test"),
    ("ruff pytest", "ci: failed: lint test")])
def test_ci_runs_the_linters_and_the_tests_and_names_what_failed(installed: Clone, broken: str, says: str) -> None:
    for name in ("ruff", "mypy", "snakefmt", "snakemake", "pytest"):
        stub(installed, name, "exit 1" if name in broken.split() else "exit 0")
    done = installed.run(".ci/run", check=False)
    assert done.stdout.splitlines()[-1] == says
    assert (done.returncode == 0) is (not broken)
    assert any(call.startswith("pytest") for call in calls(installed))


def test_forges_run_the_same_script_on_pinned_actions() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    job, = workflow["jobs"].values()
    assert job["steps"][-1] == {"run": ".ci/run"}
    used = [step["uses"] for step in job["steps"] if "uses" in step]
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action in used)


def test_help_lists_every_command(clone: Clone) -> None:
    listed = re.findall(r"^  make (\S+)", clone.run("make", "help").stdout, re.MULTILINE)
    phony = re.search(r"^\.PHONY:((?:.*\\\n)*.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert phony is not None
    assert sorted(listed) == sorted(phony[1].replace("\\", "").split())


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
