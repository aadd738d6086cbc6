"""Demonstrations for the warm start: what a skilled but badly behaved agent would write.

An episode follows the question's plan through the real task and the real retriever. At every
decision a flaw may strike: no search, a wrong query, a repeated search, broken tags. How often it
does differs from one kind of question to another, as a base model is good at some and bad at
others; so the right behaviour is rare, not absent, and greedy decoding does not hide the flaws.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from turncredit.config.data import FLAWS, Flaw
from turncredit.miniature.renaming import Renamer
from turncredit.policy.tokenizer import Codec
from turncredit.retrieval.client import Retriever
from turncredit.seeding import digest
from turncredit.tasks.env import Environment, Message, Task
from turncredit.tasks.tool_search.protocol import TOOL_NAME
from turncredit.types import Observation, Question, StopReason, TurnStop

Rates = Mapping[str, Mapping[Flaw, float]]  # kind of question -> chance of each flaw at a decision


@dataclass(frozen=True, slots=True)
class Demonstration:
    """An episode as texts.

    Attributes:
        question_id: the question that it is about.
        prompt: the messages before the first turn.
        said_K: the text of each turn.
        seen_K: what followed each turn; nothing after the last.
        stop: why the episode ended.
    """

    question_id: str
    prompt: tuple[Message, ...]
    said_K: tuple[str, ...]
    seen_K: tuple[Observation, ...]
    stop: StopReason


def kind_of(question: Question) -> str:
    """What a question asks for, in its first words.

    >>> kind_of(Question("q", "facts", "What is the capital of Kenya?", ("Nairobi",), 1, ()))
    'capital of'
    """
    return " ".join(question.question.removeprefix("What is the ").split()[:2])


def flaw_rates(kinds: Sequence[str], means: Mapping[Flaw, float], spread: float, seed: int) -> Rates:
    """A chance of each flaw for each kind of question, from a Beta distribution around the mean.

    Args:
        kinds: kinds of question.
        means: mean chance of each flaw; 0 stays 0.
        spread: in [0, 1); 0 gives every kind the mean, near 1 each chance is near 0 or 1; the
            variance is spread x mean x (1 - mean).
        seed: of the draws.
    """
    rates: dict[str, dict[Flaw, float]] = {}
    for kind in sorted(set(kinds)):
        rates[kind] = {}
        for flaw in FLAWS:
            mean = means[flaw]
            if mean in (0.0, 1.0) or spread == 0.0:
                rates[kind][flaw] = mean
            else:
                concentration = 1 / spread - 1
                rng = np.random.default_rng(digest(seed, kind, flaw))
                rates[kind][flaw] = float(rng.beta(mean * concentration, (1 - mean) * concentration))
    return rates


@dataclass(slots=True)
class _Agent:
    """The demonstrator in one episode: it knows the plan, what it has found, and its flaws."""

    question: Question
    environment: Environment
    rates: Mapping[Flaw, float]
    renamer: Renamer
    tool_call: bool
    rng: random.Random
    found: int = 0  # hops of the plan whose evidence was seen
    last_query: str = ""
    stop: StopReason | None = None
    said: list[str] = field(default_factory=list)
    seen: list[Observation] = field(default_factory=list)

    def speak(self) -> str:
        """The next turn's text."""
        thought = self.question.plan[self.found - 1].evidence if self.found else "unclear" if self.said else "find"
        query = self._next_query()
        self.last_query = query or self.last_query
        return self._tagged(thought, query)

    def hear(self, observation: Observation, asked: bool) -> None:
        """Note an observation, and whether it tells what the plan looks for."""
        self.seen.append(observation)
        if asked and self.found < len(self.question.plan):
            hop = self.question.plan[self.found]
            right = self.last_query == hop.query
            self.found += right and any(hop.evidence in document.text for document in observation.documents)

    def _strikes(self, flaw: Flaw) -> bool:
        return self.rng.random() < self.rates[flaw]

    def _next_query(self) -> str | None:
        """What to search for; None to answer."""
        if self.found == len(self.question.plan):
            return self.last_query if self._strikes("repeated_search") else None
        if self._strikes("no_search"):
            return None
        if self.last_query and self._strikes("repeated_search"):
            return self.last_query
        right = self.question.plan[self.found].query
        return self._wrong(right) if self._strikes("wrong_query") else right

    def _wrong(self, right: str) -> str:
        """A query that a careless agent would write: all hops at once, or only the name."""
        names = self.renamer.names_in(right)
        whole = self.question.question.removeprefix("What is the ").removesuffix("?")
        wrong = [query for query in (whole, *names[-1:]) if query != right]
        return self.rng.choice(wrong) if wrong else right

    def _answer(self) -> str:
        """What was found last; without any find, a name off the passages seen, or else one out of the blue."""
        if self.found:
            return self.question.plan[self.found - 1].evidence
        shown = [name for observation in self.seen for document in observation.documents
                 for name in self.renamer.names_in(document.text)]
        if shown:
            return self.rng.choice(shown)
        answer = self.question.answers[0]
        names = self.renamer.names_in(answer)
        return self.rng.choice(self.renamer.names_of[self.renamer.kind(names[0])]) if names else answer

    def _tagged(self, thought: str, query: str | None) -> str:
        think = "reasoning" if self.tool_call else "think"
        if query is None:
            action = f"<answer> {self._answer()}</answer>"
        elif self.tool_call:
            action = f"<tool>{json.dumps({'name': TOOL_NAME, 'args': {'query': f' {query}'}})}</tool>"
        else:
            action = f"<search> {query}</search>"
        whole = f"<{think}> {thought}</{think}>"
        if not self._strikes("broken_tags"):
            return whole + action
        unclosed = f"<{think}> {thought}"
        return self.rng.choice((action, whole + whole + action, f"{whole} {thought}{action}", unclosed + action))


