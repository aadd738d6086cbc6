"""Episodes played by hand for tests of tasks and rewards: a script of turns against given passages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from turncredit.tasks.env import Environment
from turncredit.tasks.plugin import Rewards
from turncredit.tasks.registry import TASKS, make_task
from turncredit.tasks.search.config import QuestionTaskConfig
from turncredit.types import Document, Question, StopReason, Transcript, Turn, TurnStop

HIT = Document("1", "Italy", "The capital of Italy is Rome. The currency is the Euro.")
MISS = Document("2", "Peru", "Peru lies in South America.")


def config(name: str = "search", **changes: object) -> QuestionTaskConfig:
    base = {"name": name, "max_turns": 4, "max_observation_tokens": 1000, "top_k": 3}
    settings = TASKS[name].config.model_validate(base | changes)
    assert isinstance(settings, QuestionTaskConfig)
    return settings


def question(*answers: str) -> Question:
    return Question("q", "facts", "What is the capital of Italy?", answers or ("Rome",), 1, ())


def characters(text: str) -> int:
    """A tokenizer whose tokens are characters."""
    return len(text)


def first_characters(text: str, count: int) -> str:
    return text[:count]


def measured(rewards: Rewards, *names: str) -> tuple[float, ...]:
    """Some of the metrics of an episode."""
    return tuple(rewards.metrics[name] for name in names)


def start(settings: QuestionTaskConfig) -> Environment:
    return make_task(settings).start(question(), characters, first_characters)


def think_search(query: str = "capital of Italy") -> str:
    return f"<think> I look </think><search> {query} </search>"


def think_answer(answer: str = "Rome") -> str:
    return f"<think> I know </think><answer> {answer} </answer>"


def reason_tool(query: str = "Italy") -> str:
    return f'<reasoning> I look </reasoning><tool> {{"name": "wiki_search", "args": {{"query": "{query}"}}}} </tool>'


def reason_answer(answer: str = "Rome") -> str:
    return f"<reasoning> I know </reasoning><answer> {answer} </answer>"


def play(settings: QuestionTaskConfig, texts: Iterable[str], found: Sequence[Sequence[Document]] = ()) -> Transcript:
    """Play ``texts`` as turns; each executed search takes the next of ``found`` (none left: no passage).

    An episode that has not ended when the texts do was cut short by the context window.
    """
    environment, results = start(settings), list(found)
    turns: list[Turn] = []
    reason = None
    for text in texts:
        documents = None if environment.request(text) is None else (results.pop(0) if results else [])
        step = environment.step(text, TurnStop.TAG, documents)
        turns.append(Turn(text, (7,), (-1.0,), TurnStop.TAG, step.observation, (8,) if step.observation.text else ()))
        if step.stop is not None:
            reason = step.stop
            break
    return Transcript("q", (1,), tuple(turns), reason or StopReason.CONTEXT_OVERFLOW)
