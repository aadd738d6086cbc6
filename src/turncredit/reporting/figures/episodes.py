"""Whole episodes as a figure, in the place of the paper's example rollouts."""

from __future__ import annotations

import textwrap

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from turncredit.episodes.records import GroupRecord
from turncredit.reporting.figures import style
from turncredit.reporting.scores import Results, sources
from turncredit.show.terminal import number, turn_rewards

EXPERIMENT, PREFERRED = "search", "MT-PPO"
WIDTH = 98  # characters of a line
MOST_LINES = 4  # of a turn's text or of an observation
LINE = 0.155  # inches


def episodes_figure(results: Results) -> tuple[Figure, pd.DataFrame]:
    """One right, one wrong and one malformed evaluation episode of MT-PPO, or of the first arm that has episodes.

    Returns:
        the figure, and one row per turn with the whole texts.
    """
    runs = results.runs.get(EXPERIMENT)
    kept = [] if runs is None else [record for record in runs.episodes if record.source == "evaluation"]
    arms = {str(record.run["arm"]) for record in kept}
    arm = PREFERRED if PREFERRED in arms or not arms else min(arms)
    records = [record for record in kept if record.run["arm"] == arm]
    lines = [line for record in records for line in [*_lines(record), ("", style.GREY, "")]]
    with style.applied():
        height = 0.8 + LINE * max(len(lines), 2)
        figure = Figure(figsize=(8.2, height))
        axes = figure.add_axes((0.02, 0.3 / height, 0.96, 1 - 0.8 / height))
        axes.set_axis_off()
        figure.suptitle(f"Whole episodes of the final evaluation, {arm}" if records else
                        "Whole episodes: not run", x=0.02, ha="left", fontsize=10)
        _write(axes, lines)
        style.footer(figure, _origin(results, records))
    rows = [{"arm": arm, "base": record.run.get("base", 0), "seed": record.run["seed"], "label": record.label,
             "dataset": record.dataset, "item_id": record.item_id,
             "turn": k + 1, "text": "".join(turn.tokens), "observation": turn.observation,
             "reward": reward} for record in records
            for k, (turn, reward) in enumerate(zip(record.episodes[0].turns, _rewards(record), strict=True))]
    return figure, pd.DataFrame(rows, columns=["arm", "base", "seed", "label", "dataset", "item_id", "turn",
                                               "text", "observation", "reward"])


def _origin(results: Results, records: list[GroupRecord]) -> str:
    source = sources(results.arm(EXPERIMENT, str(record.run["arm"])) for record in records[:1])
    made_by = {f"base policy {run.get('base', 0)}, seed {run['seed']}, code {str(run.get('code_revision'))[:7]}"
               for run in (record.run for record in records)}
    return "  ·  ".join([f"scale {results.scale.name}", f"runs: {source}", *sorted(made_by)])


def _rewards(record: GroupRecord) -> list[float]:
    return turn_rewards(record.episodes[0])["full"]


def _lines(record: GroupRecord) -> list[tuple[str, str, str]]:
    """Text, colour and right-hand note of each line of an episode."""
    [episode] = record.episodes
    question, answers = record.item.get("question", record.item_id), ", ".join(record.item.get("answers", ()))
    lines = [(f"{record.label}: {question}  (accepted: {answers})", style.BLUE, "")]
    for k, (turn, reward) in enumerate(zip(episode.turns, _rewards(record), strict=True), start=1):
        note = f"{'R^O' if k == len(episode.turns) else 'R^I'} = {number(reward)}"
        for i, piece in enumerate(_wrapped("".join(turn.tokens))):
            lines.append((f"{f'turn {k}' if i == 0 else '':7}{piece}", "black", note if i == 0 else ""))
        lines += [(f"{'':7}{piece}", style.GREY, "") for piece in _wrapped(turn.observation)]
    return [*lines, (f"stop: {episode.stop}", style.BLUE, "")]


def _wrapped(text: str) -> list[str]:
    """The text in lines; the CSV has all of it."""
    plain = "".join(character if character.isprintable() else " " for character in text)
    pieces = textwrap.wrap(plain, WIDTH - 7)
    return pieces if len(pieces) <= MOST_LINES else [*pieces[:MOST_LINES - 1], f"{pieces[MOST_LINES - 1][:-4]} ..."]


def _write(axes: Axes, lines: list[tuple[str, str, str]]) -> None:
    axes.set_ylim(len(lines), 0)
    for y, (text, colour, note) in enumerate(lines):
        for x, content, align in ((0.0, text, "left"), (1.0, note, "right")):
            axes.text(x, y, content, color=colour, ha=align, va="top", family="DejaVu Sans Mono", fontsize=6.8,
                      parse_math=False, transform=axes.get_yaxis_transform())
