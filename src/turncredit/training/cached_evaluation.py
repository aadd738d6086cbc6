"""Caches the final evaluation made at the end of training.

For small policies, loading torch and transformers takes longer than playing all test questions. So
the training process evaluates too, and a later ``turncredit evaluate`` takes its result. The file's
name is a hash of everything that the evaluation depends on.
"""

from __future__ import annotations

from pathlib import Path

from turncredit.config.load import RunConfig
from turncredit.episodes.records import episodes_path
from turncredit.files import atomic, json_sha256, sha256
from turncredit.tasks.plugin import ServiceSettings
from turncredit.training.run_folder import RunPaths


def cache_path(config: RunConfig, services: ServiceSettings, paths: RunPaths) -> Path:
    """Return the cache file of this configuration, services, index, data and trained policy.

    Raises:
        DataError: the data, the index or the policy is missing.
    """
    files = [paths.data / "world.json", services.index / "index.json",
             *sorted(paths.final_policy.glob("*.safetensors"))]
    name = json_sha256([config.digest(), services.identity(), *map(sha256, files)])
    return paths.checkpoints / f"evaluation-{name[:16]}.csv"


def clear(paths: RunPaths) -> None:
    """Remove all cached evaluations of a run; parts of an unfinished one stay (``partial_evaluation``)."""
    for cached in paths.checkpoints.glob("evaluation-*"):
        if cached.is_file():
            cached.unlink()


def pop(cached: Path, output: Path) -> bool:
    """Move a cached evaluation to ``output``; return False if there is none.

    The cached file is used once: an evaluation that is run again is computed again.
    """
    if not cached.exists():
        return False
    for source, target in ((episodes_path(cached), episodes_path(output)), (cached, output)):
        with atomic(target) as temporary:
            temporary.write_bytes(source.read_bytes())
        source.unlink()
    return True
