"""The search environment: limits, observations, foreign text."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
from pydantic import ValidationError

from tests.episodes import (
    HIT,
    MISS,
    characters,
    config,
    first_characters,
    play,
    question,
    start,
    think_answer,
    think_search,
)
from turncredit.errors import ConfigError
from turncredit.tasks.env import Request
from turncredit.tasks.registry import make_task
from turncredit.types import Document, Observation, StopReason, TurnStop

INVALID = "<think> t </think>"


def test_a_search_is_answered_by_the_passages_as_shown() -> None:
    environment = start(config())
    assert environment.request(think_search("capital of Italy")) == Request("search", "capital of Italy")
    step = environment.step(think_search(), TurnStop.TAG, [HIT, MISS])
    assert step.stop is None
    assert step.observation.text == (
        "<information>Doc 1(Title: Italy) The capital of Italy is Rome. The currency is the Euro.\n"
        "Doc 2(Title: Peru) Peru lies in South America.</information>")
    assert step.observation.data == (HIT, MISS)
    assert step.observation.error is None


RANKED = [Document(str(rank), f"Title {rank}", f"text {rank}") for rank in range(4)]


def shown_after(noise: float, item: str, *queries: str) -> tuple[str, ...]:
    """The ids of the passages that the last of several searches shows."""
    settings = config(top_k=2, max_turns=9, retrieval_noise=noise)
    environment = make_task(settings).start(replace(question(), id=item), characters, first_characters)
    for query in queries:
        step = environment.step(think_search(query), TurnStop.TAG, RANKED[:settings.retrieved])
    return tuple(document.id for document in step.observation.data)


def test_noise_shows_the_next_passages_as_often_as_asked() -> None:
    shown = [shown_after(0.2, str(n), "capital of Italy") for n in range(2000)]
    assert set(shown) == {("0", "1"), ("2", "3")}
    assert np.mean([ids == ("2", "3") for ids in shown]) == pytest.approx(0.2, abs=4 * (0.2 * 0.8 / 2000) ** 0.5)
    assert {shown_after(0.0, str(n), "capital of Italy") for n in range(50)} == {("0", "1")}


def test_noise_is_a_function_of_item_turn_and_query() -> None:
    for draw in (lambda n: (str(n), "a"), lambda n: ("q", *["a"] * (n % 8 + 1)), lambda n: ("q", f"query {n}")):
        first = [shown_after(0.5, *draw(n)) for n in range(40)]
        assert first == [shown_after(0.5, *draw(n)) for n in range(40)]
        assert len(set(first)) == 2


def test_an_answer_ends_the_episode() -> None:
    environment = start(config())
    assert environment.request(think_answer()) is None
    step = environment.step(think_answer(), TurnStop.TAG, None)
    assert (step.observation, step.stop) == (Observation(), StopReason.ANSWERED)
    with pytest.raises(ValueError, match="over"):
        environment.step(think_answer(), TurnStop.TAG, None)


def test_the_last_turn_can_only_answer() -> None:
    environment = start(config(max_turns=2))
    environment.step(think_search(), TurnStop.TAG, [HIT])
    assert environment.request(think_search()) is None
    step = environment.step(think_search(), TurnStop.TAG, None)
    assert (step.observation, step.stop) == (Observation(), StopReason.TURN_LIMIT)


def test_one_turn_is_enough_to_answer_and_too_few_to_search() -> None:
    assert play(config(max_turns=1), [think_answer()]).stop is StopReason.ANSWERED
    assert play(config(max_turns=1), [think_search()], [[HIT]]).stop is StopReason.TURN_LIMIT


def test_an_invalid_turn_gets_a_remark_and_the_episode_goes_on() -> None:
    environment = start(config())
    step = environment.step(INVALID, TurnStop.END, None)
    assert step.observation == Observation("Invalid. Search or answer.", error="no_action")
    assert environment.step(INVALID, TurnStop.LENGTH, None).observation.error == "truncated"
    assert environment.step(think_answer(), TurnStop.TAG, None).stop is StopReason.ANSWERED


@pytest.mark.parametrize(("limit", "turns", "stop"), [
    (1, 1, StopReason.INVALID_LIMIT),
    (2, 2, StopReason.INVALID_LIMIT),
    (4, 4, StopReason.TURN_LIMIT),  # both limits at once: the turn limit is named
    (5, 4, StopReason.TURN_LIMIT),
])
def test_the_limit_on_invalid_turns(limit: int, turns: int, stop: StopReason) -> None:
    episode = play(config(max_invalid_turns=limit), [INVALID] * 9)
    assert (len(episode.turns), episode.stop) == (turns, stop)


def test_the_invalid_limit_counts_all_turns_not_only_those_in_a_row() -> None:
    episode = play(config(max_invalid_turns=2), [INVALID, think_search(), INVALID], [[HIT]])
    assert episode.stop is StopReason.INVALID_LIMIT


def test_documents_are_given_exactly_where_a_turn_requests_them() -> None:
    with pytest.raises(ValueError, match="documents"):
        start(config()).step(think_search(), TurnStop.TAG, None)
    with pytest.raises(ValueError, match="documents"):
        start(config()).step(think_answer(), TurnStop.TAG, [HIT])


def test_a_request_changes_nothing() -> None:
    environment = start(config(max_turns=2))
    assert [environment.request(think_search()) for _ in range(5)] == [Request("search", "capital of Italy")] * 5


def test_a_fork_and_its_origin_go_their_own_ways() -> None:
    environment = start(config(max_turns=3))
    environment.step(think_search(), TurnStop.TAG, [HIT])
    other = environment.fork()
    assert other.step(think_answer(), TurnStop.TAG, None).stop is StopReason.ANSWERED
    assert environment.step(think_search(), TurnStop.TAG, [MISS]).stop is None
    assert environment.step(think_search(), TurnStop.TAG, None).stop is StopReason.TURN_LIMIT


def test_at_most_top_k_passages_are_shown() -> None:
    step = start(config(top_k=1)).step(think_search(), TurnStop.TAG, [HIT, MISS])
    assert step.observation.data == (HIT,)


def test_prompts() -> None:
    assert start(config()).reset() == [{"role": "user", "content": "Question: What is the capital of Italy?"}]
    [message] = start(config(instruction="full")).reset()
    assert message["role"] == "user"
    assert message["content"].endswith(" Question: What is the capital of Italy?")
    for tag in ("<think>", "</think>", "<search>", "</search>", "<information>", "</information>", "<answer>"):
        assert tag in message["content"]


def test_the_protocol_of_search_r1_has_its_own_instruction_remark_and_frame() -> None:
    environment = start(config(instruction="full", prompt="search_r1", max_observation_tokens=300))
    [message] = environment.reset()
    assert message["content"].startswith("Answer the given question. You must conduct reasoning inside <think>")
    assert message["content"].endswith("<answer> Beijing </answer>. Question: What is the capital of Italy?\n")
    shown = environment.step(think_search(), TurnStop.TAG, [HIT, MISS]).observation
    assert shown.text.startswith("\n\n<information>Doc 1(Title: Italy) The capital of Italy is Rome.")
    assert shown.text.endswith("Peru lies in South America.</information>\n\n")
    remark = environment.step(INVALID, TurnStop.END, None).observation.text
    assert remark.startswith("\nMy previous action is invalid.")
    assert remark.endswith("Let me try again.\n")
    with pytest.raises(ValidationError, match="set instruction: full"):
        config(prompt="search_r1")


def test_stop_tags_close_an_action() -> None:
    assert make_task(config()).stop_tags == ("</search>", "</answer>")
    assert make_task(config("tool_search")).stop_tags == ("</tool>", "</answer>")


def test_a_task_travels_between_processes() -> None:
    for name in ("search", "tool_search"):
        task = make_task(config(name))
        assert pickle.loads(pickle.dumps(task)) == task


def test_a_budget_too_small_for_the_fixed_texts_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="max_observation_tokens = 20"):
        make_task(config(max_observation_tokens=20)).start(question(), characters, first_characters)
