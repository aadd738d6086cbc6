"""Runs a child process that is killed when its parent dies.

    python -m turncredit.child_process COMMAND ...    run COMMAND until it ends or standard input closes

The parent keeps a pipe to this process's standard input; the kernel closes it when the parent dies.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

STOP_S = 20.0  # seconds between SIGINT and SIGKILL


def run_with_parent(command: Sequence[str]) -> int:
    """Run a command and return its exit code; when standard input closes, kill its process group.

    This process must be the leader of its own process group (``start_new_session=True``).
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores SIGINT
    child, parent_died = subprocess.Popen(command, stdin=subprocess.DEVNULL), threading.Event()

    def stop_with_parent() -> None:
        while os.read(0, 1024):
            pass
        parent_died.set()
        child.send_signal(signal.SIGINT)  # SIGTERM may be blocked: a cluster sends it to all processes of a job
        time.sleep(STOP_S)
        child.kill()

    threading.Thread(target=stop_with_parent, daemon=True).start()
    code = child.wait()
    if parent_died.is_set():
        os.killpg(0, signal.SIGKILL)  # kills the command's own children, and this process
    return code


if __name__ == "__main__":
    sys.exit(run_with_parent(sys.argv[1:]))
