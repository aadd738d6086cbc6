"""Rewards of the search agent (paper section 5.2), one pure function a component.

Every turn but the episode's last earns R^I = R_retrieval + R_format + R_search, whatever ended the episode; the last
turn earns R^O. The merged reward is one number for the whole trajectory (section 6.1).

Three rules differ between the readings ``text`` and ``code`` (``config.reading``): which searches cost, what a
well-formed turn is, and how an accepted answer is looked for. The metrics and the merged reward are the same under
both. The answer is the one with which the environment ended the episode (``Grammar``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from turncredit.config.algorithm import Content
from turncredit.tasks.plugin import Metric, Rewards
from turncredit.tasks.search.config import SearchRewards
from turncredit.tasks.search.transcripts import (
    episode_format,
    executed,
    given_answer,
    holds_normalised,
    outcome_format,
    retrieved,
    turn_text,
)
from turncredit.tasks.tags import SEARCH, Grammar, has_each_once, intermediate_turn_format
from turncredit.text_matching import exact_match, f1
from turncredit.types import Question, StopReason, Transcript, Turn

METRICS = (
    Metric("answer_correct"),  # exact match (section 2.3, per trajectory, as are the other rates)
    Metric("f1", in_training=False),  # word overlap of the answer with the nearest accepted one
    Metric("format_correct"),  # the final turn and all intermediate turns are well-formed
    Metric("retrieval_correct"),  # at least one result holds an accepted answer
    Metric("searches", "count"),  # executed ones
)
# R^O is one of exact_match (content outcome), merged, and tiers (contents retrieval and full)
COMPONENTS = ("exact_match", "f1", "retrieval", "turn_format", "search_cost", "tiers", "merged")


def is_hit(turn: Turn, answers: Sequence[str], rule: str = "raw") -> bool:
    """Whether an accepted answer stands in this turn's information.

    ``raw``: in a passage that the environment showed, ignoring case. ``normalised``: in any closed information block of
    the turn's text, both normalised.

    Raises:
        ValueError: another rule.
    """
    match rule:
        case "raw":
            return retrieved(turn, answers)
        case "normalised":
            return holds_normalised(turn, answers, SEARCH)
        case _:
            raise ValueError(f"unknown rule of a hit {rule!r}: use 'raw' or 'normalised'")


def retrieval_reward(turn: Turn, answers: Sequence[str], value: float = 0.3, rule: str = "raw") -> float:
    """R_retrieval: ``value`` if an accepted answer stands in this turn's information."""
    return value if is_hit(turn, answers, rule) else 0.0


def format_reward(turn: Turn, right: float = 0.1, wrong: float = -0.2, rule: str = "strict") -> float:
    """R_format: ``right`` for think, search and information, each once and in order; else ``wrong``.

    ``strict``: these blocks alone, and the information is the environment's. ``counts``: the tags of the turn and its
    observation are counted, any text may stand between them; an invalid turn is wrong.

    Raises:
        ValueError: another rule.
    """
    match rule:
        case "strict":
            well_formed = intermediate_turn_format(turn, SEARCH)
        case "counts":
            tags = (SEARCH.thought, SEARCH.call, SEARCH.result)
            well_formed = turn.observation.error is None and has_each_once(turn_text(turn), tags)
        case _:
            raise ValueError(f"unknown rule of turn format {rule!r}: use 'strict' or 'counts'")
    return right if well_formed else wrong


def answer_format(transcript: Transcript, rule: str = "strict") -> bool:
    """Whether the episode ended in an answering turn that is well-formed under ``rule``, as in ``format_reward``.

    Raises:
        ValueError: another rule.
    """
    match rule:
        case "strict":
            return outcome_format(transcript, SEARCH)
        case "counts":
            text = transcript.turns[-1].text
            others = any(f"<{slash}{name}>" in text for name in (SEARCH.call, SEARCH.result) for slash in ("", "/"))
            answered = transcript.stop is StopReason.ANSWERED
            return answered and not others and has_each_once(text, (SEARCH.thought, SEARCH.answer))
        case _:
            raise ValueError(f"unknown rule of turn format {rule!r}: use 'strict' or 'counts'")


def search_reward(n_search: int, cost: float = 0.1) -> float:
    """R_search = -lambda_s * n_search, n_search being all searches up to and in this turn.

    The cost grows with the square of the number of searches in an episode: -0.1, -0.3, -0.6, -1.0.

    >>> round(sum(search_reward(n) for n in (1, 2, 3, 4)), 6)
    -1.0
    """
    return 0.0 - cost * n_search


