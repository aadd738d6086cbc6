"""Keys and values of token sequences that share a buffer, each growing at its own pace.

A sequence stands in a *place* of the buffer, its tokens in columns 0, 1, 2, ...: a column is a
position, there are no holes, so places can be copied, cut and extended apart from one another.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel


class KVCache(Cache):
    """A buffer [layers, 2, P, C, H, D] of P places and C columns, written by a model's forward.

    It is finite everywhere, as columns that a mask hides are multiplied by 0. It only grows.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__(layers=[])
        config: Any = model.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self._model = model  # it may be moved to its device after this cache is made
        self._data = torch.zeros(config.num_hidden_layers, 2, 0, 0, heads, size, dtype=model.dtype)

    def reserve(self, places: int, columns: int, used: int) -> None:
        """Make room for ``places`` sequences of ``columns`` tokens; columns before ``used`` are kept."""
        layers, two, old_places, old_columns, heads, size = self._data.shape
        if places <= old_places and columns <= old_columns:
            return
        # doubling keeps the sum of all copies small while a rollout's contexts grow
        grown = old_columns if columns <= old_columns else max(columns, 2 * old_columns)
        data = torch.zeros(layers, two, max(places, old_places), grown, heads, size,
                           dtype=self._model.dtype, device=self._model.device)
        data[:, :, :old_places, :used] = self._data[:, :, :, :used]
        self._data = data

    def copy(self, source: Tensor, target: Tensor, used: int) -> None:
        """Copy columns before ``used`` from places ``source[i]`` to ``target[i]``, as if all at once."""
        if len(source):
            self._data[:, :, target, :used] = self._data[:, :, source, :used]

    def place(self, start_B: Tensor, count: int) -> Tensor:
        """Say where the next forward writes: ``count`` tokens behind the first ``start_B`` of places 0 .. B.

        Returns:
            the forward's attention mask [B, 1, count, width], additive: a token sees its own column
            and those before it.
        """
        places, columns, device = len(start_B), self._data.shape[3], start_B.device
        column_B_Q = start_B[:, None] + torch.arange(count, device=device)
        self._target = (torch.arange(places, device=device)[:, None] * columns + column_B_Q).flatten()
        self._places, self._width = places, int(start_B.max()) + count
        hidden = torch.arange(self._width, device=device) > column_B_Q[:, :, None]
        mask = torch.zeros(hidden.shape, dtype=self._data.dtype, device=device)
        return mask.masked_fill_(hidden, float("-inf")).unsqueeze(1)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int,
               *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the tokens' keys and values [B, H, Q, D]; return those of all columns before width."""
        seen = []
        for buffer, states in zip(self._data[layer_idx], (key_states, value_states), strict=True):
            buffer.flatten(0, 1).index_copy_(0, self._target, states.transpose(1, 2).flatten(0, 1))
            seen.append(buffer[:self._places, :self._width].transpose(1, 2))
        return seen[0], seen[1]
