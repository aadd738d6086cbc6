"""Leaves as training rows, each shared turn trained once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from turncredit.types import Group, Transcript


@dataclass(frozen=True, slots=True)
class Row:
    """A leaf written out in full, trained only on the turns that it owns.

    Attributes:
        transcript: the leaf.
        owned_K: for each turn, whether this row trains it; a turn that several leaves share is owned
            by the first of them, and is only context in the others.
        leaf: (group, leaf) indexes.
    """

    transcript: Transcript
    owned_K: tuple[bool, ...]
    leaf: tuple[int, int]

    @property
    def loss_mask(self) -> list[int]:
        """1 on sampled tokens of owned turns."""
        mask = [0] * len(self.transcript.prompt_ids)
        for turn, owned in zip(self.transcript.turns, self.owned_K, strict=True):
            mask += [int(owned)] * len(turn.sampled_ids) + [0] * len(turn.observation_ids)
        return mask


def rows_of(groups: Sequence[Group]) -> list[Row]:
    """Rows of all leaves, in the order of groups and leaves; each distinct turn is owned exactly once."""
    rows = []
    for g, group in enumerate(groups):
        seen: set[int] = set()
        for leaf, (transcript, node_K) in enumerate(zip(group.transcripts, group.node_L_K, strict=True)):
            rows.append(Row(transcript, tuple(node not in seen for node in node_K), (g, leaf)))
            seen |= set(node_K)
    return rows
