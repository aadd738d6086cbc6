"""One episode of question answering with a retriever: turns, limits, observations.

Both tasks play it; they differ in their tags, in how a call is read and in their fixed texts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Literal

from turncredit.config.task import TaskConfig
from turncredit.errors import ConfigError
from turncredit.tasks.env import CountTokens, CutTokens, Environment, Message, Step
from turncredit.tasks.search.passages import asked, show
from turncredit.tasks.tags import Grammar, parse_action
from turncredit.types import Document, Observation, StopReason, TurnStop

if TYPE_CHECKING:
    from turncredit.types import Question


class Fault(Enum):
    """Why a turn is invalid; its value stands in ``Observation.error``."""

    NO_ACTION = "no_action"  # the sampled text holds no valid action
    TRUNCATED = "truncated"  # ... because the turn's token limit was reached
    BAD_JSON = "bad_json"  # a tool call that is not one JSON object
    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"  # missing, extra or of the wrong type


@dataclass(frozen=True, slots=True)
class Rules:
    """What makes a task of an episode.

    Attributes:
        grammar: the tags.
        read_call: the query that a call's content asks for, or what is wrong with it.
        remarks: the observation after each kind of invalid turn.
        instruction: the full instruction; shown if the configuration asks for it.
        hint: shown in its place by the short prompt, as a system message; empty for none.
        instruction_role: "user" puts it before the question, "system" in a message of its own.
        reply_role: chat role of observations; None appends them inside the assistant's turn.
    """

    grammar: Grammar
    read_call: Callable[[str], str | Fault]
    remarks: Mapping[Fault, str]
    instruction: str
    hint: str
    instruction_role: Literal["user", "system"]
    reply_role: Literal["user"] | None


@dataclass(slots=True)
class Episode:
    """The state of one episode: how many turns were taken and how many of them were invalid."""

    config: TaskConfig
    rules: Rules
    question: str
    count_tokens: CountTokens
    cut: CutTokens
    turns: int = 0
    invalid_turns: int = 0
    over: bool = False

    def prompt(self) -> list[Message]:
        """The question, behind the instruction or the hint, as the configuration asks."""
        line = asked(self.question)
        short = self.config.instruction == "short"
        if self.rules.instruction_role == "user" and not short:
            return [{"role": "user", "content": f"{self.rules.instruction} {line}"}]
        system = self.rules.hint if short else self.rules.instruction
        return [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": line}]

    def query(self, text: str) -> str | None:
        """What this turn asks the retriever: a valid call's query, None in the last turn."""
        found = self._read(text)
        return found if isinstance(found, str) and self.turns + 1 < self.config.max_turns else None

    def step(self, text: str, stop: TurnStop, documents: Sequence[Document] | None) -> Step:
        """Advance by one turn: an answer or a limit ends the episode, else an observation follows.

        In the last turn the turn limit is named, also where the invalid limit is reached with it.
        """
        if self.over:
            raise ValueError("the episode is over: an environment is used once")
        query = self.query(text)
        if (query is None) != (documents is None):
            raise ValueError("documents are given exactly where the turn asks for them")
        self.turns += 1
        if parse_action(text, self.rules.grammar).kind == self.rules.grammar.answer:
            return self._end(StopReason.ANSWERED)
        if self.turns == self.config.max_turns:
            return self._end(StopReason.TURN_LIMIT)
        if documents is not None:
            shown = show(documents[:self.config.top_k], self.rules.grammar.result,
                         self.config.max_observation_tokens, self.count_tokens, self.cut)
            return Step(replace(shown, role=self.rules.reply_role))
        self.invalid_turns += 1
        if self.invalid_turns >= self.config.max_invalid_turns:
            return self._end(StopReason.INVALID_LIMIT)
        fault = self._fault(text, stop)
        return Step(Observation(self.rules.remarks[fault], error=fault.value, role=self.rules.reply_role))

    def fork(self) -> Environment:
        """An independent copy: everything in it is immutable but its own counters."""
        return replace(self)

    def _read(self, text: str) -> str | Fault | None:
        """The query of a turn's call, the call's fault, or None if the turn calls nothing."""
        action = parse_action(text, self.rules.grammar)
        return self.rules.read_call(action.content) if action.kind == self.rules.grammar.call else None

    def _fault(self, text: str, stop: TurnStop) -> Fault:
        found = self._read(text)
        if isinstance(found, Fault):
            return found
        return Fault.TRUNCATED if stop is TurnStop.LENGTH else Fault.NO_ACTION

    def _end(self, reason: StopReason) -> Step:
        self.over = True
        return Step(Observation(), reason)


@dataclass(frozen=True)
class EpisodeTask:
    """A task whose episodes follow ``rules``."""

    config: TaskConfig
    rules: Rules

    @property
    def stop_tags(self) -> tuple[str, ...]:
        """The closing tags of a call and of an answer."""
        return f"</{self.rules.grammar.call}>", f"</{self.rules.grammar.answer}>"

    def start(self, question: Question, count_tokens: CountTokens, cut: CutTokens) -> Episode:
        """A new episode about ``question``."""
        result, budget = self.rules.grammar.result, self.config.max_observation_tokens
        for fixed in (f"<{result}></{result}>", *self.rules.remarks.values()):
            if (needed := count_tokens(fixed)) > budget:
                raise ConfigError(f"task.max_observation_tokens = {budget}: {fixed!r} takes {needed} tokens",
                                  f"set it to {needed} or more")
        return Episode(self.config, self.rules, question.question, count_tokens, cut)
