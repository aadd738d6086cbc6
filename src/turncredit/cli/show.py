"""``turncredit show``: whole episodes of a run, with the credit of each turn under every algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from turncredit.cli.options import Root
from turncredit.config.algorithm import Algorithm
from turncredit.config.load import RunConfig, load_scale
from turncredit.errors import DataError, nearest

app = typer.Typer()


def shown_algorithms(config: RunConfig, algorithms: Mapping[str, Algorithm]) -> dict[str, Algorithm]:
    """The algorithms of config/algorithms.yaml by name, and first the run's own, named by its arm, if it is another."""
    if algorithms.get(config.arm) == config.algorithm:
        return dict(algorithms)
    others = {f"{name} (unchanged)" if name == config.arm else name: each for name, each in algorithms.items()}
    return {config.arm: config.algorithm, **others}


@app.command(rich_help_panel="Results")
def show(folder: Annotated[Path, typer.Argument(help="a run (results/mini/search/MT-PPO/base-0/seed-0) "
                                                     "or collected runs (results/shipped/mini/search)")],
         arm: Annotated[str | None, typer.Option(help="of collected runs: one arm; the first by default")] = None,
         label: Annotated[str | None, typer.Option(help="only right, wrong, malformed or group")] = None,
         count: Annotated[int, typer.Option(min=1, help="how many are printed")] = 3,
         page: Annotated[Path | None, typer.Option("--html", help="write one self-contained page instead")] = None,
         root: Root = Path()) -> None:
    """Print a few whole episodes: turns, observations, rewards, and each turn's credit under every algorithm."""
    from rich.console import Console

    from turncredit.episodes.records import read_run
    from turncredit.files import write_text
    from turncredit.show import html
    from turncredit.show.credits import all_credits
    from turncredit.show.terminal import group_view

    config, records = read_run(folder, arm)
    labels = {record.label for record in records}
    if label is not None and label not in labels:
        raise DataError(f"{folder}: no episode is labelled {label!r}", nearest(label, labels))
    algorithms = shown_algorithms(config, load_scale(config.scale, root / "config").algorithms)
    shown = [(record, all_credits(algorithms, config.training, record.group(), {
        content: record.rewards(content) for content in record.episodes[0].rewards}))
             for record in records if label in (None, record.label)]
    if page is not None:
        title = f"{config.experiment} / {config.arm} / base policy {config.base} / seed {config.seed}"
        write_text(page, html.page(title, shown, config.arm))
        typer.echo(f"{page}: {len(shown)} groups of episodes")
        return
    console = Console()
    for record, credits in shown[:count]:
        console.print(group_view(record, credits, range(min(len(record.episodes), 2))), "")
    if len(shown) > count:
        typer.echo(f"{len(shown) - count} more: --count {len(shown)}, or all on one page: --html episodes.html")
