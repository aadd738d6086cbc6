"""vLLM's turns are those of transformers' engine: greedy ones id by id, sampled ones by their probabilities."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from tests.gpu.conftest import DEVICE, WINDOW, Place, policy_model, started
from tests.policies import logprob_rounding, row_logprobs, script_model, turn_row
from tests.tolerance import assert_close, error_ratio
from turncredit.errors import CheckpointError, ConfigError, NonFiniteError, ProcessError
from turncredit.policy.engines.base import Engine, Sample
from turncredit.policy.engines.hf import HFEngine
from turncredit.policy.model import save_policy
from turncredit.rollout import asynchronous
from turncredit.rollout import batched as episode
from turncredit.tasks.registry import make_task
from turncredit.tasks.search.config import SearchConfig
from turncredit.tasks.search.environment import SERVICE
from turncredit.tasks.search.services import SearchService
from turncredit.types import Document, Group, Question, TurnStop

GPU_TOLERANCE = 2e-3  # of log-probabilities: attention on a GPU may multiply in TF32; transformers runs on the CPU
pytestmark = pytest.mark.numeric
STOP = ("</search>", "</answer>")


def contexts(*lengths: int, seed: int = 0) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(5, 300, length).tolist()) for length in lengths]


def sample(engine: Engine, given: Sequence[Sequence[int]], seeds: list[int] | None = None, *, max_tokens: int = 10,
           temperature: float = 1.0, stop_tags: tuple[str, ...] = STOP) -> list[Sample]:
    return engine.generate(given, seeds=seeds, max_tokens=max_tokens, temperature=temperature, stop_tags=stop_tags)


def same_logprobs(model: PreTrainedModel, ids: Sequence[int], loss_mask: Sequence[int], left: Sequence[float],
                  right: Sequence[float], temperature: float = 1.0) -> None:
    """The log-probabilities of a row's loss tokens agree but for rounding; those of other tokens, if given, are 0."""
    if DEVICE == "cpu":
        assert_close(left, right, **logprob_rounding(model, ids, loss_mask, temperature))
    else:
        assert left == pytest.approx(right, abs=GPU_TOLERANCE)


def assert_same(model: PreTrainedModel, given: Sequence[Sequence[int]], left: Sequence[Sample],
                right: Sequence[Sample]) -> None:
    assert [(s.ids, s.stop) for s in left] == [(s.ids, s.stop) for s in right]
    for context, a, b in zip(given, left, right, strict=True):
        same_logprobs(model, *turn_row(context, a.ids), a.logprobs, b.logprobs)


@pytest.mark.parametrize("seed", [0, 1])
def test_greedy_turns_are_those_of_transformers_after_each_weight_update(place: Place, seed: int) -> None:
    model = policy_model(place.codec, seed)
    given = contexts(3, 9, 9, 21, 130, 200)
    found = sample(place.holds(model), given, max_tokens=12)
    assert_same(model, given, found, sample(HFEngine(model, place.codec), given, max_tokens=12))
    assert {one.weight_version for one in found} == {place.version}


def test_a_folder_of_weights_is_taken_like_weights_by_name(place: Place, tmp_path) -> None:
    model, given = policy_model(place.codec, 5), contexts(7, 30)
    save_policy(model, tmp_path / "policy")
    place.version += 1
    place.engine.update_weights(tmp_path / "policy", place.version)
    found = sample(place.engine, given)
    assert_same(model, given, found, sample(HFEngine(model, place.codec), given))
    assert {one.weight_version for one in found} == {place.version}


@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_logprobs_are_those_of_the_distribution_that_was_drawn_from(place: Place, temperature: float) -> None:
    model, given = policy_model(place.codec), contexts(4, 17, 8, 150)
    for context, one in zip(given, sample(place.holds(model), given, [1, 2, 3, 2**63 - 1], temperature=temperature),
                            strict=True):
        row = turn_row(context, one.ids)
        same_logprobs(model, *row, one.logprobs, row_logprobs(model, *row, temperature).tolist(), temperature)


def test_a_sample_is_the_same_alone_in_a_batch_and_in_any_order(place: Place) -> None:
    model = policy_model(place.codec)
    engine = place.holds(model)
    given, seeds = contexts(5, 31, 5, 12, 2, 40, 150), [3, 1, 4, 15, 9, 2, 6]
    together = sample(engine, given, seeds)
    engine.reset_prefix_cache()
    alone = [sample(engine, [ids], [seed])[0] for ids, seed in zip(given, seeds, strict=True)]
    assert_same(model, given, together, alone)
    engine.reset_prefix_cache()
    assert_same(model, given[::-1], together[::-1], sample(engine, given[::-1], seeds[::-1]))
    assert_same(model, given, together, sample(engine, given, seeds))  # now from cached prefixes


