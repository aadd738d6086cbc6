"""Training rows: the leaves of trees and chains, each sampled turn trained once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turncredit.config.training import GaeTokens
from turncredit.types import Group, Transcript


@dataclass(frozen=True, slots=True)
class Row:
    """A leaf written out in full, trained only on the turns that it owns.

    Attributes:
        transcript: the leaf.
        owned_K: for each turn, whether this row trains it. A turn that several leaves share is owned by
            the first of them and is only context in the others.
        group, leaf: where the leaf stands in the batch.
        branch: the node of its first turn in the group. Rows of one group and one branch share turns; others never do.
    """

    transcript: Transcript
    owned_K: tuple[bool, ...]
    group: int
    leaf: int
    branch: int = 0

    @property
    def loss_mask(self) -> NDArray[np.bool_]:
        """``loss_mask_T``: the transcript's mask, on owned turns only."""
        return self.transcript.loss_mask & self._owned

    @property
    def _owned(self) -> NDArray[np.bool_]:
        """``owned_T``: the tokens of owned turns, observations included; turn -1, the prompt, is never owned."""
        owned_T: NDArray[np.bool_] = np.array([*self.owned_K, False])[self.transcript.turn_id]
        return owned_T

    def value_mask(self, tokens: GaeTokens) -> NDArray[np.bool_]:
        """``value_mask_T``: the tokens whose value the critic predicts.

        ``sampled``: the loss tokens. ``response``: the observations of owned turns too.

        Raises:
            ValueError: an unknown word.
        """
        match tokens:
            case "sampled":
                return self.loss_mask
            case "response":
                return self._owned
            case _:
                raise ValueError(f"unknown tokens of GAE {tokens!r}: use sampled or response")

    @property
    def turn_N(self) -> NDArray[np.int64]:
        """The turn of each loss token, which is the turn that gets its credit."""
        return self.transcript.turn_id[self.loss_mask]


def rows_of(groups: Sequence[Group]) -> list[Row]:
    """Rows of all leaves, in the order of groups and leaves; each distinct turn is owned exactly once."""
    rows = []
    for g, group in enumerate(groups):
        seen: set[int] = set()
        for leaf, (transcript, node_K) in enumerate(zip(group.transcripts, group.node_L_K, strict=True)):
            rows.append(Row(transcript, tuple(node not in seen for node in node_K), g, leaf, node_K[0]))
            seen |= set(node_K)
    return rows
