"""Run files are refused with the file, line, column and remedy; what is collected is what was written."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests import synthetic_runs as synthetic
from turncredit.episodes.records import EpisodeRecord, GroupRecord, TurnRecord, write_records
from turncredit.errors import ConfigError, DataError
from turncredit.reporting.integrity import write_sums
from turncredit.reporting.runs import FILES as COLLECTED
from turncredit.reporting.runs import collect, read_collected, read_folders
from turncredit.reporting.schema import metrics_schema
from turncredit.reporting.scores import Results, run_counts, sources
from turncredit.tasks.registry import TASKS

SCALE = synthetic.scale()
FILES = ("metrics.csv", "evaluation.csv.gz", "manifests.json")


@pytest.fixture
def pair(tmp_path: Path) -> list[Path]:
    """Two finished runs of search."""
    return [synthetic.write_run(tmp_path / "runs", SCALE.run("search", arm, 0), SCALE) for arm in ("PPO-OR", "MT-PPO")]


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return synthetic.results(tmp_path_factory.mktemp("all"), {"search": 2, "ablation": 2, "untrained": 1})


def test_collected_cells_are_the_runs_own(pair: list[Path], tmp_path: Path) -> None:
    collect("search", pair, tmp_path / "search", SCALE)
    runs = read_collected(tmp_path / "search", "fresh", SCALE)
    for folder, arm in zip(pair, ("PPO-OR", "MT-PPO"), strict=True):
        written = pd.read_csv(folder / "evaluation.csv", keep_default_na=False)
        kept = runs.evaluation[runs.evaluation["arm"] == arm].reset_index(drop=True)
        pd.testing.assert_frame_equal(kept[written.columns.tolist()], written, check_dtype=False)
    assert set(runs.evaluation["prediction"]) == {"NA", ""}  # a country's code is no missing value
    assert runs.manifests["MT-PPO/base-0/seed-0"]["seed"] == 0


def test_the_order_of_the_runs_changes_no_byte(pair: list[Path], tmp_path: Path) -> None:
    collect("search", pair, tmp_path / "a", SCALE)
    collect("search", pair[::-1], tmp_path / "b", SCALE)
    for file in FILES:
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert (tmp_path / "a" / FILES[1]).read_bytes()[4:8] == b"\0\0\0\0"  # no time in the gzip header


def test_an_arm_that_is_the_same_as_another_is_collected_under_its_own_name(everything: Results) -> None:
    assert set(everything.runs["ablation"].evaluation["arm"]) == set(SCALE.experiments["ablation"].arms)
    assert everything.runs["ablation"].manifests["lambda-0.1/base-0/seed-1"]["config"]["arm"] == "MT-PPO"
    shared, own = everything.arm("ablation", "lambda-0.1"), everything.arm("search", "MT-PPO")
    assert shared is not None
    assert own is not None
    assert (shared.final("answer_correct", ["facts"]) == own.final("answer_correct", ["facts"])).all()


def test_an_arm_that_the_experiment_lacks_is_read_where_same_as_says(everything: Results) -> None:
    only_search = Results(SCALE, {"search": everything.runs["search"]})
    found = only_search.arm("ablation", "lambda-0.1")
    assert found is not None
    assert found.arm == "MT-PPO"
    assert only_search.arm("ablation", "lambda-0.0") is None
    lacking = only_search.missing("ablation", ["lambda-0.1", "lambda-0.0", "turns-5"])
    assert lacking == "2 of 3 runs: lambda-0.1; not run: lambda-0.0, turns-5"
    assert everything.missing("ablation", []) == ""


def test_scores_by_hand(everything: Results) -> None:
    found = everything.arm("search", "PPO-MR")
    assert found is not None
    rows = everything.runs["search"].evaluation
    rows = rows[(rows["arm"] == "PPO-MR") & (rows["seed"] == 1)]
    expected = rows[rows["dataset"] == "chain"]["f1"].mean()
    assert found.final("f1", ["facts", "chain"])[1, 1] == pytest.approx(expected)
    assert found.final("turn_limit", ["facts"])[1, 0] == pytest.approx(
        (rows[rows["dataset"] == "facts"]["stop_reason"] == "turn_limit").mean())
    assert found.final_by_hops("f1", multi=False)[1, 0] == pytest.approx(rows[rows["hops"] == 1]["f1"].mean())
    steps, curve = found.curve("validation_facts_answer_correct")
    assert steps.tolist() == list(range(0, synthetic.STEPS + 1, synthetic.EVERY))
    assert curve.shape == (2, len(steps))
    assert not np.isnan(curve).any()


def test_untrained_policies_are_read_by_the_task_they_played(everything: Results) -> None:
    for experiment in ("search", "two_turn"):
        found = everything.untrained("initial", experiment)
        assert found is not None
        assert len(found.evaluation) == 5 * synthetic.QUESTIONS
    assert everything.untrained("closed_book", "search") is None


def test_sampled_episodes_are_in_no_score(everything: Results) -> None:
    found = everything.arm("search", "PPO-OR")
    assert found is not None
    sampled = found.evaluation.assign(decoding="sampled", answer_correct=1.0)
    both = type(found)(found.experiment, found.arm, found.metrics, pd.concat([found.evaluation, sampled]), found.source)
    assert (both.final("answer_correct", ["facts"]) == found.final("answer_correct", ["facts"])).all()


def test_words_about_sources_and_seeds(everything: Results) -> None:
    one, two = everything.arm("search", "PPO-OR"), everything.arm("ablation", "turns-5")
    assert one is not None
    assert two is not None
    shipped = type(two)(two.experiment, two.arm, two.metrics, two.evaluation, "shipped")
    assert sources([one, None]) == "fresh"
    assert sources([one, shipped]) == "fresh: search; shipped: ablation"
    assert sources([]) == "not run"
    assert run_counts([one, None]) == "2"


@pytest.mark.parametrize("task", TASKS)
def test_the_schema_names_what_training_writes(task: str) -> None:
    from turncredit.training.metrics import fixed_columns

    assert set(metrics_schema([task]).columns) == set(fixed_columns(TASKS[task]))


# --- faults ----------------------------------------------------------------------------------------------------------

def edit(column: str, row: int, value: object, file: str = "metrics.csv") -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        cells = pd.read_csv(folder / file, dtype=str, keep_default_na=False)
        cells.loc[row, column] = str(value)
        cells.to_csv(folder / file, index=False)
    return change


def drop(column: str, file: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        cells = pd.read_csv(folder / file, dtype=str, keep_default_na=False)
        cells.drop(columns=column).to_csv(folder / file, index=False)
    return change


def repeat_row(folder: Path) -> None:
    cells = pd.read_csv(folder / "evaluation.csv", dtype=str, keep_default_na=False)
    pd.concat([cells, cells.iloc[[3]]]).to_csv(folder / "evaluation.csv", index=False)


def cut_rows(folder: Path) -> None:
    cells = pd.read_csv(folder / "metrics.csv", dtype=str, keep_default_na=False)
    cells.iloc[:-2].to_csv(folder / "metrics.csv", index=False)


def ask_another_question(folder: Path) -> None:
    edit("question_id", 0, "facts-test-999", "evaluation.csv")(folder)


def manifest(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = json.loads((folder / "manifest.json").read_text()) | changes
        (folder / "manifest.json").write_text(json.dumps(content))
    return change


@pytest.mark.parametrize(("fault", "words"), [
    (edit("answer_correct", 4, ""), ["metrics.csv", "line 6,", "'answer_correct'", "is empty"]),
    (edit("answer_correct", 4, "nan"), ["line 6", "'answer_correct'", "'nan'"]),
    (edit("reward_total", 4, "inf"), ["line 6", "'reward_total'", "'inf'"]),
    (edit("format_correct", 4, "1.5"), ["'format_correct'", "'1.5'", "from 0 to 1"]),
    (edit("turns_mean", 4, "two"), ["'turns_mean'", "'two'"]),
    (edit("facts_answer_correct", 4, "1_0"), ["'facts_answer_correct'", "'1_0'"]),
    (edit("question_id", 4, "", "evaluation.csv"), ["evaluation.csv", "line 6", "'question_id'", "is empty"]),
    (edit("hops", 4, "1.5", "evaluation.csv"), ["'hops'", "whole number"]),
    (drop("retrieval_correct", "metrics.csv"), ["metrics.csv", "'retrieval_correct'", "missing"]),
    (drop("decoding", "evaluation.csv"), ["evaluation.csv", "'decoding'", "missing"]),
    (repeat_row, ["evaluation.csv", "line 102", "repeats", "facts-test-3"]),
    (edit("step", 4, "3"), ["line 6", "repeats", "step = 3"]),
    (cut_rows, ["metrics.csv", "'step'", f"{synthetic.STEPS} steps"]),
    (ask_another_question, ["different questions", "facts-test"]),
    (manifest(ended=None), ["manifest.json", "not finished"]),
    (manifest(config_sha256="0" * 64), ["manifest.json", "config_sha256"]),
    (manifest(config={}), ["manifest.json", "config"]),
    (manifest(evaluation_ids_sha256="2" * 64), ["evaluation_ids_sha256"]),
    (lambda folder: (folder / "metrics.csv").unlink(), ["metrics.csv", "no such file"]),
    (lambda folder: (folder / "metrics.csv").write_text(""), ["metrics.csv", "not a readable CSV"]),
    (lambda folder: (folder / "manifest.json").write_text("{"), ["manifest.json", "JSON"]),
])
def test_a_fault_is_named_and_nothing_is_written(pair: list[Path], tmp_path: Path, fault: Callable[[Path], None],
                                                 words: list[str]) -> None:
    fault(pair[0])
    with pytest.raises(DataError) as error:
        collect("search", pair, tmp_path / "search", SCALE)
    for word in words:
        assert word in str(error.value)
    assert error.value.remedy
    assert not (tmp_path / "search").exists()


def test_the_line_of_a_fault_is_that_of_the_file(pair: list[Path], tmp_path: Path) -> None:
    """Also below a quoted cell of two lines, and where a line is blank."""
    path = pair[0] / "evaluation.csv"
    edit("prediction", 1, "two\nlines", "evaluation.csv")(pair[0])
    edit("hops", 6, "many", "evaluation.csv")(pair[0])
    number = next(n for n, line in enumerate(path.read_text().split("\n"), start=1) if ",many," in line)
    with pytest.raises(DataError, match=f"line {number}, column 'hops' is 'many'"):
        collect("search", pair, tmp_path / "search", SCALE)
    lines = path.read_text().split("\n")
    path.write_text("\n".join([*lines[:2], "", *lines[2:]]))
    with pytest.raises(DataError, match=r"line 3, column '\w+' is empty"):
        collect("search", pair, tmp_path / "search", SCALE)


def test_a_mean_of_ones_with_a_rounding_error_is_a_rate(pair: list[Path], tmp_path: Path) -> None:
    edit("format_correct", 4, "1.0000000000000002")(pair[0])
    collect("search", pair, tmp_path / "search", SCALE)


def test_a_run_of_another_configuration_is_refused(pair: list[Path], tmp_path: Path) -> None:
    collect("search", pair, tmp_path / "search", SCALE)
    search = SCALE.experiments["search"]
    training = search.training.model_copy(update={"learning_rate": 0.5})
    changed = SCALE.model_copy(update={"experiments": {
        **SCALE.experiments, "search": search.model_copy(update={"training": training})}})
    for act in (lambda: collect("search", pair, tmp_path / "again", changed),
                lambda: read_collected(tmp_path / "search", "shipped", changed)):
        with pytest.raises(DataError, match=r"training\.learning_rate = .*the configuration says 0\.5"):
            act()
    read_collected(tmp_path / "search", "shipped")  # without a configuration there is nothing to compare


def test_threads_and_device_are_no_science(pair: list[Path], tmp_path: Path) -> None:
    collect("search", pair, tmp_path / "search", SCALE)
    read_collected(tmp_path / "search", "fresh", SCALE.model_copy(update={"threads": 7, "device": "cuda"}))


def test_runs_that_do_not_belong_are_refused(pair: list[Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match="a second time"):
        collect("search", [*pair, pair[0]], tmp_path / "x", SCALE)
    with pytest.raises(DataError, match="not an arm of two_turn"):
        collect("two_turn", pair, tmp_path / "x", SCALE)
    with pytest.raises(DataError, match="no runs"):
        collect("search", [], tmp_path / "x", SCALE)
    with pytest.raises(ConfigError, match="did you mean 'search'"):
        collect("serch", pair, tmp_path / "x", SCALE)
    moved = pair[0].rename(pair[0].with_name("seed-7"))
    with pytest.raises(DataError, match="not to this folder"):
        collect("search", [moved], tmp_path / "x", SCALE)


@pytest.mark.parametrize("damage", [
    lambda folder: (folder / FILES[1]).write_bytes((folder / FILES[1]).read_bytes()[:200]),
    lambda folder: (folder / FILES[1]).write_bytes(b"no gzip"),
    lambda folder: (folder / FILES[0]).unlink(),
    lambda folder: (folder / FILES[2]).write_text("{}"),
])
def test_damaged_collected_files_are_refused(pair: list[Path], tmp_path: Path, damage: Callable[[Path], None]) -> None:
    folder = tmp_path / "search"
    collect("search", pair, folder, SCALE)
    damage(folder)
    with pytest.raises(DataError, match="search") as made:
        read_collected(folder, "fresh", SCALE)
    assert "git" not in made.value.remedy
    committed = tmp_path / "results/shipped/mini/search"
    shutil.copytree(folder, committed)
    with pytest.raises(DataError) as shipped:
        read_collected(committed, "shipped", SCALE)
    assert shipped.value.remedy.startswith(f"git checkout -- {committed}")


def recollect(folder: Path, file: str, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    """Change a collected table, and its hash with it."""
    change(pd.read_csv(folder / file, dtype=str, keep_default_na=False)).to_csv(folder / file, index=False)
    write_sums(folder, COLLECTED)


def edit_manifest(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        content = json.loads((folder / FILES[2]).read_text())
        content["MT-PPO/base-0/seed-0"] |= changes
        (folder / FILES[2]).write_text(json.dumps(content))
        write_sums(folder, COLLECTED)
    return change


@pytest.mark.parametrize(("damage", "words"), [
    (lambda folder: recollect(folder, FILES[0], lambda rows: rows.drop(index=7)), "'step' runs from"),
    (lambda folder: recollect(folder, FILES[0], lambda rows: rows.iloc[:-1]), "the manifest says"),
    (lambda folder: recollect(folder, FILES[1], lambda rows: rows[rows["question_id"] != "facts-test-3"]),
     "not the hash of the 99 questions"),
    (edit_manifest(state="running"), "has not finished"), (edit_manifest(ended=None), "has not finished"),
    (edit_manifest(evaluation_ids_sha256="2" * 64), "evaluation_ids_sha256"),
    (lambda folder: pd.read_csv(folder / FILES[1]).assign(answer_correct=0).to_csv(folder / FILES[1], index=False),
     "is not the file whose hash"),
    (lambda folder: (folder / "SHA256SUMS").unlink(), "SHA256SUMS: cannot be read")])
def test_collected_runs_are_checked_as_single_ones_are(pair: list[Path], tmp_path: Path,
                                                       damage: Callable[[Path], None], words: str) -> None:
    folder = tmp_path / "search"
    collect("search", pair, folder, SCALE)
    read_collected(folder, "fresh", SCALE)
    damage(folder)
    with pytest.raises(DataError, match=words):
        read_collected(folder, "fresh", SCALE)


def test_folders_say_whose_runs_they_hold(pair: list[Path], tmp_path: Path) -> None:
    fresh, shipped = tmp_path / "results/mini/search", tmp_path / "results/shipped/mini/search"
    for folder in (fresh, shipped):
        collect("search", pair, folder, SCALE)
    assert read_folders([fresh], SCALE)["search"].source == "fresh"
    assert read_folders([shipped], SCALE)["search"].source == "shipped"
    with pytest.raises(DataError, match="a second folder"):
        read_folders([fresh, shipped], SCALE)


def test_a_newer_key_takes_its_default_in_an_older_run(pair: list[Path], tmp_path: Path) -> None:
    """A key added to the configuration later does not make shipped runs unreadable."""
    for folder in pair:
        content = json.loads((folder / "manifest.json").read_text())
        del content["config"]["training"]["alpha"]
        (folder / "manifest.json").write_text(json.dumps(content))
    collect("search", pair, tmp_path / "search", SCALE)


def test_runs_of_several_base_policies_are_rows_in_order(tmp_path: Path) -> None:
    scale = synthetic.scale(seeds=2, bases=3)
    found = synthetic.results(tmp_path, {"search": 2, "untrained": 1}, scale)
    arm, initial = found.arm("search", "MT-PPO"), found.untrained("initial", "search")
    assert arm is not None
    assert initial is not None
    assert arm.runs == ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1))
    assert arm.base_S.tolist() == arm.curve_base_S.tolist() == [0, 0, 1, 1, 2, 2]
    assert initial.runs == ((0, 0), (1, 0), (2, 0))
    rows = arm.evaluation[(arm.evaluation["base"] == 2) & (arm.evaluation["seed"] == 0)]
    expected = rows[rows["dataset"] == "chain"]["f1"].mean()
    assert arm.final("f1", ["chain"])[4, 0] == pytest.approx(expected)
    assert arm.curve("validation_facts_answer_correct")[1].shape[0] == len(arm.runs)
    assert "MT-PPO/base-2/seed-1" in found.runs["search"].manifests
    assert found.missing("search", ["MT-PPO"]) == ""
    some = Results(scale.model_copy(update={"seeds": 4}), found.runs)
    assert some.missing("search", ["MT-PPO"]) == "6 of 12 runs: MT-PPO"


def test_gzip_holds_plain_csv(pair: list[Path], tmp_path: Path) -> None:
    collect("search", pair, tmp_path / "search", SCALE)
    first = gzip.decompress((tmp_path / "search" / FILES[1]).read_bytes()).decode().splitlines()[0]
    assert first.startswith("experiment,arm,base,seed,dataset,question_id,hops,prediction,answer_correct,f1,")




def test_collected_episodes_are_a_few_of_each_arms_first_run(pair: list[Path], tmp_path: Path) -> None:
    for folder in pair:
        seed = int(folder.name.removeprefix("seed-"))
        lone = EpisodeRecord((0,), (TurnRecord(("a\r",), (-1.0,), "tag"),), "answered", {}, {}, {})
        run, leaves = {"arm": folder.parts[-3], "base": 0, "seed": seed}, (lone, replace(lone, nodes=(1,)))
        records = [GroupRecord(run, "training", step, "group", "facts", "q", {}, "p", 1, leaves)
                   for step in (1, 20, 40)]
        write_records(folder / "episodes.jsonl", records)
        write_records(folder / "evaluation.episodes.jsonl", [
            replace(records[0], source="evaluation", step=None, label=label, episodes=(lone,))
            for label in ("right", "right", "wrong")])
    collect("search", pair, tmp_path / "search", SCALE)
    found = read_collected(tmp_path / "search", "fresh", SCALE).episodes
    first = {folder.parts[-3]: folder.name for folder in sorted(pair, reverse=True)}
    assert {(r.run["arm"], f"seed-{r.run['seed']}") for r in found} == set(first.items())
    assert [(r.label, r.step) for r in found][:3] == [("group", 40), ("right", None), ("wrong", None)]
    assert found[0].run["code_revision"] == "0" * 40
