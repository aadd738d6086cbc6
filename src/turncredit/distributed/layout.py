"""How weights, gradients and optimiser states lie on the processes of a run.

``Replicated``: whole on each of them, gradients are summed. ``Sharded``: cut into parts by PyTorch's
``fully_shard``, as accelerate's FSDP 2 does. ``Zero``: kept by DeepSpeed. All of them take a step
with the gradient that one process would have. Every method is called by all processes alike.
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
    """Whole weights on every process; one process is the simplest case.

    Args:
        accelerator: gives the device.
        launch: precision and offload.
        processes: of the run.
        max_norm: gradients are clipped to it.

    Raises:
        ConfigError: the launch asks for what this layout cannot do.
    """

    shards = False
    loss_scale = 1.0  # a loss is multiplied by it, so that what is made of all gradients is their sum

    def __init__(self, accelerator: Accelerator, launch: LaunchConfig, processes: Processes, max_norm: float) -> None:
        self.accelerator, self.launch, self.processes, self.max_norm = accelerator, launch, processes, max_norm
        self._refuse("parameters", "trained weights are whole on every process",
                     "name an FSDP file in launch.accelerate")

    @property
    def device(self) -> torch.device:
        """Where this process computes."""
        return self.accelerator.device

    def place(self, module: nn.Module, make_optimizer: MakeOptimizer, part: Offload | None = None) -> tuple[Any, Any]:
        """A trained module and its optimiser, laid out; ``part`` names it in ``launch.offload``."""
        optimizer = make_optimizer(module.parameters())
        module.to(_CPU if part in self.launch.offload else self.device)
        return module, self.accelerator.prepare_optimizer(optimizer)

    def freeze(self, module: nn.Module, part: Offload) -> Any:
        """A module that is only asked, laid out."""
        return module.requires_grad_(False).to(_CPU if part in self.launch.offload else self.device)

    @contextmanager
    def awake(self, module: nn.Module, part: Offload | None, optimizer: Any = None) -> Iterator[None]:
        """Have what is offloaded on the device while the block runs; nothing moves that is not offloaded."""
        moved = part in self.launch.offload
        states = optimizer is not None and (moved or "optimizer" in self.launch.offload)
        if moved:
            module.to(self.device)
        if states:
            _move_states(optimizer, self.device)
        try:
            yield
        finally:
            if moved:
                module.to(_CPU)
            if states:
                _move_states(optimizer, _CPU)
            if (moved or states) and self.device.type == "cuda":
                torch.cuda.empty_cache()  # for an engine with an allocator of its own

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """Add the loss's gradient; ``last`` of an optimiser step."""
        self.accelerator.backward(loss * self.loss_scale if self.loss_scale != 1 else loss)

    def clip(self, module: nn.Module) -> float:
        """Join the gradients of all processes and clip them; their norm before that."""
        if self.processes.count > 1:
            for parameter in module.parameters():
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                dist.all_reduce(parameter.grad)
        return float(self.accelerator.clip_grad_norm_(module.parameters(), self.max_norm))

    @contextmanager
    def whole(self, tensor: Tensor) -> Iterator[Tensor]:
        """A tensor of the layout in full, on every process while the block runs."""
        yield tensor.detach()

    def part(self, tensor: Tensor, like: Tensor) -> Tensor:
        """The part of a full tensor that this process holds, laid out as ``like``."""
        return tensor

    def weights(self, module: nn.Module) -> Iterator[tuple[str, Tensor]]:
        """The weights of a placed module by name, in full, one at a time; tied ones are one tensor under each name.

        All processes go through it to the end, since they gather each weight together.
        """
        stored, names = module.state_dict(keep_vars=True), dict[int, list[str]]()
        for name, tensor in stored.items():
            names.setdefault(id(tensor), []).append(name)
        for tied in names.values():
            with self.whole(stored[tied[0]]) as tensor:
                for name in tied:
                    yield name, tensor

    def collect(self, module: nn.Module) -> dict[str, Tensor]:
        """All weights in the host's memory, on the first process; elsewhere nothing. Tied ones are one tensor."""
        found: dict[str, Tensor] = {}
        last, held = torch.empty(0), torch.empty(0)
        for name, tensor in self.weights(module):
            if self.processes.first:
                if tensor is not last:
                    last, held = tensor, tensor.to(_CPU)
                found[name] = held
        return found

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """An optimiser's state as one process has it, in full; on the first process."""
        state = optimizer.state_dict()
        filled: dict[int, dict[str, Any]] = {}
        for number, entry in state["state"].items():
            filled[number] = {}
            for name, value in entry.items():
                with self.whole(value) as tensor:
                    if self.processes.first:
                        filled[number][name] = tensor.to(_CPU) if self.shards else tensor
        return {**state, "state": filled}

    def load_optimizer(self, optimizer: Any, state: dict[str, Any]) -> None:
        """Take over what ``optimizer_state`` gave, on any number of processes."""
        owners = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        parts = {number: {name: self.part(value, owners[number])
                          if isinstance(value, Tensor) and value.shape == owners[number].shape else value
                          for name, value in entry.items()} for number, entry in state["state"].items()}
        optimizer.load_state_dict({**state, "state": parts})

    @torch.no_grad()
    def load_weights(self, module: nn.Module, weights: Mapping[str, Tensor]) -> None:
        """Take over what ``collect`` gave.

        Raises:
            CheckpointError: a weight is missing or has another shape.
        """
        for name, tensor in module.state_dict(keep_vars=True).items():
            if name not in weights or weights[name].shape != tensor.shape:
                raise CheckpointError(f"the checkpoint has no weight {name} {tuple(tensor.shape)}",
                                      "remove the run's checkpoints to start afresh")
            tensor.copy_(self.part(weights[name], tensor))

    def save_extra(self, folder: Path) -> None:
        """Write what has no common form; nothing here."""

    def load_extra(self, folder: Path) -> None:
        """Read it back."""

    def _refuse(self, offload: Offload, reason: str, remedy: str) -> None:
        if offload in self.launch.offload:
            raise ConfigError(f"launch.offload: {offload!r} cannot be offloaded: {reason}", remedy)


