"""Credit: each law by hand or against a slow second way of computing it.

Masks, where one is the subject, stand under a drawing: p prompt, s sampled, o observation.
"""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.tolerance import assert_close
from tests.trees import Given, estimator, random_rewards, random_tree, transcript, turn
from turncredit.config.training import TrainingConfig
from turncredit.credit.base import TokenCredit
from turncredit.credit.grpo import EPSILON, group_zscore
from turncredit.credit.mt_grpo import intermediate_advantages, outcome_advantages, turn_advantages
from turncredit.credit.placement import discounted_return, place_on_tokens, place_on_turns
from turncredit.credit.registry import ESTIMATORS
from turncredit.credit.rloo import leave_one_out
from turncredit.credit.rows import rows_of
from turncredit.losses import policy_loss
from turncredit.rollout.branching import branching_of
from turncredit.types import Group, Turn

pytestmark = pytest.mark.numeric
# by the EPSILON beside the standard deviations, 0.15 of R^I = (0.3, 0) and 0.5 or more of R^O, an advantage is less
SHRUNK = EPSILON / 0.15 + EPSILON / 0.5
REWARDS = st.lists(st.floats(-5, 5), min_size=1, max_size=6)


def mt_grpo(intermediate_L_K, outcome_L, node_L_K, alpha: float = 1.0) -> list[list[float]]:
    """Eq. 10-12 together: ``advantage_L_K``."""
    own = intermediate_advantages(intermediate_L_K, node_L_K)
    return [turn_advantages([own[node] for node in node_K[:-1]], outcome, alpha)
            for node_K, outcome in zip(node_L_K, outcome_advantages(outcome_L), strict=True)]


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
    for placed_T, reward_K in zip(placed, reward_B_K, strict=True):
        assert_close(placed_T.sum(), sum(reward_K), terms=len(placed_T), scale=sum(map(abs, reward_K)))


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
    assert group_zscore([7], single_member="raw") == pytest.approx([7], rel=EPSILON)
    assert group_zscore([7, 7], single_member="raw").tolist() == [0, 0]


@given(REWARDS, st.floats(-3, 3), st.floats(0.5, 3))
def test_zscore_ignores_shift_and_scale(rewards: list[float], shift: float, scale: float) -> None:
    if np.ptp(rewards) > 1e-2:
        moved, plain = group_zscore(np.asarray(rewards) * scale + shift), group_zscore(rewards)
        spread = np.std(rewards) * min(1, scale)  # the EPSILON beside it shrinks a score by EPSILON / spread
        assert moved == pytest.approx(plain, rel=EPSILON / spread, abs=1e-9)
    # each of the scores is a difference of rewards up to 5, rounded in float64, over at least EPSILON
    assert group_zscore(rewards).sum() == pytest.approx(0, abs=len(rewards) * 5 * np.finfo(float).eps / EPSILON)


def test_two_turns_are_equations_5_and_6() -> None:
    intermediate, outcome, alpha = [0.7, 0.2, 0.0], [1.9, 0.3, 0.3], 0.25
    advantages = mt_grpo([[r, 0.0] for r in intermediate], outcome, [[0, 1], [2, 3], [4, 5]], alpha)
    a_i, a_o = group_zscore(intermediate), group_zscore(outcome)
    assert np.asarray(advantages)[:, 0] == pytest.approx(a_i + alpha * a_o)
    assert np.asarray(advantages)[:, 1] == pytest.approx(a_o)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_general_depth_is_equation_12_written_out(alpha: float) -> None:
    group = random_tree(3, branching=3, turns=4)
    rewards = random_rewards(4, group)
    advantages = mt_grpo([r.intermediate_K for r in rewards], [r.outcome for r in rewards], group.node_L_K, alpha)
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


def test_a_turn_that_ends_its_episode_has_the_outcomes_advantage_alone() -> None:
    # root -> turn 0 (ends), turn 1 -> turn 2, turn 3 -> turn 4 (ends), turn 3 -> turn 5 -> turn 6
    nodes = [[0], [1, 2], [3, 4], [3, 5, 6]]
    own = intermediate_advantages([[0.0], [0.3, 0.0], [0.0, 0.0], [0.0, 0.3, 0.0]], nodes)
    assert own == pytest.approx({1: 1.0, 3: -1.0, 5: 0.0}, abs=SHRUNK)  # 5 has no intermediate sibling
    outcome = group_zscore([1.0, 0.0, 0.0, 1.0])
    advantages = mt_grpo([[0.0], [0.3, 0.0], [0.0, 0.0], [0.0, 0.3, 0.0]], [1.0, 0.0, 0.0, 1.0], nodes)
    assert [advantage_K[-1] for advantage_K in advantages] == outcome.tolist()
    assert advantages[1] == pytest.approx([1 - 1, -1], abs=SHRUNK)


