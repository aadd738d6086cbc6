"""Trackers log every metrics row once, also over a resume, and change nothing else."""

from __future__ import annotations

import csv
import importlib.util
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.small_run import config, events, make_world, train, untimed
from turncredit.config.load import RunConfig
from turncredit.errors import ConfigError, Interrupted
from turncredit.training import trackers
from turncredit.training.run_folder import RunPaths
from turncredit.training.trackers import MetricsLogger

needs_tensorboard = pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None,
                                       reason="the package tensorboard is not installed: see envs/dev.txt")


def tracked(*names: str, steps: int = 3) -> RunConfig:
    run = config("chains", steps=steps)
    return run.model_copy(update={"launch": run.launch.model_copy(update={"trackers": names})})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("world")
    make_world(root)
    return root


@pytest.fixture
def root(world: Path, tmp_path: Path) -> Path:
    shutil.copytree(world, tmp_path / "clone")
    return tmp_path / "clone"


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Step and value of every scalar in a folder's event files, as TensorBoard reads them; nothing is purged."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}, purge_orphaned_data=False)
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def in_metrics(path: Path) -> dict[str, list[tuple[int, float]]]:
    """Step and value of every numeric cell of a metrics.csv; ``step`` and ``collapse`` are no scalars."""
    found: dict[str, list[tuple[int, float]]] = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            for name, value in row.items():
                if value and name not in ("step", "collapse"):
                    found.setdefault(name, []).append((int(row["step"]), pytest.approx(float(value), rel=1e-6)))
    return found


@needs_tensorboard
def test_tensorboard_has_the_numeric_cells_of_metrics_csv(root: Path, world: Path, tmp_path: Path) -> None:
    paths = train(root, tracked("tensorboard"))
    assert paths.events == root / "logs" / "tensorboard" / "test" / "search" / "chains" / "base-0" / "seed-0"
    assert scalars(paths.events) == in_metrics(paths.run / "metrics.csv")
    shutil.copytree(world, tmp_path / "plain")
    plain = train(tmp_path / "plain", tracked())
    assert untimed(plain.run / "metrics.csv") == untimed(paths.run / "metrics.csv")
    weights = "model.safetensors"
    assert (plain.final_policy / weights).read_bytes() == (paths.final_policy / weights).read_bytes()
    assert not plain.events.exists()


@needs_tensorboard
def test_a_resumed_run_repeats_no_step(root: Path) -> None:
    def stop(number: int, name: str) -> None:
        if number == 40:
            os.kill(os.getpid(), signal.SIGUSR1)

    with pytest.raises(Interrupted), events(stop):
        train(root, tracked("tensorboard"))
    folder = RunPaths.under(root, tracked()).events
    assert scalars(folder)["reward_total"]
    paths = train(root, tracked("tensorboard"))
    assert scalars(folder) == in_metrics(paths.run / "metrics.csv")


def test_a_missing_package_is_an_error_before_training_starts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"launch\.trackers: 'tensorboard' needs the package tensorboard"):
        train(root, tracked("tensorboard"))
    assert not RunPaths.under(root, tracked()).checkpoints.exists()


def test_trackers_do_not_change_a_runs_hash() -> None:
    assert tracked("tensorboard", "wandb").digest() == tracked().digest()


def test_other_ranks_log_nothing(tmp_path: Path) -> None:
    paths = RunPaths.under(tmp_path, tracked())
    with trackers.metrics_logger(tracked("tensorboard", "wandb"), paths, "identity", is_main=False) as logger:
        logger.log([{"step": 0, "reward_total": 1.0}])
    assert not list(tmp_path.iterdir())


class Recorder:
    """A tracker that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, dict[str, Any]]] = []

    def log(self, values: dict[str, Any], step: int) -> None:
        self.calls.append((step, values))


def test_each_row_is_logged_once_and_text_and_empty_cells_never() -> None:
    new, continued = Recorder(), Recorder()
    logger = MetricsLogger([(new, 0), (continued, 2)])  # the second one has steps 0 and 1 from an earlier process
    rows = [{"step": step, "reward_total": step / 2, "kl": None, "collapse": "", "tokens_sampled": 5}
            for step in range(4)]
    logger.log(rows[:2])
    logger.log(rows[:3])
    logger.log(rows)
    assert new.calls == [(step, {"reward_total": step / 2, "tokens_sampled": 5}) for step in range(4)]
    assert continued.calls == new.calls[2:]
