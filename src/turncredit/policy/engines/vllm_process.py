"""vLLM beside this process: its asynchronous engine, whose core runs in child processes on the same GPUs."""

from __future__ import annotations

import base64
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

from turncredit.errors import ConfigError, ProcessError
from turncredit.policy.engines.base import Images
from turncredit.policy.engines.vllm import Completion

# What torchrun tells a process of the run. vLLM has a group of its own, and would join that of the trainers.
OF_THE_TRAINERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
                   "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_")


class ChildProcesses:
    """A ``Backend``: vLLM's AsyncLLM.

    Args:
        options: vLLM's engine arguments.
        environment: variables of its processes, beside those of this one.
    """

    def __init__(self, options: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self._options, self._environment = dict(options), dict(environment)
        self._engine: Any = None
        self._numbers = count()

    async def start(self) -> None:
        """See ``Backend``.

        Raises:
            ConfigError: vLLM refuses the model or an option.
            ProcessError: its processes do not come up.
        """
        from vllm import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
        with environment(self._environment, without=OF_THE_TRAINERS), deaf_children():
            try:
                self._engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**self._options))
            except (ValueError, TypeError, OSError) as error:
                raise ConfigError(f"vLLM cannot run {self._options['model']}: {_first_line(error)}",
                                  "change the policy or the engine's settings") from error
            except RuntimeError as error:
                raise ProcessError(f"vLLM does not start: {_first_line(error)}",
                                   "its own lines above tell why; a lower engine.gpu_memory_utilization may help"
                                   ) from error

    async def complete(self, context: Sequence[int], parameters: dict[str, Any], images: Images) -> Completion:
        """See ``Backend``."""
        from vllm import SamplingParams
        from vllm.exceptions import VLLMClientError
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError
        prompt: dict[str, Any] = {"prompt_token_ids": list(context)}
        if images:
            prompt["multi_modal_data"] = {"image": [_picture(image) for image in images]}
        asked = SamplingParams(**parameters, output_kind=RequestOutputKind.FINAL_ONLY)
        try:
            async for output in self._engine.generate(prompt, asked, str(next(self._numbers))):
                [one] = output.outputs
        except (EngineDeadError, EngineGenerateError, VLLMClientError, ValueError) as error:
            cause = error.__cause__ or error
            if isinstance(cause, (VLLMClientError, ValueError)):
                raise ConfigError(f"vLLM refuses a turn: {_first_line(cause)}",
                                  "change the task or the policy") from error
            raise ProcessError(f"vLLM failed while sampling: {_first_line(cause)}",
                               "its own lines above tell why; then run the same command again") from error
        return Completion(tuple(one.token_ids), tuple(step[token].logprob for step, token in zip(
            one.logprobs, one.token_ids, strict=True)), str(one.finish_reason),
            tuple(span.version for span in one.weight_versions or ()))

    async def reload(self, folder: Path) -> None:
        """See ``Backend``."""
        try:
            await self._engine.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        except Exception as error:  # whatever its workers raise comes back as an Exception
            raise ProcessError(f"vLLM cannot take the weights of {folder}: {_first_line(error)}",
                               "its own lines above tell why") from error

    async def rename(self, version: str) -> None:
        """See ``Backend``."""
        await self._engine.update_weight_version(version)

    async def version(self) -> str:
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
def environment(changes: Mapping[str, str], without: Sequence[str]) -> Iterator[None]:
    """Start child processes inside with other variables; those of this process are as before afterwards.

    Args:
        changes: variables that are set.
        without: beginnings of names that are left out.
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
def deaf_children() -> Iterator[None]:
    """Start child processes inside that do not hear SIGTERM and SIGUSR1.

    A cluster sends them to all processes of a job; here the trainer answers, and vLLM must live until
    its update and its checkpoint are done.
    """
    resource_tracker.ensure_running()  # started inside, it would let SIGTERM through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGUSR1})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def data_url(image: bytes) -> str:
    """An encoded image as a URL that holds it."""
    kind = "png" if image.startswith(b"\x89PNG") else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


def _picture(image: bytes) -> Any:
    from vllm.multimodal.utils import fetch_image
    return fetch_image(data_url(image))


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
