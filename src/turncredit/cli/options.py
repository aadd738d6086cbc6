"""Shared parts of all commands: options, exit codes of errors, and the set-up of the process."""

from __future__ import annotations

import gc
import logging
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from turncredit.config.load import Scale, load_scale
from turncredit.errors import ConfigError, TurncreditError, nearest
from turncredit.workflow.inputs import task_experiments

ScaleName = Annotated[str, typer.Option("--scale", help="name of config/<scale>.yaml")]
RetrieverName = Annotated[str | None, typer.Option("--retriever", help="one of `retrievers`; default: the scale's own")]
Base = Annotated[int, typer.Option("--base", help="index of the base policy, from 0")]
Root = Annotated[Path, typer.Option(help="the clone, which holds config/, data/ and results/")]
Folders = Annotated[list[Path] | None, typer.Argument(help="folders of collected runs, one per experiment")]


class _ExitCodes:
    """Prints a ``TurncreditError`` without a traceback, and exits with its code."""

    def invoke(self, ctx: Any) -> Any:
        """See ``click.Command.invoke``."""
        try:
            return super().invoke(ctx)  # type: ignore[misc]
        except TurncreditError as error:
            typer.echo(f"turncredit: {error}", err=True)
            raise typer.Exit(error.exit_code) from None


class Command(_ExitCodes, TyperCommand):
    """A command that is a program of its own."""


class Group(_ExitCodes, TyperGroup):
    """A program with sub-commands."""


def prepare_process() -> None:
    """Set up garbage collection, imports and logging, before anything heavy is imported."""
    gc.set_threshold(50_000, 50, 50)  # importing torch creates many objects: collection would take a tenth of its time
    # transformers imports scikit-learn where it is installed (pyserini brings it), for a decoding method not used here.
    sys.modules.setdefault("sklearn", None)  # type: ignore[arg-type]
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s", level=logging.INFO)
    for verbose in ("httpx", "fontTools"):
        logging.getLogger(verbose).setLevel(logging.WARNING)


def scale_at(name: str, root: Path) -> Scale:
    """The checked ``config/<name>.yaml`` of the clone at ``root``."""
    return load_scale(name, root / "config")


def experiment_of_task(scale: Scale, task: str) -> str:
    """The first experiment that has a task.

    Raises:
        ConfigError: no experiment has it.
    """
    found = task_experiments(scale)
    if task not in found:
        raise ConfigError(f"no experiment of scale {scale.name!r} has the task {task!r}", nearest(task, found))
    return found[task]
