"""vLLM backend in child processes of the trainer, on the same GPUs (vLLM's AsyncLLM)."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from turncredit.errors import ConfigError, ProcessError
from turncredit.policy.engines.vllm import Completion

# Set by torchrun for the trainer's process group. vLLM must not see them: it would join that group instead of its own.
TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
                      "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_")


class ProcessBackend:
    """A ``Backend``: vLLM's AsyncLLM, whose core runs in child processes.

    Args:
        options: vLLM's engine arguments.
        environment: additional environment variables of the child processes.
    """

    def __init__(self, options: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._options, self._environment = dict(options), dict(environment)
        self._engine: Any = None
        self._request_ids = count()

    async def start(self) -> None:
        """See ``Backend``.

        Raises:
            ConfigError: vLLM rejects the model or an option.
            ProcessError: its processes do not start.
        """
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
        with child_environment(self._environment, without=TORCHRUN_VARIABLES), signals_blocked():
            try:
                self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**self._options))
            except (ValueError, TypeError, OSError) as error:
                raise ConfigError(f"vLLM cannot run {self._options['model']}: {_first_line(error)}",
                                  "change the policy or the engine's settings") from error
            except RuntimeError as error:
                raise ProcessError(f"vLLM does not start: {_first_line(error)}",
                                   "see vLLM's log lines above; a lower engine.gpu_memory_utilization may help"
                                   ) from error

    async def complete(self, context: Sequence[int], parameters: dict[str, Any]) -> Completion:
        """See ``Backend``."""
        from vllm import SamplingParams
        from vllm.exceptions import VLLMClientError
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
        prompt = {"prompt_token_ids": list(context)}
        sampling = SamplingParams(**parameters, output_kind=RequestOutputKind.FINAL_ONLY)
        try:
            async for output in self._engine.generate(prompt, sampling, str(next(self._request_ids))):
                [one] = output.outputs
        except (EngineDeadError, EngineGenerateError, VLLMClientError, ValueError) as error:
            cause = error.__cause__ or error
            if isinstance(cause, (VLLMClientError, ValueError)):
                raise ConfigError(f"vLLM rejects a turn: {_first_line(cause)}",
                                  "change the task or the policy") from error
            raise ProcessError(f"vLLM failed while sampling: {_first_line(cause)}",
                               "see vLLM's log lines above; then run the same command again") from error
        return Completion(tuple(one.token_ids), tuple(step[token].logprob for step, token in zip(
            one.logprobs, one.token_ids, strict=True)), str(one.finish_reason),
            tuple(span.version for span in one.weight_versions or ()))

    async def load_weights(self, folder: Path) -> None:
        """See ``Backend``."""
        try:
            await self._engine.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        except Exception as error:  # any error of a worker arrives as a plain Exception
            raise ProcessError(f"vLLM cannot load the weights of {folder}: {_first_line(error)}",
                               "see vLLM's log lines above") from error

    async def set_version(self, version: str) -> None:
        """See ``Backend``."""
        await self._engine.update_weight_version(version)

    async def get_version(self) -> str:
        """See ``Backend``."""
        return await self._engine.get_weight_version()

    async def reset_prefix_cache(self) -> bool:
        """See ``Backend``."""
        return await self._engine.reset_prefix_cache()

    async def sleep(self, level: int) -> None:
        """See ``Backend``."""
        await self._engine.sleep(level)

    async def wake_up(self, tags: list[str]) -> None:
        """See ``Backend``."""
        await self._engine.wake_up(tags)

    async def close(self) -> None:
        """See ``Backend``."""
        if self._engine is not None:
            self._engine.shutdown()
            self._engine = None


@contextmanager
def child_environment(changes: Mapping[str, str], without: Sequence[str]) -> Iterator[None]:
    """Change the environment of child processes that start inside the block; it is restored afterwards.

    Args:
        changes: variables to set.
        without: prefixes of the names of variables to remove.
    """
    before = dict(os.environ)
    try:
        for name in [name for name in before if name.startswith(tuple(without))]:
            del os.environ[name]
        os.environ.update(changes)
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def signals_blocked() -> Iterator[None]:
    """Block SIGTERM and SIGUSR1 in child processes that start inside the block.

    A cluster sends them to all processes of a job. Only the trainer handles them: vLLM must run until
    the trainer's update and checkpoint are done.
    """
    resource_tracker.ensure_running()  # if it started inside the block, it would unblock SIGTERM
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
