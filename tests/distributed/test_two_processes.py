"""Two processes make the run that one makes: gradients, checkpoints, signals, faults. They meet over loopback.

Its tests share one launch.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.distributed.checks import LAUNCH, run_config
from tests.small_run import TRAINING, config, events, make_world, train, untimed
from tests.tolerance import assert_close, bound
from turncredit.distributed.launch import torchrun_command
from turncredit.errors import Interrupted
from turncredit.training.loop import Progress
from turncredit.training.run_folder import RunPaths

CLONE = Path(__file__).parents[2]
pytestmark = [pytest.mark.timeout(1500), pytest.mark.numeric]
RUNS = ("tree", "critic", "critic-sharded", "stopped-rollout", "stopped-update", "stopped-sharded", "saved-by-one",
        "retriever", "crash", "locked")


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A folder in which one process has trained what two then train beside it or after it."""
    root = tmp_path_factory.mktemp("processes")
    make_world(root / "one-tree")
    for name in ("one-critic", "launcher", *RUNS):
        shutil.copytree(root / "one-tree", root / name)
    train(root / "one-tree", config("tree"))
    train(root / "one-critic", config("critic"))
    seen = []

    def stop(number: int, name: str) -> None:
        seen.append(name)
        if seen.count("_optimizer_step") == 9 and name == "_optimizer_step":
            os.kill(os.getpid(), signal.SIGUSR1)
    with pytest.raises(Interrupted), events(stop):
        train(root / "saved-by-one", config("critic"))
    return root


def started(*arguments: str) -> subprocess.Popen[str]:
    """torchrun with two processes."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true", "GLOO_SOCKET_IFNAME": "lo",
                   "PYTHONPATH": os.pathsep.join(sys.path)}
    command = torchrun_command(LAUNCH, ["-m", "tests.distributed.checks", *arguments], environment)
    return subprocess.Popen(command, cwd=CLONE, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                            text=True)


@pytest.fixture(scope="module")
def facts(root):
    """What each of the two processes found."""
    launcher = started(str(root))
    try:
        _, errors = launcher.communicate(timeout=1200)
    finally:
        launcher.kill()
    assert launcher.returncode == 0, errors[-5000:]
    return [json.loads((root / f"facts-{rank}.json").read_text()) for rank in (0, 1)]


def both(facts, check: str) -> list[dict]:
    """A check's facts by both processes, of which there were two."""
    found = [each[check] for each in facts]
    assert [each["world"] for each in found] == [2, 2]
    return found


@pytest.mark.parametrize("layout", ["whole", "sharded", "recomputed", "offloaded"])
@pytest.mark.parametrize("arm", ["tree", "critic"])
def test_the_gradient_is_that_of_one_process(facts, arm, layout):
    for each in (facts[rank]["same_gradient"][f"{arm} {layout}"] for rank in (0, 1)):
        assert each["world"] == 2
        assert each["largest"] > 0.1
        found, expected = each["found"], each["expected"]
        terms, scales = expected["terms"], expected["scales"]
        assert_close(each["apart"], 0.0, terms=terms, scale=scales["gradient"])
        assert found["micro_batches"] > 2
        assert found["report"].keys() == expected["report"].keys()
        for name, value in expected["report"].items():
            if name == "sampler_trainer_kl":  # the mean of exp(d) - d - 1 at d near 0
                assert_close(found["report"][name], value, scale=1.0)
            else:
                assert_close(found["report"][name], value, terms=terms, scale=scales[name] + abs(value))
        for name in scales.keys() & {"values", "reference"}:
            assert_close(found[name], expected[name], terms=terms, scale=scales[name])
        assert len(found["values"]) == len(expected["values"])


