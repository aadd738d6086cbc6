"""The derived tolerances hold for sums in any order, and real faults are far beyond them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.policies import codec, logprob_rounding, model, row_logprobs, turn_row
from tests.tolerance import assert_close, error_ratio, sensitivity
from turncredit.policy.engines.hf import HFEngine

pytestmark = pytest.mark.numeric
KINDS = ("qwen2", "qwen2-grouped", "llama", "gpt2")
FINAL_NORMS = ("model.norm.weight", "transformer.ln_f.weight")


def in_order(terms: np.ndarray) -> float:
    """A float32 sum, one term after another."""
    return float(np.cumsum(terms, dtype=np.float32)[-1])


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 10_000), st.booleans())
def test_a_sum_in_any_order_is_within_the_bound(count: int, seed: int, one_sign: bool) -> None:
    rng = np.random.default_rng(seed)
    left, right = rng.standard_normal((2, count)).astype(np.float32)
    terms = np.abs(left * right) if one_sign else left * right
    scale = math.fsum(terms) if one_sign else float(np.linalg.norm(terms))
    assert_close(in_order(terms), in_order(terms[rng.permutation(count)]), terms=count, scale=scale)
    assert_close(in_order(terms), math.fsum(terms), terms=count, scale=scale)


def test_a_fault_in_a_sum_is_beyond_the_bound() -> None:
    terms = np.random.default_rng(0).random(400).astype(np.float32)
    for fault in (terms[1:], np.append(terms, terms[0]), terms * (1 + 1e-4)):
        assert error_ratio(in_order(fault), in_order(terms), terms=400) > 5


def test_what_cannot_be_compared_is_never_close() -> None:
    assert error_ratio([1.0, math.nan], [1.0, 2.0]) == math.inf
    assert error_ratio([math.inf], [1.0]) == math.inf
    for actual, expected in (([1.0], [1.0, 1.0]), ([], [])):
        with pytest.raises(AssertionError):
            assert_close(actual, expected)


def test_the_sensitivity_of_a_sum_is_the_norm_of_its_terms_and_weights_are_put_back() -> None:
    for seed in range(4):
        weight_N = torch.randn(500, generator=torch.Generator().manual_seed(seed))
        before_N = weight_N.clone()
        [scale] = sensitivity(lambda weight_N=weight_N: [weight_N.sum()], [weight_N])
        assert torch.equal(weight_N, before_N)
        assert 0.3 < scale / before_N.norm().item() < 2  # the root mean square of four draws


@pytest.mark.parametrize("kind", KINDS)
def test_faults_in_log_probabilities_are_far_beyond_the_bound(kind: str) -> None:
    policy = model(kind)
    context = tuple(np.random.default_rng(0).integers(5, 400, 20).tolist())
    [one] = HFEngine(policy, codec()).generate([context], seeds=[1], max_tokens=10, temperature=0.7, stop_tags=())
    row = turn_row(context, one.ids)
    rounding = logprob_rounding(policy, *row, 0.7)

    def ratio(found: torch.Tensor) -> float:
        return error_ratio(found, one.logprobs, **rounding)

    ids, mask = row
    assert ratio(row_logprobs(policy, ids, mask, 0.7)) <= 1
    assert ratio(row_logprobs(policy, ids, mask, 1.0)) > 1000, "the temperature is forgotten"
    assert ratio(row_logprobs(policy, ids, mask, 0.701)) > 10, "the temperature is off by a thousandth"
    assert ratio(row_logprobs(policy, ids, [*mask[1:], 0], 0.7)) > 1000, "the mask is shifted by one token"

    def off_by_a_thousandth(weight: torch.Tensor) -> float:
        kept = weight.clone()
        weight.mul_(1 + 1e-3)
        found = ratio(row_logprobs(policy, ids, mask, 0.7))
        weight.copy_(kept)
        return found

    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if weight.any():  # biases are 0
                assert off_by_a_thousandth(weight) > 2, name
        [last_norm] = [weight for name, weight in policy.named_parameters() if name in FINAL_NORMS]
        assert max(off_by_a_thousandth(number) for number in last_norm) > 3, "a single number"