@given(st.integers(0, 10_000), st.floats(-3, 3))
def test_an_early_answer_changes_no_siblings_credit_but_through_the_outcome(seed: int, reward: float) -> None:
    """Leaves that end early, and whatever R^I they carry, leave A^I of all intermediate turns as it is."""
    tree = random_tree(seed, 3, 4, early=0.4)
    given_ = [r.intermediate_K for r in random_rewards(seed, tree)]
    changed = [(*r[:-1], reward) for r in given_]
    own = intermediate_advantages(given_, tree.node_L_K)
    assert intermediate_advantages(changed, tree.node_L_K) == own
    assert own.keys() == {node for nodes in tree.node_L_K for node in nodes[:-1]}
    longer = [leaf for leaf, nodes in enumerate(tree.node_L_K) if len(nodes) > 1]
    assert intermediate_advantages([given_[leaf] for leaf in longer], [tree.node_L_K[leaf] for leaf in longer]) == own


def test_trees_have_the_papers_number_of_leaves_and_two_turns_are_chains() -> None:
    training = TrainingConfig(group_size=6, tree_branching=3)
    assert branching_of("tree", 4, training) == (3, 3, 3, 1)
    assert branching_of("tree", 2, training) == (6, 1)  # G^(K-1) = G
    given_ = TrainingConfig(tree_branching=(4, 4))
    assert [branching_of("tree", turns, given_) for turns in (3, 6)] == [(4, 4, 1), (4, 4, 1, 1, 1, 1)]
    with pytest.raises(ValueError, match=r"tree_branching = \[4, 4\]: the last of 2 turns .* its number is 1"):
        branching_of("tree", 2, given_)
    with pytest.raises(ValueError, match=r"tree_branching = \[4, 4\]: 2 numbers for 1 turns"):
        branching_of("tree", 1, given_)
    assert branching_of("chains", 3, training) == (6, 1, 1)
    assert branching_of("single", 3, training) == (1, 1, 1)
    with pytest.raises(ValueError, match="unknown rollout 'bush'"):
        branching_of("bush", 3, training)  # type: ignore[arg-type]


def test_over_chains_only_first_turns_have_siblings() -> None:
    """Per-turn credit over plain chains, for any K: later turns get the outcome's advantage alone."""
    group = Group.of_chains([transcript(turn(3), turn(4), turn(5)), transcript(turn(6), turn(7), turn(8))])
    rewards = [Given((0.3, 0.9, 0.0), 0.0), Given((0.0, 0.1, 0.0), 1.0)]
    first, second = estimator("group", "per_turn", "chains").advantages(group, rewards)
    assert first == pytest.approx([1 - 1, -1, -1], abs=SHRUNK)
    assert second == pytest.approx([-1 + 1, 1, 1], abs=SHRUNK)


@pytest.mark.parametrize("placement", ["terminal", "delayed"])
def test_a_tree_goes_with_any_placement(placement: str) -> None:
    """Trajectory groups over a tree: all leaves of the question are compared by their returns."""
    tree = random_tree(5, 2, 3)
    rewards = random_rewards(6, tree)
    returns = [r.outcome + (sum(r.intermediate_K) if placement == "delayed" else 0) for r in rewards]
    advantages = estimator("group", placement, "tree").advantages(tree, rewards)
    for advantage_K, expected in zip(advantages, group_zscore(returns).tolist(), strict=True):
        assert advantage_K == pytest.approx([expected] * 3)


def test_rloo_by_hand() -> None:
    assert leave_one_out([2.0, 0.0, 1.0]).tolist() == [1.5, -1.5, 0.0]
    assert leave_one_out([7.0]).tolist() == [0.0]
    group = Group.of_chains([transcript(turn(3), turn(4)), transcript(turn(5), turn(6))])
    rewards = [Given((0.3, 0.0), 0.0), Given((0.0, 0.0), 0.2)]
    assert estimator("rloo", "terminal").advantages(group, rewards) == [[-0.2, -0.2], [0.2, 0.2]]
    assert np.allclose(estimator("rloo", "delayed").advantages(group, rewards), [[0.1, 0.1], [-0.1, -0.1]])


