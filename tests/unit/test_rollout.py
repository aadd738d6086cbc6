"""Episodes hold what was sampled and what the environment said, id by id; trees are their leaves written out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from tests.policies import codec, model
from turncredit.errors import ConfigError, RetrieverError, TaskError
from turncredit.policy.engines.base import Sample
from turncredit.policy.engines.hf import HFEngine
from turncredit.policy.tokenizer import Codec
from turncredit.rollout.batched import rollout
from turncredit.tasks.env import Environment, Message, Request, Service, Step
from turncredit.tasks.registry import make_task
from turncredit.tasks.search.config import SearchConfig
from turncredit.tasks.search.environment import SERVICE
from turncredit.tasks.search.services import SearchService
from turncredit.types import Document, Group, Observation, Question, StopReason, TurnStop

SEARCH = "<think> I look up Nairobi </think><search> capital of Kenya </search>"
ANSWER = "<think> It is Nairobi </think><answer> Nairobi </answer>"


def questions(count: int) -> list[Question]:
    return [Question(f"q{i}", "facts", f"What is the capital of Kenya {i}?", ("Nairobi",), 1, ()) for i in range(count)]


def config(**changes: object) -> SearchConfig:
    return SearchConfig.model_validate({"name": "search", "max_turns": 3, "max_turn_tokens": 40,
                                        "max_observation_tokens": 60, "max_context_tokens": 400, "top_k": 2} | changes)


def seed_of(question: str, path: tuple[int, ...]) -> int:
    return int.from_bytes(hashlib.sha256(json.dumps([question, path]).encode()).digest()[:7], "big")


@dataclass
class Retriever:
    calls: list[list[str]] = field(default_factory=list)

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Document]]:
        self.calls.append(list(queries))
        return [[Document(str(rank), "Kenya", f"Passage {rank} about {query}") for rank in range(top_k)]
                for query in queries]


def services(retriever: Retriever | None = None) -> dict[str, Service]:
    return {SERVICE: SearchService(retriever or Retriever(), config().top_k)}


class ScriptEngine:
    """Says ``texts[i % n]`` to the i-th context of a call; notes the contexts that it was given."""

    def __init__(self, codec: Codec, *texts: str, stop: TurnStop = TurnStop.TAG) -> None:
        self._codec, self._texts, self._stop = codec, texts, stop
        self.contexts: list[list[tuple[int, ...]]] = []
        self.seeds: list[Sequence[int] | None] = []

    def generate(self, contexts: Sequence[Sequence[int]], *, seeds: Sequence[int] | None, max_tokens: int,
                 temperature: float, stop_tags: tuple[str, ...]) -> list[Sample]:
        self.contexts.append([tuple(context) for context in contexts])
        self.seeds.append(seeds)
        samples = []
        for i in range(len(contexts)):
            ids = self._codec.encode_observation(self._texts[i % len(self._texts)])
            if self._stop is TurnStop.END:
                ids += (min(self._codec.end_ids),)
            samples.append(Sample(ids, tuple(-0.5 - t for t in range(len(ids))), self._stop))
        return samples

    def reset_prefix_cache(self) -> None:
        pass


def play(engine: object, *, count: int = 1, branching: Sequence[int] = (1, 1, 1), settings: SearchConfig | None = None,
         retriever: Retriever | None = None) -> list[Group]:
    return rollout(questions(count), make_task(settings or config()), engine, services(retriever), codec(),
                   branching=branching, seed_of=seed_of, temperature=1.0)


def test_a_transcript_is_prompt_sampled_and_environment_ids_with_masks_by_hand():
    c = codec()
    engine = ScriptEngine(c, SEARCH)
    [group] = play(engine, settings=config(max_turns=2), branching=(1, 1))
    [transcript] = group.transcripts
    prompt = c.encode_prompt([{"role": "user", "content": "Question: What is the capital of Kenya 0?"}])
    sampled = c.encode_observation(SEARCH)
    observation = c.encode_observation(transcript.turns[0].observation.text)
    assert "<information>Doc 1(Title: Kenya) Passage 0" in c.decode(observation)
    assert transcript.ids == list(prompt + sampled + observation + sampled)
    assert engine.contexts == [[prompt], [prompt + sampled + observation]]
    assert transcript.loss_mask.tolist() == (
        [0] * len(prompt) + [1] * len(sampled) + [0] * len(observation) + [1] * len(sampled))
    assert transcript.turn_id.tolist() == (
        [-1] * len(prompt) + [0] * (len(sampled) + len(observation)) + [1] * len(sampled))
    assert transcript.stop is StopReason.TURN_LIMIT
    assert [turn.text for turn in transcript.turns] == [SEARCH, SEARCH]


def test_an_answer_ends_the_episode_and_the_others_go_on():
    groups = play(ScriptEngine(codec(), ANSWER, SEARCH), count=2)
    assert [leaf.stop for group in groups for leaf in group.transcripts] == [
        StopReason.ANSWERED, StopReason.ANSWERED]
    assert [len(group.transcripts[0].turns) for group in groups] == [1, 2]  # alone, the second is the first of its call


def test_all_live_episodes_ask_the_retriever_in_one_call_a_turn():
    retriever = Retriever()
    play(ScriptEngine(codec(), SEARCH), count=3, branching=(2, 1, 1), retriever=retriever)
    assert [len(queries) for queries in retriever.calls] == [6, 6]  # the last turn cannot search


def test_a_retriever_fault_ends_the_rollout_not_the_search():
    class Dead(Retriever):
        def search(self, queries: Sequence[str], top_k: int) -> list[list[Document]]:
            raise RetrieverError("dead")

    with pytest.raises(RetrieverError):
        play(ScriptEngine(codec(), SEARCH), retriever=Dead())


def test_the_end_token_is_trained_on_but_is_no_text():
    [group] = play(ScriptEngine(codec(), "Nairobi", stop=TurnStop.END))
    for turn in group.transcripts[0].turns:
        assert turn.sampled_ids[-1] in codec().end_ids
        assert turn.text == "Nairobi"


def test_a_request_that_no_service_answers_is_an_error():
    class Asks(Talk):
        def start(self, item: Question, count_tokens: object, cut: object) -> Environment:
            return Asks()

        def request(self, text: str) -> Request | None:
            return Request("serch", text)

        def fork(self) -> Environment:
            return Asks(self._turns)

    for given, says in ((services(), "'serch'.*\\n.*did you mean 'search'"), ({}, "'serch'.*\\n.*open it")):
        with pytest.raises(TaskError, match=says):
            rollout(questions(1), Asks(), ScriptEngine(codec(), "x"), given, codec(), branching=(1, 1), seed_of=None,
                    temperature=1.0)


# Trees --------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("branching", "leaves", "turns"), [
    ((4, 1, 1), 4, 4 * 3), ((2, 2, 1), 4, 2 + 4 + 4), ((3, 3, 1), 9, 3 + 9 + 9), ((1, 1, 1), 1, 3)])
def test_a_tree_has_its_leaves_and_samples_each_shared_turn_once(branching, leaves, turns):
    engine = ScriptEngine(codec(), SEARCH)
    for group in play(engine, count=2, branching=branching):
        assert len(group.transcripts) == leaves
        assert len(group.turns) == turns
    assert sum(map(len, engine.contexts)) == 2 * turns


def test_nodes_are_numbered_leaf_by_leaf_and_a_shared_turn_is_one_turn():
    [group] = play(ScriptEngine(codec(), SEARCH), branching=(2, 2, 1))
    assert group.node_L_K == ((0, 1, 2), (0, 3, 4), (5, 6, 7), (5, 8, 9))
    first, second, third, _ = group.transcripts
    assert first.turns[0] == second.turns[0]
    assert first.turns[0] is not third.turns[0]


def test_a_branch_that_ends_early_leaves_the_others_whole():
    [group] = play(ScriptEngine(codec(), SEARCH, ANSWER), branching=(2, 2, 1))
    # paths: (0,) searches, (1,) answers; (0, 0) searches, (0, 1) answers; (0, 0, 0) searches
    assert group.node_L_K == ((0, 1, 2), (0, 3), (4,))
    assert [leaf.stop for leaf in group.transcripts] == [
        StopReason.TURN_LIMIT, StopReason.ANSWERED, StopReason.ANSWERED]


def test_a_chain_of_branching_at_the_first_turn_shares_nothing():
    [group] = play(ScriptEngine(codec(), SEARCH), branching=(3, 1, 1))
    assert group.node_L_K == Group.of_chains(group.transcripts).node_L_K


def test_every_turn_has_the_seed_of_its_path():
    engine = ScriptEngine(codec(), SEARCH)
    play(engine, count=2, branching=(2, 2, 1))
    paths = [[(0,), (1,)], [(0, 0), (0, 1), (1, 0), (1, 1)],
             [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 1, 0)]]
    assert engine.seeds == [[seed_of(q, path) for q in ("q0", "q1") for path in turn] for turn in paths]


@pytest.mark.parametrize("branching", [(3, 1, 1), (2, 2, 1)])
def test_real_samples_do_not_depend_on_what_else_is_in_the_batch(branching):
    settings = config(max_turn_tokens=8, max_context_tokens=200)

    def groups(asked: Sequence[Question]) -> list[Group]:
        return rollout(asked, make_task(settings), HFEngine(model(), codec()), services(), codec(),
                       branching=branching, seed_of=seed_of, temperature=1.0)

    def tokens(group: Group) -> list[list[int]]:
        return [leaf.ids for leaf in group.transcripts]

    together = groups(questions(3))
    assert tokens(together[1]) == tokens(groups(questions(3)[1:2])[0])
    assert [tokens(group) for group in together] == [tokens(group) for group in groups(questions(3)[::-1])[::-1]]
    assert len({leaf.turns[0].sampled_ids for leaf in together[0].transcripts}) > 1


def test_greedy_asks_for_no_seeds():
    engine = ScriptEngine(codec(), SEARCH)
    rollout(questions(1), make_task(config()), engine, services(), codec(), branching=(1, 1, 1), seed_of=None,
            temperature=1.0)
    assert engine.seeds == [None] * 3


# Budgets ------------------------------------------------------------------------------------------

def test_an_episode_overflows_before_the_turn_that_would_not_fit_and_ends_with_a_sampled_token():
    c = codec()
    [whole] = play(ScriptEngine(c, SEARCH))[0].transcripts
    turn, prompt = len(whole.turns[0].sampled_ids), len(whole.prompt_ids)
    second_context = prompt + turn + len(whole.turns[0].observation_ids)
    for room, turns in ((second_context + turn, 2), (second_context + turn - 1, 1)):
        settings = config(max_turn_tokens=turn, max_context_tokens=room)
        [leaf] = play(ScriptEngine(c, SEARCH), settings=settings)[0].transcripts
        assert leaf.stop is StopReason.CONTEXT_OVERFLOW
        assert len(leaf.turns) == turns
        assert leaf.ids == whole.ids[:len(leaf.ids)]
        assert leaf.loss_mask[-1] == 1
        assert leaf.turns[-1].observation == whole.turns[turns - 1].observation  # it was found, and is rewarded
        assert len(leaf.ids) <= room


def test_a_question_that_does_not_fit_is_named():
    with pytest.raises(ConfigError, match=r"item q0.*max_context_tokens"):
        play(ScriptEngine(codec(), SEARCH), settings=config(max_context_tokens=41))


@pytest.mark.parametrize("branching", [(1, 1), (1, 0, 1), (1, 1, 1, 1)])
def test_branching_has_a_number_for_each_turn(branching):
    with pytest.raises(ValueError, match="branching"):
        play(ScriptEngine(codec(), SEARCH), branching=branching)


# Environments that speak as a chat role -----------------------------------------------------------

class Talk:
    """Two turns; the environment answers as the user."""

    config = config(max_turns=2)
    stop_tags = ("</search>",)

    def __init__(self, turns: int = 0) -> None:
        self._turns = turns

    def start(self, item: Question, count_tokens: object, cut: object) -> Environment:
        return Talk()

    def reset(self) -> list[Message]:
        return [{"role": "user", "content": "Kenya"}]

    def request(self, text: str) -> Request | None:
        return None

    def step(self, text: str, stop: TurnStop, response: object) -> Step:
        self._turns += 1
        return Step(Observation("and?", role="user"), StopReason.TURN_LIMIT if self._turns == 2 else None)

    def fork(self) -> Environment:
        return Talk(self._turns)


@pytest.mark.parametrize("stop", [TurnStop.TAG, TurnStop.END])
def test_a_reply_closes_the_turn_once_with_scaffolding_that_is_not_trained_on(stop):
    c = codec()
    [group] = rollout(questions(1), Talk(), ScriptEngine(c, "Nairobi", stop=stop), {}, c, branching=(1, 1),
                      seed_of=None, temperature=1.0)
    [leaf] = group.transcripts
    sampled = "Nairobi<|end|>" if stop is TurnStop.END else "Nairobi"
    between = "<|user|>and?<|end|><|assistant|>" if stop is TurnStop.END else "<|end|><|user|>and?<|end|><|assistant|>"
    assert c.decode(leaf.ids) == f"<|user|>Kenya<|end|><|assistant|>{sampled}{between}{sampled}"
    assert c.decode([i for i, trained in zip(leaf.ids, leaf.loss_mask, strict=True) if trained]) == sampled * 2


def test_an_environment_that_never_ends_is_an_error():
    class Endless(Talk):
        def start(self, item: Question, count_tokens: object, cut: object) -> Environment:
            return Talk(-9)

    with pytest.raises(ValueError, match="go on after the last"):
        rollout(questions(1), Endless(), ScriptEngine(codec(), "x"), {}, codec(), branching=(1, 1), seed_of=None,
                temperature=1.0)


def test_inputs_are_left_as_they_were():
    asked = questions(2)
    play(ScriptEngine(codec(), SEARCH), count=2)
    assert asked == [replace(question) for question in questions(2)]
