"""A small true world on disk, and a retriever in this process that looks its corpus up."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from turncredit.config.data import PolicyConfig, WorldConfig
from turncredit.config.retriever import RetrieverConfig
from turncredit.data.corpus import Passage, read_corpus
from turncredit.data.questions import read_split
from turncredit.miniature.build import build_world
from turncredit.miniature.demonstrations import Demonstration, demonstrate
from turncredit.miniature.renaming import Renamer
from turncredit.miniature.warm_start import make_renamer, make_tokenizer
from turncredit.policy.tokenizer import Codec
from turncredit.tasks.registry import TASKS, make_task
from turncredit.tasks.search.config import QuestionTaskConfig, SearchConfig
from turncredit.tasks.search.demonstrations import FLAWS, kind_of
from turncredit.tasks.search.environment import SERVICE
from turncredit.tasks.search.services import SearchService
from turncredit.tasks.tool_search.config import ToolSearchConfig
from turncredit.types import Document, Question

SEARCH = SearchConfig(name="search", max_turns=4, top_k=2, max_observation_tokens=120)
TOOL = ToolSearchConfig(name="tool_search", max_turns=2, top_k=1, max_turn_tokens=48, max_observation_tokens=96)
WORLD = WorldConfig(cities=60, train_questions=14, validation_questions=2, test_questions=10)
POLICY = PolicyConfig(vocabulary=1500, hidden_size=32, layers=2, heads=2, kv_heads=2, intermediate_size=48)


class LookUp:
    """Passages by the rare words that they share with a query; a title's words count twice, as in Lucene."""

    def __init__(self, passages: Sequence[Passage]) -> None:
        self._documents = [passage.document() for passage in passages]
        self._places: dict[str, Counter[int]] = defaultdict(Counter)
        self._best = cache(self._best_anew)
        for n, document in enumerate(self._documents):
            for word in f"{document.title} {document.text}".rstrip(".").split():
                self._places[word][n] += 1

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Document]]:
        return [list(self._best(query, top_k)) for query in queries]

    def _best_anew(self, query: str, top_k: int) -> tuple[Document, ...]:
        score: dict[int, float] = defaultdict(float)
        for word in dict.fromkeys(query.split()):
            for n, count in self._places.get(word, {}).items():
                score[n] += count / len(self._places[word])
        return tuple(self._documents[n] for n in sorted(score, key=lambda n: (-score[n], n))[:top_k])


@dataclass(frozen=True)
class Stage:
    """A world and everything that demonstrations of it are made with."""

    root: Path
    codec: Codec
    renamer: Renamer
    questions: tuple[Question, ...]
    search: LookUp

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def tokenizer(self) -> Path:
        return self.root / "tokenizer"

    def asked(self, task: QuestionTaskConfig) -> list[Question]:
        """The train questions that a task has turns for."""
        return [question for question in self.questions if question.hops < task.max_turns]

    def play(self, task: QuestionTaskConfig, questions: Sequence[Question], seed: int = 0,
             **flaws: float) -> list[Demonstration]:
        """Demonstrations with the given flaws at the given chances, whatever the kind of question."""
        chances = {flaw: flaws.get(flaw, 0.0) for flaw in FLAWS}
        demonstrations = TASKS[task.name].demonstrations
        assert demonstrations is not None
        return demonstrate(questions, make_task(task), demonstrations,
                           {SERVICE: SearchService(self.search, task.top_k)}, self.codec, self.renamer,
                           {kind_of(question): chances for question in questions}, seed)

    @contextmanager
    def served(self, index: Path, config: RetrieverConfig) -> Iterator[LookUp]:
        """Stands in for ``retrieval.lifecycle.retriever``."""
        yield self.search


def make_stage(root: Path) -> Stage:
    build_world(WORLD, root / "data")
    make_tokenizer(root / "data", POLICY, root / "tokenizer")
    return open_stage(root)


def open_stage(root: Path) -> Stage:
    """The stage that ``make_stage`` left in ``root``."""
    data = root / "data"
    return Stage(root, Codec.load(root / "tokenizer"), make_renamer(data), tuple(read_split(data, "train", None)),
                 LookUp(list(read_corpus(data / "corpus.jsonl"))))
