"""Commands that train runs and evaluate policies."""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import typer

from turncredit.cli.options import Base, Root, ScaleName, experiment_of_task, scale_at
from turncredit.config.load import Scale
from turncredit.config.paths import base_folder

runs = typer.Typer()
PANEL = "Training and evaluation"
ExperimentName = Annotated[str, typer.Option("--experiment", help="one of the scale's experiments")]
ArmName = Annotated[str, typer.Option("--arm", help="one of the experiment's arms")]
Seed = Annotated[int, typer.Option("--seed", help="training seed, from 0")]


class Untrained(StrEnum):
    """A policy without RL training; ``closed_book`` is the initial policy without a retriever."""

    INITIAL = "initial"
    EXPERT = "expert"
    CLOSED_BOOK = "closed_book"


@runs.command(rich_help_panel=PANEL)
def train(experiment: ExperimentName, arm: ArmName, seed: Seed = 0, base: Base = 0, scale: ScaleName = "mini",
          root: Root = Path()) -> None:
    """Train one run. After an interruption, the same command resumes from the last checkpoint.

    Starts ``launch.processes`` processes, unless torchrun or accelerate already has.
    """
    settings = scale_at(scale, root)
    config = settings.run(experiment, arm, seed, base)
    if config.launch.processes > 1 and "RANK" not in os.environ:
        from turncredit.distributed.launch import relaunch_under_torchrun

        relaunch_under_torchrun(config.launch, config.device, root, sys.argv)
    from turncredit.distributed.processes import shutdown
    from turncredit.tasks.plugin import ServiceSettings
    from turncredit.training import cached_evaluation
    from turncredit.training.run import evaluate_run, train_run
    from turncredit.training.run_folder import RunPaths

    paths = RunPaths.under(root, config)
    services = ServiceSettings(settings.retriever_of(experiment), paths.index)
    train_run(config, services, paths)
    if settings.evaluate_in_training and config.launch.processes == 1:
        cached_evaluation.clear(paths)
        evaluate_run(paths.final_policy, config, services, data=paths.data,
                     output=cached_evaluation.cache_path(config, services, paths))
    shutdown()


@runs.command(rich_help_panel=PANEL)
def evaluate(experiment: ExperimentName, arm: ArmName, seed: Seed = 0, base: Base = 0, scale: ScaleName = "mini",
             root: Root = Path()) -> None:
    """Play all test questions with the trained policy of one run, or with the policy that was imported for it."""
    from turncredit.reporting.imported import check_checkpoint, imported_run
    from turncredit.tasks.plugin import ServiceSettings
    from turncredit.training import cached_evaluation
    from turncredit.training.lock import run_lock
    from turncredit.training.run_folder import RunPaths

    settings = scale_at(scale, root)
    config = settings.run(experiment, arm, seed, base)
    paths = RunPaths.under(root, config)
    services = ServiceSettings(settings.retriever_of(experiment), paths.index)
    imported = imported_run(root, config)
    policy, output = (imported / "policy", imported) if imported.exists() else (paths.final_policy, paths.run)
    if settings.evaluate_in_training and not imported.exists() and cached_evaluation.pop(
            cached_evaluation.cache_path(config, services, paths), output / "evaluation.csv"):
        return
    if imported.exists():
        check_checkpoint(imported)
    from turncredit.training.checkpoint import remove_all
    from turncredit.training.run import evaluate_run

    evaluate_run(policy, config, services, data=paths.data, output=output / "evaluation.csv")
    if not config.launch.keep_checkpoints and not imported.exists():
        with run_lock(paths.checkpoints):
            remove_all(paths.checkpoints)


@runs.command("evaluate-initial", rich_help_panel=PANEL)
def evaluate_initial(kind: Untrained, base: Base = 0, scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Play all test questions with a policy without RL training, greedily and sampled.

    All tasks are played. The column `experiment` names a task's first experiment.
    """
    settings = scale_at(scale, root)
    tasks = dict.fromkeys(e.task.name for e in settings.experiments.values())
    policy = root / base_folder(scale, base) / "expert" if kind is Untrained.EXPERT else None
    _evaluate_untrained(settings, root, kind, [experiment_of_task(settings, task) for task in tasks], policy,
                        ("greedy", "sampled"), base=base, closed_book=kind is Untrained.CLOSED_BOOK)


@runs.command("evaluate-checkpoint", rich_help_panel=PANEL)
def evaluate_checkpoint(name: Annotated[str, typer.Argument(help="one of the scale's `checkpoints`")],
                        scale: ScaleName = "paper", root: Root = Path()) -> None:
    """Play the test questions of a pretrained checkpoint's experiment, greedily."""
    settings = scale_at(scale, root)
    checkpoint = settings.checkpoint(name)
    _evaluate_untrained(settings, root, name, [checkpoint.experiment], root / "policy" / scale / "checkpoints" / name,
                        ("greedy",))


def _evaluate_untrained(scale: Scale, root: Path, name: str, experiments: list[str], policy: Path | None,
                        decodings: tuple[Literal["greedy", "sampled"], ...], *, base: int = 0,
                        closed_book: bool = False) -> None:
    """Evaluate a policy that was not trained here, as the run ``untrained/{name}``.

    Args:
        scale: configuration of the tasks and retrievers.
        root: the clone.
        name: name of the run's folder.
        experiments: names of the experiments whose tasks and test questions are played.
        policy: the policy's folder; None: the initial policy of each task.
        decodings: ways to decode; all questions are played with each.
        base: index of the base policy.
        closed_book: cut episodes to one turn, which cannot search.
    """
    import pandas as pd

    from turncredit.files import atomic
    from turncredit.tasks.plugin import ServiceSettings
    from turncredit.training.run import evaluate_run
    from turncredit.training.run_folder import RunPaths

    tables = []
    folder = root / "results" / scale.name / "untrained" / name / f"base-{base}"
    with TemporaryDirectory() as scratch:
        for experiment in experiments:
            config = scale.without_overrides(experiment, base)
            if closed_book:  # the only turn must answer
                config = config.model_copy(update={"task": config.task.model_copy(update={"max_turns": 1})})
            paths = RunPaths.under(root, config)
            played = Path(scratch, f"{experiment}.csv")
            evaluate_run(policy or paths.policy, config, ServiceSettings(scale.retriever_of(experiment), paths.index),
                         data=paths.data, output=played, decodings=decodings, parts=folder / f"{experiment}.parts")
            tables.append(pd.read_csv(played, dtype=str, keep_default_na=False).assign(experiment=experiment))
    with atomic(folder / "evaluation.csv") as temporary:
        pd.concat(tables).to_csv(temporary, index=False, lineterminator="\n")
