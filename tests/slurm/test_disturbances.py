"""Training runs that are killed, cancelled, out of time, requeued or on a drained node, and a rule that fails.

All of this happens during one call of Snakemake, in a copy of the finished clone with longer runs. Each run is stopped
(SIGSTOP) as soon as it has a checkpoint, so that it cannot finish before it is disturbed. A second call is interrupted,
and a third call finishes the rest.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

from tests.slurm.cluster import NODES, Cluster, until
from tests.slurm.conftest import FRESH, SlurmClone, copied
from turncredit.files import sha256

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
LONGER = "{steps: 12, tokens_per_step: 300, group_size: 4, validate_every: 12, checkpoint_every: 2}"
KILLED, CANCELLED, OVERTIME, REQUEUED, LOCKED = "MT-PPO", "GRPO-OR", "PPO-MR", "PPO-OR", "GRPO-MR"
STAYS = "MT-GRPO"  # runs on the node that is drained
DISTURBED = (KILLED, CANCELLED, OVERTIME, REQUEUED, STAYS)


@dataclass(frozen=True)
class Run:
    """One arm's run in a clone."""

    on: SlurmClone
    arm: str

    @property
    def metrics(self) -> str:
        return f"results/smoke/search/{self.arm}/base-0/seed-0/metrics.csv"

    @property
    def checkpoints(self) -> Path:
        return self.on.root / "checkpoints/smoke/search" / self.arm / "base-0" / "seed-0"

    @property
    def pid(self) -> int:
        """The process that trains, or the last one that did."""
        pid = json.loads((self.checkpoints / "lock.json").read_text())["pid"]
        assert isinstance(pid, int)
        return pid

    @property
    def jobs(self) -> list[dict[str, str]]:
        """Its jobs, oldest first."""
        comment = f"rule_train_wildcards_smoke_search_{self.arm}_0_0"  # base policy and seed
        return [job for job in self.on.cluster.jobs()
                if (job["WorkDir"], job.get("Comment")) == (str(self.on.root), comment)]

    @property
    def manifest(self) -> dict[str, object]:
        found = json.loads((self.on.root / self.metrics).with_name("manifest.json").read_text())
        assert isinstance(found, dict)
        return found

    def result(self) -> tuple[str, pd.DataFrame]:
        """The hash of its final weights, and its metrics without times."""
        rows = pd.read_csv(self.on.root / self.metrics)
        timeless = rows[[name for name in rows if name != "wall_s" and not name.startswith("seconds_")]]
        return sha256(self.checkpoints / "final" / "model.safetensors"), timeless


def signal_run(run: Run, number: signal.Signals) -> None:
    os.kill(run.pid, number)


def stop_each(runs: list[Run]) -> None:
    """Stop each run once it has a checkpoint."""
    waiting = list(runs)

    def all_stopped() -> bool:
        for run in list(waiting):
            if any(run.checkpoints.glob("step-*")):
                signal_run(run, signal.SIGSTOP)
                assert not (run.checkpoints / "final").exists(), f"{run.arm} was too fast"
                waiting.remove(run)
        return not waiting

    until(all_stopped, within_s=300, every_s=0.02, what=f"{[run.arm for run in runs]} have a checkpoint")


def warned(run: Run) -> bool:
    """Whether SIGUSR1 is pending for a stopped run, or the run has ended because SLURM also sent SIGCONT."""
    try:
        status = Path(f"/proc/{run.pid}/status").read_text()
    except FileNotFoundError:
        return True
    pending = re.findall(r"^(?:Sig|Shd)Pnd:\s*([0-9a-f]+)$", status, re.MULTILINE)
    return any(int(mask, 16) >> (signal.SIGUSR1 - 1) & 1 for mask in pending)


@pytest.fixture(scope="module")
def longer(finished: SlurmClone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmClone]:
    """The finished clone without its runs, configured for longer runs."""
    clone = copied(finished, tmp_path_factory.mktemp("disturbed") / "clone", without=("results", "checkpoints"))
    path = clone.root / "config" / "smoke.yaml"
    written, count = re.subn(r"(training: &training) \{.*\}", rf"\1 {LONGER}", path.read_text())
    assert count == 1
    path.write_text(written)
    site = clone.root / "profiles" / "slurm" / "site.yaml"
    site.write_text(site.read_text().replace("status_command: sacct", "status_command: squeue"))
    yield clone
    shutil.rmtree(clone.root)


