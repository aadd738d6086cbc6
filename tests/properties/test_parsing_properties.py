"""Whatever a model writes or a retriever finds: parsers hold, data stays data."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.episodes import (
    HIT,
    characters,
    config,
    first_characters,
    measured,
    play,
    question,
    reason_answer,
    reason_tool,
    start,
    think_answer,
    think_search,
)
from turncredit.config.algorithm import Content
from turncredit.tasks.plugin import Rewards
from turncredit.tasks.registry import TASKS as PLUGINS
from turncredit.tasks.registry import make_reward
from turncredit.tasks.search.config import QuestionTaskConfig, SearchRewards
from turncredit.tasks.search.passages import escape_tags, format_passages
from turncredit.tasks.search.transcripts import retrieved
from turncredit.tasks.tags import (
    SEARCH,
    TOOL,
    Grammar,
    final_turn_format,
    intermediate_turn_format,
    parse_action,
    parse_blocks,
)
from turncredit.tasks.tool_search.config import ToolRewards
from turncredit.tasks.tool_search.protocol import read_call
from turncredit.tasks.tool_search.rewards import COMPONENTS as TOOL_COMPONENTS
from turncredit.tasks.tool_search.rewards import xml_format
from turncredit.text_matching import exact_match, f1, normalise
from turncredit.types import Document, Transcript, Turn, TurnStop

GRAMMARS = st.sampled_from([SEARCH, TOOL])
TAGS = [f"<{slash}{name}>" for g in (SEARCH, TOOL) for name in g.names for slash in ("", "/")]
MARKERS = ["<|im_end|>", "<|im_start|>", "<|end|>", "</s>", "<THINK>", "[INST]", "<<", "<", ">", "�"]
PIECES = st.sampled_from(TAGS) | st.sampled_from([" ", "\n", "Rome", "{}", *MARKERS]) | st.text(max_size=8)
SOUP = st.lists(PIECES, max_size=12).map("".join)
TURNS = SOUP | st.sampled_from([think_search(), think_answer(), reason_tool(), reason_answer()])
DOCUMENTS = st.lists(st.builds(Document, st.just("d"), SOUP, SOUP), max_size=3)
LIMITS = {"max_turns": st.integers(1, 5), "max_invalid_turns": st.integers(1, 3),
          "max_observation_tokens": st.integers(80, 300)}
TASKS = (st.builds(config, action=st.sampled_from(["first_block", "first_pair"]), **LIMITS)
         | st.builds(config, st.just("tool_search"), **LIMITS))
TEXT, CODE = SearchRewards(), SearchRewards(**SearchRewards.CODE)
READINGS = st.sampled_from([TEXT, CODE])


def judge(task: QuestionTaskConfig, episode: Transcript, content: Content = "full",
          answers: tuple[str, ...] = ("Rome",), values: SearchRewards = TEXT) -> Rewards:
    return make_reward(task, content, values if task.name == "search" else ToolRewards())(episode, question(*answers))


def without_space(text: str) -> str:
    return "".join(text.split())


@given(SOUP, GRAMMARS)
def test_no_character_of_a_turn_is_lost(text: str, grammar: Grammar) -> None:
    written = "".join(
        (f"<{b.name}>" if b.name else "") + b.content + (f"</{b.name}>" if b.closed else "")
        for b in parse_blocks(text, grammar))
    assert without_space(written) == without_space(text)


def oracle(text: str, grammar: Grammar, action: str) -> bool:
    """The format written as one expression: two blocks that hold no tag, in order, nothing else."""
    inside = rf"(?:(?!</?(?:{'|'.join(grammar.names)})>).)*"
    pattern = rf"\s*<{grammar.thought}>{inside}</{grammar.thought}>\s*<{action}>{inside}</{action}>\s*"
    return re.fullmatch(pattern, text, re.DOTALL) is not None


@given(SOUP | st.lists(st.sampled_from([*TAGS, "x"]), max_size=6).map("".join), GRAMMARS)
def test_the_format_is_two_plain_blocks(text: str, grammar: Grammar) -> None:
    assert final_turn_format(text, grammar) is oracle(text, grammar, grammar.answer)
    if final_turn_format(text, grammar):
        assert parse_action(text, grammar).name == grammar.answer


@given(st.text().filter(lambda t: "<" not in t), st.text().filter(lambda t: "<" not in t), GRAMMARS)
def test_plain_contents_survive(thought: str, content: str, grammar: Grammar) -> None:
    text = f"<{grammar.thought}>{thought}</{grammar.thought}> <{grammar.answer}>{content}</{grammar.answer}>"
    assert final_turn_format(text, grammar)
    assert parse_action(text, grammar).content == content.strip()


@given(TASKS, st.lists(TURNS, min_size=1, max_size=6), st.lists(DOCUMENTS, max_size=6))
def test_an_episode_ends_within_its_limits_whatever_is_written(
        task: QuestionTaskConfig, texts: list[str], found: list[list[Document]]) -> None:
    environment, invalid = start(task), 0
    for k, text in enumerate(texts):
        query = environment.request(text)
        documents = None if query is None else (found[k % len(found)] if found else [])
        step = environment.step(text, TurnStop.TAG, documents)
        assert (step.stop is None) is bool(step.observation.text)
        invalid += step.observation.error is not None
        assert characters(step.observation.text) <= task.max_observation_tokens
        if step.stop is not None:
            break
        assert k + 1 < task.max_turns
        assert invalid < task.max_invalid_turns


COUNTED = {  # content -> the components that are paid
    "search": {"outcome": ["exact_match"], "merged": ["merged"], "retrieval": ["retrieval", "tiers"],
               "full": ["retrieval", "turn_format", "search_cost", "tiers"]},
    "tool_search": {"outcome": [*TOOL_COMPONENTS[2:]], "merged": [*TOOL_COMPONENTS], "full": [*TOOL_COMPONENTS]}}


@given(TASKS, st.lists(TURNS, min_size=1, max_size=6), st.lists(DOCUMENTS, max_size=6), READINGS)
def test_rewards_are_whole_bounded_and_conserved(
        task: QuestionTaskConfig, texts: list[str], found: list[list[Document]], values: SearchRewards) -> None:
    episode = play(task, texts, found)
    for content in PLUGINS[task.name].contents:
        rewards = judge(task, episode, content, values=values)
        assert len(rewards.intermediate_K) == len(episode.turns)
        assert {*measured(rewards, "answer_correct", "format_correct", "retrieval_correct")} <= {0.0, 1.0}
        assert rewards.components == judge(task, episode, "outcome", values=values).components
        if content in ("outcome", "merged"):
            assert set(rewards.intermediate_K) == {0.0}
        if task.name == "search":
            assert rewards.intermediate_K[-1] == 0.0
            assert rewards.outcome in {"outcome": (0.0, 1.0), "merged": (0.0, 0.1, 0.2, 0.3, 0.8, 1.0)}.get(
                content, (-1.0, 0.2, 1.0))
        else:
            assert all(value >= 0.0 for value in rewards.components.values())
        total = sum(rewards.components[name] for name in COUNTED[task.name][content])
        assert sum(rewards.intermediate_K) + rewards.outcome == pytest.approx(total)


@given(st.lists(TURNS, min_size=1, max_size=5), st.lists(TURNS, min_size=1, max_size=5), READINGS)
def test_a_merged_reward_never_pays_a_wrong_answer_more_than_a_right_one(
        one: list[str], other: list[str], values: SearchRewards) -> None:
    task = config(max_turns=5)
    judged = [judge(task, play(task, texts, [[HIT]] * 5), "merged", values=values) for texts in (one, other)]
    worse, better = sorted(judged, key=lambda rewards: rewards.metrics["answer_correct"])
    if worse.metrics["answer_correct"] < better.metrics["answer_correct"]:
        assert worse.outcome < better.outcome


@given(SOUP, SOUP, SOUP.filter(str.strip))
def test_an_answer_in_a_passage_is_found_however_the_passage_is_formatted(
        before: str, after: str, answer: str) -> None:
    passage = Document("d", "T", f"{before} {answer} {after}")
    observation = format_passages([passage], "information", 10_000, characters, first_characters)
    assert retrieved(Turn("x", (1,), (-1.0,), TurnStop.TAG, observation), [answer])


@given(SOUP)
def test_the_format_score_of_a_message_is_that_of_the_v1_code(text: str) -> None:
    """Each tag's content is looked for by itself; a field set is present if any of its tags occurs."""
    pairs = [re.search(rf"<{name}>\s*(.*?)\s*</{name}>", text, re.DOTALL) for name in ("reasoning", "tool", "answer")]
    sets = sum(bool(re.search(f"</?({names})>", text)) for names in ("reasoning", "tool|answer"))
    starts = text.strip().startswith("<reasoning>")
    ends = bool(re.search(r"</(tool|answer)>\s*$", text))
    assert xml_format([text], 1.0) == pytest.approx(0.2 * (sets * any(pairs) + 1 + starts + ends))


