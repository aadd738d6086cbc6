"""The ``turncredit`` command: one sub-command a rule of the workflow, each from files to files.

Heavy imports (torch, matplotlib) stand inside the commands, so that ``--help`` is quick and no
command loads what it does not use. An error that the user can mend is printed without a traceback
and gives its own exit code.
"""

from __future__ import annotations

import os
import sys
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

import typer

from turncredit.cli.options import Group, RetrieverName, Root, ScaleName, prepare_process, scale_at
from turncredit.cli.reports import reports
from turncredit.cli.show import app as show
from turncredit.config.load import Scale, scale_names
from turncredit.errors import ConfigError, nearest

app = typer.Typer(cls=Group, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
                  help="Turn-level credit assignment for multi-turn LLM agents: data, training, evaluation, reports.")
app.add_typer(reports)
app.add_typer(show)


class Warm(StrEnum):
    """A policy before reinforcement: the ceiling, or the flawed one where a task's arms start."""

    CLEAN = "clean"
    BASE = "base"


class Untrained(StrEnum):
    """What is evaluated before reinforcement; ``closed_book`` is the base policy without a retriever."""

    BASE = "base"
    CLEAN = "clean"
    CLOSED_BOOK = "closed_book"


@app.callback()
def _start() -> None:
    prepare_process()


@app.command("check-config")
def check_config(scale: Annotated[str | None, typer.Option(help="one scale; all by default")] = None,
                 root: Root = Path()) -> None:
    """Read and check the configuration, and list the runs of each experiment."""
    names = [scale] if scale else scale_names(root / "config")
    for name in names:
        found = scale_at(name, root)
        for experiment, settings in found.experiments.items():
            made = {arm: found.identical(experiment, arm) for arm in settings.arms}
            arms = [arm if where == (experiment, arm) else f"{arm} = {'/'.join(where)}" for arm, where in made.items()]
            typer.echo(f"{name}/{experiment}: seeds: {found.seeds_of(experiment)}, arms: {', '.join(arms)}")


@app.command()
def plan(experiment: Annotated[str | None, typer.Option(help="one experiment; all by default")] = None,
         arm: Annotated[str | None, typer.Option(help="one arm of it")] = None,
         output: Annotated[Path | None, typer.Option(help="and a CSV file of all numbers")] = None,
         scale: ScaleName = "paper", root: Root = Path()) -> None:
    """Say what each run needs: batch arithmetic, memory by part, hours, disk; refuse what cannot run."""
    from rich.console import Console

    from turncredit.files import write_text
    from turncredit.planning.plan import make_plan
    from turncredit.planning.show import tables, to_csv

    made = make_plan(scale_at(scale, root), root, experiment, arm)
    Console(width=None if sys.stdout.isatty() else 200).print(*tables(made), sep="\n")
    made.check()
    if output is not None:
        write_text(output, to_csv(made))


