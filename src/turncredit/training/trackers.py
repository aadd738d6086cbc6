"""Trackers: log metrics rows to TensorBoard and Weights & Biases through accelerate's tracker classes."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, assert_never

from accelerate.tracking import TensorBoardTracker, WandBTracker

from turncredit.config.load import RunConfig
from turncredit.config.runtime import Tracker
from turncredit.errors import ConfigError
from turncredit.files import writing
from turncredit.training.run_folder import RunPaths


def check_installed(names: Sequence[Tracker]) -> None:
    """Check that the packages of trackers are installed; each has its tracker's name.

    Raises:
        ConfigError: a package is missing.
    """
    for name in names:
        if importlib.util.find_spec(name) is None:
            raise ConfigError(f"launch.trackers: {name!r} needs the package {name}, which is not installed",
                              f"pip install {name}, or remove it from launch.trackers")


@dataclass(slots=True)
class MetricsLogger:
    """Logs each row of metrics.csv once to every tracker.

    Attributes:
        trackers: accelerate's trackers, each with the first step that it has not logged yet.
        next_step: rows of earlier steps have been logged by this process.
    """

    trackers: list[tuple[Any, int]] = field(default_factory=list)
    next_step: int = 0

    def log(self, rows: Sequence[Mapping[str, float | int | str | None]]) -> None:
        """Log the rows that are new since the last call: one scalar per numeric column and step."""
        for row in rows:
            step = int(row["step"] or 0)
            if step < self.next_step:
                continue
            scalars = {name: value for name, value in row.items() if isinstance(value, int | float) and name != "step"}
            for tracker, first_step in self.trackers:
                if step >= first_step:
                    tracker.log(scalars, step=step)
            self.next_step = step + 1


@contextmanager
def metrics_logger(config: RunConfig, paths: RunPaths, identity: str, *, is_main: bool) -> Iterator[MetricsLogger]:
    """Open the trackers of ``launch.trackers`` on rank 0; on other ranks nothing is logged.

    Args:
        config: the resolved run; names the trackers.
        paths: ``events`` is TensorBoard's folder; W&B's local files are in ``checkpoints``.
        identity: hash of configuration and inputs; a resumed run continues the W&B run of this id.
        is_main: this is rank 0.

    Raises:
        DataError: the disk is full or a folder is not writable.
    """
    logger = MetricsLogger()
    try:
        for name in config.launch.trackers if is_main else ():
            match name:
                case "tensorboard":
                    logger.trackers.append(_open_tensorboard(paths))
                case "wandb":
                    logger.trackers.append(_open_wandb(config, paths, identity))
                case _:
                    assert_never(name)
        yield logger
    finally:
        for tracker, _ in logger.trackers:
            tracker.finish()


def _open_tensorboard(paths: RunPaths) -> tuple[Any, int]:
    """Start new event files: a resumed run logs all rows again, so no step is lost or repeated."""
    with writing(paths.events):
        for path in paths.events.glob("events.out.tfevents.*"):
            path.unlink()
        tracker = TensorBoardTracker(paths.events.name, paths.events.parent)
        tracker.start()
    return tracker, 0


def _open_wandb(config: RunConfig, paths: RunPaths, identity: str) -> tuple[Any, int]:
    """Start or continue a W&B run; it cannot be rewritten, so steps that it has already are skipped."""
    with writing(paths.checkpoints):
        paths.checkpoints.mkdir(parents=True, exist_ok=True)
        tracker = WandBTracker(
            "turncredit", id=identity[:32], resume="allow", dir=str(paths.checkpoints),
            name=f"{config.scale}/{config.experiment}/{config.key}",
            config=config.model_dump(mode="json"))
        tracker.start()
    return tracker, int(tracker.run.starting_step)
