"""The whole workflow at scale smoke, really run.

Its tests share the finished run, so one worker runs all of them (``--dist loadfile``).
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from tests.workflow.conftest import Clone, make_clone
from turncredit.config.load import load_scale
from turncredit.reporting.catalogue import FIGURES, TABLES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
SMOKE = ("--config", "scale=smoke", "runs=fresh")
LIMIT_S = 2000.0  # three minutes where nothing else runs


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clone]:
    """A clone in which `make smoke` was killed half-way and then run again."""
    clone = make_clone(tmp_path_factory.mktemp("smoke") / "a clone")
    (clone.root / ".venv").mkdir()
    (clone.root / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    (clone.root / ".venv" / ".installed").touch()
    with (clone.root / "first.log").open("w") as log:
        first = subprocess.Popen(["make", "smoke", "CORES=2"], cwd=clone.root, stdout=log, stderr=log,
                                 stdin=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + LIMIT_S
        while not (clone.root / "results/smoke/search").exists():
            assert first.poll() is None, (clone.root / "first.log").read_text()
            assert time.monotonic() < deadline, "no training run has started"
            time.sleep(0.2)
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    assert not (clone.root / "paper_tables/smoke/audit.csv").exists()
    assert list((clone.root / ".snakemake/locks").iterdir()), "the killed workflow leaves its lock"
    clone.run("make", "smoke", "CORES=2", timeout_s=LIMIT_S)
    yield clone
    shutil.rmtree(clone.root)


def test_every_page_is_there(finished: Clone) -> None:
    for name in FIGURES:
        for end in ("pdf", "png", "csv"):
            assert (finished.root / f"figures/smoke/{name}.{end}").stat().st_size > 0
    for name in TABLES:
        for end in ("csv", "md", "tex"):
            assert (finished.root / f"paper_tables/smoke/{name}.{end}").stat().st_size > 0
    audit = pd.read_csv(finished.root / "paper_tables/smoke/audit.csv")
    assert set(audit["id"][audit["kind"] == "claim"]) == {str(n) for n in range(1, 25)}
    assert not audit["runs"].str.contains("shipped", na=False).any()


def test_every_run_has_its_files_and_a_policy(finished: Clone) -> None:
    scale = load_scale("smoke", finished.root / "config")
    for experiment, settings in scale.experiments.items():
        for arm in settings.arms:
            where, name = scale.identical(experiment, arm)
            run = Path("smoke", where, name, "base-0", "seed-0")
            assert {p.name for p in (finished.root / "results" / run).iterdir()} == {
                "metrics.csv", "manifest.json", "episodes.jsonl", "evaluation.csv", "evaluation.episodes.jsonl"}
            assert (finished.root / "checkpoints" / run / "final" / "config.json").exists()


def test_the_cached_evaluation_of_training_equals_one_made_afterwards(finished: Clone) -> None:
    run = "smoke/search/MT-PPO/base-0/seed-0"
    assert not list((finished.root / "checkpoints" / run).glob("evaluation-*"))
    path = finished.root / "results" / run / "evaluation.csv"
    before, played = path.read_bytes(), path.stat()
    finished.run(".venv/bin/turncredit", "evaluate", "--scale", "smoke", "--experiment", "search", "--arm", "MT-PPO")
    assert path.read_bytes() == before
    os.utime(path, ns=(played.st_atime_ns, played.st_mtime_ns))  # so that Snakemake sees no change


def test_the_headline_says_where_the_pages_are(finished: Clone) -> None:
    output = finished.run(".venv/bin/turncredit", "headline", "--scale", "smoke").stdout
    assert "paper_tables/smoke/audit.md" in output
    assert "MT-PPO" in output


def test_the_audit_is_printed(finished: Clone) -> None:
    assert "| reported | ours |" in finished.snakemake("audit", *SMOKE).stdout


def test_a_second_run_does_nothing(finished: Clone) -> None:
    assert finished.jobs(*SMOKE) == {}


def test_the_report_is_made_offline_with_captions(finished: Clone) -> None:
    finished.snakemake("--report", "report.html", *SMOKE)
    report = (finished.root / "report.html").read_text()
    assert "fig3_training_dynamics" in report
    assert "centred means over 3 steps" in report
    opening = report[report.index("workflow_desc"):]
    opening = opening[:opening.index("\n")]  # one line of JSON: the headline, its figure and the links
    link = "showResultInfo('paper_tables/smoke/audit.md')"
    for words in ("final exact match", "MT-PPO", "data:image/png;base64", link):
        assert words in opening


def test_a_fresh_clone_plots_shipped_runs_without_training(finished: Clone, tmp_path: Path) -> None:
    finished.snakemake("ship_runs", *SMOKE)
    fresh = make_clone(tmp_path / "fresh")
    shutil.move(finished.root / "results/shipped/smoke", fresh.root / "results/shipped/smoke")
    page = "figures/smoke/fig3_training_dynamics.pdf"
    assert fresh.jobs(page) == {"figure_fig3_training_dynamics": 1}
    said = fresh.snakemake(page).stdout
    assert "from results/shipped/smoke/search" in said
    assert (fresh.root / page).exists()
    assert not (fresh.root / "data").exists()

