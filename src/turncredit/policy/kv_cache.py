"""Keys and values of token sequences that share a buffer, each growing at its own pace.

Row r holds its first ``length_R[r]`` tokens in columns 0, 1, 2, ...: a column is a position, there
are no holes, so rows can be copied, cut and extended apart from one another.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import Cache, PreTrainedModel


class KVCache(Cache):
    """A buffer [layers, 2, R, C, H, D] of R rows and C columns, written in place by a model's forward.

    Args:
        data: the buffer; finite everywhere, as masked columns are multiplied by 0.
    """

    def __init__(self, data: Tensor) -> None:
        super().__init__(layers=[])
        self.data = data

    @classmethod
    def empty(cls, model: PreTrainedModel, rows: int, columns: int) -> KVCache:
        """Room for ``rows`` sequences of up to ``columns`` tokens."""
        config: Any = model.config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return cls(torch.zeros(config.num_hidden_layers, 2, rows, columns, heads, size,
                               dtype=model.dtype, device=model.device))

    def expand(self, rows: Tensor, used: int, columns: int) -> KVCache:
        """A new cache whose row i is a copy of row ``rows[i]`` up to column ``used``."""
        layers, two, _, _, heads, size = self.data.shape
        data = self.data.new_zeros(layers, two, len(rows), columns, heads, size)
        data[:, :, :, :used] = self.data[:, :, :, :used].index_select(2, rows)
        return KVCache(data)

    def swap(self, left: Tensor, right: Tensor, used: int) -> None:
        """Exchange rows ``left[i]`` and ``right[i]``, columns before ``used``."""
        both, crossed = torch.cat([left, right]), torch.cat([right, left])
        self.data[:, :, both, :used] = self.data[:, :, crossed, :used]

    def place(self, start_B: Tensor, count: int) -> Tensor:
        """Where the next forward writes: ``count`` tokens a row behind the first ``start_B``.

        The forward sees the first B rows. Returns its attention mask [B, 1, count, width], additive.
        """
        rows, columns = len(start_B), self.data.shape[3]
        column_B_Q = start_B[:, None] + torch.arange(count, device=start_B.device)
        self._target = (torch.arange(rows, device=start_B.device)[:, None] * columns + column_B_Q).flatten()
        self._rows, self._width = rows, int(start_B.max()) + count
        seen = torch.arange(self._width, device=start_B.device) <= column_B_Q[:, :, None]
        mask = torch.zeros(seen.shape, dtype=self.data.dtype, device=self.data.device)
        return mask.masked_fill_(~seen, float("-inf")).unsqueeze(1)

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int,
               *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the tokens' keys and values [B, H, Q, D]; return those of all columns seen."""
        seen = []
        for buffer, states in zip(self.data[layer_idx], (key_states, value_states), strict=True):
            buffer.flatten(0, 1).index_copy_(0, self._target, states.transpose(1, 2).flatten(0, 1))
            seen.append(buffer[:self._rows, :self._width].transpose(1, 2))
        return seen[0], seen[1]