@app.command()
def world(scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Write the passages and questions of a scale: a world that is made here, or what was fetched."""
    from turncredit.miniature.build import build_world

    settings = scale_at(scale, root)
    if settings.questions is not None:
        prepare_data(scale, root)
    else:
        build_world(settings.made_world(), root / "data" / scale)


@app.command()
def fetch(names: Annotated[list[str] | None, typer.Argument(help="sources of config/sources.yaml")] = None,
          scale: Annotated[str | None, typer.Option(help="and all sources that this scale reads")] = None,
          verify: Annotated[bool, typer.Option("--verify", help="read what is here again and compare")] = False,
          root: Root = Path()) -> None:
    """Download sources, check them, and go on where an earlier call stopped; without a name, list them."""
    from turncredit.data.fetch import fetch as fetch_sources
    from turncredit.data.fetch import is_fetched
    from turncredit.data.sources import load_registry

    registry = load_registry(root)
    if not names and scale is None:
        for name, source in registry.sources.items():
            size = f"{source.bytes / 1e9:.2f} GB" if source.bytes else "size unknown"
            state = "here" if is_fetched(registry, name) else size
            typer.echo(f"{name:24} {state:>12}  {source.title}; licence: {source.licence}")
        return
    needed = registry.needed(scale_at(scale, root)) if scale is not None else []
    if scale is not None and not needed:
        typer.echo(f"scale {scale} reads no source: it makes its data itself")
    fetch_sources(registry, dict.fromkeys([*(names or ()), *needed]), verify=verify)


@app.command("prepare-data")
def prepare_data(scale: ScaleName = "paper", root: Root = Path()) -> None:
    """Turn fetched question sets and passages into the files of a scale with real questions."""
    from turncredit.data.prepare import prepare
    from turncredit.data.sources import load_registry

    prepare(scale_at(scale, root), load_registry(root), root / "data" / scale)


@app.command()
def passages(retriever: RetrieverName = None, scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Check the passages and write where each begins, for a dense retriever."""
    from turncredit.retrieval.build import IndexPaths, make_table

    make_table(IndexPaths.of(scale_at(scale, root), retriever, root))


@app.command()
def embed(shard: Annotated[int, typer.Option(help="which of retriever.faiss.shards, from 0")],
          retriever: RetrieverName = None, scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Encode one shard of the passages; a finished one is left as it is."""
    from turncredit.retrieval.build import IndexPaths, make_shard

    make_shard(IndexPaths.of(scale_at(scale, root), retriever, root), shard)


@app.command()
def index(retriever: RetrieverName = None, scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Build the index of the passages: Lucene's, or FAISS's from their vectors; or bring in one that was fetched."""
    from turncredit.retrieval.build import IndexPaths, make_index

    manifest = make_index(IndexPaths.of(scale_at(scale, root), retriever, root))
    typer.echo(f"{manifest.documents} passages in {manifest.seconds:.1f} s")


@app.command()
def serve(retriever: RetrieverName = None, scale: ScaleName = "mini", root: Root = Path(),
          host: Annotated[str | None, typer.Option(help="where it listens; retriever.server.host by default")] = None,
          port: Annotated[int, typer.Option(help="0 takes a free one")] = 0,
          linger_s: Annotated[float | None, typer.Option(
              help="publish the address for training jobs, and end when none used it for so long")] = None) -> None:
    """Serve an index behind Search-R1's /retrieve, until interrupted. Training starts its own server."""
    from turncredit.retrieval.build import IndexPaths
    from turncredit.retrieval.server import serve as serve_index

    paths = IndexPaths.of(scale_at(scale, root), retriever, root)
    serve_index(paths.index, paths.config, host=host, port=port, linger_s=linger_s)


@app.command()
def tokenizer(scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Train the tokenizer on the mini world, or take that of ``policy.path_or_id``."""
    from turncredit.miniature.warm_start import make_tokenizer

    make_tokenizer(root / "data" / scale, scale_at(scale, root).policy, root / "policy" / scale / "tokenizer")


@app.command("warm-start")
def warm_start(kind: Warm, task: Annotated[str, typer.Option(help="whose base policy")] = "search",
               scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Train a policy on demonstrations: the clean one from scratch, a base one from the clean one."""
    from turncredit.miniature.warm_start import make_base, make_clean

    settings = scale_at(scale, root)
    data, index, policy = (root / part / scale for part in ("data", "index", "policy"))
    if kind is Warm.CLEAN:
        make_clean(settings, data, index, policy / "tokenizer", policy / "clean")
    else:
        played = settings.experiments[_player(settings, task)].task
        make_base(settings, played, data, index, policy / "clean", policy / "base" / task)


@app.command("import-policy")
def import_policy(task: Annotated[str | None, typer.Option(help="task of the base policy")] = None,
                  checkpoint: Annotated[str | None, typer.Option(help="or one of the scale's checkpoints")] = None,
                  scale: ScaleName = "paper", root: Root = Path()) -> None:
    """Import a pretrained policy: the base policy of a scale without a warm start, or one of its checkpoints."""
    from turncredit.data.sources import load_registry
    from turncredit.policy import pretrained

    settings, registry = scale_at(scale, root), load_registry(root)
    if (task is None) == (checkpoint is None):
        raise ConfigError("import-policy: pass exactly one of --task and --checkpoint",
                          "see turncredit import-policy --help")
    if checkpoint is not None:
        source = settings.checkpoint(checkpoint)
        pretrained.import_policy(source.path_or_id, source.revision, registry,
                                 root / "policy" / scale / "checkpoints" / checkpoint)
    elif settings.warm_start is not None or settings.policy.path_or_id is None:
        raise ConfigError(f"scale {scale!r} makes its base policies itself",
                          f"turncredit warm-start base --task {task}")
    else:
        played = settings.experiments[_player(settings, str(task))].task.name
        pretrained.import_policy(settings.policy.path_or_id, settings.policy.revision, registry,
                                 root / "policy" / scale / "base" / played)


@app.command()
def train(experiment: Annotated[str, typer.Option()], arm: Annotated[str, typer.Option()],
          seed: Annotated[int, typer.Option()] = 0, scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Train one run to its end; interrupted, the same command goes on from the last checkpoint.

    Where ``launch.processes`` is above 1, it starts them, unless torchrun or accelerate already has.
    """
    settings = scale_at(scale, root)
    config = settings.run(experiment, arm, seed)
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


@app.command()
def evaluate(experiment: Annotated[str, typer.Option()], arm: Annotated[str, typer.Option()],
             seed: Annotated[int, typer.Option()] = 0, scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Play all test questions with one run's trained policy, or with the checkpoint that was imported for it."""
    from turncredit.reporting.imported import imported_run
    from turncredit.tasks.plugin import ServiceSettings
    from turncredit.training import cached_evaluation
    from turncredit.training.run_folder import RunPaths

    settings = scale_at(scale, root)
    config = settings.run(experiment, arm, seed)
    paths = RunPaths.under(root, config)
    services = ServiceSettings(settings.retriever_of(experiment), paths.index)
    brought = imported_run(root, config)
    policy, output = (brought / "policy", brought) if brought.exists() else (paths.final_policy, paths.run)
    if settings.evaluate_in_training and not brought.exists() and cached_evaluation.pop(
            cached_evaluation.cache_path(config, services, paths), output / "evaluation.csv"):
        return
    from turncredit.training.run import evaluate_run

    evaluate_run(policy, config, services, data=paths.data, output=output / "evaluation.csv")


@app.command("evaluate-base")
def evaluate_base(kind: Untrained, scale: ScaleName = "mini", root: Root = Path()) -> None:
    """Play all test questions with a policy before reinforcement, greedily and sampled.

    Each task is played, or ``search`` alone when closed book; the column ``experiment`` names one that has the task.
    """
    settings = scale_at(scale, root)
    tasks = ["search"] if kind is Untrained.CLOSED_BOOK else dict.fromkeys(
        e.task.name for e in settings.experiments.values())
    policy = root / "policy" / scale / "clean" if kind is Untrained.CLEAN else None
    _play(settings, root, kind, [_player(settings, task) for task in tasks], policy, ("greedy", "sampled"),
          closed_book=kind is Untrained.CLOSED_BOOK)


@app.command("evaluate-checkpoint")
def evaluate_checkpoint(name: Annotated[str, typer.Argument(help="one of the scale's checkpoints")],
                        scale: ScaleName = "paper", root: Root = Path()) -> None:
    """Play the test questions of its experiment with a policy that others trained."""
    settings = scale_at(scale, root)
    checkpoint = settings.checkpoint(name)
    _play(settings, root, name, [checkpoint.experiment], root / "policy" / scale / "checkpoints" / name, ("greedy",))


def _play(scale: Scale, root: Path, name: str, experiments: list[str], policy: Path | None,
          decodings: tuple[Literal["greedy", "sampled"], ...], *, closed_book: bool = False) -> None:
    """Evaluate a policy that no run here has trained (None: the base policy of each task) as ``base/{name}``."""
    import pandas as pd

    from turncredit.files import atomic
    from turncredit.tasks.plugin import ServiceSettings
    from turncredit.training.run import evaluate_run
    from turncredit.training.run_folder import RunPaths

    tables = []
    with TemporaryDirectory() as scratch:
        for experiment in experiments:
            config = scale.run(experiment, next(iter(scale.experiments[experiment].arms)), 0)
            if closed_book:  # the only turn must answer
                config = config.model_copy(update={"task": config.task.model_copy(update={"max_turns": 1})})
            paths = RunPaths.under(root, config)
            played = Path(scratch, f"{experiment}.csv")
            evaluate_run(policy or paths.policy, config, ServiceSettings(scale.retriever_of(experiment), paths.index),
                         data=paths.data, output=played, decodings=decodings)
            tables.append(pd.read_csv(played, dtype=str, keep_default_na=False).assign(experiment=experiment))
    with atomic(root / "results" / scale.name / "base" / name / "seed-0" / "evaluation.csv") as temporary:
        pd.concat(tables).to_csv(temporary, index=False, lineterminator="\n")


def _player(scale: Scale, task: str) -> str:
    """The first experiment that plays a task."""
    found = {e.task.name: name for name, e in reversed(scale.experiments.items())}
    if task not in found:
        raise ConfigError(f"no experiment plays the task {task!r} at scale {scale.name!r}", nearest(task, found))
    return found[task]