@given(REWARDS)
def test_rloo_is_the_deviation_from_the_mean_times_g_over_g_minus_1(rewards: list[float]) -> None:
    if len(rewards) > 1:
        scaled = (np.asarray(rewards) - np.mean(rewards)) * len(rewards) / (len(rewards) - 1)
        assert leave_one_out(rewards) == pytest.approx(scaled, abs=1e-9)
    assert leave_one_out(rewards).sum() == pytest.approx(0, abs=1e-9)


def test_group_rewards_follow_their_placement() -> None:
    group = Group.of_chains([transcript(turn(3), turn(4)), transcript(turn(5), turn(6))])
    rewards = [Given((0.3, 0.0), 0.0), Given((0.0, 0.0), 0.2)]
    for placement, expected in (("terminal", [-1, 1]), ("delayed", [1, -1])):
        advantages = estimator("group", placement).advantages(group, rewards)
        assert np.asarray(advantages)[:, 0] == pytest.approx(expected, rel=EPSILON / 0.05)  # the least deviation


@pytest.mark.parametrize("aggregation", ["sequence", "token"])
@pytest.mark.parametrize("placement", ["terminal", "delayed", "per_turn"])
def test_weights_sum_to_one_and_every_loss_token_has_credit(placement: str, aggregation: str) -> None:
    groups = [random_tree(s, 2, 4, early=0.3, question=str(s)) for s in range(3)]
    rewards = [random_rewards(s, g) for s, g in enumerate(groups)]
    rows = rows_of(groups)
    count = sum(int(row.loss_mask.sum()) for row in rows)
    assert count == sum(g.sampled_count for g in groups)
    credit = estimator("group", placement, loss_aggregation=aggregation).credit(
        groups, rewards, rows, old_logprob_N=torch.zeros(count))
    assert len(credit.weight_N) == count
    assert_close(credit.weight_N.sum(), 1.0, terms=count)


def test_a_silent_group_is_counted_and_teaches_nothing() -> None:
    group = Group.of_chains([transcript(turn(3)), transcript(turn(4))])
    credit = estimator("group", "terminal").credit(
        [group], [[Given((0.0,), 1.0), Given((0.0,), 1.0)]], rows_of([group]), old_logprob_N=torch.zeros(2))
    assert credit.zero_std_groups == 1
    assert not credit.advantage_N.any()
    assert credit.signed_sums_N is None


# --- rows and masks ----------------------------------------------------------------------------------------------

def test_a_shared_turn_is_trained_in_the_first_of_its_rows() -> None:
    # leaf 0:  p p | s s | o | s        leaf 1:  p p | s s | o | s s s
    # node:          0         1        node:          0         2
    first = turn(3, 4, observed=(9,))
    group = Group((transcript(first, turn(5)), transcript(first, turn(6, 7, 8))), ((0, 1), (0, 2)))
    one, two = rows_of([group])
    assert one.loss_mask.astype(int).tolist() == [0, 0, 1, 1, 0, 1]
    assert two.loss_mask.astype(int).tolist() == [0, 0, 0, 0, 0, 1, 1, 1]
    assert one.turn_N.tolist() == [0, 0, 1]
    assert two.turn_N.tolist() == [1, 1, 1]
    assert one.transcript.turn_id.tolist() == [-1, -1, 0, 0, 0, 1]


def test_each_token_gets_the_credit_of_its_own_turn() -> None:
    # tokens:     p p | s s | o o | s        p p | s | s s
    # advantage:        2 2         1             -2  -1 -1
    chains = Group.of_chains([transcript(turn(3, 4, observed=(9, 9)), turn(5)), transcript(turn(6), turn(7, 8))])
    rewards = [Given((0.3, 0.0), 1.0), Given((0.0, 0.0), -1.0)]
    credit = estimator("group", "per_turn").credit([chains], [rewards], rows_of([chains]), old_logprob_N=torch.zeros(6))
    assert credit.advantage_N.tolist() == pytest.approx([2, 2, 1, -2, -1, -1], abs=SHRUNK)
    assert_close(credit.weight_N, [1 / 6] * 6)


# --- what follows from the equations -----------------------------------------------------------------------------

