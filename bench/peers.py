"""Peers that live in environments of their own: a program of ours, run there, measures both sides in one process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, field
from pathlib import Path

import turncredit
from bench.results import Found, Measured, NotMeasured
from turncredit.errors import ProcessError


@dataclass(frozen=True, slots=True)
class Peer:
    """A peer and where it is.

    Attributes:
        part: of the benchmark, where the peer is absent.
        module: our program; its arguments are the clone, the scale and how often to repeat.
        python: of the peer's environment.
        remedy: what makes that environment.
        variables: of the program's environment.
    """

    part: str
    module: str
    python: Path
    remedy: str
    variables: Mapping[str, str] = field(default_factory=dict)


def trl(python: Path) -> Peer:
    """TRL's GRPOTrainer."""
    return Peer("a GRPO step beside TRL's", "bench.vs_trl", python, "make bench",
                {"TRL_EXPERIMENTAL_SILENCE": "1"})


def vllm(python: Path) -> Peer:
    """vLLM's CPU build."""
    return Peer("turns beside vLLM's CPU build", "bench.vs_vllm", python, "make test-vllm")


def measured_by(peer: Peer, root: Path, scale: str, repeats: int, threads: int) -> list[Found]:
    """What the peer's program measures, or why it cannot.

    Args:
        peer: whom to ask.
        root: the clone, with data and base policy of the scale.
        scale: its name.
        repeats: measurements of each kind; their medians count.
        threads: of the program, for both sides.

    Raises:
        ProcessError: the program failed: the peer cannot run, or does not compute what we compute.
    """
    if not peer.python.exists():
        return [NotMeasured(peer.part, f"there is no {peer.python} ({peer.remedy} makes it)")]
    environment = os.environ | {
        "PYTHONPATH": str(Path(turncredit.__file__).resolve().parents[1]), "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", **peer.variables}
    done = subprocess.run([str(peer.python), "-m", peer.module, str(root.resolve()), scale, str(repeats)],
                          env=environment, capture_output=True, text=True)
    if done.returncode:
        raise ProcessError(f"{peer.part}: {peer.python} -m {peer.module} ended with code {done.returncode}:\n"
                           f"{_end(done.stderr)}", f"make its environment again: {peer.remedy}")
    return [Measured(*row) for row in json.loads(done.stdout)]


def answer(measure: Callable[[Path, str, int], Iterable[Measured]]) -> None:
    """Be a peer's program: print as JSON what the arguments ask for, and nothing else.

    What libraries and their child processes print meanwhile goes to standard error.
    """
    root, scale, repeats = sys.argv[1:]
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as printed:
        os.dup2(2, 1)
        json.dump([astuple(one) for one in measure(Path(root), scale, int(repeats))], printed)


def _end(text: str, lines: int = 12) -> str:
    return "\n".join(text.strip().splitlines()[-lines:])
