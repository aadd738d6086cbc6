"""Fixtures: a SLURM cluster on this machine, and clones whose jobs run on it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.slurm.cluster import ACCOUNT, QOS, Cluster, running, why_not
from tests.workflow.conftest import Clone, make_clone

# Requests GPUs, which the profile does not at scale smoke, so that the tests can see them requested.
SITE = f"""
account: {ACCOUNT}
qos: {QOS}
partition: cpu
gpu_partition: gpu
gpu_model: fake
max_runtime: 600
warning_s: 20
status_command: sacct
needs:
  train: {{gpu: 2, runtime: 100}}
  evaluate: {{gpu: 1}}
"""
FRESH = ("--config", "scale=smoke", "runs=fresh")


def restore_interrupts() -> None:
    """Let a new process receive SIGINT: it would inherit that tests in a shell's background ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass(frozen=True)
class SlurmClone:
    """A clone on a cluster."""

    clone: Clone
    cluster: Cluster

    @property
    def root(self) -> Path:
        return self.clone.root

    @property
    def log(self) -> Path:
        """The output of the last Snakemake call."""
        return self.root / "snakemake.log"

    @contextmanager
    def snakemake(self, *arguments: str) -> Iterator[subprocess.Popen[str]]:
        """Run `snakemake --profile slurm ARGUMENTS` during the block, and interrupt it at its end."""
        command = [sys.executable, "-m", "snakemake", "--profile", "slurm", *arguments,
                   "--slurm-init-seconds-before-status-checks", "3", "--latency-wait", "20"]
        with self.log.open("w") as log, subprocess.Popen(
                command, cwd=self.root, text=True, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env=os.environ | self.cluster.environment | {"OMP_NUM_THREADS": "1"},
                preexec_fn=restore_interrupts) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    process.send_signal(signal.SIGINT)
                    process.wait(timeout=120)

    def finish(self, *arguments: str, timeout_s: float = 3600) -> str:
        """The output of a call that must succeed."""
        with self.snakemake(*arguments) as process:
            assert process.wait(timeout=timeout_s) == 0, self.log.read_text()
        return self.log.read_text()


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    if (reason := why_not()):
        pytest.skip(reason)
    with running() as cluster:
        yield cluster


def on(cluster: Cluster, root: Path) -> SlurmClone:
    """A new clone at ``root`` whose jobs run on the cluster."""
    clone = make_clone(root)
    (root / "profiles" / "slurm" / "site.yaml").write_text(SITE)
    return SlurmClone(clone, cluster)


@pytest.fixture(scope="session")
def finished(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmClone]:
    """A clone in which one call ran all of scale smoke on the cluster."""
    made = on(cluster, tmp_path_factory.mktemp("slurm") / "clone")
    made.finish("all", *FRESH)
    yield made
    shutil.rmtree(made.root)


def copied(finished: SlurmClone, root: Path, *, without: Sequence[str] = ()) -> SlurmClone:
    """A copy of a finished clone with its file times, ``without`` some folders."""
    shutil.copytree(finished.root, root, symlinks=True, ignore=shutil.ignore_patterns("server", *without))
    return SlurmClone(Clone(root), finished.cluster)
