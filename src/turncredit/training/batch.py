"""Batches: token arrays of rows, padded micro-batches, and their indices in the flat order of loss tokens.

The suffix ``_N`` runs over the loss tokens of all rows, row by row (the order of ``TokenCredit``); ``_M``
likewise over the critic's tokens (``Row.value_mask``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from turncredit.config.training import GaeTokens
from turncredit.credit.rows import Row


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Right-padded rows of one forward pass.

    Attributes:
        ids_B_T, attention_B_T: int64; padding has id ``pad_id`` and attention 0.
        loss_mask_B_T: bool; true on the sampled tokens that a row owns.
        value_mask_B_T: bool; true on the tokens whose value the critic predicts.
        flat_N, flat_M: indices of its loss and critic tokens (row-major) in the flat orders of the whole batch.
    """

    ids_B_T: Tensor
    attention_B_T: Tensor
    loss_mask_B_T: Tensor
    value_mask_B_T: Tensor
    flat_N: Tensor
    flat_M: Tensor

    def to(self, device: torch.device) -> MicroBatch:
        """Return a copy on another device; ``flat_N`` and ``flat_M`` move too."""
        return MicroBatch(*(getattr(self, name).to(device) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Batch:
    """Token arrays of all rows of a training step.

    Attributes:
        ids_R, loss_mask_R, value_mask_R: for each row an int64 and two bool arrays, of equal length.
        start_R, value_start_R: index of each row's first loss and first critic token in the flat orders; the last
            entries are N and M.
        old_logprob_N: the sampler's log-probabilities, float32.
        branches: rows that share turns, by index: the rows of each branch of a tree; each chain alone.
    """

    ids_R: tuple[np.ndarray, ...]
    loss_mask_R: tuple[np.ndarray, ...]
    value_mask_R: tuple[np.ndarray, ...]
    start_R: np.ndarray
    value_start_R: np.ndarray
    old_logprob_N: Tensor
    branches: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, rows: Sequence[Row], gae_tokens: GaeTokens = "sampled") -> Batch:
        """The rows' tokens, masks as the transcripts carry them; ``gae_tokens`` chooses the critic's."""
        ids_R = tuple(np.array(row.transcript.ids) for row in rows)
        loss_mask_R = tuple(row.loss_mask for row in rows)
        value_mask_R = tuple(row.value_mask(gae_tokens) for row in rows)
        start_R, value_start_R = (np.cumsum([0, *(int(mask.sum()) for mask in masks)])
                                  for masks in (loss_mask_R, value_mask_R))
        old = [np.array(row.transcript.logprobs, dtype=np.float32)[mask]
               for row, mask in zip(rows, loss_mask_R, strict=True)]
        branches: dict[tuple[int, int], list[int]] = {}
        for r, row in enumerate(rows):
            branches.setdefault((row.group, row.branch), []).append(r)
        return cls(ids_R, loss_mask_R, value_mask_R, start_R, value_start_R, torch.from_numpy(np.concatenate(old)),
                   tuple(map(tuple, branches.values())))

    @property
    def trained(self) -> list[int]:
        """Indices of the rows that own at least one loss token."""
        return [r for r, count in enumerate(np.diff(self.start_R)) if count]

    def flat(self, rows: Sequence[int]) -> Tensor:
        """Return the flat indices of these rows' loss tokens, row by row."""
        return _flat(self.start_R, rows)

    def value_flat(self, rows: Sequence[int]) -> Tensor:
        """Return the flat indices of these rows' critic tokens, row by row."""
        return _flat(self.value_start_R, rows)

    def micro_batches(self, rows: Sequence[int], most_tokens: int, pad_id: int = 0) -> list[MicroBatch]:
        """Pack rows of similar length, at most ``most_tokens`` padded tokens per forward pass.

        Deterministic: rows are sorted by length, ties by index. A row longer than ``most_tokens`` is a
        micro-batch of its own. Every row is in exactly one micro-batch.
        """
        packs: list[list[int]] = []
        for r in sorted(rows, key=lambda r: (-len(self.ids_R[r]), r)):
            # the first row of a pack is its longest
            if packs and (len(packs[-1]) + 1) * len(self.ids_R[packs[-1][0]]) <= most_tokens:
                packs[-1].append(r)
            else:
                packs.append([r])
        return [self._pad(pack, pad_id) for pack in packs]

    def _pad(self, pack: Sequence[int], pad_id: int) -> MicroBatch:
        length_B = np.array([len(self.ids_R[r]) for r in pack])
        real_B_T = np.arange(length_B.max()) < length_B[:, None]
        ids_B_T = np.full(real_B_T.shape, pad_id, dtype=np.int64)
        ids_B_T[real_B_T] = np.concatenate([self.ids_R[r] for r in pack])
        loss_mask_B_T, value_mask_B_T = np.zeros((2, *real_B_T.shape), dtype=bool)
        loss_mask_B_T[real_B_T] = np.concatenate([self.loss_mask_R[r] for r in pack])
        value_mask_B_T[real_B_T] = np.concatenate([self.value_mask_R[r] for r in pack])
        return MicroBatch(torch.from_numpy(ids_B_T), torch.from_numpy(real_B_T.astype(np.int64)),
                          torch.from_numpy(loss_mask_B_T), torch.from_numpy(value_mask_B_T),
                          self.flat(pack), self.value_flat(pack))


def _flat(start_R: np.ndarray, rows: Sequence[int]) -> Tensor:
    return torch.from_numpy(np.concatenate([np.arange(start_R[r], start_R[r + 1]) for r in rows]))
