"""Demonstrations of the question-answering tasks: an agent that follows the question's plan, with flaws.

At every decision a flaw may happen: no search, a wrong query, a repeated search, broken tags.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from turncredit.tasks.plugin import Demonstrations, Names
from turncredit.tasks.search.config import QuestionTaskConfig
from turncredit.tasks.tags import SEARCH, Grammar
from turncredit.types import Observation, Question

FLAWS = ("no_search", "wrong_query", "repeated_search", "broken_tags")


@dataclass(slots=True)
class PlanFollower:
    """The demonstrator of one question: it knows the plan, what it has seen so far, and its flaws.

    Attributes:
        question: with its plan.
        flaws: the chance of each flaw at a decision.
        names: the world's names, for wrong queries and guesses.
        rng: draws all decisions.
        grammar: the tags to write.
        write_call: query -> content of a call.
        done: hops of the plan whose evidence was seen.
    """

    question: Question
    flaws: Mapping[str, float]
    names: Names
    rng: random.Random
    grammar: Grammar
    write_call: Callable[[str], str]
    done: int = 0
    last_query: str = ""
    turns: int = 0
    observations: list[Observation] = field(default_factory=list)

    def act(self) -> str:
        """The next turn's text."""
        thought = self.question.plan[self.done - 1].evidence if self.done else "unclear" if self.turns else "find"
        query = self._next_query()
        self.last_query = query or self.last_query
        self.turns += 1
        return self._write(thought, query)

    def observe(self, observation: Observation) -> None:
        """Read an observation; a hop is done if its query was executed and retrieved its evidence."""
        self.observations.append(observation)
        if observation.data and self.done < len(self.question.plan):
            hop = self.question.plan[self.done]
            right = self.last_query == hop.query
            self.done += right and any(hop.evidence in document.text for document in observation.data)

    def _has(self, flaw: str) -> bool:
        return self.rng.random() < self.flaws[flaw]

    def _next_query(self) -> str | None:
        """The query to search for; None to answer."""
        if self.done == len(self.question.plan):
            return self.last_query if self._has("repeated_search") else None
        if self._has("no_search"):
            return None
        if self.last_query and self._has("repeated_search"):
            return self.last_query
        right = self.question.plan[self.done].query
        return self._wrong_query(right) if self._has("wrong_query") else right

    def _wrong_query(self, right: str) -> str:
        """A careless query: all hops at once, or only the name."""
        names = self.names.names_in(right)
        whole = self.question.question.removeprefix("What is the ").removesuffix("?")
        wrong = [query for query in (whole, *names[-1:]) if query != right]
        return self.rng.choice(wrong) if wrong else right

    def _answer(self) -> str:
        """The last evidence; without any, a name from the passages seen; without those, a random name of the kind."""
        if self.done:
            return self.question.plan[self.done - 1].evidence
        seen = [name for observation in self.observations for document in observation.data
                for name in self.names.names_in(document.text)]
        if seen:
            return self.rng.choice(seen)
        answer = self.question.answers[0]
        names = self.names.names_in(answer)
        return self.rng.choice(self.names.names_of[self.names.kind(names[0])]) if names else answer

    def _write(self, thought: str, query: str | None) -> str:
        think, call, answer = self.grammar.thought, self.grammar.call, self.grammar.answer
        action = (f"<{answer}> {self._answer()}</{answer}>" if query is None
                  else f"<{call}>{self.write_call(query)}</{call}>")
        whole = f"<{think}> {thought}</{think}>"
        if not self._has("broken_tags"):
            return whole + action
        unclosed = f"<{think}> {thought}"
        return self.rng.choice((action, whole + whole + action, f"{whole} {thought}{action}", unclosed + action))


def kind_of(question: Question) -> str:
    """The kind of a question: the relation that it asks for, in its first words.

    >>> kind_of(Question("q", "facts", "What is the capital of Kenya?", ("Nairobi",), 1, ()))
    'capital of'
    """
    return " ".join(question.question.removeprefix("What is the ").split()[:2])


def demonstrations_of(grammar: Grammar, write_call: Callable[[str], str], texts: tuple[str, ...]) -> Demonstrations:
    """The demonstrations of a question-answering task.

    Args:
        grammar: its tags.
        write_call: query -> content of a call.
        texts: words of its protocol.
    """
    def make(item: Question, flaws: Mapping[str, float], names: Names, rng: random.Random) -> PlanFollower:
        return PlanFollower(item, flaws, names, rng, grammar, write_call)

    return Demonstrations(make=make, flaws=FLAWS, kind_of=kind_of, fits=_fits, is_short=_has_one_hop, texts=texts)


def _fits(config: QuestionTaskConfig, question: Question) -> bool:
    """Two turns have room for one search."""
    return config.max_turns > 2 or _has_one_hop(question)


def _has_one_hop(question: Question) -> bool:
    return question.hops == 1


def _write_query(query: str) -> str:
    return f" {query}"


DEMONSTRATIONS = demonstrations_of(
    SEARCH, _write_query, ("Question: Doc 1(Title: Doc 2(Title: Doc 3(Title: find unclear Invalid. Search or answer.",))
