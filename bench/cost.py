"""Floating-point operations of an update, its time by kind of operation, and the peak of this machine."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd.profiler import profile
from transformers import PreTrainedModel

from turncredit.credit.base import TokenCredit
from turncredit.training.batch import Batch
from turncredit.training.learner import Learner


def seconds_of(action: Callable[[], object]) -> float:
    """Seconds that ``action()`` takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def matmul_peak(device: str, size: int = 2048, repeats: int = 5) -> float:
    """The peak of this machine, FLOP/s: the fastest of ``repeats`` float32 products of two square matrices."""
    left, right = torch.rand(2, size, size, device=device)
    best = min(seconds_of(lambda: (left @ right)[0, 0].item()) for _ in range(repeats))
    return 2 * size**3 / best


def update_flops(model: PreTrainedModel, lengths: Sequence[int], loss_tokens: int, *, critic: bool = False) -> float:
    """Floating-point operations of one forward and backward pass over rows, without padding.

    ``6 P sum(T) + 12 L D sum(T^2) + 6 H V N``: P parameters in the body's matrices (no embeddings), rows
    of T tokens, L layers, attention of width D, hidden size H, vocabulary V, N loss tokens. A critic is a
    second body. Attention is counted as computed, without causal halving.

    Args:
        model: the policy.
        lengths: number of tokens of each row.
        loss_tokens: N.
        critic: whether a critic of the policy's size is trained too.
    """
    config: Any = model.config
    embeddings = {id(module.weight) for module in (model.get_input_embeddings(), model.get_output_embeddings())}
    body = sum(p.numel() for p in model.parameters() if p.ndim == 2 and id(p) not in embeddings)
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    attention = config.num_hidden_layers * config.num_attention_heads * head_size
    one = 6 * body * sum(lengths) + 12 * attention * sum(length**2 for length in lengths)
    return float(one * (1 + critic) + 6 * model.get_output_embeddings().weight.numel() * loss_tokens)


class CountingLearner(Learner):
    """A learner that records the floating-point operations of each update."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.flops: list[float] = []

    def update(self, batch: Batch, credit: TokenCredit, **how: Any) -> dict[str, float]:
        """See ``Learner.update``."""
        lengths = [len(batch.ids_R[row]) for row in batch.trained]
        each = update_flops(self.policy, lengths, len(credit.weight_N), critic=self.critic is not None)
        self.flops.append(each * self.settings.inner_epochs)
        return super().update(batch, credit, **how)


def time_by_kind(update: Callable[[], object], vocabulary: int) -> dict[str, float]:
    """The share of an update's CPU time by kind of operation."""
    with profile(record_shapes=True) as profiled:
        update()
    seconds: dict[str, float] = defaultdict(float)
    for event in profiled.function_events or ():
        seconds[_kind(event, vocabulary)] += event.self_cpu_time_total
    total = sum(seconds.values())
    return {kind: spent / total for kind, spent in sorted(seconds.items(), key=lambda item: -item[1])}


def _kind(event: Any, vocabulary: int) -> str:
    parent = event
    while parent is not None:
        if parent.name.startswith("Optimizer."):
            return "optimiser"
        parent = parent.cpu_parent
    shapes = [shape for shape in event.input_shapes or () if isinstance(shape, list) and shape]
    if event.name in ("aten::mm", "aten::addmm", "aten::bmm"):
        return f"matrix products, {'output head' if any(vocabulary in shape for shape in shapes) else 'body'}"
    if "attention" in event.name:
        return "attention"
    if any(shape[-1] == vocabulary for shape in shapes):
        return "softmax and entropy over the vocabulary"
    return "other elementwise, copies"
