"""Engine protocols: sample turns from contexts, and take new weights.

There are two ways to sample the same turns. ``Engine.generate`` takes a batch and returns when all
its turns have ended. ``StreamingEngine.sample`` takes one context and returns when its turn has
ended, so that the search of one episode does not delay the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from torch import Tensor

from turncredit.types import TurnStop

T = TypeVar("T")

Weights = Path | Iterable[tuple[str, Tensor]]  # a Hugging Face folder, or parameters by name


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled turn.

    Attributes:
        ids: the sampled ids, including the one that ended the turn.
        logprobs: log softmax(logits / temperature) of each id.
        stop: why sampling ended.
        weight_version: version of the weights that sampled it (see ``Engine.update_weights``).
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: TurnStop
    weight_version: int = 0


class Engine(Protocol):
    """Samples turns. Calls are independent of each other: caches do not change a sample."""

    @property
    def weight_version(self) -> int:
        """The version of the last ``update_weights``; 0 before the first."""
        ...

    def generate(self, contexts: Sequence[Sequence[int]], *, seeds: Sequence[int] | None, max_tokens: int,
                 temperature: float, stop_tags: tuple[str, ...]) -> list[Sample]:
        """Sample one turn for each context, in order.

        A turn ends at the token that completes a stop tag, wherever the tag is (also inside
        ``<think>``) and whatever other text that token contains; or at an end id; or after
        ``max_tokens`` tokens. A stop tag takes precedence over an end id.

        Args:
            contexts: token ids, none empty; contexts may be equal.
            seeds: one per context; a sample depends on its context and its seed, not on the batch.
                None decodes greedily.
            max_tokens: limit of the tokens sampled per context, at least 1.
            temperature: above 0; greedy decoding reports its log-probabilities at this temperature too.
            stop_tags: texts.

        Raises:
            NonFiniteError: the model's logits are NaN or infinite.
        """
        ...

    def reset_prefix_cache(self) -> None:
        """Drop cached prefixes; must be called after every change of the weights."""
        ...

    def update_weights(self, weights: Weights, version: int) -> None:
        """Load new weights and drop cached prefixes. No turn may be in progress.

        Args:
            weights: all parameters, or a folder that holds them. Iterated at most once; parameters that
                the engine shares with the trainer need not be read.
            version: attached to every later ``Sample``; it grows, e.g. the number of updates so far.

        Raises:
            CheckpointError: the folder cannot be read, or the parameters do not fit the model.
        """
        ...

    def sleep(self) -> None:
        """Free the accelerator's memory for the trainer; the next call that needs it wakes the engine."""
        ...


@runtime_checkable
class StreamingEngine(Protocol):
    """An engine that returns each turn as soon as it has ended."""

    async def sample(self, context: Sequence[int], *, seed: int | None, max_tokens: int, temperature: float,
                     stop_tags: tuple[str, ...]) -> Sample:
        """Sample the turn that ``Engine.generate`` would sample for this context; calls run concurrently.

        Cancelling the call stops its sampling.
        """
        ...


def check_request(contexts: Sequence[Sequence[int]], seeds: Sequence[int] | None, max_tokens: int,
                  temperature: float) -> None:
    """Check the arguments of ``Engine.generate``.

    Raises:
        ValueError: a count, a length or a range is wrong.
    """
    if max_tokens < 1 or temperature <= 0 or not all(map(len, contexts)):
        raise ValueError("max_tokens must be at least 1, temperature above 0, and no context empty")
    if seeds is not None and len(seeds) != len(contexts):
        raise ValueError(f"{len(seeds)} seeds for {len(contexts)} contexts")


async def gather_or_cancel(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines concurrently and return their results in order; if one fails, cancel the others and raise."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
