"""Client of a /retrieve server, with timeouts, bounded retries and a cache.

A server that is dead, slow or wrong raises ``RetrieverError``; it never looks like an empty list of results.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol, Self

import httpx
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt, wait_exponential

from turncredit.data.corpus import Passage
from turncredit.errors import RetrieverError
from turncredit.types import Document

MAX_CHARACTERS = 1000  # of a query, hence fewer than the 1,024 terms that Lucene accepts
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_BACKOFF = wait_exponential(multiplier=0.1, max=5)
_LONGEST_S = 30.0  # limit of a server's Retry-After
_QUERIES = 1024  # of one request
_CACHED = 200_000  # answers kept; the oldest is dropped first


class LostServerError(RetrieverError):
    """A server that does not answer, or answers too slowly, after all attempts; another one may."""


class Retriever(Protocol):
    """Finds passages."""

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Document]]:
        """The best ``top_k`` passages of each query, best first, in the queries' order.

        Raises:
            RetrieverError: the search failed.
        """
        ...


@dataclass
class Counts:
    """Number of queries that a client has handled."""

    queries: int = 0
    cached: int = 0  # answered without the server
    cut: int = 0  # truncated to ``max_query_tokens``


class RetrieverClient:
    """A thread-safe ``Retriever`` over HTTP. Close it, or use it in a ``with`` statement.

    Args:
        url: base URL of the server, without the path: "http://127.0.0.1:8000".
        timeout_s: seconds that the server may be silent, and that one attempt may take in all.
        retries: further attempts after a failed one, with growing pauses of at most 5 s, or as long as the server
            asks for (``Retry-After``, at most 30 s).
        index_sha256: identity that the server's index must have; None for a foreign server without /health.
        max_query_tokens: longest query in whitespace words; longer ones are truncated and counted.
        transport: carries the requests; None for the network.

    Raises:
        RetrieverError: the server cannot be reached, or serves another index.
    """

    def __init__(self, url: str, *, timeout_s: float, retries: int, index_sha256: str | None,
                 max_query_tokens: int = 64, transport: httpx.BaseTransport | None = None) -> None:
        self.url = url.rstrip("/")
        self.counts = Counts()
        self._index = index_sha256
        self._max_query_tokens = max_query_tokens
        self._timeout_s = timeout_s
        self._cache: dict[tuple[str | None, int, str], tuple[Document, ...]] = {}
        self._lock = threading.Lock()  # of counts and cache: episodes search in several threads
        self._retrying = Retrying(stop=stop_after_attempt(retries + 1), retry=retry_if_exception(_transient),
                                  wait=_pause, reraise=True)
        self._http = httpx.Client(base_url=self.url, timeout=timeout_s, trust_env=False,
                                  transport=transport)
        if index_sha256 is not None:
            try:
                served = self._ask("GET", "/health", None).get("index_sha256")
                if served != index_sha256:
                    raise RetrieverError(f"{self.url} serves the index {str(served)[:12]}, not {index_sha256[:12]}",
                                         "stop that server, then run the same command again: it starts its own")
            except RetrieverError:
                self.close()
                raise

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Document]]:
        """See ``Retriever``. One request sends all distinct queries that are not cached."""
        cleaned = [clean_query(query, self._max_query_tokens) for query in queries]
        keys = [(self._index, top_k, query) for query, _ in cleaned]
        with self._lock:
            answers = {key: self._cache[key] for key in keys if key in self._cache}
        missing = list(dict.fromkeys(key for key in keys if key not in answers))
        new = dict(zip(missing, self._retrieve([query for *_, query in missing], top_k), strict=True))
        answers |= new
        with self._lock:
            self.counts.queries += len(queries)
            self.counts.cached += len(queries) - len(missing)
            self.counts.cut += sum(was_cut for _, was_cut in cleaned)
            self._cache.update(new)
            while len(self._cache) > _CACHED:
                del self._cache[next(iter(self._cache))]
        return [list(answers[key]) for key in keys]

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def _retrieve(self, queries: list[str], top_k: int) -> list[tuple[Document, ...]]:
        if len(queries) > _QUERIES:
            return [hits for start in range(0, len(queries), _QUERIES)
                    for hits in self._retrieve(queries[start:start + _QUERIES], top_k)]
        if not queries:
            return []
        answer = self._ask("POST", "/retrieve", {"queries": queries, "topk": top_k, "return_scores": True})
        try:
            results = [tuple(Passage(hit["document"]["id"], hit["document"]["contents"]).document(float(hit["score"]))
                             for hit in hits) for hits in answer["result"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RetrieverError(f"{self.url}/retrieve: not the answer of a retriever: {error!r}",
                                 "check that the address is that of a /retrieve server") from error
        if len(results) != len(queries) or any(len(hits) > top_k for hits in results):
            raise RetrieverError(f"{self.url}/retrieve: {len(results)} answers to {len(queries)} queries, or more "
                                 f"than {top_k} passages", "check that the address is that of a /retrieve server")
        return results

    def _ask(self, method: str, path: str, body: dict[str, Any] | None) -> dict[str, Any]:
        try:
            answer = self._retrying(self._attempt, method, path, body)
        except httpx.HTTPStatusError as error:
            kind = LostServerError if _transient(error) else RetrieverError
            raise kind(f"{self.url}{path}: HTTP {error.response.status_code}: {error.response.text[:300]}",
                       "see the server's log, next to the index") from error
        except httpx.TransportError as error:
            raise LostServerError(f"{self.url}{path}: no answer: {type(error).__name__}: {error}",
                                  "run the same command again: it starts a server") from error
        except (httpx.HTTPError, ValueError) as error:
            raise RetrieverError(f"{self.url}{path}: no answer: {type(error).__name__}: {error}",
                                 "check that the address is that of a /retrieve server") from error
        if not isinstance(answer, dict):
            raise RetrieverError(f"{self.url}{path}: not a JSON object", "check the address")
        return answer

    def _attempt(self, method: str, path: str, body: dict[str, Any] | None) -> Any:
        deadline = time.monotonic() + self._timeout_s  # a server that drips bytes is never silent
        with self._http.stream(method, path, json=body) as answer:
            if answer.is_error:
                answer.read()
                answer.raise_for_status()
            parts = []
            for part in answer.iter_bytes():
                parts.append(part)
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout(f"not complete after {self._timeout_s:g} s", request=answer.request)
        return json.loads(b"".join(parts))


def clean_query(text: str, max_words: int) -> tuple[str, bool]:
    """Cleans and truncates a query; returns it, and whether it was truncated.

    The result is one line of at most ``max_words`` words and 1,000 characters. Control characters and lone surrogates
    become blanks. Lucene's operators need no escape, because queries are bags of words and never parsed.

    >>> clean_query("capital of\\n Kenya", 64)
    ('capital of Kenya', False)
    >>> clean_query("a b c", 2)
    ('a b', True)
    """
    words = _CONTROL.sub(" ", text).split()
    complete = " ".join(words)
    kept = " ".join(words[:max_words])[:MAX_CHARACTERS].rstrip()
    return kept, kept != complete


def _pause(state: RetryCallState) -> float:
    """Seconds before the next attempt."""
    error = state.outcome.exception() if state.outcome else None
    seconds = error.response.headers.get("Retry-After", "") if isinstance(error, httpx.HTTPStatusError) else ""
    return max(_BACKOFF(state), min(float(seconds), _LONGEST_S) if seconds.isdecimal() else 0.0)


def _transient(error: BaseException) -> bool:
    """Whether another attempt may succeed: no connection, no answer in time, or a busy server."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code in (429, 502, 503, 504)
    return isinstance(error, httpx.TransportError)
