"""Imported runs are complete, answer the right questions, and are labelled on every page."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from tests import synthetic_runs as synthetic
from turncredit.cli import main as cli
from turncredit.config.load import RunConfig, Scale
from turncredit.errors import ConfigError, DataError
from turncredit.reporting.audit import audit
from turncredit.reporting.imported import import_run, imported_run
from turncredit.reporting.reported import read_reported
from turncredit.reporting.runs import collect, read_folders
from turncredit.reporting.scores import Results
from turncredit.reporting.tables.builders import tabulate

ROOT = Path(__file__).parents[2]
LONG = synthetic.scale(2)
SCALE = LONG.model_copy(update={"experiments": {  # the synthetic runs are as long as this scale's
    name: found.model_copy(update={"training": found.training.model_copy(update={"steps": synthetic.STEPS})})
    for name, found in LONG.experiments.items()}})
CONFIG = SCALE.run("search", "MT-PPO", 1)
WHEN = "2026-01-01T00:00:00+00:00"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of an external run."""
    return synthetic.write_run(tmp_path / "theirs", CONFIG, SCALE)


def imported(run: Path, root: Path, config: RunConfig = CONFIG, scale: Scale = SCALE, label: str = "a friend's cluster",
          questions: list[tuple[str, str]] | None = None) -> Path:
    return import_run(run, config, scale, label, root, questions, WHEN)


def asked(run: Path) -> list[tuple[str, str]]:
    cells = pd.read_csv(run / "evaluation.csv", dtype=str)
    return list(zip(cells["dataset"], cells["question_id"], strict=True))


