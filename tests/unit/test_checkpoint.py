"""Checkpoints are atomic; a run has one writer."""

import json
import logging
import os
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from turncredit.errors import CheckpointError, DataError, RunLockedError
from turncredit.training import checkpoint
from turncredit.training.checkpoint import newest, save
from turncredit.training.lock import run_lock


def write(text: str):
    def into(folder: Path) -> None:
        (folder / "policy").mkdir()
        (folder / "policy" / "weights").write_text(text)
        (folder / "state.json").write_text(text)
    return into


def saved(root: Path, *steps: int) -> None:
    for step in steps:
        save(root, step, "digest", write(f"step {step}"))


def test_the_newest_of_the_last_two_is_found(tmp_path):
    assert newest(tmp_path, "digest") is None
    saved(tmp_path, 2, 9, 10)
    assert newest(tmp_path, "digest") == tmp_path / "step-10"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10", "step-9"]


@pytest.mark.parametrize("damage", [
    lambda path: (path / "policy" / "weights").write_text("step"),  # truncated
    lambda path: (path / "policy" / "weights").unlink(),
    lambda path: (path / "contents.json").write_text("{"),
    lambda path: (path / "contents.json").write_text("[]"),
    lambda path: (path / "contents.json").write_text('{"files": {}, "step": 2}'),
    lambda path: (path / "contents.json").unlink(),
])
def test_a_damaged_newest_falls_back_with_a_message(tmp_path, caplog, damage):
    saved(tmp_path, 1, 2)
    damage(tmp_path / "step-2")
    with caplog.at_level(logging.WARNING):
        assert newest(tmp_path, "digest") == tmp_path / "step-1"
    assert "step-2" in caplog.text
    assert "trying the previous checkpoint" in caplog.text


def test_only_damaged_checkpoints_are_an_error_not_a_fresh_start(tmp_path):
    saved(tmp_path, 1)
    (tmp_path / "step-1" / "state.json").write_text("")
    with pytest.raises(CheckpointError, match="none of 1 checkpoints can be read"):
        newest(tmp_path, "digest")


def test_another_identity_is_never_resumed_and_nothing_is_lost(tmp_path, caplog):
    saved(tmp_path, 1, 2)
    assert newest(tmp_path, "other") is None
    assert "moved to" in caplog.text
    assert (tmp_path / "superseded" / "digest" / "step-2" / "state.json").read_text() == "step 2"
    save(tmp_path, 1, "other", write("new"))
    assert newest(tmp_path, "other") == tmp_path / "step-1"


def test_a_setting_that_is_changed_and_changed_back_loses_no_checkpoint(tmp_path, caplog):
    saved(tmp_path, 1, 2)
    assert newest(tmp_path, "other") is None
    save(tmp_path, 1, "other", write("new"))
    assert newest(tmp_path, "digest") == tmp_path / "step-2"
    assert "made with these settings before" in caplog.text
    assert (tmp_path / "step-2" / "state.json").read_text() == "step 2"
    assert newest(tmp_path, "other") == tmp_path / "step-1"
    assert (tmp_path / "step-1" / "state.json").read_text() == "new"


@pytest.mark.parametrize("renames", [1, 2])
def test_a_kill_while_a_step_is_replaced_loses_no_checkpoint(tmp_path, monkeypatch, renames):
    """The leftovers are those of a killed process, which has not cleaned up."""
    saved(tmp_path, 1)
    rename, done = Path.rename, []

    def killed(path: Path, target: Path) -> Path:
        if len(done) == renames:
            raise KeyboardInterrupt
        done.append(path)
        return rename(path, target)

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(Path, "rename", killed)
        patch.setattr(checkpoint, "_remove_leftovers", lambda root: None)
        save(tmp_path, 1, "digest", write("later"))
    found = newest(tmp_path, "digest")
    assert found == tmp_path / "step-1"
    assert (found / "state.json").read_text() == ("step 1" if renames == 1 else "later")
    assert not list(tmp_path.glob(".saving-*"))


def test_checkpoints_of_an_identity_that_means_the_same_are_resumed(tmp_path):
    saved(tmp_path, 1, 2)
    assert newest(tmp_path, "new", "digest") == tmp_path / "step-2"
    assert newest(tmp_path, "other") is None
    assert newest(tmp_path, "new", "digest") == tmp_path / "step-2"


@pytest.mark.parametrize("moves", range(4))
def test_a_kill_while_checkpoints_change_places_loses_none(tmp_path, monkeypatch, moves):
    saved(tmp_path, 1, 2)
    rename, done = Path.rename, []

    def killed(path: Path, target: Path) -> Path:
        if len(done) == moves:
            raise KeyboardInterrupt
        done.append(path)
        return rename(path, target)

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        patch.setattr(Path, "rename", killed)
        newest(tmp_path, "other")
        newest(tmp_path, "digest")
    for _ in range(2):
        assert newest(tmp_path, "other") is None
        assert newest(tmp_path, "digest") == tmp_path / "step-2"
        assert (tmp_path / "step-1").is_dir()


def test_a_failed_save_leaves_what_was_there(tmp_path):
    saved(tmp_path, 1)

    def full(folder: Path) -> None:
        (folder / "half").write_text("x")
        raise OSError(28, "No space left on device")

    with pytest.raises(DataError, match="checkpoint 2 cannot be saved: No space left"):
        save(tmp_path, 2, "digest", full)
    assert newest(tmp_path, "digest") == tmp_path / "step-1"
    saved(tmp_path, 2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-1", "step-2"]


def test_a_step_saved_twice_holds_the_later_state(tmp_path):
    saved(tmp_path, 1)
    save(tmp_path, 1, "digest", write("later"))
    found = newest(tmp_path, "digest")
    assert found is not None
    assert (found / "state.json").read_text() == "later"


def test_a_renamed_checkpoint_is_not_taken_for_another_step(tmp_path):
    saved(tmp_path, 1)
    shutil.copytree(tmp_path / "step-1", tmp_path / "step-7")
    assert newest(tmp_path, "digest") == tmp_path / "step-1"


HOLD = """
import sys, time
from pathlib import Path
from turncredit.training.lock import run_lock
with run_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_writer_is_told_who_the_first_is_and_a_dead_one_does_not_block(tmp_path):
    first = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert first.stdout is not None
        assert first.stdout.readline() == "held\n"
        with pytest.raises(RunLockedError, match=f'"pid": {first.pid}'), run_lock(tmp_path):
            pass
        assert json.loads((tmp_path / "lock.json").read_text())["pid"] == first.pid
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.communicate()
    with run_lock(tmp_path):
        assert json.loads((tmp_path / "lock.json").read_text())["pid"] == os.getpid()
