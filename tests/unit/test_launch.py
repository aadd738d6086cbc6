"""Processes are started as accelerate's files say, and SLURM's signals reach them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from accelerate.utils import FullyShardedDataParallelPlugin

from turncredit.config.runtime import LaunchConfig
from turncredit.distributed.launch import accelerate_environment, torchrun_command
from turncredit.distributed.layout import local_packs, offloads_all
from turncredit.distributed.processes import Processes
from turncredit.errors import ConfigError

CLONE = Path(__file__).parents[2]


def environment_of(name: str, **launch) -> dict[str, str]:
    return accelerate_environment(LaunchConfig(accelerate=name, **launch), "cuda", CLONE)


@pytest.mark.parametrize(("name", "processes", "nodes", "offloaded"), [
    ("fsdp_8", 8, 1, True), ("fsdp_nodes", 16, 2, False)])
def test_fsdp_files_shard_by_layers_and_offload_as_they_say(monkeypatch, name, processes, nodes, offloaded):
    found = environment_of(name, processes=processes, nodes=nodes, precision="bfloat16")
    assert (found["ACCELERATE_USE_FSDP"], found["ACCELERATE_MIXED_PRECISION"]) == ("true", "bf16")
    for key, value in found.items():
        monkeypatch.setenv(key, value)
    plugin = FullyShardedDataParallelPlugin()
    assert (plugin.fsdp_version, plugin.reshard_after_forward, offloads_all(plugin)) == (2, True, offloaded)
    assert not plugin.activation_checkpointing  # it would be done twice


def test_zero3_offloads_nothing():
    found = environment_of("zero3", processes=7)
    assert (found["ACCELERATE_USE_DEEPSPEED"], found["ACCELERATE_DEEPSPEED_ZERO_STAGE"]) == ("true", "3")
    assert {found[f"ACCELERATE_DEEPSPEED_OFFLOAD_{part}_DEVICE"] for part in ("OPTIMIZER", "PARAM")} == {"none"}


def test_the_precision_of_the_run_goes_before_that_of_the_file():
    assert environment_of("fsdp_8", processes=8)["ACCELERATE_MIXED_PRECISION"] == "no"


def test_an_unknown_file_is_named_with_those_there_are():
    with pytest.raises(ConfigError, match=r"no file .*fsdp_9\.yaml") as refused:
        environment_of("fsdp_9", processes=8)
    assert refused.value.remedy == "known: fsdp_8, fsdp_nodes, one_gpu, zero3"


def test_one_node_takes_a_free_port_and_passes_the_warning_on():
    called = torchrun_command(LaunchConfig(processes=8, accelerate="fsdp_8"), ["turncredit", "train"], {})
    assert {"--nproc-per-node=8", "--standalone"} < {*called}
    signals = next(part for part in called if part.startswith("--signals-to-handle="))
    assert {"SIGTERM", "SIGUSR1"} < {*signals.partition("=")[2].split(",")}
    assert called[-2:] == ["turncredit", "train"]


def test_nodes_meet_at_the_first_one_of_the_job(tmp_path, monkeypatch):
    scontrol = tmp_path / "scontrol"
    scontrol.write_text("#!/bin/sh\nprintf 'node3\\nnode4\\n'\n")
    scontrol.chmod(scontrol.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    launch = LaunchConfig(processes=16, nodes=2, accelerate="fsdp_nodes")
    slurm = {"SLURM_NODEID": "1", "SLURM_JOB_NODELIST": "node[3-4]", "SLURM_JOB_ID": "12345"}
    called = torchrun_command(launch, ["train"], slurm)
    assert {"--nnodes=2", "--node-rank=1", "--nproc-per-node=8"} < {*called}
    assert {"--master-addr=node3", "--master-port=32345"} < {*called}
    by_hand = torchrun_command(launch, ["train"], {"NODE_RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "29500"})
    assert {"--node-rank=0", "--master-addr=a", "--master-port=29500"} < {*by_hand}
    with pytest.raises(ConfigError, match="'NODE_RANK' is not set"):
        torchrun_command(launch, ["train"], {})


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("packs", [1, 2, 7, 8, 9])
def test_every_pack_counts_once_and_all_processes_make_as_many_passes(packs, count):
    parts = [local_packs(range(packs), Processes(rank, count)) for rank in range(count)]
    assert sorted(pack for part in parts for pack, counts in part if counts) == list(range(packs))
    assert len({len(part) for part in parts}) == 1


def test_another_number_of_processes_than_asked_for_is_refused(monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(ConfigError, match=r"launch\.processes = 2, but the world size is 1"):
        Processes.join(2, "cpu")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"launch\.processes = 1, but the world size is 2\n"):
        Processes.join(1, "cpu")
