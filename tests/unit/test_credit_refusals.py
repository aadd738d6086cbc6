"""Credit refuses rewards that do not fit, unknown words, and rollouts that an estimator does not accept."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError

from tests.trees import Given, random_rewards, random_tree, transcript, turn
from tests.unit.test_credit import estimator
from turncredit.credit.base import leaf_weights
from turncredit.credit.gae import whiten
from turncredit.credit.mt_grpo import intermediate_advantages
from turncredit.credit.placement import place_on_tokens, place_on_turns, trajectory_return
from turncredit.credit.rloo import leave_one_out
from turncredit.credit.rows import rows_of
from turncredit.types import Group


@pytest.mark.parametrize(("reward_B_K", "length_B_K"), [
    ([[1.0]], [[2, 3]]),  # one reward for two turns: it must not be paid twice
    ([[1.0, 2.0, 3.0]], [[2, 3]]),  # one too many: it must not be dropped
    ([[1.0], [1.0, 2.0]], [[2], [3]]), ([[1.0, 2.0]], [[2, 0]])])
def test_rewards_that_do_not_fit_their_turns_are_refused(reward_B_K, length_B_K) -> None:
    with pytest.raises(ValueError, match="each turn has one reward"):
        place_on_tokens(reward_B_K, length_B_K)


def test_unknown_words_are_errors_and_no_default() -> None:
    with pytest.raises(ValueError, match="unknown placement 'late'"):
        place_on_turns("late", [0.3], 1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not 'per_turn'"):
        trajectory_return("per_turn", [0.3], 1.0, 1.0)
    with pytest.raises(ValueError, match="unknown loss aggregation 'sum'"):
        leaf_weights([random_tree(0, 2, 2)], "sum")


def test_leaves_that_share_a_turn_must_agree_on_its_reward() -> None:
    with pytest.raises(ValueError, match="two intermediate rewards"):
        intermediate_advantages([[0.1, 0.0], [0.2, 0.0]], [[0, 1], [0, 2]])


def test_an_estimator_refuses_a_rollout_that_it_cannot_use() -> None:
    with pytest.raises(ValidationError, match="rollout = 'tree': estimator 'critic' accepts single, chains"):
        estimator("critic", "per_turn", "tree")
    for word in ("group", "rloo"):
        with pytest.raises(ValidationError, match=f"rollout = 'single': estimator '{word}' accepts chains, tree"):
            estimator(word, "terminal", "single")
    with pytest.raises(ValidationError, match="estimator 'rloo' accepts terminal, delayed"):
        estimator("rloo", "per_turn")
    with pytest.raises(ValidationError, match="no such estimator; did you mean 'critic'"):
        estimator("critik", "per_turn")
    tree = random_tree(0, 2, 3)
    with pytest.raises(ValueError, match="chains, not trees"):
        estimator("critic", "per_turn").credit([tree], [random_rewards(0, tree)], rows_of([tree]),
                                               old_logprob_N=torch.zeros(9), reference_logprob_N=torch.zeros(9),
                                               value_M=torch.zeros(9))


@pytest.mark.parametrize("word", ["group", "critic", "rloo"])
@pytest.mark.parametrize(("reward", "says"), [
    (Given((0.3,), 1.0), "1 intermediate rewards for 2 turns"), (Given((0.3, 0.0, 0.0), 1.0), "3 intermediate rewards"),
    (Given((float("nan"), 0.0), 1.0), "not finite"), (Given((0.3, 0.0), float("inf")), "not finite")])
def test_rewards_that_do_not_fit_an_episode_are_never_paid(word: str, reward: Given, says: str) -> None:
    group = Group.of_chains([transcript(turn(3), turn(4)), transcript(turn(5), turn(6))])
    zeros = torch.zeros(4)
    for rewards, expected in (([reward, Given((0.0, 0.0), 0.0)], says), ([reward], "each leaf has one")):
        with pytest.raises(ValueError, match=expected):
            estimator(word, "delayed").credit([group], [rewards], rows_of([group]), old_logprob_N=zeros,
                                              reference_logprob_N=zeros, value_M=zeros)


def test_leaves_that_disagree_on_a_shared_turn_are_refused_by_every_estimator() -> None:
    tree = Group((transcript(turn(3), turn(4)), transcript(turn(3), turn(5))), ((0, 1), (0, 2)))
    for word, placement in (("group", "terminal"), ("group", "per_turn"), ("rloo", "delayed")):
        with pytest.raises(ValueError, match="turn 0 has two intermediate rewards"):
            estimator(word, placement, "tree").credit([tree], [[Given((0.1, 0.0), 0.0), Given((0.2, 0.0), 1.0)]],
                                                      rows_of([tree]), old_logprob_N=torch.zeros(3))


def test_nan_is_never_whitened_away_and_equal_returns_are_exactly_zero() -> None:
    assert torch.isnan(whiten(torch.tensor([float("nan"), 1.0]))).all()
    assert leave_one_out([0.1] * 3).tolist() == [0, 0, 0]
    assert leave_one_out([0.1 + 0.2, 0.3]).tolist() == [0, 0]


def test_ppo_with_a_kl_coefficient_needs_the_reference() -> None:
    group = Group.of_chains([transcript(turn(3))])
    with pytest.raises(ValueError, match="needs reference_logprob_N"):
        estimator("critic", "terminal").credit([group], [[Given((0.0,), 1.0)]], rows_of([group]),
                                               old_logprob_N=torch.zeros(1), value_M=torch.zeros(1))
