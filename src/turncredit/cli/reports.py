"""Commands from finished runs to tables, figures, audit and README; and for runs that were made elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from turncredit.cli.options import Folders, Root, ScaleName, scale_at
from turncredit.config.load import Scale
from turncredit.errors import DataError

if TYPE_CHECKING:
    from turncredit.reporting.audit import Entry

reports = typer.Typer()


@reports.command("import-run")
def import_run(folder: Annotated[Path, typer.Argument(help="metrics.csv and evaluation.csv, or a checkpoint")],
               experiment: Annotated[str, typer.Option()], arm: Annotated[str, typer.Option()],
               label: Annotated[str, typer.Option(help="who made it, and where; shown beside every number")],
               seed: Annotated[int, typer.Option()] = 0, scale: ScaleName = "paper", root: Root = Path()) -> None:
    """Bring in a run that was made elsewhere, after checking it; tables and audit name its origin."""
    from turncredit.reporting.imported import import_run as import_external_run
    from turncredit.training.manifest import now
    from turncredit.training.run import read_split

    settings = scale_at(scale, root)
    config = settings.run(*settings.identical(experiment, arm), seed)
    data = root / "data" / scale
    questions = None if not (data / "world.json").exists() else [
        (question.dataset, question.id) for question in read_split(data, "test", config.evaluate_on)]
    typer.echo(import_external_run(folder, config, settings, label, root, questions, now()))


@reports.command()
def collect(experiment: Annotated[str, typer.Argument(help="an experiment of the scale, or `base`")],
            runs: Annotated[list[Path], typer.Argument(help="folders of its runs")],
            scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Join the runs of one experiment into the few files that are drawn and shipped."""
    from turncredit.reporting.runs import collect as collect_runs

    collect_runs(experiment, runs, root / "results" / scale / experiment, scale_at(scale, root))


@reports.command()
def table(name: str, folders: Folders = None, scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Write one table from collected runs, as CSV, Markdown and LaTeX."""
    from turncredit.reporting.catalogue import TABLES, check_folders
    from turncredit.reporting.tables.render import save
    from turncredit.reporting.reported import FOLDER, read_reported
    from turncredit.reporting.runs import read_folders
    from turncredit.reporting.tables.builders import tabulate

    settings = scale_at(scale, root)
    check_folders(f"table {name}", TABLES.get(name, ()), folders or [], settings, root,
                  f"paper_tables/{scale}/{name}.csv")
    made = tabulate(name, read_folders(folders or (), settings), settings, read_reported(root / FOLDER))
    save(made, root / "paper_tables" / scale)


@reports.command()
def figure(name: str, folders: Folders = None, scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Draw one figure from collected runs, as PDF and PNG, beside a CSV of what it draws."""
    from turncredit.reporting.catalogue import FIGURES, check_folders
    from turncredit.reporting.figures.builders import draw
    from turncredit.reporting.runs import read_folders
    from turncredit.reporting.figures.style import save

    settings = scale_at(scale, root)
    check_folders(f"figure {name}", FIGURES.get(name, ()), folders or [], settings, root, f"figures/{scale}/{name}.pdf")
    drawn, data = draw(name, read_folders(folders or (), settings), settings)
    save(name, drawn, data, root / "figures" / scale)


@reports.command()
def audit(folders: Folders = None, scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Set every reported number and claim beside ours: audit.csv, audit.md, and headline.txt."""
    from turncredit.files import write_text
    from turncredit.reporting.catalogue import BASE, check_folders
    from turncredit.reporting.summary import headline as headline_of
    from turncredit.reporting.summary import save

    settings = scale_at(scale, root)
    check_folders("audit", [BASE, *settings.experiments], folders or [], settings, root,
                  f"audit --config scale={scale}")
    entries = _entries(folders, settings, root)
    save(entries, settings, root / "paper_tables" / scale)
    write_text(root / "paper_tables" / scale / "headline.txt", headline_of(entries, settings))


@reports.command()
def headline(scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Say where figures, tables and audit are, and print the audit's headline."""
    path = root / "paper_tables" / scale / "headline.txt"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", f"make it: snakemake audit --config scale={scale}") from error
    typer.echo(f"figures: {root / 'figures' / scale}/   tables: {path.parent}/   audit: {path.with_name('audit.md')}")
    typer.echo(text, nl=False)


@reports.command()
def readme(folders: Folders = None, pictures: Annotated[list[str] | None, typer.Option("--picture")] = None,
           scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Write the README's results section from collected runs."""
    from turncredit.reporting.catalogue import BASE, check_folders
    from turncredit.reporting.summary import readme_section, update_readme

    settings = scale_at(scale, root)
    check_folders("readme", [BASE, *settings.experiments], folders or [], settings, root,
                  f"readme --config scale={scale}", complete=True)
    shown = [(Path(path).stem.replace("_", " "), path) for path in pictures or ()]
    update_readme(root / "README.md", readme_section(_entries(folders, settings, root), settings, shown))


def _entries(folders: list[Path] | None, scale: Scale, root: Path) -> list[Entry]:
    from turncredit.reporting.audit import audit as audit_of
    from turncredit.reporting.reported import FOLDER, read_reported
    from turncredit.reporting.runs import read_folders

    return audit_of(read_folders(folders or (), scale), scale, read_reported(root / FOLDER))
