"""Credit: each law by hand or against a slow second way of computing it."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trees import Given, random_rewards, random_tree, transcript, turn
from turncredit.config.algorithm import Algorithm
from turncredit.config.training import TrainingConfig
from turncredit.credit import make_estimator, rows_of
from turncredit.credit.gae import gae, whiten
from turncredit.credit.group import group_zscore, turn_advantages
from turncredit.credit.placement import discounted_return, place_on_tokens, place_on_turns
from turncredit.types import Group

REWARDS = st.lists(st.floats(-5, 5), min_size=1, max_size=6)


def estimator(kind: str, placement: str, **settings: object):
    return make_estimator(Algorithm(estimator=kind, placement=placement, content="full"),  # type: ignore[arg-type]
                          TrainingConfig(**settings))  # type: ignore[arg-type]


# --- placement -------------------------------------------------------------------------------------------------

@given(REWARDS, st.floats(-5, 5))
def test_placed_rewards_sum_to_the_given_ones(intermediate: list[float], outcome: float) -> None:
    assert sum(place_on_turns("terminal", intermediate, outcome)) == outcome
    for placement in ("delayed", "per_turn"):
        placed = place_on_turns(placement, intermediate, outcome)  # type: ignore[arg-type]
        assert sum(placed) == pytest.approx(sum(intermediate) + outcome)
        assert len(placed) == len(intermediate)


@given(st.lists(REWARDS, min_size=1, max_size=4), st.integers(0, 9))
def test_token_rewards_keep_the_total_of_each_row(reward_B_K: list[list[float]], seed: int) -> None:
    rng = np.random.default_rng(seed)
    length_B_K = [[int(n) for n in rng.integers(1, 5, len(reward_K))] for reward_K in reward_B_K]
    placed = place_on_tokens(reward_B_K, length_B_K)
    assert placed.sum(1).tolist() == pytest.approx([sum(r) for r in reward_B_K], abs=1e-4)


def test_a_turn_with_reward_zero_is_still_a_turn() -> None:
    assert place_on_tokens([[0.0, 2.0, 0.0]], [[1, 2, 2]]).tolist() == [[0, 0, 2, 0, 0]]


def test_the_return_discounts_from_the_first_turn() -> None:
    assert discounted_return([1.0, 1.0], 0.5) == 0.75  # gamma^1 + gamma^2 (Eq. 2)


# --- group baselines ---------------------------------------------------------------------------------------------

def test_zscore_by_hand_and_its_silent_cases() -> None:
    spread = np.sqrt(3) / 4 + 1e-6
    assert group_zscore([1, 0, 0, 0]) == pytest.approx([0.75 / spread, *3 * [-0.25 / spread]])
    assert group_zscore([3, 1], "sample") == pytest.approx([1 / (np.sqrt(2) + 1e-6), -1 / (np.sqrt(2) + 1e-6)])
    assert group_zscore([0.1 + 0.2, 0.3]).tolist() == [0, 0]  # equal up to rounding is equal
    assert group_zscore([7]).tolist() == [0]


@given(REWARDS, st.floats(-3, 3), st.floats(0.5, 3))
def test_zscore_ignores_shift_and_scale(rewards: list[float], shift: float, scale: float) -> None:
    if np.ptp(rewards) > 1e-2:
        moved = group_zscore(np.asarray(rewards) * scale + shift)
        assert moved == pytest.approx(group_zscore(rewards), abs=1e-3)
    assert group_zscore(rewards).sum() == pytest.approx(0, abs=1e-6)


def test_two_turns_are_equations_5_and_6() -> None:
    intermediate, outcome, alpha = [0.7, 0.2, 0.0], [1.9, 0.3, 0.3], 0.25
    advantages = turn_advantages([[r, 0.0] for r in intermediate], outcome, [[0, 1], [2, 3], [4, 5]], alpha=alpha)
    a_i, a_o = group_zscore(intermediate), group_zscore(outcome)
    assert np.asarray(advantages)[:, 0] == pytest.approx(a_i + alpha * a_o)
    assert np.asarray(advantages)[:, 1] == pytest.approx(a_o)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_general_depth_is_equation_12_written_out(alpha: float) -> None:
    group = random_tree(3, branching=3, turns=4)
    rewards = random_rewards(4, group)
    advantages = turn_advantages([r.intermediate_K for r in rewards], [r.outcome for r in rewards], group.node_L_K,
                                 alpha=alpha)
    outcome = group_zscore([r.outcome for r in rewards])
    horizon = 4
    for leaf, nodes in enumerate(group.node_L_K):
        turn_level = []
        for k in range(horizon - 1):  # compare the leaf's turn k with all turns from the same state
            siblings = sorted({other[k] for other in group.node_L_K if other[:k] == nodes[:k]})
            reward = {other[k]: r.intermediate_K[k] for other, r in zip(group.node_L_K, rewards, strict=True)}
            turn_level.append(group_zscore([reward[s] for s in siblings])[siblings.index(nodes[k])])
        for k in range(horizon):
            expected = sum(alpha ** (m - k) * turn_level[m] for m in range(k, horizon - 1))
            expected += alpha ** (horizon - 1 - k) * outcome[leaf]
            assert advantages[leaf][k] == pytest.approx(expected)


def test_a_branch_that_ends_early_is_compared_where_it_was_branched() -> None:
    # root -> turn 0 (ends), turn 1 -> turn 2: an answering action has R^I 0 and meets its sibling's 0.3
    advantages = turn_advantages([[0.0], [0.3, 0.0]], [1.0, 0.0], [[0], [1, 2]])
    assert advantages[0] == pytest.approx([-1 + 1], abs=1e-4)
    assert advantages[1] == pytest.approx([1 - 1, -1], abs=1e-4)


def test_leaves_that_share_a_turn_must_agree_on_its_reward() -> None:
    with pytest.raises(ValueError, match="two intermediate rewards"):
        turn_advantages([[0.1, 0.0], [0.2, 0.0]], [0.0, 1.0], [[0, 1], [0, 2]])


def test_trees_have_the_papers_number_of_leaves_and_two_turns_are_chains() -> None:
    per_turn = estimator("group", "per_turn", group_size=6, tree_branching=3)
    assert per_turn.branching(4) == (3, 3, 3, 1)
    assert per_turn.branching(2) == (6, 1)  # G^(K-1) = G
    assert estimator("group", "delayed", group_size=6).branching(3) == (6, 1, 1)
    assert estimator("critic", "per_turn").branching(3) == (1, 1, 1)


def test_group_rewards_follow_their_placement() -> None:
    group = Group.of_chains([transcript(turn(3), turn(4)), transcript(turn(5), turn(6))])
    rewards = [Given((0.3, 0.0), 0.0), Given((0.0, 0.0), 0.2)]
    for placement, expected in (("terminal", [-1, 1]), ("delayed", [1, -1])):
        advantages = estimator("group", placement).advantages(group, rewards)
        assert np.asarray(advantages)[:, 0] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("aggregation", ["sequence", "token"])
@pytest.mark.parametrize("placement", ["terminal", "delayed", "per_turn"])
def test_weights_sum_to_one_and_every_loss_token_has_credit(placement: str, aggregation: str) -> None:
    groups = [random_tree(s, 2, 4, early=0.3, question=str(s)) for s in range(3)]
    rewards = [random_rewards(s, g) for s, g in enumerate(groups)]
    rows = rows_of(groups)
    count = sum(sum(row.loss_mask) for row in rows)
    assert count == sum(g.sampled_count for g in groups)
    credit = estimator("group", placement, loss_aggregation=aggregation).credit(
        groups, rewards, rows, old_logprob_N=torch.zeros(count))
    assert len(credit.weight_N) == count
    assert credit.weight_N.sum().item() == pytest.approx(1, abs=1e-5)


def test_a_silent_group_is_counted_and_teaches_nothing() -> None:
    group = Group.of_chains([transcript(turn(3)), transcript(turn(4))])
    credit = estimator("group", "terminal").credit(
        [group], [[Given((0.0,), 1.0), Given((0.0,), 1.0)]], rows_of([group]), old_logprob_N=torch.zeros(2))
    assert credit.zero_std_groups == 1
    assert not credit.positive_N.any()
    assert not credit.negative_N.any()


# --- critic ------------------------------------------------------------------------------------------------------

def test_gae_by_hand_value_is_before_the_token() -> None:
    reward, value = torch.tensor([[0.0, 1.0]]), torch.tensor([[0.5, 0.2]])
    advantage, target = gae(reward, value, torch.ones(1, 2), gamma=0.9, lam=0.8)
    last = 1.0 - 0.2
    assert advantage[0].tolist() == pytest.approx([0.9 * 0.2 - 0.5 + 0.9 * 0.8 * last, last])
    assert target[0].tolist() == pytest.approx((advantage[0] + torch.tensor([0.5, 0.2])).tolist())


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
    assert target[0].tolist() == pytest.approx([1.5, 1.2, 1.2, 1.0])
    assert advantage[0].tolist() == pytest.approx([0.5, -0.8, -1.8, -3.0])


def test_whitening_runs_over_the_given_tokens_and_survives_silence() -> None:
    assert whiten(torch.tensor([2.0, 4.0, 6.0])).mean().item() == pytest.approx(0, abs=1e-6)
    assert whiten(torch.full((4,), 3.0)).tolist() == [0, 0, 0, 0]


def critic_credit(placement: str, **settings: object):
    group_a = Group.of_chains([transcript(turn(3, 4, observed=(9, 9)), turn(5), question="a")])
    group_b = Group.of_chains([transcript(turn(6), question="b")])
    groups, rewards = [group_a, group_b], [[Given((0.3, 0.0), 1.0)], [Given((0.0,), -1.0)]]
    return estimator("critic", placement, **settings).credit(
        groups, rewards, rows_of(groups), old_logprob_N=torch.zeros(4), reference_logprob_N=torch.zeros(4),
        value_N=torch.zeros(4))


def test_per_turn_placement_does_not_credit_a_turn_for_what_came_before_it() -> None:
    assert critic_credit("delayed").return_N.tolist() == pytest.approx([1.3, 1.3, 1.3, -1])
    assert critic_credit("per_turn").return_N.tolist() == pytest.approx([1.3, 1.3, 1.0, -1])
    assert critic_credit("terminal").return_N.tolist() == pytest.approx([1.0, 1.0, 1.0, -1])


def test_the_kl_penalty_is_a_token_reward() -> None:
    group = Group.of_chains([transcript(turn(3, 4))])
    credit = estimator("critic", "terminal", kl_coefficient=0.1).credit(
        [group], [[Given((0.0,), 1.0)]], rows_of([group]), old_logprob_N=torch.tensor([-1.0, -1.0]),
        reference_logprob_N=torch.tensor([-3.0, -1.0]), value_N=torch.zeros(2))
    assert credit.return_N.tolist() == pytest.approx([1 - 0.1 * 2, 1.0])


def test_the_critic_family_refuses_trees() -> None:
    tree = random_tree(0, 2, 3)
    with pytest.raises(ValueError, match="chains, not trees"):
        estimator("critic", "per_turn").credit([tree], [random_rewards(0, tree)], rows_of([tree]),
                                               old_logprob_N=torch.zeros(9), value_N=torch.zeros(9))


@pytest.mark.parametrize("kind", ["group", "critic"])
@pytest.mark.parametrize("placement", ["terminal", "delayed", "per_turn"])
def test_inputs_are_never_changed(kind: str, placement: str) -> None:
    groups = [random_tree(1, 1 if kind == "critic" else 2, 3)]
    rewards = [random_rewards(2, groups[0])]
    rows = rows_of(groups)
    count = sum(sum(row.loss_mask) for row in rows)
    tensors = {name: torch.randn(count) for name in ("old_logprob_N", "reference_logprob_N", "value_N")}
    before = copy.deepcopy((groups, rewards, rows, tensors))
    estimator(kind, placement).credit(groups, rewards, rows, **tensors)
    assert (groups, rewards, rows) == before[:3]
    assert all(torch.equal(tensors[name], before[3][name]) for name in tensors)
