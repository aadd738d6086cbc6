"""Sampling by vLLM, which runs in other processes: on the trainer's GPUs or on its own.

``VLLMEngine`` decides everything that affects a sample; a ``Backend`` (``vllm_process``,
``vllm_server``) only transports requests. vLLM caches prefixes itself, and reports log-probabilities
of the distribution that it samples from, log softmax(logits / T). It stops at stop strings and end
ids; ``turn_end`` then applies the exact rule that all engines share.
"""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from turncredit.errors import ConfigError, NonFiniteError, ProcessError
from turncredit.policy.engines.base import Sample, Weights, check_request, gather_or_cancel
from turncredit.policy.engines.weights import WeightFolder, wait_until
from turncredit.policy.tokenizer import Codec
from turncredit.types import TurnStop

T = TypeVar("T")

MIN_TEMPERATURE = 0.01  # below it vLLM replaces the temperature
MIN_LOGPROB = -9999.0  # vLLM's servers write this for NaN and -inf; no sampled token is so unlikely
WEIGHTS, CACHE = "weights", "kv_cache"  # vLLM's names of what sleeps
RESET_ATTEMPTS, RESET_PAUSE_S = 50, 0.02  # its core registers with a delay that a turn has ended with a tag
INITIAL_VERSION = "default"  # vLLM's name for the weights that it started with


@dataclass(frozen=True, slots=True)
class Completion:
    """vLLM's answer to one request.

    Attributes:
        ids: the sampled ids, including the one that ended it.
        logprobs: one log-probability per id, at the sampling temperature.
        reason: why it ended, in vLLM's words.
        versions: versions of the weights that sampled the ids, in order (see ``Backend.set_version``).
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    reason: str
    versions: tuple[str, ...]


class Backend(Protocol):
    """A running vLLM. All calls are made on one event loop; only ``complete`` calls run concurrently."""

    async def start(self) -> None:
        """Start vLLM or connect to it; called once, first."""
        ...

    async def complete(self, context: Sequence[int], parameters: dict[str, Any]) -> Completion:
        """Return one completion for vLLM's ``SamplingParams``; cancelling the call stops its sampling.

        Raises:
            ConfigError: vLLM rejects the request.
            ProcessError: vLLM failed or does not respond.
        """
        ...

    async def load_weights(self, folder: Path) -> None:
        """Load the weights of a folder."""
        ...

    async def set_version(self, version: str) -> None:
        """Set the version of the weights."""
        ...

    async def get_version(self) -> str:
        """Return the version of the weights."""
        ...

    async def reset_prefix_cache(self) -> bool:
        """Drop cached prefixes; return False if some are in use."""
        ...

    async def sleep(self, level: int) -> None:
        """Free the GPU: level 1 keeps the weights in CPU memory, level 2 drops them."""
        ...

    async def wake_up(self, tags: list[str]) -> None:
        """Take the GPU's memory back for ``weights``, ``kv_cache`` or both."""
        ...

    async def close(self) -> None:
        """Shut vLLM down or disconnect from it."""
        ...


