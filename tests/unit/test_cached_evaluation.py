"""A cached evaluation is used once, and only for the inputs that it was made from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import small_run
from turncredit.config.load import RunConfig
from turncredit.config.retriever import RetrieverConfig
from turncredit.episodes.records import episodes_path
from turncredit.errors import DataError
from turncredit.tasks.plugin import ServiceSettings
from turncredit.training import cached_evaluation
from turncredit.training.run_folder import RunPaths

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


def test_without_an_index_there_is_no_cache_path(paths: RunPaths) -> None:
    (paths.index / "index.json").unlink()
    with pytest.raises(DataError, match=r"index\.json"):
        cache_path(paths)


def test_clear_removes_the_evaluation_of_an_earlier_policy(paths: RunPaths) -> None:
    cache_path(paths).write_text("rows")
    cached_evaluation.clear(paths)
    assert not cache_path(paths).exists()
