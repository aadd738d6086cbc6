"""Real Lucene: an index, its server, its users; and what the mini world asks of it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import httpx
import pytest

from turncredit.config.data import WorldConfig
from turncredit.config.retriever import RetrieverConfig
from turncredit.data.questions import read_questions
from turncredit.errors import DataError, RetrieverError
from turncredit.files import sha256
from turncredit.miniature.build import build_world
from turncredit.retrieval.bm25 import build_index
from turncredit.retrieval.lifecycle import ServerDir, retriever
from turncredit.retrieval.manifest import read_manifest

CONFIG = RetrieverConfig(timeout_s=60, retries=1)
IMPATIENT = RetrieverConfig(timeout_s=5, retries=0)
PASSAGES = ["The capital of Kenya is Nairobi.", "The currency of Kenya is Shilling.",
            "The capital of Peru is Lima.", "Nairobi is a city in Kenya."]


def write_corpus(path, passages):
    path.write_text("".join(json.dumps({"id": f"{n:03d}", "contents": f'"T{n}"\n{text}'}) + "\n"
                            for n, text in enumerate(passages)))
    return path


@pytest.fixture
def index(tmp_path):
    build_index(write_corpus(tmp_path / "corpus.jsonl", PASSAGES), tmp_path / "index", k1=CONFIG.k1, b=CONFIG.b)
    return tmp_path / "index"


def pid_of(client):
    return httpx.get(f"{client.url}/health", timeout=60, trust_env=False).json()["pid"]


def wait_until_gone(url):
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            httpx.get(f"{url}/health", timeout=60, trust_env=False)
        except httpx.TransportError:
            return
        time.sleep(0.1)
    pytest.fail("the server outlives its users")


def test_the_manifest_tells_what_was_indexed(tmp_path, index):
    manifest = read_manifest(index)
    assert manifest.documents == len(PASSAGES)
    assert manifest.sha256 == sha256(tmp_path / "corpus.jsonl")
    assert manifest.size_bytes > 0
    assert sorted(p.name for p in index.iterdir()) == ["index.json", "lucene"]


def test_a_bad_corpus_leaves_the_old_index_as_it_was(tmp_path, index):
    before = read_manifest(index)
    (tmp_path / "bad.jsonl").write_text('{"id": "1"}\n')
    with pytest.raises(DataError, match=r"bad\.jsonl:1"):
        build_index(tmp_path / "bad.jsonl", index, k1=0.9, b=0.4)
    assert read_manifest(index) == before


def test_a_folder_without_a_finished_index_is_refused(tmp_path, index):
    (index / "index.json").unlink()
    with pytest.raises(DataError, match="no finished index"), retriever(index, CONFIG):
        pass
    (index / "index.json").write_text('{"documents": 3}')
    with pytest.raises(DataError, match="not an index manifest"), retriever(index, CONFIG):
        pass


def test_other_parameters_than_the_index_s_are_refused(index):
    other = CONFIG.model_copy(update={"k1": 1.2})
    with pytest.raises(DataError, match=r"built for k1 = 0\.9"), retriever(index, other):
        pass


def test_users_share_one_server_that_goes_after_the_last(index):
    code = ("import sys, httpx; from pathlib import Path; from turncredit.config.retriever import RetrieverConfig; "
            "from turncredit.retrieval.lifecycle import retriever\n"
            "with retriever(Path(sys.argv[1]), RetrieverConfig(timeout_s=60)) as r:\n"
            "    print(r.url, r.search(['capital of Peru'], 1)[0][0].text)")
    with retriever(index, CONFIG, linger_s=0.5) as one:
        with retriever(index, CONFIG, linger_s=0.5) as two:
            assert one.url == two.url
            other = subprocess.run([sys.executable, "-c", code, str(index)], check=True, capture_output=True, text=True)
            assert other.stdout.split(maxsplit=1) == [one.url, "The capital of Peru is Lima.\n"]
            assert one.search(["capital of Kenya"], 2) == two.search(["capital of Kenya"], 2)
        time.sleep(2.5)  # longer than it lingers: the first user still holds its lease
        [found, nothing, blank, operators, again] = one.search(
            ["capital of Kenya", "the", "", 'Peru AND (NOT "Lima~ [a TO', "capital of Kenya"], 2)
        assert found[0].text == PASSAGES[0]
        assert found[0].score > found[1].score > 0
        assert (nothing, blank, again) == ([], [], found)
        assert operators[0].text == PASSAGES[2]
        many = " ".join(f"a{n}-b{n}-c{n}" for n in range(900))
        raw = httpx.post(f"{one.url}/retrieve", json={"queries": [many, "\x00\U0001f600 Lima"], "topk": 1}, timeout=60)
        assert [len(hits) for hits in raw.json()["result"]] == [0, 1]
        assert one.search(["Kenya"], 0) == [[]]
    wait_until_gone(one.url)
    assert ServerDir(index).address() is None


def test_a_killed_server_is_started_again_by_the_next_search(index):
    with retriever(index, IMPATIENT, linger_s=0.5) as client:
        first = pid_of(client)
        known = client.search(["capital of Kenya"], 1)
        os.kill(first, signal.SIGKILL)
        os.waitpid(first, 0)
        assert client.search(["capital of Peru"], 1)[0][0].text == PASSAGES[2]
        assert pid_of(client) != first
        assert client.search(["capital of Kenya"], 1) == known
        with retriever(index, CONFIG, linger_s=0.5) as next_client:
            assert pid_of(next_client) == pid_of(client)
    wait_until_gone(client.url)


def test_a_killed_user_s_lease_dies_with_it(index):
    code = ("import sys, time; from pathlib import Path; from turncredit.config.retriever import RetrieverConfig; "
            "from turncredit.retrieval.lifecycle import retriever\n"
            "with retriever(Path(sys.argv[1]), RetrieverConfig(), linger_s=0.5) as r:\n"
            "    print(r.url, flush=True)\n"
            "    time.sleep(600)")
    with subprocess.Popen([sys.executable, "-c", code, str(index)], stdout=subprocess.PIPE, text=True) as user:
        url = user.stdout.readline().strip()
        assert url.startswith("http://")
        user.kill()
    wait_until_gone(url)
    assert not list((ServerDir(index).folder / "leases").iterdir())


def test_a_server_of_a_removed_index_goes_and_leaves_nothing(index):
    with retriever(index, CONFIG, linger_s=0.5) as client:
        shutil.rmtree(index)
        wait_until_gone(client.url)
    assert not index.exists()


def test_a_rebuilt_index_gets_a_server_of_its_own(tmp_path, index):
    with retriever(index, CONFIG, linger_s=0.5) as old:
        build_index(write_corpus(tmp_path / "new.jsonl", ["The capital of Kenya is Mombasa."]), index,
                    k1=CONFIG.k1, b=CONFIG.b)
        with retriever(index, CONFIG, linger_s=0.5) as new:
            assert new.url != old.url
            assert new.search(["capital of Kenya"], 1)[0][0].text == "The capital of Kenya is Mombasa."
            assert old.search(["capital of Kenya"], 1)[0][0].text == PASSAGES[0]
    wait_until_gone(new.url)
    wait_until_gone(old.url)


def test_a_server_that_cannot_start_shows_the_end_of_its_log(index):
    for file in (index / "lucene").glob("segments*"):
        file.unlink()
    with pytest.raises(RetrieverError, match=r"(?s)exit code 2.*server\.log.*Lucene cannot open it"), \
            retriever(index, CONFIG):
        pass


def test_a_gold_query_finds_its_evidence_first_and_a_whole_question_does_not(tmp_path):
    world = WorldConfig(cities=600, train_questions=300, validation_questions=20, test_questions=60)
    build_world(world, tmp_path / "data")
    build_index(tmp_path / "data" / "corpus.jsonl", tmp_path / "index", k1=CONFIG.k1, b=CONFIG.b)
    with retriever(tmp_path / "index", CONFIG, linger_s=0.5) as client:
        for name in ("facts", "bridge", "inverse", "compose", "chain"):
            for split in ("train", "test"):
                questions = read_questions(tmp_path / "data" / "questions" / f"{name}.{split}.jsonl")
                hops = [hop for question in questions for hop in question.plan]
                found = client.search([hop.query for hop in hops], 1)
                first = sum(bool(documents) and hop.evidence in documents[0].text
                            for hop, documents in zip(hops, found, strict=True))
                assert first / len(hops) > 0.97, (name, split)
                if name not in ("facts", "inverse"):
                    whole = client.search([question.question for question in questions], 3)
                    told = sum(any(q.answers[0].lower() in d.text.lower() for d in documents)
                               for q, documents in zip(questions, whole, strict=True))
                    assert told / len(questions) < 0.1, (name, split)
                if name == "facts":
                    bare = client.search([hop.query.partition(" of ")[2] for hop in hops], 3)
                    told = sum(any(hop.evidence in d.text for d in documents)
                               for hop, documents in zip(hops, bare, strict=True))
                    assert told / len(hops) < 0.2
    wait_until_gone(client.url)
