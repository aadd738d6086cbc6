"""Engines from a configuration: which one, on which GPUs, shared by which processes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.policies import codec, model
from turncredit.config.runtime import EngineConfig
from turncredit.errors import ConfigError
from turncredit.policy.engines import make as engines


def test_a_missing_vllm_is_an_error_that_names_the_environment(monkeypatch, tmp_path):
    monkeypatch.setattr(engines.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"envs/gpu\.txt"), engines.make_engine(
            EngineConfig(kind="vllm"), codec(), policy=tmp_path, model=model, window=64, device="cpu",
            precision="float32", folder=tmp_path):
        raise AssertionError


def test_the_default_engine_samples_from_the_trainers_own_model(tmp_path):
    with engines.make_engine(EngineConfig(), codec(), policy=tmp_path, model=model, window=64, device="cpu",
                             precision="float32", folder=tmp_path) as engine:
        assert engine.generate([(5,)], seeds=None, max_tokens=1, temperature=1.0, stop_tags=())


def test_each_engine_has_gpus_of_its_own(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert engines.device_variables(1, 2, "cuda") == {"CUDA_VISIBLE_DEVICES": "6"}
    assert engines.device_variables(2, 2, "cuda") == {"CUDA_VISIBLE_DEVICES": "6,7"}
    assert "CUDA_VISIBLE_DEVICES" not in engines.device_variables(1, 9, "cpu")
    with pytest.raises(ConfigError, match="GPUs 3 to 4"):
        engines.device_variables(2, 3, "cuda")


def test_processes_that_share_gpus_share_a_vllm():
    """Eight processes on eight GPUs: each alone, in groups of four, or all with one server on further GPUs."""
    def groups(**settings: Any) -> list[tuple[int, bool, int, int, bool]]:
        config = EngineConfig(kind="vllm", **settings)
        found = [engines.engine_group(config, rank, 8) for rank in range(8)]
        return [(group.index, group.is_leader, group.first_gpu, group.gpus, group.is_server) for group in found]

    assert groups() == [(rank, True, rank, 1, False) for rank in range(8)]
    assert groups(tensor_parallel=4) == [(rank // 4, rank % 4 == 0, rank // 4 * 4, 4, True) for rank in range(8)]
    assert groups(mode="server", gpus=2) == [(0, rank == 0, 8, 2, True) for rank in range(8)]
    with pytest.raises(ConfigError, match="does not divide"):
        groups(tensor_parallel=3)
    alone = engines.engine_group(EngineConfig(kind="vllm", tensor_parallel=4), 0, 1)
    assert (alone.size, alone.gpus, alone.is_server) == (1, 4, False)


def test_engine_options_ignore_the_models_generation_config():
    for mode in ("colocate", "server"):
        options = engines.engine_options(EngineConfig(kind="vllm", mode=mode, gpus=4, tensor_parallel=2),
                                         "m", window=64, device="cuda", precision="bfloat16")
        assert (options["generation_config"], options["logprobs_mode"]) == ("vllm", "processed_logprobs")
        assert options.get("data_parallel_size") == (2 if mode == "server" else None)
        assert options.get("enable_sleep_mode") == (None if mode == "server" else True)
