"""Comparisons run in the peer's environment or report that it is missing; their episodes have the stated shape."""

from __future__ import annotations

import csv
import json
import os
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bench import peers
from bench.cases import GROUP, QUESTIONS, TURN_TOKENS, Case, OurSteps, Setting, cases
from bench.results import Measured, NotMeasured, save, tables, with_spread
from tests import small_run
from turncredit.errors import ConfigError, ProcessError
from turncredit.training.run_folder import RunPaths

ROOT = Path(__file__).parents[2]
TRL = os.environ.get("TURNCREDIT_TRL_PYTHON", str(ROOT / ".venv-trl/bin/python"))


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> RunPaths:
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("clone")
    small_run.make_world(root)
    return RunPaths.under(root, small_run.config("chains"))


def setting(case: Case, paths: RunPaths) -> Setting:
    config = small_run.config("chains")
    task = config.task.model_copy(update={"max_context_tokens": 256})
    return Setting.of(case, config.model_copy(update={"task": task}), paths)


@pytest.mark.parametrize("case", cases(3), ids=lambda case: case.name)
def test_episodes_have_the_shape_that_the_case_says(paths: RunPaths, case: Case) -> None:
    given = setting(case, paths)
    runner = given.runner(given.learner())
    groups = runner.play(given.questions, (GROUP, *[1] * (case.turns - 1)), temperature=1.0,
                         seed_of=lambda question, path: hash((question, path)) % 2**32)
    shown = given.codec.encode_observation(given.observation)
    assert len(groups) == QUESTIONS
    for leaf in (leaf for group in groups for leaf in group.transcripts):
        assert len(leaf.turns) == case.turns
        assert {turn.observation_ids for turn in leaf.turns[:-1]} <= {shown}
        lengths = {len(turn.sampled_ids) for turn in leaf.turns}
        assert lengths == {TURN_TOKENS} if not case.ends else max(lengths) <= given.config.task.max_turn_tokens
        assert len(leaf.ids) <= len(leaf.prompt_ids) + given.most_tokens


def test_our_steps_are_the_training_loops_and_leave_the_policy_as_it_is(paths: RunPaths) -> None:
    given = setting(cases(3)[0], paths)
    ours = OurSteps(given)
    spent = [ours.step() for _ in range(2)]
    assert [one.tokens for one in spent] == [QUESTIONS * GROUP * TURN_TOKENS] * 2
    assert min(min(one.sampling_s, one.update_s) for one in spent) > 0


def test_a_window_too_short_for_the_episodes_is_named(paths: RunPaths) -> None:
    config = small_run.config("chains")
    task = config.task.model_copy(update={"max_context_tokens": 90})
    with pytest.raises(ConfigError, match=r"max_context_tokens = 90: episodes of up to 1\d\d tokens"):
        Setting.of(cases(5)[1], config.model_copy(update={"task": task}), paths)


# Programs of other environments --------------------------------------------------------------------


def python(tmp_path: Path, script: str) -> peers.Peer:
    """A peer whose Python is a shell script."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return replace(peers.trl(path), variables={"OF_THE_PEER": "yes"})


def test_an_absent_environment_is_said_and_how_to_make_it(tmp_path: Path) -> None:
    [found] = peers.run_peer(peers.vllm(tmp_path / "no" / "python"), tmp_path, "mini", 3, 1)
    assert isinstance(found, NotMeasured)
    assert str(tmp_path / "no" / "python") in found.reason
    assert "make test-vllm" in found.reason
    save([found, Measured("a", "x", "s", 1.0)], tmp_path / "bench.csv")
    with (tmp_path / "bench.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0] == {"part": found.part, "subject": found.reason, "measure": "not measured", "value": ""}
    assert tables([found])[0] == f"{found.part}: not measured: {found.reason}\n"


def test_a_program_gets_its_arguments_its_threads_and_this_code(tmp_path: Path) -> None:
    peer = python(tmp_path, """echo noise >&2
echo "[[\\"$*\\", \\"$OMP_NUM_THREADS $OF_THE_PEER\\", \\"$PYTHONPATH\\", 2.5]]" """)
    source = os.pathsep.join(str(ROOT / folder) for folder in ("src", ""))
    assert peers.run_peer(peer, tmp_path, "mini", 7, 2) == [
        Measured(f"-m {peer.module} {tmp_path.resolve()} mini 7", "2 yes", source, 2.5)]


def test_a_program_that_fails_ends_the_benchmark_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(ProcessError, match=r"code 3:\nlosses 1 and 2"):
        peers.run_peer(python(tmp_path, "echo losses 1 and 2 >&2; exit 3"), tmp_path, "mini", 3, 1)


def test_a_program_prints_its_numbers_and_nothing_else() -> None:
    program = """
import subprocess
from bench import peers
from bench.results import Measured
def measure(root, scale, repeats):
    print("a library's remark")
    subprocess.run(["echo", "its child's"], check=True)
    return [Measured(str(root), scale, "n", repeats)]
peers.run_as_peer(measure)
"""
    done = subprocess.run([sys.executable, "-c", program, "/clone", "mini", "3"], capture_output=True, text=True,
                          cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT / "src")}, check=True)
    assert done.stdout == '[["/clone", "mini", "n", 3]]'
    assert sorted(done.stderr.splitlines()) == ["a library's remark", "its child's"]


def test_spread_is_the_quartiles() -> None:
    assert [one.value for one in with_spread("p", "s", "x", [4.0, 1.0, 2.0, 3.0, 5.0])] == [3.0, 2.0, 4.0]


IN_TRL = """
import json, sys, torch
from dataclasses import astuple, replace
from pathlib import Path
from tests import small_run
from bench import vs_trl
from bench.cases import cases
from turncredit.training.run_folder import RunPaths
torch.set_num_threads(1)
root, config = Path(sys.argv[1]), small_run.config("chains", micro_batch_tokens=2400)
config = config.model_copy(update={"task": config.task.model_copy(update={"max_context_tokens": 256})})
small_run.make_world(root)
kinds, paths = cases(3), RunPaths.under(root, config)
same = [one for case in kinds for one in vs_trl.same_update(case, config, paths)]
timed = [one for case in kinds for one in vs_trl.both_step(case, config, paths, 2)]
print(json.dumps([[astuple(one) for one in same], [astuple(one) for one in timed]]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path(TRL).exists(), reason="TRL is not installed here: make bench makes its environment")
def test_trl_has_the_same_loss_and_gradient_on_the_same_batch_and_plays_the_same_episodes(tmp_path: Path) -> None:
    """The program refuses prompts and observations that differ by a token."""
    places = os.pathsep.join(str(ROOT / name) for name in ("src", "."))
    done = subprocess.run([TRL, "-c", IN_TRL, str(tmp_path)], capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": places, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"})
    assert done.returncode == 0, done.stderr
    same, timed = ([Measured(*one) for one in part] for part in json.loads(done.stdout.splitlines()[-1]))
    value = {(one.subject, one.measure): one.value for one in (*same, *timed)}
    for case in cases(3):
        assert value[case.name, "TRL's loss"] == pytest.approx(value[case.name, "loss"], abs=1e-5)
        assert abs(value[case.name, "loss"]) > 1e-3
        assert value[case.name, "% clipped"] > 1
        assert 0 <= value[case.name, "gradients' relative difference"] < 1e-4
        if not case.ends:
            tokens = [value[f"{case.name}: both", f"{whose}tokens"] for whose in ("", "TRL's ")]
            assert tokens == [QUESTIONS * GROUP * case.turns * TURN_TOKENS] * 2
