"""Input and output paths of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

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
