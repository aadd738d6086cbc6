"""SIGTERM and SIGUSR1 (SLURM's warning) as a question that the trainer asks at safe places."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from turncredit.distributed.processes import ALONE, Processes
from turncredit.errors import Interrupted
from turncredit.policy.engines.base import Engine, Images, Sample, StreamingEngine, Weights


class StopRequest:
    """Whether the process was asked to stop."""

    def __init__(self) -> None:
        self.name: str | None = None

    def check(self, processes: Processes = ALONE) -> None:
        """Raise ``Interrupted`` if a signal has arrived, at any of the processes that ask together."""
        arrived = [name for name in processes.gather(self.name) if name is not None]
        if arrived:
            raise Interrupted(f"stopped by {arrived[0]}", "run the same command again to go on")

    @contextmanager
    def listening(self) -> Iterator[StopRequest]:
        """Listen to SIGTERM and SIGUSR1 while the block runs; the handlers before it come back."""

        def note(number: int, frame: FrameType | None) -> None:
            self.name = signal.Signals(number).name

        before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGUSR1)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class StoppableEngine:
    """An engine that is asked to stop between two turns; rollouts change no state, so they may be left."""

    def __init__(self, engine: Engine, request: StopRequest) -> None:
        self._engine, self._request = engine, request

    @property
    def weight_version(self) -> int:
        """See ``Engine.weight_version``."""
        return self._engine.weight_version

    def generate(self, contexts: Sequence[Sequence[int]], *, seeds: Sequence[int] | None, max_tokens: int,
                 temperature: float, stop_tags: tuple[str, ...],
                 multi_modal: Sequence[Images] | None = None) -> list[Sample]:
        """See ``Engine.generate``.

        Raises:
            Interrupted: a signal has arrived at this process.
        """
        self._request.check()
        return self._engine.generate(contexts, seeds=seeds, max_tokens=max_tokens, temperature=temperature,
                                     stop_tags=stop_tags, multi_modal=multi_modal)

    def reset_prefix_cache(self) -> None:
        """See ``Engine.reset_prefix_cache``."""
        self._engine.reset_prefix_cache()

    def update_weights(self, weights: Weights, version: int) -> None:
        """See ``Engine.update_weights``."""
        self._engine.update_weights(weights, version)

    def sleep(self) -> None:
        """See ``Engine.sleep``."""
        self._engine.sleep()


class StoppableStream(StoppableEngine):
    """The same for an engine whose turns end one by one."""

    def __init__(self, engine: Engine, turns: StreamingEngine, request: StopRequest) -> None:
        super().__init__(engine, request)
        self._turns = turns

    async def sample(self, context: Sequence[int], *, seed: int | None, max_tokens: int, temperature: float,
                     stop_tags: tuple[str, ...], images: Images = ()) -> Sample:
        """See ``StreamingEngine.sample``.

        Raises:
            Interrupted: a signal has arrived at this process.
        """
        self._request.check()
        return await self._turns.sample(context, seed=seed, max_tokens=max_tokens, temperature=temperature,
                                        stop_tags=stop_tags, images=images)


def stoppable(engine: Engine, request: StopRequest) -> StoppableEngine:
    """``engine``, asked to stop between two turns; turns end one by one if its own do."""
    if isinstance(engine, StreamingEngine):
        return StoppableStream(engine, engine, request)
    return StoppableEngine(engine, request)