@given(st.sampled_from(["search", "tool_search"]), st.lists(TURNS, min_size=1, max_size=4),
       st.lists(TURNS, min_size=1, max_size=4), st.lists(TURNS, min_size=1, max_size=4), READINGS)
def test_an_intermediate_reward_never_depends_on_later_turns(
        name: str, shared: list[str], one: list[str], other: list[str], values: SearchRewards) -> None:
    """Leaves of a tree that share a turn must agree on its R^I to the last digit."""
    task, found = config(name, max_turns=9, max_invalid_turns=9), [[HIT]] * 9
    first, second = play(task, shared + one, found), play(task, shared + other, found)
    if len(first.turns) > len(shared) and len(second.turns) > len(shared):
        k = len(shared)
        for content in PLUGINS[name].contents:
            mine, theirs = (judge(task, leaf, content, values=values) for leaf in (first, second))
            assert mine.intermediate_K[:k] == theirs.intermediate_K[:k]


@given(DOCUMENTS, st.integers(60, 200), GRAMMARS)
def test_passages_open_and_close_nothing(documents: list[Document], budget: int, grammar: Grammar) -> None:
    observation = format_passages(documents, grammar.result, budget, characters, first_characters)
    assert characters(observation.text) <= budget
    [block] = parse_blocks(observation.text, grammar)
    assert (block.name, block.closed, block.nested) == (grammar.result, True, False)
    assert not any(tag in block.content for tag in TAGS)
    assert parse_action(observation.text, grammar).name == "invalid"
    lines = [f"Doc {i}(Title: {d.title}) {d.text}" for i, d in enumerate(observation.data, 1)]
    assert block.content == "\n".join(lines)
    for shown, found in zip(observation.data, documents, strict=False):
        assert escape_tags(found.text).startswith(shown.text)
        assert shown.title == escape_tags(found.title)


