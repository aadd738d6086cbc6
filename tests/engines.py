"""Engines for tests of rollouts: scripted ones, and the real one turn by turn."""

from __future__ import annotations

from collections.abc import Sequence

from turncredit.policy.engines.base import Sample
from turncredit.policy.engines.hf import HFEngine


class OneByOne:
    """transformers' engine as one whose turns end one by one."""

    def __init__(self, engine: HFEngine) -> None:
        self._engine = engine

    async def sample(self, context: Sequence[int], *, seed: int | None, max_tokens: int, temperature: float,
                     stop_tags: tuple[str, ...]) -> Sample:
        seeds = None if seed is None else [seed]
        [one] = self._engine.generate([context], seeds=seeds, max_tokens=max_tokens, temperature=temperature,
                                      stop_tags=stop_tags)
        return one
