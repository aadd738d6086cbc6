"""A cached evaluation is used once, and only for the inputs that it was made from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import small_run
from turncredit.cli import runs
from turncredit.config.load import RunConfig, load_scale
from turncredit.config.retriever import RetrieverConfig
from turncredit.config.runtime import LaunchConfig
from turncredit.episodes.records import episodes_path
from turncredit.errors import DataError
from turncredit.tasks.plugin import ServiceSettings
from turncredit.training import cached_evaluation
from turncredit.training.run_folder import RunPaths

ROOT = Path(__file__).parents[2]
CONFIG = small_run.config("chains")


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    found = RunPaths.under(tmp_path, CONFIG)
    for path in (found.data / "world.json", found.index / "index.json", found.final_policy / "model.safetensors"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("first")
    return found


def cache_path(paths: RunPaths, config: RunConfig = CONFIG, **retriever: float) -> Path:
    services = ServiceSettings(RetrieverConfig.model_validate(retriever), paths.index)
    return cached_evaluation.cache_path(config, services, paths)


def test_it_is_used_once(paths: RunPaths) -> None:
    cached, output = cache_path(paths), paths.run / "evaluation.csv"
    assert not cached_evaluation.pop(cached, output)
    episodes_path(cached).write_text("episodes")
    cached.write_text("rows")
    paths.run.mkdir(parents=True)
    assert cached_evaluation.pop(cached, output)
    assert (output.read_text(), episodes_path(output).read_text()) == ("rows", "episodes")
    assert not list(paths.checkpoints.glob("evaluation*"))
    assert not cached_evaluation.pop(cached, output)


@pytest.mark.parametrize("changed", ["data/world.json", "index/index.json", "final_policy/model.safetensors"])
def test_another_world_index_or_policy_has_another_cache_path(paths: RunPaths, changed: str) -> None:
    before = cache_path(paths)
    folder, name = changed.split("/")
    (getattr(paths, folder) / name).write_text("second")
    assert cache_path(paths) != before


def test_another_configuration_has_another_cache_path(paths: RunPaths) -> None:
    before = cache_path(paths)
    assert cache_path(paths, small_run.config("chains", steps=6)) != before
    assert cache_path(paths, k1=1.2) != before


def test_settings_that_decide_no_result_are_in_no_identity() -> None:
    plain, patient, dense, elsewhere, other = (RetrieverConfig.model_validate(raw).result_settings() for raw in (
        {}, {"timeout_s": 90, "retries": 9}, {"kind": "faiss", "faiss": {"probes": 8}},
        {"kind": "faiss", "timeout_s": 90, "faiss": {"probes": 8, "device": "cpu", "batch": 4, "shards": 3}},
        {"kind": "faiss", "faiss": {"probes": 9}}))
    assert plain == patient
    assert dense == elsewhere != other


def test_without_an_index_there_is_no_cache_path(paths: RunPaths) -> None:
    (paths.index / "index.json").unlink()
    with pytest.raises(DataError, match=r"index\.json"):
        cache_path(paths)


@pytest.mark.parametrize("keep", [True, False])
def test_the_last_checkpoints_stay_until_the_final_evaluation(paths: RunPaths, monkeypatch: pytest.MonkeyPatch,
                                                              keep: bool) -> None:
    """With ``launch.keep_checkpoints`` they stay after it too; the final policy always stays."""
    launch = {"launch": LaunchConfig(keep_checkpoints=keep)}
    scale = load_scale("mini", ROOT / "config").model_copy(update={"evaluate_in_training": False, **launch})
    monkeypatch.setattr(runs, "scale_at", lambda *_: scale)
    name, arm = next((name, next(iter(found.arms))) for name, found in scale.experiments.items())
    found = RunPaths.under(paths.run.parents[5], scale.run(name, arm, 0))
    steps = [found.checkpoints / "step-20", found.checkpoints / "step-40"]
    for folder in (*steps, found.final_policy, found.checkpoints / "superseded/other/step-20"):
        folder.mkdir(parents=True)

    def fail(*_: object, **__: object) -> None:
        raise DataError("no", "yes")

    monkeypatch.setattr("turncredit.training.run.evaluate_run", fail)
    with pytest.raises(DataError):
        runs.evaluate(name, arm, root=paths.run.parents[5])
    assert all(step.is_dir() for step in steps)
    monkeypatch.setattr("turncredit.training.run.evaluate_run", lambda *_, **__: None)
    runs.evaluate(name, arm, root=paths.run.parents[5])
    assert [step.is_dir() for step in steps] == [keep, keep]
    assert found.final_policy.is_dir()
    assert (found.checkpoints / "superseded/other/step-20").is_dir()


def test_clear_removes_the_evaluation_of_an_earlier_policy(paths: RunPaths) -> None:
    cache_path(paths).write_text("rows")
    cached_evaluation.clear(paths)
    assert not cache_path(paths).exists()
