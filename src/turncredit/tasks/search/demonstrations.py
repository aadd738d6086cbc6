"""Demonstrations of the question-answering tasks: an agent that follows the question's plan, with flaws.

At every decision a flaw may happen: a wrong query, a repeated search, broken tags, or the last fact from memory
instead of a search, right for a known country and wrong for another; at the first one also no search at all,
which with one hop is an answer from memory.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from turncredit.tasks.plugin import Demonstrations, Names
from turncredit.tasks.search.config import QuestionTaskConfig
from turncredit.tasks.tags import SEARCH, Grammar
from turncredit.types import Observation, Question

FLAWS = ("no_search", "wrong_query", "repeated_search", "broken_tags", "from_memory")


@dataclass(slots=True)
class PlanFollower:
    """The demonstrator of one question: it knows the plan, what it has seen so far, and its flaws.

    Attributes:
        question: with its plan.
        flaws: the chance of each flaw at a decision.
        names: the world's names, for wrong queries and wrong answers.
        rng: draws all decisions.
        grammar: the tags to write.
        write_call: query -> content of a call.
        done: hops of the plan whose evidence was seen.
        recalled: it has answered from memory.
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
    recalled: bool = False

    def act(self) -> str:
        """The next turn's text."""
        unsearched = not self.turns and self._has("no_search")
        if self.done == len(self.question.plan) - 1 and (unsearched or self._has("from_memory")):
            return self._recall()
        thought = self.question.plan[self.done - 1].evidence if self.done else "unclear" if self.turns else "find"
        query = None if unsearched else self._next_query()
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
        """The last evidence; without any, a name from the passages seen; without those, the name in the question."""
        if self.done:
            return self.question.plan[self.done - 1].evidence
        seen = [name for observation in self.observations for document in observation.data
                for name in self.names.names_in(document.text)]
        if seen:
            return self.rng.choice(seen)
        return self._named(self.question.question)

    def _recall(self) -> str:
        """The last fact from memory; of a country that is not known, its own name for want of a better one."""
        self.recalled = True
        self.turns += 1
        hop = self.question.plan[-1]
        value = hop.evidence if self._named(hop.query) in self.names.known else self._named(hop.query)
        return self._turn(f"recall {hop.query}", f"<{self.grammar.answer}> {value}</{self.grammar.answer}>")

    def _named(self, text: str) -> str:
        """The last name in a text; a wrong answer that, unlike a random name, can be copied from what was read."""
        return self.names.names_in(text)[-1]

    def _write(self, thought: str, query: str | None) -> str:
        call, answer = self.grammar.call, self.grammar.answer
        return self._turn(thought, f"<{answer}> {self._answer()}</{answer}>" if query is None
                          else f"<{call}>{self.write_call(query)}</{call}>")

    def _turn(self, thought: str, action: str) -> str:
        """A thought and an action, perhaps with broken tags."""
        think = self.grammar.thought
        whole = f"<{think}> {thought}</{think}>"
        if not self._has("broken_tags"):
            return whole + action
        unclosed = f"<{think}> {thought}"
        return self.rng.choice((action, whole + whole + action, f"{whole} {thought}{action}", unclosed + action))


def kind_of(question: Question) -> str:
    """The kind of a question: the relations that lead from its one name to the answer, the last one first.

    >>> from turncredit.types import Hop
    >>> kind_of(Question("q", "facts", "What is the capital of Kenya?", ("Nairobi",), 1,
    ...                  plan=(Hop("capital of Kenya", "Nairobi"),)))
    'capital'
    """
    return ", ".join(_relation(hop.query) for hop in reversed(question.plan))


def _relation(query: str) -> str:
    """A gold query without the name in it.

    >>> _relation("country whose largest city is Kano"), _relation("country in which Kano lies")
    ('country whose largest city is', 'country in which')
    """
    words = query.split()
    of = next((n for n, word in enumerate(words) if word in ("of", "is", "which")), len(words))
    return " ".join(words[:of] if words[of:of + 1] == ["of"] else words[:of + 1])


def demonstrations_of(grammar: Grammar, write_call: Callable[[str], str], texts: tuple[str, ...]) -> Demonstrations:
    """The demonstrations of a question-answering task.

    Args:
        grammar: its tags.
        write_call: query -> content of a call.
        texts: words of its protocol.
    """
    def make(item: Question, flaws: Mapping[str, float], names: Names, rng: random.Random) -> PlanFollower:
        return PlanFollower(item, flaws, names, rng, grammar, write_call)

    def recite(item: Question) -> tuple[str, str]:
        think, answer, hop = grammar.thought, grammar.answer, item.plan[-1]
        return f"<{think}> recall {hop.query}</{think}>", f"<{answer}> {hop.evidence}</{answer}>"

    return Demonstrations(make=make, flaws=FLAWS, kind_of=kind_of, fits=_fits, is_short=_has_one_hop, texts=texts,
                          recite=recite)


def _fits(config: QuestionTaskConfig, question: Question) -> bool:
    """Each hop takes a turn, and the answer one more."""
    return question.hops < config.max_turns


def _has_one_hop(question: Question) -> bool:
    return question.hops == 1


def _write_query(query: str) -> str:
    return f" {query}"


DEMONSTRATIONS = demonstrations_of(SEARCH, _write_query, (
    "Question: Doc 1(Title: Doc 2(Title: Doc 3(Title: find unclear recall Invalid. Search or answer.",))
