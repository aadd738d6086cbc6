"""Our sampling compared with transformers' generate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from bench.cost import seconds_of
from bench.results import REPEATS, Measured
from turncredit.policy.engines.hf import HFEngine
from turncredit.policy.tokenizer import Codec


def compare_with_generate(model: PreTrainedModel, codec: Codec, contexts: Sequence[tuple[int, ...]],
                          max_tokens: int) -> list[Measured]:
    """Greedy tokens per second of our engine and of transformers' generate, for the same contexts and end tokens.

    Our engine also returns log-probabilities; generate returns tokens only.
    """
    engine = HFEngine(model, codec)
    width = max(map(len, contexts))
    ids_B_T, attention_B_T = (torch.tensor(rows, device=model.device) for rows in (
        [[codec.pad_id] * (width - len(ids)) + list(ids) for ids in contexts],
        [[0] * (width - len(ids)) + [1] * len(ids) for ids in contexts]))

    def ours() -> list[list[int]]:
        engine.reset_prefix_cache()
        samples = engine.generate(contexts, seeds=None, max_tokens=max_tokens, temperature=1.0, stop_tags=())
        return [list(sample.ids) for sample in samples]

    def theirs() -> list[list[int]]:
        generate: Any = model.generate
        made: Tensor = generate(ids_B_T, attention_mask=attention_B_T, max_new_tokens=max_tokens, do_sample=False,
                                eos_token_id=sorted(codec.end_ids), pad_token_id=codec.pad_id)
        return [_to_the_end(ids, codec.end_ids) for ids in made[:, width:].tolist()]

    made = {"turncredit": ours(), "transformers": theirs()}  # and a warm-up
    agree = sum(a == b for a, b in zip(*made.values(), strict=True)) / len(contexts)
    rates = {name: sum(map(len, made[name])) / min(seconds_of(sample) for _ in range(REPEATS))
             for name, sample in (("turncredit", ours), ("transformers", theirs))}
    part = f"greedy turns compared with transformers' generate ({len(contexts)} prompts)"
    return [Measured(part, name, measure, value)
            for name, rate in rates.items() for measure, value in (
                ("tok/s", rate), ("x transformers", rate / rates["transformers"]), ("% of turns equal", 100 * agree))]


def _to_the_end(ids: list[int], end_ids: frozenset[int]) -> list[int]:
    return ids[:next((t + 1 for t, token in enumerate(ids) if token in end_ids), len(ids))]
