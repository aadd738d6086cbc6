"""SLURM jobs of retrieval servers: submitting one, and whether it may still bring up its server."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path

from turncredit.config.retriever import ServerConfig
from turncredit.distributed.slurm import Site
from turncredit.errors import RetrieverError

_COMMAND_TIMEOUT_S = 60.0  # of a SLURM command
_WAITING_STATES = frozenset({"CONFIGURING", "PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESIZING", "RUNNING",
                             "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED"})
_JOB = re.compile(r"\d+(;[\w.-]+)?")  # of sbatch --parsable; the cluster where there are several


def is_queued_or_running(job: str) -> bool:
    """Whether a SLURM job may still bring up a server; True if SLURM does not answer.

    Raises:
        RetrieverError: there is no squeue here.
    """
    number, _, cluster = job.partition(";")
    done = _slurm("squeue", "--noheader", *([f"--clusters={cluster}"] if cluster else []), "--jobs", number,
                  "--format", "%T")
    if done.returncode != 0:
        return "invalid job id" not in done.stderr.lower()
    return bool(_WAITING_STATES & {*done.stdout.split()})  # other words: ended states, a banner, "CLUSTER: name"


def sbatch_options(server: ServerConfig, site: Site) -> list[str]:
    """Options of sbatch for a server's job.

    >>> sbatch_options(ServerConfig(threads=8, mem_mb=64000, gpus=1), Site(gpu_partition="gpu", gpu_model="h100"))[3:]
    ['--mem=64000', '--time=1440', '--partition=gpu', '--gres=gpu:h100:1']
    """
    options = ["--job-name=turncredit-retriever", "--nodes=1", f"--cpus-per-task={server.threads}",
               f"--mem={server.mem_mb}", f"--time={min(server.runtime, site.max_runtime)}"]
    partition = site.gpu_partition or site.partition if server.gpus else site.partition
    named = {"account": site.account, "qos": site.qos, "partition": partition, "constraint": site.constraint}
    options += [f"--{name}={value}" for name, value in named.items() if value is not None]
    if server.gpus:
        model = f"{site.gpu_model}:" if site.gpu_model else ""
        options.append(f"--gres=gpu:{model}{server.gpus}" if site.gpus_by == "gres" else f"--gpus={model}{server.gpus}")
    return [*options, *shlex.split(site.extra)]


def submit(command: Sequence[str], log: Path, server: ServerConfig, site: Site) -> str:
    """Submit a job that runs ``command`` and writes to ``log``; returns its id, as ``77`` or ``77;cluster``.

    Raises:
        RetrieverError: there is no sbatch here, or it rejects the job.
    """
    options = [*sbatch_options(server, site), f"--output={log}"]
    done = _slurm("sbatch", "--parsable", *options, "--wrap", shlex.join(command))
    ids = [line for line in map(str.strip, done.stdout.splitlines()) if _JOB.fullmatch(line)]  # sites print banners too
    if done.returncode != 0 or not ids:
        raise RetrieverError(f"sbatch rejects the retrieval server's job: {(done.stderr or done.stdout).strip()}",
                             "correct retriever.server or profiles/slurm/site.yaml; where jobs may not submit jobs, "
                             "submit one that runs: turncredit serve --linger-s 3600")
    return ids[-1]


def _slurm(*command: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_COMMAND_TIMEOUT_S)
    except FileNotFoundError as error:
        raise RetrieverError(f"there is no {command[0]} here", "retriever.location: job needs a SLURM cluster; write "
                             "local, or run where its commands are") from error
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer from {command[0]} in {_COMMAND_TIMEOUT_S:g} s")
