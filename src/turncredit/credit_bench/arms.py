"""The arms of the bench: batches by the rollout, reward and credit code of training, and their gradients."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turncredit.config.algorithm import Algorithm
from turncredit.config.training import TrainingConfig
from turncredit.credit.base import Estimator, TokenCredit, make_estimator
from turncredit.credit.rows import Row, rows_of
from turncredit.credit_bench import critics
from turncredit.credit_bench.critics import CRITICS, Critic
from turncredit.credit_bench.gradients import GradientSpace, policy_gradients
from turncredit.credit_bench.play import Player, begins_with
from turncredit.credit_bench.probes import Probe
from turncredit.rollout.branching import branching_of, copies_of
from turncredit.seeding import START, derive_seed, draw
from turncredit.training.batch import Batch
from turncredit.types import Group, Item

Array = NDArray[np.float64]
ExactValues = Mapping[str, Mapping[int, Sequence[float]]]  # arm -> row -> V of its first turns


@dataclass(frozen=True, slots=True)
class Arm:
    """An algorithm of the bench; one with a critic is measured once for each of ``critics.CRITICS``.

    Attributes:
        name: name of the algorithm.
        algorithm: its estimator, placement, content and rollout.
        estimator: as in training, without the KL penalty.
        critic: the critic whose values it gets; None for an estimator without one.
    """

    name: str
    algorithm: Algorithm
    estimator: Estimator
    critic: Critic | None

    @property
    def variant(self) -> str:
        """For the column ``variant``."""
        return "" if self.critic is None else f"critic={self.critic}"


def make_arms(algorithms: Mapping[str, Algorithm], training: TrainingConfig) -> list[Arm]:
    """The arms of some algorithms. The KL penalty is left out: it does not depend on rewards, and starts at 0."""
    arms = []
    for name, algorithm in algorithms.items():
        estimator = make_estimator(algorithm, training.model_copy(update={"kl_coefficient": 0.0}))
        arms += [Arm(name, algorithm, estimator, critic) for critic in (CRITICS if estimator.uses_critic else (None,))]
    return arms


@dataclass(frozen=True, slots=True)
class Credited:
    """A batch of one rollout, credited by several arms.

    Attributes:
        rows: all leaves.
        batch: their tokens.
        credits: one for each arm.
        explained: for each arm, the share of the variance of returns that its critic explains; NaN without a critic.
        tokens: sampled tokens; a shared turn counts once.
    """

    rows: list[Row]
    batch: Batch
    credits: list[TokenCredit]
    explained: list[float]
    tokens: int


@dataclass(frozen=True, slots=True)
class Creditor:
    """Credits batches.

    Attributes:
        player: scores the episodes.
        space: the policy, for fitted values and gradients.
        heads: arm -> weights of its fitted critic.
    """

    player: Player
    space: GradientSpace
    heads: Mapping[str, Tensor]

    def credit(self, arms: Sequence[Arm], items: Sequence[Item], groups: Sequence[Group],
               exact: ExactValues | None = None) -> Credited:
        """Credit the same episodes under several arms; ``exact`` is for those with an exact critic."""
        training = self.player.config.training
        rows = rows_of(groups)
        batch = Batch.of(rows, training.gae_tokens)
        rewards_of = {content: self.player.score(items, groups, content)
                      for content in dict.fromkeys(arm.algorithm.content for arm in arms)}
        needs_values = any(arm.critic in ("fitted", "exact") for arm in arms)
        feature_M_H = critics.features(self.space.policy, batch, training) if needs_values else None
        credits, explained = [], []
        for arm in arms:
            rewards = rewards_of[arm.algorithm.content]
            value_M = None
            if arm.critic is not None:
                value_M = torch.zeros(int(batch.value_start_R[-1]))
                if arm.critic != "zero":
                    assert feature_M_H is not None
                    value_M = critics.predict(feature_M_H, self.heads[arm.name])
                if arm.critic == "exact":
                    value_M = critics.with_exact(value_M, rows, training.gae_tokens, (exact or {})[arm.name])
            credits.append(arm.estimator.credit(groups, rewards, rows, old_logprob_N=batch.old_logprob_N,
                                                value_M=value_M))
            if value_M is None:
                explained.append(float("nan"))
            else:
                return_M = critics.returns_of(arm.estimator, groups, rewards, rows, batch)
                explained.append(_explained(value_M, return_M))
        return Credited(rows, batch, credits, explained, sum(group.sampled_count for group in groups))

    def gradients(self, credited: Credited) -> Tensor:
        """``gradient_A_D`` of a batch under the credits of its arms."""
        return policy_gradients(self.space, credited.batch, credited.credits, self.player.config.training)


def _explained(value_M: Tensor, return_M: Tensor) -> float:
    total = return_M.double().var(unbiased=False).item()
    return 1 - (return_M - value_M).double().square().mean().item() / total if total > 0 else float("nan")


def fit_heads(player: Player, space: GradientSpace, arms: Sequence[Arm], items: Sequence[Item],
              groups: Sequence[Group]) -> dict[str, Tensor]:
    """A fitted critic for each arm that has one, from episodes that no batch of the bench contains."""
    fitted = [arm for arm in arms if arm.critic == "fitted"]
    if not fitted:
        return {}
    rows = rows_of(groups)
    batch = Batch.of(rows, player.config.training.gae_tokens)
    rewards_of = {content: player.score(items, groups, content)
                  for content in dict.fromkeys(arm.algorithm.content for arm in fitted)}
    return_M_A = torch.stack([critics.returns_of(arm.estimator, groups, rewards_of[arm.algorithm.content], rows,
                                                 batch) for arm in fitted], dim=1)
    feature_M_H = critics.features(space.policy, batch, player.config.training)
    weight_J_A = critics.fit(feature_M_H, return_M_A)
    return {arm.name: weight_J_A[:, a] for a, arm in enumerate(fitted)}


@dataclass(frozen=True, slots=True)
class Measurement:
    """Several batches of one rollout, under several arms.

    Attributes:
        gradient_A_B_D: of each arm and batch.
        tokens: mean sampled tokens of a batch.
        square_A_K: for each arm and turn number, the squared credit of every such turn.
        explained_A_B: see ``Credited.explained``.
    """

    gradient_A_B_D: Tensor
    tokens: float
    square_A_K: list[list[Array]]
    explained_A_B: Array


def branching_for(arm: Arm, training: TrainingConfig, max_turns: int) -> tuple[int, ...]:
    """The turns sampled from each state in an arm's batches."""
    return branching_of(arm.algorithm.rollout, max_turns, training)


