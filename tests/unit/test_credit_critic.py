"""GAE, whitening and PPO's credit: each law by hand or against a slow second way of computing it.

Masks, where one is the subject, stand under a drawing: p prompt, s sampled, o observation.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.tolerance import assert_close
from tests.trees import Given, estimator, random_rewards, random_tree, transcript, turn
from turncredit.credit.gae import gae, whiten
from turncredit.credit.rows import rows_of
from turncredit.types import Group

pytestmark = pytest.mark.numeric


def test_gae_by_hand_value_is_before_the_token() -> None:
    reward, value = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.2]])
    advantage, target = gae(reward, value, torch.ones(1, 2), gamma=0.9, lam=0.8)
    last = 1.0 - 0.2
    assert_close(advantage[0], [0.9 * 0.2 - 0.5 + 0.9 * 0.8 * last, last], terms=5)
    assert_close(target[0], advantage[0] + torch.tensor([0.5, 0.2]), terms=2)


@given(st.integers(0, 10_000), st.floats(0.5, 1), st.floats(0.5, 1))
def test_observation_tokens_change_nothing(seed: int, gamma: float, lam: float) -> None:
    generator = torch.Generator().manual_seed(seed)
    reward, value = torch.rand(2, 6, generator=generator), torch.rand(2, 6, generator=generator)
    plain = gae(reward, value, torch.ones(2, 6), gamma=gamma, lam=lam)
    where = torch.rand(11, generator=generator).argsort()[:6].sort().values
    mask, wide_reward, wide_value = (torch.full((2, 11), fill) for fill in (0.0, float("nan"), float("nan")))
    mask[:, where], wide_reward[:, where], wide_value[:, where] = 1, reward, value
    for found, expected in zip(gae(wide_reward, wide_value, mask, gamma=gamma, lam=lam), plain, strict=True):
        assert torch.equal(found[:, where], expected)
        assert not found[:, mask[0] == 0].any()


def test_with_gamma_and_lambda_one_the_advantage_is_future_reward_minus_value() -> None:
    reward, value = torch.tensor([[0.3, 0.0, 0.2, 1.0]]), torch.tensor([[1.0, 2.0, 3.0, 4.0]])
    advantage, target = gae(reward, value, torch.ones(1, 4), gamma=1, lam=1)
    assert_close(target[0], [1.5, 1.2, 1.2, 1.0], terms=12, scale=4.0)  # sums of values up to 4
    assert_close(advantage[0], [0.5, -0.8, -1.8, -3.0], terms=12, scale=4.0)


def test_whitening_runs_over_the_given_tokens_and_survives_silence() -> None:
    assert_close(whiten(torch.tensor([2.0, 4.0, 6.0])).mean(), 0.0, terms=3, scale=2.0)
    assert whiten(torch.full((4,), 3.0)).tolist() == [0, 0, 0, 0]


def critic_credit(placement: str, **settings: object):
    group_a = Group.of_chains([transcript(turn(3, 4, observed=(9, 9)), turn(5), question="a")])
    group_b = Group.of_chains([transcript(turn(6), question="b")])
    groups, rewards = [group_a, group_b], [[Given((0.3, 0.0), 1.0)], [Given((0.0,), -1.0)]]
    return estimator("critic", placement, **settings).credit(
        groups, rewards, rows_of(groups), old_logprob_N=torch.zeros(4), reference_logprob_N=torch.zeros(4),
        value_M=torch.zeros(4))


def test_over_the_whole_response_a_turn_ends_with_its_observation() -> None:
    # tokens:  p p | s s | o o | s        R^I = 0.3 is on the second o, R^O = 1 on the last s
    group = Group.of_chains([transcript(turn(3, 4, observed=(9, 9)), turn(5))])
    value_M = torch.tensor([0.5, 0.4, 0.3, 0.2, 0.1])
    credit = estimator("critic", "per_turn", gae_tokens="response", gae_lambda=0.5, kl_coefficient=0.1).credit(
        [group], [[Given((0.3, 0.0), 1.0)]], rows_of([group]), old_logprob_N=torch.tensor([-1.0, -1.0, -2.0]),
        reference_logprob_N=torch.tensor([-3.0, -1.0, -1.0]), value_M=value_M)
    delta = [-0.1 * 2 + 0.4 - 0.5, 0.3 - 0.4, 0.2 - 0.3, 0.3 + 0.1 - 0.2, 1.0 + 0.1 * 1 - 0.1]
    advantage = [sum(0.5 ** (u - t) * delta[u] for u in range(t, 5)) for t in range(5)]
    assert_close(credit.return_M, torch.tensor(advantage) + value_M, terms=10)
    whitened = (np.array(advantage) - np.mean(advantage)) / np.std(advantage, ddof=1)  # over all five, by n - 1
    assert_close(credit.advantage_N, whitened[[0, 1, 4]], terms=20)
    assert_close(credit.weight_N, [1 / 3] * 3)
    assert_close(credit.value_weight_M, [1 / 5] * 5)


@given(st.integers(0, 10_000))
def test_at_gamma_and_lambda_one_observations_change_no_return_of_a_sampled_token(seed: int) -> None:
    group = Group.of_chains([random_tree(seed, 1, 4).transcripts[0]])
    [row], rewards = rows_of([group]), random_rewards(seed, group)
    count, zero_N = len(row.transcript.ids), torch.zeros(group.sampled_count)
    value_T = torch.rand(count, generator=torch.Generator().manual_seed(seed))
    return_T = {}
    for tokens in ("sampled", "response"):
        mask_T = row.value_mask(tokens)
        credit = estimator("critic", "per_turn", gae_tokens=tokens).credit(
            [group], [rewards], [row], old_logprob_N=zero_N, reference_logprob_N=zero_N, value_M=value_T[mask_T])
        return_T[tokens] = torch.zeros(count)
        return_T[tokens][mask_T] = credit.return_M
    assert_close(return_T["response"][row.loss_mask], return_T["sampled"][row.loss_mask], terms=3 * count, scale=4.0)


def test_per_turn_placement_does_not_credit_a_turn_for_what_came_before_it() -> None:
    assert_close(critic_credit("delayed").return_M, [1.3, 1.3, 1.3, -1], terms=3)
    assert_close(critic_credit("per_turn").return_M, [1.3, 1.3, 1.0, -1], terms=3)
    assert_close(critic_credit("terminal").return_M, [1.0, 1.0, 1.0, -1], terms=3)


def test_the_kl_penalty_is_a_token_reward() -> None:
    group = Group.of_chains([transcript(turn(3, 4))])
    credit = estimator("critic", "terminal", kl_coefficient=0.1).credit(
        [group], [[Given((0.0,), 1.0)]], rows_of([group]), old_logprob_N=torch.tensor([-1.0, -1.0]),
        reference_logprob_N=torch.tensor([-3.0, -1.0]), value_M=torch.zeros(2))
    assert_close(credit.return_M, [1 - 0.1 * 2, 1.0], terms=3)
