"""Makes the engine of a run from its configuration."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

from turncredit.config.runtime import EngineConfig
from turncredit.errors import ConfigError
from turncredit.files import write_text
from turncredit.policy.engines.base import Engine
from turncredit.policy.engines.hf import HFEngine
from turncredit.policy.engines.weights import WeightFolder, wait_until
from turncredit.policy.tokenizer import Codec

Precision = Literal["float32", "bfloat16"]
SHARED_MEMORY = Path("/dev/shm")
CPU_BATCH_TOKENS = 4096  # of one pass of vLLM's CPU build
CPU_CACHE_BYTES = 2**28  # of its keys and values; by default it takes a large part of the machine's memory


@contextmanager
def make_engine(config: EngineConfig, codec: Codec, *, policy: str | Path, model: Callable[[], PreTrainedModel],
                window: int, device: str, precision: Precision, folder: Path, local_rank: int = 0,
                local_world_size: int = 1) -> Iterator[Engine]:
    """Make an engine; it is shut down when the block ends.

    All processes of a run on one machine call this together, before any of them updates its weights
    (``engine_group`` says which of them share a vLLM).

    Args:
        config: kind and mode of the engine.
        codec: encodes and decodes with the policy's tokenizer.
        policy: folder or hub id of the weights and tokenizer that vLLM starts with.
        model: returns the trainer's model, for transformers' engine.
        window: largest number of tokens of a context and its turn together: ``task.max_context_tokens``.
        device: ``cpu`` or ``cuda``.
        precision: number type of vLLM's computation, ``float32`` or ``bfloat16``.
        folder: the run's checkpoints; logs and addresses of servers are written there.
        local_rank, local_world_size: rank from 0 and number of the run's processes on this machine.

    Raises:
        ConfigError: vLLM is not installed, or cannot run this policy with these settings.
        ProcessError: vLLM does not start.
    """
    if config.kind == "hf":
        yield HFEngine(model(), codec)
        return
    require_vllm()
    from turncredit.policy.engines.vllm import VLLMEngine
    from turncredit.policy.engines.vllm_process import ProcessBackend
    from turncredit.policy.engines.vllm_server import ServerBackend

    weights = WeightFolder(weight_path(folder), policy, torch.bfloat16 if precision == "bfloat16" else torch.float32,
                           is_writer=local_rank == 0)
    weights.clear()
    options = engine_options(config, policy, window=window, device=device, precision=precision)
    group = engine_group(config, local_rank, local_world_size)
    variables = device_variables(group.gpus, group.first_gpu, device)
    with ExitStack() as stack:
        stack.callback(weights.clear)
        backend: Any = ServerBackend(stack.enter_context(_server(options, variables, folder, group))) \
            if group.is_server else ProcessBackend(options, variables)
        yield stack.enter_context(VLLMEngine(
            backend, codec, window=window, folder=weights, sleep_level=2 if options.get("enable_sleep_mode") else 0,
            shared=group.size > 1, is_leader=group.is_leader))


@dataclass(frozen=True, slots=True)
class EngineGroup:
    """The processes of a run on one machine that share a vLLM, as one of them sees them.

    Attributes:
        index: number of the group on this machine, from 0.
        size: number of processes; a single one runs vLLM in child processes.
        is_leader: this process starts the vLLM.
        gpus, first_gpu: number of GPUs that vLLM uses, and the first one's index among the job's on this machine.
        is_server: the vLLM is a server.
    """

    index: int
    size: int
    is_leader: bool
    gpus: int
    first_gpu: int
    is_server: bool


def engine_group(config: EngineConfig, local_rank: int, local_world_size: int) -> EngineGroup:
    """Return the group of processes that share a vLLM with this one, and the GPUs of that vLLM.

    In mode ``server`` all processes share one server, on the GPUs after those of the trainers. In mode
    ``colocate`` each process has its own vLLM, or ``tensor_parallel`` processes share a server.

    Raises:
        ConfigError: the processes cannot be divided into groups.
    """
    if config.mode == "server":
        return EngineGroup(0, local_world_size, local_rank == 0, config.gpus, local_world_size, is_server=True)
    size = config.tensor_parallel if local_world_size > 1 else 1
    if local_world_size % size:
        raise ConfigError(f"engine.tensor_parallel = {size} does not divide a machine's {local_world_size} processes",
                          "choose a divisor")
    index = local_rank // size
    return EngineGroup(index, size, local_rank % size == 0, config.tensor_parallel, index * config.tensor_parallel,
                       is_server=size > 1)


def require_vllm() -> None:
    """Raise ``ConfigError`` if vLLM is not installed."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError("engine.kind = vllm: vLLM is not installed in this environment",
                          "use the environment of envs/gpu.txt (envs/vllm-cpu.txt without a GPU), or engine.kind: hf")


