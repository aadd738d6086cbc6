"""The client: bounded, ordered, cached, and never silent about a failure."""

import json
import socket
import time

import httpx
import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from turncredit.data.corpus import Passage
from turncredit.errors import RetrieverError
from turncredit.retrieval.client import LostServerError, RetrieverClient
from turncredit.retrieval.server import make_app


def echo(queries, k):
    return [[(Passage(f"{query}/{n}", f'"{query}"\ntext {n}'), float(k - n)) for n in range(k)] for query in queries]


class Network(httpx.BaseTransport):
    """Carries requests to an app in this process and remembers them; fails as told before that."""

    def __init__(self, failures=(), app=None):
        self.failures = list(failures)
        self.posts = []
        self._app = TestClient(app or make_app(echo, "abc", 9))

    def handle_request(self, request):
        if request.method == "POST":
            self.posts.append(json.loads(request.read()))
            if self.failures:
                failure = self.failures.pop(0)
                if isinstance(failure, Exception):
                    raise failure
                return failure
        answer = self._app.request(request.method, request.url.path, content=request.read(), headers=request.headers)
        return httpx.Response(answer.status_code, content=answer.content)


def client(network, *, retries=0, index_sha256="abc", **more):
    return RetrieverClient("http://server", timeout_s=5, retries=retries, index_sha256=index_sha256,
                           transport=network, **more)


def test_documents_come_in_order_with_title_text_and_score():
    with client(Network()) as retriever:
        [[first, second]] = retriever.search(["kenya"], 2)
    assert (first.id, first.title, first.text, first.score) == ("kenya/0", "kenya", "text 0", 2.0)
    assert second.score == 1.0


@given(st.lists(st.sampled_from(["a", "b", "c", " a ", "", "d e"]), max_size=8), st.integers(0, 3))
def test_many_queries_are_answered_as_each_alone(queries, k):
    with client(Network()) as together, client(Network()) as alone:
        assert together.search(queries, k) == [alone.search([query], k)[0] for query in queries]


def test_each_distinct_query_is_sent_once_and_then_remembered():
    network = Network()
    with client(network) as retriever:
        first = retriever.search(["a", "b", "a"], 2)
        assert retriever.search(["b", "a"], 2) == [first[1], first[0]]
        retriever.search(["a", "c"], 2)
        retriever.search(["a"], 3)
    assert [(post["queries"], post["topk"]) for post in network.posts] == [
        (["a", "b"], 2), (["c"], 2), (["a"], 3)]
    assert (retriever.counts.queries, retriever.counts.cached) == (8, 4)


def test_a_caller_that_changes_an_answer_does_not_change_the_next():
    with client(Network()) as retriever:
        retriever.search(["a"], 2)[0].clear()
        assert len(retriever.search(["a"], 2)[0]) == 2


def test_long_queries_are_cut_and_counted():
    network = Network()
    with client(network, max_query_tokens=2) as retriever:
        retriever.search(["a b", "a b c", "a\ud800b"], 1)
    assert network.posts[0]["queries"] == ["a b"]
    assert retriever.counts.cut == 1


@pytest.mark.parametrize("failure", [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), httpx.Response(503)])
def test_a_passing_failure_is_tried_again(failure):
    network = Network([failure])
    with client(network, retries=1) as retriever:
        assert len(retriever.search(["a"], 2)[0]) == 2
    assert len(network.posts) == 2


@pytest.mark.parametrize("failure", [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), httpx.Response(503)])
def test_attempts_are_bounded_and_then_it_is_an_error(failure):
    network = Network([failure] * 9)
    with client(network, retries=2) as retriever, pytest.raises(RetrieverError, match="http://server/retrieve"):
        retriever.search(["a"], 2)
    assert len(network.posts) == 3


@pytest.mark.parametrize(("asked", "least", "most"), [("7", 7, 7), ("9999", 30, 30), ("soon", 0, 5), ("0", 0, 5)])
def test_a_busy_server_says_when_to_come_back_and_is_obeyed_within_bounds(monkeypatch, asked, least, most):
    pauses = []
    monkeypatch.setattr("tenacity.nap.time.sleep", pauses.append)
    network = Network([httpx.Response(503, headers={"Retry-After": asked})])
    with client(network, retries=1) as retriever:
        assert len(retriever.search(["a"], 2)[0]) == 2
    assert len(pauses) == 1
    assert least <= pauses[0] <= most


@pytest.mark.parametrize("answer", [
    httpx.Response(500, text="boom"), httpx.Response(404), httpx.Response(200, text="<html>"),
    httpx.Response(200, json=[]), httpx.Response(200, json={}), httpx.Response(200, json={"result": []}),
    httpx.Response(200, json={"result": None}), httpx.Response(200, json={"result": [[{"id": "1"}]]}),
    httpx.Response(200, json={"result": [[{"document": {"id": "1", "contents": None}, "score": 1}]]}),
    httpx.Response(200, json={"result": [[{"document": {"id": "1", "contents": "x"}, "score": 1}] * 3]}),
])
def test_a_wrong_answer_is_an_error_at_once_and_is_not_remembered(answer):
    network = Network([answer])
    with client(network, retries=3) as retriever:
        with pytest.raises(RetrieverError, match="http://server/retrieve"):
            retriever.search(["a"], 2)
        assert len(network.posts) == 1
        assert retriever.counts.queries == 0
        assert len(retriever.search(["a"], 2)[0]) == 2


def test_a_server_of_another_index_is_refused_at_once():
    with pytest.raises(RetrieverError, match="serves the index abc, not xyz"):
        client(Network(), index_sha256="xyz")


def test_a_foreign_server_needs_no_health():
    with client(Network(), index_sha256=None) as retriever:
        assert len(retriever.search(["a"], 1)[0]) == 1


def test_a_server_that_never_answers_is_given_up():
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        url = f"http://127.0.0.1:{mute.getsockname()[1]}"
        with pytest.raises(RetrieverError, match="Timeout"):
            RetrieverClient(url, timeout_s=0.2, retries=1, index_sha256="abc")


def test_a_server_that_drips_its_answer_is_given_up_in_bounded_time():
    def drip():
        for _ in range(1000):
            time.sleep(0.05)
            yield b" "

    with RetrieverClient("http://retriever", timeout_s=0.3, retries=0, index_sha256=None, transport=httpx.MockTransport(
            lambda request: httpx.Response(200, content=drip()))) as client:
        began = time.monotonic()
        with pytest.raises(LostServerError, match="not complete after"):
            client.search(["a"], 1)
        assert time.monotonic() - began < 10
