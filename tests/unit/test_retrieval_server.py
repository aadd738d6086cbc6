"""The /retrieve protocol over a search that needs no Java."""

import re
import socket
import subprocess
import sys

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from turncredit.config.retriever import ServerConfig
from turncredit.data.corpus import Passage
from turncredit.errors import RetrieverError
from turncredit.retrieval.client import MAX_CHARACTERS, clean_query
from turncredit.retrieval.server import bind, main, make_app


def echo(queries, k):
    """k passages that repeat the query."""
    return [[(Passage(f"{query}/{n}", f'"{query}"\n{n}'), 1.0 / (n + 1)) for n in range(k)] for query in queries]


@pytest.fixture
def server():
    return TestClient(make_app(echo, "abc", 9))


def ask(server, **body):
    answer = server.post("/retrieve", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()["result"]


def test_scores_on_gives_documents_with_scores(server):
    assert ask(server, queries=["a"], topk=2, return_scores=True) == [[
        {"document": {"id": "a/0", "contents": '"a"\n0'}, "score": 1.0},
        {"document": {"id": "a/1", "contents": '"a"\n1'}, "score": 0.5}]]


def test_scores_off_gives_the_same_documents_bare(server):
    scored = ask(server, queries=["a", "b"], topk=3, return_scores=True)
    assert ask(server, queries=["a", "b"], topk=3) == [[hit["document"] for hit in hits] for hits in scored]


@pytest.mark.parametrize("scores", [True, False])
def test_unusual_asks_have_an_answer_for_each_query(server, scores):
    assert ask(server, queries=[], topk=3, return_scores=scores) == []
    assert ask(server, queries=["a", "b"], topk=0, return_scores=scores) == [[], []]
    assert [len(hits) for hits in ask(server, queries=[""], topk=1, return_scores=scores)] == [1]
    one, two = ask(server, queries=["a", "a"], topk=2, return_scores=scores)
    assert one == two


def test_without_topk_there_are_three(server):
    assert len(ask(server, queries=["a"], topk=None)[0]) == len(ask(server, queries=["a"])[0]) == 3


def test_a_request_has_limits_and_a_large_one_is_searched_in_parts():
    sizes = []

    def search(queries, k):
        sizes.append(len(queries))
        return echo(queries, k)

    server = TestClient(make_app(search, "abc", 9, config=ServerConfig(max_batch=4, max_request=10)))
    queries = [f"q{n}" for n in range(10)]
    assert [hits[0]["id"] for hits in ask(server, queries=queries, topk=1)] == [f"{query}/0" for query in queries]
    assert sizes == [4, 4, 2]
    assert server.post("/retrieve", json={"queries": [*queries, "x"]}).status_code == 413
    assert server.post("/retrieve", json={"queries": ["a"], "topk": 101}).status_code == 422
    assert server.post("/retrieve", content=b" " * (32 * 2**20 + 1)).status_code == 413


@pytest.mark.parametrize("body", [{}, {"queries": "a"}, {"queries": [1]}, {"queries": ["a"], "topk": -1}])
def test_a_malformed_ask_is_the_asker_s_fault(server, body):
    assert server.post("/retrieve", json=body).status_code == 422


def test_queries_and_cuts_are_counted(server):
    ask(server, queries=["short", "long " * 500])
    health = server.get("/health").json()
    assert (health["index_sha256"], health["documents"]) == ("abc", 9)
    assert (health["queries"], health["cut"]) == (2, 1)


@given(st.text(alphabet=st.characters(exclude_categories=[]), max_size=3000), st.integers(1, 80))
def test_a_cleaned_query_is_short_sayable_and_clean(text, words):
    cleaned, was_cut = clean_query(text, words)
    assert len(cleaned.split()) <= words
    assert len(cleaned) <= MAX_CHARACTERS
    assert cleaned.encode("utf-8").isascii() == cleaned.isascii(), "no lone surrogate is left"
    assert not set(cleaned) & set(map(chr, range(32)))
    assert clean_query(cleaned, words) == (cleaned, False)
    assert was_cut or cleaned.split() == re.sub("[\ud800-\udfff\x7f\x00-\x1f]", " ", text).split()


def test_a_taken_port_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RetrieverError, match=f"{port}.*in use"):
            bind("127.0.0.1", port)


def test_the_command_line_tells_what_is_missing(tmp_path, capsys):
    assert main([str(tmp_path)]) == 2
    assert "build it: snakemake --cores 2 " in capsys.readouterr().err


def test_importing_the_package_starts_no_jvm():
    code = ("import importlib, pkgutil, sys, turncredit; "
            "[importlib.import_module(m.name) for m in pkgutil.walk_packages(turncredit.__path__, 'turncredit.')"
            " if m.name.startswith(('turncredit.retrieval', 'turncredit.world'))]; "
            "sys.exit(any(name.split('.')[0] in ('jnius', 'jnius_config', 'pyserini') for name in sys.modules))")
    subprocess.run([sys.executable, "-c", code], check=True)