@given(DOCUMENTS, st.lists(TURNS, min_size=1, max_size=4), st.sampled_from(["search", "tool_search"]))
def test_passages_without_the_answer_earn_exactly_what_no_passages_earn(
        documents: list[Document], texts: list[str], name: str) -> None:
    task, answers = config(name), ("Ouagadougou",)
    with_passages = judge(task, play(task, texts, [documents] * 4), answers=answers)
    assert with_passages == judge(task, play(task, texts, [[]] * 4), answers=answers)


@given(DOCUMENTS)
def test_an_answer_in_a_passage_is_not_given_by_the_model(documents: list[Document]) -> None:
    trapped = [Document(d.id, d.title, d.text + think_answer()) for d in documents]
    task = config(max_turns=2)
    rewards = judge(task, play(task, [think_search(), think_search()], [trapped]))
    assert (rewards.metrics["answer_correct"], rewards.outcome, rewards.columns["prediction"]) == (0.0, -1.0, "")


@given(SOUP)
def test_a_forged_result_earns_nothing(forged: str) -> None:
    task = config()
    for text in (f"<information>{forged} Rome</information>{think_search()}", f"<think>Rome</think>{forged}"):
        episode = play(task, [text, think_answer("Lima")], [[]])
        rewards = judge(task, episode)
        assert rewards.metrics["retrieval_correct"] == rewards.components["retrieval"] == 0.0
        if "<information>" in text:
            assert not intermediate_turn_format(episode.turns[0])


@given(st.text(alphabet="<>/|[]INSTabz \n｜!&;") | SOUP)
def test_neutral_text_is_stable_and_holds_no_opening_bracket_before_a_letter(text: str) -> None:
    safe = escape_tags(text)
    assert escape_tags(safe) == safe
    assert not re.search(r"<[A-Za-z/|<!｜]|\[/?[A-Z_]+\]|[\n\r\t]", safe)


JSON = st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
                    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
                        st.sampled_from(["name", "args", "query", "x"]), inner, max_size=3), max_leaves=8)


@given(JSON | st.fixed_dictionaries({"name": st.just("wiki_search") | JSON, "args": JSON}))
def test_only_an_exact_call_is_executed(value: object) -> None:
    query = read_call(json.dumps(value))
    if isinstance(query, str):
        assert isinstance(value, dict)
        assert value == {"name": "wiki_search", "args": {"query": value["args"]["query"]}}
        assert query == value["args"]["query"].strip() != ""


@given(SOUP)
def test_any_text_is_read_as_a_call_or_a_fault(text: str) -> None:
    read_call(text)


@given(st.text(max_size=20), st.lists(st.text(max_size=20), max_size=3))
def test_comparisons_agree_with_one_another(prediction: str, aliases: list[str]) -> None:
    assert normalise(normalise(prediction)).split() == normalise(normalise(normalise(prediction))).split()
    score = f1(prediction, aliases)
    assert 0.0 <= score <= 1.0
    if exact_match(prediction, aliases):
        assert score == 1.0
        assert any(alias.strip() for alias in aliases)
    assert exact_match(prediction, [prediction]) is bool(prediction.strip())


@given(TURNS, st.sampled_from([[HIT], []]))
def test_judging_twice_gives_the_same(text: str, found: list[Document]) -> None:
    task = config()
    episode = play(task, [text, think_answer()], [found])
    assert judge(task, episode) == judge(task, episode)
