"""Cost of a tree of turns compared with chains, on episodes that all reach the turn limit."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from bench.cost import time_by_kind
from bench.results import REPEATS, Measured
from turncredit.config.load import RunConfig
from turncredit.credit.base import TokenCredit
from turncredit.credit.rows import Row, rows_of
from turncredit.evaluation import EpisodeRunner
from turncredit.policy.engines.hf import HFEngine
from turncredit.policy.model import load_policy
from turncredit.policy.tokenizer import Codec
from turncredit.retrieval.client import Retriever
from turncredit.seeding import derive_seed
from turncredit.tasks.env import CountTokens, CutTokens, Request, Step
from turncredit.tasks.search.config import QuestionTaskConfig
from turncredit.tasks.search.environment import SERVICE, SearchEnvironment, SearchTask
from turncredit.tasks.search.protocol import RULES
from turncredit.tasks.search.services import SearchService
from turncredit.training.batch import Batch
from turncredit.training.learner import Learner
from turncredit.training.run import make_runner
from turncredit.types import Document, Group, Question, TurnStop

TREE_G, TREE_K, TREE_QUESTIONS = 4, 3, 3
CHAINS, TREE, LEAVES = "chains", "tree", "leaves written out"


class SearchingTask(SearchTask):
    """The search task with every turn replaced by a search, so that all episodes reach the turn limit."""

    def start(self, item: Question, count_tokens: CountTokens, cut: CutTokens) -> SearchEnvironment:
        """See ``Task``."""
        return _Searching(self.config, self.rules, item.id, item.question, count_tokens, cut)


class _Searching(SearchEnvironment):
    @property
    def search_turn(self) -> str:
        return f"<think> </think><search> {self.question} </search>"

    def request(self, text: str) -> Request | None:
        return super().request(self.search_turn)

    def step(self, text: str, stop: TurnStop, response: Sequence[Document] | None) -> Step:
        return super().step(self.search_turn, stop, response)


def leaf_path(path: tuple[int, ...]) -> tuple[int, ...]:
    """The path in a full tree of a turn of a chain, where chain n is the tree's leaf n written out.

    >>> leaf_path((6, 0, 0)), leaf_path((6, 0))
    ((1, 2, 0), (1, 2))
    """
    digits = tuple(path[0] // TREE_G**(TREE_K - 2 - k) % TREE_G for k in range(TREE_K - 1))
    return (*digits, 0)[:len(path)]


@dataclass(frozen=True, slots=True)
class Shape:
    """How episodes are sampled: questions, branching, and the seed of each turn."""

    questions: Sequence[Question]
    branching: tuple[int, ...]
    seed_of: Callable[[str, tuple[int, ...]], int]

    def play(self, runner: EpisodeRunner, temperature: float) -> list[Group]:
        """Play all episodes, starting with an empty prefix cache."""
        runner.engine.reset_prefix_cache()
        return runner.play(self.questions, self.branching, seed_of=self.seed_of, temperature=temperature)


def shapes(questions: Sequence[Question]) -> dict[str, Shape]:
    """A tree, chains with as many distinct turns, and the tree's leaves written out as chains."""
    leaves = TREE_G**(TREE_K - 1)
    few = questions[:TREE_QUESTIONS]
    turns = sum(TREE_G**min(k + 1, TREE_K - 1) for k in range(TREE_K))  # distinct turns of a tree
    many = questions[:TREE_QUESTIONS * turns // (TREE_G * TREE_K)]
    alone = (1,) * (TREE_K - 1)

    def seed(question: str, path: tuple[int, ...]) -> int:
        return derive_seed("bench", question, *path)

    return {CHAINS: Shape(many, (TREE_G, *alone), seed), TREE: Shape(few, (TREE_G,) * (TREE_K - 1) + (1,), seed),
            LEAVES: Shape(few, (leaves, *alone), lambda question, path: seed(question, leaf_path(path)))}


def tree_costs(config: RunConfig, policy: Path, search: Retriever, questions: Sequence[Question]) -> list[Measured]:
    """Milliseconds of rollout and update per distinct sampled token, of full trees, chains and written-out leaves."""
    training = config.training.model_copy(update={"learning_rate": 1e-12})  # leaves the policy unchanged
    settings = config.task.model_copy(update={"max_turns": TREE_K})
    assert isinstance(settings, QuestionTaskConfig)
    task = SearchingTask(settings, RULES)
    codec = Codec.load(policy)
    learner = Learner(load_policy(policy, config.device), None, None, training, config.device)
    services = {SERVICE: SearchService(search, settings.top_k)}
    runner = replace(make_runner(config, HFEngine(learner.policy, codec), services, codec), task=task)
    played = shapes(questions)
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in played}
    rows: dict[str, list[Row]] = {}
    for _ in range(REPEATS):  # alternating, so that other work on the machine slows all shapes alike
        for name, shape in played.items():
            clock = [time.perf_counter()]
            rows[name] = rows_of(shape.play(runner, training.temperature))
            clock.append(time.perf_counter())
            _update(learner, rows[name])
            clock.append(time.perf_counter())
            costs[name].append((clock[1] - clock[0], clock[2] - clock[1]))
    distinct = {name: sum(sum(row.loss_mask) for row in rows[name]) for name in rows}
    distinct[LEAVES] = distinct[TREE]
    each = {name: [1e3 * min(times) / distinct[name] for times in zip(*pairs, strict=True)]
            for name, pairs in costs.items()}
    table = {name: {
        "rows": len(rows[name]), "row tokens": sum(len(row.transcript.ids) for row in rows[name]),
        "distinct tokens": distinct[name],
        "rollout ms": each[name][0], "update ms": each[name][1], "both ms": sum(each[name]),
        "rollout x": each[name][0] / each[CHAINS][0], "update x": each[name][1] / each[CHAINS][1],
        "both x": sum(each[name]) / sum(each[CHAINS])} for name in rows}
    title = f"trees of G = {TREE_G}, K = {TREE_K}: ms per distinct sampled token; x: divided by chains"
    measured = [Measured(title, name, measure, value) for name, row in table.items() for measure, value in row.items()]
    shares = time_by_kind(lambda: _update(learner, rows[CHAINS]), learner.policy.config.vocab_size)
    return measured + [Measured("CPU time of a policy's update by kind of operation (chains)", kind, "%", 100 * share)
                       for kind, share in shares.items()]


def _update(learner: Learner, rows: Sequence[Row]) -> None:
    """One update in which every token has the same advantage."""
    batch = Batch.of(rows)
    weight_N = torch.full_like(batch.old_logprob_N, 1 / len(batch.old_logprob_N))
    credit = TokenCredit(torch.ones_like(weight_N), weight_N)
    learner.update(batch, credit, step=0, seed=0, kl_in_loss=False, reference_logprob_N=None, old_value_M=None)
