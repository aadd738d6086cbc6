"""Starting the processes of one training run: torchrun, with what accelerate's file says in its environment.

``accelerate launch --config_file config/accelerate/NAME.yaml`` starts the same processes, but cannot be
told to pass on SLURM's warning (SIGUSR1), nor to wait for a checkpoint that takes minutes to write.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from turncredit.config.runtime import LaunchConfig
from turncredit.errors import ConfigError

SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"  # that torchrun passes on
SHUTDOWN_S = 1800  # how long processes may take to save after a signal, before they are killed
_PRECISIONS = {"float32": "no", "bfloat16": "bf16"}


def hand_over(launch: LaunchConfig, device: str, root: Path, program: Sequence[str]) -> NoReturn:
    """Become torchrun, which runs ``program`` in this node's share of the processes.

    Args:
        launch: how many there are.
        device: ``cpu`` or ``cuda``.
        root: the clone.
        program: a Python script and its arguments.

    Raises:
        ConfigError: no such file in ``config/accelerate``, or nobody says which node this is.
    """
    environment = {**os.environ, **accelerate_environment(launch, device, root)}
    os.execve(sys.executable, command(launch, program, os.environ), environment)


def command(launch: LaunchConfig, program: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """torchrun's call on this node."""
    return [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={launch.processes // launch.nodes}",
            *(["--standalone"] if launch.nodes == 1 else _meeting_point(launch, environment)),
            f"--signals-to-handle={SIGNALS}", f"--shutdown-timeout={SHUTDOWN_S}", *program]


def accelerate_environment(launch: LaunchConfig, device: str, root: Path) -> dict[str, str]:
    """What ``accelerate launch`` would put into the environment for its file, ``launch.precision`` going first.

    Raises:
        ConfigError: no such file, or accelerate refuses it.
    """
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    path = root / "config" / "accelerate" / f"{launch.accelerate}.yaml"
    if not path.is_file():
        known = sorted(found.stem for found in path.parent.glob("*.yaml"))
        raise ConfigError(f"launch.accelerate = {launch.accelerate!r}: no file {path}", f"known: {', '.join(known)}")
    arguments = launch_command_parser().parse_args([
        f"--config_file={path}", f"--mixed_precision={_PRECISIONS[launch.precision]}", "--main_process_port=0",
        f"--num_processes={launch.processes}", f"--num_machines={launch.nodes}", "program"])
    try:
        arguments, defaults, _ = _validate_launch_command(arguments)
        if arguments.use_deepspeed:
            arguments.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
            found = prepare_deepspeed_cmd_env(arguments)[1]
        else:
            found = prepare_multi_gpu_env(arguments)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: {error}", "compare it with the files beside it") from error
    new = {name: value for name, value in found.items() if os.environ.get(name) != value}
    return new | ({"ACCELERATE_USE_CPU": "true"} if device == "cpu" else {})


def _meeting_point(launch: LaunchConfig, environment: Mapping[str, str]) -> list[str]:
    """Where the nodes meet, and which of them this is: said by SLURM, or by whoever starts the nodes.

    Raises:
        ConfigError: nobody says it.
    """
    if "SLURM_NODEID" in environment:
        nodes = subprocess.run(["scontrol", "show", "hostnames", environment["SLURM_JOB_NODELIST"]], check=True,
                               capture_output=True, text=True).stdout.split()
        rank, address = environment["SLURM_NODEID"], nodes[0]
        port = str(20000 + int(environment["SLURM_JOB_ID"]) % 20000)
    else:
        try:
            rank, address, port = (environment[name] for name in ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT"))
        except KeyError as error:
            raise ConfigError(f"launch.nodes = {launch.nodes}, and {error} is not set",
                              "start this command once a node, with srun, or set NODE_RANK, MASTER_ADDR, MASTER_PORT"
                              ) from None
    return [f"--nnodes={launch.nodes}", f"--node-rank={rank}", f"--master-addr={address}", f"--master-port={port}"]
