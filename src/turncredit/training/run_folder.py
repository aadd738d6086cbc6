"""Where a run reads and writes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from turncredit.config.load import RunConfig


@dataclass(frozen=True, slots=True)
class RunPaths:
    """Where a run reads and writes.

    Attributes:
        data: the world (``world.json``, ``questions/``).
        index: the retriever's index.
        policy: the base policy's folder, tokenizer included.
        run: gets metrics.csv and manifest.json as the run's last act.
        checkpoints: checkpoints, lock, live metrics and manifest, and the final policy.
    """

    data: Path
    index: Path
    policy: Path
    run: Path
    checkpoints: Path

    @classmethod
    def under(cls, root: Path, config: RunConfig) -> RunPaths:
        """The layout of the clone at ``root``."""
        run = Path(config.scale, config.experiment, config.arm, f"seed-{config.seed}")
        policy = root / "policy" / config.scale / "base" / config.task.name
        return cls(root / "data" / config.scale, root / "index" / config.scale / (config.retriever or ""), policy,
                   root / "results" / run, root / "checkpoints" / run)

    @property
    def final_policy(self) -> Path:
        """The trained policy, as a Hugging Face folder."""
        return self.checkpoints / "final"