def by_branching(arms: Iterable[Arm], training: TrainingConfig, max_turns: int) -> dict[tuple[int, ...], list[Arm]]:
    """Arms that can be credited on the same episodes."""
    found: dict[tuple[int, ...], list[Arm]] = {}
    for arm in arms:
        found.setdefault(branching_for(arm, training, max_turns), []).append(arm)
    return found


def questions_per_batch(training: TrainingConfig, branching: Sequence[int], groups: Sequence[Group],
                        most: int) -> int:
    """Questions of a training step: those that have its sampled tokens or its trajectories, 1 to ``most``.

    Args:
        training: of the bench.
        branching: turns sampled from each state. Turn k is sampled branching_1 * ... * branching_k times in every
            episode that reaches it.
        groups: chains of the same policy at the same temperature.
        most: number of available questions.
    """
    copies_K = copies_of(branching)
    chains = [leaf for group in groups for leaf in group.transcripts]
    if training.trajectories_per_step is not None:
        target, cost = training.trajectories_per_step, sum(copies_K[len(leaf.turns) - 1] for leaf in chains)
    else:
        target = training.tokens_per_step
        cost = sum(copies * len(turn.sampled_ids) for leaf in chains
                   for copies, turn in zip(copies_K, leaf.turns, strict=False))
    return min(max(round(target * len(chains) / cost), 1), most)


