"""docs/IDEA.md: its tables are those of the code, its numbers those of the equations, its tests are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import idea
from turncredit.credit.grpo import EPSILON

ROOT = Path(__file__).parents[2]
SHRUNK = 3 * EPSILON / 0.15  # of a sum of three z-scores, by the EPSILON beside a standard deviation of 0.15 or more
PAGE = (ROOT / "docs" / "IDEA.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "first_leaf"), [
    ("GRPO-OR", [1, 1]), ("GRPO-MR", [1, 1]), ("MT-GRPO", [2, 1]),
    ("PPO-OR", [1, 1]), ("PPO-MR", [1.3, 1.3]), ("MT-PPO", [1.3, 1.0])])
def test_two_turns_by_hand(name: str, first_leaf: list[float]) -> None:
    assert idea.credits(name, idea.TWO_TURNS, idea.TWO_TURN_REWARDS)[0] == pytest.approx(first_leaf, abs=SHRUNK)


@pytest.mark.parametrize(("name", "leaves"), [
    ("GRPO-OR", [[1] * 3, [-1] * 3, [1] * 3, [-1] * 3]),
    # A_k = A^I_k + A_{k+1}: siblings by R^I, all four leaves by R^O
    ("MT-GRPO", [[3, 2, 1], [-1, -2, -1], [1, 2, 1], [-3, -2, -1]]),
    ("PPO-MR", [[1.6] * 3, [-0.7] * 3, [1.3] * 3, [-1] * 3]),
    ("MT-PPO", [[1.6, 1.3, 1], [-0.7, -1, -1], [1.3, 1.3, 1], [-1, -1, -1]])])
def test_three_turns_by_hand(name: str, leaves: list[list[float]]) -> None:
    for found, expected in zip(idea.credits(name, idea.TREE, idea.TREE_REWARDS), leaves, strict=True):
        assert found == pytest.approx(expected, abs=SHRUNK)


def test_the_tables_are_up_to_date() -> None:
    assert idea.written(PAGE) == PAGE, "run: python docs/idea.py"


def test_what_follows_is_tested_and_stands_where_the_page_says() -> None:
    tests = "".join((ROOT / "tests" / "unit" / f"test_{name}.py").read_text() for name in ("credit", "losses"))
    named = re.findall(r"`(test_\w+)`", PAGE)
    assert len(named) == 5
    assert not [name for name in named if f"def {name}(" not in tests]
    assert not [path for path in re.findall(r"`((?:src|tests)/[\w./]+)`", PAGE) if not (ROOT / path).exists()]
