"""Codecs and models for tests of sampling: real tokenizers, random models, and one that follows a script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, PreTrainedModel, PreTrainedTokenizerFast

from tests.tolerance import assert_close, longest_sum, sensitivity
from turncredit.config.data import PolicyConfig
from turncredit.policy.engines.base import Sample
from turncredit.policy.model import make_tiny_policy, token_logprobs
from turncredit.policy.tokenizer import Codec, train_tokenizer

torch.set_num_threads(1)
TEXTS = (
    "<think> I look up Nairobi </think><search> capital of Kenya </search>",
    "<information>Doc 1(Title: Kenya) The capital of Kenya is Nairobi. São Tomé, 東京 lie elsewhere.</information>",
    "<think> It is Nairobi </think><answer> Nairobi </answer>",
    "Question: What is the capital of Kenya?",
    "</search>. </answer>. and x>. y>.",  # so that '>.' can be one token where tags are none
)


@cache
def tokenizer(tags: tuple[str, ...] | None = None, vocabulary: int = 420) -> PreTrainedTokenizerFast:
    """Trained on ``TEXTS``; without ``tags`` each tag spans several tokens, as in a hub model."""
    return train_tokenizer(TEXTS * 6, vocabulary, tags)


def codec(*, end_ids: Iterable[int] = ()) -> Codec:
    """Tags are single tokens."""
    return Codec(tokenizer(), end_ids)


def foreign_codec() -> Codec:
    """Tags span several tokens."""
    return Codec(tokenizer(()))


def model(kind: str = "qwen2", vocabulary: int = 420, seed: int = 0) -> PreTrainedModel:
    """A random model whose distributions are far from flat; gpt2 has absolute positions.

    Queries and keys of Qwen2 keep their size, which makes attention scores of about 1. With scores of about 10
    attention is nearly an argmax and enlarges rounding errors a hundredfold, so that tests see no small fault.
    """
    if kind.startswith("qwen2"):
        kv_heads = {"qwen2": 2, "qwen2-grouped": 1}[kind]
        sizes = PolicyConfig(hidden_size=32, layers=2, heads=2, kv_heads=kv_heads, intermediate_size=48,
                             max_positions=256)
        made = make_tiny_policy(sizes, vocabulary, seed)
    else:
        config = {
            "gpt2": lambda: GPT2Config(vocab_size=vocabulary, n_positions=256, n_embd=32, n_layer=2, n_head=2,
                                       attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0),
            "llama": lambda: LlamaConfig(vocab_size=vocabulary, hidden_size=32, intermediate_size=48,
                                         num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2),
        }[kind]()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            made = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.ndim == 2 and not (kind.startswith("qwen2") and ("q_proj" in name or "k_proj" in name)):
                parameter.mul_(3)
    return made


def script_model(script: Sequence[int], vocabulary: int) -> PreTrainedModel:
    """A Qwen2 that answers ``script[i]`` with ``script[i + 1]`` almost surely; ids differ."""
    assert len(set(script)) == len(script)
    sizes = PolicyConfig(hidden_size=64, layers=1, heads=2, kv_heads=2, intermediate_size=8)
    made = make_tiny_policy(sizes, vocabulary, 0, tied=False)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "o_proj" in name or "down_proj" in name or "embed" in name or "lm_head" in name:
                parameter.zero_()
        for place, (token, following) in enumerate(pairwise(script)):
            made.get_input_embeddings().weight[token, place] = 1.0
            made.get_output_embeddings().weight[following, place] = 10.0
    return made


def turn_row(context: Sequence[int], ids: Sequence[int]) -> tuple[list[int], list[int]]:
    """A turn behind its context: the ids of both, and a mask of the turn's."""
    return [*context, *ids], [0] * len(context) + [1] * len(ids)


@torch.no_grad()
def row_logprobs(policy: PreTrainedModel, ids: Sequence[int], loss_mask: Sequence[int], temperature: float) -> Tensor:
    """Log-probabilities of a row's loss tokens by one forward pass over the whole row."""
    ids_B_T = torch.tensor([ids])
    return token_logprobs(policy, ids_B_T, torch.ones_like(ids_B_T), torch.tensor([loss_mask]), temperature)[0]


def logprob_rounding(policy: PreTrainedModel, ids: Sequence[int], loss_mask: Sequence[int],
                     temperature: float) -> dict[str, Any]:
    """``terms`` and ``scale`` of a row's log-probabilities, for ``assert_close``."""
    [scale] = sensitivity(lambda: [row_logprobs(policy, ids, loss_mask, temperature)], policy.parameters())
    return {"terms": longest_sum(policy, len(ids)), "scale": scale}


def assert_same_samples(policy: PreTrainedModel, contexts: Sequence[Sequence[int]], left: Sequence[Sample],
                        right: Sequence[Sample], temperature: float = 1.0) -> None:
    """The same turns, with the same log-probabilities but for rounding."""
    assert [(s.ids, s.stop) for s in left] == [(s.ids, s.stop) for s in right]
    for context, a, b in zip(contexts, left, right, strict=True):
        assert_close(a.logprobs, b.logprobs, **logprob_rounding(policy, *turn_row(context, a.ids), temperature))
