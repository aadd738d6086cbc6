"""A demonstrator without flaws is perfect; each flaw does what its name says, as often as it is asked to."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.demonstrators import SEARCH, TOOL, Stage, make_stage
from turncredit.config.task import TaskConfig
from turncredit.miniature.demonstrations import Demonstration, flaw_rates, renamed
from turncredit.miniature.facts import load_facts
from turncredit.miniature.questions import split_countries
from turncredit.miniature.renaming import Renamer
from turncredit.miniature.warm_start import render
from turncredit.tasks.plugin import Rewards
from turncredit.tasks.registry import make_reward
from turncredit.tasks.search.config import QuestionTaskConfig, SearchRewards
from turncredit.tasks.search.demonstrations import kind_of
from turncredit.tasks.tags import SEARCH as SEARCH_TAGS
from turncredit.tasks.tags import TOOL as TOOL_TAGS
from turncredit.tasks.tags import Grammar, final_turn_format, intermediate_turn_format, parse_action
from turncredit.tasks.tool_search import protocol as tool_search
from turncredit.tasks.tool_search.config import ToolRewards
from turncredit.types import StopReason, Transcript

TASKS = pytest.mark.parametrize("task", [SEARCH, TOOL], ids=lambda task: task.name)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    return make_stage(tmp_path_factory.mktemp("stage"))


def grammar(task: TaskConfig) -> Grammar:
    return {"search": SEARCH_TAGS, "tool_search": TOOL_TAGS}[task.name]


def transcripts(stage: Stage, shown: list[Demonstration]) -> list[Transcript]:
    return [render(demonstration, stage.codec).transcript for demonstration in shown]


def judged(stage: Stage, task: QuestionTaskConfig, shown: list[Demonstration]) -> list[Rewards]:
    values = SearchRewards() if task.name == "search" else ToolRewards()
    question = {question.id: question for question in stage.questions}
    judge = make_reward(task, "full", values)
    return [judge(transcript, question[transcript.item_id]) for transcript in transcripts(stage, shown)]


def queries(demonstration: Demonstration, task: TaskConfig) -> list[object]:
    """What the turns ask for, answers left out."""
    calls = [action.content for said in demonstration.text_K
             if (action := parse_action(said, grammar(task))).name == grammar(task).call]
    return [tool_search.read_call(call) for call in calls] if task is TOOL else list(calls)


@TASKS
def test_without_flaws_every_demonstration_is_perfect(stage: Stage, task: QuestionTaskConfig) -> None:
    questions = stage.asked(task)
    assert {question.hops for question in questions} == ({1, 2, 3} if task is SEARCH else {1})
    shown = stage.play(task, questions)
    for question, demonstration, rewards in zip(questions, shown, judged(stage, task, shown), strict=True):
        assert demonstration.stop is StopReason.ANSWERED
        assert [rewards.metrics[f"{name}_correct"] for name in ("answer", "format", "retrieval")] == [1.0, 1.0, 1.0]
        assert rewards.metrics["searches"] == question.hops == len(demonstration.text_K) - 1
        assert queries(demonstration, task) == [hop.query for hop in question.plan]
        assert rewards.columns["prediction"] == question.answers[0]


@TASKS
def test_what_is_said_is_copied_from_what_was_asked_and_seen(stage: Stage, task: QuestionTaskConfig) -> None:
    """So the skill can be learnt by copying, also where all names are swapped."""
    rng = random.Random(0)
    for demonstration in stage.play(task, stage.asked(task)):
        for episode in (demonstration, renamed(demonstration, stage.renamer, rng)):
            read = " ".join(message["content"] for message in episode.prompt)
            for said, seen in zip(episode.text_K, episode.observation_K, strict=True):
                assert all(name in read for name in stage.renamer.names_in(said))
                read += seen.text


@TASKS
def test_no_search_answers_at_once(stage: Stage, task: QuestionTaskConfig) -> None:
    shown = stage.play(task, stage.asked(task), no_search=1.0)
    assert all(len(demonstration.text_K) == 1 and not demonstration.observation_K[0].text for demonstration in shown)
    rewards = judged(stage, task, shown)
    assert {r.metrics["format_correct"] for r in rewards} == {1.0}
    assert {r.metrics["searches"] for r in rewards} == {0}
    assert sum(r.metrics["answer_correct"] for r in rewards) < 0.2 * len(rewards)  # a guess


@TASKS
def test_wrong_query_never_asks_what_the_plan_asks(stage: Stage, task: QuestionTaskConfig) -> None:
    shown = stage.play(task, stage.asked(task), wrong_query=1.0)
    for question, demonstration in zip(stage.asked(task), shown, strict=True):
        asked = queries(demonstration, task)
        assert asked
        assert not set(asked) & {hop.query for hop in question.plan}
        assert all(str(query) in question.question for query in asked)  # all hops at once, or a name
        assert demonstration.stop is StopReason.TURN_LIMIT


@TASKS
def test_repeated_search_asks_the_same_until_the_turns_are_over(stage: Stage, task: QuestionTaskConfig) -> None:
    shown = stage.play(task, stage.asked(task), repeated_search=1.0)
    for question, demonstration in zip(stage.asked(task), shown, strict=True):
        assert queries(demonstration, task) == [question.plan[0].query] * task.max_turns
        assert demonstration.stop is StopReason.TURN_LIMIT


@TASKS
def test_broken_tags_leave_no_turn_well_formed(stage: Stage, task: QuestionTaskConfig) -> None:
    shown = stage.play(task, stage.asked(task), broken_tags=1.0)
    kinds = set()
    for transcript in transcripts(stage, shown):
        for turn in transcript.turns:
            assert not final_turn_format(turn.text, grammar(task))
            assert not intermediate_turn_format(turn, grammar(task))
            kinds.add(parse_action(turn.text, grammar(task)).name)
    assert kinds == {grammar(task).call, grammar(task).answer, "invalid"}  # some break the action too, some do not
    assert {r.metrics["format_correct"] for r in judged(stage, task, shown)} == {0.0}


@TASKS
def test_from_memory_answers_instead_of_the_last_search(stage: Stage, task: QuestionTaskConfig) -> None:
    """Right about known countries, wrong about others."""
    questions = [question for question in stage.asked(task) if question.dataset != "inverse"]  # nobody knows those
    for known, right in ((load_facts().countries, (1.0, 1.0)), ((), (0.0, 0.0))):
        knowing = replace(stage, renamer=Renamer.of(load_facts(), (), known))
        shown = knowing.play(task, questions, from_memory=1.0)
        assert all(demonstration.recalled for demonstration in shown)
        assert [len(demonstration.text_K) for demonstration in shown] == [question.hops for question in questions]
        rewards = judged(stage, task, shown)
        assert {r.metrics["format_correct"] for r in rewards} == {1.0}
        assert right[0] <= np.mean([r.metrics["answer_correct"] for r in rewards]) <= right[1]
    assert not any(demonstration.recalled for demonstration in stage.play(task, questions, wrong_query=0.5))


def test_a_flaw_strikes_a_decision_as_often_as_asked(stage: Stage) -> None:
    questions = stage.asked(SEARCH) * 8
    shown = stage.play(SEARCH, questions, no_search=0.3)
    share = np.mean([len(demonstration.text_K) == 1 for demonstration in shown])
    assert share == pytest.approx(0.3, abs=4 * np.sqrt(0.3 * 0.7 / len(questions)))
    went_wrong = stage.play(SEARCH, questions, wrong_query=0.3)
    firsts = [queries(d, SEARCH)[0] != q.plan[0].query for d, q in zip(went_wrong, questions, strict=True)]
    assert np.mean(firsts) == pytest.approx(0.3, abs=4 * np.sqrt(0.3 * 0.7 / len(questions)))


def test_an_agent_that_found_nothing_says_so_and_goes_on(stage: Stage) -> None:
    for demonstration in stage.play(SEARCH, stage.asked(SEARCH), wrong_query=1.0):
        thoughts = [said.removeprefix("<think> ").partition("</think>")[0] for said in demonstration.text_K]
        assert thoughts == ["find", "unclear", "unclear", "unclear"]


@TASKS
def test_in_true_demonstrations_no_country_of_another_split_is_named(stage: Stage, task: QuestionTaskConfig) -> None:
    facts = load_facts()
    split = split_countries(facts, 0)
    for demonstration in stage.play(task, stage.asked(task)):
        told = [*(message["content"] for message in demonstration.prompt), *demonstration.text_K]
        named = {name for text in told for name in stage.renamer.names_in(text)}
        assert {split[name] for name in named & facts.countries.keys()} <= {"train"}
        for country, value in ((c, v) for (c, _), v in facts.values.items() if split[c] != "train"):
            assert not {country, value} <= named


@TASKS
def test_a_renamed_episode_differs_in_names_alone(stage: Stage, task: QuestionTaskConfig) -> None:
    rng = random.Random(1)
    shown = stage.play(task, stage.asked(task), no_search=0.3, broken_tags=0.5)
    for demonstration in shown:
        new = renamed(demonstration, stage.renamer, rng)
        assert (new.item_id, new.stop) == (demonstration.item_id, demonstration.stop)
        assert [m["role"] for m in new.prompt] == [m["role"] for m in demonstration.prompt]
        assert [o.role for o in new.observation_K] == [o.role for o in demonstration.observation_K]
        for before, after in zip(texts(demonstration), texts(new), strict=True):
            assert skeleton(stage, before) == skeleton(stage, after)
    assert np.mean([renamed(d, stage.renamer, rng) != d for d in shown]) > 0.9


def texts(demonstration: Demonstration) -> list[str]:
    return [*(message["content"] for message in demonstration.prompt), *demonstration.text_K,
            *(observation.text for observation in demonstration.observation_K)]


def skeleton(stage: Stage, text: str) -> list[str]:
    """A text with each name replaced by its kind."""
    return [f"[{stage.renamer.kind(piece)}]" if is_name else piece for piece, is_name in stage.renamer.pieces(text)]


DEGRADED = {"no_search": 0.3, "wrong_query": 0.3, "repeated_search": 0.3, "broken_tags": 0.3}
SAME = """
import sys
from pathlib import Path
from tests.demonstrators import open_stage
from tests.unit.test_demonstrations import fingerprint
print(fingerprint(open_stage(Path(sys.argv[1]))))
"""


def fingerprint(stage: Stage) -> str:
    rng = random.Random(5)
    shown = stage.play(SEARCH, stage.asked(SEARCH), **DEGRADED)
    rates = flaw_rates([kind_of(question) for question in stage.questions], DEGRADED, 0.5, 0)
    everything = repr((shown, [renamed(d, stage.renamer, rng) for d in shown], rates))
    return hashlib.sha256(everything.encode()).hexdigest()


def test_the_same_seed_gives_the_same_bytes_in_any_process(stage: Stage) -> None:
    done = subprocess.run([sys.executable, "-c", SAME, str(stage.root)], capture_output=True, text=True, check=False,
                          cwd=Path(__file__).parents[2], env=os.environ | {"PYTHONHASHSEED": "1"})
    assert done.stdout.strip() == fingerprint(stage), done.stderr


def test_seeds_and_repetitions_differ(stage: Stage) -> None:
    question = stage.asked(SEARCH)[0]
    state = random.getstate()
    twice = stage.play(SEARCH, [question] * 12, **DEGRADED)
    assert len(set(map(repr, twice))) > 3
    assert stage.play(SEARCH, [question] * 12, seed=1, **DEGRADED) != twice
    assert stage.play(SEARCH, [question] * 12, **DEGRADED) == twice
    assert random.getstate() == state


# --- how often flaws fall on a kind of question -----------------------------------------------------------------------

KINDS = [f"kind {n}" for n in range(3000)]
MEANS = {"no_search": 0.4, "wrong_query": 0.1, "repeated_search": 0.0, "broken_tags": 1.0}


@pytest.mark.parametrize("spread", [0.0, 0.2, 0.6, 0.99])
def test_rates_have_the_asked_mean_and_variance(spread: float) -> None:
    rates = flaw_rates(KINDS, MEANS, spread, 0)
    for flaw, mean in MEANS.items():
        drawn = np.array([rates[kind][flaw] for kind in KINDS])
        assert ((drawn >= 0) & (drawn <= 1)).all()
        variance = spread * mean * (1 - mean)
        assert drawn.mean() == pytest.approx(mean, abs=4 * np.sqrt(variance / len(KINDS)) + 1e-12)
        assert drawn.var() == pytest.approx(variance, rel=0.15, abs=1e-12)


def test_the_limits_of_the_spread() -> None:
    assert {tuple(rates.values()) for rates in flaw_rates(KINDS, MEANS, 0.0, 0).values()} == {(0.4, 0.1, 0.0, 1.0)}
    drawn = np.array([rates["no_search"] for rates in flaw_rates(KINDS, MEANS, 0.999, 0).values()])
    assert ((drawn < 0.01) | (drawn > 0.99)).mean() > 0.98


@given(st.lists(st.sampled_from(KINDS[:20]), min_size=1), st.integers(0, 5))
def test_a_kinds_rates_depend_on_its_name_and_the_seed_alone(kinds: list[str], seed: int) -> None:
    rates, alone = flaw_rates(kinds, MEANS, 0.5, seed), flaw_rates(kinds[:1], MEANS, 0.5, seed)
    assert set(rates) == set(kinds)
    assert rates[kinds[0]] == alone[kinds[0]]
    assert all(tuple(found) == tuple(MEANS) for found in rates.values())


def test_a_kind_is_the_relations_that_lead_from_a_name_to_the_answer(stage: Stage) -> None:
    for question in stage.questions:
        told = [word for relation in kind_of(question).split(", ") for word in relation.split()]
        unnamed = ["[X]" if is_name else piece for piece, is_name in stage.renamer.pieces(question.question)]
        asked = "".join(unnamed).removeprefix("What is").removesuffix("?").split()
        assert told == [word for word in asked if word not in ("the", "of", "[X]", "lies")]
