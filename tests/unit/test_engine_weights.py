"""Weights as folders: written in shards, checked against the policy, shared by processes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.policies import model
from turncredit.errors import CheckpointError, DataError, ProcessError
from turncredit.policy.engines.weights import WeightFolder, wait_until, write_weights
from turncredit.policy.model import save_policy

W = [("w", torch.zeros(2))]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy folder with one weight."""
    folder = tmp_path_factory.mktemp("policy")
    write_weights([("w", torch.ones(2))], folder, torch.float32)
    (folder / "config.json").write_text("{}")
    return folder


def given(tmp_path: Path, policy: Path, **changes: Any) -> WeightFolder:
    return WeightFolder(tmp_path / "given", policy, torch.float32, **changes)


def test_weights_are_written_in_shards_tied_ones_once_and_in_the_engines_precision(tmp_path):
    tied = torch.ones(4)
    weights = [("a", torch.zeros(3)), ("b", tied), ("tied", tied), ("c", torch.full((2, 2), 2.0))]
    write_weights(iter(weights), tmp_path, torch.bfloat16, shard_bytes=20)
    parts = [load_file(path) for path in sorted(tmp_path.glob("*.safetensors"))]
    assert [sorted(part) for part in parts] == [["a", "b"], ["c"]]
    assert all(tensor.dtype is torch.bfloat16 for part in parts for tensor in part.values())
    assert parts[1]["c"].tolist() == [[2, 2], [2, 2]]


def test_a_real_policys_weights_are_those_of_its_folder_tied_or_not(tmp_path):
    tied = model()  # its embeddings are
    save_policy(tied, tmp_path / "policy")
    with given(tmp_path, tmp_path / "policy").published(tied.state_dict().items(), 1) as folder:
        assert list(folder.glob("*.safetensors"))


@pytest.mark.parametrize("weights", [
    [("w", torch.ones(3))], [("v", torch.ones(2))], [("w", torch.ones(2)), ("v", torch.ones(2))]])
def test_weights_of_another_policy_are_refused_and_leave_nothing(tmp_path, policy, weights):
    folder = given(tmp_path, policy)
    with pytest.raises(CheckpointError, match=r"weight [vw]"), folder.published(weights, 1):
        raise AssertionError
    assert not list(folder.path.iterdir())
    with pytest.raises(DataError, match="no weights"), folder.published([], 1):
        raise AssertionError
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors"), folder.published(tmp_path, 1):
        raise AssertionError


def test_one_process_writes_and_the_others_iterate_over_the_weights_with_it(tmp_path, policy):
    """All ranks gather each weight together: a rank that skips one would block the others."""
    barrier, seen = threading.Barrier(2, timeout=20), {}

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        barrier.wait()
        yield "w", torch.full((2,), 5.0)
        barrier.wait()

    def take(writer: bool) -> None:
        with given(tmp_path, policy, is_writer=writer).published(weights(), 3) as folder:
            seen[writer] = load_file(next(folder.glob("*.safetensors")))["w"].tolist()

    threads = [threading.Thread(target=take, args=(writer,)) for writer in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert seen == {True: [5.0, 5.0], False: [5.0, 5.0]}


def test_only_the_newest_weights_are_kept(tmp_path, policy):
    folder = given(tmp_path, policy)
    for version in (1, 2, 3):
        with folder.published(W, version):
            pass
    assert [path.name for path in folder.path.iterdir()] == ["version-3"]
    folder.clear()
    assert not folder.path.exists()


def test_waiting_for_another_process_times_out():
    with pytest.raises(ProcessError, match="the address not available"):
        wait_until(lambda: False, "the address", wait_s=0.01)
