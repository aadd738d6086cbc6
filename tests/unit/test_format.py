"""The tag automaton: each doubtful text has one declared reading."""

from __future__ import annotations

from dataclasses import replace

import pytest

from turncredit.tasks.tags import (
    SEARCH,
    TOOL,
    Action,
    final_turn_format,
    intermediate_turn_format,
    parse_action,
    parse_blocks,
)
from turncredit.types import Document, Observation, Turn, TurnStop

SHOWN = Observation("<information>Doc 1(Title: T) x</information>", (Document("1", "T", "x"),))


def turn(text: str, observation: Observation = SHOWN) -> Turn:
    return Turn(text, (1,), (-1.0,), TurnStop.TAG, observation)


@pytest.mark.parametrize(("text", "action"), [
    # nothing wrong
    ("<think> t </think><search> q </search>", Action("search", "q")),
    ("<think> t </think>\n\n<answer> a </answer>\n", Action("answer", "a")),
    ("<answer></answer>", Action("answer", "")),
    # none, one, two
    ("", Action("invalid")),
    ("just words", Action("invalid")),
    ("<think> t </think>", Action("invalid")),
    ("<answer> a </answer><answer> b </answer>", Action("answer", "a")),
    ("<search> q </search><answer> a </answer>", Action("search", "q")),
    ("<answer> a </answer><search> q </search>", Action("answer", "a")),
    # unclosed
    ("<answer> a", Action("invalid")),
    ("<think> t </think><search> q", Action("invalid")),
    ("<think> t <answer> a </answer>", Action("invalid")),
    ("a </answer>", Action("invalid")),
    # nested
    ("<answer><answer> a </answer></answer>", Action("invalid")),
    ("<answer> a <search> q </search></answer>", Action("invalid")),
    ("<search> q </answer></search>", Action("invalid")),
    # upper case, spaces, attributes: no tags
    ("<ANSWER> a </ANSWER>", Action("invalid")),
    ("<answer> a </Answer>", Action("invalid")),
    ("< answer> a </answer>", Action("invalid")),
    ('<answer id="1"> a </answer>', Action("invalid")),
    # quoted in thought
    ("<think> I could <search> q </search> now </think><answer> a </answer>", Action("answer", "a")),
    ("<think> <answer> a </answer> </think>", Action("invalid")),
    # forged environment text is no action and hides none
    ("<information> <answer> a </answer> </information><search> q </search>", Action("search", "q")),
    # a stray closing tag, words around
    ("</think> so: <search> q </search> please", Action("search", "q")),
    # a search for nothing
    ("<search> </search>", Action("invalid")),
    # other tags are text
    ("<answer> <b>a</b> <tool> </answer>", Action("answer", "<b>a</b> <tool>")),
])
def test_action(text: str, action: Action) -> None:
    assert parse_action(text) == action


@pytest.mark.parametrize(("text", "action"), [
    ("<reasoning> r </reasoning><tool> {} </tool>", Action("tool", "{}")),
    ("<reasoning> r </reasoning><answer> a </answer>", Action("answer", "a")),
    ("<search> q </search>", Action("invalid")),
    ("<reasoning> <tool> {} </tool>", Action("invalid")),
    ("<tool> {} <tool> {} </tool>", Action("invalid")),
    ("<result> forged </result>", Action("invalid")),
])
def test_action_of_the_tool_grammar(text: str, action: Action) -> None:
    assert parse_action(text, TOOL) == action


@pytest.mark.parametrize("text", [
    "<think> t </think><answer> a </answer>",
    " \n<think></think>\n<answer></answer> \n",
    "<think> x < y and <b> </think><answer> a </answer>",
])
def test_a_well_formed_final_turn(text: str) -> None:
    assert final_turn_format(text)


@pytest.mark.parametrize("text", [
    "",
    "<answer> a </answer>",
    "<think> t </think>",
    "<answer> a </answer><think> t </think>",
    "<think> t </think><think> t </think><answer> a </answer>",
    "<think> t </think><answer> a </answer><answer> a </answer>",
    "<think> t </think><search> q </search>",
    "<think> t </think><information> i </information><answer> a </answer>",
    "<think> <search> q </search> </think><answer> a </answer>",  # only think and answer may appear
    "<think> t </think> so <answer> a </answer>",
    "so <think> t </think><answer> a </answer>",
    "<think> t </think><answer> a </answer>.",
    "<think> t </think><answer> a </answer></answer>",
    "<think> t </think><answer> a",
    "<think> t <answer> a </answer>",
    "<think> t </think><answer> <think> </answer>",
    "<THINK> t </THINK><answer> a </answer>",
    "<think> t </think><answer> a </answer><|im_end|>",
])
def test_a_malformed_final_turn(text: str) -> None:
    assert not final_turn_format(text)


def test_a_well_formed_intermediate_turn() -> None:
    assert intermediate_turn_format(turn("<think> t </think><search> q </search>"))
    assert intermediate_turn_format(turn("<think> t </think>\n<search> q </search>\n"))


@pytest.mark.parametrize("text", [
    "<search> q </search>",
    "<search> q </search><think> t </think>",
    "<think> t </think><search> q </search><search> q </search>",
    "<think> t </think><search> q </search> done",
    "<think> t </think><search> q </search><answer> a </answer>",
    "<think> t </think><search> q </search><information> forged </information>",
    "<information> forged </information><think> t </think><search> q </search>",
    "<think> t </think><answer> a </answer>",
    "<think> </information> </think><search> q </search>",
])
def test_a_malformed_intermediate_turn(text: str) -> None:
    assert not intermediate_turn_format(turn(text))


def test_information_comes_from_the_environment_alone() -> None:
    text = "<think> t </think><search> q </search>"
    assert not intermediate_turn_format(turn(text, Observation()))  # nothing followed
    assert not intermediate_turn_format(turn(text, Observation("Invalid.", error="no_action")))
    forged = "<think> t </think><search> q </search><information> Rome </information>"
    assert not intermediate_turn_format(turn(forged, Observation()))


def test_tags_of_one_grammar_are_text_in_the_other() -> None:
    text = "<think> t </think><answer> a </answer>"
    assert final_turn_format(text)
    assert not final_turn_format(text, TOOL)
    assert [b.name for b in parse_blocks(text, TOOL)] == ["", "answer"]


@pytest.mark.parametrize(("text", "block", "pair"), [
    ("<think> t </think><search> q </search>", Action("search", "q"), Action("search", "q")),
    ("<think>x <answer>Rome</answer>", Action("invalid"), Action("answer", "Rome")),
    ("<answer><think>Rome</answer>", Action("invalid"), Action("answer", "<think>Rome")),
    ("<think><search> q </search>", Action("invalid"), Action("search", "q")),
    ("<answer>Rome <search>q</search>", Action("invalid"), Action("search", "q")),
    ("<think><answer></think><answer>Rome</answer>", Action("answer", "Rome"),
     Action("answer", "</think><answer>Rome")),
    ("<think><search> </search></think><answer>Rome</answer>", Action("answer", "Rome"), Action("invalid")),
    ("</answer> Rome <answer>", Action("invalid"), Action("invalid")),
])
def test_an_action_is_the_first_block_or_the_first_complete_pair(text: str, block: Action, pair: Action) -> None:
    assert parse_action(text) == block
    assert parse_action(text, replace(SEARCH, action="first_pair")) == pair
