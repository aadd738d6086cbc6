"""Sampling by vLLM, whose engine runs in processes of its own: beside the trainer, or on other GPUs.

What decides a sample is here; how requests travel is a ``Backend`` (``vllm_process``,
``vllm_server``). vLLM keeps prefixes of contexts by itself, and gives log-probabilities of the
distribution that it draws from, log softmax(logits / T). It stops at stop strings and end ids; where
exactly a turn ends is decided here, by the rule of all engines.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from turncredit.errors import ConfigError, NonFiniteError, ProcessError
from turncredit.policy.engines.base import Images, Sample, Weights, check_request
from turncredit.policy.engines.event_loop import BackgroundLoop, together
from turncredit.policy.engines.weight_folder import WeightFolder, wait_until
from turncredit.policy.tokenizer import Codec
from turncredit.types import TurnStop

COOLEST = 0.01  # below it vLLM takes another temperature than it is told
FLOOR = -9999.0  # vLLM's servers write this for NaN and -inf; no sampled token is so unlikely
WEIGHTS, CACHE = "weights", "kv_cache"  # what sleeps, in vLLM's words
RESETS, PAUSE_S = 50, 0.02  # its core hears a little late that a turn has ended with a tag
FIRST = "default"  # its name for the weights that it started with


@dataclass(frozen=True, slots=True)
class Completion:
    """What vLLM says of one request.

    Attributes:
        ids: the sampled ids, the one that ended it included.
        logprobs: of each, as drawn.
        reason: why it ended, in vLLM's words.
        versions: of the weights that sampled it, in order, as ``Backend.rename`` has named them.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    reason: str
    versions: tuple[str, ...]


class Backend(Protocol):
    """A running vLLM. All calls are made on one event loop; only ``complete`` runs beside others."""

    async def start(self) -> None:
        """Make it ready; called once, first."""
        ...

    async def complete(self, context: Sequence[int], parameters: dict[str, Any], images: Images) -> Completion:
        """One completion, by vLLM's ``SamplingParams``; cancelling the call ends its sampling.

        Raises:
            ConfigError: vLLM refuses the request.
            ProcessError: vLLM failed or does not answer.
        """
        ...

    async def reload(self, folder: Path) -> None:
        """Take the weights of a folder."""
        ...

    async def rename(self, version: str) -> None:
        """Name the weights."""
        ...

    async def version(self) -> str:
        """The name of the weights that are sampled from."""
        ...

    async def reset_prefix_cache(self) -> bool:
        """Forget prefixes; False if some are in use."""
        ...

    async def sleep(self, level: int) -> None:
        """Leave the GPU: 1 keeps the weights in the host's memory, 2 drops them."""
        ...

    async def wake_up(self, tags: list[str]) -> None:
        """Come back to the GPU with ``weights``, ``kv_cache`` or both."""
        ...

    async def close(self) -> None:
        """End it."""
        ...


