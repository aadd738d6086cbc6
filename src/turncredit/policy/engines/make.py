"""The engine that a run's configuration asks for."""

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
from turncredit.policy.engines.weight_folder import WeightFolder, wait_until
from turncredit.policy.tokenizer import Codec

Precision = Literal["float32", "bfloat16"]
MEMORY = Path("/dev/shm")  # a file system in the host's memory
CPU_BATCH_TOKENS = 4096  # of one pass of that build
CPU_CACHE_BYTES = 2**28  # keys and values of vLLM's CPU build, which else takes a share of the machine


@contextmanager
def make_engine(config: EngineConfig, codec: Codec, *, policy: str | Path, model: Callable[[], PreTrainedModel],
                window: int, device: str, precision: Precision, folder: Path, local_rank: int = 0,
                local_count: int = 1) -> Iterator[Engine]:
    """An engine that lives as long as the block.

    All processes of a run on one machine make it together, before any of them gives it weights (see
    ``team_of`` for who shares what).

    Args:
        config: what samples, and where.
        codec: of the policy.
        policy: folder or hub id of the weights that vLLM starts with; the tokenizer stands there too.
        model: the trainer's own, for transformers' engine.
        window: most tokens of a context and its turn together: ``task.max_context_tokens``.
        device: ``cpu`` or ``cuda``.
        precision: that vLLM computes in.
        folder: the run's checkpoints; gets logs and addresses of servers.
        local_rank, local_count: this process among those of the run on this machine.

    Raises:
        ConfigError: vLLM is not installed, or cannot run this policy with these settings.
        ProcessError: vLLM does not start.
    """
    if config.kind == "hf":
        yield HFEngine(model(), codec)
        return
    require_vllm()
    from turncredit.policy.engines.vllm import VLLMEngine
    from turncredit.policy.engines.vllm_process import ChildProcesses
    from turncredit.policy.engines.vllm_server import Server

    given = WeightFolder(weight_path(folder), policy, torch.bfloat16 if precision == "bfloat16" else torch.float32,
                         writer=local_rank == 0)
    given.clear()
    options = engine_options(config, policy, window=window, device=device, precision=precision)
    team = team_of(config, local_rank, local_count)
    visible = gpus(team.gpus, team.first_gpu, device)
    with ExitStack() as held:
        held.callback(given.clear)
        backend: Any = Server(held.enter_context(_server(options, visible, folder, team))) if team.serves \
            else ChildProcesses(options, visible)
        yield held.enter_context(VLLMEngine(
            backend, codec, window=window, folder=given, sleep_level=2 if options.get("enable_sleep_mode") else 0,
            shared=team.members > 1, leads=team.leads))


@dataclass(frozen=True, slots=True)
class Team:
    """The processes of a run on one machine that share a vLLM, as one of them sees them.

    Attributes:
        number: of the team, from 0.
        members: processes; a lone one has its vLLM as child processes.
        leads: this process starts the vLLM.
        gpus, first_gpu: those of the vLLM, among those of the job on this machine.
        serves: the vLLM is a server.
    """

    number: int
    members: int
    leads: bool
    gpus: int
    first_gpu: int
    serves: bool


def team_of(config: EngineConfig, local_rank: int, local_count: int) -> Team:
    """Who shares a vLLM with this process, and on which GPUs it runs.

    On GPUs of its own one server is shared by all, behind the GPUs of the trainers. On the training
    GPUs each process has one, or as many processes share a server as share a copy of the policy.

    Raises:
        ConfigError: the processes cannot be dealt into teams.
    """
    if config.placement == "server":
        return Team(0, local_count, local_rank == 0, config.gpus, local_count, serves=True)
    size = config.tensor_parallel if local_count > 1 else 1
    if local_count % size:
        raise ConfigError(f"engine.tensor_parallel = {size} does not divide the {local_count} processes of a machine",
                          "choose a number that does")
    number = local_rank // size
    return Team(number, size, local_rank % size == 0, config.tensor_parallel, number * config.tensor_parallel,
                serves=size > 1)


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
        # a prompt that is cut into chunks would rewind its request's generator, which a CPU's cannot
        return options | {"enforce_eager": True, "kv_cache_memory_bytes": CPU_CACHE_BYTES,
                          "enable_chunked_prefill": False, "max_num_batched_tokens": max(window, CPU_BATCH_TOKENS)}
    if config.placement == "server":
        return options | {"data_parallel_size": config.gpus // config.tensor_parallel}
    return options | {"enable_sleep_mode": config.sleep}


def gpus(count: int, first: int, device: str) -> dict[str, str]:
    """The variables that show a process ``count`` of this machine's GPUs, from the ``first`` one on.

    Without GPUs: that vLLM's CPU build, which is there for tests, binds itself to no core.

    Raises:
        ConfigError: there are not so many.
    """
    if device == "cpu":
        return {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}
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
def _server(options: dict[str, Any], visible: dict[str, str], folder: Path, team: Team) -> Iterator[str]:
    """The address of a team's server, which its leader starts."""
    from turncredit.policy.engines.vllm_server import serving
    record = folder / f"vllm-{team.number}.address"
    if not team.leads:
        wait_until(record.exists, f"{record}: the address of the vLLM server")
        yield record.read_text(encoding="utf-8").strip()
        return
    record.unlink(missing_ok=True)
    with serving(options, visible, folder / f"vllm-{team.number}.log") as address:
        write_text(record, address)
        try:
            yield address
        finally:
            record.unlink(missing_ok=True)
