"""Trains one run and evaluates one policy, from files to files; called by the command line."""

from __future__ import annotations

import itertools
import json
import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from transformers.utils.logging import disable_progress_bar

from turncredit.config.load import RunConfig
from turncredit.config.training import TrainingConfig
from turncredit.credit.base import make_estimator
from turncredit.data.questions import evaluation_ids
from turncredit.distributed.processes import Processes
from turncredit.episodes.keep import EpisodeRecorder, kept_steps
from turncredit.episodes.records import episodes_path, read_records, step_episodes, write_records
from turncredit.errors import DataError
from turncredit.evaluation import Decoding, EpisodeRunner, evaluate, evaluation_rows
from turncredit.files import atomic, json_sha256, remove_unfinished, sha256
from turncredit.policy.attempts import read_attempts
from turncredit.policy.engines.base import Engine
from turncredit.policy.engines.make import make_engine
from turncredit.policy.model import Critic, load_policy, save_policy
from turncredit.policy.tokenizer import Codec
from turncredit.tasks.env import Service
from turncredit.tasks.plugin import ServiceSettings
from turncredit.tasks.registry import make_reward, make_task, plugin_of
from turncredit.training import checkpoint
from turncredit.training.interrupt import StopRequest, stoppable
from turncredit.training.learner import Learner
from turncredit.training.lock import run_lock
from turncredit.training.loop import Progress, Trainer
from turncredit.training.manifest import now, provenance, write_manifest
from turncredit.training.metrics import write_metrics
from turncredit.training.partial_evaluation import PART, Part, PartialEvaluation
from turncredit.training.run_folder import RunPaths, changed_settings
from turncredit.training.trackers import check_installed, metrics_logger
from turncredit.types import Item

_log = logging.getLogger(__name__)


def train_run(config: RunConfig, services: ServiceSettings, paths: RunPaths) -> None:
    """Train one run to its end, resuming from its newest checkpoint; all processes of the run call this.

    Writes ``checkpoints/final`` (a Hugging Face folder), and after it metrics.csv and manifest.json in
    the run's folder, so that a killed run never looks finished.

    Raises:
        ConfigError: the world size is not ``launch.processes``, or a tracker's package is missing.
        RunLockedError: another process writes to this run's folder.
        DataError: a data file is missing, changed or empty.
        CheckpointError: all checkpoints are damaged.
        Interrupted: SIGTERM or SIGUSR1 arrived; the state is saved.
        NonFiniteError: training diverged.
        TaskError: the task breaks its protocol (see ``TaskPlugin.check``).
        RetrieverError: the retriever cannot be reached.
        ProcessError: vLLM or another process of this run failed; all processes end.
    """
    set_threads(config)
    check_installed(config.launch.trackers)
    plugin = plugin_of(config.task.name)
    with ExitStack() as stack:
        processes = Processes.join(config.launch.processes, config.device)
        processes.on_rank_0(lambda: stack.enter_context(run_lock(paths.checkpoints)))
        processes.on_rank_0(lambda: remove_unfinished(paths.final_policy))
        stop = stack.enter_context(StopRequest().listening())
        pool, validation, test = processes.on_all_ranks(lambda: [
            plugin.read_items(paths.data, split, config.train_on if split != "test" else config.evaluate_on)
            for split in ("train", "validation", "test")])
        input_hashes = processes.on_rank_0(lambda: _inputs(paths))
        identity = _identity(config, services, input_hashes)
        exact = json_sha256([config.digest(), services.identity(), input_hashes])  # of checkpoints of older versions
        resumed = processes.on_rank_0(lambda: checkpoint.newest(paths.checkpoints, identity, exact))
        if processes.is_main and (changed := changed_settings(paths.checkpoints / "manifest.json", config)):
            _log.warning("%s: settings differ from those of the last start: %s", paths.checkpoints, "; ".join(changed))
        progress = Progress(started=now()) if resumed is None else Progress.load(resumed)
        if resumed is not None:
            progress = replace(progress, resumed_from=(*progress.resumed_from, progress.step))
        codec = Codec.load(paths.policy)
        estimator = make_estimator(config.algorithm, config.training)
        start = paths.policy if resumed is None else resumed / "policy"
        load_device = config.device if processes.world_size == 1 else "cpu"  # a GPU may be too small before sharding
        policy = load_policy(start, load_device)
        learner = Learner(
            policy, Critic(policy) if estimator.uses_critic else None,
            load_policy(paths.policy, load_device) if config.training.kl_coefficient else None,
            config.training, config.device, config.launch, processes)
        if resumed is not None:
            learner.load(resumed)
        manifest = _manifest(config, _base_policy(config, paths, input_hashes), input_hashes, test)
        running = {**manifest, **_status(progress, None)}
        processes.on_rank_0(lambda: write_manifest(paths.checkpoints / "manifest.json", running))

        opened = processes.on_all_ranks(lambda: stack.enter_context(plugin.open_services(config.task, services)))
        engine = processes.on_all_ranks(lambda: stack.enter_context(make_engine(
            config.engine, codec, policy=paths.policy,
            model=lambda: load_policy(start, config.device) if learner.layout.is_sharded else learner.policy,
            window=config.task.max_context_tokens, device=config.device, precision=config.launch.precision,
            folder=paths.checkpoints, local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            local_world_size=int(os.environ.get("LOCAL_WORLD_SIZE", "1")))))
        runner = make_runner(config, stoppable(engine, stop), opened, codec)
        logger = processes.on_all_ranks(lambda: stack.enter_context(
            metrics_logger(config, paths, identity, is_main=processes.is_main)))
        trainer = Trainer(config, runner, estimator, learner, pool, validation, paths.checkpoints, identity, stop,
                          processes, logger, EpisodeRecorder(config, codec))
        progress = trainer.train(progress)

        weights = learner.gather_weights()
        manifest |= _status(progress, now())

        def finish() -> None:
            save_policy(learner.policy, paths.final_policy, codec.tokenizer, weights)
            write_manifest(paths.checkpoints / "manifest.json", manifest)
            kept = (step_episodes(paths.checkpoints, step) for step in sorted(kept_steps(config.training.steps)))
            write_records(paths.run / "episodes.jsonl", [
                record for file in kept if file.exists() for record in read_records(file)])
            write_metrics(progress.rows, paths.run / "metrics.csv", plugin)
            write_manifest(paths.run / "manifest.json", manifest)
        processes.on_rank_0(finish)


