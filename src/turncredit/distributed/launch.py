"""Starts the processes of a training run with torchrun, configured by accelerate's files.

``accelerate launch --config_file config/accelerate/NAME.yaml`` starts the same processes, but it
cannot forward SLURM's warning (SIGUSR1), and it does not wait long enough for a large checkpoint.
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

SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"  # forwarded by torchrun
SHUTDOWN_S = 1800  # seconds that processes may save after a signal before torchrun kills them
_PRECISIONS = {"float32": "no", "bfloat16": "bf16"}


def relaunch_under_torchrun(launch: LaunchConfig, device: str, root: Path, program: Sequence[str]) -> NoReturn:
    """Replace this process by torchrun, which starts this node's processes of ``program``.

    Args:
        launch: number of processes and nodes.
        device: ``cpu`` or ``cuda``.
        root: the clone.
        program: a Python script and its arguments.

    Raises:
        ConfigError: ``config/accelerate`` has no such file, or the node's rank is unknown.
    """
    environment = {**os.environ, **accelerate_environment(launch, device, root)}
    os.execve(sys.executable, torchrun_command(launch, program, os.environ), environment)


def torchrun_command(launch: LaunchConfig, program: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Return torchrun's command line on this node; raises as ``relaunch_under_torchrun``."""
    return [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={launch.processes // launch.nodes}",
            *(["--standalone"] if launch.nodes == 1 else _rendezvous(launch, environment)),
            f"--signals-to-handle={SIGNALS}", f"--shutdown-timeout={SHUTDOWN_S}", *program]


def accelerate_environment(launch: LaunchConfig, device: str, root: Path) -> dict[str, str]:
    """Return the variables that ``accelerate launch`` would set for its file; ``launch.precision`` wins over the file.

    Raises:
        ConfigError: the file does not exist, or accelerate rejects it.
    """
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    path = root / "config" / "accelerate" / f"{launch.accelerate}.yaml"
    if not path.is_file():
        known = sorted(other.stem for other in path.parent.glob("*.yaml"))
        raise ConfigError(f"launch.accelerate = {launch.accelerate!r}: no file {path}", f"known: {', '.join(known)}")
    arguments = launch_command_parser().parse_args([
        f"--config_file={path}", f"--mixed_precision={_PRECISIONS[launch.precision]}", "--main_process_port=0",
        f"--num_processes={launch.processes}", f"--num_machines={launch.nodes}", "program"])
    try:
        arguments, defaults, _ = _validate_launch_command(arguments)
        if arguments.use_deepspeed:
            arguments.deepspeed_fields_from_accelerate_config = ",".join(defaults.deepspeed_config)
            variables = prepare_deepspeed_cmd_env(arguments)[1]
        else:
            variables = prepare_multi_gpu_env(arguments)
    except (ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: {error}", "compare it with the other files of that folder") from error
    new = {name: value for name, value in variables.items() if os.environ.get(name) != value}
    return new | ({"ACCELERATE_USE_CPU": "true"} if device == "cpu" else {})


def _rendezvous(launch: LaunchConfig, environment: Mapping[str, str]) -> list[str]:
    """The master's address and this node's rank, from SLURM's variables or from torchrun's.

    Raises:
        ConfigError: neither is set.
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
            raise ConfigError(
                f"launch.nodes = {launch.nodes}, but {error} is not set",
                "run this command once on each node with srun, or set NODE_RANK, MASTER_ADDR and MASTER_PORT"
                ) from None
    return [f"--nnodes={launch.nodes}", f"--node-rank={rank}", f"--master-addr={address}", f"--master-port={port}"]
