"""The processes of one run, and what they agree on before any of them goes on.

Python objects and small tensors travel over a gloo group of their own, so nothing here touches an
accelerator. Every call is made by all processes in the same order. An error of one of them becomes
an error of all: nobody waits for a process that will not come. One process agrees with itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

from turncredit.errors import ConfigError, Interrupted, ProcessError, TurncreditError

T = TypeVar("T")
S = TypeVar("S")

TIMEOUT_S = 1800.0  # how long one process waits for another: the longest rollout that others may have to wait for
_REMEDY = "look at the log of that process; then run the same command again, which goes on from the last checkpoint"


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes of a run, as one of them sees them.

    Attributes:
        rank: this process, from 0; the first one writes all files.
        count: number of processes.
        group: a gloo group of all; None where there is one process.
    """

    rank: int = 0
    count: int = 1
    group: Any = None

    @classmethod
    def join(cls, expected: int, device: str, timeout_s: float = TIMEOUT_S) -> Processes:
        """Meet the others that torchrun or accelerate has started (environment: RANK, WORLD_SIZE, ...).

        Args:
            expected: ``launch.processes``.
            device: ``cpu`` or ``cuda``.
            timeout_s: seconds that one process waits for another before it gives up.

        Raises:
            ConfigError: another number of processes runs. A launcher that starts one process where two
                are asked for would else train on half of the machine.
            ProcessError: the others do not come.
        """
        running = int(os.environ.get("WORLD_SIZE", "1"))
        if running != expected:
            raise ConfigError(f"launch.processes = {expected}, but {running} run" + "s" * (running == 1),
                              "`turncredit train` starts them itself; or set launch.processes to what you start")
        if running == 1:
            return ALONE
        from accelerate import PartialState  # a second to load, and only needed here

        timeout = timedelta(seconds=timeout_s)
        try:
            PartialState(cpu=device == "cpu", timeout=timeout)
            group = dist.new_group(backend="gloo", timeout=timeout)
        except (RuntimeError, ValueError) as error:
            raise ProcessError(f"process {os.environ.get('RANK')} of {running} cannot meet the others: {_first(error)}",
                               "check MASTER_ADDR, MASTER_PORT and the network between the nodes") from error
        return cls(dist.get_rank(), dist.get_world_size(), group)

    @property
    def first(self) -> bool:
        """Whether this process writes files."""
        return self.rank == 0

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Turn what the network says of a lost process, while the block runs, into an error that says so.

        Raises:
            ProcessError: a process has died or did not come within the time-out.
        """
        try:
            yield
        except RuntimeError as error:
            text = str(error).lower()
            if not isinstance(error, dist.DistError) and "gloo" not in text and "nccl" not in text:
                raise
            what = "did not come in time" if "timed out" in text or "timeout" in text else "is lost"
            raise ProcessError(f"process {self.rank} of {self.count}: another process {what}: {_first(error)}",
                               _REMEDY) from error

    def gather(self, value: T) -> list[T]:
        """Everybody's value, by rank.

        Raises:
            ProcessError: a process has died or did not come within the time-out.
        """
        if self.group is None:
            return [value]
        found: list[Any] = [None] * self.count
        with self.waiting():
            dist.all_gather_object(found, value, group=self.group)
        return found

    def total(self, tensor: Tensor) -> Tensor:
        """The sum of everybody's tensor (CPU, equal shapes); the argument stays as it is.

        Raises:
            ProcessError: see ``gather``.
        """
        if self.group is None:
            return tensor
        summed = tensor.clone()
        with self.waiting():
            dist.all_reduce(summed, group=self.group)
        return summed

    def together(self, work: Callable[[], T]) -> list[T]:
        """Let everybody work, and then have all results, by rank.

        Raises:
            Exception: what the work of any process raised; the same decision on all of them. One that
                is not the user's to mend is a ``ProcessError`` on the others.
        """
        if self.group is None:
            return [work()]
        result: T | None = None
        failed: Exception | None = None
        try:
            result = work()
        except Exception as error:
            failed = error
        outcomes = self.gather((result, _portable(failed)))
        faults = [(_gravity(fault), rank, fault) for rank, (_, fault) in enumerate(outcomes) if fault is not None]
        if faults:
            _, rank, fault = min(faults, key=lambda found: found[:2])
            if rank == self.rank and failed is not None:
                raise failed
            raise fault if isinstance(fault, TurncreditError) else ProcessError(
                f"process {rank} of {self.count} failed: {fault}", _REMEDY) from failed
        return [outcome for outcome, _ in outcomes]  # type: ignore[misc]

    def each(self, work: Callable[[], T]) -> T:
        """Let everybody work, and keep his own result, which need not travel.

        Raises:
            Exception: see ``together``.
        """
        mine: list[T] = []
        self.together(lambda: mine.append(work()))
        return mine[0]

    def once(self, work: Callable[[], T]) -> T:
        """Let the first process work, and all have its result.

        Raises:
            Exception: see ``together``.
        """
        return self.together(lambda: work() if self.first else None)[0]  # type: ignore[return-value]

    def spread(self, items: Sequence[S], work: Callable[[Sequence[S]], Sequence[T]]) -> list[T]:
        """Deal the items out, let everybody work on his own, and have all results in the items' order.

        Args:
            items: the same on all processes.
            work: one result an item, in order; is not called without items.

        Raises:
            Exception: see ``together``.
        """
        def share() -> Sequence[T]:
            mine = items[self.rank::self.count]
            return work(mine) if mine else []

        parts = self.together(share)
        return [parts[i % self.count][i // self.count] for i in range(len(items))]


ALONE = Processes()


def leave() -> None:
    """Part from the other processes, at the end of a program that has met them."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _portable(error: Exception | None) -> TurncreditError | str | None:
    """What the others are told of an error: itself if it is the user's to mend, else its text."""
    return error if error is None or isinstance(error, TurncreditError) else f"{type(error).__name__}: {_first(error)}"


def _gravity(fault: TurncreditError | str) -> int:
    """Which of several faults is told: a crash before an error before a wish to stop, which all must share."""
    return 0 if isinstance(fault, str) else 2 if isinstance(fault, Interrupted) else 1


def _first(error: BaseException) -> str:
    """The first line of an error's text."""
    return str(error).strip().partition("\n")[0]