class VLLMEngine:
    """An ``Engine`` and a ``StreamingEngine``. Close it, or use it in a ``with``.

    As of any engine a sample depends on its context and its seed, up to the rounding of another batch
    (none with VLLM_BATCH_INVARIANT=1, on GPUs that have it); seeds draw other samples than those of
    transformers' engine. Greedy decoding reports log-probabilities at temperature 1 alone.

    Args:
        backend: started here.
        codec: of the policy.
        window: most tokens of a context and its turn together.
        folder: through which weights by name reach vLLM.
        sleep_level: what ``sleep`` does: 0 nothing, 1 or 2 as of ``Backend.sleep``. After 2 weights must
            be given before the next turn.
        shared: other processes of the run sample from this vLLM too. They take part in each rollout,
            and in each change of the weights, together.
        leads: of those that share it, this process tells it of new weights and sends it to sleep.

    Raises:
        ConfigError, ProcessError: vLLM cannot be started.
    """

    def __init__(self, backend: Backend, codec: Codec, *, window: int, folder: WeightFolder, sleep_level: int = 0,
                 shared: bool = False, leads: bool = True) -> None:
        self._backend, self._codec, self._window = backend, codec, window
        self._folder, self._sleep_level = folder, sleep_level if leads else 0
        self._shared, self._leads = shared, leads
        self._asleep: frozenset[str] = frozenset()
        self._lost = False  # level 2 has dropped the weights
        self._poisoned = False  # keys and values that are no numbers stay in vLLM's cache, and spoil later turns
        self._waking = asyncio.Lock()  # turns begin together
        self._loop = BackgroundLoop()
        self.weight_version = 0
        try:
            self._loop.run(backend.start())
        except BaseException:
            self.close()
            raise

    def generate(self, contexts: Sequence[Sequence[int]], *, seeds: Sequence[int] | None, max_tokens: int,
                 temperature: float, stop_tags: tuple[str, ...],
                 multi_modal: Sequence[Images] | None = None) -> list[Sample]:
        """See ``Engine``."""
        check_request(contexts, seeds, max_tokens, temperature, multi_modal)
        none: Sequence[int | None] = [None] * len(contexts)
        rows = zip(contexts, none if seeds is None else seeds, multi_modal or [()] * len(contexts), strict=True)
        return self._loop.run(together(self._turn(context, seed, max_tokens, temperature, stop_tags, images)
                                       for context, seed, images in rows))

    async def sample(self, context: Sequence[int], *, seed: int | None, max_tokens: int, temperature: float,
                     stop_tags: tuple[str, ...], images: Images = ()) -> Sample:
        """See ``StreamingEngine``."""
        check_request([context], None, max_tokens, temperature, None)
        return await self._loop.call(self._turn(context, seed, max_tokens, temperature, stop_tags, images))

    def reset_prefix_cache(self) -> None:
        """See ``Engine``. One that is shared forgets its prefixes with its weights alone: others may be sampling.

        Raises:
            ProcessError: turns are still in progress.
        """
        if not self._shared:
            self._loop.run(self._reset())

    def update_weights(self, weights: Weights, version: int) -> None:
        """See ``Engine``. All processes of the run give the same weights; one of them writes, all that lead read."""
        with self._folder.holding(weights, version) as folder:
            if self._leads:
                self._loop.run(self._take(folder, str(version)))
            else:
                wait_until(lambda: self._loop.run(self._backend.version()) == str(version),
                           f"weights of version {version} in vLLM")
        self._lost = False
        self.weight_version = version

    def sleep(self) -> None:
        """See ``Engine``."""
        if self._sleep_level and not self._asleep:
            self._loop.run(self._backend.sleep(self._sleep_level))
            self._asleep = frozenset({WEIGHTS, CACHE})
            self._lost = self._sleep_level == 2

    def close(self) -> None:
        """End vLLM."""
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
                    stop_tags: tuple[str, ...], images: Images) -> Sample:
        """One turn, from the request to the sample."""
        if len(context) + max_tokens > self._window:
            raise ConfigError(f"{len(context)} tokens and a turn of {max_tokens}: vLLM was started for {self._window}",
                              "raise task.max_context_tokens")
        parameters = sampling_parameters(self._codec, seed, max_tokens, temperature, stop_tags)
        if self._poisoned:
            raise ProcessError("numbers that are not finite may be left in vLLM's cache",
                               "run the same command again, which starts another vLLM")
        if self._lost:
            raise ValueError("the weights were dropped while vLLM slept; update_weights comes before the next turn")
        await self._wake(WEIGHTS, CACHE)
        try:
            return finished(await self._backend.complete(tuple(context), parameters, images), self._codec, max_tokens,
                            stop_tags)
        except NonFiniteError:
            self._poisoned = True
            raise

    async def _wake(self, *tags: str) -> None:
        async with self._waking:
            if wanted := [tag for tag in tags if tag in self._asleep]:
                await self._backend.wake_up(wanted)
                self._asleep -= set(wanted)

    async def _take(self, folder: Path, version: str) -> None:
        """New weights, no old prefix, and only then their name, for which others may wait."""
        await self._wake(WEIGHTS)
        await self._backend.reload(folder)
        await self._reset()
        if self._shared:
            await self._wake(CACHE)
        await self._backend.rename(version)

    async def _reset(self) -> None:
        if CACHE in self._asleep:  # it was emptied when it went to sleep
            return
        for _ in range(RESETS):
            if await self._backend.reset_prefix_cache():
                return
            await asyncio.sleep(PAUSE_S)
        raise ProcessError("vLLM could not forget its prefixes, as turns are in progress",
                           "let them end before the weights change")


