"""Comparisons with programs that need their own Python environment (TRL, vLLM).

One of our modules runs in that environment and measures both sides in one process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path

import turncredit
from bench.results import Measured, NotMeasured, Result
from turncredit.errors import ProcessError

# Where the peer's Python finds ``turncredit`` and ``bench``.
PACKAGES = (Path(turncredit.__file__).resolve().parents[1], Path(__file__).resolve().parents[1])


@dataclass(frozen=True, slots=True)
class Peer:
    """A program to compare with.

    Attributes:
        part: name of the comparison, shown where the program is not installed.
        module: our module that runs in its environment; its arguments are the clone, the scale and the repeats.
        python: the environment's Python.
        remedy: the command that creates the environment.
        variables: environment variables of the module's process.
    """

    part: str
    module: str
    python: Path
    remedy: str
    variables: Mapping[str, str] = field(default_factory=dict)


def trl(python: Path) -> Peer:
    """TRL's GRPOTrainer."""
    return Peer("GRPO step compared with TRL", "bench.vs_trl", python, "make bench",
                {"TRL_EXPERIMENTAL_SILENCE": "1"})


def vllm(python: Path) -> Peer:
    """vLLM's CPU build."""
    return Peer("turns compared with vLLM's CPU build", "bench.vs_vllm", python, "make test-vllm")


def run_peer(peer: Peer, root: Path, scale: str, repeats: int, threads: int) -> list[Result]:
    """Run a comparison in the peer's environment; one ``NotMeasured`` where that environment does not exist.

    Args:
        peer: the program to compare with.
        root: the clone, with data and initial policy of the scale.
        scale: its name.
        repeats: measurements of each kind; the results are their medians.
        threads: number of threads, for both sides.

    Raises:
        ProcessError: the comparison failed: the peer cannot run, or does not compute what we compute.
    """
    if not peer.python.exists():
        return [NotMeasured(peer.part, f"{peer.python} does not exist; {peer.remedy} creates it")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, PACKAGES)), "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **peer.variables}
    done = subprocess.run([str(peer.python), "-m", peer.module, str(root.resolve()), scale, str(repeats)],
                          env=environment, capture_output=True, text=True)
    if done.returncode:
        raise ProcessError(f"{peer.part}: {peer.python} -m {peer.module} exited with code {done.returncode}:\n"
                           f"{_end(done.stderr)}", f"create its environment again: {peer.remedy}")
    return [Measured(*row) for row in json.loads(done.stdout)]


def run_as_peer(measure: Callable[[Path, str, int], Iterable[Measured]]) -> None:
    """The main function of a comparison: measures, and prints the results as JSON on standard output.

    The output of libraries and their child processes goes to standard error.
    """
    root, scale, repeats = sys.argv[1:]
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as printed:
        os.dup2(2, 1)
        json.dump([astuple(one) for one in measure(Path(root), scale, int(repeats))], printed)


def _end(text: str, lines: int = 12) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])
