"""The six reward functions of the two-turn study, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.episodes import HIT, MISS, config, measured, play, question, reason_answer, reason_tool
from turncredit.config.algorithm import Content
from turncredit.tasks.plugin import Rewards
from turncredit.tasks.registry import make_reward
from turncredit.tasks.tool_search.config import ToolRewards
from turncredit.tasks.tool_search.rewards import attempts, search_answer, tool_execution, xml_format, xml_tags
from turncredit.types import StopReason, Transcript

TWO = config("tool_search", max_turns=2, top_k=1)
FOUR = config("tool_search", max_turns=4, top_k=1)
BAD_CALL = "<reasoning> r </reasoning><tool> not JSON </tool>"


def judge(transcript: Transcript, content: Content = "full", answers: tuple[str, ...] = ("Rome",)) -> Rewards:
    return make_reward(TWO, content, ToolRewards())(transcript, question(*answers))


def test_a_perfect_episode_earns_every_maximum() -> None:
    rewards = judge(play(TWO, [reason_tool(), reason_answer()], [[HIT]]))
    assert rewards.components == pytest.approx({
        "tool_execution": 0.2, "search_answer": 0.5, "answer_presence": 0.5, "exact_match": 1.0,
        "xml_format": 0.2, "xml_tags": 0.2})
    assert rewards.intermediate_K == pytest.approx((0.7, 0.0))
    assert rewards.outcome == pytest.approx(1.9)
    assert measured(rewards, "answer_correct", "format_correct", "retrieval_correct") == (1.0, 1.0, 1.0)
    assert (rewards.columns["prediction"], rewards.metrics["searches"], rewards.metrics["f1"]) == ("Rome", 1, 1.0)


def test_contents() -> None:
    episode = play(TWO, [reason_tool(), reason_answer()], [[HIT]])
    outcome, merged, full = (judge(episode, content) for content in ("outcome", "merged", "full"))
    assert outcome.intermediate_K == merged.intermediate_K == (0.0, 0.0)
    assert (outcome.outcome, outcome.components) == (full.outcome, full.components)
    assert merged.outcome == pytest.approx(2.6)
    assert merged.outcome == pytest.approx(sum(full.components.values()))
    assert merged.outcome == pytest.approx(sum(full.intermediate_K) + full.outcome)


def test_a_text_without_tags_earns_the_spacing_credit_alone() -> None:
    """Table 5: the outcome-only policy that emits no tag scores 0.04."""
    rewards = judge(play(TWO, ["words", "more words"]))
    assert rewards.outcome == pytest.approx(0.04)
    assert rewards.components["xml_format"] == pytest.approx(0.04)
    assert rewards.intermediate_K == (0.0, 0.0)


def test_an_answer_without_a_call_has_no_intermediate_reward() -> None:
    rewards = judge(play(TWO, [reason_answer()]))
    assert rewards.intermediate_K == (0.0,)
    assert rewards.outcome == pytest.approx(1.9)
    assert measured(rewards, "retrieval_correct", "format_correct", "searches") == (0.0, 1.0, 0)


def test_a_failed_call_is_an_attempt_without_success() -> None:
    rewards = judge(play(TWO, [BAD_CALL, reason_answer()]))
    assert rewards.components["tool_execution"] == rewards.components["search_answer"] == 0.0
    assert measured(rewards, "format_correct", "searches") == (0.0, 0)


def test_execution_is_the_share_of_attempts_and_each_turn_earns_what_it_adds() -> None:
    episode = play(FOUR, ["words", BAD_CALL, reason_tool(), reason_answer()], [[HIT]])
    assert attempts(episode.turns) == [1, 2]
    assert tool_execution(episode.turns) == pytest.approx(0.1)
    assert search_answer(episode.turns, ["Rome"]) == 0.0  # the first result is an error
    rewards = judge(episode)
    assert rewards.intermediate_K == pytest.approx((0.0, 0.0, 0.1, 0.0))
    assert rewards.metrics["retrieval_correct"] == 1.0
    late = judge(play(FOUR, [reason_tool(), BAD_CALL, reason_answer()], [[HIT]]))
    assert late.intermediate_K == pytest.approx((0.2 + 0.5, -0.1, 0.0))


def test_a_call_in_the_last_turn_is_no_attempt() -> None:
    episode = play(TWO, ["words", reason_tool()], [[HIT]])
    assert episode.stop is StopReason.TURN_LIMIT
    assert attempts(episode.turns) == []
    assert judge(episode).intermediate_K == (0.0, 0.0)


@pytest.mark.parametrize(("answer", "presence", "exact"), [
    ("Rome", 0.5, 1.0),
    ("ROME", 0.5, 1.0),
    ("in Rome, Italy", 0.5, 0.0),
    ("Rome.", 0.5, 0.0),  # punctuation and articles are kept here
    ("the Rome", 0.5, 0.0),
    ("Lima", 0.0, 0.0),
    ("", 0.0, 0.0),
])
def test_the_answer(answer: str, presence: float, exact: float) -> None:
    rewards = judge(play(TWO, [reason_answer(answer)]))
    assert (rewards.components["answer_presence"], rewards.components["exact_match"]) == (presence, exact)
    assert rewards.metrics["answer_correct"] == exact


def test_a_blank_alias_earns_nothing() -> None:
    rewards = judge(play(TWO, [reason_tool(), reason_answer("")], [[HIT]]), answers=("", " "))
    assert rewards.components["search_answer"] == rewards.components["answer_presence"] == 0.0
    assert rewards.components["exact_match"] == rewards.metrics["retrieval_correct"] == 0.0


def test_an_episode_cut_short_has_no_answer() -> None:
    episode = replace(play(TWO, [reason_tool(), reason_answer()], [[HIT]]), stop=StopReason.CONTEXT_OVERFLOW)
    rewards = judge(episode)
    assert rewards.components["exact_match"] == rewards.components["answer_presence"] == 0.0
    assert rewards.intermediate_K == pytest.approx((0.7, 0.0))
    assert (rewards.columns["prediction"], rewards.metrics["format_correct"]) == ("", 0.0)


@pytest.mark.parametrize("content", ["outcome", "merged", "full"])
def test_a_result_that_did_not_fit_the_context_pays_nothing(content: Content) -> None:
    episode = play(TWO, [reason_tool()], [[HIT]])
    assert episode.stop is StopReason.CONTEXT_OVERFLOW
    rewards = judge(episode, content)
    assert rewards.intermediate_K == (0.0,)
    assert rewards.outcome == pytest.approx(0.4)  # the two XML functions
    assert measured(rewards, "retrieval_correct", "searches") == (1.0, 1)


def test_a_result_without_the_answer() -> None:
    rewards = judge(play(TWO, [reason_tool(), reason_answer()], [[MISS]]))
    assert rewards.intermediate_K == pytest.approx((0.2, 0.0))


@pytest.mark.parametrize(("text", "score"), [
    ("<reasoning>r</reasoning><tool>t</tool>", 1.0),
    ("<reasoning>r</reasoning><answer>a</answer>", 1.0),
    ("<reasoning>r</reasoning>", 0.2 + 0.2 + 0.2),
    ("<answer>a</answer>", 0.2 + 0.2 + 0.2),
    ("so <reasoning>r</reasoning><answer>a</answer>", 0.4 + 0.2 + 0.2),
    ("<reasoning>r</reasoning><answer>a</answer> so", 0.4 + 0.2 + 0.2),
    ("<reasoning>r", 0.2 + 0.2),
    ("<reasoning>r<answer>a</answer>", 0.4 + 0.2 + 0.2 + 0.2),  # beside a pair, one tag of a field set is enough
    ("<reasoning>r</reasoning></tool>", 0.4 + 0.2 + 0.2 + 0.2),
    ("<reasoning>r</reasoning><tool>t", 0.4 + 0.2 + 0.2),
    ("</reasoning><answer>a", 0.2),  # no pair
    ("</answer>a<answer>", 0.2),
    ("none", 0.2),
    ("", 0.2),
])
def test_xml_format_of_a_message(text: str, score: float) -> None:
    assert xml_format([text], 1.0) == pytest.approx(score)
    assert xml_format([text, "<reasoning>r</reasoning><tool>t</tool>"], 1.0) == pytest.approx((score + 1) / 2)


@pytest.mark.parametrize(("text", "score"), [
    ("<reasoning>r</reasoning><tool>t</tool>", 1.0),
    ("<reasoning>r</reasoning>", 1.0),  # a tag that is not used is not judged
    ("<reasoning>r", (1 + 0) / 2),
    ("<reasoning>r</reasoning><answer>a</answer><answer>b</answer>", (1 + 1 + 0 + 0) / 4),
    ("none", 0.0),
    ("<answer><answer><answer><answer>", 0.0),  # (-2 + 0) / 2, but never below 0
])
def test_xml_tags_of_a_message(text: str, score: float) -> None:
    assert xml_tags([text], 1.0) == pytest.approx(score)
