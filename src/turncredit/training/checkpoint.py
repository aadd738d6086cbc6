"""Checkpoints that are whole or not there: saved beside, checked by sha256, renamed, the last two kept."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turncredit.distributed.processes import ALONE, Processes
from turncredit.errors import CheckpointError, DataError
from turncredit.files import disk_error, sha256, sync

CONTENTS = "contents.json"
_TEMPORARY = ".saving-"
_log = logging.getLogger(__name__)


def save(root: Path, step: int, identity: str, write: Callable[[Path], None], keep: int = 2,
         processes: Processes = ALONE) -> Path:
    """Make ``root/step-{step}``, whole or not at all, and remove all but the newest ``keep``.

    All processes of a run come here together. The folder is one that all of them see.

    Args:
        root: the run's checkpoint folder.
        step: training steps done.
        identity: digest of all that the run is made of; only a run with the same one resumes here.
        write: puts the files into the (temporary) folder that it is given; on every process.
        keep: how many checkpoints stay.
        processes: the first of them makes, checks and renames the folder.

    Raises:
        DataError: the disk is full or the place is not writable; the checkpoints before stay.
    """
    try:
        temporary = processes.once(lambda: _fresh(root, step))
        processes.together(lambda: write(temporary))
        return processes.once(lambda: _finish(root, temporary, step, identity, keep))
    except Exception as error:
        if (reason := disk_error(error)) is None:
            raise
        raise DataError(f"{root}: checkpoint {step} cannot be saved: {reason}",
                        "free some space; the checkpoints before are kept") from error
    finally:
        if processes.first:
            _sweep(root)


def _fresh(root: Path, step: int) -> Path:
    """A new folder to write into."""
    root.mkdir(parents=True, exist_ok=True)
    _sweep(root)
    temporary = Path(tempfile.mkdtemp(prefix=f"{_TEMPORARY}step-{step}.", dir=root))
    temporary.chmod(0o755)
    return temporary


def _finish(root: Path, temporary: Path, step: int, identity: str, keep: int) -> Path:
    """List what was written, have the disk hold it, and give it its name."""
    files = sorted(path for path in temporary.rglob("*") if path.is_file())
    contents = {"step": step, "identity": identity,
                "files": {path.relative_to(temporary).as_posix(): sha256(path) for path in files}}
    (temporary / CONTENTS).write_text(json.dumps(contents, indent=1), encoding="utf-8")
    for path in (*files, temporary / CONTENTS):
        sync(path)
    target = root / f"step-{step}"
    if target.exists():  # saved before, damaged or by an interrupted validation
        target.rename(temporary / "replaced")
    temporary.rename(target)
    sync(root)
    shutil.rmtree(target / "replaced", ignore_errors=True)
    for _, path in _found(root)[keep:]:
        shutil.rmtree(path)
    return target


def _sweep(root: Path) -> None:
    """Remove what a save left that failed or was killed; the run lock is ours."""
    for leftover in root.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def newest(root: Path, identity: str) -> Path | None:
    """The newest whole checkpoint under ``root``; None if there is none at all.

    A damaged one is passed over, with a warning, for the one before. Checkpoints of another
    identity (other configuration, data or base policy) are never resumed: they are moved, with a
    warning, to ``root/superseded``, where the last such generation is kept.

    Raises:
        CheckpointError: all are damaged.
    """
    found = _found(root)
    for step, path in found:
        problem = _problem(path, step)
        if problem is None:
            if _contents(path)["identity"] == identity:
                return path
            _supersede(root, found)
            return None
        _log.warning("%s: %s; trying the checkpoint before it", path, problem)
    if found:
        raise CheckpointError(f"{root}: none of {len(found)} checkpoints can be read",
                              "remove the folder to start afresh")
    return None


def _supersede(root: Path, found: list[tuple[int, Path]]) -> None:
    """Move checkpoints aside."""
    aside = root / "superseded"
    _log.warning("%s: made with another configuration, data or base policy; moved to %s, the run starts afresh",
                 found[0][1], aside)
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    for _, path in found:
        path.rename(aside / path.name)


def _found(root: Path) -> list[tuple[int, Path]]:
    """Checkpoint folders, newest first."""
    found = [(int(step), path) for path in root.glob("step-*") if (step := path.name.removeprefix("step-")).isdigit()]
    return sorted(found, reverse=True)


def _contents(path: Path) -> dict[str, Any]:
    contents: dict[str, Any] = json.loads((path / CONTENTS).read_text(encoding="utf-8"))
    return contents


def _problem(path: Path, step: int) -> str | None:
    """What is wrong with a checkpoint's files, or None."""
    try:
        contents = _contents(path)
        for name, expected in contents["files"].items():
            if sha256(path / name) != expected:
                return f"{name} is damaged"
        return None if (contents["step"], bool(contents["identity"])) == (step, True) else f"is not of step {step}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, DataError) as error:
        return f"cannot be read ({error.message if isinstance(error, DataError) else error})"
