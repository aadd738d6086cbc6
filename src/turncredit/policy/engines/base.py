"""What a rollout asks of an engine: contexts in, sampled turns out; and what a trainer tells it: new weights.

Two kinds of calls sample the same turns. ``Engine.generate`` takes a batch and returns when its last
turn has ended; ``StreamingEngine.sample`` takes one context and returns when its own turn has ended,
so that one episode's search holds up no other episode.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from safetensors import SafetensorError, safe_open
from torch import Tensor

from turncredit.errors import CheckpointError
from turncredit.types import TurnStop

Images = tuple[bytes, ...]  # encoded images (PNG, JPEG), in the order of their placeholders in a context
Weights = Path | Iterable[tuple[str, Tensor]]  # a Hugging Face folder, or its parameters by name


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled turn.

    Attributes:
        ids: the sampled ids, the one that ended the turn included.
        logprobs: log softmax(logits / temperature) of each.
        stop: why sampling ended.
        weight_version: the version of the weights that sampled it (see ``Engine.update_weights``).
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: TurnStop
    weight_version: int = 0


class Engine(Protocol):
    """Samples turns. Calls are independent of one another; what is cached changes no result."""

    @property
    def weight_version(self) -> int:
        """The version last given to ``update_weights``; 0 before."""
        ...

    def generate(self, contexts: Sequence[Sequence[int]], *, seeds: Sequence[int] | None, max_tokens: int,
                 temperature: float, stop_tags: tuple[str, ...],
                 multi_modal: Sequence[Images] | None = None) -> list[Sample]:
        """One turn for each context, in order.

        A turn ends at the token that completes a stop tag, wherever the tag stands (inside
        ``<think>`` too) and whatever else that token holds; or at an end id; or after
        ``max_tokens`` tokens. A stop tag counts before an end id.

        Args:
            contexts: token ids, none empty; equal contexts are welcome.
            seeds: one a context; a sample depends on its context and its seed, not on the batch.
                None decodes greedily.
            max_tokens: of one turn, at least 1.
            temperature: above 0; of the reported log-probabilities too when greedy.
            stop_tags: texts.
            multi_modal: the images of each context, () where it has none; its ids hold one
                placeholder for each.

        Raises:
            NonFiniteError: the model's logits are NaN or infinite.
            ConfigError: there are images, and the model takes none.
        """
        ...

    def reset_prefix_cache(self) -> None:
        """Forget cached prefixes; must be called after every change of the weights."""
        ...

    def update_weights(self, weights: Weights, version: int) -> None:
        """Sample from these weights from now on. Forgets cached prefixes; no turn may be in progress.

        Args:
            weights: all parameters, or a folder that holds them. Consumed at most once, and not at
                all for tensors that the engine already samples from.
            version: carried by every later ``Sample``; it grows, e.g. the number of updates so far.

        Raises:
            CheckpointError: the folder cannot be read, or the parameters are not the model's.
        """
        ...

    def sleep(self) -> None:
        """Give the accelerator's memory to the trainer until the next call that needs it."""
        ...


@runtime_checkable
class StreamingEngine(Protocol):
    """An engine whose turns end one by one."""

    async def sample(self, context: Sequence[int], *, seed: int | None, max_tokens: int, temperature: float,
                     stop_tags: tuple[str, ...], images: Images = ()) -> Sample:
        """The turn that ``Engine.generate`` gives for this context; runs beside other calls.

        Cancelling the call ends its sampling.
        """
        ...


def check_request(contexts: Sequence[Sequence[int]], seeds: Sequence[int] | None, max_tokens: int, temperature: float,
                  multi_modal: Sequence[Images] | None) -> None:
    """Refuse what no engine can sample.

    Raises:
        ValueError: a count, a length or a range is wrong.
    """
    if max_tokens < 1 or temperature <= 0 or not all(map(len, contexts)):
        raise ValueError("max_tokens is at least 1, temperature above 0, and no context is empty")
    if seeds is not None and len(seeds) != len(contexts):
        raise ValueError(f"{len(seeds)} seeds for {len(contexts)} contexts")
    if multi_modal is not None and len(multi_modal) != len(contexts):
        raise ValueError(f"images for {len(multi_modal)} of {len(contexts)} contexts; say () where there are none")


def named_weights(weights: Weights) -> Iterator[tuple[str, Tensor]]:
    """Parameters by name, one after the other; of a folder, those of all its safetensors files.

    Raises:
        CheckpointError: the folder holds no readable safetensors file.
    """
    if not isinstance(weights, Path):
        yield from weights
        return
    for file in opened(weights):
        for name in file.keys():  # noqa: SIM118 - not a mapping
            yield name, file.get_tensor(name)


def opened(folder: Path) -> Iterator[Any]:
    """The safetensors files of a folder, each open while it is looked at.

    Raises:
        CheckpointError: there are none, or one cannot be read.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise CheckpointError(f"{folder}: no *.safetensors there", "save the policy with save_policy")
    for path in files:
        try:
            file = safe_open(path, framework="pt")
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path}: cannot be read: {error}", "save the policy again") from error
        with file:
            yield file