class Sharded(Replicated):
    """Weights, gradients and optimiser states cut along their first dimension, one part a process.

    A layer's weights are gathered while it computes. What ``launch.offload`` names lies in the host's
    memory, layer by layer, and its optimiser works there ("optimizer" and "parameters" go together).
    """

    shards = True

    def __init__(self, accelerator: Accelerator, launch: LaunchConfig, processes: Processes, max_norm: float) -> None:
        self.accelerator, self.launch, self.processes, self.max_norm = accelerator, launch, processes, max_norm
        self.loss_scale = float(processes.count)  # fully_shard takes the mean over processes
        self._mesh = init_device_mesh(self.device.type, (processes.count,))
        self._plugin = FullyShardedDataParallelPlugin()  # reads what accelerate's file says from the environment
        self._host = offloads_all(self._plugin)

    def place(self, module: nn.Module, make_optimizer: MakeOptimizer, part: Offload | None = None) -> tuple[Any, Any]:
        """See ``Replicated.place``; parameters change their kind, so the optimiser comes after."""
        asked = {part, "parameters", "optimizer"} & {*self.launch.offload}
        self._shard(module, host=bool(asked) or self._host)
        optimizer = make_optimizer(module.parameters())
        return module, self.accelerator.prepare_optimizer(optimizer, device_placement=False)

    def freeze(self, module: nn.Module, part: Offload) -> Any:
        """See ``Replicated.freeze``."""
        self._shard(module.requires_grad_(False), host=part in self.launch.offload or self._host)
        return module

    @contextmanager
    def awake(self, module: nn.Module, part: Offload | None, optimizer: Any = None) -> Iterator[None]:
        """Layers come and go by themselves; gathered ones are given up when the block ends."""
        try:
            yield
        finally:
            assert isinstance(module, FSDPModule)
            module.reshard()

    def clip(self, module: nn.Module) -> float:
        """See ``Replicated.clip``; the backward pass has joined the gradients."""
        norm = torch.nn.utils.clip_grad_norm_(list(module.parameters()), self.max_norm)
        with self.whole(norm) as whole:
            return float(whole)

    @contextmanager
    def whole(self, tensor: Tensor) -> Iterator[Tensor]:
        """See ``Replicated.whole``."""
        found = tensor.detach()
        yield cast(DTensor, found.to(self.device.type)).full_tensor() if isinstance(found, DTensor) else found

    def part(self, tensor: Tensor, like: Tensor) -> Tensor:
        """See ``Replicated.part``; every process cuts its own part, nothing is sent."""
        if not isinstance(like, DTensor):
            return tensor
        laid_out = distribute_tensor(tensor.to(self.device), like.device_mesh, like.placements, src_data_rank=None)
        return laid_out.to(like.device)

    def _shard(self, module: nn.Module, *, host: bool) -> None:
        """Cut each layer of the transformer, and then the rest, in place."""
        half = torch.bfloat16 if self.launch.precision == "bfloat16" else None
        settings: dict[str, Any] = {
            "mesh": self._mesh,
            "mp_policy": MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32 if half else None),
            # the host of a CPU is the device itself
            "offload_policy": CPUOffloadPolicy() if host and self.device.type != "cpu" else OffloadPolicy()}
        names = {name for found in module.modules() if isinstance(found, PreTrainedModel)
                 for name in found._no_split_modules or ()}
        for layer in [found for found in module.modules() if type(found).__name__ in names]:
            fully_shard(layer, reshard_after_forward=self._plugin.reshard_after_forward, **settings)
        fully_shard(module, **settings)


