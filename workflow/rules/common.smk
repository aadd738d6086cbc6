"""What the call asks for: scales, arms, seeds, and whose runs are drawn."""

import os
import sys
from functools import cache
from pathlib import Path

from snakemake.exceptions import WorkflowError
from snakemake.utils import validate
from turncredit.config.load import (RunConfig, Scale, load_scale, scale_names)
from turncredit.errors import ConfigError, nearest
from turncredit.files import json_sha256
from turncredit.reporting.catalogue import FIGURES, TABLES
from turncredit.tasks.registry import TASKS

# The `turncredit` of this very environment, also where the environment is not activated.
os.environ.update(PATH=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]))

if isinstance(config.get("experiments"), str):
    config["experiments"] = [config["experiments"]]
if isinstance(config.get("seeds"), dict):  # on the command line the numbers in a mapping stay text
    config["seeds"] = {name: int(n) if str(n).isdigit() else n for name, n in config["seeds"].items()}
for key in config.keys() - {"scale", "seeds", "runs", "experiments"}:
    raise WorkflowError(f"--config {key}: no such key; {nearest(key, ['scale', 'seeds', 'runs', 'experiments'])}")
validate(config, "../schemas/config.schema.json")


@cache
def scale_of(name: str) -> Scale:
    """The checked config/<name>.yaml."""
    try:
        found = load_scale(name)
        for experiment, settings in found.experiments.items():
            for arm in settings.arms:
                found.identical(experiment, arm)
    except ConfigError as error:
        raise WorkflowError(str(error)) from None
    return found


def check_experiments(named) -> None:
    """Every experiment that the call names is one of the scale's."""
    known = scale_of(config["scale"]).experiments
    for name in named:
        if name not in known:
            raise WorkflowError(
                f"--config: no experiment {name!r} at scale {config['scale']!r}; {nearest(name, known)}"
            )


check_experiments(config.get("experiments", []))
check_experiments(config["seeds"] if isinstance(config.get("seeds"), dict) else [])

# The code and numbers that pages are made of: editing them draws again, and trains nothing.
DRAWING = sorted(map(str, Path("src/turncredit/reporting").rglob("*.py")))
REPORTED = sorted(map(str, Path("paper_tables/reported").glob("*.csv")))
SCALES = scale_names()


wildcard_constraints:
    scale="|".join(SCALES),
    experiment="[a-z_]+",
    arm="[A-Za-z0-9._-]+",
    seed="[0-9]+",
    kind="base|clean|closed_book",
    task="|".join(TASKS),
    checkpoint="|".join(sorted({name for s in SCALES for name in scale_of(s).checkpoints})) or "(?!)",
    name="[a-z0-9_]+",


def digest(*settings) -> str:
    """A short hash of settings: as a rule's parameter it makes a job run again when one changes."""
    return json_sha256([s.model_dump(mode="json") if hasattr(s, "model_dump") else s for s in settings])[:16]


def tasks_of(scale: str) -> dict[str, str]:
    """Task -> the first experiment that plays it; its base policy is shared by all that do."""
    found = {}
    for experiment, settings in scale_of(scale).experiments.items():
        found.setdefault(settings.task.name, experiment)
    return found


def kinds_of(scale: str) -> list[str]:
    """What is evaluated at a scale and not trained: policies before reinforcement, and those that others trained."""
    clean = [] if scale_of(scale).warm_start is None else ["clean"]
    return ["base", *clean, "closed_book", *scale_of(scale).checkpoints]


def warm(whether: bool) -> str:
    """Constraint: scales whose base policies are made here, or are given."""
    return "|".join(s for s in SCALES if (scale_of(s).warm_start is not None) == whether) or "(?!)"


def untrained(scale: str, kind: str) -> list[str]:
    """The policies that an evaluation of no trained run plays: every task's base policy, or one policy in ``search``."""
    if kind == "clean":
        return [f"policy/{scale}/clean"]
    return [f"policy/{scale}/base/{task}" for task in (tasks_of(scale) if kind == "base" else ["search"])]


def warm_start_digest(scale: str, *tasks: str) -> str:
    """Hash of what makes a policy before reinforcement, its data aside: it was shown these tasks."""
    settings = scale_of(scale)
    played = [settings.experiments[tasks_of(scale)[task]].task for task in tasks]
    return digest(settings.policy, settings.warm_start.model_dump(exclude={"threads"}), *played)


def run_of(wildcards) -> RunConfig:
    """One training run, resolved."""
    try:
        return scale_of(wildcards.scale).run(wildcards.experiment, wildcards.arm, int(wildcards.seed))
    except ConfigError as error:
        raise WorkflowError(str(error)) from None


def seeds_of(scale: str, experiment: str) -> int:
    """Training seeds of an experiment's arms."""
    asked = config.get("seeds")
    return (asked.get(experiment) if isinstance(asked, dict) else asked) or scale_of(scale).seeds_of(experiment)


def runs_of(scale: str, experiment: str) -> list[str]:
    """Folders of an experiment's runs; an arm that equals another's shares its runs."""
    if experiment == "base":
        return [f"results/{scale}/base/{kind}/seed-0" for kind in kinds_of(scale)]
    arms = [scale_of(scale).identical(experiment, arm) for arm in scale_of(scale).experiments[experiment].arms]
    return [run_folder(scale, where, arm, n) for where, arm in arms for n in range(seeds_of(scale, experiment))]


