"""The six reward functions of the two-turn case study (paper appendix E.2), one pure function each.

Two are intermediate (tool execution, answer in the result) and belong to the turn that called the
tool; four are outcome (answer presence, exact match, XML format, XML tags). Unlike in the search
task, exact match here compares lower-cased, stripped texts and removes nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from turncredit.config.algorithm import Content
from turncredit.tasks.plugin import Rewards
from turncredit.tasks.search.transcripts import episode_format, executed, given_answer, retrieved
from turncredit.tasks.tags import TOOL, parse_action
from turncredit.tasks.tool_search.config import ToolRewards
from turncredit.text_matching import contains, f1
from turncredit.types import Question, Transcript, Turn

COMPONENTS = ("tool_execution", "search_answer", "answer_presence", "exact_match", "xml_format", "xml_tags")

FIELD_SETS = ((TOOL.thought,), (TOOL.call, TOOL.answer))  # a message holds one tag of each


def attempts(turns: Sequence[Turn]) -> list[int]:
    """Indices of the turns that called the tool and got a result or an error back."""
    return [k for k, turn in enumerate(turns)
            if turn.observation.text and parse_action(turn.text, TOOL).name == TOOL.call]


def tool_execution(turns: Sequence[Turn], value: float = 0.2) -> float:
    """``value`` times the share of attempted calls that were executed; 0 without an attempt."""
    calls = attempts(turns)
    return value * sum(executed(turns[k]) for k in calls) / len(calls) if calls else 0.0


def search_answer(turns: Sequence[Turn], answers: Sequence[str], value: float = 0.5) -> float:
    """``value`` if the first tool result holds an accepted answer (an error holds none)."""
    return value if any(retrieved(turns[k], answers) for k in attempts(turns)[:1]) else 0.0


def answer_presence(prediction: str, answers: Sequence[str], value: float = 0.5) -> float:
    """``value`` if an accepted answer is a part of the given one, case aside."""
    return value if contains(prediction, answers) else 0.0


def exact_match_reward(prediction: str, answers: Sequence[str], value: float = 1.0) -> float:
    """``value`` if the given answer equals an accepted one, case and outer white space aside.

    >>> exact_match_reward(" EURO ", ["Euro"]), exact_match_reward("the Euro", ["Euro"])
    (1.0, 0.0)
    """
    given = prediction.strip().lower()
    return value if given and given in {alias.strip().lower() for alias in answers} else 0.0


def xml_format(texts: Sequence[str], value: float = 0.2) -> float:
    """``value`` times the mean over messages of four parts.

    0.4 for both field sets present (half for one), 0.2 for spacing, 0.2 for starting with
    ``<reasoning>``, 0.2 for ending with ``</tool>`` or ``</answer>``. A field set is present if one of its
    tags occurs, opening or closing; none is where the message has no pair of tags at all. Spacing is lost in
    the original only if a pair is found in the stripped and not in the plain text, which cannot be: every
    message earns it, hence 0.04 for a text without any tag (as in the paper's Table 5).

    >>> round(xml_format(["no tag at all"]), 3)
    0.04
    >>> round(xml_format(["<reasoning>r</reasoning><answer>a</answer>"]), 3)
    0.2
    """
    return value * sum(_message_format(text) for text in texts) / len(texts)


def xml_tags(texts: Sequence[str], value: float = 0.2) -> float:
    """``value`` times the mean over messages of how close each used tag is to one opening and one closing.

    A tag that is used scores 1 - |n - 1| for its n opening and for its n closing tags; a message
    scores the mean of these, 0 if it uses none. The whole is not less than 0.

    >>> round(xml_tags(["<reasoning>r</reasoning><answer>a"]), 3)  # (1 + 1 + 1 + 0) / 4
    0.15
    """
    return value * max(0.0, sum(_message_tags(text) for text in texts) / len(texts))


def _message_format(text: str) -> float:
    opened = {name: text.find(f"<{name}>") for names in FIELD_SETS for name in names}
    has_pair = any(at >= 0 and f"</{name}>" in text[at:] for name, at in opened.items())
    sets = sum(any(opened[name] >= 0 or f"</{name}>" in text for name in names) for names in FIELD_SETS)
    body = text.strip()
    starts = body.startswith(f"<{TOOL.thought}>")
    ends = body.endswith((f"</{TOOL.call}>", f"</{TOOL.answer}>"))
    return 0.4 * has_pair * sets / len(FIELD_SETS) + 0.2 + 0.2 * starts + 0.2 * ends


def _message_tags(text: str) -> float:
    counts = [(text.count(f"<{name}>"), text.count(f"</{name}>")) for names in FIELD_SETS for name in names]
    scores = [1 - abs(n - 1) for pair in counts if any(pair) for n in pair]
    return sum(scores) / len(scores) if scores else 0.0


def intermediate_reward(turns: Sequence[Turn], answers: Sequence[str], values: ToolRewards) -> float:
    """Tool execution and answer in the result, over the turns so far."""
    return (tool_execution(turns, values.tool_execution)
            + search_answer(turns, answers, values.search_answer))


@dataclass(frozen=True, slots=True)
class ToolReward:
    """The reward function of the two-turn agent; ``content`` says which components count.

    - ``outcome``: the four outcome functions,
    - ``merged``: the sum of all six, paid as R^O; every R^I is 0,
    - ``full``: all six; a turn's R^I is what it adds to the two intermediate functions of the turns so far.

    The last turn earns no R^I, whatever ended the episode: a result that did not fit the context was never seen. With
    one call, the turn that called earns all of R^I; with several, the turns' shares sum to the
    episode's value. It never depends on later turns, so it is the same in all leaves of a tree that share
    the turn. The format metric is strict: every turn is one reasoning and one action and nothing else, and
    each call was executed.
    """

    content: Content
    values: ToolRewards

    def __call__(self, transcript: Transcript, item: Question) -> Rewards:
        """Judge one episode; without an answer the answer components are 0, the XML ones still count."""
        v, answers, turns, before_last = self.values, item.answers, transcript.turns, transcript.turns[:-1]
        prediction = given_answer(transcript, TOOL)
        texts = [turn.text for turn in turns]
        intermediate = {
            "tool_execution": tool_execution(before_last, v.tool_execution),
            "search_answer": search_answer(before_last, answers, v.search_answer),
        }
        outcome = {
            "answer_presence": answer_presence(prediction, answers, v.answer_presence),
            "exact_match": exact_match_reward(prediction, answers, v.exact_match),
            "xml_format": xml_format(texts, v.xml_format),
            "xml_tags": xml_tags(texts, v.xml_tags),
        }
        so_far = [intermediate_reward(turns[:k], answers, v) for k in range(len(turns))]
        shares_K = (*(after - before for before, after in pairwise(so_far)), 0.0)
        match self.content:
            case "outcome":
                intermediate_K, paid = (0.0,) * len(turns), sum(outcome.values())
            case "merged":
                intermediate_K, paid = (0.0,) * len(turns), sum((outcome | intermediate).values())
            case "full":
                intermediate_K, paid = shares_K, sum(outcome.values())
            case _:
                raise ValueError(f"unknown content {self.content!r}")
        return Rewards(
            intermediate_K=intermediate_K,
            outcome=paid,
            metrics={
                "answer_correct": exact_match_reward(prediction, answers), "f1": f1(prediction, answers),
                "format_correct": float(episode_format(transcript, TOOL)),
                "retrieval_correct": float(any(retrieved(turn, answers) for turn in turns)),
                "searches": sum(executed(turn) for turn in turns),
            },
            components=intermediate | outcome,
            columns={"hops": item.hops, "prediction": prediction})