def manifest(run: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((run / "manifest.json").read_text())
    return found


def test_a_run_comes_in_with_its_bytes_and_says_what_was_checked(run: Path, tmp_path: Path) -> None:
    copy = imported(run, tmp_path, questions=asked(run))
    assert copy == tmp_path / "results/imported/mini/search/MT-PPO/base-0/seed-1"
    for name in ("metrics.csv", "evaluation.csv"):
        assert (copy / name).read_bytes() == (run / name).read_bytes()
    origin = manifest(copy)["origin"]
    assert isinstance(origin, dict)
    assert origin["manifest"] == manifest(run)
    assert (origin["label"], origin["settings"], origin["questions"]) == ("a friend's cluster", "the same", "the same")
    (run / "manifest.json").unlink()
    shutil.rmtree(copy)
    origin = manifest(imported(run, tmp_path))["origin"]
    assert isinstance(origin, dict)
    assert (origin["settings"], origin["questions"]) == ("as declared, not checked", "not compared")


def collected(tmp_path: Path, copy: Path) -> Results:
    mine = synthetic.write_run(tmp_path / "mine", SCALE.run("search", "MT-PPO", 0), SCALE)
    other = synthetic.write_run(tmp_path / "mine", SCALE.run("search", "PPO-OR", 0), SCALE)
    collect("search", [mine, other, copy], tmp_path / "results/mini/search", SCALE)
    return Results(SCALE, read_folders([tmp_path / "results/mini/search"], SCALE))


def test_its_origin_stands_beside_every_number(run: Path, tmp_path: Path) -> None:
    found = collected(tmp_path, imported(run, tmp_path))
    arm, own = found.arm("search", "MT-PPO"), found.arm("search", "PPO-OR")
    assert arm is not None
    assert own is not None
    assert arm.source == "fresh (1 of 2 runs), imported: a friend's cluster (1 of 2 runs)"
    assert own.source == "fresh"
    reported = read_reported(ROOT / "paper_tables/reported")
    entries = {entry.id: entry for entry in audit(found.runs, SCALE, reported)}
    assert "imported: a friend's cluster" in entries["t2-mt-ppo-nq-answer-correct"].runs
    table = tabulate("table2_answer", found.runs, SCALE, reported)
    row = next(row for row in table.blocks[0].rows if row.label == "MT-PPO")
    assert "imported: a friend's cluster" in row.remark


def test_a_run_without_metrics_counts_in_scores_and_in_no_curve(run: Path, tmp_path: Path) -> None:
    (run / "metrics.csv").unlink()
    (run / "manifest.json").unlink()
    found = collected(tmp_path, imported(run, tmp_path))
    arm = found.arm("search", "MT-PPO")
    assert arm is not None
    assert arm.runs == ((0, 0), (0, 1))
    assert set(arm.metrics["seed"]) == {0}
    only = synthetic.write_run(tmp_path / "only", SCALE.run("search", "MT-PPO", 0), SCALE)
    (only / "metrics.csv").unlink()
    (only / "manifest.json").unlink()
    alone = imported(only, tmp_path / "elsewhere", SCALE.run("search", "MT-PPO", 0))
    collect("search", [alone], tmp_path / "alone/search", SCALE)
    runs = read_folders([tmp_path / "alone/search"], SCALE)
    entries = audit(runs, SCALE, read_reported(ROOT / "paper_tables/reported"))
    notes = {entry.id: entry.note for entry in entries}
    assert "no metrics of training" in notes["8a"] or "no runs of ablation" in notes["8a"]
    assert next(e for e in entries if e.id == "t2-mt-ppo-nq-answer-correct").ours is not None


@pytest.mark.parametrize("tokenizer", [True, False])
def test_a_checkpoint_comes_in_as_links_and_waits_for_its_evaluation(
        run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tokenizer: bool) -> None:
    theirs = tmp_path / "checkpoint"
    theirs.mkdir()
    (theirs / "config.json").write_text("{}")
    (theirs / "model.safetensors").write_bytes(b"weights")
    with pytest.raises(DataError, match="snakemake data"):
        imported(theirs, tmp_path)
    with pytest.raises(DataError, match="without its tokenizer"):
        imported(theirs, tmp_path, questions=asked(run))
    (theirs / "tokenizer.json").write_text("{}")
    copy = imported(theirs, tmp_path, questions=asked(run))
    assert (copy / "policy/model.safetensors").read_bytes() == b"weights"
    assert not (copy / "evaluation.csv").exists()
    played = []
    monkeypatch.setattr("turncredit.training.run.evaluate_run",
                        lambda policy, *_, output, **__: played.append((policy, output)))
    (tmp_path / "config").symlink_to(ROOT / "config")
    done = CliRunner().invoke(cli.app, ["evaluate", "--scale", "mini", "--experiment", "search", "--arm", "MT-PPO",
                                        "--seed", "1", "--root", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert played == [(copy / "policy", copy / "evaluation.csv")]
    name = "tokenizer.json" if tokenizer else "model.safetensors"
    (theirs / name).write_bytes(b"others")
    done = CliRunner().invoke(cli.app, ["evaluate", "--scale", "mini", "--experiment", "search", "--arm", "MT-PPO",
                                        "--seed", "1", "--root", str(tmp_path)])
    assert len(played) == 1
    assert done.exit_code == 2
    assert "has changed since its import" in done.output


def test_a_run_that_was_cut_and_a_misspelt_arm_are_refused(run: Path, tmp_path: Path) -> None:
    metrics = pd.read_csv(run / "metrics.csv", dtype=str)
    metrics.iloc[:-1].to_csv(run / "metrics.csv", index=False)
    with pytest.raises(DataError, match=r"ends at step \d+ of"):
        imported(run, tmp_path)
    with pytest.raises(ConfigError, match="no arm 'MT-PO' in experiment 'search'"):
        SCALE.identical("search", "MT-PO")


def without(column: str, run: Path) -> None:
    path = run / "evaluation.csv"
    pd.read_csv(path, dtype=str, keep_default_na=False).drop(columns=column).to_csv(path, index=False)


@pytest.mark.parametrize(("damage", "says"), [
    (lambda run: without("stop_reason", run), "'stop_reason' is missing"),
    (lambda run: (run / "metrics.csv").write_text("step\n0\n"), "column 'wall_s' is missing"),
    (lambda run: (run / "evaluation.csv").write_text(
        (run / "evaluation.csv").read_text().replace("\nchain,", "\nchains,")), "no greedy episodes of 'chain'"),
    (lambda run: (run / "evaluation.csv").unlink(), "neither evaluation.csv nor a checkpoint"),
    (lambda run: (run / "manifest.json").write_text("{"), "cannot be read"),
    (lambda run: (run / "manifest.json").write_text((run / "manifest.json").read_text().replace(
        '"learning_rate": 0.0003', '"learning_rate": 0.0004')), "not the hash of its config"),
])
def test_what_is_no_such_run_is_refused(run: Path, tmp_path: Path, damage: object, says: str) -> None:
    assert callable(damage)
    damage(run)
    with pytest.raises(DataError, match=says):
        imported(run, tmp_path)
    assert not imported_run(tmp_path, CONFIG).exists()


def test_other_questions_another_arm_and_a_second_run_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not evaluated on our test questions"):
        imported(run, tmp_path, questions=asked(run)[1:])
    with pytest.raises(DataError, match="belongs to search/MT-PPO/base-0/seed-1"):
        imported(run, tmp_path, SCALE.run("search", "MT-PPO", 0))
    for label in ("", " ", "a;b"):
        with pytest.raises(ConfigError, match="--label"):
            imported(run, tmp_path, label=label)
    imported(run, tmp_path)
    with pytest.raises(DataError, match="already imported"):
        imported(run, tmp_path)
