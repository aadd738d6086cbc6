"""A server that is a job of its own: how it is submitted, found, shared and ended; SLURM is played by two scripts."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.encoders import HIDDEN, faiss_config, passages, write_corpus, write_encoder
from tests.tolerance import assert_close
from turncredit.config.retriever import RetrieverConfig, ServerConfig
from turncredit.data.corpus import PassageTable, build_table
from turncredit.distributed.slurm import Site
from turncredit.errors import RetrieverError
from turncredit.retrieval import lifecycle
from turncredit.retrieval.client import LostServerError
from turncredit.retrieval.dense import build_dense
from turncredit.retrieval.encoder import Encoder, embed_shard
from turncredit.retrieval.lifecycle import Address, ServerDir, SharedRetriever, retriever
from turncredit.retrieval.server import check_reachable
from turncredit.retrieval.slurm_job import is_queued_or_running, sbatch_options, submit
from turncredit.retrieval.vectors import read_shards

# Runs what it wraps as a process of its own, whose number is the job's.
SBATCH = """#!/bin/sh
echo "$@" >> {jobs}/asked
for last; do :; done
for word; do case "$word" in --output=*) out=${{word#--output=}};; esac; done
( {run} exec setsid sh -c "exec $last" ) > "$out" 2>&1 < /dev/null &
echo $!
"""
SQUEUE = """#!/bin/sh
while [ "$1" != --jobs ]; do shift; done
kill -0 "$2" 2> /dev/null && grep -qv '^State:.Z' /proc/$2/status && ! grep -q '^State:.Z' /proc/$2/status \\
  && echo RUNNING || {{ echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }}
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """The two commands; returns the folder where sbatch notes what it was asked."""
    def install(run=""):
        folder = tmp_path / "slurm"
        folder.mkdir(exist_ok=True)
        for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE)):
            (folder / name).write_text(text.format(jobs=folder, run=run))
            (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        return folder

    return install


@pytest.fixture
def index(tmp_path):
    config = faiss_config(write_encoder(tmp_path / "encoder"), query_prefix="passage: ")  # a text finds itself
    build_table(write_corpus(tmp_path / "corpus.jsonl", passages(30)), tmp_path / "index" / "passages")
    table, encoder = PassageTable(tmp_path / "index" / "passages"), Encoder(config)
    embed_shard(table, encoder, tmp_path / "embeddings", 0, 1)
    vectors, identity = read_shards(tmp_path / "embeddings", 1, table.manifest.sha256, len(table))
    build_dense(vectors, identity, table.manifest.sha256, tmp_path / "index", config)
    return tmp_path / "index"


def settings(encoder, **server):
    return RetrieverConfig.model_validate({
        "kind": "faiss", "faiss": faiss_config(encoder, query_prefix="passage: ").model_dump(), "location": "job",
        "timeout_s": 60,
        "server": {"host": "127.0.0.1", "lease_s": 6, "linger_s": 1, "start_s": 500, **server}})


def wait_until_gone(url):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            httpx.get(f"{url}/health", timeout=60, trust_env=False)
        except httpx.TransportError:
            return
        time.sleep(0.1)
    pytest.fail("the server outlives its users")


def test_users_share_one_job_that_survives_a_killed_user_and_ends_with_the_last(tmp_path, index, slurm):
    folder = slurm()
    config = settings(tmp_path / "encoder")
    code = ("import sys, time; from pathlib import Path; from turncredit.config.retriever import RetrieverConfig; "
            "from turncredit.retrieval.lifecycle import retriever\n"
            "config = RetrieverConfig.model_validate_json(sys.argv[2])\n"
            "with retriever(Path(sys.argv[1]), config, poll_s=1) as r:\n"
            "    print(r.url, flush=True)\n"
            "    time.sleep(600)")
    with retriever(index, config, poll_s=0.5) as client:
        assert client.url.startswith("http://127.0.0.1:")
        with subprocess.Popen([sys.executable, "-c", code, str(index), config.to_json()], stdout=subprocess.PIPE,
                              text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}) as other:
            assert other.stdout.readline().strip() == client.url
            other.send_signal(signal.SIGKILL)
        [found] = client.search([f'"T4" {passages(30)[4]}'], 1)[0]
        assert (found.id, found.text) == ("p4", passages(30)[4])
        assert_close(found.score, 1.0, terms=HIDDEN)  # a product of two vectors of length 1
    wait_until_gone(client.url)  # the killed user's lease is void by then
    assert (folder / "asked").read_text().count("--job-name=turncredit-retriever") == 1
    assert ServerDir(index, lease_s=6).address() is None


def test_a_job_that_ends_before_it_serves_shows_its_log(tmp_path, index, slurm):
    slurm()
    (index / "faiss" / "vectors.npy").unlink()
    with pytest.raises(RetrieverError, match=r"(?s)job \d+\) ended before it was up.*no matrix of vectors"), \
            retriever(index, settings(tmp_path / "encoder"), poll_s=0.5):
        pass


def test_a_job_that_waits_in_the_queue_for_too_long_is_said_and_not_submitted_again(tmp_path, index, slurm):
    folder = slurm(run="exec sleep 600;")
    config = settings(tmp_path / "encoder", start_s=1)
    for _ in range(2):
        with pytest.raises(RetrieverError, match=r"not up after 1 s: it waits in the queue"), \
                retriever(index, config, poll_s=0.5):
            pass
    assert (folder / "asked").read_text().count("--parsable") == 1
    os.kill(int(ServerDir(index, lease_s=6).job), signal.SIGKILL)


