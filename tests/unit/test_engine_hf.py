"""What the engine samples depends on context and seed alone: not on batch, cache, padding or order."""

import numpy as np
import pytest
import torch

from tests.policies import (
    assert_same_samples,
    codec,
    foreign_codec,
    logprob_rounding,
    model,
    row_logprobs,
    script_model,
    turn_row,
)
from tests.tolerance import assert_close
from turncredit.errors import ConfigError, NonFiniteError
from turncredit.policy.engines import hf
from turncredit.policy.engines.base import Sample
from turncredit.policy.engines.hf import HFEngine
from turncredit.policy.model import head_logits
from turncredit.policy.tokenizer import Codec, train_tokenizer
from turncredit.types import TurnStop

KINDS = ("qwen2", "qwen2-grouped", "llama", "gpt2")
STOP = ("</search>", "</answer>")
pytestmark = pytest.mark.numeric


def contexts(*lengths: int, seed: int = 0) -> list[tuple[int, ...]]:
    rng = np.random.default_rng(seed)
    return [tuple(rng.integers(5, 400, length).tolist()) for length in lengths]


def ending_codec(count: int = 40) -> Codec:
    """A tenth of the vocabulary ends a turn, so rows finish at different times."""
    return codec(end_ids=range(100, 100 + count))


def sample(engine: HFEngine, given: list[tuple[int, ...]], seeds: list[int] | None = None, *, max_tokens: int = 10,
           temperature: float = 1.0, stop_tags: tuple[str, ...] = STOP) -> list[Sample]:
    return engine.generate(given, seeds=seeds, max_tokens=max_tokens, temperature=temperature, stop_tags=stop_tags)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_is_what_transformers_generates(kind):
    policy = model(kind)
    given = contexts(3, 9, 9, 21)
    found = sample(HFEngine(policy, codec()), given, max_tokens=12, stop_tags=())
    for ids, one in zip(given, found, strict=True):
        expected = policy.generate(torch.tensor([ids]), attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                                   do_sample=False, max_new_tokens=12,
                                   eos_token_id=min(codec().end_ids), pad_token_id=0)[0, len(ids):]
        assert list(one.ids) == expected.tolist()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_logprobs_are_those_of_a_forward_pass_over_the_whole_sequence(kind, temperature):
    policy = model(kind)
    given = contexts(4, 17, 8)
    for context, one in zip(given, sample(HFEngine(policy, ending_codec()), given, [1, 2, 3], temperature=temperature),
                            strict=True):
        row = turn_row(context, one.ids)
        assert_close(one.logprobs, row_logprobs(policy, *row, temperature),
                     **logprob_rounding(policy, *row, temperature))


@pytest.mark.parametrize("kind", KINDS)
def test_a_sample_is_the_same_alone_in_a_batch_and_in_any_order(kind):
    policy = model(kind)
    engine = HFEngine(policy, ending_codec())
    given, seeds = contexts(5, 31, 5, 12, 2, 40, 12), [3, 1, 4, 15, 9, 2, 6]
    together = sample(engine, given, seeds)
    assert len({len(s.ids) for s in together}) > 1
    engine.reset_prefix_cache()
    alone = [sample(engine, [ids], [seed])[0] for ids, seed in zip(given, seeds, strict=True)]
    assert_same_samples(policy, given, together, alone)
    engine.reset_prefix_cache()
    assert_same_samples(policy, given[::-1], together[::-1], sample(engine, given[::-1], seeds[::-1]))


@pytest.mark.parametrize("seeds", [None, [3, 4, 5, 6, 7]])
def test_an_output_head_in_chunks_draws_the_same(monkeypatch, seeds):
    given = [*contexts(5, 9, 5), *contexts(5, 9)]  # two of them twice
    policy = model("qwen2")
    engine = HFEngine(policy, ending_codec())
    whole = sample(engine, given, seeds)
    heads = []

    def head(of, hidden_B_H):
        heads.append(len(hidden_B_H))
        return head_logits(of, hidden_B_H)

    monkeypatch.setattr(hf, "MOST_LOGITS", 2 * policy.config.vocab_size + 1)
    monkeypatch.setattr(hf, "head_logits", head)
    engine.reset_prefix_cache()
    assert [s.ids for s in sample(engine, given, seeds)] == [s.ids for s in whole]
    assert max(heads) == 2


