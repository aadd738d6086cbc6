"""Writes the tables of docs/IDEA.md: ``python docs/idea.py``. A test checks that they are up to date."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from turncredit.config.load import load_scale
from turncredit.config.training import TrainingConfig
from turncredit.credit.base import make_estimator
from turncredit.types import Group, StopReason, Transcript, Turn, TurnStop

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "IDEA.md"
NAMES = ("GRPO-OR", "GRPO-MR", "MT-GRPO", "PPO-OR", "PPO-MR", "MT-PPO")


@dataclass(frozen=True)
class Rewards:
    """The rewards of one episode: R^I of each turn and R^O."""

    intermediate_K: tuple[float, ...]
    outcome: float


def episodes(*lengths_L: Sequence[int]) -> tuple[Transcript, ...]:
    """Episodes with turns of so many tokens; what the tokens say plays no part in credit."""
    return tuple(
        Transcript("q", (1,), tuple(Turn("", (2,) * n, (0.0,) * n, TurnStop.TAG) for n in lengths), StopReason.ANSWERED)
        for lengths in lengths_L)


TWO_TURNS = Group.of_chains(episodes((3, 2), (3, 2)))
TWO_TURN_REWARDS = (Rewards((0.3, 0.0), 1.0), Rewards((0.0, 0.0), -1.0))
# Three turns: both first turns branch into two second turns, each with one last turn.
TREE = Group(episodes(*[(1, 1, 1)] * 4), ((0, 1, 2), (0, 3, 4), (5, 6, 7), (5, 8, 9)))
TREE_REWARDS = (Rewards((0.3, 0.3, 0.0), 1.0), Rewards((0.3, 0.0, 0.0), -1.0),
                Rewards((0.0, 0.3, 0.0), 1.0), Rewards((0.0, 0.0, 0.0), -1.0))


def credits(name: str, group: Group, rewards: Sequence[Rewards]) -> list[list[float]]:
    """The credit of each turn under one of the six algorithms, all of them given the same rewards.

    A critic is trained on chains: it gets the same episodes as chains.
    """
    algorithm = load_scale("mini", ROOT / "config").algorithms[name]
    found = make_estimator(algorithm, TrainingConfig()).turn_credits(group, rewards)
    return found if found is not None else credits(name, Group.of_chains(group.transcripts), rewards)


def table(group: Group, rewards: Sequence[Rewards], letters: str) -> str:
    """A row per turn of each episode and a column per algorithm; the first row says what a column's numbers are."""
    columns = [credits(name, group, rewards) for name in NAMES]
    kinds = ("advantage" if "GRPO" in name else "return at V = 0" for name in NAMES)
    lines = ["| | " + " | ".join(NAMES) + " |", "|:--|" + "--:|" * len(NAMES), "| | " + " | ".join(kinds) + " |"]
    for leaf, nodes in enumerate(group.node_L_K):
        for k in range(len(nodes)):
            cells = [f"{round(column[leaf][k], 1) + 0.0:.1f}".replace("-", "−") for column in columns]
            lines.append(f"| **{letters[leaf]}**, turn {k + 1} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def written(page: str) -> str:
    """The page with its tables made anew."""
    tables = {"two turns": table(TWO_TURNS, TWO_TURN_REWARDS, "AB"), "tree": table(TREE, TREE_REWARDS, "ABCD")}
    for name, content in tables.items():
        begin, end = f"<!-- table: {name}, written by docs/idea.py -->", "<!-- end -->"
        page = re.sub(f"{re.escape(begin)}.*?{end}", f"{begin}\n\n{content}\n\n{end}", page, flags=re.DOTALL)
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
