"""The ``turncredit`` command. Its sub-commands read and write files; a rule of the workflow calls one of them.

The sub-commands are in ``data``, ``policies``, ``runs``, ``bench``, ``reports`` and ``show``. Heavy imports (torch) are
inside the functions, so that ``--help`` is quick. A ``TurncreditError`` ends the command with a message and its exit
code.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from turncredit.cli.bench import bench
from turncredit.cli.data import data
from turncredit.cli.options import Group, Root, ScaleName, prepare_process, scale_at
from turncredit.cli.policies import policies
from turncredit.cli.reports import reports
from turncredit.cli.runs import runs
from turncredit.cli.show import app as show
from turncredit.config.load import scale_names

app = typer.Typer(cls=Group, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  help="Turn-level credit assignment for multi-turn LLM agents: data, training, evaluation, reports.")


@app.callback()
def _start() -> None:
    prepare_process()


@app.command("check-config", rich_help_panel="Configuration")
def check_config(scale: Annotated[str | None, typer.Option(help="one scale; default: all")] = None,
                 root: Root = Path()) -> None:
    """Check the configuration, and list the base policies, seeds and arms of each experiment."""
    for name in [scale] if scale else scale_names(root / "config"):
        found = scale_at(name, root)
        for experiment, settings in found.experiments.items():
            made = {arm: found.identical(experiment, arm) for arm in settings.arms}
            arms = [arm if where == (experiment, arm) else f"{arm} = {'/'.join(where)}" for arm, where in made.items()]
            typer.echo(f"{name}/{experiment}: base policies: {found.base_policies}, "
                       f"seeds: {found.seeds_of(experiment)}, arms: {', '.join(arms)}")


@app.command(rich_help_panel="Configuration")
def plan(experiment: Annotated[str | None, typer.Option(help="one experiment; default: all")] = None,
         arm: Annotated[str | None, typer.Option(help="one arm of it; default: all")] = None,
         output: Annotated[Path | None, typer.Option(help="also write all numbers to this CSV file")] = None,
         scale: ScaleName = "paper", root: Root = Path()) -> None:
    """Print what each run needs (batches, memory by part, hours, disk), and fail if a run cannot fit."""
    from rich.console import Console

    from turncredit.files import write_text
    from turncredit.planning.plan import make_plan
    from turncredit.planning.show import tables, to_csv

    made = make_plan(scale_at(scale, root), root, experiment, arm)
    Console(width=None if sys.stdout.isatty() else 200).print(*tables(made), sep="\n")
    made.check()
    if output is not None:
        write_text(output, to_csv(made))


for part in (data, policies, runs, bench, reports, show):
    app.add_typer(part)
