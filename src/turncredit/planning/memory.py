"""Memory of a run by part and moment, on one GPU and in the host of one node, in bytes.

Trained weights, their gradients and the two moments of Adam are float32, 16 bytes a weight
(DeepSpeed keeps bfloat16 beside float32 and comes to the same). Where weights are sharded, a process
keeps its part of each and gathers a layer at a time in the precision of the forward pass.
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
    """What lies where.

    Attributes:
        gpu: moment -> part -> bytes, on one training GPU.
        server: part -> bytes, on one GPU of a server that only samples; empty where there is none.
        host: moment -> part -> bytes, in the memory of one node.
        cache_tokens: tokens whose keys and values fit beside the weights of one copy of the policy; None for ``hf``.
    """

    gpu: Mapping[str, Mapping[str, float]]
    server: Mapping[str, float]
    host: Mapping[str, Mapping[str, float]]
    cache_tokens: float | None

    @property
    def peak(self) -> tuple[str, float]:
        """The moment that needs most of a training GPU, and its bytes."""
        return _largest(self.gpu)

    @property
    def host_peak(self) -> tuple[str, float]:
        """The same of a node's memory."""
        return _largest(self.host)


def _largest(moments: Mapping[str, Mapping[str, float]]) -> tuple[str, float]:
    moment = max(moments, key=lambda name: sum(moments[name].values()))
    return moment, sum(moments[moment].values())


def memory(run: RunConfig, shape: Shape, *, critic: bool, reference: bool, sharded: bool, gpu_bytes: float,
           reserve: float, activations: float, logits: float, sequences: int) -> Memory:
    """The memory of a run.

    Args:
        run: gives engine and launch.
        shape: of the policy; the critic has its backbone.
        critic, reference: whether there is one.
        sharded: whether weights are cut over the processes.
        gpu_bytes: of one GPU.
        reserve: bytes that neither weights nor tensors take.
        activations, logits: of the largest micro-batch (``activations.update_peak``).
        sequences: episodes that one process samples side by side with ``hf``.
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
    # Of a sharded module: embeddings and head all the while, one layer and the next; gradients of a layer and of those.
    gathered = size * (2 * shape.outside + 3 * shape.layer) if sharded else size * shape.parameters * (size == 2)
    one_copy = 2 if engine.kind == "vllm" else 4
    share = engine.gpu_memory_utilization * gpu_bytes
    cache_tokens = None
    if engine.kind == "vllm":
        here = share if engine.mode == "colocate" else 0.0
        weights = one_copy * shape.parameters / engine.tensor_parallel
        cache_tokens = (share - weights) * engine.tensor_parallel / (2 * shape.cached)
    else:
        copy = 4.0 * shape.parameters if sharded else 0.0  # whole weights beside the sharded ones
        here = copy + sequences * run.task.max_context_tokens * shape.cached * 4
    stays = here if engine.kind == "vllm" and not engine.sleep else 0.0
    update = resident | {GATHERED: gathered, ACTIVATIONS: activations, LOGITS: logits, ENGINE: stays}
    if not sharded:  # what is offloaded comes back while it is used
        update[OPTIMIZER] = 8 * shape.parameters
        if "reference" in away and reference:
            update[REFERENCE] = 0.0  # asked before the update, when gradients and activations are not there
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
    return {ENGINE: max(share, weights), RESERVE: reserve}  # its copy of the weights, and keys and values


def _host(run: RunConfig, shape: Shape, critic: bool, reference: bool, sharded: bool) -> dict[str, dict[str, float]]:
    """One node's memory while models are loaded, whole and by each process, and while they train.

    A layout that is not sharded keeps what is offloaded once a process.
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
