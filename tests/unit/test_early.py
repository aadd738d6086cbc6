"""A kept evaluation is taken for what it was made of, once, and for nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import small_run
from turncredit.config.retriever import RetrieverConfig
from turncredit.errors import DataError
from turncredit.training import cached_evaluation as early
from turncredit.training.run_folder import RunPaths

RETRIEVER = RetrieverConfig()
CONFIG = small_run.config("chains")


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    found = RunPaths.under(tmp_path, CONFIG)
    for path in (found.data / "world.json", found.index / "index.json", found.final_policy / "model.safetensors"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("first")
    return found


def test_it_is_taken_once(paths: RunPaths) -> None:
    kept, output = early.place(CONFIG, RETRIEVER, paths), paths.run / "evaluation.csv"
    assert not early.take(kept, output)
    kept.write_text("rows")
    paths.run.mkdir(parents=True)
    assert early.take(kept, output)
    assert output.read_text() == "rows"
    assert not early.take(kept, output)


@pytest.mark.parametrize("changed", ["data/world.json", "index/index.json", "final_policy/model.safetensors"])
def test_another_world_index_or_policy_has_another_place(paths: RunPaths, changed: str) -> None:
    before = early.place(CONFIG, RETRIEVER, paths)
    folder, name = changed.split("/")
    (getattr(paths, folder) / name).write_text("second")
    assert early.place(CONFIG, RETRIEVER, paths) != before


def test_another_configuration_has_another_place(paths: RunPaths) -> None:
    before = early.place(CONFIG, RETRIEVER, paths)
    assert early.place(small_run.config("chains", steps=6), RETRIEVER, paths) != before
    assert early.place(CONFIG, RETRIEVER.model_copy(update={"k1": 1.2}), paths) != before


def test_without_an_index_there_is_no_place(paths: RunPaths) -> None:
    (paths.index / "index.json").unlink()
    with pytest.raises(DataError, match=r"index\.json"):
        early.place(CONFIG, RETRIEVER, paths)


def test_what_was_kept_for_an_earlier_policy_is_forgotten(paths: RunPaths) -> None:
    early.place(CONFIG, RETRIEVER, paths).write_text("rows")
    early.forget(paths)
    assert not early.place(CONFIG, RETRIEVER, paths).exists()