def test_equal_contexts_differ_by_their_seeds_alone():
    engine = HFEngine(model(), ending_codec())
    found = sample(engine, contexts(6) * 8, [0, 1, 2, 3, 0, 1, 2, 3])
    assert found[:4] == found[4:]
    assert len({s.ids for s in found}) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_cached_prefixes_change_no_sample(kind):
    """Turns of a growing, shrinking, branching and partly new batch against an engine that knows nothing."""
    policy = model(kind)
    warm = HFEngine(policy, ending_codec())
    rng = np.random.default_rng(0)
    given = contexts(5, 5, 20) * 2 + contexts(11, seed=1)
    for turn, rows in enumerate((7, 7, 12, 3, 5)):
        seeds = list(range(turn * 100, turn * 100 + len(given)))
        found = sample(warm, given, seeds, max_tokens=6)
        assert_same_samples(policy, given, found,
                            sample(HFEngine(policy, ending_codec()), given, seeds, max_tokens=6))
        grown = [ids + one.ids + tuple(rng.integers(5, 400, rng.integers(0, 9)).tolist())
                 for ids, one in zip(given, found, strict=True)]
        given = [grown[i] for i in rng.integers(0, len(grown), rows)]
        given[1] = contexts(int(rng.integers(1, 60)), seed=turn)[0]  # an episode that begins
        given[2] = given[2][:3]  # a beginning of what is cached


def test_only_what_the_cache_lacks_goes_through_the_model(monkeypatch):
    engine = HFEngine(model(), codec())
    [one] = sample(engine, contexts(30), [0])
    fed = []
    forward = engine._forward
    monkeypatch.setattr(engine, "_forward", lambda tokens, *rest: (fed.append(tokens.shape), forward(tokens, *rest))[1])
    extended = contexts(30)[0] + one.ids + (7, 8, 9)
    sample(engine, [extended] * 4, [1, 2, 3, 5], max_tokens=2)  # no end id is drawn first
    assert fed == [(1, 4), (4, 1)]  # the last sampled token and the three new ones, once for all four


def test_after_a_weight_update_and_a_reset_nothing_old_is_left():
    policy = model()
    engine = HFEngine(policy, codec())
    given = contexts(20, 25)
    before = sample(engine, given, [1, 2])
    with torch.no_grad():
        policy.get_input_embeddings().weight.mul_(-1)
    engine.reset_prefix_cache()
    after = sample(engine, given, [1, 2])
    assert_same_samples(policy, given, after, sample(HFEngine(policy, codec()), given, [1, 2]))
    assert before != after


def test_samples_follow_the_distribution():
    policy = model()
    context = contexts(6)[0]
    count, temperature = 4000, 0.5
    found = sample(HFEngine(policy, codec()), [context] * count, list(range(count)), max_tokens=1,
                   temperature=temperature)
    p_V = (policy(torch.tensor([context])).logits[0, -1] / temperature).softmax(-1).detach().numpy()
    seen_V = np.bincount([s.ids[0] for s in found], minlength=len(p_V)) / count
    spread_V = np.sqrt(p_V * (1 - p_V) / count)
    assert (np.abs(seen_V - p_V) < 5 * spread_V + 2 / count).all()


# Stops --------------------------------------------------------------------------------------------

def follow(c: Codec, text: str, *, stop_tags: tuple[str, ...] = STOP, max_tokens: int = 40) -> tuple[str, Sample]:
    """Greedy decoding by a model that writes ``text``, of different tokens, after its first token."""
    script = c.encode_observation(text)
    engine = HFEngine(script_model(script, len(c.tokenizer)), c)
    [one] = engine.generate([script[:1]], seeds=None, max_tokens=max_tokens, temperature=1.0, stop_tags=stop_tags)
    return c.decode(one.ids), one


@pytest.mark.parametrize(("make", "text", "written"), [
    (codec, "x</search> Kenya", "</search>"),
    (codec, "x is</answer></search>", " is</answer>"),
    (codec, "<think> the</search></think>", " the</search>"),  # a quoted tag counts
    (foreign_codec, "x</search> Kenya", "</search>"),
    (foreign_codec, "x Kenya</search> Nairobi", " Kenya</search>"),
])
def test_a_turn_ends_with_the_token_that_completes_the_first_stop_tag(make, text, written):
    said, one = follow(make(), text)
    assert (said, one.stop) == (written, TurnStop.TAG)


