"""A command never outlives its owner, and is otherwise as if there were no guard."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path


def test_a_command_and_its_children_do_not_outlive_the_process_that_started_it():
    """The guard's pipe closes, as it does when its owner is killed: the command and its children go."""
    owner = subprocess.Popen(
        [sys.executable, "-m", "turncredit.child_process", sys.executable, "-c",
         "import os, subprocess, sys, time; child = subprocess.Popen(['sleep', '600']); print(os.getpid(), child.pid,"
         " flush=True); time.sleep(600)"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True)
    assert owner.stdin
    assert owner.stdout
    pids = [int(pid) for pid in owner.stdout.readline().split()]
    owner.stdin.close()
    owner.wait(20)
    end = time.monotonic() + 20
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < end
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Whether a process runs; one that ended and waits for its parent to notice does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_command_that_ends_gives_its_code():
    guard = [sys.executable, "-m", "turncredit.child_process", sys.executable, "-c", "raise SystemExit(7)"]
    with subprocess.Popen(guard, stdin=subprocess.PIPE, start_new_session=True) as process:
        assert process.wait(30) == 7
