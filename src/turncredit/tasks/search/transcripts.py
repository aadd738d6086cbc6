"""Facts of a finished question-answering episode that the rewards of both tasks read."""

from __future__ import annotations

from collections.abc import Sequence

from turncredit.tasks.tags import Grammar, final_turn_format, intermediate_turn_format, parse_action
from turncredit.text_matching import contains
from turncredit.types import StopReason, Transcript, Turn


def given_answer(transcript: Transcript, grammar: Grammar) -> str:
    """The answer in the model's own final turn; "" if the episode ended without one."""
    if transcript.stop is not StopReason.ANSWERED:
        return ""
    action = parse_action(transcript.turns[-1].text, grammar)
    return action.content if action.name == grammar.answer else ""


def executed(turn: Turn, grammar: Grammar) -> bool:
    """Whether the turn made a call that the environment executed and answered with a result."""
    succeeded = bool(turn.observation.text) and turn.observation.error is None
    return succeeded and parse_action(turn.text, grammar).name == grammar.call


def retrieved(turn: Turn, answers: Sequence[str]) -> bool:
    """Whether a title or text of the passages that this turn was shown holds an accepted answer."""
    return any(contains(part, answers) for d in turn.observation.data for part in (d.title, d.text))


def outcome_format(transcript: Transcript, grammar: Grammar) -> bool:
    """Whether the episode ended in a well-formed answering turn; False for an episode cut short."""
    return transcript.stop is StopReason.ANSWERED and final_turn_format(transcript.turns[-1].text, grammar)


def episode_format(transcript: Transcript, grammar: Grammar) -> bool:
    """Whether the final turn and all intermediate turns are well-formed (the format metric)."""
    return outcome_format(transcript, grammar) and all(
        intermediate_turn_format(turn, grammar) for turn in transcript.turns[:-1])
