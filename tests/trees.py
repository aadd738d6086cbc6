"""Small made-up groups for tests: chains, trees, rewards."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from turncredit.config.algorithm import Algorithm
from turncredit.config.training import TrainingConfig
from turncredit.credit.base import make_estimator
from turncredit.types import Group, StopReason, Transcript, Turn, TurnStop


@dataclass(frozen=True)
class Given:
    """Rewards of one leaf, given by hand."""

    intermediate_K: tuple[float, ...]
    outcome: float


def turn(*ids: int, observed: tuple[int, ...] = (), logprob: float = -1.0) -> Turn:
    return Turn("", ids, (logprob,) * len(ids), TurnStop.TAG, observation_ids=observed)


def transcript(*turns: Turn, question: str = "q") -> Transcript:
    return Transcript(question, (1, 2), turns, StopReason.ANSWERED)


def random_tree(seed: int, branching: int, turns: int, *, early: float = 0.0, vocabulary: int = 30,
                question: str = "q") -> Group:
    """A tree of ``branching ** (turns - 1)`` leaves (fewer where a branch ends early, with chance ``early``)."""
    rng = np.random.default_rng(seed)
    leaves: list[tuple[tuple[Turn, ...], tuple[int, ...]]] = []
    count = 0

    def grow(path: tuple[Turn, ...], nodes: tuple[int, ...]) -> None:
        nonlocal count
        depth = len(path)
        for _ in range(branching if depth < turns - 1 else 1):
            ends = depth == turns - 1 or rng.random() < early
            ids = tuple(int(i) for i in rng.integers(3, vocabulary, rng.integers(1, 5)))
            seen = () if ends else tuple(int(i) for i in rng.integers(3, vocabulary, rng.integers(1, 4)))
            new = Turn("", ids, tuple(float(x) for x in -rng.random(len(ids)) * 3), TurnStop.TAG, observation_ids=seen)
            node, count = count, count + 1
            if ends:
                leaves.append(((*path, new), (*nodes, node)))
            else:
                grow((*path, new), (*nodes, node))

    grow((), ())
    order: dict[int, int] = {}
    for _, nodes in leaves:
        for node in nodes:
            order.setdefault(node, len(order))
    return Group(
        tuple(Transcript(question, (1, 2), path, StopReason.ANSWERED) for path, _ in leaves),
        tuple(tuple(order[n] for n in nodes) for _, nodes in leaves))


def random_rewards(seed: int, group: Group) -> list[Given]:
    """Rewards of a tree's leaves; R^I belongs to the turn, so leaves that share it agree."""
    rng = np.random.default_rng(seed)
    of_node = rng.normal(size=len(group.turns)).round(2)
    return [Given(tuple(float(of_node[n]) for n in nodes), round(float(rng.normal()), 2)) for nodes in group.node_L_K]


def estimator(word: str, placement: str, rollout: str = "chains", **settings: object) -> Any:
    """The estimator of a word and a placement, with training settings."""
    algorithm = Algorithm.model_validate({"estimator": word, "placement": placement, "content": "full",
                                          "rollout": rollout})
    return make_estimator(algorithm, TrainingConfig.model_validate(settings))
