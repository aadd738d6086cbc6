"""An episode in the terminal: turns, observations, rewards, and the credit of each turn under every algorithm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group as Renderables
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from turncredit.episodes.records import EpisodeRecord, GroupRecord
from turncredit.show.credits import Credits


def headline(record: GroupRecord) -> str:
    """Where a record comes from, in one line."""
    where = f"training step {record.step}" if record.source == "training" else "final evaluation"
    kind = "" if record.label == "group" else f", {record.label}"
    return f"{record.dataset} {record.item_id} ({where}{kind})"


def facts(record: GroupRecord) -> list[str]:
    """The item's own fields that say what is asked and accepted, as ``name: value``."""
    shown = {name: value for name, value in record.item.items() if name not in ("id", "dataset", "plan", "hops")}
    return [f"{name}: {', '.join(map(str, value)) if isinstance(value, list | tuple) else value}"
            for name, value in shown.items()]


def group_view(record: GroupRecord, credits: Mapping[str, Credits | None], leaves: Sequence[int]) -> RenderableType:
    """A record: the item, the chosen episodes, and the table of credits.

    Args:
        record: the group.
        credits: algorithm -> credit of each turn of each leaf (``show.credits.all_credits``).
        leaves: which episodes are written out.
    """
    parts: list[RenderableType] = [Text(headline(record), style="bold")]
    parts += [Text(line) for line in facts(record)]
    for leaf in leaves:
        name = "" if len(record.episodes) == 1 else f"episode {leaf + 1} of {len(record.episodes)}"
        parts += ["", *([Text(name, style="bold")] if name else []), *_episode(record.episodes[leaf])]
        episode = record.episodes[leaf]
        credit_of = {name: None if found is None else found[leaf] for name, found in credits.items()}
        parts += ["", _table("reward", turn_rewards(episode), len(episode.turns)),
                  _table("credit", credit_of, len(episode.turns))]
    return Renderables(*parts)


def _episode(episode: EpisodeRecord) -> list[RenderableType]:
    lines: list[RenderableType] = []
    for k, turn in enumerate(episode.turns, start=1):
        lines.append(Text.assemble((f"turn {k}  ", "cyan"), "".join(turn.tokens)))
        if turn.observation:
            lines.append(Text.assemble(("        ", ""), (turn.observation, "dim")))
        if turn.error:
            lines.append(Text(f"        error: {turn.error}", style="red"))
    lines.append(Text(f"stop: {episode.stop}", style="cyan"))
    for title, values in (("metrics", episode.metrics), ("components", episode.components)):
        lines.append(Text(f"{title}: " + ", ".join(f"{name} {value:g}" for name, value in values.items())))
    return lines


def turn_rewards(episode: EpisodeRecord) -> dict[str, list[float]]:
    """The reward of each turn under each content: R^I, and R^O with the last turn's."""
    return {content: [*r.intermediate_K[:-1], r.intermediate_K[-1] + r.outcome]
            for content, r in episode.rewards.items()}


def _table(title: str, columns: Mapping[str, Sequence[float] | None], turns: int) -> Table:
    """One row a turn."""
    table = Table(title, *columns, box=SIMPLE_HEAD, pad_edge=False)
    for k in range(turns):
        table.add_row(f"turn {k + 1}", *("—" if column is None else number(column[k]) for column in columns.values()))
    return table


def number(value: float) -> str:
    """Two decimals, without a sign at zero.

    >>> number(-0.001), number(1.25)
    ('0.00', '1.25')
    """
    return f"{round(value, 2) + 0.0:.2f}"
