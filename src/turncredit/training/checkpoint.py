"""Checkpoints that are whole or not there: saved beside, checked by sha256, renamed, the last two kept."""

from __future__ import annotations

import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from turncredit.errors import CheckpointError, DataError
from turncredit.files import sha256

CONTENTS = "contents.json"
_TEMPORARY = ".saving-"
_log = logging.getLogger(__name__)


def save(root: Path, step: int, config_sha256: str, write: Callable[[Path], None], keep: int = 2) -> Path:
    """Make ``root/step-{step}``, whole or not at all, and remove all but the newest ``keep``.

    Args:
        root: the run's checkpoint folder.
        step: training steps done.
        config_sha256: the run's digest; only a run with the same one resumes from here.
        write: puts the files into the (temporary) folder that it is given.
        keep: how many checkpoints stay.

    Raises:
        DataError: the disk is full or the place is not writable; the checkpoints before stay.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        for leftover in root.glob(f"{_TEMPORARY}*"):  # of a save that was killed; the run lock is ours
            shutil.rmtree(leftover)
        temporary = Path(tempfile.mkdtemp(prefix=f"{_TEMPORARY}step-{step}.", dir=root))
        temporary.chmod(0o755)
        write(temporary)
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        contents = {"step": step, "config_sha256": config_sha256,
                    "files": {path.relative_to(temporary).as_posix(): sha256(path) for path in files}}
        (temporary / CONTENTS).write_text(json.dumps(contents, indent=1), encoding="utf-8")
        for path in (*files, temporary / CONTENTS):
            _sync(path)
        target = root / f"step-{step}"
        if target.exists():  # saved before, damaged or by an interrupted validation
            target.rename(temporary / "replaced")
        temporary.rename(target)
        _sync(root)
        shutil.rmtree(target / "replaced", ignore_errors=True)
        for _, path in _found(root)[keep:]:
            shutil.rmtree(path)
    except OSError as error:
        raise DataError(f"{root}: checkpoint {step} cannot be saved: {error.strerror or error}",
                        "free some space; the checkpoints before are kept") from error
    return target


def newest(root: Path, config_sha256: str) -> Path | None:
    """The newest whole checkpoint under ``root``; None if there is none at all.

    A damaged one is passed over, with a warning, for the one before.

    Raises:
        CheckpointError: all are damaged, or they belong to a run with another configuration.
    """
    found = _found(root)
    for step, path in found:
        problem = _problem(path, step, config_sha256)
        if problem is None:
            return path
        _log.warning("%s: %s; trying the checkpoint before it", path, problem)
    if found:
        raise CheckpointError(f"{root}: none of {len(found)} checkpoints can be read",
                              "remove the folder to start afresh")
    return None


def _found(root: Path) -> list[tuple[int, Path]]:
    """Checkpoint folders, newest first."""
    found = [(int(step), path) for path in root.glob("step-*") if (step := path.name.removeprefix("step-")).isdigit()]
    return sorted(found, reverse=True)


def _problem(path: Path, step: int, config_sha256: str) -> str | None:
    """What is wrong with a checkpoint's files, or None."""
    try:
        contents = json.loads((path / CONTENTS).read_text(encoding="utf-8"))
        for name, expected in contents["files"].items():
            if sha256(path / name) != expected:
                return f"{name} is damaged"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, DataError) as error:
        return f"cannot be read ({error.message if isinstance(error, DataError) else error})"
    if contents["config_sha256"] != config_sha256:
        raise CheckpointError(f"{path}: belongs to a run with another configuration",
                              "restore that configuration, or remove the run's checkpoint folder to start afresh")
    return None if contents["step"] == step else f"holds step {contents['step']}"


def _sync(path: Path) -> None:
    """Ask the disk to hold a file or folder before it is renamed or relied on."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
