"""Whole small runs: what they leave, how they stop, and how they go on."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.small_run import TASK, FakeRetriever, config, events, make_world, served, service_settings, train, untimed
from tests.tolerance import assert_close
from tests.trees import transcript, turn
from turncredit.data.questions import evaluation_ids, read_split
from turncredit.episodes.records import episodes_path
from turncredit.errors import (
    DataError,
    Interrupted,
    NonFiniteError,
    ProcessError,
    RetrieverError,
    RunLockedError,
    TurncreditError,
)
from turncredit.evaluation import evaluate, leaf_shares
from turncredit.files import sha256
from turncredit.policy.attempts import Attempt, write_attempts
from turncredit.policy.engines.hf import HFEngine
from turncredit.policy.model import load_policy
from turncredit.training.learner import Learner
from turncredit.training.lock import run_lock
from turncredit.training.run import evaluate_run
from turncredit.training.run_folder import RunPaths
from turncredit.types import Group


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    root = tmp_path_factory.mktemp("world")
    make_world(root)
    return root


@pytest.fixture
def root(world, tmp_path):
    shutil.copytree(world, tmp_path / "clone")
    return tmp_path / "clone"


def weights(paths: RunPaths) -> str:
    return sha256(paths.final_policy / "model.safetensors")


def global_states() -> tuple[object, ...]:
    legacy = np.random.get_state()  # noqa: NPY002
    return random.getstate(), legacy[1].tolist(), torch.get_rng_state().tolist()


@pytest.mark.numeric
@pytest.mark.parametrize("arm", ["chains", "tree", "critic"])
def test_a_run_leaves_a_policy_and_rows_and_a_manifest(root, arm):
    paths = train(root, config(arm, steps=4))
    rows = pd.read_csv(paths.run / "metrics.csv")
    manifest = json.loads((paths.run / "manifest.json").read_text())
    assert rows["step"].tolist() == [0, 1, 2, 3, 4]
    assert rows["validation_facts_answer_correct"].notna().tolist() == [True, False, True, False, True]
    assert rows["reward_total"].isna().tolist() == [True, False, False, False, False]
    assert rows["value_loss"].notna().any() == (arm == "critic")
    assert rows["zero_std_groups"].notna().any() == (arm != "critic")
    kl = rows["sampler_trainer_kl"].dropna()
    assert_close(kl.tolist(), [0.0] * len(kl), scale=1.0)  # the mean of exp(d) - d - 1 at d near 0
    np.testing.assert_allclose(rows["reward_total"], rows["reward_outcome"] + rows["reward_intermediate"], atol=1e-9)
    assert (manifest["state"], manifest["steps"], manifest["resumed_from"]) == ("finished", 4, [])
    assert manifest["config_sha256"] == config(arm, steps=4).digest()
    assert manifest["evaluation_ids_sha256"] == evaluation_ids(read_split(paths.data, "test", None))
    load_policy(paths.final_policy)


def test_runs_from_another_base_policy_sample_otherwise_and_their_manifests_name_it(root):
    first = train(root, config("chains", steps=1))
    shutil.copytree(first.base_policy, first.base_policy.with_name("base-1"))
    measured = {"initial_search_sampled_em": 0.04}
    write_attempts(first.base_policy.with_name("base-1"), [
        Attempt(10, {"initial_search_sampled_em": 0.3}, "too high"),
        Attempt(11, {**measured, "initial_search_question_share": float("nan")}, "")])
    second = train(root, config("chains", steps=1).model_copy(update={"base": 1}))
    assert second.run == first.run.parents[1] / "base-1" / "seed-0"
    assert weights(first) != weights(second)  # the same initial weights and the same seed
    one, two = (json.loads((paths.run / "manifest.json").read_text())["base_policy"] for paths in (first, second))
    hashes = {"policy/model.safetensors": sha256(first.policy / "model.safetensors")}
    assert one == {"index": 0, "weights_sha256": hashes}
    assert two == {"index": 1, "weights_sha256": hashes, "warm_start_seed": 11, "measured": measured}


@pytest.mark.parametrize("arm", ["chains", "tree", "critic"])
def test_sampled_tokens_follow_the_budget(root, arm):
    settings = {"steps": 12, "tokens_per_step": 250, "learning_rate": 1e-5, "checkpoint_every": 100}
    paths = train(root, config(arm, **settings))
    spent = pd.read_csv(paths.run / "metrics.csv")["tokens_sampled"].sum()
    assert abs(spent / (12 * 250) - 1) < 0.1


def test_validation_changes_nothing_and_costs_no_budget(root, tmp_path):
    shutil.copytree(root, tmp_path / "often")
    seldom, often = (train(where, config("tree", steps=4, validate_every=every))
                     for where, every in ((root, 4), (tmp_path / "often", 1)))
    assert weights(seldom) == weights(often)
    tokens = [pd.read_csv(paths.run / "metrics.csv")["tokens_sampled"].tolist()[1:] for paths in (seldom, often)]
    assert tokens[0] == tokens[1]


def test_the_global_generators_are_untouched(root):
    before = global_states()
    train(root, config("chains", steps=2))
    assert global_states() == before


def sends(number: int, when: int):
    """Sends this process a signal at its ``when``-th event."""
    return lambda event, name: os.kill(os.getpid(), number) if event == when else None


@pytest.mark.parametrize(("number", "at"), [
    (signal.SIGTERM, 2),  # in the validation before training
    (signal.SIGUSR1, 5),  # in the first rollout
    (signal.SIGTERM, 12),  # in the first update
    (signal.SIGUSR1, 40)])
def test_a_signal_saves_and_the_run_goes_on_as_if_nothing_had_happened(root, tmp_path, number, at):
    shutil.copytree(root, tmp_path / "whole")
    whole = train(tmp_path / "whole", config("critic", checkpoint_every=50))
    handler = signal.getsignal(number)
    with pytest.raises(Interrupted, match=r"stopped by SIG\w+; saved .*step-\d") as stopped, \
            events(sends(number, at)):
        train(root, config("critic", checkpoint_every=50))
    assert stopped.value.exit_code == 75
    assert signal.getsignal(number) is handler
    paths = RunPaths.under(root, config("critic"))
    assert not paths.run.exists()
    assert not paths.final_policy.exists()
    train(root, config("critic", checkpoint_every=50))
    assert weights(paths) == weights(whole)
    assert untimed(paths.run / "metrics.csv") == untimed(whole.run / "metrics.csv")
    assert len(json.loads((paths.run / "manifest.json").read_text())["resumed_from"]) == 1


def test_a_finished_run_that_lost_its_results_exports_them_again(root):
    paths = train(root, config("tree", steps=2))
    rows = untimed(paths.run / "metrics.csv")
    shutil.rmtree(paths.run)
    train(root, config("tree", steps=2))
    assert untimed(paths.run / "metrics.csv") == rows


def test_a_truncated_newest_checkpoint_falls_back_to_the_one_before(root, tmp_path, caplog):
    shutil.copytree(root, tmp_path / "whole")
    whole = train(tmp_path / "whole", config("critic"))
    paths = train(root, config("critic"))
    shutil.rmtree(paths.run)
    newest = paths.checkpoints / "step-5" / "optimizers.pt"
    newest.write_bytes(newest.read_bytes()[:-100])
    train(root, config("critic"))
    assert "optimizers.pt is damaged" in caplog.text
    assert weights(paths) == weights(whole)
    assert untimed(paths.run / "metrics.csv") == untimed(whole.run / "metrics.csv")


@pytest.mark.parametrize("changed", ["configuration", "initial policy"])
def test_what_was_made_of_other_things_is_not_resumed(root, caplog, changed):
    train(root, config("chains", steps=1))
    if changed == "initial policy":
        weights = root / "policy" / "test" / "base-0" / "initial" / "search" / "model.safetensors"
        save_file({name: value * 0.9 for name, value in load_file(weights).items()}, weights, {"format": "pt"})
    paths = train(root, config("chains", steps=2 if changed == "configuration" else 1))
    assert "training from the start" in caplog.text
    assert ("training.steps: 1 -> 2" in caplog.text) == (changed == "configuration")
    assert json.loads((paths.run / "manifest.json").read_text())["resumed_from"] == []
    assert [*(paths.checkpoints / "superseded").glob("*/step-1")]


@pytest.mark.parametrize("error", [
    RetrieverError("no answer", "start the server"), ProcessError("vLLM failed", "start the server"),
    RuntimeError("engine died")])
def test_an_error_before_an_update_loses_no_step(root, tmp_path, error):
    settings = config("critic", checkpoint_every=100)
    shutil.copytree(root, tmp_path / "whole")
    whole = train(tmp_path / "whole", settings)
    updates = []

    def fail_in_the_fourth_step(number: int, name: str) -> None:
        updates.extend([name] if name == "_optimizer_step" else [])
        if name == "generate" and len(updates) == 3 * per_step:
            raise error

    with events(lambda number, name: updates.extend([name] if name == "_optimizer_step" else [])):
        train(root, config("critic", steps=1))
    per_step = len(updates)
    shutil.rmtree(root / "checkpoints")
    shutil.rmtree(root / "results")
    updates.clear()
    with pytest.raises(type(error)) as told, events(fail_in_the_fourth_step):
        train(root, settings)
    if isinstance(error, TurncreditError):
        assert "saved" in told.value.message
        assert told.value.remedy == "start the server"
    paths = train(root, settings)
    assert json.loads((paths.run / "manifest.json").read_text())["resumed_from"] == [3]
    assert weights(paths) == weights(whole)
    assert untimed(paths.run / "metrics.csv") == untimed(whole.run / "metrics.csv")


def test_an_engine_that_fails_after_an_update_loses_no_step(root, monkeypatch):
    settings, give = config("chains", checkpoint_every=100), HFEngine.update_weights

    def fail_at_version_3(engine, weights, version):
        if version == 3:
            raise ProcessError("vLLM cannot load the weights", "")
        give(engine, weights, version)

    with monkeypatch.context() as patch:
        patch.setattr(HFEngine, "update_weights", fail_at_version_3)
        with pytest.raises(ProcessError, match=r"saved .*step-3"):
            train(root, settings)
    paths = train(root, settings)
    assert json.loads((paths.run / "manifest.json").read_text())["resumed_from"] == [3]
    assert pd.read_csv(paths.run / "metrics.csv")["step"].tolist() == [0, 1, 2, 3, 4, 5]


def test_a_failed_save_hides_no_error(root, monkeypatch):
    def full(folder, *rest, **named):
        raise DataError("the disk is full")

    def fail(*_):
        raise RetrieverError("no answer")

    monkeypatch.setattr("turncredit.training.checkpoint.save", full)
    monkeypatch.setattr(FakeRetriever, "search", fail)
    with pytest.raises(RetrieverError, match=r"^no answer$"):
        train(root, config("chains"))


def test_settings_that_change_no_weight_may_change_while_a_run_waits(root):
    train(root, config("chains", steps=2))
    shutil.rmtree(root / "results")
    left = RunPaths.under(root, config("chains")).checkpoints / ".final.killed" / "fresh"
    left.mkdir(parents=True)  # by a process that was killed in its last save
    paths = train(root, config("chains", steps=2, checkpoint_every=7, validate_every=1))
    assert not left.parent.exists()
    assert json.loads((paths.run / "manifest.json").read_text())["resumed_from"] == [2]


def test_a_second_writer_leaves_at_once(root):
    paths = RunPaths.under(root, config("chains"))
    with run_lock(paths.checkpoints), pytest.raises(RunLockedError, match="another process writes this run"):
        train(root, config("chains"))
    assert not paths.run.exists()


@pytest.mark.parametrize("poison", ["policy", "gradient"])
def test_a_non_finite_number_stops_the_run_and_keeps_the_last_good_checkpoint(root, monkeypatch, poison):
    real, calls = Learner._optimizer_step, []

    def poisoned(self, model, optimizer, name):
        calls.append(name)
        if len(calls) == 9:  # in the third step: four optimiser steps each
            with torch.no_grad():
                for parameter in model.parameters():
                    if poison == "policy":
                        parameter.fill_(float("nan"))
                    else:
                        parameter.grad.fill_(float("inf"))
        return real(self, model, optimizer, name)

    monkeypatch.setattr(Learner, "_optimizer_step", poisoned)
    with pytest.raises(NonFiniteError, match="not finite"):
        train(root, config("chains"))
    paths = RunPaths.under(root, config("chains"))
    assert sorted(path.name for path in paths.checkpoints.glob("step-*")) == ["step-1", "step-2"]
    assert not paths.run.exists()
    monkeypatch.undo()
    assert pd.read_csv(train(root, config("chains")).run / "metrics.csv")["step"].tolist() == [0, 1, 2, 3, 4, 5]


def test_an_altered_data_file_is_refused_before_any_work(root):
    path = root / "data" / "test" / "questions" / "facts.train.jsonl"
    path.write_text(path.read_text() + "\n")
    with pytest.raises(DataError, match=r"facts\.train\.jsonl: differs from the sha256 in world\.json"):
        train(root, config("chains"))


def test_evaluation_asks_every_arm_the_same_and_plays_each_decoding(root):
    run = config("chains", steps=1)
    paths = train(root, run)
    with served():
        for policy, output in ((paths.final_policy, paths.run / "evaluation.csv"),
                               (paths.policy, root / "initial.csv"), (paths.policy, root / "again.csv")):
            evaluate_run(policy, run, service_settings(paths), data=paths.data, output=output,
                         decodings=("greedy", "sampled"))
        closed_book = run.model_copy(update={"task": run.task.model_copy(update={"max_turns": 1})})
        evaluate_run(paths.policy, closed_book, service_settings(paths), data=paths.data, output=root / "closed.csv")
    table, initial, closed = map(pd.read_csv, (paths.run / "evaluation.csv", root / "initial.csv", root / "closed.csv"))
    assert table["question_id"].tolist() == initial["question_id"].tolist()
    assert table.groupby("decoding").size().to_dict() == {"greedy": 8, "sampled": 8}
    assert (root / "initial.csv").read_bytes() == (root / "again.csv").read_bytes()
    assert closed["searches"].sum() == 0
    assert closed["turns"].max() == 1


def test_a_long_evaluation_goes_on_where_it_stopped(root, monkeypatch):
    settings, data = config("chains"), RunPaths.under(root, config("chains")).data
    paths, output = RunPaths.under(root, settings), root / "results" / "parts" / "evaluation.csv"
    played: list[int] = []

    def evaluate_into(output, policy=paths.policy):
        played.clear()
        with served():
            evaluate_run(policy, settings, service_settings(paths), data=data, output=output,
                         decodings=("greedy", "sampled"))
        return [file.read_bytes() for file in (output, episodes_path(output))]

    def play(runner, items, decoding, seed):
        if stop_at == len(played):
            raise RetrieverError("no answer", "start it")
        played.append(len(items))
        return evaluate(runner, items, decoding, seed)

    whole = evaluate_into(root / "whole.csv")
    monkeypatch.setattr("turncredit.training.run.PART", 3)
    monkeypatch.setattr("turncredit.training.run.evaluate", play)
    stop_at = 4
    with pytest.raises(RetrieverError):
        evaluate_into(output)
    assert played == [3, 3, 2, 3]
    assert not output.exists()
    stop_at = None
    assert evaluate_into(output) == whole
    assert played == [3, 2]
    assert not output.with_suffix(".parts").exists()

    stop_at = 4
    with pytest.raises(RetrieverError):
        evaluate_into(output)
    stop_at = None
    other = root / "other"
    shutil.copytree(paths.policy, other)
    weights = other / "model.safetensors"
    save_file({name: value * 0.9 for name, value in load_file(weights).items()}, weights, {"format": "pt"})
    evaluate_into(output, other)
    assert played == [3, 3, 2] * 2  # another policy: from the start


def test_an_evaluation_of_other_questions_than_the_runs_is_refused(root):
    run = config("chains", steps=1)
    paths = train(root, run)
    questions = paths.data / "questions" / "facts.test.jsonl"
    questions.write_text("".join(questions.read_text().splitlines(keepends=True)[1:]))
    record = paths.data / "world.json"
    hashes = json.loads(record.read_text())
    hashes["sha256"]["questions/facts.test.jsonl"] = sha256(questions)
    record.write_text(json.dumps(hashes))
    with pytest.raises(DataError, match="evaluation questions changed"), served():
        evaluate_run(paths.final_policy, run, service_settings(paths), data=paths.data,
                     output=paths.run / "evaluation.csv")


def test_shares_of_a_tree_that_ends_early_in_one_branch_by_hand():
    first, second = turn(3, observed=(9,)), turn(4)
    group = Group((transcript(first, turn(5)), transcript(first, turn(6)), transcript(second)), ((0, 1), (0, 2), (3,)))
    assert leaf_shares(group, (2, 2, 1)) == [0.25, 0.25, 0.5]
    assert TASK.max_turns == 3


def test_a_run_of_paths_lies_where_the_workflow_looks(tmp_path):
    paths = RunPaths.under(tmp_path, config("tree"))
    assert paths.run == tmp_path / "results" / "test" / "search" / "tree" / "base-0" / "seed-0"
    assert paths.final_policy == tmp_path / "checkpoints" / "test" / "search" / "tree" / "base-0" / "seed-0" / "final"
