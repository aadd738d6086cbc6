"""What every task's rewards are, and the facts about an episode that they share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from turncredit.rewards.matching import contains
from turncredit.tasks.tags import Grammar, final_turn_format, intermediate_turn_format, parse_action
from turncredit.types import StopReason, Transcript, Turn

if TYPE_CHECKING:
    from turncredit.types import Question


@dataclass(frozen=True, slots=True)
class Rewards:
    """The rewards of one transcript of K turns.

    Attributes:
        intermediate_K: R^I of each turn, in order; 0 where a turn earns none.
        outcome: R^O.
        answer_correct: 1.0 or 0.0, as are the next two (paper section 2.3, per trajectory).
        format_correct: the final turn and all intermediate turns are well-formed.
        retrieval_correct: an accepted answer stands in at least one result.
        f1: word overlap of the answer with the nearest accepted one, in [0, 1].
        prediction: the answer that was given; "" if none.
        searches: searches that were executed.
        components: every component by name, summed over the episode; measured whether or not it counts.
    """

    intermediate_K: tuple[float, ...]
    outcome: float
    answer_correct: float
    format_correct: float
    retrieval_correct: float
    f1: float
    prediction: str
    searches: int
    components: dict[str, float]


class RewardFunction(Protocol):
    """A pure function of an episode and its question."""

    def __call__(self, transcript: Transcript, question: Question) -> Rewards:
        """Judge one episode."""
        ...


def given_answer(transcript: Transcript, grammar: Grammar) -> str:
    """The answer in the model's own final turn; "" if the episode ended without one."""
    if transcript.stop is not StopReason.ANSWERED:
        return ""
    action = parse_action(transcript.turns[-1].text, grammar)
    return action.content if action.kind == grammar.answer else ""


def executed(turn: Turn, grammar: Grammar) -> bool:
    """Whether the turn made a call that the environment carried out and answered."""
    answered = bool(turn.observation.text) and turn.observation.error is None
    return answered and parse_action(turn.text, grammar).kind == grammar.call


def retrieved(turn: Turn, answers: Sequence[str]) -> bool:
    """Whether an accepted answer stands in a title or text of the passages as this turn was shown them."""
    return any(contains(part, answers) for d in turn.observation.documents for part in (d.title, d.text))


def outcome_format(transcript: Transcript, grammar: Grammar) -> bool:
    """Whether the episode ended in a well-formed answering turn; an episode cut short never did."""
    return transcript.stop is StopReason.ANSWERED and final_turn_format(transcript.turns[-1].text, grammar)


def episode_format(transcript: Transcript, grammar: Grammar) -> bool:
    """Whether the final turn and all intermediate turns are well-formed (the format metric)."""
    return outcome_format(transcript, grammar) and all(
        intermediate_turn_format(turn, grammar) for turn in transcript.turns[:-1])
