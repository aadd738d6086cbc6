"""Measures, before RL training, how hard a task is for a policy and which turns decide the outcome."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from turncredit.config.load import Scale
from turncredit.errors import DataError
from turncredit.evaluation import Episode, EpisodeRunner
from turncredit.rollout.state import Path as TurnPath
from turncredit.rollout.state import SeedOf
from turncredit.seeding import derive_seed, permutation
from turncredit.tasks.plugin import ServiceSettings
from turncredit.tasks.registry import make_task, plugin_of
from turncredit.training.run import open_runner
from turncredit.types import Item

OUTCOME = "answer_correct"  # the metric whose mean is the exact match; 0 or 1 for an episode
_TRAIN_QUESTIONS = 400  # most training questions on which an initial policy is measured


@dataclass(frozen=True, slots=True)
class VarianceShares:
    """The variance of the outcome, divided between the question and the turns; the shares sum to 1.

    Attributes:
        question: share explained by the question alone: Var V_0 / Var Y (``variance_shares``).
        turn_K: share that turn k adds: E[(V_k - V_(k-1))^2] / Var Y.
    """

    question: float
    turn_K: tuple[float, ...]

    @property
    def largest_turn(self) -> float:
        """The largest turn's share of the sum over turns."""
        return max(self.turn_K) / max(sum(self.turn_K), 1e-9)


def measure(scale: Scale, folder: Path, data: Path, index: Path) -> dict[str, float]:
    """The difficulty of every task for the policies of one base policy.

    The initial policy plays training questions of its task's first experiment, the expert policy the test questions
    of the same sets. ``initial_{task}_closed_book_em`` is the exact match of the initial policy on the test questions
    of ``facts`` (if the scale has them) when its first turn is its last.

    Args:
        scale: the configuration.
        folder: a base policy with ``expert`` and ``initial/<task>``.
        data: the scale's questions.
        index: the index of the scale's retriever.

    Returns:
        ``{expert,initial}_{task}_{number}``; for the numbers see ``measure_difficulty`` and ``closed_book``.

    Raises:
        DataError: a file of the world is missing or altered.
        RetrieverError: the retriever cannot be reached.
    """
    first = {e.task.name: name for name, e in reversed(scale.experiments.items())}  # the first experiment of a task
    return {f"{policy}_{task}_{name}": value for task, experiment in first.items()
            for policy, numbers in _measure_task(scale, experiment, folder, data, index).items()
            for name, value in numbers.items()}


def _measure_task(scale: Scale, experiment: str, folder: Path, data: Path, index: Path) -> dict[str, dict[str, float]]:
    """The numbers of the expert policy and of the initial policy on the task of an experiment."""
    found, config = scale.experiments[experiment], scale.without_overrides(experiment)
    services = ServiceSettings(scale.retriever_of(experiment), index / (found.retriever or ""))
    plugin = plugin_of(config.task.name)
    train = plugin.read_items(data, "train", found.train_on)
    train = [train[i] for i in permutation(len(train), 0, "difficulty")[:_TRAIN_QUESTIONS]]
    expert, initial = folder / "expert", folder / "initial" / config.task.name
    with open_runner(expert, config, services, expert) as runner:
        of_expert = measure_difficulty(runner, plugin.read_items(data, "test", found.train_on), passes=1,
                                       continuations=0)
    with open_runner(initial, config, services, initial) as runner:
        of_initial = measure_difficulty(runner, train)
        if "facts" in scale.datasets:
            of_initial["closed_book_em"] = closed_book(runner, plugin.read_items(data, "test", ["facts"]))
    return {"expert": of_expert, "initial": of_initial}


