"""What of vLLM's engine needs no vLLM: what is asked, where turns end, who wakes whom, how weights travel."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from safetensors.torch import load_file

from tests.policies import codec, foreign_codec, model
from turncredit.config.runtime import EngineConfig
from turncredit.errors import CheckpointError, ConfigError, DataError, NonFiniteError, ProcessError
from turncredit.policy.engines import make as engines
from turncredit.policy.engines.vllm import Completion, VLLMEngine, finished, sampling_parameters, turn_end
from turncredit.policy.engines.vllm_process import deaf_children, environment
from turncredit.policy.engines.vllm_server import Server
from turncredit.policy.engines.weight_folder import WeightFolder, wait_until, write_weights
from turncredit.policy.model import save_policy
from turncredit.types import TurnStop

STOP = ("</search>", "</answer>")


# Where a turn ends --------------------------------------------------------------------------------

@pytest.mark.parametrize("make", [codec, foreign_codec])
@pytest.mark.parametrize(("text", "turn", "stop"), [
    ("Kenya</search> Nairobi", "Kenya</search>", TurnStop.TAG),
    ("Kenya</search>", "Kenya</search>", TurnStop.TAG),
    (" is</answer></search>", " is</answer>", TurnStop.TAG),
    ("Kenya<|end|></search>", "Kenya<|end|>", TurnStop.END),
    ("Kenya</search><|end|>", "Kenya</search>", TurnStop.TAG),
    ("東京</search> Nairobi", "東京</search>", TurnStop.TAG),
    ("Kenya> Nairobi", "Kenya> Nairobi", None)])
def test_a_turn_ends_with_the_first_token_that_completes_a_tag_or_is_an_end_id(make, text, turn, stop):
    c = make()
    ids = c.tokenizer(text, add_special_tokens=False)["input_ids"]
    count, found = turn_end(ids, c, STOP)
    assert (c.decode(ids[:count]), found) == (turn, stop)
    assert all(turn_end(ids[:n], c, STOP) == (n, None) for n in range(count))


def test_characters_behind_the_tag_in_its_last_token_stay_and_what_vllm_noticed_late_goes():
    c = foreign_codec()
    ids = tuple(c.tokenizer("Kenya</search>. Nairobi", add_special_tokens=False)["input_ids"])
    one = finished(Completion(ids, tuple(-float(t) - 1 for t in range(len(ids))), "stop", ("3",)), c, 40, STOP)
    assert (c.decode(one.ids), one.stop, one.weight_version) == ("Kenya</search>.", TurnStop.TAG, 3)
    assert one.logprobs == tuple(-float(t) - 1 for t in range(len(one.ids)))


def test_a_token_beyond_the_tokenizer_is_text():
    assert turn_end([5000], codec(), STOP) == (1, None)


@pytest.mark.parametrize(("ids", "logprobs", "versions", "error"), [
    ((5, 6), (-1.0, float("nan")), ("0",), NonFiniteError),
    ((5, 6), (-1.0, -float("inf")), ("0",), NonFiniteError),
    ((5, 6), (-1.0, -9999.0), ("0",), NonFiniteError),
    ((5, 6), (-1.0,), ("0",), ProcessError),
    ((5,), (-1.0,), ("0",), ProcessError),  # neither a tag, an end id, nor the limit
    ((5, 6), (-1.0, -1.0), ("0", "1"), ProcessError),
    ((5, 6), (-1.0, -1.0), (), ProcessError)])
def test_a_completion_that_is_no_turn_is_an_error(ids, logprobs, versions, error):
    with pytest.raises(error):
        finished(Completion(ids, logprobs, "stop", versions), codec(), 2, STOP)
    assert finished(Completion((5, 6), (-1.0, -1.0), "length", ("0",)), codec(), 2, STOP).stop is TurnStop.LENGTH


# What vLLM is asked -------------------------------------------------------------------------------

def test_a_seed_samples_at_its_temperature_and_none_is_greedy():
    asked = sampling_parameters(codec(), 2**63 - 1, 9, 0.7, STOP)
    assert (asked["seed"], asked["temperature"], asked["stop"]) == (2**63 - 1, 0.7, list(STOP))
    assert asked["stop_token_ids"] == sorted(codec().end_ids)
    assert json.loads(json.dumps(asked)) == asked
    assert sampling_parameters(codec(), None, 9, 1.0, STOP)["temperature"] == 0


@pytest.mark.parametrize(("seed", "temperature"), [(None, 0.7), (1, 0.001)])
def test_what_vllm_would_do_otherwise_than_it_is_told_is_refused(seed, temperature):
    with pytest.raises(ValueError, match="temperature"):
        sampling_parameters(codec(), seed, 9, temperature, STOP)


# Sleep, weights and prefixes ----------------------------------------------------------------------

@dataclass
class Notes:
    """A backend that notes what it is told and says one end id."""

    said: list[str] = field(default_factory=list)
    resets: bool = True
    now: str = "default"
    images: list[tuple[bytes, ...]] = field(default_factory=list)

    async def start(self) -> None:
        self.said.append("start")

    async def complete(self, context: Sequence[int], parameters: dict[str, Any], images: tuple[bytes, ...]
                       ) -> Completion:
        self.said.append("turn")
        self.images.append(images)
        return Completion((min(codec().end_ids),), (-1.0,), "stop", (self.now,))

    async def reload(self, folder: Path) -> None:
        self.said.append(f"reload {sorted(load_file(next(folder.glob('*.safetensors'))))}")

    async def rename(self, version: str) -> None:
        self.said.append(f"name {version}")
        self.now = version

    async def version(self) -> str:
        return self.now

    async def reset_prefix_cache(self) -> bool:
        self.said.append("reset")
        return self.resets

    async def sleep(self, level: int) -> None:
        self.said.append(f"sleep {level}")

    async def wake_up(self, tags: list[str]) -> None:
        await asyncio.sleep(0)
        self.said.append(f"wake {' '.join(tags)}")

    async def close(self) -> None:
        self.said.append("close")


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy folder with one weight."""
    folder = tmp_path_factory.mktemp("policy")
    write_weights([("w", torch.ones(2))], folder, torch.float32)
    (folder / "config.json").write_text("{}")
    return folder


def given(tmp_path: Path, policy: Path, **changes: Any) -> WeightFolder:
    return WeightFolder(tmp_path / "given", policy, torch.float32, **changes)


@pytest.fixture
def make(tmp_path: Path, policy: Path) -> Iterator[Any]:
    made = []

    def engine(backend: Notes, level: int = 0, **shares: bool) -> VLLMEngine:
        folder = given(tmp_path, policy, writer=shares.get("leads", True))
        made.append(VLLMEngine(backend, codec(), window=20, folder=folder, sleep_level=level, **shares))
        return made[-1]

    yield engine
    for one in made:
        one.close()


def turn(engine: VLLMEngine, rows: int = 2, **changes: Any) -> list[Any]:
    return engine.generate([(5, 6)] * rows, **{"seeds": None, "max_tokens": 4, "temperature": 1.0, "stop_tags": STOP}
                           | changes)


W = [("w", torch.zeros(2))]


def test_a_sleeping_engine_is_woken_once_by_what_needs_it_and_prefixes_go_with_the_old_weights(make):
    notes = Notes()
    engine = make(notes, level=2)
    engine.sleep()
    engine.sleep()
    engine.update_weights(W, 4)
    assert [one.weight_version for one in turn(engine)] == [4, 4]
    turn(engine, 1)
    assert notes.said == ["start", "sleep 2", "wake weights", "reload ['w']", "name 4", "wake kv_cache",
                          "turn", "turn", "turn"]


def test_weights_that_come_to_an_engine_awake_reset_its_prefixes(make):
    notes = Notes()
    engine = make(notes)
    turn(engine, 1)
    engine.sleep()  # level 0
    engine.update_weights(W, 1)
    assert notes.said == ["start", "turn", "reload ['w']", "reset", "name 1"]
    assert engine.weight_version == 1


def test_after_the_deep_sleep_there_is_no_turn_without_weights(make):
    engine = make(Notes(), level=2)
    engine.sleep()
    with pytest.raises(ValueError, match="dropped"):
        turn(engine)
    light = make(Notes(), level=1)
    light.sleep()
    assert len(turn(light)) == 2


def test_of_those_that_share_an_engine_one_leads_and_the_others_wait_for_the_name_of_the_weights(make):
    """The name comes last: who samples by it meets new weights, no old prefix, and an engine that is awake."""
    notes = Notes()
    leader, member = make(notes, level=2, shared=True), make(notes, level=2, shared=True, leads=False)
    for engine in (member, leader):
        engine.sleep()
        engine.reset_prefix_cache()  # others may be sampling
    waiting = threading.Thread(target=member.update_weights, args=(W, 8))
    waiting.start()
    leader.update_weights(W, 8)
    waiting.join(20)
    assert [turn(engine, 1)[0].weight_version for engine in (leader, member)] == [8, 8]
    assert notes.said == ["start", "start", "sleep 2", "wake weights", "reload ['w']", "wake kv_cache", "name 8",
                          "turn", "turn"]


def test_prefixes_in_use_are_an_error(make):
    with pytest.raises(ProcessError, match="in progress"):
        make(Notes(resets=False)).reset_prefix_cache()


def test_images_travel_with_their_context(make):
    notes = Notes()
    turn(make(notes), multi_modal=[(b"a", b"b"), ()])
    assert sorted(notes.images) == [(), (b"a", b"b")]


@pytest.mark.parametrize(("changes", "error"), [
    ({"max_tokens": 19}, ConfigError), ({"seeds": [1]}, ValueError), ({"max_tokens": 0}, ValueError),
    ({"temperature": 0.0}, ValueError), ({"multi_modal": [()]}, ValueError)])
def test_impossible_requests_are_refused(make, changes, error):
    with pytest.raises(error):
        turn(make(Notes()), **changes)
    assert turn(make(Notes()), 0) == []


def test_a_turn_that_fails_ends_the_others(make):
    class Failing(Notes):
        async def complete(self, context: Sequence[int], parameters: dict[str, Any], images: tuple[bytes, ...]
                           ) -> Completion:
            if parameters["seed"] == 1:
                raise ProcessError("gone", "start it")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.said.append("cancelled")
                raise
            raise AssertionError

    notes = Failing()
    with pytest.raises(ProcessError, match="gone"):
        turn(make(notes), seeds=[0, 1])
    assert notes.said == ["start", "cancelled"]


def test_a_cancelled_sample_ends_at_the_backend(make):
    begun, ended = threading.Event(), threading.Event()

    class Endless(Notes):
        async def complete(self, context: Sequence[int], parameters: dict[str, Any], images: tuple[bytes, ...]
                           ) -> Completion:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()
            raise AssertionError

    engine = make(Endless())

    async def give_up() -> None:
        task = asyncio.ensure_future(engine.sample((5,), seed=1, max_tokens=4, temperature=1.0, stop_tags=STOP))
        await asyncio.to_thread(begun.wait, 10)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(give_up())
    assert ended.wait(10)


def test_a_backend_that_does_not_start_is_closed(tmp_path, policy):
    class Broken(Notes):
        async def start(self) -> None:
            raise ConfigError("no", "yes")

    notes = Broken()
    with pytest.raises(ConfigError):
        VLLMEngine(notes, codec(), window=20, folder=given(tmp_path, policy))
    assert notes.said == ["close"]


# Weights as folders -------------------------------------------------------------------------------

def test_weights_are_written_in_parts_tied_ones_once_and_in_the_engines_precision(tmp_path):
    tied = torch.ones(4)
    weights = [("a", torch.zeros(3)), ("b", tied), ("tied", tied), ("c", torch.full((2, 2), 2.0))]
    write_weights(iter(weights), tmp_path, torch.bfloat16, shard_bytes=20)
    parts = [load_file(path) for path in sorted(tmp_path.glob("*.safetensors"))]
    assert [sorted(part) for part in parts] == [["a", "b"], ["c"]]
    assert all(tensor.dtype is torch.bfloat16 for part in parts for tensor in part.values())
    assert parts[1]["c"].tolist() == [[2, 2], [2, 2]]


def test_a_real_policys_weights_are_those_of_its_folder_tied_or_not(tmp_path):
    tied = model()  # its embeddings are
    save_policy(tied, tmp_path / "policy")
    with given(tmp_path, tmp_path / "policy").holding(tied.state_dict().items(), 1) as folder:
        assert list(folder.glob("*.safetensors"))


@pytest.mark.parametrize("weights", [
    [("w", torch.ones(3))], [("v", torch.ones(2))], [("w", torch.ones(2)), ("v", torch.ones(2))]])
def test_weights_of_another_policy_are_refused_and_leave_nothing(tmp_path, policy, weights):
    folder = given(tmp_path, policy)
    with pytest.raises(CheckpointError, match=r"weight [vw]"), folder.holding(weights, 1):
        raise AssertionError
    assert not list(folder.path.iterdir())
    with pytest.raises(DataError, match="no weights"), folder.holding([], 1):
        raise AssertionError
    with pytest.raises(CheckpointError, match=r"no \*\.safetensors"), folder.holding(tmp_path, 1):
        raise AssertionError


def test_one_process_writes_and_the_others_go_through_the_weights_with_it(tmp_path, policy):
    """The weights of a step are gathered by all: each must look at every one, or the others wait forever."""
    barrier, seen = threading.Barrier(2, timeout=20), {}

    def weights() -> Iterator[tuple[str, torch.Tensor]]:
        barrier.wait()
        yield "w", torch.full((2,), 5.0)
        barrier.wait()

    def take(writer: bool) -> None:
        with given(tmp_path, policy, writer=writer).holding(weights(), 3) as folder:
            seen[writer] = load_file(next(folder.glob("*.safetensors")))["w"].tolist()

    threads = [threading.Thread(target=take, args=(writer,)) for writer in (True, False)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert seen == {True: [5.0, 5.0], False: [5.0, 5.0]}


def test_the_newest_weights_alone_are_kept(tmp_path, policy):
    folder = given(tmp_path, policy)
    for version in (1, 2, 3):
        with folder.holding(W, version):
            pass
    assert [path.name for path in folder.path.iterdir()] == ["version-3"]
    folder.clear()
    assert not folder.path.exists()


def test_who_waits_for_a_process_that_does_not_come_gives_up():
    with pytest.raises(ProcessError, match="the address did not come"):
        wait_until(lambda: False, "the address", wait_s=0.01)


# The server's client ------------------------------------------------------------------------------

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
        server = Server("http://127.0.0.1:1", transport=httpx.MockTransport(handle))
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


def complete(server: Server) -> Any:
    return server.complete((1, 2), {"seed": 3}, (b"\x89PNG",))


def test_a_completion_travels_as_ids_and_comes_back_as_ids():
    found, request = asked(choice(), complete)
    assert found == Completion((5, 6), (-1.0, -2.0), "stop", ("2",))
    assert json.loads(request.content) == {
        "token_ids": [1, 2], "sampling_params": {"seed": 3},
        "content_parts": [{"type": "image_url", "url": "data:image/png;base64,iVBORw=="}]}


@pytest.mark.parametrize(("answer", "error"), [
    (choice(token_ids=[5, 7]), ProcessError), (choice(logprobs=None), ProcessError),
    (httpx.Response(200, json={}), ProcessError), (httpx.Response(200, text="hello"), ProcessError),
    (httpx.Response(400, json={"error": "no image"}), ConfigError), (httpx.Response(500), ProcessError),
    (httpx.Response(500, text="Out of range float values are not JSON compliant"), NonFiniteError),
    (httpx.ReadTimeout("slow"), ProcessError), (httpx.ConnectError("gone"), ProcessError)])
def test_an_answer_that_is_none_is_an_error_never_a_turn(answer, error):
    with pytest.raises(error):
        asked(answer, complete)


def test_weights_reach_the_server_as_a_path_and_a_name():
    _, request = asked(httpx.Response(200, json={}), lambda server: server.reload(Path("/given/version-7")))
    assert (request.url.path, json.loads(request.content)) == (
        "/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": "/given/version-7"}})
    _, request = asked(httpx.Response(200, json={}), lambda server: server.rename("7"))
    assert (request.url.path, json.loads(request.content)) == ("/update_weight_version", {"new_version": "7"})


# Processes ----------------------------------------------------------------------------------------

def test_children_have_other_variables_and_are_deaf_to_the_clusters_signals(monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("KEPT", "1")
    script = ("import os, signal; print([os.environ.get(n) for n in ('TORCHELASTIC_RUN_ID', 'KEPT', 'NEW')], "
              "sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])) == sorted([signal.SIGTERM, signal.SIGUSR1]))")
    before, mask = dict(os.environ), signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with environment({"NEW": "2", "KEPT": "3"}, without=("TORCHELASTIC_",)), deaf_children():
        said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[None, '3', '2'] True"
    assert dict(os.environ) == before
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == mask


# From a configuration -----------------------------------------------------------------------------

def test_without_vllm_the_environment_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"envs/gpu\.txt"), engines.make_engine(
            EngineConfig(kind="vllm"), codec(), policy=tmp_path, model=model, window=64, device="cpu",
            precision="float32", folder=tmp_path):
        raise AssertionError


def test_the_default_engine_samples_from_the_trainers_own_model(tmp_path):
    with engines.make_engine(EngineConfig(), codec(), policy=tmp_path, model=model, window=64, device="cpu",
                             precision="float32", folder=tmp_path) as engine:
        assert engine.generate([(5,)], seeds=None, max_tokens=1, temperature=1.0, stop_tags=STOP)


def test_each_engine_has_gpus_of_its_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert engines.gpus(1, 2, "cuda") == {"CUDA_VISIBLE_DEVICES": "6"}
    assert engines.gpus(2, 2, "cuda") == {"CUDA_VISIBLE_DEVICES": "6,7"}
    assert "CUDA_VISIBLE_DEVICES" not in engines.gpus(1, 9, "cpu")
    with pytest.raises(ConfigError, match="GPUs 3 to 4"):
        engines.gpus(2, 3, "cuda")


def test_processes_share_a_vllm_as_they_share_gpus():
    """Eight processes on eight GPUs: alone, by fours, or all with a server behind them."""
    def teams(**settings: Any) -> list[tuple[int, bool, int, int, bool]]:
        config = EngineConfig(kind="vllm", **settings)
        found = [engines.team_of(config, rank, 8) for rank in range(8)]
        return [(team.number, team.leads, team.first_gpu, team.gpus, team.serves) for team in found]

    assert teams() == [(rank, True, rank, 1, False) for rank in range(8)]
    assert teams(tensor_parallel=4) == [(rank // 4, rank % 4 == 0, rank // 4 * 4, 4, True) for rank in range(8)]
    assert teams(placement="server", gpus=2) == [(0, rank == 0, 8, 2, True) for rank in range(8)]
    with pytest.raises(ConfigError, match="does not divide"):
        teams(tensor_parallel=3)
    alone = engines.team_of(EngineConfig(kind="vllm", tensor_parallel=4), 0, 1)
    assert (alone.members, alone.gpus, alone.serves) == (1, 4, False)


def test_engine_options_never_take_a_models_own_preferences():
    for placement in ("colocate", "server"):
        options = engines.engine_options(EngineConfig(kind="vllm", placement=placement, gpus=4, tensor_parallel=2),
                                         "m", window=64, device="cuda", precision="bfloat16")
        assert (options["generation_config"], options["logprobs_mode"]) == ("vllm", "processed_logprobs")
        assert options.get("data_parallel_size") == (2 if placement == "server" else None)
        assert options.get("enable_sleep_mode") == (None if placement == "server" else True)
