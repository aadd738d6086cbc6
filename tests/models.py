"""Tiny real models for tests, and the sampler's view of made-up groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from transformers import PreTrainedModel

from turncredit.config.data import PolicyConfig
from turncredit.credit.rows import rows_of
from turncredit.policy.model import make_tiny_policy, token_logprobs
from turncredit.types import Group

SIZES = PolicyConfig(hidden_size=16, layers=2, heads=2, kv_heads=1, intermediate_size=32, max_positions=128)


def tiny_policy(vocabulary: int = 30, seed: int = 0, scale: float = 8.0) -> PreTrainedModel:
    """A model whose distribution is far from flat, with weights so small that rounding stays below 1e-6."""
    model = make_tiny_policy(SIZES, vocabulary, seed)
    with torch.no_grad():
        for weight in (parameter for parameter in model.parameters() if parameter.ndim == 2):
            weight.mul_(0.02 * SIZES.hidden_size**0.5)
        model.get_input_embeddings().weight.mul_(scale)
    return model


@torch.no_grad()
def sampled_by(model: PreTrainedModel, groups: Sequence[Group], temperature: float) -> list[Group]:
    """The groups with the log-probabilities that the model gives their turns, computed row by row."""
    found = []
    for group in groups:
        leaves = []
        for transcript in group.transcripts:
            ids_B_T = torch.tensor([transcript.ids])
            logprob_N, _ = token_logprobs(model, ids_B_T, torch.ones_like(ids_B_T),
                                          torch.from_numpy(transcript.loss_mask)[None], temperature)
            rest, turns = logprob_N.tolist(), []
            for turn in transcript.turns:
                turns.append(replace(turn, logprobs=tuple(rest[:len(turn.sampled_ids)])))
                rest = rest[len(turn.sampled_ids):]
            leaves.append(replace(transcript, turns=tuple(turns)))
        found.append(replace(group, transcripts=tuple(leaves)))
    assert all(rows_of([group]) for group in found)
    return found