def charged_searches_K(transcript: Transcript, charge: str = "executed") -> tuple[int, ...]:
    """n_search of each turn, by which its search cost is computed (``search_reward``).

    ``executed``: the searches executed up to this turn; an invalid turn adds none. ``tag``: for a turn whose text has
    an opening search tag, the number of such turns up to it; for any other turn 0. An invalid turn counts as one with
    the tag, because the remark that follows it has the tag in the authors' environment.

    Raises:
        ValueError: another charge.
    """
    match charge:
        case "executed":
            return searches_so_far_K(transcript)
        case "tag":
            tagged_K = [f"<{SEARCH.call}>" in turn_text(turn) or turn.observation.error is not None
                        for turn in transcript.turns]
            return tuple(n * tagged for n, tagged in zip(accumulate(tagged_K), tagged_K, strict=True))
        case _:
            raise ValueError(f"unknown charge of searches {charge!r}: use 'executed' or 'tag'")


def searches_so_far_K(transcript: Transcript) -> tuple[int, ...]:
    """Executed searches from the first turn to each turn."""
    return tuple(accumulate(int(executed(turn)) for turn in transcript.turns))


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
    """R^O of the outcome-only baselines: 1 for an exact match, else 0, whatever the format."""
    return 1.0 if correct else 0.0


def merged_reward(transcript: Transcript, answers: Sequence[str], correct: bool, well_formed: bool,
                  values: SearchRewards) -> float:
    """The merged reward (section 6.1; Search-R1's reward of answer, format and retrieval): one number for an episode.

    ``well_formed`` is the format of all turns. Retrieval counts only beside a right format and a wrong answer, and
    once, however many turns hit. A hit is normalised, as in the code that defines this reward.
    """
    if not well_formed:
        if correct:
            return values.merged_right_malformed
        answered = transcript.stop is StopReason.ANSWERED
        return values.merged_wrong_malformed if answered else values.merged_no_answer
    if correct:
        return values.merged_right
    hit = any(is_hit(turn, answers, "normalised") for turn in transcript.turns)
    return values.merged_wrong_hit if hit else values.merged_wrong


@dataclass(frozen=True, slots=True)
class SearchReward:
    """The reward function of the search agent; ``content`` says which components count.

    - ``outcome``: the binary outcome alone,
    - ``merged``: the merged reward, paid as R^O; every R^I is 0, so all placements pay the same at the end,
    - ``retrieval``: R_retrieval of each turn and the three-tier outcome,
    - ``full``: R_retrieval, R_format and R_search of each turn and the three-tier outcome.
    """

    content: Content
    values: SearchRewards
    grammar: Grammar

    def __call__(self, transcript: Transcript, item: Question) -> Rewards:
        """Judge one episode; an episode without an answer has a wrong format and no exact match."""
        v, answers, before_last = self.values, item.answers, transcript.turns[:-1]
        prediction = given_answer(transcript, self.grammar)
        correct, overlap = exact_match(prediction, answers), f1(prediction, answers)
        well_formed = episode_format(transcript, SEARCH)
        retrieval_K = [*(retrieval_reward(turn, answers, v.retrieval, v.hit) for turn in before_last), 0.0]
        format_K = [*(format_reward(turn, v.turn_format_right, v.turn_format_wrong, v.turn_format)
                      for turn in before_last), 0.0]
        search_K = [*(search_reward(n, v.search_cost) for n in charged_searches_K(transcript, v.search_charge)[:-1]),
                    0.0]
        tiers = outcome_reward(correct, answer_format(transcript, v.turn_format), right=v.correct,
                               format_only=v.format_only, format_wrong=v.format_wrong)
        merged = merged_reward(transcript, answers, correct, well_formed, v)
        counted, outcome = self._paid([retrieval_K, format_K, search_K], binary_outcome(correct), merged, tiers)
        return Rewards(
            intermediate_K=tuple(sum((parts[k] for parts in counted), 0.0) for k in range(len(transcript.turns))),
            outcome=outcome,
            metrics={
                "answer_correct": float(correct), "f1": overlap, "format_correct": float(well_formed),
                "retrieval_correct": float(any(retrieved(turn, answers) for turn in transcript.turns)),
                "searches": searches_so_far_K(transcript)[-1],
            },
            components={
                "exact_match": float(correct), "f1": overlap, "retrieval": sum(retrieval_K),
                "turn_format": sum(format_K), "search_cost": sum(search_K), "tiers": tiers, "merged": merged,
            },
            columns={"hops": item.hops, "prediction": prediction})

    def _paid(self, shaped: list[list[float]], binary: float, merged: float,
              tiers: float) -> tuple[list[list[float]], float]:
        """The parts of R^I that count, and R^O."""
        match self.content:
            case "outcome":
                return [], binary
            case "merged":
                return [], merged
            case "retrieval":
                return shaped[:1], tiers
            case "full":
                return shaped, tiers
            case _:
                raise ValueError(f"unknown content {self.content!r}")
