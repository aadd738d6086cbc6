"""The ``turncredit`` command: one sub-command a rule of the workflow, each from files to files.

Heavy imports (torch, matplotlib) stand inside the commands, so that ``--help`` is quick and no
command loads what it does not use. An error that the user can mend is printed without a traceback
and gives its own exit code.
"""

from __future__ import annotations

import logging
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from turncredit.config import Scale, load_scale
from turncredit.errors import ConfigError, TurncreditError


class _Group(TyperGroup):
    """Prints an error that is the user's to mend, and exits with its code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except TurncreditError as error:
            typer.echo(f"turncredit: {error}", err=True)
            raise typer.Exit(error.exit_code) from None


app = typer.Typer(cls=_Group, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  help="Turn-level credit assignment for multi-turn LLM agents: data, training, evaluation, reports.")

ScaleName = Annotated[str, typer.Option("--scale", help="which config/<scale>.yaml")]
Root = Annotated[Path, typer.Option(help="the clone: config, data and results lie under it")]
Folders = Annotated[list[Path], typer.Argument(help="folders of collected runs, one an experiment")]


class Kind(StrEnum):
    """A policy before any reinforcement: flawed on purpose, or the ceiling."""

    BASE = "base"
    CLEAN = "clean"


@app.callback()
def _start() -> None:
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.INFO)
    logging.getLogger("httpx").setLevel(logging.WARNING)


@app.command("check-config")
def check_config(scale: Annotated[str | None, typer.Option(help="one scale; all by default")] = None,
                 root: Root = Path()) -> None:
    """Read and check the configuration, and list the runs of each experiment."""
    names = [scale] if scale else sorted(p.stem for p in (root / "config").glob("*.yaml") if p.stem != "algorithms")
    for name in names:
        found = _scale(name, root)
        for experiment, settings in found.experiments.items():
            arms = [f"{arm} = {'/'.join(made)}" if (made := found.identical(experiment, arm)) != (experiment, arm) else arm
                    for arm in settings.arms]
            typer.echo(f"{name}/{experiment}: {found.seeds} seeds of {', '.join(arms)}")


@app.command()
def world(scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Write the mini world: passages, and questions of one to three hops."""
    from turncredit.world.build import build_world

    build_world(_scale(scale, root).world, root / "data" / scale)


@app.command()
def index(scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Build the Lucene index of the passages."""
    from turncredit.retrieval.lucene import build_index

    settings = _scale(scale, root).retriever
    manifest = build_index(root / "data" / scale / "corpus.jsonl", root / "index" / scale, k1=settings.k1, b=settings.b)
    typer.echo(f"{manifest.documents} passages in {manifest.seconds:.1f} s")


@app.command()
def serve(scale: ScaleName = "mini", root: Root = Path(), host: str = "127.0.0.1",
          port: Annotated[int, typer.Option(help="0 takes a free one")] = 0) -> None:
    """Serve the index behind Search-R1's /retrieve, until interrupted. Training starts its own server."""
    from turncredit.retrieval.server import serve as serve_index

    serve_index(root / "index" / scale, host=host, port=port)


@app.command()
def train(experiment: Annotated[str, typer.Option()], arm: Annotated[str, typer.Option()],
          seed: Annotated[int, typer.Option()] = 0, scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Train one run to its end; interrupted, the same command goes on from the last checkpoint."""
    from turncredit.training.run import RunPaths, train_run

    settings = _scale(scale, root)
    config = settings.run(experiment, arm, seed)
    train_run(config, settings.retriever, RunPaths.under(root, config))


@app.command()
def evaluate(experiment: Annotated[str, typer.Option()], arm: Annotated[str, typer.Option()],
             seed: Annotated[int, typer.Option()] = 0, scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Play all test questions with one run's trained policy."""
    from turncredit.training.run import RunPaths, evaluate_run

    settings = _scale(scale, root)
    config = settings.run(experiment, arm, seed)
    paths = RunPaths.under(root, config)
    evaluate_run(paths.final_policy, config, settings.retriever, data=paths.data, index=paths.index,
                 output=paths.run / "evaluation.csv")


@app.command()
def collect(experiment: Annotated[str, typer.Argument(help="an experiment of the scale, or `base`")],
            runs: Annotated[list[Path], typer.Argument(help="folders of its runs")],
            scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Join the runs of one experiment into the few files that are drawn and shipped."""
    from turncredit.reporting.runs import collect as collect_runs

    collect_runs(experiment, runs, root / "results" / scale / experiment, _scale(scale, root))


def _scale(name: str, root: Path) -> Scale:
    return load_scale(name, root / "config")