def evaluate_run(policy: Path, config: RunConfig, services: ServiceSettings, *, data: Path, output: Path,
                 decodings: Sequence[Decoding] = ("greedy",), parts: Path | None = None) -> None:
    """Evaluate a policy on all test items and write evaluation.csv.

    Many items are played in parts (``partial_evaluation.PART``); after an interruption, finished parts are not played
    again.

    Args:
        policy: a Hugging Face folder with its tokenizer.
        config: task, device and engine; the arm only names the rows.
        services: settings of the task's services.
        data: the folder of the items.
        output: evaluation.csv; a manifest.json in the same folder must name the same evaluation items. A few whole
            episodes are written beside it (``episodes_path``).
        decodings: every item is played once with each.
        parts: folder of the finished parts; None: ``evaluation.parts`` beside ``output``.

    Raises:
        DataError: data are missing or changed, or the manifest names other items.
        CheckpointError: the policy cannot be read.
        TaskError: the task breaks its protocol (see ``TaskPlugin.check``).
        RetrieverError: the retriever cannot be reached.
    """
    plugin = plugin_of(config.task.name)
    items = plugin.read_items(data, "test", config.evaluate_on)
    _check_same_questions(output.parent / "manifest.json", items)
    starts = range(0, len(items), PART)
    kept = None
    if len(starts) > 1:
        weights = [sha256(path) for path in sorted(policy.glob("*.safetensors"))]
        kept = PartialEvaluation.open(parts or output.with_suffix(".parts"), json_sha256([
            config.digest(), services.identity(), weights, sha256(data / "world.json"), PART,
            [(item.dataset, item.id) for item in items]]))
    found: dict[Decoding, list[Part]] = {decoding: [] for decoding in decodings}
    with open_runner(policy, config, services, output.parent) as runner:
        recorder = EpisodeRecorder(config, runner.codec)
        for decoding, start in itertools.product(decodings, starts):
            name = f"{decoding}-{start:06d}"
            part = None if kept is None else kept.read(name)
            if part is None:
                if kept is not None:
                    runner.engine.reset_prefix_cache()  # a part does not depend on those before it
                episodes = evaluate(runner, items[start:start + PART], decoding, config.random_seed)
                part = Part(evaluation_rows(plugin, episodes, decoding), recorder.evaluation(episodes))
                if kept is not None:
                    kept.write(name, part)
            found[decoding].append(part)
    write_records(episodes_path(output), recorder.merged([
        record for part in found[decodings[0]] for record in part.examples]))
    table = pd.concat([pd.DataFrame.from_records([row for part in parts_of for row in part.rows])
                       for parts_of in found.values()])
    with atomic(output) as temporary:
        table.to_csv(temporary, index=False, lineterminator="\n")
    if kept is not None:
        kept.remove()


