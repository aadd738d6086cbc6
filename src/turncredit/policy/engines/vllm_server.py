"""vLLM backend over HTTP: a vLLM server as a child process, and its client.

The server listens on a Unix socket, so it needs no port and cannot be reached from the network. It
is killed when its parent dies (``turncredit.child_process``).
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
from turncredit.policy.engines.vllm import Completion
from turncredit.policy.engines.vllm_process import TORCHRUN_VARIABLES, signals_blocked

SERVER_MODULE = "vllm.entrypoints.openai.api_server"
START_S = 900.0  # a large model compiles and captures CUDA graphs first
POLL_S = 0.2
_REQUEST_TIMEOUT_S = 3600.0  # longer than any turn, its time in the queue included
_TAIL_LINES = 5
_REMEDY = "read the server's log; then run the same command again"


class ServerBackend:
    """A ``Backend``: the client of a vLLM server with its development and scale-out routes.

    Args:
        address: ``unix:/path/of/a/socket`` or ``http://host:port``.
        transport: carries the HTTP requests; None: the network or the socket, by ``address``.
    """

    def __init__(self, address: str, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self.address = address
        self._transport = transport

    async def start(self) -> None:
        """See ``Backend``.

        Raises:
            ProcessError: the server does not respond.
        """
        socket = self.address.removeprefix("unix:")
        local = socket != self.address
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        transport = self._transport or httpx.AsyncHTTPTransport(uds=socket if local else None, limits=limits)
        self._http = httpx.AsyncClient(base_url="http://vllm" if local else self.address, transport=transport,
                                       timeout=httpx.Timeout(_REQUEST_TIMEOUT_S, connect=10.0), trust_env=False)
        await self._request("GET", "/health")

    async def complete(self, context: Sequence[int], parameters: dict[str, Any]) -> Completion:
        """See ``Backend``. A cancelled call closes its connection; then the server stops the request."""
        body = {"token_ids": list(context), "sampling_params": parameters}
        response = await self._request("POST", "/inference/v1/generate", json=body)
        try:
            [choice] = response["choices"]
            steps = choice["logprobs"]["content"]
            ids = tuple(choice["token_ids"])
            if [step["token_id"] for step in steps] != list(ids):
                raise ValueError("log-probabilities of other tokens")
            return Completion(ids, tuple(float(step["logprob"]) for step in steps), str(choice["finish_reason"]),
                              tuple(span["version"] for span in choice["weight_versions"] or ()))
        except (KeyError, TypeError, ValueError) as error:
            raise ProcessError(f"{self.address}: not a response of a vLLM server: {error!r}", _REMEDY) from error

    async def load_weights(self, folder: Path) -> None:
        """See ``Backend``; the server reads the folder, so it must be on a disk of its machine."""
        await self._request("POST", "/collective_rpc",
                            json={"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})

    async def set_version(self, version: str) -> None:
        """See ``Backend``."""
        await self._request("POST", "/update_weight_version", json={"new_version": version})

    async def get_version(self) -> str:
        """See ``Backend``."""
        return str((await self._request("GET", "/weight_info"))["weight_version"])

    async def reset_prefix_cache(self) -> bool:
        """See ``Backend``."""
        return bool((await self._request("POST", "/reset_prefix_cache"))["success"])

    async def sleep(self, level: int) -> None:
        """See ``Backend``."""
        await self._request("POST", "/sleep", params={"level": level})

    async def wake_up(self, tags: list[str]) -> None:
        """See ``Backend``."""
        await self._request("POST", "/wake_up", params={"tags": tags})

    async def close(self) -> None:
        """See ``Backend``; the server keeps running."""
        if hasattr(self, "_http"):
            await self._http.aclose()

    async def _request(self, method: str, path: str, **arguments: Any) -> Any:
        try:
            response = await self._http.request(method, path, **arguments)
        except httpx.HTTPError as error:
            raise ProcessError(f"{self.address}{path}: no response: {type(error).__name__}: {error}",
                               _REMEDY) from error
        if response.status_code in (400, 404, 422):
            raise ConfigError(f"{self.address}{path}: vLLM rejects the request: {response.text[:300]}",
                              "change the task or the policy")
        if "not JSON compliant" in response.text:
            raise NonFiniteError("the policy's logits are not finite while sampling",
                                 "lower the learning rate; the last good checkpoint is kept")
        if response.is_error:
            raise ProcessError(f"{self.address}{path}: HTTP {response.status_code}: {response.text[:300]}", _REMEDY)
        try:
            return response.json() if response.content else {}
        except ValueError as error:
            raise ProcessError(f"{self.address}{path}: not JSON: {response.text[:300]}", _REMEDY) from error


def server_command(options: Mapping[str, Any], socket: Path) -> list[str]:
    """Return the server's command line for vLLM's engine arguments.

    >>> server_command({"model": "m", "max_model_len": 64, "enforce_eager": True, "enable_x": False}, Path("/s"))[2:]
    ['vllm.entrypoints.openai.api_server', '--uds', '/s', '--enable-scale-out', '--model', 'm', \
'--max-model-len', '64', '--enforce-eager', '--no-enable-x']
    """
    flags = [part for name, value in options.items()
             for part in (f"--{'no-' if value is False else ''}{name.replace('_', '-')}",
                          *(() if isinstance(value, bool) else (str(value),)))]
    return [sys.executable, "-m", SERVER_MODULE, "--uds", str(socket), "--enable-scale-out", *flags]


@contextmanager
def running_server(options: Mapping[str, Any], environment: Mapping[str, str], log: Path) -> Iterator[str]:
    """Run a vLLM server while the block runs; yield its address.

    Args:
        options: vLLM's engine arguments.
        environment: additional environment variables of the server.
        log: file of the server's output.

    Raises:
        ProcessError: it ends, or does not respond within ``START_S`` seconds.
    """
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(TORCHRUN_VARIABLES)}
    variables = {
        **inherited, **environment,
        "VLLM_SERVER_DEV_MODE": "1",  # routes for weights and caches
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600"}  # so that the client closes idle connections, not the server
    log.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="vllm-") as folder, log.open("wb") as out:
        socket = Path(folder) / "socket"  # the path of a socket must be short
        with signals_blocked():
            wrapper = subprocess.Popen(
                [sys.executable, "-m", "turncredit.child_process", *server_command(options, socket)], env=variables,
                stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            _wait_for(wrapper, socket, log)
            yield f"unix:{socket}"
        finally:
            assert wrapper.stdin is not None
            wrapper.stdin.close()
            try:
                wrapper.wait(2 * STOP_S)
            except subprocess.TimeoutExpired:
                os.killpg(wrapper.pid, signal.SIGKILL)
                wrapper.wait()


def _wait_for(wrapper: subprocess.Popen[bytes], socket: Path, log: Path) -> None:
    end = time.monotonic() + START_S
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(socket)), base_url="http://vllm", timeout=5.0) as http:
        while True:
            if wrapper.poll() is not None:
                raise ProcessError(f"the vLLM server ended with code {wrapper.returncode}; the end of {log}:\n"
                                   f"{_tail(log)}", "fix the cause, then run the same command again")
            try:
                if http.get("/health").is_success:
                    return
            except httpx.HTTPError:
                pass  # it does not listen yet
            if time.monotonic() > end:
                raise ProcessError(f"the vLLM server did not respond within {START_S:.0f} s; the end of {log}:\n"
                                   f"{_tail(log)}", "fix the cause, then run the same command again")
            time.sleep(POLL_S)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_TAIL_LINES:])
