"""Estimates the memory of a run in bytes, by part and moment, on one GPU and on the host of one node.

Trained weights, their gradients and the two moments of Adam are float32: 16 bytes per weight (DeepSpeed, which keeps a
bfloat16 copy, needs the same). With sharding, each process holds one shard of every weight and gathers one layer at a
time in the precision of the forward pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from turncredit.config.load import RunConfig
from turncredit.planning.catalogue import Shape

GIB = 2**30
MOMENTS = ("sampling", "policy's update", "critic's update")
WEIGHTS, GRADIENTS, OPTIMIZER, CRITIC, REFERENCE, GATHERED, ACTIVATIONS, LOGITS, ENGINE, RESERVE = PARTS = (
    "policy's weights", "gradients", "optimiser", "critic", "reference", "gathered layers", "activations", "logits",
    "sampling engine", "reserve")


@dataclass(frozen=True)
class Memory:
    """Memory by place, moment and part.

    Attributes:
        gpu: moment -> part -> bytes on one training GPU.
        server: part -> bytes on one GPU of a sampling server; empty without a server.
        host: moment -> part -> bytes in the memory of one node.
        cache_tokens: tokens whose keys and values fit beside one copy of the policy's weights; None for ``hf``.
    """

    gpu: Mapping[str, Mapping[str, float]]
    server: Mapping[str, float]
    host: Mapping[str, Mapping[str, float]]
    cache_tokens: float | None

    @property
    def peak(self) -> tuple[str, float]:
        """The moment with the largest demand on a training GPU, and its bytes."""
        return _largest(self.gpu)

    @property
    def host_peak(self) -> tuple[str, float]:
        """The moment with the largest demand on a node's memory, and its bytes."""
        return _largest(self.host)


def _largest(moments: Mapping[str, Mapping[str, float]]) -> tuple[str, float]:
    moment = max(moments, key=lambda name: sum(moments[name].values()))
    return moment, sum(moments[moment].values())


def memory(run: RunConfig, shape: Shape, *, critic: bool, reference: bool, sharded: bool, gpu_bytes: float,
           reserve: float, activations: float, logits: float, sequences: int) -> Memory:
    """Estimate the memory of a run.

    Args:
        run: the run, for its engine and launch settings.
        shape: the policy's sizes; the critic has the same backbone.
        critic, reference: whether the run has one.
        sharded: whether weights are sharded over the processes.
        gpu_bytes: memory of one GPU.
        reserve: bytes for other uses, such as CUDA contexts.
        activations, logits: bytes of the largest micro-batch (``activations.update_peak``).
        sequences: episodes that one process samples concurrently with ``hf``.
    """
    launch, engine = run.launch, run.engine
    parts = launch.processes if sharded else 1
    size = 2 if launch.precision == "bfloat16" else 4
    away = {*launch.offload}
    host_trained = sharded and bool({"parameters", "optimizer"} & away)
    host_critic = host_trained or "critic" in away
    backbone = shape.backbone * critic

    resident = {
        WEIGHTS: 0.0 if host_trained else 4 * shape.parameters / parts,
        GRADIENTS: 0.0 if host_trained else 4 * shape.parameters / parts,
        OPTIMIZER: 0.0 if host_trained or "optimizer" in away else 8 * shape.parameters / parts,
        CRITIC: 0.0 if host_critic else (8 if "optimizer" in away else 16) * backbone / parts,
        REFERENCE: 0.0 if "reference" in away or not reference else 4 * shape.parameters / parts,
        RESERVE: reserve}
    # Gathered from shards: embeddings and head with their gradients; two layers, and the gradients of one.
    gathered = size * (2 * shape.outside + 3 * shape.layer) if sharded else size * shape.parameters * (size == 2)
    one_copy = 2 if engine.kind == "vllm" else 4
    share = engine.gpu_memory_utilization * gpu_bytes
    cache_tokens = None
    if engine.kind == "vllm":
        here = share if engine.mode == "colocate" else 0.0
        weights = one_copy * shape.parameters / engine.tensor_parallel
        cache_tokens = (share - weights) * engine.tensor_parallel / (2 * shape.cached)
    else:
        copy = 4.0 * shape.parameters if sharded else 0.0  # a full copy beside the shards
        here = copy + sequences * run.task.max_context_tokens * shape.cached * 4
    stays = here if engine.kind == "vllm" and not engine.sleep else 0.0
    update = resident | {GATHERED: gathered, ACTIVATIONS: activations, LOGITS: logits, ENGINE: stays}
    if not sharded:  # offloaded parts return to the GPU while in use
        update[OPTIMIZER] = 8 * shape.parameters
        if "reference" in away and reference:
            update[REFERENCE] = 0.0  # used before the update, without gradients and activations
    moments = {MOMENTS[0]: resident | {ENGINE: here}, MOMENTS[1]: update}
    if critic:
        theirs = update | {LOGITS: 0.0}
        if not sharded:
            theirs |= {OPTIMIZER: resident[OPTIMIZER], CRITIC: 16.0 * backbone}
        moments[MOMENTS[2]] = theirs
    return Memory(moments, _server(run, shape, share, reserve), _host(run, shape, critic, reference, sharded),
                  cache_tokens)


def _server(run: RunConfig, shape: Shape, share: float, reserve: float) -> dict[str, float]:
    if run.engine.mode != "server":
        return {}
    weights = 2 * shape.parameters / run.engine.tensor_parallel
    return {ENGINE: max(share, weights), RESERVE: reserve}  # a copy of the weights, and the key-value cache


def _host(run: RunConfig, shape: Shape, critic: bool, reference: bool, sharded: bool) -> dict[str, dict[str, float]]:
    """One node's memory while loading (every process reads the full models) and while training.

    Without sharding each process keeps its own copy of offloaded parts.
    """
    launch = run.launch
    copies = 1 / launch.nodes if sharded else launch.processes / launch.nodes
    away, trained = {*launch.offload}, sharded and bool({"parameters", "optimizer"} & {*launch.offload})
    held: dict[str, float] = {}
    if trained:
        held = {WEIGHTS: 4, GRADIENTS: 4, OPTIMIZER: 8}
    elif "optimizer" in away:
        held = {OPTIMIZER: 8}
    found = {part: copies * size * shape.parameters for part, size in held.items()}
    if critic and (trained or away & {"critic", "optimizer"}):
        found[CRITIC] = copies * shape.backbone * (16 if trained or "critic" in away else 8)
    if reference and "reference" in away:
        found[REFERENCE] = copies * 4 * shape.parameters
    each = 4 * launch.processes / launch.nodes
    loading = {WEIGHTS: each * shape.parameters, CRITIC: each * critic * shape.backbone,
               REFERENCE: each * reference * shape.parameters}
    return {"loading": loading, "training": found}
