"""Facts of a finished question-answering episode that the rewards of both tasks read."""

from __future__ import annotations

import re
from collections.abc import Sequence

from turncredit.tasks.search.passages import unescape
from turncredit.tasks.tags import Grammar, final_turn_format, intermediate_turn_format, parse_action
from turncredit.text_matching import contains, normalise
from turncredit.types import StopReason, Transcript, Turn


def given_answer(transcript: Transcript, grammar: Grammar) -> str:
    """The answer in the model's own final turn; "" if the episode ended without one."""
    if transcript.stop is not StopReason.ANSWERED:
        return ""
    action = parse_action(transcript.turns[-1].text, grammar)
    return action.content if action.name == grammar.answer else ""


def executed(turn: Turn) -> bool:
    """Whether the environment executed the turn's call and answered it with a result."""
    return bool(turn.observation.text) and turn.observation.error is None


def retrieved(turn: Turn, answers: Sequence[str]) -> bool:
    """Whether a title or text of the passages that this turn was shown holds an accepted answer.

    Both are compared on one line and unescaped.
    """
    wanted = [unescape(answer) for answer in answers]
    return any(contains(unescape(part), wanted) for d in turn.observation.data for part in (d.title, d.text))


def turn_text(turn: Turn) -> str:
    """The turn up to the end of its observation (a_k = [l_k, f_k])."""
    return turn.text + turn.observation.text


def holds_normalised(turn: Turn, answers: Sequence[str], grammar: Grammar) -> bool:
    """Whether a closed result block of the turn's text, its frame included, holds a normalised accepted answer.

    A block that the model wrote counts too; an accepted answer that is blank is held by nothing. Both are compared
    unescaped.
    """
    blocks = re.findall(f"<{grammar.result}>(.*?)</{grammar.result}>", turn_text(turn), re.DOTALL)
    wanted = [form for answer in answers if (form := normalise(unescape(answer)))]
    return any(form in normalise(unescape(block)) for block in blocks for form in wanted)


def outcome_format(transcript: Transcript, grammar: Grammar) -> bool:
    """Whether the episode ended in a well-formed answering turn; False for an episode cut short."""
    return transcript.stop is StopReason.ANSWERED and final_turn_format(transcript.turns[-1].text, grammar)


def episode_format(transcript: Transcript, grammar: Grammar) -> bool:
    """Whether the final turn and all intermediate turns are well-formed (the format metric)."""
    return outcome_format(transcript, grammar) and all(
        intermediate_turn_format(turn, grammar) for turn in transcript.turns[:-1])