class VLLMEngine:
    """An ``Engine`` and a ``StreamingEngine``. Close it, or use it in a ``with`` statement.

    A sample depends on its context and its seed, up to rounding in another batch (none with
    VLLM_BATCH_INVARIANT=1, on GPUs that support it). The same seed gives other samples than in
    ``HFEngine``. Greedy decoding reports log-probabilities at temperature 1 only.

    Args:
        backend: started here.
        codec: encodes and decodes with the policy's tokenizer.
        window: largest number of tokens of a context and its turn together.
        folder: weights given by name are written here, and vLLM loads them.
        sleep_level: what ``sleep`` does: 0 nothing, 1 and 2 as in ``Backend.sleep``. After level 2 new
            weights must be given before the next turn.
        shared: other processes of the run use this vLLM too. They take part in each rollout and in each
            change of the weights together.
        is_leader: this process, alone among those that share vLLM, updates its weights and puts it to sleep.

    Raises:
        ConfigError, ProcessError: vLLM cannot be started.
    """

    def __init__(self, backend: Backend, codec: Codec, *, window: int, folder: WeightFolder, sleep_level: int = 0,
                 shared: bool = False, is_leader: bool = True) -> None:
        self._backend, self._codec, self._window = backend, codec, window
        self._folder, self._sleep_level = folder, sleep_level if is_leader else 0
        self._shared, self._is_leader = shared, is_leader
        self._asleep: frozenset[str] = frozenset()
        self._weights_dropped = False  # by sleep level 2
        self._cache_corrupt = False  # NaN keys and values stay in vLLM's cache and corrupt later turns
        self._wake_lock = asyncio.Lock()  # turns start concurrently
        self._loop = _BackgroundLoop()
        self.weight_version = 0
        try:
            self._loop.run(backend.start())
        except BaseException:
            self.close()
            raise

    def generate(self, contexts: Sequence[Sequence[int]], *, seeds: Sequence[int] | None, max_tokens: int,
                 temperature: float, stop_tags: tuple[str, ...]) -> list[Sample]:
        """See ``Engine``."""
        check_request(contexts, seeds, max_tokens, temperature)
        greedy: Sequence[int | None] = [None] * len(contexts)
        rows = zip(contexts, greedy if seeds is None else seeds, strict=True)
        return self._loop.run(gather_or_cancel(self._turn(context, seed, max_tokens, temperature, stop_tags)
                                               for context, seed in rows))

    async def sample(self, context: Sequence[int], *, seed: int | None, max_tokens: int, temperature: float,
                     stop_tags: tuple[str, ...]) -> Sample:
        """See ``StreamingEngine``."""
        check_request([context], None, max_tokens, temperature)
        return await self._loop.call(self._turn(context, seed, max_tokens, temperature, stop_tags))

    def reset_prefix_cache(self) -> None:
        """See ``Engine``. A shared vLLM drops prefixes only with its weights, because others may be sampling.

        Raises:
            ProcessError: turns are still in progress.
        """
        if not self._shared:
            self._loop.run(self._reset())

    def update_weights(self, weights: Weights, version: int) -> None:
        """See ``Engine``. All processes of the run give the same weights; one writes them, all leaders load them."""
        with self._folder.published(weights, version) as folder:
            if self._is_leader:
                self._loop.run(self._load(folder, str(version)))
            else:
                wait_until(lambda: self._loop.run(self._backend.get_version()) == str(version),
                           f"weights of version {version} in vLLM:")
        self._weights_dropped = False
        self.weight_version = version

    def sleep(self) -> None:
        """See ``Engine``."""
        if self._sleep_level and not self._asleep:
            self._loop.run(self._backend.sleep(self._sleep_level))
            self._asleep = frozenset({WEIGHTS, CACHE})
            self._weights_dropped = self._sleep_level == 2

    def close(self) -> None:
        """Shut vLLM down."""
        try:
            self._loop.run(self._backend.close())
        finally:
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    async def _turn(self, context: Sequence[int], seed: int | None, max_tokens: int, temperature: float,
                    stop_tags: tuple[str, ...]) -> Sample:
        """Sample one turn."""
        if len(context) + max_tokens > self._window:
            raise ConfigError(f"a context of {len(context)} tokens and a turn of {max_tokens} exceed vLLM's window of "
                              f"{self._window}", "raise task.max_context_tokens")
        parameters = sampling_parameters(self._codec, seed, max_tokens, temperature, stop_tags)
        if self._cache_corrupt:
            raise ProcessError("vLLM's cache may contain values that are not finite",
                               "run the same command again, which starts a new vLLM")
        if self._weights_dropped:
            raise ValueError("sleep has dropped the weights: call update_weights before the next turn")
        await self._wake(WEIGHTS, CACHE)
        try:
            completion = await self._backend.complete(tuple(context), parameters)
            return to_sample(completion, self._codec, max_tokens, stop_tags)
        except NonFiniteError:
            self._cache_corrupt = True
            raise

    async def _wake(self, *tags: str) -> None:
        async with self._wake_lock:
            if asleep := [tag for tag in tags if tag in self._asleep]:
                await self._backend.wake_up(asleep)
                self._asleep -= set(asleep)

    async def _load(self, folder: Path, version: str) -> None:
        """Load weights, drop old prefixes, and set the version last, because other processes wait for it."""
        await self._wake(WEIGHTS)
        await self._backend.load_weights(folder)
        await self._reset()
        if self._shared:
            await self._wake(CACHE)
        await self._backend.set_version(version)

    async def _reset(self) -> None:
        if CACHE in self._asleep:  # sleep has emptied it
            return
        for _ in range(RESET_ATTEMPTS):
            if await self._backend.reset_prefix_cache():
                return
            await asyncio.sleep(RESET_PAUSE_S)
        raise ProcessError("vLLM cannot drop its cached prefixes, because turns are in progress",
                           "change the weights only after all turns have ended")


