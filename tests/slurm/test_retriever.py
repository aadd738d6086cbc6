"""The retrieval server as a cluster job: runs share it, it outlives a killed run, and it ends after its last user."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator

import pandas as pd
import pytest

from tests.slurm.cluster import ACCOUNT, QOS, until
from tests.slurm.conftest import FRESH, SlurmClone, copied
from tests.slurm.test_disturbances import Run, signal_run, stop_each

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]
ARMS = ("PPO-OR", "GRPO-OR")
KILLED = "PPO-OR"
RETRIEVER = """
retriever:
  location: job
  server: {host: 127.0.0.1, threads: 1, mem_mb: 2000, runtime: 60, start_s: 300, lease_s: 60, linger_s: 10}
"""


def servers(clone: SlurmClone) -> list[dict[str, str]]:
    """The jobs of a clone that run the server."""
    return [job for job in clone.cluster.jobs()
            if (job["WorkDir"], job["JobName"]) == (str(clone.root), "turncredit-retriever")]


@pytest.fixture(scope="module")
def served(finished: SlurmClone, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmClone]:
    """A clone where two runs, of which one was killed, were trained with one server."""
    clone = copied(finished, tmp_path_factory.mktemp("served") / "clone", without=("results", "checkpoints"))
    with (clone.root / "config" / "smoke.yaml").open("a") as config:
        config.write(RETRIEVER)
    runs = {arm: Run(clone, arm) for arm in ARMS}
    with clone.snakemake(*(run.metrics for run in runs.values()), *FRESH, "--retries", "1") as call:
        stop_each([runs[KILLED]])
        signal_run(runs[KILLED], signal.SIGKILL)
        assert call.wait(timeout=1200) == 0, clone.log.read_text()
    yield clone
    shutil.rmtree(clone.root)


def test_all_runs_share_one_job_that_outlives_a_killed_one(served: SlurmClone) -> None:
    assert [job["JobState"] for job in Run(served, KILLED).jobs] == ["FAILED", "COMPLETED"]
    assert len(servers(served)) == 1


def test_its_job_asks_for_what_the_configuration_and_the_site_say(served: SlurmClone) -> None:
    job, = servers(served)
    assert (job["Account"], job["QOS"], job["Partition"]) == (ACCOUNT, QOS, "cpu")
    assert (job["NumCPUs"], job["MinMemoryNode"], job["TimeLimit"]) == ("1", "2000M", "01:00:00")


def test_it_ends_by_itself_after_its_last_user(served: SlurmClone) -> None:
    until(lambda: servers(served)[0]["JobState"] == "COMPLETED", within_s=180, every_s=1, what="the server's job ends")


@pytest.mark.parametrize("arm", ARMS)
def test_where_it_runs_changes_no_bit(served: SlurmClone, finished: SlurmClone, arm: str) -> None:
    weights, rows = Run(served, arm).result()
    expected_weights, expected_rows = Run(finished, arm).result()
    pd.testing.assert_frame_equal(rows, expected_rows, check_exact=True)
    assert weights == expected_weights
