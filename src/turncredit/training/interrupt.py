"""Stop requests: SIGTERM and SIGUSR1 (SLURM's warning) are recorded and checked at safe places."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from turncredit.distributed.processes import SINGLE_PROCESS, Processes
from turncredit.errors import Interrupted
from turncredit.policy.engines.base import Engine, Sample, StreamingEngine, Weights


class StopRequest:
    """Records whether a signal has asked this process to stop; ``name`` is the signal's, or None."""

    def __init__(self) -> None:
        self.name: str | None = None

    def check(self, processes: Processes = SINGLE_PROCESS) -> None:
        """Raise ``Interrupted`` if a signal has arrived at any rank; all ranks call this together."""
        arrived = [name for name in processes.all_gather(self.name) if name is not None]
        if arrived:
            raise Interrupted(f"stopped by {arrived[0]}", "run the same command again to resume")

    @contextmanager
    def listening(self) -> Iterator[StopRequest]:
        """Handle SIGTERM and SIGUSR1 while the block runs; then restore the previous handlers."""

        def record(number: int, frame: FrameType | None) -> None:
            self.name = signal.Signals(number).name

        before = {number: signal.signal(number, record) for number in (signal.SIGTERM, signal.SIGUSR1)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


class StoppableEngine:
    """An engine that checks for a stop request before each call; a rollout changes no state, so it may be dropped."""

    def __init__(self, engine: Engine, request: StopRequest) -> None:
        self._engine, self._request = engine, request

    @property
    def weight_version(self) -> int:
        """See ``Engine.weight_version``."""
        return self._engine.weight_version

    def generate(self, contexts: Sequence[Sequence[int]], *, seeds: Sequence[int] | None, max_tokens: int,
                 temperature: float, stop_tags: tuple[str, ...]) -> list[Sample]:
        """See ``Engine.generate``.

        Raises:
            Interrupted: a signal has arrived at this process.
        """
        self._request.check()
        return self._engine.generate(contexts, seeds=seeds, max_tokens=max_tokens, temperature=temperature,
                                     stop_tags=stop_tags)

    def reset_prefix_cache(self) -> None:
        """See ``Engine.reset_prefix_cache``."""
        self._engine.reset_prefix_cache()

    def update_weights(self, weights: Weights, version: int) -> None:
        """See ``Engine.update_weights``."""
        self._engine.update_weights(weights, version)

    def sleep(self) -> None:
        """See ``Engine.sleep``."""
        self._engine.sleep()


class StoppableStreamingEngine(StoppableEngine):
    """A ``StoppableEngine`` that is a ``StreamingEngine`` too."""

    def __init__(self, engine: Engine, streaming: StreamingEngine, request: StopRequest) -> None:
        super().__init__(engine, request)
        self._streaming = streaming

    async def sample(self, context: Sequence[int], *, seed: int | None, max_tokens: int, temperature: float,
                     stop_tags: tuple[str, ...]) -> Sample:
        """See ``StreamingEngine.sample``.

        Raises:
            Interrupted: a signal has arrived at this process.
        """
        self._request.check()
        return await self._streaming.sample(context, seed=seed, max_tokens=max_tokens, temperature=temperature,
                                            stop_tags=stop_tags)


def stoppable(engine: Engine, request: StopRequest) -> StoppableEngine:
    """Wrap ``engine`` so that it checks for a stop request; a ``StreamingEngine`` stays one."""
    if isinstance(engine, StreamingEngine):
        return StoppableStreamingEngine(engine, engine, request)
    return StoppableEngine(engine, request)
