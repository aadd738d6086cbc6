"""Commands that report on finished runs: tables, figures, audit and README; and the import of external runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from turncredit.cli.options import Base, Folders, Root, ScaleName, scale_at
from turncredit.errors import DataError

reports = typer.Typer()
PANEL = "Results"


@reports.command("import-run", rich_help_panel=PANEL)
def import_run(folder: Annotated[Path, typer.Argument(help="metrics.csv and evaluation.csv, or a checkpoint")],
               experiment: Annotated[str, typer.Option()], arm: Annotated[str, typer.Option()],
               label: Annotated[str, typer.Option(help="who trained it, and where; shown beside every number")],
               seed: Annotated[int, typer.Option()] = 0, base: Base = 0, scale: ScaleName = "paper",
               root: Root = Path()) -> None:
    """Import an external run after checking it; tables and audit name its origin."""
    from turncredit.reporting.imported import import_run as import_external_run
    from turncredit.tasks.registry import plugin_of
    from turncredit.training.manifest import now

    settings = scale_at(scale, root)
    config = settings.run(*settings.identical(experiment, arm), seed, base)
    data = root / "data" / scale
    questions = None if not (data / "world.json").exists() else [
        (item.dataset, item.id) for item in plugin_of(config.task.name).read_items(data, "test", config.evaluate_on)]
    typer.echo(import_external_run(folder, config, settings, label, root, questions, now()))


@reports.command(rich_help_panel=PANEL)
def collect(experiment: Annotated[str, typer.Argument(help="an experiment of the scale, or `untrained`")],
            runs: Annotated[list[Path], typer.Argument(help="folders of its runs")],
            scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Join the runs of one experiment into three files, from which pages are made and which are shipped."""
    from turncredit.reporting.runs import collect as collect_runs

    collect_runs(experiment, runs, root / "results" / scale / experiment, scale_at(scale, root))


@reports.command(rich_help_panel=PANEL)
def table(name: str, folders: Folders = None, scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Write one table from collected runs, as CSV, Markdown and LaTeX."""
    from turncredit.reporting.catalogue import TABLES, check_folders
    from turncredit.reporting.reported import FOLDER, read_reported
    from turncredit.reporting.runs import read_folders
    from turncredit.reporting.tables.builders import tabulate
    from turncredit.reporting.tables.render import save

    settings = scale_at(scale, root)
    check_folders(f"table {name}", TABLES.get(name, ()), folders or [], settings, root,
                  f"paper_tables/{scale}/{name}.csv")
    made = tabulate(name, read_folders(folders or (), settings), settings, read_reported(root / FOLDER))
    save(made, root / "paper_tables" / scale)


@reports.command(rich_help_panel=PANEL)
def figure(name: str, folders: Folders = None, scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Draw one figure from collected runs, as PDF and PNG, with its data as CSV."""
    from turncredit.reporting.catalogue import BENCH_FIGURES, FIGURES, check_folders
    from turncredit.reporting.figures.builders import draw
    from turncredit.reporting.figures.style import save
    from turncredit.reporting.reported import FOLDER, read_reported
    from turncredit.reporting.runs import read_folders

    settings = scale_at(scale, root)
    check_folders(f"figure {name}", (FIGURES | BENCH_FIGURES).get(name, ()), folders or [], settings, root,
                  f"figures/{scale}/{name}.pdf")
    drawn, data = draw(name, read_folders(folders or (), settings), settings, read_reported(root / FOLDER))
    save(name, drawn, data, root / "figures" / scale)


@reports.command(rich_help_panel=PANEL)
def audit(folders: Folders = None,
          picture: Annotated[Path | None, typer.Option(help="PNG for the opening of the report")] = None,
          scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Compare every reported number and claim with ours: audit.csv, audit.md, headline.txt, report.rst."""
    from turncredit.files import write_text
    from turncredit.reporting.audit import audit as audit_of
    from turncredit.reporting.audit_page import save
    from turncredit.reporting.catalogue import UNTRAINED, check_folders
    from turncredit.reporting.reported import FOLDER, read_reported
    from turncredit.reporting.runs import read_folders
    from turncredit.reporting.scores import Results
    from turncredit.reporting.summary import report_section, terminal_summary

    settings = scale_at(scale, root)
    check_folders("audit", [UNTRAINED, *settings.experiments], folders or [], settings, root,
                  f"audit --config scale={scale}")
    runs = read_folders(folders or (), settings)
    reported, results = read_reported(root / FOLDER), Results(settings, runs)
    entries = audit_of(runs, settings, reported)
    output = root / "paper_tables" / scale
    save(entries, settings, output)
    write_text(output / "headline.txt", terminal_summary(entries, results, reported))
    write_text(output / "report.rst", report_section(entries, results, reported, picture))


@reports.command(rich_help_panel=PANEL)
def headline(scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Print the folders of figures, tables and audit, and the headline."""
    path = root / "paper_tables" / scale / "headline.txt"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", f"create it: snakemake audit --config scale={scale}") from error
    typer.echo(f"figures: {root / 'figures' / scale}/   tables: {path.parent}/   audit: {path.with_name('audit.md')}")
    typer.echo(text, nl=False)


@reports.command(rich_help_panel=PANEL)
def readme(folders: Folders = None, pictures: Annotated[list[str] | None, typer.Option("--picture")] = None,
           scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Write the results sections of README.md and docs/EXPERIMENTS.md from collected runs."""
    from turncredit.reporting.audit import audit as audit_of
    from turncredit.reporting.catalogue import UNTRAINED, check_folders
    from turncredit.reporting.reported import FOLDER, read_reported
    from turncredit.reporting.runs import read_folders
    from turncredit.reporting.scores import Results
    from turncredit.reporting.summary import experiments_section, readme_section, update_section

    settings = scale_at(scale, root)
    check_folders("readme", [UNTRAINED, *settings.experiments], folders or [], settings, root,
                  f"readme --config scale={scale}", complete=True)
    shown = [(Path(path).stem.replace("_", " "), path) for path in pictures or ()]
    runs, reported = read_folders(folders or (), settings), read_reported(root / FOLDER)
    results = Results(settings, runs)
    entries = audit_of(runs, settings, reported)
    update_section(root / "README.md", readme_section(entries, results, reported, shown))
    update_section(root / "docs/EXPERIMENTS.md", experiments_section(results, reported))