def measure_difficulty(runner: EpisodeRunner, items: Sequence[Item], *, passes: int = 4, continuations: int = 4,
                       seed: int = 0) -> dict[str, float]:
    """How often a policy succeeds, and how evenly its turns share the outcome's variance.

    Args:
        runner: the policy's engine, the task with its services, and its rewards.
        items: questions to play, each ``passes`` times at temperature 1 and once greedily.
        passes: samples of each question.
        continuations: samples of each state from which the value of the state is estimated; 0: no shares.
        seed: of all samples.

    Returns:
        ``sampled_em`` and its standard error over questions ``sampled_em_se``; ``greedy_em``; ``format`` and
        ``turns``, means of the sampled episodes; with continuations ``question_share`` and ``largest_turn_share``
        (see ``VarianceShares``), NaN if no episode succeeds.

    Raises:
        DataError: there are no questions.
    """
    if not items:
        raise DataError("difficulty: no questions", "name data sets that have some")
    sampled = [runner.chains(items, seed_of=_seeds(seed, n), temperature=1.0) for n in range(passes)]
    em_P_I = np.array([[episode.rewards.metrics[OUTCOME] for episode in episodes] for episodes in sampled])
    em_I = em_P_I.mean(axis=0)
    everything = [episode for episodes in sampled for episode in episodes]
    numbers = {
        "sampled_em": float(em_I.mean()),
        "sampled_em_se": float(em_I.std(ddof=1) / len(items) ** 0.5) if len(items) > 1 else float("nan"),
        "greedy_em": _mean(runner.chains(items), OUTCOME),
        "format": _mean(everything, "format_correct"),
        "turns": float(np.mean([len(episode.transcript.turns) for episode in everything])),
    }
    if continuations:
        shares = variance_shares(runner, sampled, continuations=continuations, seed=seed)
        numbers |= {"question_share": float("nan") if shares is None else shares.question,
                    "largest_turn_share": float("nan") if shares is None else shares.largest_turn}
    return numbers


def closed_book(runner: EpisodeRunner, items: Sequence[Item], *, passes: int = 4, seed: int = 0) -> float:
    """Exact match of a policy whose only turn must answer, sampled at temperature 1."""
    task = make_task(runner.task.config.model_copy(update={"max_turns": 1}))
    alone = replace(runner, task=task, services={})
    return _mean([episode for n in range(passes)
                  for episode in alone.chains(items, seed_of=_seeds(seed, n), temperature=1.0)], OUTCOME)


def variance_shares(runner: EpisodeRunner, sampled: Sequence[Sequence[Episode]], *, continuations: int,
                    seed: int) -> VarianceShares | None:
    """Divide the variance of the exact match Y between the question and the turns, by resampled continuations.

    V_k = E[Y | state after turn k] is a martingale, so turn k adds E[(V_k - V_(k-1))^2] = E[V_k^2] - E[V_(k-1)^2].
    For a binary Y of mean p, E[V_k^2] = E[Y V_k] = p E[V_k | Y = 1]. So only successful episodes are played again:
    their first k turns with the same seeds, then ``continuations`` times with new seeds.

    Args:
        runner: played the episodes.
        sampled: the episodes of each pass of ``measure_difficulty`` with the same seed.
        continuations: episodes from each state.
        seed: the seed of the passes.

    Returns:
        The shares; None if no episode succeeded or none failed.
    """
    p = _mean([episode for episodes in sampled for episode in episodes], OUTCOME)
    right = [(n, episode.item, len(episode.transcript.turns)) for n, episodes in enumerate(sampled)
             for episode in episodes if episode.rewards.metrics[OUTCOME] == 1.0]
    if not right or p == 1.0:
        return None
    last = runner.task.config.max_turns
    known_k = [1.0] * (last + 1)
    for k in range(last):
        value = [1.0 for *_, turns in right if turns <= k]  # the episode has ended: V_k = Y
        for n in range(len(sampled)):
            going_on = [item for of_pass, item, turns in right if of_pass == n and turns > k]
            if going_on:
                branching = (*(1,) * k, continuations, *(1,) * (last - k - 1))
                groups = runner.play(going_on, branching, seed_of=_seeds(seed, n, k), temperature=1.0)
                value += [_mean(leaves, OUTCOME) for leaves in runner.score(going_on, groups, branching)]
        known_k[k] = (float(np.mean(value)) - p) / (1 - p)
    return VarianceShares(known_k[0], tuple(after - before for before, after in pairwise(known_k)))


def _seeds(seed: int, n: int, same: int | None = None) -> SeedOf:
    """The seeds of pass ``n``; with ``same``, the first ``same`` turns keep them and later turns get new ones."""
    def seed_of(item: str, path: TurnPath) -> int:
        renewed = () if same is None or len(path) <= same else ("again", same)
        return derive_seed("difficulty", seed, n, item, *renewed, *path)

    return seed_of


def _mean(episodes: Sequence[Episode], metric: str) -> float:
    return float(np.mean([episode.rewards.metrics[metric] for episode in episodes]))
