"""Measures the memory of a forward and backward pass on torch's meta device.

The functions that training calls run on tensors with shapes and without data, while all live storages are counted.
Only attention is replaced: a fused kernel keeps queries, keys, values, output and one number per head and token, but
no attention scores.
"""

from __future__ import annotations

import weakref
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv

from turncredit.policy.model import logprobs_of

_FUSED = "fused_on_meta"
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class _Fused(torch.autograd.Function):
    """Attention with the allocations of a fused kernel."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        output = torch.empty_like(query)
        log_sum = query.new_empty(query.shape[:-1], dtype=torch.float32)
        ctx.save_for_backward(query, key, value, output, log_sum)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        query, key, value, *_ = ctx.saved_tensors
        return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any,
               **__: Any) -> tuple[Tensor, None]:
    groups = int(getattr(module, "num_key_value_groups", 1))  # transformers repeats keys with a padding mask
    output: Tensor = _Fused.apply(query, repeat_kv(key, groups), repeat_kv(value, groups))
    return output.transpose(1, 2).contiguous(), None


AttentionInterface.register(_FUSED, _attention)


class PeakBytes(TorchDispatchMode):
    """The peak of live bytes among storages created while this mode is active."""

    def __init__(self) -> None:
        super().__init__()
        self.live, self.peak = 0, 0
        self._seen: dict[int, Any] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for storage in _storages((args, kwargs)):  # created earlier, e.g. weights
            self._count(storage, 0)
        result = function(*args, **(kwargs or {}))
        for storage in _storages(result):
            self._count(storage, storage.nbytes())
        return result

    def _count(self, storage: torch.UntypedStorage, size: int) -> None:
        key = storage._cdata
        if key in self._seen:
            return

        def gone(_: Any) -> None:
            self.live -= size
            del self._seen[key]

        self._seen[key] = weakref.ref(storage, gone)
        self.live += size
        self.peak = max(self.peak, self.live)


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def meta_model(settings: dict[str, Any], dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A model without data, from the keys of its config.json (with ``model_type``)."""
    config = AutoConfig.for_model(**settings)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=_FUSED)


def update_peak(settings: dict[str, Any], *, rows: int, length: int, loss_tokens: int, precision: str,
                checkpointing: bool) -> int:
    """Peak bytes of one micro-batch of an update, without weights and their gradients.

    Args:
        settings: the model's config.json.
        rows, length: shape of the padded micro-batch.
        loss_tokens: sampled tokens, for which logits are computed; at most rows x (length - 1).
        precision: number type of the forward and backward pass, ``float32`` or ``bfloat16``.
        checkpointing: whether layers are recomputed in the backward pass instead of kept.
    """
    return _update_peak(tuple(sorted(settings.items())), rows, length, loss_tokens, precision, checkpointing)


@cache
def _update_peak(settings: tuple[tuple[str, Any], ...], rows: int, length: int, loss_tokens: int, precision: str,
                 checkpointing: bool) -> int:
    model = meta_model(dict(settings), DTYPES[precision]).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    for parameter in model.parameters():  # final gradients are counted elsewhere
        parameter.register_post_accumulate_grad_hook(lambda found: setattr(found, "grad", None))
    ids_B_T = torch.zeros(rows, length, dtype=torch.long, device="meta")
    with PeakBytes() as measured:
        hidden_B_T_H = model.base_model(input_ids=ids_B_T, use_cache=False).last_hidden_state
        hidden_N_H = hidden_B_T_H.flatten(0, 1)[:loss_tokens].clone()
        logprob_N, _ = logprobs_of(model, hidden_N_H, ids_B_T.flatten()[:loss_tokens], 1.0)
        logprob_N.sum().backward()
    return measured.peak + rows * length * length  # the padding mask: one byte per pair of tokens