@pytest.mark.parametrize("layout", ["sharded", "recomputed", "bfloat16"])
@pytest.mark.parametrize("arm", ["tree", "critic"])
def test_sharded_weights_are_sharded(facts, arm, layout):
    first, second = (facts[rank]["same_gradient"][f"{arm} {layout}"] for rank in (0, 1))
    assert all(first["sharded"] + second["sharded"])
    assert first["held"] + second["held"] == first["parameters"]
    assert max(first["held"], second["held"]) < 0.6 * first["parameters"]
    whole = facts[0]["same_gradient"][f"{arm} whole"]
    assert whole["held"] == whole["parameters"]
    assert not any(whole["sharded"])


@pytest.mark.parametrize("arm", ["tree", "critic"])
def test_bfloat16_passes_point_where_float32_does(facts, arm):
    found = facts[0]["same_gradient"][f"{arm} bfloat16"]
    assert found["apart"] > 1e-6  # it is another precision
    assert found["angle"] > 0.99


def test_logits_are_computed_at_loss_tokens_alone_and_shared_out(facts):
    for layout in ("whole", "sharded"):
        first, second = (facts[rank]["same_gradient"][f"critic {layout}"]["found"] for rank in (0, 1))
        assert first["loss_tokens"] + second["loss_tokens"] == first["all"]
        for each in (first, second):  # one that has fewer micro-batches repeats its last one, with weight 0
            assert 0 < each["logits_rows"] == each["loss_tokens"] + each["repeated"]
            assert each["loss_tokens"] < each["all"]


def test_an_engine_is_handed_whole_weights(facts):
    for each in both(facts, "weights_for_an_engine"):
        assert each["handed"] == each["expected"]


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def close(one, two, atol: float) -> None:
    """Nested values: the same but for rounding."""
    if isinstance(one, torch.Tensor):
        torch.testing.assert_close(two, one, rtol=0, atol=atol)
    elif isinstance(one, dict):
        assert one.keys() == two.keys()
        for key in one:
            close(one[key], two[key], atol)
    elif isinstance(one, list):
        assert len(one) == len(two)
        for left, right in zip(one, two, strict=True):
            close(left, right, atol)
    elif isinstance(one, float):
        assert two == pytest.approx(one, abs=atol)
    else:
        assert one == two


def adam_rounding() -> float:
    """How far rounding may move a weight over a run.

    Adam divides a gradient by its own size, so that the relative error of the gradient is that of the weight's path,
    at most the sum of the learning rates. Entries are compared down to a thousandth of the numbers they sum.
    """
    path = TRAINING.steps * TRAINING.inner_epochs * TRAINING.minibatches * TRAINING.learning_rate
    return path * bound(terms=TRAINING.tokens_per_step, scale=1000)


def same_run(one: RunPaths, other: RunPaths) -> None:
    """Same samples, rows and checkpoint; weights but for rounding."""
    atol = adam_rounding()
    rows, others = untimed(one.run / "metrics.csv"), untimed(other.run / "metrics.csv")
    for name in ("questions", "trajectories", "tokens_sampled", "tokens_env", "reward_total",
                 "validation_facts_turns_mean"):
        assert [row[name] for row in rows] == [row[name] for row in others], name
    left, right = one.checkpoints / "step-5", other.checkpoints / "step-5"
    assert files(left) == files(right)
    for path in left.rglob("*.safetensors"):
        close(load_file(path), load_file(right / path.relative_to(left)), atol)
    close(*(torch.load(folder / "optimizers.pt", weights_only=True) for folder in (left, right)), atol)
    before, after = Progress.load(left), Progress.load(right)
    assert (before.cursor, before.budget, before.step) == (after.cursor, after.budget, after.step)


@pytest.mark.parametrize(("name", "arm"), [("tree", "tree"), ("critic", "critic"), ("critic-sharded", "critic")])
def test_a_run_of_two_is_the_run_of_one(root, facts, name, arm):
    for each in both(facts, "whole_runs"):
        assert len(set(each[name])) == 1
    one, two = RunPaths.under(root / f"one-{arm}", config(arm)), RunPaths.under(root / name, run_config(arm))
    same_run(one, two)
    manifest = json.loads((two.run / "manifest.json").read_text())
    assert manifest["config"]["launch"]["processes"] == 2
    assert manifest["config_sha256"] == json.loads((one.run / "manifest.json").read_text())["config_sha256"]


