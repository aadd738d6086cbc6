"""A key-value cache in which sequences of different lengths share one buffer.

Each sequence has a *slot*; its tokens are in columns 0, 1, 2, ... without gaps, so a column is a
position, and slots can be copied, truncated and extended independently.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel


class KVCache(Cache):
    """A buffer [layers, 2, P, C, H, D] of P slots and C columns, written by the model's forward pass.

    All values are finite, because masked columns are multiplied by 0. The buffer never shrinks.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(layers=[])
        config: Any = model.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._model = model  # it may move to its device later
        self._data = torch.zeros(config.num_hidden_layers, 2, 0, 0, heads, size, dtype=model.dtype)

    def reserve(self, slots: int, columns: int, used: int) -> None:
        """Grow to ``slots`` sequences of ``columns`` tokens; columns before ``used`` are kept."""
        layers, two, old_slots, old_columns, heads, size = self._data.shape
        if slots <= old_slots and columns <= old_columns:
            return
        # doubling keeps the total cost of copies low while contexts grow
        grown = old_columns if columns <= old_columns else max(columns, 2 * old_columns)
        data = torch.zeros(layers, two, max(slots, old_slots), grown, heads, size,
                           dtype=self._model.dtype, device=self._model.device)
        data[:, :, :old_slots, :used] = self._data[:, :, :, :used]
        self._data = data

    def copy(self, source: Tensor, target: Tensor, used: int) -> None:
        """Copy columns before ``used`` from slots ``source[i]`` to ``target[i]``, all at once."""
        if len(source):
            self._data[:, :, target, :used] = self._data[:, :, source, :used]

    def prepare_write(self, start_B: Tensor, count: int) -> Tensor:
        """Set where the next forward pass writes: ``count`` tokens after the first ``start_B[b]`` of each slot b.

        Returns:
            its additive attention mask [B, 1, count, width]: a token attends to its own column and
            those before it.
        """
        slots, columns, device = len(start_B), self._data.shape[3], start_B.device
        column_B_Q = start_B[:, None] + torch.arange(count, device=device)
        self._target = (torch.arange(slots, device=device)[:, None] * columns + column_B_Q).flatten()
        self._slots, self._width = slots, int(start_B.max()) + count
        hidden = torch.arange(self._width, device=device) > column_B_Q[:, :, None]
        mask = torch.zeros(hidden.shape, dtype=self._data.dtype, device=device)
        return mask.masked_fill_(hidden, float("-inf")).unsqueeze(1)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int,
               *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write keys and values [B, H, Q, D] of the new tokens; return those of all columns before ``width``."""
        seen = []
        for buffer, states in zip(self._data[layer_idx], (key_states, value_states), strict=True):
            buffer.flatten(0, 1).index_copy_(0, self._target, states.transpose(1, 2).flatten(0, 1))
            seen.append(buffer[:self._slots, :self._width].transpose(1, 2))
        return seen[0], seen[1]
