"""The backends of VLLMEngine without vLLM: the server's client, and the environment of child processes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from turncredit.errors import ConfigError, NonFiniteError, ProcessError
from turncredit.policy.engines.vllm import Completion
from turncredit.policy.engines.vllm_process import child_environment, signals_blocked
from turncredit.policy.engines.vllm_server import ServerBackend


def asked(answer: httpx.Response | Exception, call: Any) -> tuple[Any, httpx.Request]:
    """The result of a call, and the request that it made."""
    requests = []

    def handle(request: httpx.Request) -> httpx.Response:
        if request.url.path == "/health":
            return httpx.Response(200)
        requests.append(request)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def run() -> Any:
        server = ServerBackend("http://127.0.0.1:1", transport=httpx.MockTransport(handle))
        await server.start()
        try:
            return await call(server)
        finally:
            await server.close()

    return asyncio.run(run()), requests[-1] if requests else None


def choice(**changes: Any) -> httpx.Response:
    one = {"token_ids": [5, 6], "finish_reason": "stop", "weight_versions": [{"version": "2", "start": 0, "end": 2}],
           "logprobs": {"content": [{"token_id": 5, "logprob": -1.0}, {"token_id": 6, "logprob": -2.0}]}}
    return httpx.Response(200, json={"choices": [one | changes]})


def complete(server: ServerBackend) -> Any:
    return server.complete((1, 2), {"seed": 3})


def test_a_completion_travels_as_ids_and_comes_back_as_ids():
    found, request = asked(choice(), complete)
    assert found == Completion((5, 6), (-1.0, -2.0), "stop", ("2",))
    assert json.loads(request.content) == {"token_ids": [1, 2], "sampling_params": {"seed": 3}}


@pytest.mark.parametrize(("answer", "error"), [
    (choice(token_ids=[5, 7]), ProcessError), (choice(logprobs=None), ProcessError),
    (httpx.Response(200, json={}), ProcessError), (httpx.Response(200, text="hello"), ProcessError),
    (httpx.Response(400, json={"error": "too long"}), ConfigError), (httpx.Response(500), ProcessError),
    (httpx.Response(500, text="Out of range float values are not JSON compliant"), NonFiniteError),
    (httpx.ReadTimeout("slow"), ProcessError), (httpx.ConnectError("gone"), ProcessError)])
def test_an_invalid_response_is_an_error(answer, error):
    with pytest.raises(error):
        asked(answer, complete)


def test_weights_are_sent_as_a_path_and_a_version():
    _, request = asked(httpx.Response(200, json={}), lambda server: server.load_weights(Path("/given/version-7")))
    assert (request.url.path, json.loads(request.content)) == (
        "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": "/given/version-7"}})
    _, request = asked(httpx.Response(200, json={}), lambda server: server.set_version("7"))
    assert (request.url.path, json.loads(request.content)) == ("/update_weight_version", {"new_version": "7"})


def test_children_get_other_variables_and_block_the_clusters_signals(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("KEPT", "1")
    script = ("import os, signal; print([os.environ.get(n) for n in ('TORCHELASTIC_RUN_ID', 'KEPT', 'NEW')], "
              "sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])) == sorted([signal.SIGTERM, signal.SIGUSR1]))")
    before, mask = dict(os.environ), signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with child_environment({"NEW": "2", "KEPT": "3"}, without=("TORCHELASTIC_",)), signals_blocked():
        said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[None, '3', '2'] True"
    assert dict(os.environ) == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask
