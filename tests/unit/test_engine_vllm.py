"""VLLMEngine without vLLM: where turns end, sampling parameters, sleep, weights and prefixes."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.policies import codec, foreign_codec
from turncredit.errors import ConfigError, NonFiniteError, ProcessError
from turncredit.policy.engines.vllm import Completion, VLLMEngine, sampling_parameters, to_sample, turn_end
from turncredit.policy.engines.weights import WeightFolder, write_weights
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


def test_characters_after_the_tag_in_its_last_token_stay_and_later_tokens_are_cut():
    c = foreign_codec()
    ids = tuple(c.tokenizer("Kenya</search>. Nairobi", add_special_tokens=False)["input_ids"])
    one = to_sample(Completion(ids, tuple(-float(t) - 1 for t in range(len(ids))), "stop", ("3",)), c, 40, STOP)
    assert (c.decode(one.ids), one.stop, one.weight_version) == ("Kenya</search>.", TurnStop.TAG, 3)
    assert one.logprobs == tuple(-float(t) - 1 for t in range(len(one.ids)))


def test_an_id_beyond_the_tokenizer_does_not_end_a_turn():
    assert turn_end([5000], codec(), STOP) == (1, None)


@pytest.mark.parametrize(("ids", "logprobs", "versions", "error"), [
    ((5, 6), (-1.0, float("nan")), ("0",), NonFiniteError),
    ((5, 6), (-1.0, -float("inf")), ("0",), NonFiniteError),
    ((5, 6), (-1.0, -9999.0), ("0",), NonFiniteError),
    ((5, 6), (-1.0,), ("0",), ProcessError),
    ((5,), (-1.0,), ("0",), ProcessError),  # no tag, no end id, below the limit
    ((5, 6), (-1.0, -1.0), ("0", "1"), ProcessError),
    ((5, 6), (-1.0, -1.0), (), ProcessError)])
def test_an_invalid_completion_is_an_error(ids, logprobs, versions, error):
    with pytest.raises(error):
        to_sample(Completion(ids, logprobs, "stop", versions), codec(), 2, STOP)
    assert to_sample(Completion((5, 6), (-1.0, -1.0), "length", ("0",)), codec(), 2, STOP).stop is TurnStop.LENGTH


# Sampling parameters ------------------------------------------------------------------------------

def test_a_seed_samples_at_its_temperature_and_none_is_greedy():
    asked = sampling_parameters(codec(), 2**63 - 1, 9, 0.7, STOP)
    assert (asked["seed"], asked["temperature"], asked["stop"]) == (2**63 - 1, 0.7, list(STOP))
    assert asked["stop_token_ids"] == sorted(codec().end_ids)
    assert json.loads(json.dumps(asked)) == asked
    assert sampling_parameters(codec(), None, 9, 1.0, STOP)["temperature"] == 0


@pytest.mark.parametrize(("seed", "temperature"), [(None, 0.7), (1, 0.001)])
def test_temperatures_that_vllm_would_change_are_refused(seed, temperature):
    with pytest.raises(ValueError, match="temperature"):
        sampling_parameters(codec(), seed, 9, temperature, STOP)


# Sleep, weights and prefixes ----------------------------------------------------------------------

@dataclass
class FakeBackend:
    """A backend that backend what it is told and says one end id."""

    calls: list[str] = field(default_factory=list)
    resets: bool = True
    now: str = "default"

    async def start(self) -> None:
        self.calls.append("start")

    async def complete(self, context: Sequence[int], parameters: dict[str, Any]) -> Completion:
        self.calls.append("turn")
        return Completion((min(codec().end_ids),), (-1.0,), "stop", (self.now,))

    async def load_weights(self, folder: Path) -> None:
        self.calls.append(f"load {sorted(load_file(next(folder.glob('*.safetensors'))))}")

    async def set_version(self, version: str) -> None:
        self.calls.append(f"version {version}")
        self.now = version

    async def get_version(self) -> str:
        return self.now

    async def reset_prefix_cache(self) -> bool:
        self.calls.append("reset")
        return self.resets

    async def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")

    async def wake_up(self, tags: list[str]) -> None:
        await asyncio.sleep(0)
        self.calls.append(f"wake {' '.join(tags)}")

    async def close(self) -> None:
        self.calls.append("close")


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

    def engine(backend: FakeBackend, level: int = 0, **shares: bool) -> VLLMEngine:
        folder = given(tmp_path, policy, is_writer=shares.get("is_leader", True))
        made.append(VLLMEngine(backend, codec(), window=20, folder=folder, sleep_level=level, **shares))
        return made[-1]

    yield engine
    for one in made:
        one.close()


def turn(engine: VLLMEngine, rows: int = 2, **changes: Any) -> list[Any]:
    return engine.generate([(5, 6)] * rows, **{"seeds": None, "max_tokens": 4, "temperature": 1.0, "stop_tags": STOP}
                           | changes)


W = [("w", torch.zeros(2))]


def test_a_sleeping_engine_wakes_once_and_prefixes_are_dropped_with_the_old_weights(make):
    backend = FakeBackend()
    engine = make(backend, level=2)
    engine.sleep()
    engine.sleep()
    engine.update_weights(W, 4)
    assert [one.weight_version for one in turn(engine)] == [4, 4]
    turn(engine, 1)
    assert backend.calls == ["start", "sleep 2", "wake weights", "load ['w']", "version 4", "wake kv_cache",
                          "turn", "turn", "turn"]


def test_new_weights_reset_the_prefix_cache_of_an_engine_that_is_awake(make):
    backend = FakeBackend()
    engine = make(backend)
    turn(engine, 1)
    engine.sleep()  # level 0
    engine.update_weights(W, 1)
    assert backend.calls == ["start", "turn", "load ['w']", "reset", "version 1"]
    assert engine.weight_version == 1


def test_after_sleep_level_2_a_turn_needs_new_weights(make):
    engine = make(FakeBackend(), level=2)
    engine.sleep()
    with pytest.raises(ValueError, match="dropped"):
        turn(engine)
    light = make(FakeBackend(), level=1)
    light.sleep()
    assert len(turn(light)) == 2


def test_one_process_of_a_group_updates_the_weights_and_the_others_wait_for_the_version(make):
    """The version is set last: a process that has seen it samples from new weights, without old prefixes."""
    backend = FakeBackend()
    leader, member = make(backend, level=2, shared=True), make(backend, level=2, shared=True, is_leader=False)
    for engine in (member, leader):
        engine.sleep()
        engine.reset_prefix_cache()  # others may be sampling
    waiting = threading.Thread(target=member.update_weights, args=(W, 8))
    waiting.start()
    leader.update_weights(W, 8)
    waiting.join(20)
    assert [turn(engine, 1)[0].weight_version for engine in (leader, member)] == [8, 8]
    assert backend.calls == ["start", "start", "sleep 2", "wake weights", "load ['w']", "wake kv_cache", "version 8",
                          "turn", "turn"]


def test_resetting_prefixes_during_turns_is_an_error(make):
    with pytest.raises(ProcessError, match="in progress"):
        make(FakeBackend(resets=False)).reset_prefix_cache()


@pytest.mark.parametrize(("changes", "error"), [
    ({"max_tokens": 19}, ConfigError), ({"seeds": [1]}, ValueError), ({"max_tokens": 0}, ValueError),
    ({"temperature": 0.0}, ValueError)])
def test_impossible_requests_are_refused(make, changes, error):
    with pytest.raises(error):
        turn(make(FakeBackend()), **changes)
    assert turn(make(FakeBackend()), 0) == []


def test_a_turn_that_fails_ends_the_others(make):
    class Failing(FakeBackend):
        async def complete(self, context: Sequence[int], parameters: dict[str, Any]) -> Completion:
            if parameters["seed"] == 1:
                raise ProcessError("gone", "start it")
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.calls.append("cancelled")
                raise
            raise AssertionError

    backend = Failing()
    with pytest.raises(ProcessError, match="gone"):
        turn(make(backend), seeds=[0, 1])
    assert backend.calls == ["start", "cancelled"]


def test_a_cancelled_sample_ends_at_the_backend(make):
    begun, ended = threading.Event(), threading.Event()

    class Endless(FakeBackend):
        async def complete(self, context: Sequence[int], parameters: dict[str, Any]) -> Completion:
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
    class Broken(FakeBackend):
        async def start(self) -> None:
            raise ConfigError("no", "yes")

    backend = Broken()
    with pytest.raises(ConfigError):
        VLLMEngine(backend, codec(), window=20, folder=given(tmp_path, policy))
    assert backend.calls == ["close"]
