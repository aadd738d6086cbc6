"""The environment of both question-answering tasks: turns, limits and observations.

The tasks differ in their tags, in how a call is read and in their fixed texts (``Rules``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Literal

from turncredit.errors import ConfigError
from turncredit.seeding import derive_seed
from turncredit.tasks.env import CountTokens, CutTokens, Message, Request, Step
from turncredit.tasks.search.config import QuestionTaskConfig
from turncredit.tasks.search.passages import format_passages, format_question
from turncredit.tasks.tags import Grammar, parse_action
from turncredit.types import Document, Observation, Question, StopReason, TurnStop

SERVICE = "search"


class Fault(Enum):
    """Why a turn is invalid; the value of ``Observation.error``."""

    NO_ACTION = "no_action"  # the sampled text holds no valid action
    TRUNCATED = "truncated"  # ... because the turn's token limit was reached
    BAD_JSON = "bad_json"  # a tool call that is not one JSON object
    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"  # missing, extra or of the wrong type


@dataclass(frozen=True, slots=True)
class Rules:
    """The protocol of one task.

    Attributes:
        grammar: the tags.
        read_call: a call's content -> its query, or the call's fault.
        remarks: the observation after each kind of invalid turn.
        instruction: the full instruction, for ``task.instruction: full``.
        hint: a system message in its place, for ``task.instruction: short``; empty for none.
        instruction_role: "user" puts the instruction before the question, "system" in a message of its own.
        reply_role: chat role of observations; None appends them inside the assistant's turn.
        after_question: text behind the question in the user's message.
        around_result: text before and after the result's tags.
    """

    grammar: Grammar
    read_call: Callable[[str], str | Fault]
    remarks: Mapping[Fault, str]
    instruction: str
    hint: str
    instruction_role: Literal["user", "system"]
    reply_role: Literal["user"] | None
    after_question: str = ""
    around_result: str = ""


@dataclass(slots=True)
class SearchEnvironment:
    """One episode about a question; it counts its turns and its invalid turns."""

    config: QuestionTaskConfig
    rules: Rules
    item_id: str
    question: str
    count_tokens: CountTokens
    cut: CutTokens
    turns: int = 0
    invalid_turns: int = 0
    over: bool = False

    def reset(self) -> list[Message]:
        """The question, after the instruction or the hint, as ``task.instruction`` says."""
        self.turns, self.invalid_turns, self.over = 0, 0, False
        line = format_question(self.question) + self.rules.after_question
        short = self.config.instruction == "short"
        if self.rules.instruction_role == "user" and not short:
            return [{"role": "user", "content": f"{self.rules.instruction} {line}"}]
        system = self.rules.hint if short else self.rules.instruction
        return [*([{"role": "system", "content": system}] if system else []), {"role": "user", "content": line}]

    def request(self, text: str) -> Request | None:
        """A search for the query of a valid call; None without one, and in the last turn."""
        query = self._read(text)
        if not isinstance(query, str) or self.turns + 1 >= self.config.max_turns:
            return None
        return Request(SERVICE, query)

    def step(self, text: str, stop: TurnStop, response: Sequence[Document] | None) -> Step:
        """Advance by one turn: an answer or a limit ends the episode, otherwise an observation follows.

        If the last turn also reaches the invalid limit, the stop reason is the turn limit.
        """
        if self.over:
            raise ValueError("the episode is over: an environment is used once")
        if (self.request(text) is None) != (response is None):
            raise ValueError("documents are given exactly where the turn requests them")
        self.turns += 1
        if parse_action(text, self.rules.grammar).name == self.rules.grammar.answer:
            return self._end(StopReason.ANSWERED)
        if self.turns == self.config.max_turns:
            return self._end(StopReason.TURN_LIMIT)
        if response is not None:
            observation = format_passages(self._shown(text, response), self.rules.grammar.result,
                                          self.config.max_observation_tokens, self.count_tokens, self.cut,
                                          around=self.rules.around_result)
            return Step(replace(observation, role=self.rules.reply_role))
        self.invalid_turns += 1
        if self.invalid_turns >= self.config.max_invalid_turns:
            return self._end(StopReason.INVALID_LIMIT)
        fault = self._fault(text, stop)
        return Step(Observation(self.rules.remarks[fault], error=fault.value, role=self.rules.reply_role))

    def fork(self) -> SearchEnvironment:
        """An independent copy; only the counters are mutable."""
        return replace(self)

    def _shown(self, text: str, response: Sequence[Document]) -> Sequence[Document]:
        """The ``top_k`` best passages, or with chance ``task.retrieval_noise`` the ``top_k`` after them.

        The draw is a hash of the item, the turn's number and the query. So equal turns of a tree, and repeated runs,
        are shown the same, and a search that is repeated in a later turn is drawn anew.
        """
        drawn = derive_seed("retrieval noise", self.item_id, self.turns, str(self._read(text))) / 2**63
        first = self.config.top_k if drawn < self.config.retrieval_noise else 0
        return response[first:first + self.config.top_k]

    def _read(self, text: str) -> str | Fault | None:
        """The query of a turn's call, the call's fault, or None if the turn makes no call."""
        action = parse_action(text, self.rules.grammar)
        return self.rules.read_call(action.content) if action.name == self.rules.grammar.call else None

    def _fault(self, text: str, stop: TurnStop) -> Fault:
        call = self._read(text)
        if isinstance(call, Fault):
            return call
        return Fault.TRUNCATED if stop is TurnStop.LENGTH else Fault.NO_ACTION

    def _end(self, reason: StopReason) -> Step:
        self.over = True
        return Step(Observation(), reason)


@dataclass(frozen=True)
class SearchTask:
    """A question-answering task whose episodes follow ``rules``."""

    config: QuestionTaskConfig
    rules: Rules

    @property
    def stop_tags(self) -> tuple[str, ...]:
        """The closing tags of a call and of an answer."""
        return f"</{self.rules.grammar.call}>", f"</{self.rules.grammar.answer}>"

    def start(self, item: Question, count_tokens: CountTokens, cut: CutTokens) -> SearchEnvironment:
        """A new episode about a question."""
        result, budget = self.rules.grammar.result, self.config.max_observation_tokens
        around = self.rules.around_result
        for fixed in (f"{around}<{result}></{result}>{around}", *self.rules.remarks.values()):
            if (needed := count_tokens(fixed)) > budget:
                raise ConfigError(f"task.max_observation_tokens = {budget}: {fixed!r} takes {needed} tokens",
                                  f"set it to {needed} or more")
        return SearchEnvironment(self.config, self.rules, item.id, item.question, count_tokens, cut)
