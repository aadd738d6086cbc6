"""The plan of every run of a scale: what it needs, and why it cannot be run as it is configured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from turncredit.config.base import read_mapping
from turncredit.config.load import RunConfig, Scale
from turncredit.credit.base import make_estimator
from turncredit.data.sources import Registry, load_registry
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

_MORE = "launch.processes: more of them, with an FSDP file in launch.accelerate"
REMEDIES = {
    WEIGHTS: _MORE, GRADIENTS: _MORE, GATHERED: "launch.precision: bfloat16, or a smaller policy.path_or_id",
    OPTIMIZER: "launch.offload: add optimizer", CRITIC: "launch.offload: add critic or optimizer",
    REFERENCE: "launch.offload: add reference",
    ACTIVATIONS: "training.micro_batch_tokens: fewer; or launch.gradient_checkpointing: true",
    LOGITS: "training.micro_batch_tokens: fewer", ENGINE: "engine.gpu_memory_utilization: less; or engine.sleep: true"}
CHECKPOINTS = 3  # two are kept, and a third is there while it is saved


@dataclass(frozen=True)
class RunPlan:
    """One arm of an experiment; its seeds are alike.

    Attributes:
        run: resolved, of seed 0.
        seeds: how many there are.
        gpu: what its GPUs are; None on a CPU, or where ``launch.gpu`` does not say.
        critic, reference, sharded: see ``memory.memory``.
        load, memory, hours: what it does, holds and takes; hours are None without a GPU.
        checkpoint_bytes: of its checkpoints while it runs.
        final_bytes: of the policy that stays.
        faults: why it cannot run, each with the key to change.
    """

    run: RunConfig
    seeds: int
    gpu: Gpu | None
    critic: bool
    reference: bool
    sharded: bool
    load: Workload
    memory: Memory
    hours: Hours | None
    checkpoint_bytes: int
    final_bytes: int
    faults: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """All runs of a scale, or those that were asked for.

    Attributes:
        scale, shape, assumed: what the plan is of, and what it takes for granted.
        runs: each arm that is trained, once.
        downloads: bytes that are fetched, as far as they are known.
    """

    scale: Scale
    shape: Shape
    assumed: Assumptions
    runs: tuple[RunPlan, ...]
    downloads: int

    def check(self) -> None:
        """Refuse what cannot run.

        Raises:
            ConfigError: with every fault and the key to change.
        """
        faults = [f"{plan.run.experiment}/{plan.run.arm}: {fault}" for plan in self.runs for fault in plan.faults]
        if faults:
            raise ConfigError(f"scale {self.scale.name!r} cannot run as it is configured:\n  " + "\n  ".join(faults),
                              f"change the named keys in config/{self.scale.name}.yaml")


def make_plan(scale: Scale, root: Path, experiment: str | None = None, arm: str | None = None) -> Plan:
    """Plan every arm that is trained at a scale, or only those of an experiment, or one arm.

    Raises:
        ConfigError: no such experiment, arm or GPU, or a file of config/ that cannot be read.
        DataError: the policy's shape is not known.
    """
    config_dir = root / "config"
    catalogue = load_catalogue(config_dir)
    shape = shape_of(scale.policy, scale.policy.vocabulary, catalogue)
    registry = load_registry(root) if scale.questions else None
    if experiment is not None and (arm is not None or experiment not in scale.experiments):
        scale.run(experiment, arm or "", 0)  # refuses a name that is not there
    wanted = dict.fromkeys(scale.identical(name, one) for name, settings in scale.experiments.items()
                           for one in settings.arms if experiment in (None, name) and arm in (None, one))
    found = [plan_run(scale, scale.run(*names, 0), shape, catalogue, config_dir, _pool(scale, registry, names[0]))
             for names in wanted]
    downloads = 0 if registry is None else sum(registry.sources[n].bytes for n in registry.needed(scale))
    return Plan(scale, shape, catalogue.assumptions, tuple(found), downloads)


def _pool(scale: Scale, registry: Registry | None, experiment: str) -> int | None:
    """Training questions of an experiment as published; None where they are made here."""
    if scale.questions is None or registry is None:
        return None
    rows = [sum(file.rows[data] for _, _, file in registry.files_of(data, "train"))
            for data in scale.experiments[experiment].train_on]
    limit = scale.questions.train_questions
    return sum(rows if limit is None else [min(limit, row) for row in rows])


def plan_run(scale: Scale, run: RunConfig, shape: Shape, catalogue: Catalogue, config_dir: Path,
             pool: int | None) -> RunPlan:
    """The plan of one arm."""
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
    held = memory(
        run, shape, critic=critic, reference=reference, sharded=sharded,
        gpu_bytes=GIB * gpu.memory_gib if gpu else 0.0, reserve=GIB * catalogue.assumptions.reserve_gib if gpu else 0.0,
        activations=peaks[0], logits=peaks[1] - peaks[0],
        sequences=-(-load.trajectories // run.launch.processes))
    taken = None
    if gpu is not None:
        assumed, settings = catalogue.assumptions, run.training
        validations = (scale.questions.validation_questions if scale.questions else 0) * len(run.train_on) * (
            1 + -(-settings.steps // settings.validate_every))
        speed = Speed(flops=1e12 * gpu.tflops * assumed.computing_share,
                      memory_bytes=1e9 * gpu.memory_gb_s * assumed.decoding_share, host_bytes=1e9 * assumed.host_gb_s)
        taken = hours(run, load, shape, speed, critic=critic, reference=reference, sharded=sharded,
                      validations=validations)
    trained = shape.parameters + critic * shape.backbone
    return RunPlan(run, scale.seeds_of(run.experiment), gpu, critic, reference, sharded, load, held, taken,
                   CHECKPOINTS * 12 * trained, 4 * shape.parameters,
                   tuple(_faults(run, shape, held, load, gpu, critic, layout)))


def _layout(run: RunConfig, config_dir: Path) -> str:
    """The ``distributed_type`` of accelerate's file; NO without one.

    Raises:
        ConfigError: there is no such file.
    """
    if run.launch.accelerate is None:
        return "NO"
    path = config_dir / "accelerate" / f"{run.launch.accelerate}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in path.parent.glob("*.yaml")))
        raise ConfigError(f"launch.accelerate = {run.launch.accelerate!r}: no file {path}", f"known: {known}")
    return str(read_mapping(path).get("distributed_type", "NO"))


def _faults(run: RunConfig, shape: Shape, held: Memory, load: Workload, gpu: Gpu | None, critic: bool,
            layout: str) -> Iterator[str]:
    """Why a run cannot be made, each with the key to change."""
    task, training, engine, launch = run.task, run.training, run.engine, run.launch
    if task.max_context_tokens > shape.longest:
        yield f"task.max_context_tokens = {task.max_context_tokens}: the policy takes {shape.longest}"
    if (asked := training.trajectories_per_step) is not None and asked < load.leaves:
        key = "tree_branching" if any(b > 1 for b in load.branching[1:]) else "group_size"
        yield (f"training.trajectories_per_step = {asked}: one question has {load.leaves} trajectories;"
               f" raise it, or lower training.{key}")
    if training.minibatches > load.trajectories:
        yield f"training.minibatches = {training.minibatches}: a step has {load.trajectories} trajectories"
    if layout == "DEEPSPEED" and critic:
        yield f"launch.accelerate = {launch.accelerate!r}: DeepSpeed trains one model, {run.arm} has a critic; use FSDP"
    if layout == "NO" and launch.processes > 1:
        yield f"launch.accelerate = {launch.accelerate!r}: is for one process; launch.processes = {launch.processes}"
    if engine.kind == "vllm":
        if engine.mode == "colocate" and launch.processes % engine.tensor_parallel:
            yield (f"engine.tensor_parallel = {engine.tensor_parallel}: does not divide launch.processes ="
                   f" {launch.processes}")
        if int(shape.settings["num_attention_heads"]) % engine.tensor_parallel:
            yield f"engine.tensor_parallel = {engine.tensor_parallel}: does not divide the policy's attention heads"
    if gpu is None:
        return
    capacity = GIB * gpu.memory_gib
    moment, peak = held.peak
    if peak > capacity:
        parts = held.gpu[moment]
        part = max((name for name in parts if name in REMEDIES), key=lambda name: parts[name])
        yield (f"{peak / GIB:.1f} GiB on a {launch.gpu} with {gpu.memory_gib} GiB in {moment}, {part} the largest part"
               f" with {parts[part] / GIB:.1f}; {REMEDIES[part]}")
    if held.cache_tokens is not None and held.cache_tokens < task.max_context_tokens:
        yield (f"engine.gpu_memory_utilization = {engine.gpu_memory_utilization}: holds the weights and a cache of"
               f" {max(held.cache_tokens, 0):.0f} tokens, fewer than task.max_context_tokens ="
               f" {task.max_context_tokens}; raise it, or engine.tensor_parallel")
    if (server := sum(held.server.values())) > capacity:
        yield f"engine.gpu_memory_utilization = {engine.gpu_memory_utilization}: {server / GIB:.1f} GiB on its own GPU"
    when, host = held.host_peak
    if launch.host_memory_gib is not None and host > GIB * launch.host_memory_gib:
        yield (f"launch.host_memory_gib = {launch.host_memory_gib:g}: {host / GIB:.0f} GiB of a node's memory while"
               f" {when}; launch.offload: less, or launch.nodes: more")
