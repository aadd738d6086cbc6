"""N steps, kill -9, resume: equal bit for bit to a run that nobody killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.small_run import config, events, make_world, train, untimed
from turncredit.files import sha256
from turncredit.training import loop as trainer

CLONE = Path(__file__).parents[2]


def last_state(checkpoints: Path) -> dict[str, object]:
    """Everything that the last checkpoint holds, optimisers opened, clocks left out."""
    folder = checkpoints / "step-5"
    state = trainer.Progress.load(folder)
    weights = {path.name: sha256(path) for path in folder.rglob("*.safetensors")}
    return {"weights": weights, "optimizers": torch.load(folder / "optimizers.pt", weights_only=True),
            "cursor": state.cursor, "budget": state.budget, "step": state.step}


def same(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@pytest.mark.parametrize("arm", ["critic", "tree"])
def test_killed_anywhere_a_run_ends_as_if_it_had_not_been(tmp_path, arm):
    whole, killed, seen = tmp_path / "whole", tmp_path / "killed", []
    for root in (whole, killed):
        make_world(root)
    with events(lambda number, name: seen.append(name)):
        uninterrupted = train(whole, config(arm))
    paths = type(uninterrupted).under(killed, config(arm))

    # First while the second checkpoint is being saved; then soon after the resume, in a later chunk of the step's
    # rollout or in its update; then not at all.
    saves = [i for i, name in enumerate(seen, start=1) if name == "sync" and seen[i - 2] == "sha256"]
    for event, code in ((saves[1] + 2, -signal.SIGKILL), (6, -signal.SIGKILL), (10**9, 0)):
        assert not paths.run.exists()
        done = subprocess.run([sys.executable, "-m", "tests.small_run", str(killed), arm, str(event)], cwd=CLONE,
                              capture_output=True, text=True, timeout=600)
        assert done.returncode == code, done.stderr

    assert untimed(paths.run / "metrics.csv") == untimed(uninterrupted.run / "metrics.csv")
    assert sha256(paths.final_policy / "model.safetensors") == sha256(uninterrupted.final_policy / "model.safetensors")
    assert same(last_state(paths.checkpoints), last_state(uninterrupted.checkpoints))
