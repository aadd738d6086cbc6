"""The search service of the question-answering tasks: a retriever behind the ``Service`` protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from turncredit.retrieval.client import Retriever
from turncredit.retrieval.lifecycle import retriever
from turncredit.tasks.env import Service
from turncredit.tasks.plugin import ServiceSettings
from turncredit.tasks.search.config import QuestionTaskConfig
from turncredit.tasks.search.environment import SERVICE
from turncredit.types import Document


@dataclass(frozen=True, slots=True)
class SearchService:
    """Answers queries with the ``top_k`` best passages of a retriever (``task.retrieved``)."""

    retriever: Retriever
    top_k: int

    def answer(self, bodies: Sequence[str]) -> list[list[Document]]:
        """The passages of each query, best first."""
        return self.retriever.search(bodies, self.top_k)


@contextmanager
def open_services(config: QuestionTaskConfig, settings: ServiceSettings) -> Iterator[Mapping[str, Service]]:
    """The search service of a run; none where the only turn must answer (closed book).

    Raises:
        DataError, RetrieverError: see ``retrieval.lifecycle.retriever``.
    """
    if config.max_turns == 1:
        yield {}
        return
    with retriever(settings.index, settings.retriever) as client:
        yield {SERVICE: SearchService(client, config.retrieved)}
