"""Options that the commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turncredit.config.load import Scale, load_scale

ScaleName = Annotated[str, typer.Option("--scale", help="which config/<scale>.yaml")]
RetrieverName = Annotated[str | None, typer.Option("--retriever", help="one of retrievers; the scale's by default")]
Root = Annotated[Path, typer.Option(help="the clone: config, data and results lie under it")]
Folders = Annotated[list[Path] | None, typer.Argument(help="folders of collected runs, one an experiment")]


def scale_at(name: str, root: Path) -> Scale:
    """The checked ``config/<name>.yaml`` of the clone at ``root``."""
    return load_scale(name, root / "config")
