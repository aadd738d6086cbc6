"""What a rollout asks of an engine: contexts in, sampled turns out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from turncredit.transcript import TurnStop


@dataclass(frozen=True, slots=True)
class Sample:
    """One sampled turn.

    Attributes:
        ids: the sampled ids, the one that ended the turn included.
        logprobs: log softmax(logits / temperature) of each.
        stop: why sampling ended.
    """

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    stop: TurnStop


class Engine(Protocol):
    """Samples turns. Calls are independent of one another; what is cached changes no result."""

    def generate(self, contexts: Sequence[Sequence[int]], *, seeds: Sequence[int] | None, max_tokens: int,
                 temperature: float, stop_tags: tuple[str, ...]) -> list[Sample]:
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

        Raises:
            NonFiniteError: the model's logits are NaN or infinite.
        """
        ...

    def reset_prefix_cache(self) -> None:
        """Forget cached prefixes; must be called after every change of the weights."""
        ...
