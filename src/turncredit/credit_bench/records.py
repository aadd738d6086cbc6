"""Rows of the bench's table that are computed from probes: true advantages, exact critics, errors of turns' credit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from turncredit.config.algorithm import Content
from turncredit.config.credit_bench import PAID, TRUTH
from turncredit.credit_bench import turn_errors
from turncredit.credit_bench.alignment import Measured
from turncredit.credit_bench.arms import (
    Arm,
    Creditor,
    Measurement,
    measurement,
    questions_per_batch,
    replicate_credits,
)
from turncredit.credit_bench.critics import state_returns
from turncredit.credit_bench.play import Player, paid_return, target_names
from turncredit.credit_bench.probes import Probe, state_values
from turncredit.credit_bench.truth import Truth
from turncredit.tasks.plugin import Rewards
from turncredit.types import Group

Record = dict[str, Any]
FEWEST_BATCHES = 4  # of an exact critic


def record(arm: str, variant: str, quantity: str, target: str, found: Measured, tokens: float) -> Record:
    """A row of the table, without the columns of the checkpoint."""
    return {"arm": arm, "variant": variant, "quantity": quantity, "target": target, "value": found.value,
            "standard_error": found.error, "tokens": round(tokens)}


class ProbeStudy:
    """Everything that is computed from probes: true advantages, exact critics, and the errors of turns' credit."""

    def __init__(self, player: Player, probes: Sequence[Probe], arms: Sequence[Arm]) -> None:
        self.player, self.probes = player, probes
        self.names = target_names(player.config.task.name)
        self._value_P_K_C_M = [state_values(player, probe, self.names) for probe in probes]
        contents = dict.fromkeys(arm.algorithm.content for arm in arms)
        self._rewards = {content: [self._scored(probe, content) for probe in probes] for content in contents}
        self._return_P_K_C = {arm.name: [
            state_returns(arm.estimator, probe.continued_K, rewards[:-1])
            for probe, rewards in zip(probes, self._rewards[arm.algorithm.content], strict=True)]
            for arm in arms if arm.critic == "exact"}

    def _scored(self, probe: Probe, content: Content) -> list[list[Rewards]]:
        """Rewards of the continuations from each state of a probe, and of the probe itself."""
        groups = [*probe.continued_K, Group.of_chains([probe.transcript])]
        return self.player.score([probe.item] * len(groups), groups, content)

    def truth_records(self) -> Iterable[Record]:
        """The share of each turn in a target's variance: E[(Q - V)^2] of the turn over the sum over turns."""
        longest = max((len(probe.continued_K) for probe in self.probes), default=0)
        for m, name in enumerate(self.names):
            squares: list[list[float]] = [[] for _ in range(longest)]
            for value_K_C_M in self._value_P_K_C_M:
                for turn in range(len(value_K_C_M) - 1):
                    third, fourth, _ = turn_errors.advantage(value_K_C_M[turn][:, m], value_K_C_M[turn + 1][:, m])
                    squares[turn].append(third * fourth)
            shares = turn_errors.shares_by_turn([np.array(found) for found in squares])
            for turn, part in enumerate(shares, start=1):
                yield record(TRUTH, f"turn={turn}", "variance_share", name, Measured(part, float("nan")), 0)

    def _exact(self, arm: Arm, p: int, members: slice) -> list[float]:
        """V of the states before each turn of probe ``p``: the mean return of some of its continuations."""
        value_K: list[float] = self._return_P_K_C[arm.name][p][:, members].mean(axis=1).tolist()
        return value_K

    def exact_batches(self, creditor: Creditor, arms: Sequence[Arm], truth: Truth) -> Measurement | None:
        """Batches of whole probes with an exact critic; None if there are too few probes.

        There are at least ``FEWEST_BATCHES``, which are smaller than the batches of training if the probes are few.
        """
        branching = (1,) * self.player.config.task.max_turns
        size = questions_per_batch(self.player.config.training, branching, truth.groups,
                                   max(len(self.probes) // FEWEST_BATCHES, 1))
        made = []
        for start in range(0, len(self.probes) - size + 1, size):
            chunk = range(start, start + size)
            exact = {arm.name: {row: self._exact(arm, p, slice(None)) for row, p in enumerate(chunk)} for arm in arms}
            made.append(creditor.credit(arms, [self.probes[p].item for p in chunk],
                                        [Group.of_chains([self.probes[p].transcript]) for p in chunk], exact))
        return measurement(creditor, made) if len(made) >= FEWEST_BATCHES else None

    def credit_records(self, creditor: Creditor, arms: Sequence[Arm], branching: Sequence[int], questions: int,
                       replicates: int) -> Iterable[Record]:
        """Correlation, bias, variance and sign errors of each arm's credit, over all turns and by turn number."""
        if not self.probes:
            return
        quarter = len(self._value_P_K_C_M[0][0]) // 4  # the exact critic has quarters 1 and 2, Q - V has 3 and 4
        credit_R_A_P = np.array([replicate_credits(
            creditor, arms, self.probes, branching, questions, replicate,
            [{arm.name: self._exact(arm, p, slice(0, quarter) if replicate % 2 == 0 else slice(quarter, 2 * quarter))
              for arm in arms if arm.critic == "exact"} for p in range(len(self.probes))])
            for replicate in range(replicates)])
        for a, arm in enumerate(arms):
            credit_P_R = credit_R_A_P[:, a].T
            replayed_P = np.isfinite(credit_P_R).all(axis=1)
            turn_P = np.array([probe.turn for probe in self.probes])[replayed_P]
            for target in (*self.names, PAID):
                third, fourth, error = np.array([self._advantage(arm, p, target)
                                                 for p in np.flatnonzero(replayed_P).tolist()]).reshape(-1, 3).T
                turns = turn_errors.TurnCredits(credit_P_R[replayed_P], np.stack([third, fourth], axis=1), error)
                for turn in (None, *sorted(set(turn_P.tolist()))):
                    chosen = turns if turn is None else turns.at(turn_P == turn)
                    variant = " ".join(filter(None, (arm.variant, "" if turn is None else f"turn={turn + 1}")))
                    for name, found in turn_errors.measure(chosen).items():
                        yield record(arm.name, variant, name, target, found, 0)

    def _advantage(self, arm: Arm, p: int, target: str) -> tuple[float, float, float]:
        """Two estimates of Q - V of the turn of probe ``p``, and the standard error of their mean."""
        turn, value_K_C_M = self.probes[p].turn, self._value_P_K_C_M[p]
        if target != PAID:
            m = self.names.index(target)
            return turn_errors.advantage(value_K_C_M[turn][:, m], value_K_C_M[turn + 1][:, m])
        before_C, after_C = (np.array([paid_return(rewards, arm.algorithm.placement) for rewards in leaves])
                             for leaves in self._rewards[arm.algorithm.content][p][turn:turn + 2])
        return turn_errors.advantage(before_C, after_C if len(after_C) > 1 else np.repeat(after_C, len(before_C)))
