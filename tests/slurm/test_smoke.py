"""The whole workflow at scale smoke as batch jobs: what SLURM was asked for, and what came of it."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from tests.slurm.cluster import ACCOUNT, GPUS, QOS, Cluster
from tests.slurm.conftest import FRESH, SlurmClone
from turncredit.reporting.figures import FIGURES
from turncredit.reporting.tables import TABLES

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("slurm"), pytest.mark.timeout(2400)]
ARMS = {"search": 6, "two_turn": 3, "ablation": 3, "placement": 2}  # distinct ones: a job each


@pytest.fixture(scope="module")
def jobs(cluster: Cluster, finished: SlurmClone) -> dict[str, list[dict[str, str]]]:
    """Rule or group -> its jobs, as SLURM saw them."""
    found: dict[str, list[dict[str, str]]] = {}
    for job in cluster.jobs():
        if job["WorkDir"] == str(finished.root):
            name = re.sub(r"_wildcards_.*|_(audit_table|evaluate|figure|table)_?.*", "",
                          job["Comment"].removeprefix("rule_"))
            found.setdefault(name, []).append(job)
    return found


def test_every_page_was_made_from_fresh_runs(finished: SlurmClone) -> None:
    for name in FIGURES:
        assert (finished.root / f"figures/smoke/{name}.pdf").stat().st_size > 0
    for name in TABLES:
        assert (finished.root / f"paper_tables/smoke/{name}.tex").stat().st_size > 0
    audit = pd.read_csv(finished.root / "paper_tables/smoke/audit.csv")
    assert set(audit["id"][audit["kind"] == "claim"]) == {str(n) for n in range(1, 25)}


def test_each_rule_is_submitted_as_often_as_it_must_be(jobs: dict[str, list[dict[str, str]]]) -> None:
    print({name: len(found) for name, found in jobs.items()})
    counts = {name: len(found) for name, found in jobs.items()}
    assert counts["train"] == sum(ARMS.values())
