"""Layouts: how weights, gradients and optimiser states are distributed over the ranks of a run.

``Replicated``: every rank holds full weights, gradients are summed. ``Sharded``: PyTorch's
``fully_shard`` (FSDP 2). ``Zero``: DeepSpeed ZeRO. All of them take a step with the gradient that one
process would have. All ranks call every method together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from turncredit.config.runtime import LaunchConfig, Offload
from turncredit.distributed.processes import Processes
from turncredit.errors import CheckpointError, ConfigError

MakeOptimizer = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
_CPU = torch.device("cpu")


class Replicated:
    """Full weights on every rank; one process is the simplest case.

    Args:
        accelerator: gives the device.
        launch: precision and offload.
        processes: the run's process group, over which gradients are reduced.
        max_norm: gradients are clipped to this norm.

    Raises:
        ConfigError: the layout does not support an option of ``launch``.
    """

    is_sharded = False
    loss_scale = 1.0  # factor of each loss that makes the reduction over ranks a sum

    def __init__(self, accelerator: Accelerator, launch: LaunchConfig, processes: Processes, max_norm: float) -> None:
        self.accelerator, self.launch, self.processes, self.max_norm = accelerator, launch, processes, max_norm
        self._refuse_offload("parameters", "every rank needs the full weights", "use an FSDP file in launch.accelerate")

    @property
    def device(self) -> torch.device:
        """The device of this rank."""
        return self.accelerator.device

    def prepare(self, module: nn.Module, make_optimizer: MakeOptimizer,
                component: Offload | None = None) -> tuple[Any, Any]:
        """Place a trained module and make its optimiser; ``component`` is the module's name in ``launch.offload``."""
        optimizer = make_optimizer(module.parameters())
        module.to(_CPU if component in self.launch.offload else self.device)
        return module, self.accelerator.prepare_optimizer(optimizer)

    def freeze(self, module: nn.Module, component: Offload) -> Any:
        """Place a frozen module."""
        return module.requires_grad_(False).to(_CPU if component in self.launch.offload else self.device)

    @contextmanager
    def onload(self, module: nn.Module, component: Offload | None, optimizer: Any = None) -> Iterator[None]:
        """Keep an offloaded module (and its optimiser's state) on the device while the block runs."""
        move_module = component in self.launch.offload
        move_states = optimizer is not None and (move_module or "optimizer" in self.launch.offload)
        if move_module:
            module.to(self.device)
        if move_states:
            _move_states(optimizer, self.device)
        try:
            yield
        finally:
            if move_module:
                module.to(_CPU)
            if move_states:
                _move_states(optimizer, _CPU)
            if (move_module or move_states) and self.device.type == "cuda":
                torch.cuda.empty_cache()  # for a colocated engine, which has its own allocator

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the loss's gradient; ``last``: the last micro-batch of an optimiser step."""
        self.accelerator.backward(loss * self.loss_scale if self.loss_scale != 1 else loss)

    def clip_gradients(self, module: nn.Module) -> float:
        """Sum the gradients over ranks and clip them; return their norm before clipping."""
        if self.processes.world_size > 1:
            for parameter in module.parameters():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)
        return float(self.accelerator.clip_grad_norm_(module.parameters(), self.max_norm))

    @contextmanager
    def full(self, tensor: Tensor) -> Iterator[Tensor]:
        """Gather a tensor; the full tensor is valid on every rank while the block runs."""
        yield tensor.detach()

    def shard(self, tensor: Tensor, like: Tensor) -> Tensor:
        """Return this rank's shard of a full tensor, laid out as ``like``."""
        return tensor

    def full_weights(self, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """Yield a module's full weights by name, one at a time; tied weights are one tensor under each name.

        All ranks must iterate to the end, because they gather each weight together.
        """
        stored, names = module.state_dict(keep_vars=True), dict[int, list[str]]()
        for name, tensor in stored.items():
            names.setdefault(id(tensor), []).append(name)
        for tied in names.values():
            with self.full(stored[tied[0]]) as tensor:
                for name in tied:
                    yield name, tensor

    def gather_weights(self, module: nn.Module) -> dict[str, Tensor]:
        """Return all full weights in CPU memory on rank 0, {} on other ranks; tied weights are one tensor."""
        weights: dict[str, Tensor] = {}
        last, copy = torch.empty(0), torch.empty(0)
        for name, tensor in self.full_weights(module):
            if self.processes.is_main:
                if tensor is not last:
                    last, copy = tensor, tensor.to(_CPU)
                weights[name] = copy
        return weights

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Return the optimiser's full state on rank 0, in the format of one process; other ranks get no tensors."""
        state = optimizer.state_dict()
        full_state: dict[int, dict[str, Any]] = {}
        for number, entry in state["state"].items():
            full_state[number] = {}
            for name, value in entry.items():
                with self.full(value) as tensor:
                    if self.processes.is_main:
                        full_state[number][name] = tensor.to(_CPU) if self.is_sharded else tensor
        return {**state, "state": full_state}

    def load_optimizer(self, optimizer: Any, state: dict[str, Any]) -> None:
        """Load a result of ``optimizer_state``, on any number of ranks."""
        owners = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        shards = {number: {name: self.shard(value, owners[number])
                           if isinstance(value, Tensor) and value.shape == owners[number].shape else value
                           for name, value in entry.items()} for number, entry in state["state"].items()}
        optimizer.load_state_dict({**state, "state": shards})

    @torch.no_grad()
    def load_weights(self, module: nn.Module, weights: Mapping[str, Tensor]) -> None:
        """Load a result of ``gather_weights``.

        Raises:
            CheckpointError: a weight is missing or has another shape.
        """
        for name, tensor in module.state_dict(keep_vars=True).items():
            if name not in weights or weights[name].shape != tensor.shape:
                raise CheckpointError(f"the checkpoint has no weight {name} of shape {tuple(tensor.shape)}",
                                      "remove the run's checkpoints to train from the start")
            tensor.copy_(self.shard(weights[name], tensor))

    def save_extra(self, folder: Path) -> None:
        """Write state that only this layout can read; nothing here."""

    def load_extra(self, folder: Path) -> None:
        """Load the files of ``save_extra``."""

    def _refuse_offload(self, component: Offload, reason: str, remedy: str) -> None:
        if component in self.launch.offload:
            raise ConfigError(f"launch.offload: {component!r} is not supported here: {reason}", remedy)


class Sharded(Replicated):
    """Weights, gradients and optimiser states sharded along their first dimension.

    A layer's weights are gathered while it computes. What ``launch.offload`` names stays in CPU
    memory: layers move to the device one by one, and the optimiser steps on the CPU ("optimizer" and
    "parameters" go together).
    """

    is_sharded = True

    def __init__(self, accelerator: Accelerator, launch: LaunchConfig, processes: Processes, max_norm: float) -> None:
        self.accelerator, self.launch, self.processes, self.max_norm = accelerator, launch, processes, max_norm
        self.loss_scale = float(processes.world_size)  # fully_shard averages gradients over ranks
        self._mesh = init_device_mesh(self.device.type, (processes.world_size,))
        self._plugin = FullyShardedDataParallelPlugin()  # accelerate's file, read from the environment
        self._offload_all = offloads_all(self._plugin)

    def prepare(self, module: nn.Module, make_optimizer: MakeOptimizer,
                component: Offload | None = None) -> tuple[Any, Any]:
        """See ``Replicated.prepare``. Sharding replaces the parameters, so the optimiser is made after it."""
        offloaded = {component, "parameters", "optimizer"} & {*self.launch.offload}
        self._fully_shard(module, offload=bool(offloaded) or self._offload_all)
        optimizer = make_optimizer(module.parameters())
        return module, self.accelerator.prepare_optimizer(optimizer, device_placement=False)

    def freeze(self, module: nn.Module, component: Offload) -> Any:
        """See ``Replicated.freeze``."""
        self._fully_shard(module.requires_grad_(False),
                          offload=component in self.launch.offload or self._offload_all)
        return module

    @contextmanager
    def onload(self, module: nn.Module, component: Offload | None, optimizer: Any = None) -> Iterator[None]:
        """See ``Replicated.onload``. FSDP moves layers itself; gathered weights are freed when the block ends."""
        try:
            yield
        finally:
            assert isinstance(module, FSDPModule)
            module.reshard()

    def clip_gradients(self, module: nn.Module) -> float:
        """See ``Replicated.clip_gradients``; the backward pass has already reduced the gradients."""
        norm = torch.nn.utils.clip_grad_norm_(list(module.parameters()), self.max_norm)
        with self.full(norm) as full_norm:
            return float(full_norm)

    @contextmanager
    def full(self, tensor: Tensor) -> Iterator[Tensor]:
        """See ``Replicated.full``."""
        local = tensor.detach()
        yield cast(DTensor, local.to(self.device.type)).full_tensor() if isinstance(local, DTensor) else local

    def shard(self, tensor: Tensor, like: Tensor) -> Tensor:
        """See ``Replicated.shard``; each rank cuts its own shard, nothing is sent."""
        if not isinstance(like, DTensor):
            return tensor
        sharded = distribute_tensor(tensor.to(self.device), like.device_mesh, like.placements, src_data_rank=None)
        return sharded.to(like.device)

    def _fully_shard(self, module: nn.Module, *, offload: bool) -> None:
        """Shard each layer of the transformer, and then the other weights, in place."""
        half = torch.bfloat16 if self.launch.precision == "bfloat16" else None
        settings: dict[str, Any] = {
            "mesh": self._mesh,
            "mp_policy": MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32 if half else None),
            # on a CPU device there is nothing to offload to
            "offload_policy": CPUOffloadPolicy() if offload and self.device.type != "cpu" else OffloadPolicy()}
        layer_names = {name for child in module.modules() if isinstance(child, PreTrainedModel)
                       for name in child._no_split_modules or ()}
        for layer in [child for child in module.modules() if type(child).__name__ in layer_names]:
            fully_shard(layer, reshard_after_forward=self._plugin.reshard_after_forward, **settings)
        fully_shard(module, **settings)


