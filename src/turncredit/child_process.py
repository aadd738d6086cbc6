"""A command that ends with the process that started it, however that ends: the pipe between them closes.

    python -m turncredit.child_process COMMAND ...    run COMMAND until it ends or standard input does
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

STOP_S = 20.0  # between a polite end and a sure one


def guard(words: Sequence[str]) -> int:
    """Run a command; its exit code. At the end of standard input its whole process group ends.

    To be started as the leader of a process group of its own.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
    child, owner_gone = subprocess.Popen(words, stdin=subprocess.DEVNULL), threading.Event()

    def end_with_owner() -> None:
        while os.read(0, 1024):
            pass
        owner_gone.set()
        child.send_signal(signal.SIGINT)  # SIGTERM may be blocked: a cluster sends it to all processes of a job
        time.sleep(STOP_S)
        child.kill()

    threading.Thread(target=end_with_owner, daemon=True).start()
    code = child.wait()
    if owner_gone.is_set():
        os.killpg(0, signal.SIGKILL)  # what children the command has left, and this process
    return code


if __name__ == "__main__":
    sys.exit(guard(sys.argv[1:]))
