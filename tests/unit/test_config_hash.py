"""A run's hash: what decides the result is in it, defaults are left out, and shipped hashes stay valid."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.unit.test_config import ROOT, TASK_MODELS, TINY, changed, load
from turncredit.config.algorithm import Algorithm
from turncredit.config.credit_bench import CREDIT_BENCH
from turncredit.config.load import RunConfig
from turncredit.config.training import TrainingConfig


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "config" / "algorithms.yaml", tmp_path)
    return tmp_path


def test_what_decides_the_result_is_in_the_digest_and_nothing_else(folder: Path) -> None:
    run = load(folder, TINY).run("search", "mine", 0)
    assert run.digest() == load(folder, changed("threads", 8)).run("search", "mine", 0).digest()
    assert run.settings() == load(folder, TINY).run("search", "mine", 5).settings()
    for path, value in (("experiments.search.training.steps", 8), ("rewards.search.correct", 2.0),
                        ("experiments.search.train_on", ["bridge"]), ("experiments.search.task.top_k", 1)):
        assert run.digest() != load(folder, changed(path, value)).run("search", "mine", 0).digest()
    assert run.digest() != load(folder, TINY).run("search", "mine", 1).digest()
    other = load(folder, TINY).run("search", "mine", 0, base=1)
    assert other.settings() == run.settings()
    assert other.digest() != run.digest()
    assert "base" not in run.hashed_fields()


def test_each_base_policy_has_random_streams_of_its_own_and_base_policy_0_those_of_its_seed(folder: Path) -> None:
    scale = load(folder, TINY)
    assert [scale.run("search", "mine", seed).random_seed for seed in range(3)] == [0, 1, 2]
    seeds = [scale.run("search", "mine", seed, base).random_seed for base in range(4) for seed in range(5)]
    assert len({*seeds}) == len(seeds)


def test_a_new_key_with_a_default_changes_no_digest(folder: Path) -> None:
    class Later(TrainingConfig):
        new_key: float = 0.5

    class LaterRun(RunConfig):
        training: Later

    run = load(folder, TINY).run("search", "mine", 0)
    written = run.model_dump(mode="json")
    same, other = (LaterRun.model_validate(written | {"training": written["training"] | new})
                   for new in ({}, {"new_key": 0.25}))
    assert "steps" in same.hashed_fields()["training"]
    assert same.digest() == run.digest() != other.digest()


def test_a_default_of_a_hashed_key_never_changes(folder: Path) -> None:
    """The hash leaves defaults out: runs made with another default would pass for the same run."""
    defaults = {f"{model.__name__}.{key}": field.get_default(call_default_factory=True)
                for model in (TrainingConfig, *TASK_MODELS, Algorithm)
                for key, field in model.model_fields.items() if not field.is_required()}
    pinned = json.loads((ROOT / "tests/golden/hashed_defaults.json").read_text())
    changed = {key: value for key, value in pinned.items() if defaults.get(key, value) != value}
    assert not changed, "write the new value into config/*.yaml instead"
    assert not defaults.keys() - pinned.keys(), "add the new key and its default to tests/golden/hashed_defaults.json"


def test_the_digests_of_shipped_runs_are_those_of_their_configurations() -> None:
    runs = [path for path in ROOT.glob("results/shipped/*/*/manifests.json") if path.parent.name != CREDIT_BENCH]
    manifests = [manifest for path in runs for manifest in json.loads(path.read_text()).values()]
    assert len(manifests) > 100
    for manifest in manifests:
        assert RunConfig.model_validate(manifest["config"]).digest() == manifest["config_sha256"]
