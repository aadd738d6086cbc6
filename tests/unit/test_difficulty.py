"""The outcome's variance is divided between question and turns as in closed form, and every number is the policy's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from turncredit.errors import DataError
from turncredit.miniature.difficulty import _seeds, measure_difficulty, variance_shares
from turncredit.rollout.state import SeedOf


@dataclass(frozen=True)
class Coin:
    """An item whose episode succeeds if every turn does; on easy items all turns do."""

    id: str
    easy: bool = False
    dataset: str = "coins"


class Coins:
    """Plays episodes of independent turns; turn k succeeds with ``chance_K[k]``, decided by its seed."""

    def __init__(self, *chance_K: float) -> None:
        self.chance_K = chance_K
        self.task = SimpleNamespace(config=SimpleNamespace(max_turns=len(chance_K)))

    def play(self, items: Sequence[Coin], branching: Sequence[int], *, seed_of: SeedOf | None,
             temperature: float) -> list[list[Any]]:
        return [self._leaves(item, (), branching, seed_of, True) for item in items]

    def score(self, items: object, groups: list[list[Any]], branching: object) -> list[list[Any]]:
        return groups

    def chains(self, items: Sequence[Coin], *, seed_of: SeedOf | None = None, temperature: float = 1.0) -> list[Any]:
        return [leaves[0] for leaves in self.play(items, (1,) * len(self.chance_K), seed_of=seed_of, temperature=1.0)]

    def _leaves(self, item: Coin, path: tuple[int, ...], branching: Sequence[int], seed_of: SeedOf | None,
                right: bool) -> list[Any]:
        if len(path) == len(branching):
            return [SimpleNamespace(item=item, transcript=SimpleNamespace(turns=path), rewards=SimpleNamespace(
                metrics={"answer_correct": float(right), "format_correct": 1.0}))]
        leaves = []
        for child in range(branching[len(path)]):
            below, chance = (*path, child), 1.0 if item.easy else self.chance_K[len(path)]
            drawn = 0.5 if seed_of is None else seed_of(item.id, below) / 2**63
            leaves += self._leaves(item, below, branching, seed_of, right and drawn < chance)
        return leaves


def test_shares_are_those_of_the_closed_form() -> None:
    chance_K, easy = np.array([0.5, 0.8, 0.4]), 0.1
    items = [Coin(str(n), easy=n % 10 == 0) for n in range(1500)]
    runner: Any = Coins(*chance_K)
    sampled = [runner.chains(items, seed_of=_seeds(7, n)) for n in range(2)]
    shares = variance_shares(runner, sampled, continuations=8, seed=7)
    p = easy + (1 - easy) * chance_K.prod()
    square_k = [easy + (1 - easy) * chance_K[:k].prod() * chance_K[k:].prod() ** 2 for k in range(4)]
    assert shares is not None
    assert shares.question == pytest.approx((square_k[0] - p**2) / (p * (1 - p)), abs=0.08)
    assert shares.turn_K == pytest.approx(np.diff(square_k) / (p * (1 - p)), abs=0.08)
    assert shares.question + sum(shares.turn_K) == pytest.approx(1.0)
    assert shares.largest_turn == pytest.approx(max(np.diff(square_k)) / (square_k[-1] - square_k[0]), abs=0.08)


def test_the_numbers_are_the_policys() -> None:
    items = [Coin(str(n)) for n in range(800)]
    measured = measure_difficulty(Coins(0.6, 0.7), items, passes=2, continuations=4)  # type: ignore[arg-type]
    assert measured["sampled_em"] == pytest.approx(0.42, abs=4 * (0.42 * 0.58 / 1600) ** 0.5)
    assert measured["sampled_em_se"] == pytest.approx((0.42 * 0.58 / 1600) ** 0.5, rel=0.1)
    assert (measured["greedy_em"], measured["format"], measured["turns"]) == (1.0, 1.0, 2.0)
    assert measured == measure_difficulty(Coins(0.6, 0.7), items, passes=2, continuations=4)  # type: ignore[arg-type]


@pytest.mark.parametrize("chance", [0.0, 1.0])
def test_an_outcome_that_never_varies_has_no_shares(chance: float) -> None:
    measured = measure_difficulty(Coins(chance), [Coin("a"), Coin("b")])  # type: ignore[arg-type]
    assert measured["sampled_em"] == chance
    assert np.isnan(measured["largest_turn_share"])


def test_no_questions_are_refused() -> None:
    with pytest.raises(DataError, match="no questions"):
        measure_difficulty(Coins(0.5), [])  # type: ignore[arg-type]
