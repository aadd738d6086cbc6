"""Input and output paths of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turncredit.config.load import RunConfig
from turncredit.config.paths import base_folder


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Input and output paths of a run.

    Attributes:
        data: questions (``world.json``, ``questions/``).
        index: the retriever's index.
        policy: the initial policy's folder, with its tokenizer.
        run: results; metrics.csv and manifest.json are written at the end of the run.
        checkpoints: checkpoints, lock, metrics and manifest of the running training, and the final policy.
        events: TensorBoard event files.
    """

    data: Path
    index: Path
    policy: Path
    run: Path
    checkpoints: Path
    events: Path

    @classmethod
    def under(cls, root: Path, config: RunConfig) -> RunPaths:
        """Return the paths in the clone at ``root``."""
        run = Path(config.scale, config.experiment, config.key)
        policy = root / base_folder(config.scale, config.base) / "initial" / config.task.name
        return cls(root / "data" / config.scale, root / "index" / config.scale / (config.retriever or ""), policy,
                   root / "results" / run, root / "checkpoints" / run, root / "logs" / "tensorboard" / run)

    @property
    def base_policy(self) -> Path:
        """The folder of the base policy that the initial policy belongs to."""
        return self.policy.parents[1]

    @property
    def final_policy(self) -> Path:
        """The trained policy, as a Hugging Face folder."""
        return self.checkpoints / "final"


def changed_settings(manifest: Path, config: RunConfig) -> list[str]:
    """What differs between the configuration in a run's manifest and ``config``, as ``training.steps: 60 -> 80``.

    Empty if there is no manifest that can be read.
    """
    try:
        before = dict(_flat(json.loads(manifest.read_text(encoding="utf-8"))["config"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return []
    now = dict(_flat(config.model_dump(mode="json")))
    return [f"{key}: {before.get(key)} -> {now.get(key)}" for key in {**before, **now}
            if before.get(key) != now.get(key)]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