class Zero(Replicated):
    """DeepSpeed ZeRO through accelerate; DeepSpeed runs the backward pass, the clipping and the step.

    It trains one module, so no critic. A checkpoint resumes only with the number of ranks that saved it.
    """

    is_sharded = True

    def __init__(self, accelerator: Accelerator, launch: LaunchConfig, processes: Processes, max_norm: float) -> None:
        self.accelerator, self.launch, self.processes, self.max_norm = accelerator, launch, processes, max_norm
        self.loss_scale = float(processes.world_size)  # DeepSpeed averages gradients over ranks
        for component in ("parameters", "optimizer"):
            self._refuse_offload(component, "DeepSpeed does not read it",
                                 "set offload_*_device in the file of launch.accelerate")
        self._engine: Any = None

    def prepare(self, module: nn.Module, make_optimizer: MakeOptimizer,
                component: Offload | None = None) -> tuple[Any, Any]:
        """See ``Replicated.prepare``.

        Raises:
            ConfigError: a second module is to be trained.
        """
        if self._engine is not None:
            raise ConfigError("DeepSpeed trains one module, but this arm has a critic",
                              "use an FSDP file in launch.accelerate for arms with a critic")
        plugin = self.accelerator.state.deepspeed_plugin
        # Micro-batches are packed by tokens; DeepSpeed uses this number only to derive others that it logs.
        plugin.deepspeed_config |= {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": self.max_norm}
        self._engine, optimizer = self.accelerator.prepare(module, make_optimizer(module.parameters()))
        return self._engine, optimizer

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """See ``Replicated.backward``; the last micro-batch also takes DeepSpeed's step."""
        self.accelerator.sync_gradients = last
        super().backward(loss, last=last)

    def clip_gradients(self, module: nn.Module) -> float:
        """See ``Replicated.clip_gradients``; DeepSpeed has already clipped."""
        return float(self._engine.get_global_grad_norm())

    @contextmanager
    def full(self, tensor: Tensor) -> Iterator[Tensor]:
        """See ``Replicated.full``."""
        from deepspeed.zero import GatheredParameters

        with GatheredParameters([tensor] if isinstance(tensor, nn.Parameter) else []):
            yield tensor.detach()

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Return {}: DeepSpeed writes its own files (``save_extra``)."""
        return {}

    def load_optimizer(self, optimizer: Any, state: dict[str, Any]) -> None:
        """See ``optimizer_state``."""

    def save_extra(self, folder: Path) -> None:
        """Write DeepSpeed's checkpoint."""
        self._engine.save_checkpoint(str(folder), tag="zero")

    def load_extra(self, folder: Path) -> None:
        """Load DeepSpeed's checkpoint.

        Raises:
            CheckpointError: it is missing or was saved by another number of ranks.
        """
        saved = len(list(folder.glob("zero/*_optim_states.pt")))
        if saved != self.processes.world_size:
            raise CheckpointError(
                f"{folder}: DeepSpeed saved it on {saved} processes, but {self.processes.world_size} are running",
                f"set launch.processes to {saved}, or remove the checkpoints to train from the start")
        self._engine.load_checkpoint(str(folder), tag="zero")


def make_layout(accelerator: Accelerator, launch: LaunchConfig, processes: Processes, max_norm: float) -> Replicated:
    """Make the layout that the environment selects (``accelerate launch`` sets it from its file)."""
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        return Zero(accelerator, launch, processes, max_norm)
    if processes.world_size > 1 and os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        return Sharded(accelerator, launch, processes, max_norm)
    return Replicated(accelerator, launch, processes, max_norm)


def offloads_all(plugin: FullyShardedDataParallelPlugin) -> bool:
    """Whether accelerate's file sets ``fsdp_offload_params``; the plugin's policy is never None."""
    return isinstance(plugin.cpu_offload, CPUOffloadPolicy)


def _move_states(optimizer: Any, device: torch.device) -> None:
    """Move an optimiser's moments; its step counters stay where they are."""
    for entry in optimizer.state.values():
        for name, value in entry.items():
            if isinstance(value, Tensor) and value.ndim:
                entry[name] = value.to(device)


def local_packs(packs: Sequence[Any], processes: Processes) -> list[tuple[Any, bool]]:
    """Return this rank's packs, each with a flag: True if its loss is counted.

    All ranks get equally many, because sharded passes are collective: a rank with one pack fewer
    repeats the last pack, which is not counted (its loss has weight 0).

    >>> local_packs("abc", Processes(0, 2)), local_packs("abc", Processes(1, 2))
    ([('a', True), ('c', True)], [('b', True), ('c', False)])
    """
    rounds = -(-len(packs) // processes.world_size)
    indices = [processes.rank + processes.world_size * i for i in range(rounds)]
    return [(packs[min(index, len(packs) - 1)], index < len(packs)) for index in indices]