def test_equal_contexts_differ_by_their_seeds_alone(place: Place) -> None:
    model, given = policy_model(place.codec), contexts(6) * 4
    found = sample(place.holds(model), given * 2, [0, 1, 2, 3, 0, 1, 2, 3])
    assert_same(model, given, found[:4], found[4:])
    assert len({s.ids for s in found}) == 4


def test_samples_follow_the_policys_own_distribution(place: Place) -> None:
    """Its generation_config.json would have the likeliest token only, and repetitions avoided."""
    model, context, count, temperature = policy_model(place.codec), contexts(6)[0], 1500, 0.5
    found = sample(place.holds(model), [context] * count, list(range(count)), max_tokens=1, temperature=temperature)
    p_V = (model(torch.tensor([context])).logits[0, -1] / temperature).softmax(-1).detach().numpy()
    seen_V = np.bincount([s.ids[0] for s in found], minlength=len(p_V)) / count
    spread_V = np.sqrt(p_V * (1 - p_V) / count)
    assert (np.abs(seen_V - p_V) < 5 * spread_V + 2 / count).all()


# Stops --------------------------------------------------------------------------------------------

@pytest.mark.parametrize(("text", "max_tokens"), [
    ("x</search> Kenya", 40), ("x is</answer></search>", 40), ("<think> the</search></think>", 40),
    ("x Kenya</search>. Nairobi", 40), ("x Kenya>. Nairobi", 3), ("x Kenya</search>", 1), ("x Kenya</search>", 2),
    ("x is<|end|> Kenya", 40)])
def test_turns_end_where_those_of_transformers_do(place: Place, text: str, max_tokens: int) -> None:
    """The policy writes the text after its first token; twice the same id ends the script."""
    c = place.codec
    spelt = c.tokenizer(text, add_special_tokens=False)["input_ids"]
    script = list(dict.fromkeys(spelt))
    model = script_model(script, len(c.tokenizer))
    [expected] = sample(HFEngine(model, c), [script[:1]], max_tokens=max_tokens)
    [found] = sample(place.holds(model), [script[:1]], max_tokens=max_tokens)
    assert_same(model, [script[:1]], [found], [expected])
    if len(script) == len(spelt):  # else the text breaks off before its end
        assert found.stop in (TurnStop.TAG, TurnStop.END) or max_tokens < 40


def test_a_tag_spelt_out_of_small_tokens_stops_too(place: Place) -> None:
    c = place.codec
    pieces = [c.tokenizer.convert_tokens_to_ids(piece) for piece in ("x", *"</search>", "z")]
    [one] = sample(place.holds(script_model(pieces, len(c.tokenizer))), [pieces[:1]], max_tokens=20)
    assert (c.decode(one.ids), one.stop) == ("</search>", TurnStop.TAG)


def test_sampled_turns_end_with_their_first_tag_or_end_id(place: Place) -> None:
    """A policy that likes end ids and tags: of many turns each holds what ended it at its end, and only there."""
    c, model = place.codec, policy_model(place.codec)
    ends = [*c.end_ids, *c.tokenizer("</search>", add_special_tokens=False)["input_ids"]]
    with torch.no_grad():
        model.get_output_embeddings().weight[ends] *= 4
    found = sample(place.holds(model), contexts(*range(3, 63)), list(range(60)), max_tokens=30)
    assert len({one.stop for one in found}) >= 2
    for one in found:
        tagged = [any(tag in c.decode(one.ids[:n]) for tag in STOP) for n in range(1, len(one.ids) + 1)]
        ended = [token in c.end_ids for token in one.ids]
        assert not any(tagged[:-1])
        assert not any(ended[:-1])
        assert one.stop is (TurnStop.TAG if tagged[-1] else TurnStop.END if ended[-1] else TurnStop.LENGTH)
        assert one.stop is not TurnStop.LENGTH or len(one.ids) == 30


# Weights and prefixes -----------------------------------------------------------------------------

