"""The two-turn environment: only an exact call is executed."""

from __future__ import annotations

import json

import pytest

from tests.episodes import HIT, MISS, config, play, reason_answer, reason_tool, start
from turncredit.tasks.env import Request
from turncredit.tasks.tool_search.protocol import RULES, read_call
from turncredit.types import Observation, StopReason, TurnStop

TWO = config("tool_search", max_turns=2, top_k=1)
FOUR = config("tool_search", max_turns=4, top_k=1)


def called(content: str) -> str:
    return f"<reasoning> r </reasoning><tool>{content}</tool>"


def test_two_turns() -> None:
    environment = start(TWO)
    assert environment.request(reason_tool("Italy")) == Request("search", "Italy")
    step = environment.step(reason_tool(), TurnStop.TAG, [HIT, MISS])
    assert step.observation == Observation(
        "<result>Doc 1(Title: Italy) The capital of Italy is Rome. The currency is the Euro.</result>",
        (HIT,), role="user")
    assert environment.request(reason_tool()) is None
    assert environment.step(reason_answer(), TurnStop.TAG, None).stop is StopReason.ANSWERED


def test_keys_may_come_in_any_order_and_the_query_is_stripped() -> None:
    assert read_call('{"args": {"query": " Italy "}, "name": "wiki_search"}') == "Italy"
    assert read_call(r'{"name": "wiki_search", "args": {"query": "caf\u00e9 \ud83d\ude00"}}') == "café 😀"


@pytest.mark.parametrize(("content", "error"), [
    ("Italy", "bad_json"),
    ("{", "bad_json"),
    ("[]", "bad_json"),
    ('"wiki_search"', "bad_json"),
    ("null", "bad_json"),
    ("7", "bad_json"),
    ("{}{}", "bad_json"),
    ("{'name': 'wiki_search', 'args': {'query': 'x'}}", "bad_json"),
    ('{"name": "wiki_search", "name": "wiki_search", "args": {"query": "x"}}', "bad_json"),
    ('{"name": "wiki_search", "args": {"query": "x", "query": "y"}}', "bad_json"),
    ("[" * 100_000, "bad_json"),
    ('{"a":' * 100_000, "bad_json"),
    ("9" * 10_000, "bad_json"),
    ("{}", "bad_arguments"),
    ('{"name": "wiki_search"}', "bad_arguments"),
    ('{"name": "wiki_search", "args": {"query": "x"}, "id": 1}', "bad_arguments"),
    ('{"name": "wiki_search", "args": {}}', "bad_arguments"),
    ('{"name": "wiki_search", "args": "x"}', "bad_arguments"),
    ('{"name": "wiki_search", "args": ["x"]}', "bad_arguments"),
    ('{"name": "wiki_search", "args": {"query": "x", "top_k": 5}}', "bad_arguments"),
    ('{"name": "wiki_search", "args": {"query": 7}}', "bad_arguments"),
    ('{"name": "wiki_search", "args": {"query": ["x"]}}', "bad_arguments"),
    ('{"name": "wiki_search", "args": {"query": null}}', "bad_arguments"),
    ('{"name": "wiki_search", "args": {"query": " "}}', "bad_arguments"),
    (r'{"name": "wiki_search", "args": {"query": "\ud800"}}', "bad_arguments"),
    ('{"name": "calculator", "args": {"query": "x"}}', "unknown_tool"),
    ('{"name": "Wiki_Search", "args": {"query": "x"}}', "unknown_tool"),
    ('{"name": ["wiki_search"], "args": {"query": "x"}}', "unknown_tool"),
    ('{"name": null, "args": {"query": "x"}}', "unknown_tool"),
])
def test_anything_but_an_exact_call_is_an_error_observation(content: str, error: str) -> None:
    environment = start(FOUR)
    assert environment.request(called(content)) is None
    step = environment.step(called(content), TurnStop.TAG, None)
    assert (step.observation.error, step.observation.data, step.stop) == (error, (), None)
    assert step.observation.text.startswith("<result>Error: ")
    assert environment.step(reason_answer(), TurnStop.TAG, None).stop is StopReason.ANSWERED


@pytest.mark.parametrize(("text", "stop", "error"), [
    ("words", TurnStop.END, "no_action"),
    ("<reasoning> r", TurnStop.LENGTH, "truncated"),
    ("<tool> </tool>", TurnStop.TAG, "no_action"),
    ("<search> x </search>", TurnStop.END, "no_action"),
])
def test_a_turn_without_a_call_gets_an_error(text: str, stop: TurnStop, error: str) -> None:
    step = start(TWO).step(text, stop, None)
    assert step.observation == Observation("<result>Error: no tool call</result>", error=error, role="user")


def test_no_error_repeats_what_the_model_wrote() -> None:
    """Otherwise a gold answer in a broken call would come back as a result."""
    for content in ("Rome", '{"name": "Rome", "args": {}}', '{"name": "wiki_search", "args": {"Rome": 1}}'):
        episode = play(FOUR, [called(content), reason_answer()])
        assert "Rome" not in episode.turns[0].observation.text


def test_a_limit_on_invalid_turns_ends_the_episode() -> None:
    episode = play(config("tool_search", max_turns=9, max_invalid_turns=3), [called("x")] * 9)
    assert (len(episode.turns), episode.stop) == (3, StopReason.INVALID_LIMIT)


def test_an_invalid_first_turn_leaves_the_last_to_answer() -> None:
    assert play(TWO, [called("x"), reason_tool()], [[HIT]]).stop is StopReason.TURN_LIMIT
    assert play(TWO, [called("x"), reason_answer()]).stop is StopReason.ANSWERED


def test_the_full_prompt_explains_a_call_that_works() -> None:
    system, user = start(config("tool_search", max_turns=2, instruction="full")).reset()
    assert (system["role"], user["role"]) == ("system", "user")
    example = system["content"].split("<tool>")[1].split("</tool>")[0]
    assert read_call(example) == json.loads(example)["args"]["query"]
    hint, asked = start(TWO).reset()
    assert hint == {"role": "system", "content": "Tool: wiki_search"}
    assert asked == user


def test_every_fault_has_a_remark() -> None:
    for remark in RULES.remarks.values():
        assert remark.startswith("<result>Error: ")
        assert remark.endswith("</result>")
