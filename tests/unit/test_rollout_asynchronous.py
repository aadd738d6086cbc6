"""Episodes at their own pace are the episodes of the batch, and nobody waits for another's search."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from tests.engines import OneByOne
from tests.policies import codec, logprob_rounding, model
from tests.tolerance import assert_close
from tests.unit.test_rollout import ANSWER, SEARCH, Talk, config, questions, seed_of, services
from turncredit.errors import RetrieverError, TaskError
from turncredit.policy.engines.base import Sample
from turncredit.policy.engines.hf import HFEngine
from turncredit.policy.tokenizer import Codec
from turncredit.rollout import asynchronous
from turncredit.rollout import batched as episode
from turncredit.tasks.registry import make_task
from turncredit.tasks.search.environment import SERVICE
from turncredit.types import Document, Group, TurnStop


@dataclass
class Script:
    """Searches in every first turn and answers in the second; notes when each question's turns begin."""

    codec: Codec
    events: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)

    async def sample(self, context: Sequence[int], **request: object) -> Sample:
        said = self.codec.decode(context)
        name = said.split("Kenya ")[1][0]
        first = "<information>" not in said
        self.events.append(f"{name}: {'search' if first else 'answer'}")
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled.append(name)
            raise
        ids = self.codec.encode_observation((SEARCH if first else ANSWER).replace("of Kenya", f"of Kenya {name}"))
        return Sample(ids, (-1.0,) * len(ids), TurnStop.TAG, weight_version=7)


@dataclass
class Gate:
    """A search service whose answer for one question waits until it is let go; all others come at once."""

    slow: str
    events: list[str]
    open: asyncio.Event = field(default_factory=asyncio.Event)
    until: int = 10**9  # events after which it opens by itself

    async def answer(self, bodies: Sequence[str]) -> list[list[Document]]:
        [query] = bodies
        if query.strip().endswith(self.slow):
            while len(self.events) < self.until:
                await asyncio.sleep(0)
            self.events.append(f"{self.slow}: found")
        return [[Document("1", "Kenya", "Nairobi is the capital")]]


def play(engine: object, search: object | None, count: int, *, branching: Sequence[int] = (1, 1, 1)) -> list[Group]:
    return asyncio.run(asynchronous.rollout_async(
        questions(count), make_task(config()), engine, {} if search is None else {SERVICE: search}, codec(),
        branching=branching, seed_of=seed_of, temperature=1.0))


@pytest.mark.numeric
@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("branching", [(3, 1, 1), (2, 2, 1)])
def test_the_groups_are_those_of_the_batched_rollout(branching: tuple[int, ...], greedy: bool) -> None:
    settings = config(max_turn_tokens=8, max_context_tokens=200)
    policy, found = model(), []
    engine = HFEngine(policy, codec())
    for play_all, player in ((episode.rollout, engine), (asynchronous.rollout, OneByOne(engine))):
        engine.reset_prefix_cache()
        found.append(play_all(questions(3), make_task(settings), player, services(), codec(), branching=branching,
                              seed_of=None if greedy else seed_of, temperature=1.0))
    batched, paced = found
    for left, right in zip(batched, paced, strict=True):
        assert left.node_L_K == right.node_L_K
        for a, b in zip(left.transcripts, right.transcripts, strict=True):
            assert (a.ids, a.loss_mask.tolist(), a.stop) == (b.ids, b.loss_mask.tolist(), b.stop)
            assert_close(a.logprobs, b.logprobs, **logprob_rounding(policy, a.ids, a.loss_mask.tolist(), 1.0))


def test_searches_and_answers_are_those_of_the_batched_rollout() -> None:
    """Scripted turns that search: observations, overflow and stop reasons too, equal to the last field."""
    class Batch:
        def generate(self, contexts: Sequence[Sequence[int]], *, seeds: object, **request: object) -> list[Sample]:
            async def all_of_them() -> list[Sample]:
                return [await script.sample(context) for context in contexts]
            return asyncio.run(all_of_them())

    script = Script(codec())
    for settings in (config(), config(max_context_tokens=150), config(max_turns=2)):
        branching = (2, *(1,) * (settings.max_turns - 1))
        rest = {"branching": branching, "seed_of": seed_of, "temperature": 1.0}
        task = make_task(settings)
        batched = episode.rollout(questions(3), task, Batch(), services(), codec(), **rest)
        assert asynchronous.rollout(questions(3), task, script, services(), codec(), **rest) == batched
        assert {turn.weight_version for group in batched for turn in group.turns} == {7}


def test_a_slow_search_of_one_episode_lets_all_others_end() -> None:
    script = Script(codec())
    gate = Gate("0", script.events, until=2 * 4 - 1)  # all events but the slow episode's answer
    play(script, gate, 4)
    assert script.events[-2:] == ["0: found", "0: answer"]
    assert {f"{name}: answer" for name in "123"} < set(script.events)


def test_a_search_in_a_thread_holds_up_nobody() -> None:
    """The synchronous client in a pool: the slow search is let go by another episode's last turn."""
    done = threading.Event()

    class Client:
        def search(self, queries: Sequence[str], top_k: int) -> list[list[Document]]:
            if queries[0].strip().endswith("0"):
                assert done.wait(30)
            return [[Document("1", "Kenya", "Nairobi")]]

    class Watched(Script):
        async def sample(self, context: Sequence[int], **request: object) -> Sample:
            one = await super().sample(context, **request)
            if self.events.count("1: answer"):
                done.set()
            return one

    script = Watched(codec())
    asynchronous.rollout(questions(2), make_task(config()), script, services(Client()), codec(), branching=(1, 1, 1),
                         seed_of=seed_of, temperature=1.0)
    assert script.events.index("1: answer") < script.events.index("0: answer")


def test_a_failed_search_ends_the_rollout_and_the_turns_in_progress() -> None:
    class Dead:
        async def answer(self, bodies: Sequence[str]) -> list[list[Document]]:
            raise RetrieverError("no answer", "start it")

    class Endless(Script):
        async def sample(self, context: Sequence[int], **request: object) -> Sample:
            if "Kenya 1" in self.codec.decode(context):
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    self.cancelled.append("1")
                    raise
            return await super().sample(context, **request)

    script = Endless(codec())
    with pytest.raises(RetrieverError):
        play(script, Dead(), 2)
    assert script.cancelled == ["1"]


def test_a_request_that_no_service_answers_is_an_error() -> None:
    with pytest.raises(TaskError, match="the service 'search', which is not there"):
        play(Script(codec()), None, 1)


def test_an_environment_that_never_ends_is_an_error() -> None:
    class Endless(Talk):
        def start(self, item: object, count_tokens: object, cut: object) -> Talk:
            return Talk(-9)

    class Says:
        async def sample(self, context: Sequence[int], **request: object) -> Sample:
            return Sample((5,), (-1.0,), TurnStop.TAG)

    with pytest.raises(ValueError, match="goes on after the last"):
        asynchronous.rollout(questions(1), Endless(), Says(), {}, codec(), branching=(1, 1), seed_of=None,
                             temperature=1.0)


def test_inputs_are_left_as_they_were() -> None:
    asked = questions(2)
    asynchronous.rollout(asked, make_task(config()), Script(codec()), services(), codec(), branching=(1, 1, 1),
                         seed_of=seed_of, temperature=1.0)
    assert asked == [replace(question) for question in questions(2)]
