"""Weights by name as a folder that another process reads: the way from a trainer to vLLM.

A folder in the host's memory (/dev/shm) where both are on one machine. Of the processes of a run
that share it one writes; the others go through the weights with it, since sharded ones are gathered
by all together, and read what it wrote.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from safetensors.torch import save_file
from torch import Tensor

from turncredit.errors import CheckpointError, DataError, ProcessError
from turncredit.files import atomic_folder
from turncredit.policy.engines.base import Weights, opened

SHARD_BYTES = 2 * 2**30  # of one file, and so of the host's memory while it is written
WAIT_S = 1800.0
PAUSE_S = 0.02


@dataclass(frozen=True, slots=True)
class WeightFolder:
    """Where weights are handed over.

    Attributes:
        path: holds a folder a version, the newest alone.
        policy: folder or hub id that vLLM started with; all weights that come later have its names and shapes.
        dtype: that vLLM computes in.
        writer: this process writes; of those that share ``path`` exactly one does.
    """

    path: Path
    policy: str | Path
    dtype: torch.dtype
    writer: bool = True

    @contextmanager
    def holding(self, weights: Weights, version: int) -> Iterator[Path]:
        """A folder that holds the weights while the block runs, at least.

        Raises:
            CheckpointError: they are not the policy's, or cannot be read.
            ProcessError: the writer does not come.
            DataError: the disk is full or the place is not writable.
        """
        if isinstance(weights, Path):
            self._check(weights)
            yield weights
            return
        folder = self.path / f"version-{version}"
        if self.writer:
            with atomic_folder(folder) as fresh:
                write_weights(weights, fresh, self.dtype)
                self._check(fresh)
        else:
            for _ in weights:
                pass
            wait_until(folder.is_dir, f"{folder}: weights from the run's first process")
        yield folder
        if self.writer:  # whoever reads has the earlier ones
            for other in self.path.glob("version-*"):
                if other != folder:
                    shutil.rmtree(other)

    def clear(self) -> None:
        """Remove everything, also what an earlier run of the same name may have left."""
        if self.writer:
            shutil.rmtree(self.path, ignore_errors=True)

    def _check(self, folder: Path) -> None:
        """vLLM takes what fits and goes on with its old weights for the rest: nothing may be missing."""
        known = Path(self.policy)
        if not known.is_dir():  # vLLM has fetched it
            known = Path(snapshot_download(str(self.policy), local_files_only=True))
        asked, given = shapes(known), shapes(folder)
        tied = json.loads((known / "config.json").read_bytes()).get("tie_word_embeddings")
        wrong = sorted(name for name in asked.keys() | given.keys()
                       if asked.get(name) != given.get(name) and not (tied and name == "lm_head.weight"))
        if wrong:
            one = wrong[0]
            raise CheckpointError(f"weight {one}: shape {given.get(one, 'missing')}, and {asked.get(one, 'none')} "
                                  f"in {self.policy}", "give the engine all weights of its own policy")


def wait_until(ready: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> None:
    """Wait for what another process of the run does.

    Raises:
        ProcessError: it does not come in time.
    """
    end = time.monotonic() + wait_s
    while not ready():
        if time.monotonic() > end:
            raise ProcessError(f"{what} did not come within {wait_s:.0f} s",
                               "look at the log of the run's first process")
        time.sleep(PAUSE_S)


def shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights in a folder's safetensors files, read from their headers.

    Raises:
        CheckpointError: there are none, or one cannot be read.
    """
    return {name: tuple(tensor.get_shape()) for file in opened(folder) for name in file.keys()  # noqa: SIM118
            for tensor in [file.get_slice(name)]}


def write_weights(weights: Iterable[tuple[str, Tensor]], folder: Path, dtype: torch.dtype,
                  shard_bytes: int = SHARD_BYTES) -> None:
    """Write parameters as safetensors files of at most ``shard_bytes``, or of one parameter.

    A tied parameter, given as one tensor under each name, is written under its first one.
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
            copied = tensor.detach().to("cpu", dtype, copy=True).contiguous()
            if sum(other.nbytes for other in shard.values()) + copied.nbytes > shard_bytes:
                flush()
            shard[name] = copied
    flush()
    if not number:
        raise DataError("there are no weights to hand over", "give all parameters of the policy")
