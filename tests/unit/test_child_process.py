"""A child process dies with its parent, and otherwise behaves as if it were started directly."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path


def test_a_command_and_its_children_are_killed_when_the_parents_pipe_closes():
    """The kernel closes the pipe when the parent dies."""
    wrapper = subprocess.Popen(
        [sys.executable, "-m", "turncredit.child_process", sys.executable, "-c",
         "import os, subprocess, sys, time; child = subprocess.Popen(['sleep', '600']); print(os.getpid(), child.pid,"
         " flush=True); time.sleep(600)"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True, text=True)
    assert wrapper.stdin
    assert wrapper.stdout
    pids = [int(pid) for pid in wrapper.stdout.readline().split()]
    wrapper.stdin.close()
    wrapper.wait(20)
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


def test_the_commands_exit_code_is_returned():
    command = [sys.executable, "-m", "turncredit.child_process", sys.executable, "-c", "raise SystemExit(7)"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:
        assert process.wait(30) == 7