@contextmanager
def open_runner(policy: Path, config: RunConfig, services: ServiceSettings, folder: Path) -> Iterator[EpisodeRunner]:
    """A policy that plays a run's task without a trainer: in one process, on one GPU.

    Args:
        policy: a Hugging Face folder with its tokenizer.
        config: task, rewards, device and engine.
        services: settings of the task's services, which are open meanwhile.
        folder: for the engine's temporary files.

    Raises:
        CheckpointError: the policy cannot be read.
        RetrieverError: the retriever cannot be reached.
    """
    set_threads(config)
    codec = Codec.load(policy)
    engine_config = config.engine.model_copy(update={"mode": "colocate", "tensor_parallel": 1})
    with make_engine(engine_config, codec, policy=policy, model=lambda: load_policy(policy, config.device),
                     window=config.task.max_context_tokens, device=config.device, precision=config.launch.precision,
                     folder=folder) as engine, \
            plugin_of(config.task.name).open_services(config.task, services) as opened:
        yield make_runner(config, engine, opened, codec)


def make_runner(config: RunConfig, engine: Engine, services: Mapping[str, Service], codec: Codec) -> EpisodeRunner:
    """Return what plays the task of a run with ``engine`` and scores it with the run's rewards."""
    reward = make_reward(config.task, config.algorithm.content, config.rewards)
    return EpisodeRunner(plugin_of(config.task.name), make_task(config.task), reward, engine, services, codec)


def set_threads(config: RunConfig) -> None:
    """Set this process's torch threads, and turn off transformers' progress bars."""
    torch.set_num_threads(config.threads)
    disable_progress_bar()


def _inputs(paths: RunPaths) -> dict[str, str]:
    """Return the sha256 of every input file that affects the result."""
    files = {f"policy/{path.name}": path for pattern in ("*.safetensors", "tokenizer.json")
             for path in sorted(paths.policy.glob(pattern))}
    files |= {path.relative_to(paths.data).as_posix(): path for path in sorted(paths.data.glob("questions/*.jsonl"))}
    return {name: sha256(path) for name, path in (files | {"world.json": paths.data / "world.json"}).items()}


def _base_policy(config: RunConfig, paths: RunPaths, input_hashes: Mapping[str, str]) -> dict[str, Any]:
    """Return the index of the base policy, the hashes of its weights, and how a warm start made it, if one did."""
    weights = {name: digest for name, digest in input_hashes.items() if name.endswith(".safetensors")}
    made = [{"warm_start_seed": attempt.warm_start_seed, "measured": {
                name: value for name, value in attempt.measured.items() if math.isfinite(value)}}
            for attempt in read_attempts(paths.base_policy) if not attempt.failed]
    return {"index": config.base, "weights_sha256": weights, **(made[0] if made else {})}


def _identity(config: RunConfig, services: ServiceSettings, input_hashes: Mapping[str, str]) -> str:
    """Return a hash of configuration and inputs; a checkpoint resumes only under the same one.

    How often a run saves and validates changes no weight, so it may be changed while the run waits.
    """
    every = TrainingConfig.model_fields
    usual = {name: every[name].default for name in ("checkpoint_every", "validate_every")}
    same = config.model_copy(update={"training": config.training.model_copy(update=usual)})
    return json_sha256([same.digest(), services.identity(), dict(input_hashes)])


def _manifest(config: RunConfig, base_policy: Mapping[str, Any], input_hashes: Mapping[str, str],
              test: Sequence[Item]) -> dict[str, Any]:
    """Return the fields of the manifest that are known before training."""
    return {"config": config.model_dump(mode="json"), "config_sha256": config.digest(), "seed": config.seed,
            "base_policy": dict(base_policy), "data": dict(input_hashes),
            "evaluation_ids_sha256": evaluation_ids(test), **provenance()}


def _status(progress: Progress, ended: str | None) -> dict[str, Any]:
    """Return the fields of the manifest that change while the run trains."""
    return {"state": "running" if ended is None else "finished", "started": progress.started, "ended": ended,
            "resumed_from": list(progress.resumed_from), "steps": progress.step}


def _check_same_questions(manifest: Path, items: Sequence[Item]) -> None:
    if not manifest.exists():
        return
    try:
        trained_for = json.loads(manifest.read_text(encoding="utf-8"))["evaluation_ids_sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{manifest}: cannot be read: {error!r}",
                        f"remove {manifest.parent} and the folder of the same name under checkpoints/, "
                        "and train the run again") from error
    if trained_for != evaluation_ids(items):
        raise DataError(f"{manifest}: the evaluation questions changed since training",
                        "train the run again, or restore the data")
