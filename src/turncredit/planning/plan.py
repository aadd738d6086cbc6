"""Plans every run of a scale: resources it needs, and faults that prevent it from running."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from turncredit.config.base import read_mapping
from turncredit.config.load import RunConfig, Scale
from turncredit.credit.base import make_estimator
from turncredit.data.sources import Registry, load_registry
from turncredit.distributed.slurm import SITE, Site
from turncredit.errors import ConfigError
from turncredit.planning.activations import update_peak
from turncredit.planning.catalogue import Assumptions, Catalogue, Gpu, Shape, load_catalogue, shape_of
from turncredit.planning.memory import (
    ACTIVATIONS,
    CRITIC,
    ENGINE,
    GATHERED,
    GIB,
    GRADIENTS,
    LOGITS,
    OPTIMIZER,
    REFERENCE,
    WEIGHTS,
    Memory,
    memory,
)
from turncredit.planning.workload import Hours, Speed, Workload, hours, workload
from turncredit.rollout.branching import branching_of

_MORE = "launch.processes: more, with an FSDP file in launch.accelerate"
REMEDIES = {
    WEIGHTS: _MORE, GRADIENTS: _MORE, GATHERED: "launch.precision: bfloat16, or a smaller policy.path_or_id",
    OPTIMIZER: "launch.offload: add optimizer", CRITIC: "launch.offload: add critic or optimizer",
    REFERENCE: "launch.offload: add reference",
    ACTIVATIONS: "training.micro_batch_tokens: fewer; or launch.gradient_checkpointing: true",
    LOGITS: "training.micro_batch_tokens: fewer", ENGINE: "engine.gpu_memory_utilization: less; or engine.sleep: true"}
CHECKPOINTS = 3  # two are kept; a third exists while it is saved
KEPT = 2  # after the run, with launch.keep_checkpoints


@dataclass(frozen=True)
class RunPlan:
    """The plan of one arm; all its runs need the same.

    Attributes:
        run: the resolved configuration of seed 0.
        count: number of its runs, of every seed from every base policy.
        gpu: its GPU model; None on a CPU or without ``launch.gpu``.
        critic, reference, sharded: see ``memory.memory``.
        load, memory, hours: work, memory and time; hours are None without a GPU.
        checkpoint_bytes: disk space of its checkpoints while it runs.
        kept_bytes: disk space of its checkpoints after its evaluation.
        final_bytes: disk space of the final policy.
        save_s: seconds of saving one checkpoint: it is written, then read again for its hash.
        warning_s: seconds that a run needs to save after a signal, which may arrive when an update begins; None
            without a GPU.
        faults: reasons why it cannot run, each with the key to change.
    """

    run: RunConfig
    count: int
    gpu: Gpu | None
    critic: bool
    reference: bool
    sharded: bool
    load: Workload
    memory: Memory
    hours: Hours | None
    checkpoint_bytes: int
    kept_bytes: int
    final_bytes: int
    save_s: float
    warning_s: float | None
    faults: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """The plans of all runs of a scale, or of the requested ones.

    Attributes:
        scale, shape, assumed: the scale, the shape of its policy, the assumptions.
        runs: one plan for each trained arm.
        downloads: bytes to download, as far as known.
    """

    scale: Scale
    shape: Shape
    assumed: Assumptions
    runs: tuple[RunPlan, ...]
    downloads: int

    def check(self) -> None:
        """Check that every run can run.

        Raises:
            ConfigError: lists every fault with the key to change.
        """
        faults = [f"{plan.run.experiment}/{plan.run.arm}: {fault}" for plan in self.runs for fault in plan.faults]
        if faults:
            raise ConfigError(f"scale {self.scale.name!r} cannot run as configured:\n  " + "\n  ".join(faults),
                              f"change the named keys; those without a file are in config/{self.scale.name}.yaml")


def make_plan(scale: Scale, root: Path, experiment: str | None = None, arm: str | None = None) -> Plan:
    """Plan every trained arm of a scale, of one experiment, or one arm.

    Raises:
        ConfigError: an unknown experiment, arm or GPU, or an unreadable file of config/ or of the SLURM site.
        DataError: the policy's shape is unknown.
    """
    config_dir = root / "config"
    catalogue = load_catalogue(config_dir)
    shape = shape_of(scale.policy, scale.policy.vocabulary, catalogue)
    registry = load_registry(root) if scale.questions else None
    if experiment is not None and (arm is not None or experiment not in scale.experiments):
        scale.run(experiment, arm or "", 0)  # raises for an unknown name
    wanted = dict.fromkeys(scale.identical(name, one) for name, settings in scale.experiments.items()
                           for one in settings.arms if experiment in (None, name) and arm in (None, one))
    warning_s = Site.read(root / SITE).warning_s
    found = [plan_run(scale, scale.run(*names, 0), shape, catalogue, config_dir, _pool(scale, registry, names[0]),
                      warning_s) for names in wanted]
    downloads = 0 if registry is None else sum(registry.sources[n].bytes for n in registry.needed(scale))
    return Plan(scale, shape, catalogue.assumptions, tuple(found), downloads)


def _pool(scale: Scale, registry: Registry | None, experiment: str) -> int | None:
    """Number of training questions of an experiment in the published data; None for generated questions."""
    if scale.questions is None or registry is None:
        return None
    rows = [sum(file.rows[data] for _, _, file in registry.files_of(data, "train"))
            for data in scale.experiments[experiment].train_on]
    limit = scale.questions.train_questions
    return sum(rows if limit is None else [min(limit, row) for row in rows])


def plan_run(scale: Scale, run: RunConfig, shape: Shape, catalogue: Catalogue, config_dir: Path,
             pool: int | None, warning_s: int) -> RunPlan:
    """Plan one arm.

    Args:
        scale, run: the scale, and the arm's configuration.
        shape: the policy's sizes.
        catalogue: GPUs and assumptions.
        config_dir: holds the files of accelerate.
        pool: number of training questions, if known.
        warning_s: how long before its limit SLURM warns a run.
    """
    estimator = make_estimator(run.algorithm, run.training)
    critic, reference = estimator.uses_critic, run.training.kl_coefficient > 0
    layout = _layout(run, config_dir)
    sharded = layout in ("FSDP", "DEEPSPEED")
    branching = branching_of(run.algorithm.rollout, run.task.max_turns, run.training)
    load = workload(run, branching, pool, catalogue.assumptions)
    gpu = None if run.launch.gpu is None else catalogue.gpu(run.launch.gpu)
    rows = max(1, run.training.micro_batch_tokens // run.task.max_context_tokens)
    length = run.task.max_context_tokens
    losses = min(rows * run.task.max_turns * run.task.max_turn_tokens, rows * (length - 1))
    peaks = [update_peak(shape.settings, rows=rows, length=length, loss_tokens=n, precision=run.launch.precision,
                         checkpointing=run.launch.gradient_checkpointing) for n in (1, losses)]
    footprint = memory(
        run, shape, critic=critic, reference=reference, sharded=sharded,
        gpu_bytes=GIB * gpu.memory_gib if gpu else 0.0, reserve=GIB * catalogue.assumptions.reserve_gib if gpu else 0.0,
        activations=peaks[0], logits=peaks[1] - peaks[0],
        sequences=-(-load.trajectories // run.launch.processes))
    duration = None
    if gpu is not None:
        assumed, settings = catalogue.assumptions, run.training
        validations = (scale.questions.validation_questions if scale.questions else 0) * len(run.train_on) * (
            1 + -(-settings.steps // settings.validate_every))
        speed = Speed(flops=1e12 * gpu.tflops * assumed.computing_share,
                      memory_bytes=1e9 * gpu.memory_gb_s * assumed.decoding_share, host_bytes=1e9 * assumed.host_gb_s)
        duration = hours(run, load, shape, speed, critic=critic, reference=reference, sharded=sharded,
                      validations=validations)
    saved = 12 * (shape.parameters + critic * shape.backbone)  # weights and the two moments of Adam
    save_s = 2 * saved / (1e9 * catalogue.assumptions.disk_gb_s)
    needed = None if duration is None else save_s + 3600 * (
        duration.scoring + duration.update + duration.traffic) / run.training.steps
    faults = [*_faults(run, shape, footprint, load, gpu, critic, layout)]
    if needed is not None and needed > warning_s:
        faults.append(f"{SITE}: warning_s = {warning_s}: an update and a save take {needed:.0f} s; set it to"
                      f" {math.ceil(needed / 60) * 60} or more")
    return RunPlan(run, scale.runs_of(run.experiment), gpu, critic, reference, sharded, load, footprint, duration,
                   CHECKPOINTS * saved, KEPT * saved * run.launch.keep_checkpoints, 4 * shape.parameters, save_s,
                   needed, tuple(faults))


def _layout(run: RunConfig, config_dir: Path) -> str:
    """The ``distributed_type`` in accelerate's file; "NO" without a file.

    Raises:
        ConfigError: the file does not exist.
    """
    if run.launch.accelerate is None:
        return "NO"
    path = config_dir / "accelerate" / f"{run.launch.accelerate}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in path.parent.glob("*.yaml")))
        raise ConfigError(f"launch.accelerate = {run.launch.accelerate!r}: {path} does not exist", f"known: {known}")
    return str(read_mapping(path).get("distributed_type", "NO"))


def _faults(run: RunConfig, shape: Shape, footprint: Memory, load: Workload, gpu: Gpu | None, critic: bool,
            layout: str) -> Iterator[str]:
    """Faults of a run, each with the key to change."""
    task, training, engine, launch = run.task, run.training, run.engine, run.launch
    if task.max_context_tokens > shape.longest:
        yield f"task.max_context_tokens = {task.max_context_tokens}: the policy's limit is {shape.longest}"
    if (asked := training.trajectories_per_step) is not None and asked < load.leaves:
        key = "tree_branching" if run.algorithm.rollout == "tree" and task.max_turns > 2 else "group_size"
        yield (f"training.trajectories_per_step = {asked}: one question has {load.leaves} trajectories;"
               f" raise it, or lower training.{key}")
    if training.minibatches > load.trajectories:
        yield f"training.minibatches = {training.minibatches}: a step has {load.trajectories} trajectories"
    if layout == "DEEPSPEED" and critic:
        yield (f"launch.accelerate = {launch.accelerate!r}: DeepSpeed trains one model, but {run.arm} has a critic;"
               " use FSDP")
    if layout == "NO" and launch.processes > 1:
        yield (f"launch.accelerate = {launch.accelerate!r}: for one process only, but launch.processes ="
               f" {launch.processes}")
    if engine.kind == "vllm":
        if engine.mode == "colocate" and launch.processes % engine.tensor_parallel:
            yield (f"engine.tensor_parallel = {engine.tensor_parallel}: does not divide launch.processes ="
                   f" {launch.processes}")
        if int(shape.settings["num_attention_heads"]) % engine.tensor_parallel:
            yield f"engine.tensor_parallel = {engine.tensor_parallel}: does not divide the policy's attention heads"
    if gpu is None:
        return
    capacity = GIB * gpu.memory_gib
    moment, peak = footprint.peak
    if peak > capacity:
        parts = footprint.gpu[moment]
        part = max((name for name in parts if name in REMEDIES), key=lambda name: parts[name])
        yield (f"{moment} needs {peak / GIB:.1f} GiB, a {launch.gpu} has {gpu.memory_gib} GiB; largest part: {part},"
               f" {parts[part] / GIB:.1f} GiB; {REMEDIES[part]}")
    if footprint.cache_tokens is not None and footprint.cache_tokens < task.max_context_tokens:
        yield (f"engine.gpu_memory_utilization = {engine.gpu_memory_utilization}: leaves room for a cache of"
               f" {max(footprint.cache_tokens, 0):.0f} tokens, fewer than task.max_context_tokens ="
               f" {task.max_context_tokens}; raise it, or engine.tensor_parallel")
    if (server := sum(footprint.server.values())) > capacity:
        yield (f"engine.gpu_memory_utilization = {engine.gpu_memory_utilization}: {server / GIB:.1f} GiB do not fit"
               " on a sampling GPU")
    when, host = footprint.host_peak
    if launch.host_memory_gib is not None and host > GIB * launch.host_memory_gib:
        yield (f"launch.host_memory_gib = {launch.host_memory_gib:g}: {when} needs {host / GIB:.0f} GiB of a node's"
               f" memory; launch.offload: less, or launch.nodes: more")
