"""Atomic checkpoints: written to a temporary folder, renamed when complete, verified by sha256 on load."""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from turncredit.distributed.processes import SINGLE_PROCESS, Processes
from turncredit.errors import CheckpointError, DataError
from turncredit.files import disk_error, sha256, sync

CONTENTS = "contents.json"
SUPERSEDED = "superseded"  # checkpoints of other configurations, a folder for each
_NAME = 16  # digits of an identity in its folder's name
_TEMPORARY = ".saving-"
_KEPT = 2  # newest checkpoints of a run
_log = logging.getLogger(__name__)


def save(root: Path, step: int, identity: str, write: Callable[[Path], None],
         processes: Processes = SINGLE_PROCESS) -> Path:
    """Write ``root/step-{step}`` atomically, and remove all but the two newest checkpoints.

    All ranks call this together; all of them must see the folder.

    Args:
        root: the run's checkpoint folder.
        step: training steps done.
        identity: hash of the run's inputs and configuration; only a run with the same one resumes from here.
        write: writes the files into the (temporary) folder that it gets; called on every rank.
        processes: rank 0 makes, verifies and renames the folder.

    Raises:
        DataError: the disk is full or the folder is not writable; earlier checkpoints are kept.
    """
    try:
        temporary = processes.on_rank_0(lambda: _fresh(root, step))
        processes.on_all_ranks(lambda: write(temporary))
        return processes.on_rank_0(lambda: _finish(root, temporary, step, identity))
    except Exception as error:
        if (reason := disk_error(error)) is None:
            raise
        raise DataError(f"{root}: checkpoint {step} cannot be saved: {reason}",
                        "free some space; earlier checkpoints are kept") from error
    finally:
        if processes.is_main:
            _remove_leftovers(root)


def _fresh(root: Path, step: int) -> Path:
    """Make a new temporary folder."""
    root.mkdir(parents=True, exist_ok=True)
    _remove_leftovers(root)
    temporary = Path(tempfile.mkdtemp(prefix=f"{_TEMPORARY}step-{step}.", dir=root))
    temporary.chmod(0o755)
    return temporary


def _finish(root: Path, temporary: Path, step: int, identity: str) -> Path:
    """List the files in ``contents.json``, sync them to disk, rename the folder and remove old checkpoints."""
    files = sorted(path for path in temporary.rglob("*") if path.is_file())
    contents = {"step": step, "identity": identity,
                "files": {path.relative_to(temporary).as_posix(): sha256(path) for path in files}}
    (temporary / CONTENTS).write_text(json.dumps(contents, indent=1), encoding="utf-8")
    for path in (*files, temporary / CONTENTS):
        sync(path)
    target = root / f"step-{step}"
    if target.exists():  # a damaged one, or one saved by an interrupted validation
        target.rename(temporary / target.name)
    temporary.rename(target)
    sync(root)
    shutil.rmtree(target / target.name, ignore_errors=True)
    for _, path in _list(root)[_KEPT:]:
        shutil.rmtree(path)
    return target


def _remove_leftovers(root: Path) -> None:
    """Remove temporary folders of failed or killed saves; the caller holds the run's lock.

    A checkpoint that such a save was about to replace returns.
    """
    for leftover in root.glob(f"{_TEMPORARY}*"):
        for _, replaced in _list(leftover):
            if not (root / replaced.name).exists():
                replaced.rename(root / replaced.name)
        shutil.rmtree(leftover, ignore_errors=True)


def newest(root: Path, identity: str, *same: str) -> Path | None:
    """Return the newest intact checkpoint under ``root``; None if there is no checkpoint.

    A damaged checkpoint is skipped with a warning. Checkpoints of another identity (other configuration, data or
    initial policy) are not resumed: they are moved, with a warning, to ``root/superseded/<identity>``. If that folder
    holds checkpoints of this run's own identity, because a setting was changed and changed back, they return. A kill
    between two moves loses nothing, because each checkpoint is looked at alone.

    Args:
        root: the run's checkpoint folder.
        identity: of the run (see ``save``).
        same: further identities whose checkpoints are resumed.

    Raises:
        CheckpointError: all checkpoints are damaged.
    """
    _remove_leftovers(root)
    own = {identity, *same}
    others = [(path, found) for _, path in _list(root) if (found := _identity(path)) not in {*own, None}]
    for path, found in others:
        _move(path, root / SUPERSEDED / str(found)[:_NAME])
    if others:
        _log.warning("%s: made with another configuration, data or initial policy; moved to %s", others[0][0],
                     root / SUPERSEDED / str(others[0][1])[:_NAME])
    back = [path for name in own for _, path in _list(root / SUPERSEDED / name[:_NAME]) if _identity(path) in own]
    for path in back:
        _move(path, root)
        _log.warning("%s: made with these settings before; moved back from %s", root / path.name, path.parent)
    for step, path in (checkpoints := _list(root)):
        if (problem := _problem(path, step)) is None:
            return path
        _log.warning("%s: %s; trying the previous checkpoint", path, problem)
    if checkpoints:
        raise CheckpointError(f"{root}: none of {len(checkpoints)} checkpoints can be read",
                              "remove the folder to train from the start")
    if others:
        _log.warning("%s: training from the start", root)
    return None


def remove_all(root: Path) -> None:
    """Remove the checkpoints of a finished run; its final policy, and checkpoints of other settings, stay."""
    for _, path in _list(root):
        shutil.rmtree(path)


def _identity(path: Path) -> str | None:
    """The identity of a checkpoint; None if it cannot be read."""
    try:
        return str(_contents(path)["identity"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _move(path: Path, folder: Path) -> None:
    """Move a checkpoint to another folder; one of the same step there is replaced."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / path.name, ignore_errors=True)
    path.rename(folder / path.name)


def _list(root: Path) -> list[tuple[int, Path]]:
    """Steps and folders of all checkpoints, newest first."""
    steps = [(int(step), path) for path in root.glob("step-*") if (step := path.name.removeprefix("step-")).isdigit()]
    return sorted(steps, reverse=True)


def _contents(path: Path) -> dict[str, Any]:
    contents: dict[str, Any] = json.loads((path / CONTENTS).read_text(encoding="utf-8"))
    return contents


def _problem(path: Path, step: int) -> str | None:
    """Describe what is wrong with a checkpoint; None if it is intact."""
    try:
        contents = _contents(path)
        for name, expected in contents["files"].items():
            if sha256(path / name) != expected:
                return f"{name} is damaged"
        return None if (contents["step"], bool(contents["identity"])) == (step, True) else f"it is not of step {step}"
    except (OSError, ValueError, KeyError, TypeError, AttributeError, DataError) as error:
        return f"cannot be read ({error.message if isinstance(error, DataError) else error})"
