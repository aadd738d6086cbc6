"""Commands of the credit bench: measure one checkpoint, and collect the measurements of a scale."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turncredit.cli.options import Base, Root, ScaleName, scale_at
from turncredit.config.credit_bench import CREDIT_BENCH, FILES, INITIAL

bench = typer.Typer()
PANEL = "Credit bench"


@bench.command("credit-bench", rich_help_panel=PANEL)
def credit_bench(
        checkpoint: Annotated[str, typer.Option(help="`initial`, ARM.final or ARM.step-20 of seed 0")] = INITIAL,
        arm: Annotated[list[str] | None, typer.Option(help="only this arm; may be repeated")] = None,
        base: Base = 0,
        seed: Annotated[int, typer.Option(help="of all samples")] = 0,
        quick: Annotated[bool, typer.Option("--quick", help="the fewest samples: a first look in a minute")] = False,
        output: Annotated[Path | None, typer.Option(help="folder of the results; default: under results/")] = None,
        scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Measure what each estimator's credit is worth at one fixed policy, before anything is trained.

    Writes credit_bench.csv and manifest.json, and prints how well a batch of each arm points along the true gradients.
    """
    from turncredit.credit_bench.bench import run_bench
    from turncredit.reporting.credit_bench import read_table, summary

    folder = output or root / "results" / scale / CREDIT_BENCH / f"base-{base}" / checkpoint
    run_bench(scale_at(scale, root), root, folder, base=base, checkpoint=checkpoint, seed=seed, quick=quick,
              chosen=arm or (), report=lambda text: typer.echo(text, err=True))
    typer.echo(summary(read_table(folder / FILES[0])))


@bench.command("collect-credit-bench", rich_help_panel=PANEL)
def collect_credit_bench(folders: Annotated[list[Path], typer.Argument(help="results of `turncredit credit-bench`")],
                         scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Join the measurements of all base policies and checkpoints into one table."""
    from turncredit.reporting.credit_bench import collect

    collect(folders, root / "results" / scale / CREDIT_BENCH)