def test_without_slurm_it_is_said(tmp_path, index, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RetrieverError, match=r"there is no sbatch here(?s:.*)location"), \
            retriever(index, settings(tmp_path / "encoder"), poll_s=0.5):
        pass


def test_what_sbatch_is_asked_for():
    server = ServerConfig(threads=16, mem_mb=96_000, gpus=2, runtime=5000)
    site = Site(account="lab", partition="cpu", gpu_partition="gpu", gpus_by="gpus", max_runtime=2880,
                extra="--reservation=mine --exclusive")
    assert sbatch_options(server, site)[2:] == [
        "--cpus-per-task=16", "--mem=96000", "--time=2880", "--account=lab", "--partition=gpu", "--gpus=2",
        "--reservation=mine", "--exclusive"]
    assert "--partition=cpu" in sbatch_options(server.model_copy(update={"gpus": 0}), site)


def test_a_slurm_that_does_not_answer_says_nothing_about_a_job(slurm):
    folder = slurm()
    assert not is_queued_or_running("999999999")
    (folder / "squeue").write_text("#!/bin/sh\necho 'Unable to contact slurm controller' >&2; exit 1\n")
    assert is_queued_or_running("999999999")
    for state, alive in (("PENDING", True), ("RUNNING", True), ("COMPLETING", False), ("", False)):
        (folder / "squeue").write_text(f"#!/bin/sh\necho {state}\n")
        assert is_queued_or_running("1") == alive


@pytest.mark.parametrize(("answer", "job"), [
    ("77", "77"), ("77;cluster-a", "77;cluster-a"), ("Welcome to the site\n77", "77"), ("77\n\n", "77"),
    ("note: 3 nodes are down\n77;west", "77;west")])
def test_the_id_of_a_job_is_found_in_what_a_site_prints(slurm, tmp_path, answer, job):
    folder = slurm()
    (folder / "sbatch").write_text(f"#!/bin/sh\ncat <<'E'\n{answer}\nE\n")
    assert submit(["true"], tmp_path / "log", ServerConfig(), Site()) == job
    (folder / "squeue").write_text("#!/bin/sh\necho \"$@\" > " + str(folder / "told")
                                   + "\necho 'CLUSTER: west'\necho RUNNING\n")
    assert is_queued_or_running(job)
    assert ("--clusters" in (folder / "told").read_text()) == (";" in job)
    assert "--jobs 77 " in (folder / "told").read_text()


def test_a_refusal_without_an_exit_code_is_an_error(slurm, tmp_path):
    (slurm() / "sbatch").write_text("#!/bin/sh\necho 'error: account missing'\n")
    with pytest.raises(RetrieverError, match="account missing"):
        submit(["true"], tmp_path / "log", ServerConfig(), Site())


def test_a_host_name_that_others_cannot_reach_is_refused(monkeypatch):
    for addresses, wrong in ((["127.0.1.1"], True), (["::1", "127.0.0.1"], True), (["127.0.1.1", "10.0.0.7"], False)):
        monkeypatch.setattr("socket.getaddrinfo", lambda name, port, found=addresses: [
            (0, 0, 0, "", (address, 0)) for address in found])
        if wrong:
            with pytest.raises(RetrieverError, match="other machines cannot reach it"):
                check_reachable("node7")
        else:
            check_reachable("node7")


class Server:
    """A client of one server, which answers until it is stopped."""

    def __init__(self, url):
        self.url, self.stopped = url, False

    def search(self, queries, top_k):
        if self.stopped:
            raise LostServerError(f"{self.url}: no answer")
        return [[self.url] for _ in queries]

    def close(self):
        self.closed = True


def test_a_lost_server_is_replaced_once_for_all_who_search():
    servers = [Server("a"), Server("b"), Server("c")]
    waiting = iter(servers)
    shared = SharedRetriever(lambda: next(waiting))
    assert shared.search(["q"], 1) == [["a"]]
    servers[0].stopped = True
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: shared.search(["q"], 1), range(8))) == [[["b"]]] * 8
    assert shared.url == "b"
    assert servers[0].closed
    servers[1].stopped = servers[2].stopped = True
    with pytest.raises(LostServerError, match="c: no answer"):
        shared.search(["q"], 1)


def test_a_lease_lasts_while_it_is_touched_whatever_the_clocks_say(tmp_path, monkeypatch):
    place, user = ServerDir(tmp_path, lease_s=0.6), ServerDir(tmp_path, lease_s=0.6)
    with user.locked(5):
        lease = user.lease()
        lease.__enter__()
    [path] = (place.folder / "leases").iterdir()
    for _ in range(4):
        assert place.in_use()
        time.sleep(0.3)
    monkeypatch.setattr(lifecycle.os, "utime", lambda path: None)  # its process hangs
    stamp = time.time() + 1e6
    os.system(f"touch -d @{stamp:.0f} {path}")  # a clock that is ahead
    assert place.in_use()
    deadline = time.monotonic() + 30
    while place.in_use():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert not path.exists()
    lease.__exit__(None, None, None)


def test_a_server_takes_back_its_own_address_only(tmp_path):
    place = ServerDir(tmp_path, lease_s=1)
    mine, other = (Address(url=f"http://h:{n}", pid=n, index_sha256="a") for n in (1, 2))
    with place.locked(5):
        place.publish(mine)
        place.retract(other)
        assert place.address() == mine
        place.retract(mine)
    assert place.address() is None
    shutil.rmtree(tmp_path / "server")
    place.retract(mine)