def test_characters_that_the_completing_token_holds_after_the_tag_are_kept():
    c = foreign_codec()
    assert c.tokenizer.tokenize("</search>.")[-1] == ">."
    said, one = follow(c, "x Kenya</search>. Nairobi")
    assert (said, one.stop) == (" Kenya</search>.", TurnStop.TAG)


def test_a_token_that_only_looks_like_the_end_of_a_tag_goes_on():
    c = foreign_codec()
    said, one = follow(c, "x Kenya>. Nairobi", max_tokens=3)
    assert said.startswith(" Kenya>.")
    assert one.stop is TurnStop.LENGTH


def test_a_tag_spelt_out_of_small_tokens_stops_too():
    """Where the tag has a token of its own, its text written otherwise is the same text."""
    c = codec()
    pieces = [c.tokenizer.convert_tokens_to_ids(piece) for piece in ("x", *"</search>", "z")]
    engine = HFEngine(script_model(pieces, len(c.tokenizer)), c)
    [one] = sample(engine, [tuple(pieces[:1])], max_tokens=20)
    assert (c.decode(one.ids), one.stop) == ("</search>", TurnStop.TAG)


@pytest.mark.parametrize("end", ["<|end|>", " Nairobi"])
def test_any_end_id_ends_a_turn_and_is_kept_also_where_pad_is_an_end(end):
    own = train_tokenizer(["Kenya Nairobi is"] * 5, 400)
    own.pad_token = own.eos_token
    second = own.convert_tokens_to_ids("ĠNairobi")
    c = Codec(own, end_ids=[second])
    assert c.pad_id in c.end_ids
    end_id = own.convert_tokens_to_ids(end.replace(" ", "Ġ"))
    script = [*own("x is Kenya")["input_ids"], end_id, own.convert_tokens_to_ids("y")]
    engine = HFEngine(script_model(script, len(own)), c)
    given = [tuple(script[:n]) for n in (1, 2, 3)]  # unequal lengths: padding stands in the batch
    for context, one in zip(given, sample(engine, given), strict=True):
        assert one.ids == tuple(script[len(context):script.index(end_id) + 1])
        assert one.stop is TurnStop.END


def test_the_token_limit_is_a_stop_of_its_own_and_a_tag_on_the_last_token_is_a_tag():
    assert follow(codec(), "x Kenya</search>", max_tokens=1)[1].stop is TurnStop.LENGTH
    assert follow(codec(), "x Kenya</search>", max_tokens=2)[1].stop is TurnStop.TAG


# Refusals -----------------------------------------------------------------------------------------

def test_no_context_gives_no_sample():
    assert sample(HFEngine(model(), codec()), []) == []


@pytest.mark.parametrize(("given", "seeds", "change"), [
    ([()], None, {}), ([(5,)], [1, 2], {}), ([(5,)], None, {"max_tokens": 0}), ([(5,)], None, {"temperature": 0.0})])
def test_impossible_requests_are_refused(given, seeds, change):
    with pytest.raises(ValueError, match=r"at least 1|seeds"):
        sample(HFEngine(model(), codec()), given, seeds, **change)


def test_logits_that_are_not_finite_stop_the_run_and_poison_no_later_call():
    policy = model()
    engine = HFEngine(policy, codec())
    weight = policy.get_input_embeddings().weight
    kept = weight.detach().clone()
    with torch.no_grad():
        weight.fill_(float("nan"))
    with pytest.raises(NonFiniteError):
        sample(engine, contexts(50, 51), [0, 1])
    with torch.no_grad():
        weight.copy_(kept)
    short = contexts(3, 30)
    assert_same_samples(policy, short, sample(engine, short, [0, 1]),
                        sample(HFEngine(policy, codec()), short, [0, 1]))


def test_a_model_with_windowed_layers_is_refused():
    policy = model()
    policy.config.layer_types = ["full_attention", "sliding_attention"]
    with pytest.raises(ConfigError, match="sliding_attention"):
        HFEngine(policy, codec())