@pytest.mark.parametrize("gae_tokens", ["sampled", "response"])
@given(st.integers(0, 10_000))
def test_with_an_exact_critic_delayed_and_per_turn_rewards_have_the_same_advantages(gae_tokens: str, seed: int) -> None:
    """gamma = lambda = 1: what V already knows of earlier turns' rewards cancels what the delay adds.

    Delayed, the value of a state includes the rewards already earned, which the exact critic knows.
    """
    rng = np.random.default_rng(seed)
    group = Group.of_chains([random_tree(seed, 1, 3).transcripts[0]])
    [reward], [row] = random_rewards(seed, group), rows_of([group])
    turns = row.transcript.turn_id[row.value_mask(gae_tokens)]
    future_M = torch.tensor(rng.normal(size=len(turns))).float()  # the expected reward to come: any numbers
    earned_M = torch.tensor([sum(reward.intermediate_K[:k]) for k in turns])
    zero_N = torch.zeros(group.sampled_count)
    delayed, per_turn = (
        estimator("critic", placement, gae_tokens=gae_tokens).credit(
            [group], [[reward]], [row], old_logprob_N=zero_N, reference_logprob_N=zero_N, value_M=value_M)
        for placement, value_M in (("delayed", future_M + earned_M), ("per_turn", future_M)))
    size = sum(map(abs, reward.intermediate_K)) + abs(reward.outcome) + float(future_M.abs().max())
    assert_close(delayed.return_M - earned_M, per_turn.return_M, terms=20, scale=size)
    # whitening divides the advantages, and their rounding, by their standard deviation
    spread = float((per_turn.return_M - future_M).std(correction=0)) if len(turns) > 1 else 1.0
    assert_close(delayed.advantage_N, per_turn.advantage_N, terms=40, scale=size * (1 + size / spread) / spread)


def test_trajectory_groups_cannot_tell_which_turn_earned_the_reward() -> None:
    """A group has no critic that could know earlier rewards: it sees a trajectory's total only."""
    early, late = Given((0.3, 0.0, 0.0), 0.0), Given((0.0, 0.3, 0.0), 0.0)
    group = Group.of_chains([transcript(turn(3), turn(4), turn(5)), transcript(turn(6), turn(7), turn(8))])
    assert estimator("group", "delayed").advantages(group, [early, late]) == [[0, 0, 0], [0, 0, 0]]
    per_turn = estimator("group", "per_turn").advantages(group, [early, late])
    assert per_turn[0][0] > 0 > per_turn[1][0]


@pytest.mark.parametrize("word", ["group", "critic"])
def test_claim_19_an_outcome_only_episode_of_k_turns_is_one_turn(word: str) -> None:
    """The same tokens in three turns and in one have the same advantages and the same gradient (Eq. 2 = Eq. 1)."""
    # three turns:  p p | s s | s | s s        one turn:  p p | s s s s s
    def credit_of(*turns: Turn):
        group = Group.of_chains([transcript(*turns), transcript(turn(9, 9))])
        rewards = [Given((0.0,) * len(turns), 1.0), Given((0.0,), 0.0)]
        rows = rows_of([group])
        return rows, estimator(word, "terminal").credit(
            [group], [rewards], rows, old_logprob_N=torch.full((7,), -1.0), reference_logprob_N=torch.full((7,), -2.0),
            value_M=torch.linspace(0, 1, 7))

    def gradient(credit: TokenCredit) -> torch.Tensor:
        logprob_N = torch.linspace(-1.5, -0.5, 7, requires_grad=True)
        loss, _ = policy_loss(logprob_N, torch.full((7,), -1.0), credit.advantage_N, credit.weight_N, clip_epsilon=0.2)
        loss.backward()
        return logprob_N.grad

    (many_rows, many), (one_row, one) = credit_of(turn(3, 4), turn(5), turn(6, 7)), credit_of(turn(3, 4, 5, 6, 7))
    assert [row.transcript.ids for row in many_rows] == [row.transcript.ids for row in one_row]
    assert torch.equal(many.advantage_N, one.advantage_N)
    assert torch.equal(gradient(many), gradient(one))


@pytest.mark.parametrize(("word", "placement"), [
    (word, placement) for word, placements in ESTIMATORS.items() for placement in placements])
def test_inputs_are_never_changed(word: str, placement: str) -> None:
    groups = [random_tree(1, 1 if word == "critic" else 2, 3)]
    rewards = [random_rewards(2, groups[0])]
    rows = rows_of(groups)
    count = sum(int(row.loss_mask.sum()) for row in rows)
    tensors = {name: torch.randn(count) for name in ("old_logprob_N", "reference_logprob_N", "value_M")}
    before = copy.deepcopy((groups, rewards, rows, tensors))
    estimator(word, placement).credit(groups, rewards, rows, **tensors)
    assert (groups, rewards, rows) == before[:3]
    assert all(torch.equal(tensors[name], before[3][name]) for name in tensors)
