"""Playing episodes and scoring them: the final evaluation, and the validation during training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pandas as pd

from turncredit.policy.engines.base import Engine, StreamingEngine
from turncredit.policy.tokenizer import Codec
from turncredit.retrieval.client import Retriever
from turncredit.rollout import asynchronous
from turncredit.rollout.batched import rollout
from turncredit.rollout.state import SeedOf
from turncredit.seeding import digest
from turncredit.tasks.env import Task
from turncredit.tasks.registry import make_task
from turncredit.tasks.search.shared import RewardFunction, Rewards
from turncredit.types import Group, Question, Transcript

Decoding = Literal["greedy", "sampled"]


@dataclass(frozen=True, slots=True)
class Episode:
    """A scored leaf; ``share`` is its probability weight in its question's group, which sums to 1."""

    question: Question
    transcript: Transcript
    rewards: Rewards
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything that plays and scores episodes."""

    task: Task
    reward: RewardFunction
    engine: Engine
    retriever: Retriever | None
    codec: Codec

    def play(self, questions: Sequence[Question], branching: Sequence[int], *,
             seed_of: SeedOf | None, temperature: float) -> list[Group]:
        """One group a question, in order; ``seed_of`` None is greedy (see ``rollout.batched.rollout``).

        Episodes go at their own pace if the engine's turns end one by one.
        """
        if isinstance(self.engine, StreamingEngine):
            return asynchronous.rollout(questions, self.task, self.engine, self.retriever, self.codec,
                                        branching=branching, seed_of=seed_of, temperature=temperature)
        return rollout(questions, self.task, self.engine, self.retriever, self.codec, branching=branching,
                       seed_of=seed_of, temperature=temperature)

    def score(self, questions: Sequence[Question], groups: Sequence[Group],
              branching: Sequence[int]) -> list[list[Episode]]:
        """The episodes of each group, as [group][leaf]."""
        return [
            [Episode(question, leaf, self.reward(leaf, question), share)
             for leaf, share in zip(group.transcripts, leaf_shares(group, branching), strict=True)]
            for question, group in zip(questions, groups, strict=True)]

    def chains(self, questions: Sequence[Question], *, seed_of: SeedOf | None = None,
               temperature: float = 1.0) -> list[Episode]:
        """One scored episode a question; greedy by default."""
        branching = (1,) * self.task.config.max_turns
        groups = self.play(questions, branching, seed_of=seed_of, temperature=temperature)
        return [episode for episodes in self.score(questions, groups, branching) for episode in episodes]

    def closed_book(self) -> Bench:
        """The same bench without a retriever, where the only turn must answer."""
        task = make_task(self.task.config.model_copy(update={"max_turns": 1}))
        return replace(self, task=task, retriever=None)


def leaf_shares(group: Group, branching: Sequence[int]) -> list[float]:
    """Each leaf's probability weight: a turn sampled b times from a state shares its weight by b.

    A plain mean over a tree's leaves would count episodes that go on more often than those that end
    early; weighted by these shares it estimates the policy's own mean. Sums to 1.
    """
    share_L = []
    for leaf in group.transcripts:
        share = 1.0
        for b in branching[:len(leaf.turns)]:
            share /= b
        share_L.append(share)
    total = sum(share_L)
    return [share / total for share in share_L]


def evaluate(bench: Bench, questions: Sequence[Question], decoding: Decoding = "greedy", seed: int = 0) -> pd.DataFrame:
    """Play every question once; one row an episode, in the questions' order.

    Args:
        bench: the policy's engine, the task and its rewards.
        questions: the test questions, the same for all arms.
        decoding: ``greedy``, or ``sampled`` at temperature 1.
        seed: of sampled decoding; a sample depends on this seed and its question only.

    Returns:
        columns of evaluation.csv: dataset, question_id, hops, prediction, answer_correct, f1,
        format_correct, retrieval_correct, turns, searches, stop_reason, decoding, component_*.
    """
    seed_of = None if decoding == "greedy" else (lambda question, path: digest("evaluation", seed, question, *path))
    records = []
    for episode in bench.chains(questions, seed_of=seed_of, temperature=1.0):
        question, rewards = episode.question, episode.rewards
        records.append({
            "dataset": question.dataset, "question_id": question.id, "hops": question.hops,
            "prediction": rewards.prediction, "answer_correct": rewards.answer_correct, "f1": rewards.f1,
            "format_correct": rewards.format_correct, "retrieval_correct": rewards.retrieval_correct,
            "turns": len(episode.transcript.turns), "searches": rewards.searches,
            "stop_reason": str(episode.transcript.stop), "decoding": decoding,
            **{f"component_{name}": value for name, value in rewards.components.items()}})
    return pd.DataFrame.from_records(records)