class _BackgroundLoop:
    """An event loop in a thread, for connections and clients that outlive single calls."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="engine", daemon=True)
        self._thread.start()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and wait for its result; an interrupted wait cancels the coroutine."""
        future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def call(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine and await its result from another loop; cancelling the wait cancels the coroutine."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call, self._loop))

    def close(self) -> None:
        """Stop the loop and its thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def sampling_parameters(codec: Codec, seed: int | None, max_tokens: int, temperature: float,
                        stop_tags: tuple[str, ...]) -> dict[str, Any]:
    """Return vLLM's ``SamplingParams`` of a turn as JSON values.

    They set everything that a model's own generation_config.json could change.

    Raises:
        ValueError: vLLM cannot sample, or cannot report log-probabilities, at this temperature.
    """
    if seed is None and temperature != 1:
        raise ValueError(f"temperature {temperature}: vLLM reports log-probabilities of greedy turns at 1 only")
    if temperature < MIN_TEMPERATURE:
        raise ValueError(f"temperature {temperature}: vLLM needs at least {MIN_TEMPERATURE}")
    return {
        "temperature": 0.0 if seed is None else temperature, "seed": seed, "max_tokens": max_tokens,
        "stop": list(stop_tags), "include_stop_str_in_output": True,
        "stop_token_ids": sorted(codec.end_ids), "ignore_eos": True,
        "logprobs": 0,  # of the sampled token only
        "detokenize": bool(stop_tags), "skip_special_tokens": False, "spaces_between_special_tokens": False,
        "top_p": 1.0, "top_k": 0, "min_p": 0.0, "min_tokens": 0,
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


def to_sample(completion: Completion, codec: Codec, max_tokens: int, stop_tags: tuple[str, ...]) -> Sample:
    """Turn a completion into a sample; tokens after the one that ended the turn are cut off.

    Raises:
        NonFiniteError: a log-probability is NaN or infinite.
        ProcessError: vLLM ended the turn for an unknown reason, or changed its weights during the turn.
    """
    count, stop = turn_end(completion.ids, codec, stop_tags)
    ids, logprobs = completion.ids[:count], completion.logprobs[:count]
    if not all(math.isfinite(logprob) and logprob > MIN_LOGPROB for logprob in logprobs):
        raise NonFiniteError("the policy's logits are not finite while sampling",
                             "lower the learning rate; the last good checkpoint is kept")
    if stop is None and count == max_tokens:
        stop = TurnStop.LENGTH
    if stop is None or len(logprobs) != len(ids):
        raise ProcessError(f"vLLM ended a turn after {count} of {max_tokens} tokens, with {len(logprobs)} "
                           f"log-probabilities and the reason {completion.reason!r}",
                           "read its log; then run the same command again")
    versions = set(completion.versions)
    if len(versions) != 1:
        raise ProcessError(f"one turn was sampled with weights of versions {', '.join(completion.versions) or 'none'}",
                           "let no other run use this vLLM")
    [version] = versions
    return Sample(ids, logprobs, stop, 0 if version == INITIAL_VERSION else int(version))


def turn_end(ids: Sequence[int], codec: Codec, stop_tags: tuple[str, ...]) -> tuple[int, TurnStop | None]:
    """Return the length of a turn and why it ends there; None if nothing in ``ids`` ends it (see ``Engine``)."""
    tag_tokens = codec.tag_tokens(stop_tags)
    for t, token in enumerate(ids):
        known = token < len(tag_tokens.complete_V)  # a model may have spare embeddings
        if known and tag_tokens.complete_V[token]:
            return t + 1, TurnStop.TAG
        if known and tag_tokens.partial_V[token]:
            text = codec.decode(ids[:t + 1])
            if any(tag in text for tag in stop_tags):
                return t + 1, TurnStop.TAG
        if token in codec.end_ids:
            return t + 1, TurnStop.END
    return len(ids), None
