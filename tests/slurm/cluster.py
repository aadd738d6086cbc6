"""A SLURM cluster on this machine: munge, accounting, a controller, and two nodes with fake GPUs.

All daemons are children of this process and use free ports of 127.0.0.1. Every process of the cluster has ``MARK`` in
its environment, so that a process that is left behind is found. Needs root and Debian's packages.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from filelock import FileLock

MARK = "TURNCREDIT_TEST_CLUSTER"
CONF = Path("/etc/slurm/slurm.conf")  # SLURM_CONF does not reach the executor's inner srun
PACKAGES = ("slurmctld", "slurmd", "slurm-client", "slurmdbd", "munge", "mariadb-server")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "slurmdbd", "munged", "mariadbd", "mariadb-install-db")
NODES, CPUS, GPUS, MEMORY_MB = ("n1", "n2"), 3, 8, 32000
ACCOUNT, QOS = "turncredit-test", "patient"


def why_not() -> str | None:
    """The reason why no cluster can be started here, after trying to install its packages; None if it can."""
    if os.geteuid() != 0:
        return "only root can start the daemons of SLURM"
    if CONF.exists() and not _is_ours(CONF):
        return f"{CONF}: this machine already belongs to a SLURM cluster"
    if all(map(shutil.which, PROGRAMS)):
        return None
    if not shutil.which("apt-get"):
        return "no apt-get to install " + ", ".join(p for p in PROGRAMS if not shutil.which(p))
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}  # services are not started
    for command in (["update"], ["install", "-y", "--no-install-recommends", *PACKAGES]):
        done = subprocess.run(["apt-get", "-q", *command], env=quiet, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        if done.returncode:
            return f"apt-get {command[0]} failed: {done.stdout.strip().splitlines()[-1]}"
    return None


def _is_ours(conf: Path) -> bool:
    """Whether a cluster of these tests made this link."""
    return conf.is_symlink() and MARK in os.readlink(conf)


def marked(root: Path) -> dict[int, str]:
    """Processes of the cluster at ``root``: pid -> command line."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={root}".encode() in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()
        except OSError:
            continue  # ended meanwhile
    found.pop(os.getpid(), None)
    return {pid: command for pid, command in found.items() if command}  # no zombies


def until(condition: Callable[[], object], *, within_s: float, what: str, every_s: float = 0.05) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {within_s:g} s: {what}"
        time.sleep(every_s)