class Zero(Replicated):
    """DeepSpeed ZeRO through accelerate: it owns the loop's backward pass, the clipping and the step.

    One module is trained, so there is no critic; its checkpoints resume with as many processes as saved them.
    """

    shards = True

    def __init__(self, accelerator: Accelerator, launch: LaunchConfig, processes: Processes, max_norm: float) -> None:
        self.accelerator, self.launch, self.processes, self.max_norm = accelerator, launch, processes, max_norm
        self.loss_scale = float(processes.count)  # DeepSpeed takes the mean over processes
        for part in ("parameters", "optimizer"):
            self._refuse(part, "DeepSpeed reads it elsewhere", "set offload_*_device in the file of launch.accelerate")
        self._engine: Any = None

    def place(self, module: nn.Module, make_optimizer: MakeOptimizer, part: Offload | None = None) -> tuple[Any, Any]:
        """See ``Replicated.place``.

        Raises:
            ConfigError: a second module is to be trained.
        """
        if self._engine is not None:
            raise ConfigError("DeepSpeed trains one module, and this arm has a critic",
                              "name an FSDP file in launch.accelerate for arms with a critic")
        plugin = self.accelerator.state.deepspeed_plugin
        # Micro-batches are packed by tokens; DeepSpeed only multiplies this number into others that it logs.
        plugin.deepspeed_config |= {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": self.max_norm}
        self._engine, optimizer = self.accelerator.prepare(module, make_optimizer(module.parameters()))
        return self._engine, optimizer

    def backward(self, loss: Tensor, *, last: bool) -> None:
        """See ``Replicated.backward``; the last one takes DeepSpeed's step too."""
        self.accelerator.sync_gradients = last
        super().backward(loss, last=last)

    def clip(self, module: nn.Module) -> float:
        """The norm that DeepSpeed met and clipped."""
        return float(self._engine.get_global_grad_norm())

    @contextmanager
    def whole(self, tensor: Tensor) -> Iterator[Tensor]:
        """See ``Replicated.whole``; DeepSpeed gathers a weight for as long as it is looked at."""
        from deepspeed.zero import GatheredParameters

        with GatheredParameters([tensor] if isinstance(tensor, nn.Parameter) else []):
            yield tensor.detach()

    def optimizer_state(self, optimizer: Any) -> dict[str, Any]:
        """Nothing: DeepSpeed writes its own files (``save_extra``)."""
        return {}

    def load_optimizer(self, optimizer: Any, state: dict[str, Any]) -> None:
        """See ``optimizer_state``."""

    def save_extra(self, folder: Path) -> None:
        """DeepSpeed's own checkpoint."""
        self._engine.save_checkpoint(str(folder), tag="zero")

    def load_extra(self, folder: Path) -> None:
        """Read it.

        Raises:
            CheckpointError: another number of processes saved it, or it is not there.
        """
        saved = len(list(folder.glob("zero/*_optim_states.pt")))
        if saved != self.processes.count:
            raise CheckpointError(f"{folder}: DeepSpeed saved it on {saved} processes, {self.processes.count} run now",
                                  f"set launch.processes to {saved}, or remove the checkpoints to start afresh")
        self._engine.load_checkpoint(str(folder), tag="zero")


def make_layout(accelerator: Accelerator, launch: LaunchConfig, processes: Processes, max_norm: float) -> Replicated:
    """The layout that the launcher's environment asks for (``accelerate launch`` writes it from its file)."""
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        return Zero(accelerator, launch, processes, max_norm)
    if processes.count > 1 and os.environ.get("ACCELERATE_USE_FSDP", "false").lower() == "true":
        return Sharded(accelerator, launch, processes, max_norm)
    return Replicated(accelerator, launch, processes, max_norm)


def offloads_all(plugin: FullyShardedDataParallelPlugin) -> bool:
    """Whether accelerate's file says ``fsdp_offload_params``; else its policy is there too, and offloads nothing."""
    return isinstance(plugin.cpu_offload, CPUOffloadPolicy)


def _move_states(optimizer: Any, device: torch.device) -> None:
    """Move the moments of an optimiser; counters of steps stay where they are."""
    for entry in optimizer.state.values():
        for name, value in entry.items():
            if isinstance(value, Tensor) and value.ndim:
                entry[name] = value.to(device)


def share(packs: Sequence[Any], processes: Processes) -> list[tuple[Any, bool]]:
    """This process's packs, and whether each counts: all get as many, so that none waits for another's gradients.

    >>> share("abc", Processes(rank=1, count=2)), share("abc", Processes(rank=0, count=2))
    ([('b', True), ('c', False)], [('a', True), ('c', True)])
    """
    rounds = -(-len(packs) // processes.count)
    places = [processes.rank + processes.count * i for i in range(rounds)]
    return [(packs[min(place, len(packs) - 1)], place < len(packs)) for place in places]
