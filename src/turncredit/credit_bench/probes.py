"""Q and V of single turns by brute force: episodes (probes), and many continuations from each of their states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turncredit.config.credit_bench import CreditBenchConfig
from turncredit.credit_bench.play import FULL, Player, begins_with, targets_of
from turncredit.seeding import derive_seed, permutation
from turncredit.types import Group, Item, Transcript

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Probe:
    """One episode of K turns and C continuations from each of its states.

    Attributes:
        item: its question.
        transcript: the episode.
        continued_K: for each turn k, C episodes that begin with the turns before k.
        turn: index, from 0, of the turn whose credit is measured (``arms.replicate_credits``).
    """

    item: Item
    transcript: Transcript
    continued_K: tuple[Group, ...]
    turn: int


@dataclass(frozen=True, slots=True)
class Probes:
    """All probes, and how many were left out because the engine did not replay their turns token by token."""

    members: tuple[Probe, ...]
    dropped: int


def measure_probes(player: Player, pool: Sequence[Item], sizes: CreditBenchConfig) -> Probes:
    """Play ``sizes.probes`` probes of distinct questions, and ``sizes.continuations`` from each of their states."""
    limit = player.config.task.max_turns
    order = permutation(len(pool), "credit bench", player.seed, "probes")[:sizes.probes]
    items = [pool[i] for i in order]
    whole = {item.id: limit for item in items}
    transcript_of = {group.item_id: group.transcripts[0]
                     for group in player.play(items, (1,) * limit, "probe", pinned=whole)}
    branching = (sizes.continuations, *(1,) * (limit - 1))
    continued: dict[str, list[Group]] = {item.id: [] for item in items}
    for turn in range(limit):
        going_on = [item for item in items if len(transcript_of[item.id].turns) > turn]
        for group in player.play(going_on, branching, "continued", turn, every_leaf=True,
                                 pinned={item.id: turn for item in going_on}):
            continued[group.item_id].append(group)
    probes = []
    for item in items:
        transcript = transcript_of[item.id]
        if all(begins_with(leaf, transcript, turn) for turn, group in enumerate(continued[item.id])
               for leaf in group.transcripts):
            turn = derive_seed("credit bench", player.seed, "probed turn", item.id) % len(transcript.turns)
            probes.append(Probe(item, transcript, tuple(continued[item.id]), turn))
    return Probes(tuple(probes), len(items) - len(probes))


def state_values(player: Player, probe: Probe, names: Sequence[str]) -> list[Array]:
    """The targets of the continuations from each state of a probe, and of the probe itself.

    Returns:
        K + 1 arrays ``value_C_M``: entry k holds the continuations of the turns before k, entry K the probe itself,
        C times. The mean of entry k is E[target | turns before k]; entry k + 1 minus entry k is Q - V of turn k.
    """
    groups = [*probe.continued_K, Group.of_chains([probe.transcript])]
    scored = player.score([probe.item] * len(groups), groups, FULL)
    value_K_C_M = [np.array([targets_of(rewards, names) for rewards in leaves]) for leaves in scored]
    value_K_C_M[-1] = np.repeat(value_K_C_M[-1], len(value_K_C_M[0]), axis=0)
    return value_K_C_M