def run_folder(scale: str, experiment: str, arm: str, seed: int) -> str:
    """Where a run lies: brought in from elsewhere, or trained here."""
    run = f"{scale}/{experiment}/{arm}/seed-{seed}"
    return f"results/imported/{run}" if Path("results/imported", run, "manifest.json").exists() else f"results/{run}"


def everything(scale: str) -> list[str]:
    """All experiments of a scale, the evaluation of the base policies first."""
    return ["base", *scale_of(scale).experiments]


def run_files(wildcards, file: str) -> list[str]:
    """One file of every run of an experiment; base policies and some imported runs were evaluated only."""
    if wildcards.experiment == "base" and file != "evaluation.csv":
        return []
    paths = [f"{run}/{file}" for run in runs_of(wildcards.scale, wildcards.experiment)]
    return [
        path
        for path in paths
        if file != "metrics.csv" or not path.startswith("results/imported/") or Path(path).exists()
    ]


COLLECTED = ("metrics.csv", "evaluation.csv.gz", "manifests.json")


def is_shipped(scale: str, experiment: str) -> bool:
    """Whether its runs are committed: their folder is there, and whole."""
    folder = Path("results/shipped", scale, experiment)
    for file in (folder / name for name in COLLECTED if folder.exists() and not (folder / name).exists()):
        raise WorkflowError(f"{file}: missing from the shipped runs; git checkout -- {file}, or --config runs=fresh")
    return folder.exists()


@cache
def source_of(scale: str, experiment: str) -> str | None:
    """Whose runs of an experiment are drawn: "fresh", "shipped", or None where there are none to draw."""
    asked = experiment == "base" or experiment in config.get("experiments", [experiment])
    if config["runs"] == "shipped":
        if asked and not is_shipped(scale, experiment):
            raise WorkflowError(f"results/shipped/{scale}/{experiment}: no runs are shipped; use --config runs=auto")
    elif all(Path(run, "evaluation.csv").exists() for run in runs_of(scale, experiment)):
        return "fresh"
    elif asked and (config["runs"] == "fresh" or not is_shipped(scale, experiment)):
        return "fresh"
    return "shipped" if is_shipped(scale, experiment) else None


def collected(scale: str, experiments) -> list[str]:
    """Folders of the collected runs to draw; what is neither here nor asked for is left out."""
    roots = {"fresh": f"results/{scale}", "shipped": f"results/shipped/{scale}"}
    known = [e for e in experiments if e == "base" or e in scale_of(scale).experiments]
    return [f"{roots[source]}/{e}" for e in known if (source := source_of(scale, e))]


def collected_files(scale: str, experiments) -> list[str]:
    """The files in those folders."""
    return [f"{folder}/{file}" for folder in collected(scale, experiments) for file in COLLECTED]


def files_of_page(scale: str, uses) -> list[str]:
    """The files that a figure or table is made from; there is no page of no runs."""
    found = collected_files(scale, uses)
    if uses and not found:
        raise WorkflowError(f"no runs of {', '.join(uses)} at scale {scale!r} are here, and this call asks for none")
    return found


def pages(scale: str, registry, of: str | None = None) -> list[str]:
    """Figures or tables for which a scale has the runs; of those, the ones that draw experiment ``of``."""
    trained = {name: set(uses) - {"base"} for name, uses in registry.items()}
    return [name for name, used in trained.items() if (collected(scale, used) or not used) and of in {None, *used}]


def drawn(scale: str, of: str | None = None) -> list[str]:
    """The files of those pages (one each; a rule makes the others too), and the audit."""
    return [
        *(f"figures/{scale}/{name}.pdf" for name in pages(scale, FIGURES, of)),
        *(f"paper_tables/{scale}/{name}.csv" for name in pages(scale, TABLES, of)),
        f"paper_tables/{scale}/audit.csv",
    ]


# What each page's files end in; the audit is a page beside them.
ENDS = {"figures": ("pdf", "png", "csv"), "paper_tables": ("csv", "md", "tex")}
PAGES = {"figures": ("figure", [*FIGURES]), "paper_tables": ("table", [*TABLES, "audit"])}


def no_page() -> str:
    """Constraint: files of figures and tables that no rule makes, those that are committed aside."""
    made = [
        f"{folder}/({'|'.join(SCALES)})/({'|'.join(names)})[.]({'|'.join(ENDS[folder])})$"
        for folder, (_, names) in PAGES.items()
    ]
    return f"(?!{'|'.join(made)}|.*/(shipped|reported|headline[.]txt|report[.]rst))({'|'.join(PAGES)})"


def mistyped(folder: str, scale: str, file: str) -> list[str]:
    """Refuse such a file before any job, with the nearest name."""
    kind, names = PAGES[folder]
    name, _, end = file.partition(".")
    if scale not in SCALES:
        raise WorkflowError(f"{folder}/{scale}: no scale {scale!r}; {nearest(scale, SCALES)}")
    if name not in names:
        raise WorkflowError(f"no {kind} {name!r}; {nearest(name, names)}")
    raise WorkflowError(f"no file of {kind} {name!r} ends in {end!r}; {nearest(end, ENDS[folder])}")