def test_an_update_leaves_no_prefix_of_the_old_weights(place: Place) -> None:
    """Without the reset the old keys and values are used: that it matters is shown by leaving it out."""
    old, new, given = policy_model(place.codec, 2), policy_model(place.codec, 3), contexts(200)
    expected = sample(HFEngine(new, place.codec), given)
    engine = place.holds(old)
    sample(engine, given)
    assert_same(new, given, sample(place.holds(new), given), expected)

    async def forget_nothing() -> None:
        return

    sample(place.holds(old), given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_reset", forget_nothing)
        [stale] = sample(place.holds(new), given)
    row = turn_row(given[0], stale.ids)
    assert error_ratio(stale.logprobs, row_logprobs(new, *row, 1.0), **logprob_rounding(new, *row, 1.0)) > 100


def test_weights_that_are_not_the_policys_are_refused_and_change_nothing(place: Place) -> None:
    model, given = policy_model(place.codec), contexts(9)
    before = sample(place.holds(model), given)
    weights = dict(policy_model(place.codec, 9).state_dict())
    for wrong in (dict(list(weights.items())[1:]), weights | {"lm_head.weight": torch.zeros(3, 64)}):
        with pytest.raises(CheckpointError):
            place.engine.update_weights(wrong.items(), place.version + 1)
    assert_same(model, given, sample(place.engine, given), before)


@pytest.mark.parametrize("seeds", [None, [0, 1]])
def test_logits_that_are_not_finite_stop_the_run_and_its_vllm_samples_no_more(
        tmp_path: Path, seeds: list[int] | None) -> None:
    """Its cache would hold them: masked, but nothing times NaN is NaN."""
    with started("process", tmp_path) as place:
        model, given = policy_model(place.codec), contexts(50, 51)
        broken = policy_model(place.codec)
        with torch.no_grad():
            broken.get_input_embeddings().weight.fill_(float("nan"))
        with pytest.raises(NonFiniteError):
            sample(place.holds(broken), given, seeds)
        with pytest.raises(ProcessError, match="starts a new vLLM"):
            sample(place.holds(model), given, seeds)


# Requests -----------------------------------------------------------------------------------------

def test_a_full_window_is_used_to_its_last_token_and_not_beyond(place: Place) -> None:
    model, given = policy_model(place.codec), contexts(WINDOW - 8)
    found = sample(place.holds(model), given, max_tokens=8)
    assert_same(model, given, found, sample(HFEngine(model, place.codec), given, max_tokens=8))
    with pytest.raises(ConfigError, match="max_context_tokens"):
        sample(place.engine, given, max_tokens=9)


def test_seeded_turns_whose_contexts_do_not_fit_one_pass_together(place: Place) -> None:
    engine = place.holds(policy_model(place.codec))
    size = len(place.codec.tokenizer)
    contexts = [[(n * 37 + t * t) % size for t in range(WINDOW - 8)] for n in range(64)]
    samples = engine.generate(contexts, seeds=list(range(64)), max_tokens=4, temperature=1.0, stop_tags=())
    assert [sample.ids for sample in samples] == [
        engine.generate([context], seeds=[n], max_tokens=4, temperature=1.0, stop_tags=())[0].ids
        for n, context in enumerate(contexts)]


def test_turns_that_are_given_up_leave_the_engine_free(place: Place) -> None:
    engine = place.holds(policy_model(place.codec))

    async def give_up() -> None:
        turns = [asyncio.ensure_future(engine.sample(context, seed=1, max_tokens=WINDOW - 80, temperature=1.0,
                                                     stop_tags=())) for context in contexts(60, 70)]
        await asyncio.sleep(0.05)
        for turn in turns:
            turn.cancel()
        await asyncio.gather(*turns, return_exceptions=True)

    asyncio.run(give_up())
    model, given = policy_model(place.codec, 4), contexts(12)
    assert_same(model, given, sample(place.holds(model), given), sample(HFEngine(model, place.codec), given))


# Rollouts -----------------------------------------------------------------------------------------

@dataclass
class Retriever:
    calls: list[list[str]] = field(default_factory=list)

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Document]]:
        self.calls.append(list(queries))
        return [[Document("1", "Kenya", f"Nairobi {query[:20]}")] for query in queries]


def seed_of(question: str, path: tuple[int, ...]) -> int:
    return int.from_bytes(hashlib.sha256(json.dumps([question, path]).encode()).digest()[:7], "big")


@pytest.mark.parametrize("branching", [(3, 1), (2, 1)])
def test_episodes_at_their_own_pace_are_those_of_the_batch_and_greedy_ones_those_of_transformers(
        place: Place, branching: tuple[int, ...]) -> None:
    model, c = policy_model(place.codec), place.codec
    engine = place.holds(model)
    task = make_task(SearchConfig(name="search", max_turns=2, max_turn_tokens=8, max_observation_tokens=60,
                                  max_context_tokens=WINDOW, top_k=1))
    questions = [Question(f"q{i}", "facts", f"What is the capital of Kenya {i}?", ("Nairobi",), 1, ())
                 for i in range(3)]

    def play(player, engine: Engine, seeds) -> list[Group]:
        services = {SERVICE: SearchService(Retriever(), 1)}
        return player(questions, task, engine, services, c, branching=branching, seed_of=seeds, temperature=1.0)

    for seeds, other in ((seed_of, engine), (None, HFEngine(model, c))):
        paced, batched = play(asynchronous.rollout, engine, seeds), play(episode.rollout, other, seeds)
        for left, right in zip(paced, batched, strict=True):
            assert left.node_L_K == right.node_L_K
            for a, b in zip(left.transcripts, right.transcripts, strict=True):
                assert (a.ids, a.loss_mask.tolist(), a.stop) == (b.ids, b.loss_mask.tolist(), b.stop)
                same_logprobs(model, a.ids, a.loss_mask.tolist(), a.logprobs, b.logprobs)
            assert {turn.weight_version for turn in left.turns} == {place.version}