def engine_options(config: EngineConfig, policy: str | Path, *, window: int, device: str,
                   precision: Precision) -> dict[str, Any]:
    """Return vLLM's engine arguments of a run."""
    options: dict[str, Any] = {
        "model": str(policy), "dtype": precision, "max_model_len": window, "max_num_seqs": config.max_sequences,
        "tensor_parallel_size": config.tensor_parallel, "gpu_memory_utilization": config.gpu_memory_utilization,
        "logprobs_mode": "processed_logprobs",  # of the distribution that it samples from
        "generation_config": "vllm",  # ignore the model's generation_config.json
        "enable_prefix_caching": True, "disable_log_stats": True, "seed": 0}
    if device == "cpu":
        # chunked prefill rewinds a request's random generator, which is not possible on a CPU
        return options | {"enforce_eager": True, "kv_cache_memory_bytes": CPU_CACHE_BYTES,
                          "enable_chunked_prefill": False, "max_num_batched_tokens": max(window, CPU_BATCH_TOKENS)}
    if config.mode == "server":
        return options | {"data_parallel_size": config.gpus // config.tensor_parallel}
    return options | {"enable_sleep_mode": config.sleep}


def device_variables(count: int, first: int, device: str) -> dict[str, str]:
    """Return the environment variables that restrict vLLM to ``count`` GPUs, starting with number ``first``.

    On a CPU: the variable that keeps vLLM's CPU build (used in tests) from binding itself to cores.

    Raises:
        ConfigError: the job has too few GPUs.
    """
    if device == "cpu":
        return {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(i) for i in range(torch.cuda.device_count())] if visible is None else visible.split(",")
    if first + count > len(names):
        raise ConfigError(f"vLLM needs GPUs {first} to {first + count - 1} of this job, which has {len(names)}",
                          "request more GPUs, or lower engine.gpus or engine.tensor_parallel")
    return {"CUDA_VISIBLE_DEVICES": ",".join(names[first:first + count])}


def weight_path(folder: Path) -> Path:
    """Return the folder from which vLLM loads a run's weights: in shared memory, named by a hash of ``folder``."""
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    return SHARED_MEMORY / f"turncredit-{name}" if SHARED_MEMORY.is_dir() else folder / "weights-for-vllm"


@contextmanager
def _server(options: dict[str, Any], variables: dict[str, str], folder: Path, group: EngineGroup) -> Iterator[str]:
    """Yield the address of a group's server; the leader runs the server and writes the address to a file."""
    from turncredit.policy.engines.vllm_server import running_server
    address_file = folder / f"vllm-{group.index}.address"
    if not group.is_leader:
        wait_until(address_file.exists, f"{address_file}: address of the vLLM server")
        yield address_file.read_text(encoding="utf-8").strip()
        return
    address_file.unlink(missing_ok=True)
    with running_server(options, variables, folder / f"vllm-{group.index}.log") as address:
        write_text(address_file, address)
        try:
            yield address
        finally:
            address_file.unlink(missing_ok=True)
