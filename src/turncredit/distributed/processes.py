"""The process group of a run: run on all ranks or on rank 0, scatter and gather, shared errors.

Python objects and small tensors travel over a gloo group of their own, so nothing here touches an
accelerator. All ranks make every call, in the same order. An error on one rank is raised on all
ranks, so that no rank waits for another that has failed. Without a group (one process) each call
runs locally.
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

from turncredit.errors import ConfigError, Interrupted, ProcessError, RankError, TurncreditError

T = TypeVar("T")
S = TypeVar("S")

TIMEOUT_S = 1800.0  # how long one rank waits for another; longer than any rollout
_REMEDY = "read the log of that process; then run the same command again to resume from the last checkpoint"


@dataclass(frozen=True, slots=True)
class Processes:
    """The process group of a run, as one rank sees it.

    Attributes:
        rank: number of this process, from 0; rank 0 writes all files.
        world_size: number of processes.
        group: the gloo group of all ranks; None for one process.
    """

    rank: int = 0
    world_size: int = 1
    group: Any = None

    @classmethod
    def join(cls, expected: int, device: str, timeout_s: float = TIMEOUT_S) -> Processes:
        """Join the processes that torchrun or accelerate has started (environment: RANK, WORLD_SIZE, ...).

        Args:
            expected: ``launch.processes``.
            device: ``cpu`` or ``cuda``.
            timeout_s: seconds after which a rank stops waiting for another.

        Raises:
            ConfigError: another number of processes is running. Otherwise a launcher that starts one
                process instead of two would silently train on half of the machine.
            ProcessError: the other ranks do not connect.
        """
        running = int(os.environ.get("WORLD_SIZE", "1"))
        if running != expected:
            raise ConfigError(f"launch.processes = {expected}, but the world size is {running}",
                              "let `turncredit train` start the processes, or set launch.processes to the world size")
        if running == 1:
            return SINGLE_PROCESS
        from accelerate import PartialState  # takes a second to import, and is only needed here

        timeout = timedelta(seconds=timeout_s)
        try:
            PartialState(cpu=device == "cpu", timeout=timeout)
            group = dist.new_group(backend="gloo", timeout=timeout)
        except (RuntimeError, ValueError) as error:
            raise ProcessError(
                f"rank {os.environ.get('RANK')} of {running} cannot connect to the others: {_first_line(error)}",
                "check MASTER_ADDR, MASTER_PORT and the network between the nodes") from error
        return cls(dist.get_rank(), dist.get_world_size(), group)

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes files."""
        return self.rank == 0

    @contextmanager
    def network_errors(self) -> Iterator[None]:
        """Turn the network errors of a lost rank inside the block into a ``RankError``.

        Raises:
            RankError: a rank has died or did not respond within the time-out.
        """
        try:
            yield
        except RuntimeError as error:
            text = str(error).lower()
            if not isinstance(error, dist.DistError) and "gloo" not in text and "nccl" not in text:
                raise
            what = "did not respond in time" if "timed out" in text or "timeout" in text else "is lost"
            raise RankError(
                f"rank {self.rank} of {self.world_size}: another process {what}: {_first_line(error)}",
                _REMEDY) from error

    def all_gather(self, value: T) -> list[T]:
        """Return the values of all ranks, by rank.

        Raises:
            RankError: a rank has died or did not respond within the time-out.
        """
        if self.group is None:
            return [value]
        values: list[Any] = [None] * self.world_size
        with self.network_errors():
            dist.all_gather_object(values, value, group=self.group)
        return values

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Return the sum of all ranks' tensors (CPU, equal shapes); the argument is not changed.

        Raises:
            RankError: see ``all_gather``.
        """
        if self.group is None:
            return tensor
        total = tensor.clone()
        with self.network_errors():
            dist.all_reduce(total, group=self.group)
        return total

    def gather_results(self, work: Callable[[], T]) -> list[T]:
        """Run ``work`` on every rank; return the results of all ranks, by rank.

        Raises:
            Exception: an error of any rank, on all ranks. If several ranks fail, all raise the same
                one. An error other than ``TurncreditError`` is a ``RankError`` on the other ranks.
        """
        if self.group is None:
            return [work()]
        result: T | None = None
        own_error: Exception | None = None
        try:
            result = work()
        except Exception as error:
            own_error = error
        outcomes = self.all_gather((result, _picklable(own_error)))
        failures = [(_severity(failure), rank, failure) for rank, (_, failure) in enumerate(outcomes)
                    if failure is not None]
        if failures:
            _, rank, failure = min(failures, key=lambda entry: entry[:2])
            if rank == self.rank and own_error is not None:
                raise own_error
            raise failure if isinstance(failure, TurncreditError) else RankError(
                f"rank {rank} of {self.world_size} failed: {failure}", _REMEDY) from own_error
        return [outcome for outcome, _ in outcomes]  # type: ignore[misc]

    def on_all_ranks(self, work: Callable[[], T]) -> T:
        """Run ``work`` on every rank; return the local result, which is not sent.

        Raises:
            Exception: see ``gather_results``.
        """
        local: list[T] = []
        self.gather_results(lambda: local.append(work()))
        return local[0]

    def on_rank_0(self, work: Callable[[], T]) -> T:
        """Run ``work`` on rank 0; return its result on every rank.

        Raises:
            Exception: see ``gather_results``.
        """
        return self.gather_results(lambda: work() if self.is_main else None)[0]  # type: ignore[return-value]

    def scatter_gather(self, items: Sequence[S], work: Callable[[Sequence[S]], Sequence[T]]) -> list[T]:
        """Split ``items`` over the ranks, run ``work`` on each share, return all results in the items' order.

        Args:
            items: the same on all ranks; rank r gets every ``world_size``-th one from r.
            work: returns one result per item, in order; not called for an empty share.

        Raises:
            Exception: see ``gather_results``.
        """
        def work_on_share() -> Sequence[T]:
            share = items[self.rank::self.world_size]
            return work(share) if share else []

        shares = self.gather_results(work_on_share)
        return [shares[i % self.world_size][i // self.world_size] for i in range(len(items))]


SINGLE_PROCESS = Processes()


def shutdown() -> None:
    """Destroy the process group, if there is one; call it at the end of the program."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _picklable(error: Exception | None) -> TurncreditError | str | None:
    """An error as it is sent to other ranks: a ``TurncreditError`` itself, the text of any other."""
    if error is None or isinstance(error, TurncreditError):
        return error
    return f"{type(error).__name__}: {_first_line(error)}"


def _severity(error: TurncreditError | str) -> int:
    """Which of several errors is raised, lowest first: a crash, a ``TurncreditError``, an interruption."""
    return 0 if isinstance(error, str) else 2 if isinstance(error, Interrupted) else 1


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]
