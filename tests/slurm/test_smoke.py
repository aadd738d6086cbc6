"""The whole workflow at scale smoke as SLURM jobs: the resources that were requested, and the results."""

from __future__ import annotations

import re

import pandas as pd
import pytest

from tests.slurm.cluster import ACCOUNT, QOS, Cluster
from tests.slurm.conftest import FRESH, SlurmClone
from turncredit.reporting.catalogue import FIGURES, TABLES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(7200)]

# Rule or group -> minutes of each of its jobs, MB, GPUs: worked out by hand from profiles/slurm/config.yaml and SITE.
ASKED = {
    "world": ([30], 4000, 0),
    "build_index": ([30], 4000, 0),
    "tokenizer": ([30], 4000, 0),
    "base_policy": ([360], 4000, 0),
    "evaluate_initial": ([60] * 3, 4000, 0),
    "train": ([100] * 14, 8000, 2),
    "evaluations-search": ([60, 120], 4000, 1),  # six evaluations of 30 minutes, at most four together
    "evaluations-two_turn": ([90], 4000, 1),
    "evaluations-ablation": ([60], 4000, 1),
    "evaluations-placement": ([90], 4000, 1),
    "collect": ([30] * 5, 4000, 0),
    "pages": ([10] * 25, 4000, 0),  # in two submissions
}


@pytest.fixture(scope="module")
def jobs(cluster: Cluster, finished: SlurmClone) -> dict[str, list[dict[str, str]]]:
    """Rule or group -> its jobs, as SLURM reports them."""
    found: dict[str, list[dict[str, str]]] = {}
    for job in cluster.jobs():
        if job["WorkDir"] == str(finished.root):
            name = job["Comment"].removeprefix("rule_").split("_wildcards_")[0]
            grouped = re.match(r"(pages|evaluations-[a-z_]+?)_(evaluate|audit_table|figure|table)", name)
            found.setdefault(grouped[1] if grouped else name, []).append(job)
    return found


def minutes(job: dict[str, str]) -> int:
    hours, rest, seconds = map(int, job["TimeLimit"].split(":"))
    assert not seconds
    return 60 * hours + rest


def test_every_page_was_made_from_fresh_runs(finished: SlurmClone) -> None:
    for name in FIGURES:
        assert (finished.root / f"figures/smoke/{name}.pdf").stat().st_size > 0
    for name in TABLES:
        assert (finished.root / f"paper_tables/smoke/{name}.tex").stat().st_size > 0
    audit = pd.read_csv(finished.root / "paper_tables/smoke/audit.csv")
    assert set(audit["id"][audit["kind"] == "claim"]) == {str(n) for n in range(1, 25)}


def test_each_rule_asks_for_its_time(jobs: dict[str, list[dict[str, str]]]) -> None:
    asked = {name: sorted(map(minutes, found)) for name, found in jobs.items()}
    pages = asked.pop("pages")
    assert asked == {name: time for name, (time, _, _) in ASKED.items() if name != "pages"}
    # Twelve together, and the audit joins the figure that it waits for, whichever submission has that.
    assert pages == [120, 130]
    assert sum(pages) == sum(ASKED["pages"][0])


def test_each_rule_asks_for_its_memory_and_gpus(jobs: dict[str, list[dict[str, str]]]) -> None:
    for name, (_, mem_mb, gpus) in ASKED.items():
        for job in jobs[name]:
            assert job["MinMemoryNode"] == f"{mem_mb}M", name
            assert job.get("TresPerNode") == (f"gres:gpu:fake:{gpus}" if gpus else None), name
            assert job["Partition"] == ("gpu" if gpus else "cpu"), name
            assert (job["NumNodes"], job["NumCPUs"]) == ("1", "1"), name


def test_every_job_has_the_sites_account_and_qos_and_may_be_requeued(jobs: dict[str, list[dict[str, str]]]) -> None:
    for job in (job for found in jobs.values() for job in found):
        assert (job["Account"], job["QOS"], job["Requeue"]) == (ACCOUNT, QOS, "1")
        assert (job["JobState"], job["Restarts"]) == ("COMPLETED", "0")


def test_a_second_call_submits_nothing(cluster: Cluster, finished: SlurmClone) -> None:
    before = len(cluster.jobs())
    finished.finish("all", *FRESH)
    assert len(cluster.jobs()) == before


def test_a_finished_job_leaves_the_rules_log_and_no_other(finished: SlurmClone) -> None:
    assert (finished.root / "logs/smoke/train/search/MT-PPO/base-0/seed-0.log").exists()
    assert not list((finished.root / "logs/slurm").rglob("*.log"))
