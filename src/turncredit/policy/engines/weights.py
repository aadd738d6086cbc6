"""Weights by name: read from a folder or from memory, and handed to vLLM through a folder.

If trainer and vLLM run on one machine the folder is in memory (/dev/shm). Of the training processes
that share it, one writes. The others must iterate over the weights with it, because sharded weights
are gathered by all ranks together; then they read what it wrote.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from turncredit.errors import CheckpointError, DataError, ProcessError
from turncredit.files import atomic_folder
from turncredit.policy.engines.base import Weights

SHARD_BYTES = 2 * 2**30  # size of one file, and so the CPU memory that writing needs
WAIT_S = 1800.0
POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class WeightFolder:
    """The folder in which a trainer writes weights for vLLM to load.

    Attributes:
        path: contains one folder per version; only the newest is kept.
        policy: folder or hub id that vLLM started with; all later weights must have its names and shapes.
        dtype: number type of the weights that are written and of vLLM's computation.
        is_writer: this process writes; exactly one of the processes that share ``path`` does.
    """

    path: Path
    policy: str | Path
    dtype: torch.dtype
    is_writer: bool = True

    @contextmanager
    def published(self, weights: Weights, version: int) -> Iterator[Path]:
        """Yield a folder with the weights; it exists at least until the block ends.

        Raises:
            CheckpointError: the weights do not fit the policy, or cannot be read.
            ProcessError: the writer does not write them in time.
            DataError: the disk is full or the folder is not writable.
        """
        if isinstance(weights, Path):
            self._check(weights)
            yield weights
            return
        folder = self.path / f"version-{version}"
        if self.is_writer:
            with atomic_folder(folder) as fresh:
                write_weights(weights, fresh, self.dtype)
                self._check(fresh)
        else:
            for _ in weights:
                pass
            wait_until(folder.is_dir, f"{folder}: weights from the machine's first process")
        yield folder
        if self.is_writer:  # all readers are done with earlier versions
            for other in self.path.glob("version-*"):
                if other != folder:
                    shutil.rmtree(other)

    def clear(self) -> None:
        """Remove the folder, also one of an earlier run of the same name."""
        if self.is_writer:
            shutil.rmtree(self.path, ignore_errors=True)

    def _check(self, folder: Path) -> None:
        """Check names and shapes, because vLLM silently keeps its old weights where new ones are missing."""
        policy = Path(self.policy)
        if not policy.is_dir():  # a hub id, which vLLM has downloaded
            policy = Path(snapshot_download(str(self.policy), local_files_only=True))
        expected, actual = shapes(policy), shapes(folder)
        tied = json.loads((policy / "config.json").read_bytes()).get("tie_word_embeddings")
        wrong = sorted(name for name in expected.keys() | actual.keys()
                       if expected.get(name) != actual.get(name) and not (tied and name == "lm_head.weight"))
        if wrong:
            name = wrong[0]
            raise CheckpointError(
                f"weight {name}: shape {actual.get(name, 'missing')}, "
                f"but {expected.get(name, 'none')} in {self.policy}",
                "give the engine all weights of its own policy")


def wait_until(ready: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> None:
    """Wait until another process of the run has done something; ``what`` names it in the error.

    Raises:
        ProcessError: the time is over.
    """
    end = time.monotonic() + wait_s
    while not ready():
        if time.monotonic() > end:
            raise ProcessError(f"{what} not available after {wait_s:.0f} s",
                               "read the log of the machine's first process")
        time.sleep(POLL_S)


def named_weights(weights: Weights) -> Iterator[tuple[str, Tensor]]:
    """Yield parameters by name, one at a time; of a folder, those of all its safetensors files.

    Raises:
        CheckpointError: the folder has no readable safetensors file.
    """
    if not isinstance(weights, Path):
        yield from weights
        return
    for file in open_safetensors(weights):
        for name in file.keys():  # noqa: SIM118 - not a mapping
            yield name, file.get_tensor(name)


def open_safetensors(folder: Path) -> Iterator[Any]:
    """Yield the safetensors files of a folder; each is open until the next one is requested.

    Raises:
        CheckpointError: there are none, or one cannot be read.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder}: no *.safetensors", "save the policy with save_policy")
    for path in files:
        try:
            file = safe_open(path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path}: cannot be read: {error}", "save the policy again") from error
        with file:
            yield file


def shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the weights in a folder's safetensors files, read from their headers.

    Raises:
        CheckpointError: there are none, or one cannot be read.
    """
    return {name: tuple(tensor.get_shape()) for file in open_safetensors(folder)
            for name in file.keys()  # noqa: SIM118
            for tensor in [file.get_slice(name)]}


def write_weights(weights: Iterable[tuple[str, Tensor]], folder: Path, dtype: torch.dtype,
                  shard_bytes: int = SHARD_BYTES) -> None:
    """Write parameters as safetensors files of at most ``shard_bytes``, or of one larger parameter.

    A tied parameter, given as one tensor under each name, is written under its first name.

    Raises:
        DataError: there are no weights.
    """
    shard: dict[str, Tensor] = {}
    number, last = 0, torch.empty(0)

    def flush() -> None:
        nonlocal number
        if shard:
            number += 1
            save_file(shard, folder / f"model-{number:05}.safetensors")
            shard.clear()

    for name, tensor in weights:
        if tensor is not last:
            last = tensor
            copy = tensor.detach().to("cpu", dtype, copy=True).contiguous()
            if sum(other.nbytes for other in shard.values()) + copy.nbytes > shard_bytes:
                flush()
            shard[name] = copy
    flush()
    if not number:
        raise DataError("the engine was given no weights", "give it all parameters of the policy")
