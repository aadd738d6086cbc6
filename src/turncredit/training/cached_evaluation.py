"""An evaluation made by the process that trained, which the workflow takes when it asks for one.

Loading torch and transformers takes a process longer than a small policy needs for all test questions.
It is kept under a name that says what it was made of, so nothing but that very evaluation is ever taken.
"""

from __future__ import annotations

from pathlib import Path

from turncredit.config.load import RunConfig
from turncredit.config.retriever import RetrieverConfig
from turncredit.files import atomic, json_sha256, sha256
from turncredit.training.run_folder import RunPaths


def place(config: RunConfig, retriever: RetrieverConfig, paths: RunPaths) -> Path:
    """The file of an evaluation of this configuration, retriever, index, world and trained policy.

    Raises:
        DataError: one of them is not there.
    """
    files = [paths.data / "world.json", paths.index / "index.json", *sorted(paths.final_policy.glob("*.safetensors"))]
    name = json_sha256([config.digest(), retriever.model_dump(mode="json"), *map(sha256, files)])
    return paths.checkpoints / f"evaluation-{name[:16]}.csv"


def forget(paths: RunPaths) -> None:
    """Remove what was kept for an earlier policy."""
    for kept in paths.checkpoints.glob("evaluation-*.csv"):
        kept.unlink()


def take(kept: Path, output: Path) -> bool:
    """Move a kept evaluation to ``output``; False if there is none. Asked again, it is made afresh."""
    if not kept.exists():
        return False
    with atomic(output) as temporary:
        temporary.write_bytes(kept.read_bytes())
    kept.unlink()
    return True