def measure_batches(creditor: Creditor, arms: Sequence[Arm], pool: Sequence[Item], branching: Sequence[int],
                    questions: int, batches: int, *key: int | str) -> Measurement:
    """Play batches of one rollout and credit each under all arms, so that arms are compared on the same episodes."""
    made, cursor = [], START
    for b in range(batches):
        chosen, cursor = draw(cursor, questions, len(pool),
                              derive_seed("credit bench", creditor.player.seed, "questions of batches"))
        items = [pool[i] for i in chosen]
        made.append(creditor.credit(arms, items, creditor.player.play(items, branching, "batch", b, *branching, *key)))
    return measurement(creditor, made)


def measurement(creditor: Creditor, made: Sequence[Credited]) -> Measurement:
    """The gradients and credits of credited batches."""
    gradient_A_B_D = torch.stack([creditor.gradients(credited) for credited in made], dim=1)
    square_A_K = [squares_by_turn(made, a) for a in range(len(made[0].credits))]
    return Measurement(gradient_A_B_D, float(np.mean([credited.tokens for credited in made])), square_A_K,
                       np.array([credited.explained for credited in made]).T)


def squares_by_turn(made: Sequence[Credited], arm: int) -> list[Array]:
    """Squared credits of all turns of an arm, by turn number."""
    squares: dict[int, list[float]] = {}
    for credited in made:
        for row, credit_N in _by_row(credited.rows, credited.credits[arm].advantage_N):
            for turn in np.unique(row.turn_N).tolist():
                squares.setdefault(turn, []).append(float(credit_N[row.turn_N == turn].mean())**2)
    return [np.array(squares[turn]) for turn in sorted(squares)]


def _by_row(rows: Sequence[Row], value_N: Tensor) -> list[tuple[Row, Array]]:
    """Each row that has loss tokens, with its values."""
    parts = np.split(value_N.double().numpy(), np.cumsum([len(row.turn_N) for row in rows])[:-1])
    return [(row, part) for row, part in zip(rows, parts, strict=True) if len(part)]


def replicate_credits(creditor: Creditor, arms: Sequence[Arm], probes: Sequence[Probe], branching: Sequence[int],
                      questions: int, replicate: int, exact: Sequence[Mapping[str, Sequence[float]]]) -> Array:
    """The credit of each probe's turn when later turns and the other episodes of its question are sampled anew.

    The replayed turns are on path 0, 0, ... of the group, so the row of the first leaf owns them.

    Args:
        creditor, arms, branching: as in ``measure_batches``.
        probes: distinct questions; they are split into batches of about ``questions``.
        questions: questions of a batch.
        replicate: number of the replicate, part of the seed.
        exact: for each probe, arm -> V of its turns.

    Returns:
        ``credit_A_P``; NaN where the engine did not replay the probe's turns.
    """
    credit_A_P = np.full((len(arms), len(probes)), np.nan)
    chunks = np.array_split(np.arange(len(probes)), max(1, round(len(probes) / questions)))
    for chunk in chunks:
        members = [probes[p] for p in chunk]
        items = [probe.item for probe in members]
        groups = creditor.player.play(items, branching, "replicate", replicate, *branching,
                                      pinned={probe.item.id: probe.turn + 1 for probe in members})
        first_rows = np.cumsum([0, *(len(group.transcripts) for group in groups)])[:-1].tolist()
        exact_values = {arm.name: {row: exact[p][arm.name][:probes[p].turn + 1]
                                   for row, p in zip(first_rows, chunk, strict=True)}
                        for arm in arms if arm.critic == "exact"}
        credited = creditor.credit(arms, items, groups, exact_values)
        starts = credited.batch.start_R
        for row, p, probe, group in zip(first_rows, chunk, members, groups, strict=True):
            if not begins_with(group.transcripts[0], probe.transcript, probe.turn + 1):
                continue
            mine_N = credited.rows[row].turn_N == probe.turn
            for a, credit in enumerate(credited.credits):
                credit_N = credit.advantage_N[starts[row]:starts[row + 1]].double().numpy()
                credit_A_P[a, p] = credit_N[mine_N].mean()
    return credit_A_P
