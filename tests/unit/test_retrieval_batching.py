"""Concurrent requests: searched together, answered as alone, refused when too many wait."""

from __future__ import annotations

import asyncio
import threading

import httpx

from turncredit.config.retriever import ServerConfig
from turncredit.data.corpus import Passage
from turncredit.retrieval.server import Batcher, Counts, QueueFull, make_app


class Search:
    """``k`` passages that repeat the query; waits for ``gate``, notes what it was asked and by how many at once."""

    def __init__(self) -> None:
        self.gate, self.began = threading.Event(), threading.Event()
        self.asked: list[tuple[list[str], int]] = []
        self.inside = self.most = 0

    def __call__(self, queries, k):
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.asked.append((list(queries), k))
        self.began.set()
        assert self.gate.wait(60)
        self.inside -= 1
        if "poison" in queries:
            raise ValueError("poison")
        return [[(Passage(f"{query}/{n}", "x"), float(n)) for n in range(k)] for query in queries]


def alone(query, k):
    return [(Passage(f"{query}/{n}", "x"), float(n)) for n in range(k)]


def together(search, *requests, first=(), **config):
    """The answers to requests that come while ``first`` is searched, in order; and the counts."""
    counts = Counts()

    async def ask_all():
        batcher = Batcher(search, ServerConfig.model_validate({"window_ms": 0, **config}), counts)
        busy = asyncio.create_task(batcher.search(list(first), 1))
        await asyncio.to_thread(search.began.wait, 60)
        asked = [asyncio.create_task(batcher.search(list(queries), k)) for queries, k in requests]
        await asyncio.sleep(0)
        search.gate.set()
        await busy
        return await asyncio.gather(*asked, return_exceptions=True)

    return asyncio.run(ask_all()), counts


def test_requests_that_wait_are_searched_in_one_batch_each_query_once():
    search = Search()
    answers, counts = together(search, (["a", "b"], 2), (["b"], 2), (["c", "a", "c"], 2), ([], 2), first=["x"])
    assert search.asked == [(["x"], 1), (["a", "b", "c"], 2)]
    assert answers == [[alone("a", 2), alone("b", 2)], [alone("b", 2)], [alone(q, 2) for q in "cac"], []]
    assert (search.most, counts.waiting) == (1, 0)
    assert (counts.requests, counts.batches, counts.batched_queries) == (5, 2, 4)


def test_another_k_is_searched_apart():
    search = Search()
    answers, _ = together(search, (["a"], 2), (["a"], 1), first=["x"])
    assert sorted(search.asked[1:]) == [(["a"], 1), (["a"], 2)]
    assert answers == [[alone("a", 2)], [alone("a", 1)]]


def test_a_batch_is_no_larger_than_allowed():
    search = Search()
    seven = [([letter], 1) for letter in "abcdefg"]
    answers, _ = together(search, *seven, (list("hijkl"), 1), first=["x"], max_batch=3)
    assert [len(queries) for queries, _ in search.asked] == [1, 3, 3, 1, 3, 2]
    assert answers == [[alone(q, 1)] for q in "abcdefg"] + [[alone(q, 1) for q in "hijkl"]]


def test_a_full_queue_refuses_and_an_empty_one_takes_any_request():
    search = Search()
    answers, counts = together(search, (list("abcdef"), 1), (["g"], 1), first=["x"], queue=4)
    assert answers[0] == [alone(q, 1) for q in "abcdef"], "nobody waited, so it was taken whatever its size"
    assert isinstance(answers[1], QueueFull)
    assert counts.refused == 1


def test_a_failed_search_is_the_error_of_those_who_asked_for_it():
    search = Search()
    answers, counts = together(search, (["poison"], 2), (["a"], 2), (["b"], 1), first=["x"])
    assert [type(answer) for answer in answers] == [ValueError, ValueError, list]
    assert counts.failed == 2


def test_a_window_gathers_requests_that_come_one_after_another():
    search = Search()
    search.gate.set()

    async def ask_all():
        batcher = Batcher(search, ServerConfig(window_ms=2000), Counts())
        first = asyncio.create_task(batcher.search(["a"], 1))
        await asyncio.sleep(0.05)
        await asyncio.gather(first, batcher.search(["b"], 1))

    asyncio.run(ask_all())
    assert search.asked == [(["a", "b"], 1)]


def test_over_http_a_refusal_says_when_to_come_back_and_health_counts_it():
    search = Search()

    async def ask_all():
        app = make_app(search, "abc", 9, config=ServerConfig(window_ms=0, queue=1))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as http:
            def post(*queries):
                return asyncio.create_task(http.post("/retrieve", json={"queries": queries, "topk": 1}))

            first = post("x")
            await asyncio.to_thread(search.began.wait, 60)
            second = post("a")
            while (await http.get("/health")).json()["waiting"] == 0:
                await asyncio.sleep(0.01)
            refused = await post("b")
            search.gate.set()
            return [await first, await second, refused], (await http.get("/health")).json()

    (first, second, refused), health = asyncio.run(ask_all())
    assert (first.status_code, second.status_code, refused.status_code) == (200, 200, 503)
    assert refused.headers["Retry-After"] == "1"
    assert (health["requests"], health["queries"], health["batches"], health["batched_queries"]) == (2, 2, 2, 2)
    assert (health["refused"], health["failed"], health["waiting"]) == (1, 0, 0)
    assert health["request_seconds"] >= health["slowest_request_seconds"] > 0
