"""Rewards of the search agent (paper section 5.2), one pure function a component.

Every turn but the episode's last earns R^I = R_retrieval + R_format + R_search, whatever ended the
episode; the last turn earns R^O. R_retrieval reads the passages that the environment showed
(``Observation.data``), never the text of a turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from turncredit.config.algorithm import Content
from turncredit.tasks.plugin import Metric, Rewards
from turncredit.tasks.search.config import SearchRewards
from turncredit.tasks.search.transcripts import episode_format, executed, given_answer, outcome_format, retrieved
from turncredit.tasks.tags import SEARCH, intermediate_turn_format
from turncredit.text_matching import exact_match, f1
from turncredit.types import Question, Transcript, Turn

METRICS = (
    Metric("answer_correct"),  # exact match (section 2.3, per trajectory, as are the other rates)
    Metric("f1", in_training=False),  # word overlap of the answer with the nearest accepted one
    Metric("format_correct"),  # the final turn and all intermediate turns are well-formed
    Metric("retrieval_correct"),  # at least one result holds an accepted answer
    Metric("searches", "count"),  # executed ones
)
COMPONENTS = ("exact_match", "f1", "retrieval", "turn_format", "search_cost", "outcome")


def retrieval_reward(turn: Turn, answers: Sequence[str], value: float = 0.3) -> float:
    """R_retrieval: ``value`` if an accepted answer stands in this turn's information."""
    return value if retrieved(turn, answers) else 0.0


def format_reward(turn: Turn, right: float = 0.1, wrong: float = -0.2) -> float:
    """R_format: ``right`` for think, search and information, each once and in order; else ``wrong``."""
    return right if intermediate_turn_format(turn, SEARCH) else wrong


def search_reward(n_search: int, cost: float = 0.1) -> float:
    """R_search = -lambda_s * n_search, n_search being all searches up to and in this turn.

    The cost grows with the square of the number of searches in an episode: -0.1, -0.3, -0.6, -1.0.

    >>> round(sum(search_reward(n) for n in (1, 2, 3, 4)), 6)
    -1.0
    """
    return 0.0 - cost * n_search


def outcome_reward(
    correct: bool, well_formed: bool, *,
    right: float = 1.0, format_only: float = 0.2, format_wrong: float = -1.0,
) -> float:
    """R^O in three tiers: a wrong format outweighs a correct answer.

    >>> outcome_reward(True, True), outcome_reward(False, True), outcome_reward(True, False)
    (1.0, 0.2, -1.0)
    """
    if not well_formed:
        return format_wrong
    return right if correct else format_only


def binary_outcome(correct: bool) -> float:
    """R^O of the outcome-only baselines: exact match, format aside."""
    return 1.0 if correct else 0.0


def searches_so_far_K(transcript: Transcript) -> tuple[int, ...]:
    """n_search of each turn: executed searches from the first turn to this one; an invalid turn adds none."""
    return tuple(accumulate(int(executed(turn, SEARCH)) for turn in transcript.turns))


@dataclass(frozen=True, slots=True)
class SearchReward:
    """The reward function of the search agent; ``content`` says which components count.

    - ``outcome``: the binary outcome alone,
    - ``merged``: R_retrieval of each turn and the three-tier outcome,
    - ``full``: R_retrieval, R_format and R_search of each turn and the three-tier outcome.
    """

    content: Content
    values: SearchRewards

    def __call__(self, transcript: Transcript, item: Question) -> Rewards:
        """Judge one episode; an episode without an answer has a wrong format and no exact match."""
        v, answers = self.values, item.answers
        prediction = given_answer(transcript, SEARCH)
        correct = exact_match(prediction, answers)
        n_search_K = searches_so_far_K(transcript)
        before_last = transcript.turns[:-1]
        retrieval_K = [*(retrieval_reward(turn, answers, v.retrieval) for turn in before_last), 0.0]
        format_K = [*(format_reward(turn, v.turn_format_right, v.turn_format_wrong) for turn in before_last), 0.0]
        search_K = [*(search_reward(n, v.search_cost) for n in n_search_K[:-1]), 0.0]
        tiered = outcome_reward(correct, outcome_format(transcript, SEARCH), right=v.correct,
                                format_only=v.format_only, format_wrong=v.format_wrong)
        counted = {"outcome": [], "merged": [retrieval_K], "full": [retrieval_K, format_K, search_K]}[self.content]
        return Rewards(
            intermediate_K=tuple(sum(parts[k] for parts in counted) for k in range(len(transcript.turns))),
            outcome=binary_outcome(correct) if self.content == "outcome" else tiered,
            metrics={
                "answer_correct": float(correct), "f1": f1(prediction, answers),
                "format_correct": float(episode_format(transcript, SEARCH)),
                "retrieval_correct": float(any(retrieved(turn, answers) for turn in transcript.turns)),
                "searches": n_search_K[-1],
            },
            components={
                "exact_match": float(correct), "f1": f1(prediction, answers), "retrieval": sum(retrieval_K),
                "turn_format": sum(format_K), "search_cost": sum(search_K), "outcome": tiered,
            },
            columns={"hops": item.hops, "prediction": prediction})