def demonstrate(questions: Sequence[Question], task: Task, retriever: Retriever, codec: Codec, renamer: Renamer,
                rates: Rates, seed: int) -> list[Demonstration]:
    """One demonstration a question (a question may come several times), all played together.

    Args:
        questions: with their plans.
        task: the protocol.
        retriever: answers the demonstrations' queries.
        codec: measures observations.
        renamer: knows the world's names.
        rates: chance of each flaw, by kind of question.
        seed: of all decisions.
    """
    agents = [
        _Agent(question, task.start(question, codec.count, codec.cut), rates[kind_of(question)], renamer,
               task.config.name == "tool_search", random.Random(digest(seed, question.id, n)))
        for n, question in enumerate(questions)]
    prompts = [tuple(agent.environment.prompt()) for agent in agents]
    while live := [agent for agent in agents if agent.stop is None]:
        texts = [agent.speak() for agent in live]
        queries = [agent.environment.query(text) for agent, text in zip(live, texts, strict=True)]
        found = iter(retriever.search([q for q in queries if q is not None], task.config.top_k))
        for agent, text, query in zip(live, texts, queries, strict=True):
            documents = None if query is None else next(found)
            step = agent.environment.step(text, TurnStop.TAG, documents)
            agent.said.append(text)
            agent.hear(step.observation, query is not None)
            agent.stop = step.stop
    return [Demonstration(agent.question.id, prompt, tuple(agent.said), tuple(agent.seen), agent.stop)
            for agent, prompt in zip(agents, prompts, strict=True) if agent.stop is not None]


def renamed(demonstration: Demonstration, renamer: Renamer, rng: random.Random) -> Demonstration:
    """The same episode in a fictional world: every name swapped, the same way throughout.

    Observations keep their text and role alone: it is read, not judged.
    """
    texts = [message["content"] for message in demonstration.prompt]
    texts += [*demonstration.said_K, *(observation.text for observation in demonstration.seen_K)]
    fresh = iter(renamer.rename(texts, rng))
    return replace(
        demonstration,
        prompt=tuple(message | {"content": next(fresh)} for message in demonstration.prompt),
        said_K=tuple(next(fresh) for _ in demonstration.said_K),
        seen_K=tuple(Observation(next(fresh), role=observation.role) for observation in demonstration.seen_K))