def sampling_parameters(codec: Codec, seed: int | None, max_tokens: int, temperature: float,
                        stop_tags: tuple[str, ...]) -> dict[str, Any]:
    """vLLM's ``SamplingParams`` of a turn, as JSON can hold them.

    Everything that a model's own generation_config.json could change is named.

    Raises:
        ValueError: a temperature that vLLM cannot sample at, or cannot report log-probabilities at.
    """
    if seed is None and temperature != 1:
        raise ValueError(f"temperature {temperature}: vLLM reports log-probabilities of greedy turns at 1 alone")
    if temperature < COOLEST:
        raise ValueError(f"temperature {temperature}: vLLM samples at {COOLEST} or above")
    return {
        "temperature": 0.0 if seed is None else temperature, "seed": seed, "max_tokens": max_tokens,
        "stop": list(stop_tags), "include_stop_str_in_output": True,
        "stop_token_ids": sorted(codec.end_ids), "ignore_eos": True,
        "logprobs": 0,  # of the sampled token alone
        "detokenize": bool(stop_tags), "skip_special_tokens": False, "spaces_between_special_tokens": False,
        "top_p": 1.0, "top_k": 0, "min_p": 0.0, "min_tokens": 0,
        "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}


def finished(found: Completion, codec: Codec, max_tokens: int, stop_tags: tuple[str, ...]) -> Sample:
    """The turn of a completion: cut behind the token that ended it, if vLLM noticed that late.

    Raises:
        NonFiniteError: a log-probability is NaN or infinite.
        ProcessError: vLLM ended the turn without a reason that is one of a turn's, or in the middle of
            another version of the weights.
    """
    count, stop = turn_end(found.ids, codec, stop_tags)
    ids, logprobs = found.ids[:count], found.logprobs[:count]
    if not all(math.isfinite(logprob) and logprob > FLOOR for logprob in logprobs):
        raise NonFiniteError("the policy's logits are not finite while sampling",
                             "lower the learning rate; the last good checkpoint is kept")
    if stop is None and count == max_tokens:
        stop = TurnStop.LENGTH
    if stop is None or len(logprobs) != len(ids):
        raise ProcessError(f"vLLM ended a turn after {count} of {max_tokens} tokens, with {len(logprobs)} "
                           f"log-probabilities and the reason {found.reason!r}",
                           "look at its log; then run the same command again")
    if len(set(found.versions)) != 1:
        raise ProcessError(f"one turn was sampled by weights of the versions {', '.join(found.versions) or 'none'}",
                           "let no other run use this vLLM")
    [version] = set(found.versions)
    return Sample(ids, logprobs, stop, 0 if version == FIRST else int(version))


def turn_end(ids: Sequence[int], codec: Codec, stop_tags: tuple[str, ...]) -> tuple[int, TurnStop | None]:
    """How many tokens a turn has, and why it ends there; None if nothing in it ends a turn (see ``Engine``)."""
    completion = codec.completion(stop_tags)
    for t, token in enumerate(ids):
        known = token < len(completion.surely_V)  # a model may have spare embeddings
        if known and completion.surely_V[token]:
            return t + 1, TurnStop.TAG
        if known and completion.possibly_V[token]:
            text = codec.decode(ids[:t + 1])
            if any(tag in text for tag in stop_tags):
                return t + 1, TurnStop.TAG
        if token in codec.end_ids:
            return t + 1, TurnStop.END
    return len(ids), None