@dataclass
class Cluster:
    """A running cluster.

    Attributes:
        root: its files; a short path, because of the length limit of socket paths.
        environment: variables that make a process, and all that it starts, use the cluster.
    """

    root: Path
    _daemons: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return {MARK: str(self.root), "SLURM_CONF": str(self.root / "slurm.conf")}

    def run(self, *command: str) -> str:
        """The output of a SLURM command."""
        done = subprocess.run(command, env=os.environ | self.environment, text=True, capture_output=True,
                              stdin=subprocess.DEVNULL, timeout=60, check=False)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}"
        return done.stdout

    def jobs(self) -> list[dict[str, str]]:
        """Every job that SLURM remembers, as `scontrol show job` prints it, oldest first."""
        lines = self.run("scontrol", "--oneliner", "show", "job").splitlines()
        found = [dict(re.findall(r"(\S+?)=(\S*)", line)) for line in lines if line.startswith("JobId=")]
        return sorted(found, key=lambda job: int(job["JobId"]))

    def queue(self) -> list[str]:
        """Ids of all pending and running jobs."""
        return self.run("squeue", "--noheader", "--format=%i").split()

    def start(self) -> None:
        """Start all daemons."""
        _write_configuration(self.root)
        self._daemon("munged", "--foreground", "--force", f"--key-file={self.root}/munge.key",
                     f"--socket={self.root}/munge.socket", f"--pid-file={self.root}/munged.pid",
                     f"--log-file={self.root}/munged.log", f"--seed-file={self.root}/munged.seed")
        until((self.root / "munge.socket").exists, within_s=120, what="munged is up")
        self._start_accounting()
        self._daemon("slurmctld", "-D", "-f", f"{self.root}/slurm.conf")
        for node in NODES:
            self._daemon("slurmd", "-D", "-N", node, "-f", f"{self.root}/slurm.conf")
        CONF.parent.mkdir(parents=True, exist_ok=True)
        CONF.unlink(missing_ok=True)
        CONF.symlink_to(self.root / "slurm.conf")
        until(lambda: self._answers("sinfo", "--noheader", "--states=idle", "--Node", "--partition=cpu",
                                    "--format=%N").split() == list(NODES),
              within_s=300, every_s=0.3, what="both nodes are idle; see the logs in " + str(self.root))

    def _start_accounting(self) -> None:
        database = self.root / "db"
        made = subprocess.run(["mariadb-install-db", "--no-defaults", "--user=root", f"--datadir={database}",
                               "--auth-root-authentication-method=normal"], capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stdout + made.stderr
        (self.root / "grant.sql").write_text(
            "create database slurm;\ncreate user slurm@'127.0.0.1' identified by 'slurm';\n"
            "grant all on slurm.* to slurm@'127.0.0.1';\n")
        port = re.search(r"StoragePort=(\d+)", (self.root / "slurmdbd.conf").read_text())
        assert port is not None
        self._daemon("mariadbd", "--no-defaults", "--user=root", f"--datadir={database}", f"--port={port[1]}",
                     "--bind-address=127.0.0.1", "--skip-name-resolve", f"--socket={self.root}/db.socket",
                     f"--pid-file={self.root}/db.pid", f"--init-file={self.root}/grant.sql",
                     "--innodb-buffer-pool-size=64M", "--innodb-lock-wait-timeout=900")
        until((self.root / "db.socket").exists, within_s=300, what="mariadbd is up")
        self._daemon("slurmdbd", "-D")
        manager = ("sacctmgr", "--immediate")
        until(lambda: self._answers("sacctmgr", "--noheader", "list", "qos"), within_s=300, every_s=0.3,
              what="slurmdbd is up")
        self.run(*manager, "add", "cluster", "turncredit")
        self.run(*manager, "add", "qos", QOS)
        self.run(*manager, "add", "account", ACCOUNT, "Description=test", "Organization=test")
        self.run(*manager, "add", "user", "root", f"Account={ACCOUNT}", f"QOS=normal,{QOS}")

    def _answers(self, *command: str) -> str:
        done = subprocess.run(command, env=os.environ | self.environment, text=True, capture_output=True, check=False)
        return done.stdout if done.returncode == 0 else ""

    def _daemon(self, *command: str) -> None:
        with (self.root / f"{command[0]}-{len(self._daemons)}.log").open("w") as log:
            self._daemons.append(subprocess.Popen(command, env=os.environ | self.environment, stdout=log, stderr=log,
                                                  stdin=subprocess.DEVNULL, start_new_session=True, text=True))

    def stop(self) -> dict[int, str]:
        """Stop all jobs and daemons.

        Returns:
            Processes that had to be killed: pid -> command line.
        """
        daemons = {daemon.pid for daemon in self._daemons}
        if any(daemon.args[0] == "slurmctld" for daemon in self._daemons):
            self._answers("scancel", "--user=root")
        deadline = time.monotonic() + 30
        while (left := {pid: c for pid, c in marked(self.root).items() if pid not in daemons}):
            if time.monotonic() > deadline:
                break
            time.sleep(0.2)
        for pid in left:
            _kill(pid)
        for daemon in reversed(self._daemons):
            daemon.terminate()
            try:
                daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                left[daemon.pid] = str(daemon.args)
                daemon.kill()
                daemon.wait()
        if CONF.is_symlink() and Path(os.readlink(CONF)) == self.root / CONF.name:
            CONF.unlink()
        shutil.rmtree(self.root)
        return left


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@contextmanager
def running() -> Iterator[Cluster]:
    """A cluster while the block runs. Afterwards none of its processes is left, and none had to be killed.

    A machine runs one at a time, because there is one ``CONF``; a second one waits.
    """
    with FileLock(Path(tempfile.gettempdir()) / f"{MARK}.lock", timeout=7200):
        cluster = Cluster(Path(tempfile.mkdtemp(prefix=f"{MARK}-")))
        try:
            cluster.start()
            yield cluster
        finally:
            killed = cluster.stop()
        assert not killed, f"left behind: {killed}"


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def _write_configuration(root: Path) -> None:
    root.chmod(0o755)
    for name in ("state", "spool", *(f"spool/{node}" for node in NODES)):
        (root / name).mkdir()
    (root / "munge.key").write_bytes(os.urandom(1024))
    (root / "munge.key").chmod(0o400)
    for index in range(GPUS):  # SLURM requires device files: these are like /dev/null
        os.mknod(root / f"gpu{index}", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    host = socket.gethostname().split(".")[0]
    controller, accounting, database, *nodes = _free_ports(3 + len(NODES))
    auth = f"AuthType=auth/munge\nAuthInfo=socket={root}/munge.socket\n"
    (root / "slurmdbd.conf").write_text(f"""{auth}DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={accounting}
SlurmUser=root
PidFile={root}/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm
""")
    (root / "slurmdbd.conf").chmod(0o600)
    (root / "gres.conf").write_text(
        f"NodeName=n[1-{len(NODES)}] Name=gpu Type=fake File={root}/gpu[0-{GPUS - 1}] Flags=nvidia_gpu_env\n")
    node_lines = "\n".join(
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={CPUS} Boards=1 SocketsPerBoard=1 "
        f"CoresPerSocket={CPUS} ThreadsPerCore=1 RealMemory={MEMORY_MB} Gres=gpu:fake:{GPUS} State=UNKNOWN"
        for node, port in zip(NODES, nodes, strict=True))
    (root / "slurm.conf").write_text(f"""ClusterName=turncredit
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
SlurmUser=root
SlurmdUser=root
{auth}CryptoType=crypto/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={accounting}
AccountingStoragePass={root}/munge.socket
AccountingStorageTRES=gres/gpu
AccountingStoreFlags=job_comment
AccountingStorageEnforce=associations,qos
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
GresTypes=gpu
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MinJobAge=3600
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=60
InactiveLimit=0
KillWait=10
{node_lines}
PartitionName=cpu Nodes=ALL Default=YES PriorityTier=1 MaxTime=12:00:00 State=UP
PartitionName=gpu Nodes=ALL PriorityTier=1 MaxTime=12:00:00 State=UP
PartitionName=urgent Nodes=ALL PriorityTier=9 MaxTime=12:00:00 State=UP
""")
