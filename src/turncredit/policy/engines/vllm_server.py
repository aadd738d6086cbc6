"""vLLM on GPUs of its own: its HTTP server, started and ended with a run, and the client of it.

The server listens on a Unix socket, so it needs no port and nobody else on the network reaches it.
It ends with the process that started it, however that ends (``turncredit.child_process``).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from turncredit.child_process import STOP_S
from turncredit.errors import ConfigError, NonFiniteError, ProcessError
from turncredit.policy.engines.base import Images
from turncredit.policy.engines.vllm import Completion
from turncredit.policy.engines.vllm_process import OF_THE_TRAINERS, data_url, deaf_children

SERVER = "vllm.entrypoints.openai.api_server"
START_S = 900.0  # compiling and capturing graphs of a large model
PAUSE_S = 0.2
_REMEDY = "look at the server's log; then run the same command again"


class Server:
    """A ``Backend``: the client of a vLLM server with its development and scale-out routes.

    Args:
        address: ``unix:/path/of/a/socket`` or ``http://host:port``.
        timeout_s: of one request: the longest turn, waiting in the queue included.
        transport: what carries the requests; None is the address.
    """

    def __init__(self, address: str, *, timeout_s: float = 3600.0,
                 transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.address = address
        self._timeout_s, self._transport = timeout_s, transport

    async def start(self) -> None:
        """See ``Backend``.

        Raises:
            ProcessError: the server does not answer.
        """
        socket = self.address.removeprefix("unix:")
        local = socket != self.address
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        transport = self._transport or httpx.AsyncHTTPTransport(uds=socket if local else None, limits=limits)
        self._http = httpx.AsyncClient(base_url="http://vllm" if local else self.address, transport=transport,
                                       timeout=httpx.Timeout(self._timeout_s, connect=10.0), trust_env=False)
        await self._ask("GET", "/health")

    async def complete(self, context: Sequence[int], parameters: dict[str, Any], images: Images) -> Completion:
        """See ``Backend``. Cancelled, it closes the connection, at which the server ends the request."""
        body: dict[str, Any] = {"token_ids": list(context), "sampling_params": parameters}
        if images:
            body["content_parts"] = [{"type": "image_url", "url": data_url(image)} for image in images]
        answer = await self._ask("POST", "/inference/v1/generate", json=body)
        try:
            [one] = answer["choices"]
            steps = one["logprobs"]["content"]
            ids = tuple(one["token_ids"])
            if [step["token_id"] for step in steps] != list(ids):
                raise ValueError("log-probabilities of other tokens")
            return Completion(ids, tuple(float(step["logprob"]) for step in steps), str(one["finish_reason"]),
                              tuple(span["version"] for span in one["weight_versions"] or ()))
        except (KeyError, TypeError, ValueError) as error:
            raise ProcessError(f"{self.address}: not the answer of a vLLM server: {error!r}", _REMEDY) from error

    async def reload(self, folder: Path) -> None:
        """See ``Backend``; the server reads the folder, so it must be on a disk of its own machine."""
        await self._ask("POST", "/collective_rpc",
                        json={"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})

    async def rename(self, version: str) -> None:
        """See ``Backend``."""
        await self._ask("POST", "/update_weight_version", json={"new_version": version})

    async def version(self) -> str:
        """See ``Backend``."""
        return str((await self._ask("GET", "/weight_info"))["weight_version"])

    async def reset_prefix_cache(self) -> bool:
        """See ``Backend``."""
        return bool((await self._ask("POST", "/reset_prefix_cache"))["success"])

    async def sleep(self, level: int) -> None:
        """See ``Backend``."""
        await self._ask("POST", "/sleep", params={"level": level})

    async def wake_up(self, tags: list[str]) -> None:
        """See ``Backend``."""
        await self._ask("POST", "/wake_up", params={"tags": tags})

    async def close(self) -> None:
        """See ``Backend``: leaves the server as it is."""
        if hasattr(self, "_http"):
            await self._http.aclose()

    async def _ask(self, method: str, path: str, **request: Any) -> Any:
        try:
            answer = await self._http.request(method, path, **request)
        except httpx.HTTPError as error:
            raise ProcessError(f"{self.address}{path}: no answer: {type(error).__name__}: {error}", _REMEDY) from error
        if answer.status_code in (400, 404, 422):
            raise ConfigError(f"{self.address}{path}: vLLM refuses: {answer.text[:300]}",
                              "change the task or the policy")
        if "not JSON compliant" in answer.text:
            raise NonFiniteError("the policy's logits are not finite while sampling",
                                 "lower the learning rate; the last good checkpoint is kept")
        if answer.is_error:
            raise ProcessError(f"{self.address}{path}: HTTP {answer.status_code}: {answer.text[:300]}", _REMEDY)
        try:
            return answer.json() if answer.content else {}
        except ValueError as error:
            raise ProcessError(f"{self.address}{path}: not JSON: {answer.text[:300]}", _REMEDY) from error


def command(options: Mapping[str, Any], socket: Path) -> list[str]:
    """The command that serves, from vLLM's engine arguments.

    >>> command({"model": "m", "max_model_len": 64, "enforce_eager": True, "enable_x": False}, Path("/s"))[2:]
    ['vllm.entrypoints.openai.api_server', '--uds', '/s', '--enable-scale-out', '--model', 'm', \
'--max-model-len', '64', '--enforce-eager', '--no-enable-x']
    """
    flags = [part for name, value in options.items()
             for part in (f"--{'no-' if value is False else ''}{name.replace('_', '-')}",
                          *(() if isinstance(value, bool) else (str(value),)))]
    return [sys.executable, "-m", SERVER, "--uds", str(socket), "--enable-scale-out", *flags]


@contextmanager
def serving(options: Mapping[str, Any], environment: Mapping[str, str], log: Path,
            start_s: float = START_S) -> Iterator[str]:
    """A vLLM server that lives as long as the block; its address.

    Args:
        options: vLLM's engine arguments.
        environment: variables of the server, beside those of this process.
        log: gets what the server says.
        start_s: seconds that it may take to start.

    Raises:
        ProcessError: it ends, or does not answer in time.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OF_THE_TRAINERS)}
    variables = {
        **kept, **environment,
        "VLLM_SERVER_DEV_MODE": "1",  # routes for weights and caches
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600"}  # a client that is still using one must close it
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="vllm-") as folder, log.open("wb") as out:
        socket = Path(folder) / "socket"  # a short path, as sockets need
        with deaf_children():
            guard = subprocess.Popen(
                [sys.executable, "-m", "turncredit.child_process", *command(options, socket)], env=variables,
                stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            _wait_for(guard, socket, log, start_s)
            yield f"unix:{socket}"
        finally:
            assert guard.stdin is not None
            guard.stdin.close()
            try:
                guard.wait(2 * STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(guard.pid, signal.SIGKILL)
                guard.wait()


def _wait_for(guard: subprocess.Popen[bytes], socket: Path, log: Path, start_s: float) -> None:
    end = time.monotonic() + start_s
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://vllm", timeout=5.0) as http:
        while True:
            if guard.poll() is not None:
                raise ProcessError(f"the vLLM server ended with code {guard.returncode}; {log} ends with:\n"
                                   f"{_tail(log)}", "mend what it says, and run the same command again")
            try:
                if http.get("/health").is_success:
                    return
            except httpx.HTTPError:
                pass  # not there yet
            if time.monotonic() > end:
                raise ProcessError(f"the vLLM server did not answer within {start_s:.0f} s; {log} ends with:\n"
                                   f"{_tail(log)}", "mend what it says, and run the same command again")
            time.sleep(PAUSE_S)


def _tail(log: Path, lines: int = 5) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