@pytest.fixture(scope="module")
def undisturbed(longer: SlurmClone, tmp_path_factory: pytest.TempPathFactory) -> SlurmClone:
    """The same runs, without cluster and without disturbance."""
    quiet = copied(longer, tmp_path_factory.mktemp("undisturbed") / "clone")
    for arm in (*DISTURBED, LOCKED):
        command = [str(Path(sys.executable).with_name("turncredit")), "train", "--scale", "smoke",
                   "--experiment", "search", "--arm", arm, "--seed", "0"]
        done = subprocess.run(command, cwd=quiet.root, text=True, capture_output=True, check=False,
                              env=os.environ | {"OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr
    return quiet


@dataclass(frozen=True)
class Observed:
    """Observations during the three calls.

    Attributes:
        clone: the clone of the calls.
        first: output of the first call.
        first_code: exit code of the first call.
        stayed_on: the node that was drained.
        interrupted_queue: ids of the queued jobs after the second call was interrupted.
        third: output of the third call.
    """

    clone: SlurmClone
    first: str
    first_code: int
    stayed_on: str
    interrupted_queue: list[str]
    third: str

    def run(self, arm: str) -> Run:
        return Run(self.clone, arm)


@pytest.fixture(scope="module")
def observed(longer: SlurmClone, undisturbed: SlurmClone, cluster: Cluster) -> Observed:
    runs = {arm: Run(longer, arm) for arm in (*DISTURBED, LOCKED)}
    targets = [run.metrics for run in runs.values()]
    locked = runs[LOCKED].checkpoints
    locked.mkdir(parents=True)
    with (locked / "lock.json").open("w") as lock, longer.snakemake(*targets, *FRESH, "--retries", "1") as call:
        fcntl.flock(lock, fcntl.LOCK_EX)
        print("held by the test", file=lock, flush=True)
        stop_each([runs[arm] for arm in DISTURBED])
        stayed_on = runs[STAYS].jobs[0]["NodeList"]
        cluster.run("scontrol", "update", f"NodeName={stayed_on}", "State=DRAIN", "Reason=test")
        requeued = runs[REQUEUED].jobs[0]["JobId"]
        cluster.run("scontrol", "requeue", requeued)
        cluster.run("scancel", runs[CANCELLED].jobs[0]["JobId"])
        signal_run(runs[KILLED], signal.SIGKILL)
        signal_run(runs[STAYS], signal.SIGCONT)
        until(lambda: runs[REQUEUED].jobs[0]["JobState"] == "PENDING", within_s=60, what="a job is requeued")
        cluster.run("scontrol", "update", f"JobId={requeued}", "StartTime=now")  # SLURM would wait for two minutes
        overtime = runs[OVERTIME].jobs[0]
        hours, minutes, _ = map(int, overtime["RunTime"].split(":"))
        cluster.run("scontrol", "update", f"JobId={overtime['JobId']}", f"TimeLimit={60 * hours + minutes + 2}")
        until(lambda: warned(runs[OVERTIME]), within_s=180, what="SLURM warns a run that is nearly out of time")
        with suppress(ProcessLookupError):
            signal_run(runs[OVERTIME], signal.SIGCONT)
        code = call.wait(timeout=600)
        first = longer.log.read_text()
    cluster.run("scontrol", "update", f"NodeName={stayed_on}", "State=RESUME")

    with longer.snakemake(*targets, *FRESH) as call:
        stop_each([runs[LOCKED]])
        call.send_signal(signal.SIGINT)
        until(lambda: not cluster.queue(), within_s=60, what="the jobs of an interrupted call are cancelled")
        call.wait(timeout=120)
        queue = cluster.queue()
    third = longer.finish(*targets, *FRESH)
    return Observed(longer, first, code, stayed_on, queue, third)


@pytest.mark.parametrize("arm", [*DISTURBED, LOCKED])
def test_a_disturbed_run_ends_with_the_bits_of_an_undisturbed_one(
        observed: Observed, undisturbed: SlurmClone, arm: str) -> None:
    weights, rows = observed.run(arm).result()
    expected_weights, expected_rows = Run(undisturbed, arm).result()
    pd.testing.assert_frame_equal(rows, expected_rows, check_exact=True)
    assert weights == expected_weights
    assert bool(observed.run(arm).manifest["resumed_from"]) == (arm != STAYS)


def test_a_killed_run_is_submitted_again_with_more_time(observed: Observed) -> None:
    first, second = observed.run(KILLED).jobs
    assert (first["JobState"], second["JobState"]) == ("FAILED", "COMPLETED")
    assert (first["TimeLimit"], second["TimeLimit"]) == ("01:40:00", "03:20:00")


def test_a_cancelled_job_is_submitted_again(observed: Observed) -> None:
    assert [job["JobState"] for job in observed.run(CANCELLED).jobs] == ["CANCELLED", "COMPLETED"]


def test_a_run_that_is_nearly_out_of_time_saves_and_is_submitted_again(observed: Observed) -> None:
    first, second = observed.run(OVERTIME).jobs
    assert first["JobState"] in ("FAILED", "TIMEOUT")
    assert (second["TimeLimit"], second["JobState"]) == ("03:20:00", "COMPLETED")
    assert "stopped by SIGUSR1; saved" in observed.first


def test_a_job_that_slurm_requeues_resumes_as_the_same_job(observed: Observed) -> None:
    only, = observed.run(REQUEUED).jobs
    assert (only["JobState"], only["Restarts"]) == ("COMPLETED", "1")


def test_a_drained_node_ends_its_job_and_gets_no_other(observed: Observed) -> None:
    only, = observed.run(STAYS).jobs
    assert (only["JobState"], only["NodeList"]) == ("COMPLETED", observed.stayed_on)
    other, = set(NODES) - {observed.stayed_on}
    assert observed.run(REQUEUED).jobs[-1]["NodeList"] == other


def test_a_failing_rule_shows_its_log_and_leaves_the_rest_running(observed: Observed) -> None:
    assert observed.first_code != 0
    assert "another run writes here" in observed.first or "another process writes this run" in observed.first
    assert "held by the test" in observed.first
    failed = [job["JobState"] for job in observed.run(LOCKED).jobs]
    assert failed[:2] == ["FAILED", "FAILED"], "it is retried as often as the call says"


def test_an_interrupted_call_cancels_its_jobs_and_the_next_one_finishes(observed: Observed) -> None:
    assert observed.interrupted_queue == []
    assert [job["JobState"] for job in observed.run(LOCKED).jobs][2:] == ["CANCELLED", "COMPLETED"]
    assert "1 of 1 steps (100%) done" in observed.third