def test_a_signal_at_one_process_stops_both_and_saves(facts):
    for each in both(facts, "whole_runs"):
        for name in ("stopped-rollout", "stopped-update", "stopped-sharded"):
            assert len(set(each[name])) == 1
            assert "stopped by SIGUSR1; saved" in each[name][0]


def test_two_go_on_where_two_were_stopped_bit_for_bit(facts):
    for each in both(facts, "whole_runs"):
        assert each["resumed"] == each["critic"][0]


@pytest.mark.parametrize("name", ["stopped-rollout", "stopped-sharded"])
def test_one_goes_on_where_two_were_stopped(root, facts, name):
    assert both(facts, "whole_runs")
    paths = train(root / name, config("critic"))
    assert json.loads((paths.run / "manifest.json").read_text())["resumed_from"]
    same_run(RunPaths.under(root / "one-critic", config("critic")), paths)


def test_two_go_on_where_one_was_stopped(root, facts):
    assert both(facts, "whole_runs")
    paths = RunPaths.under(root / "saved-by-one", run_config("critic"))
    assert json.loads((paths.run / "manifest.json").read_text())["resumed_from"]
    same_run(RunPaths.under(root / "one-critic", config("critic")), paths)


def test_an_error_of_one_process_is_an_error_of_both(facts):
    first, second = both(facts, "faults")
    for name, kind, code in (("retriever", "RetrieverError", 3), ("locked", "RunLockedError", 5),
                             ("three", "ConfigError", 2)):
        assert [each[name]["kind"] for each in (first, second)] == [kind, kind]
        assert first[name]["code"] == code
        assert max(each[name]["seconds"] for each in (first, second)) < 60
    assert "nobody answers" in first["retriever"]["message"]
    assert "saved" in first["retriever"]["message"]  # both have whole weights, and save together
    assert first["retriever"]["message"] == second["retriever"]["message"]
    assert "launch.processes = 3, but the world size is 2" in first["three"]["message"]


def test_a_crash_of_one_process_ends_the_other_and_names_it(facts):
    first, second = both(facts, "faults")
    assert second["crash"]["kind"] == "ValueError"
    assert first["crash"]["kind"] == "RankError"
    assert "rank 1 of 2 failed: ValueError: a bug" in first["crash"]["message"]
    assert first["crash"]["code"] == 6


def test_nobody_waits_for_ever(facts):
    late = facts[0]["faults"]["late"]
    assert late["kind"] == "RankError"
    assert "rank 0 of 2: another process did not respond in time" in late["message"]
    assert late["seconds"] < 4


def test_a_process_that_dies_is_noticed_at_once(facts):
    lost = facts[0]["lost"]
    assert (lost["kind"], lost["code"]) == ("RankError", 6)
    assert "rank 0 of 2: another process is lost" in lost["message"]
    assert lost["seconds"] < 30


def test_a_warning_to_the_launcher_stops_and_saves_the_run(root):
    paths = RunPaths.under(root / "launcher", run_config("tree"))
    launcher = started(str(root / "launcher"), "train")
    try:
        while not (paths.checkpoints / "metrics.csv").exists():
            assert launcher.poll() is None, launcher.communicate()[1][-3000:]
            time.sleep(0.2)
        launcher.send_signal(signal.SIGUSR1)
        _, errors = launcher.communicate(timeout=600)
    finally:
        launcher.kill()
    assert launcher.returncode != 0
    assert "stopped by SIGUSR1; saved" in errors
    saved, = paths.checkpoints.glob("step-*")
    assert Progress.load(saved).step == int(saved.name.removeprefix("step-"))
