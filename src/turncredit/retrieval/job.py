"""A retrieval server as a SLURM job of its own: submitted by its first user, asked for by its number."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from turncredit.config.retriever import ServerConfig
from turncredit.distributed.slurm import Site
from turncredit.errors import RetrieverError

_PATIENCE_S = 60.0  # of one call of a SLURM command
_ENDED = frozenset({"BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "DEADLINE", "FAILED", "NODE_FAIL",
                    "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT"})


def submit(command: Sequence[str], log: Path, server: ServerConfig, site: Site) -> str:
    """Submit a job that runs ``command``, and return its number.

    Args:
        command: of the server.
        log: where the job's output goes.
        server: what the job asks for.
        site: the cluster's ways.

    Raises:
        RetrieverError: there is no sbatch here, or it refuses the job.
    """
    done = _run(["sbatch", "--parsable", *options(server, site), f"--output={log}", "--wrap", shlex.join(command)])
    if done.returncode != 0:
        raise RetrieverError(f"sbatch refuses the retrieval server's job: {done.stderr.strip()}",
                             "mend retriever.server or profiles/slurm/site.yaml; where jobs may not submit jobs, start "
                             "it yourself: turncredit serve --linger-s 3600 in a job of your own")
    return done.stdout.strip().partition(";")[0]


def options(server: ServerConfig, site: Site) -> list[str]:
    """What sbatch is told.

    >>> options(ServerConfig(threads=8, mem_mb=64000, gpus=1), Site(gpu_partition="gpu", gpu_model="h100"))[3:]
    ['--mem=64000', '--time=1440', '--partition=gpu', '--gres=gpu:h100:1']
    """
    return ["--job-name=turncredit-retriever", "--nodes=1", f"--cpus-per-task={server.threads}",
            f"--mem={server.mem_mb}", f"--time={min(server.runtime, site.max_runtime)}", *_of_site(server, site)]


def is_waiting_or_running(job: str) -> bool:
    """Whether a job may still bring up a server; when SLURM does not answer, it may.

    Raises:
        RetrieverError: there is no squeue here.
    """
    done = _run(["squeue", "--noheader", "--jobs", job, "--format", "%T"])
    if done.returncode != 0:
        return "invalid job id" not in done.stderr.lower()
    return any(state and state not in _ENDED for state in done.stdout.split())


def _of_site(server: ServerConfig, site: Site) -> Iterator[str]:
    partition = site.gpu_partition or site.partition if server.gpus else site.partition
    for name, value in (("account", site.account), ("qos", site.qos), ("partition", partition),
                        ("constraint", site.constraint)):
        if value is not None:
            yield f"--{name}={value}"
    if server.gpus:
        model = f"{site.gpu_model}:" if site.gpu_model else ""
        yield f"--gres=gpu:{model}{server.gpus}" if site.gpus_by == "gres" else f"--gpus={model}{server.gpus}"
    yield from shlex.split(site.extra)


def _run(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=_PATIENCE_S)
    except FileNotFoundError as error:
        raise RetrieverError(f"there is no {command[0]} here", "retriever.location: job wants a SLURM cluster; write "
                             "local, or run where its commands are") from error
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", f"no answer from {command[0]} in {_PATIENCE_S:g} s")
