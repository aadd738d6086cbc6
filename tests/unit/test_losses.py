"""Losses by hand, and the law of the tree: it equals its leaves written out, clipped and off-policy."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.tolerance import assert_close, sensitivity
from tests.trees import random_rewards, random_tree
from turncredit.config.algorithm import Algorithm
from turncredit.config.training import TrainingConfig
from turncredit.credit.base import GroupEstimator, TokenCredit, make_estimator
from turncredit.credit.rows import rows_of
from turncredit.losses import entropy_loss, kl_k3, policy_loss, tree_policy_loss, value_loss
from turncredit.types import Group

pytestmark = pytest.mark.numeric


def test_the_clip_stops_gains_and_not_losses() -> None:
    def gradient(log_ratio: float, advantage: float) -> float:
        logprob = torch.tensor([log_ratio], requires_grad=True)
        loss, clipped = policy_loss(logprob, torch.zeros(1), torch.tensor([advantage]), torch.ones(1),
                                    clip_epsilon=0.2)
        loss.backward()
        assert bool(clipped) == (logprob.grad.item() == 0)
        return -logprob.grad.item()

    assert gradient(0.0, 1.0) == 1
    assert gradient(0.5, 1.0) == 0  # already better than 1 + eps
    assert gradient(-0.5, 1.0) > 0
    assert gradient(-0.5, -1.0) == 0  # already worse than 1 - eps
    assert gradient(0.5, -1.0) < 0


@given(st.lists(st.tuples(st.floats(-1, 1), st.integers(-200, 200).map(lambda n: n / 100)), min_size=1, max_size=8))
def test_the_trees_form_is_the_textbook_minimum(pairs: list[tuple[float, float]]) -> None:
    """Its value, its gradient and its count of clipped tokens, where no leaves share a token."""
    def result(tree: bool) -> tuple[float, Tensor, Tensor]:
        log_ratio, advantage = (torch.tensor(x) for x in zip(*pairs, strict=True))
        log_ratio.requires_grad_()
        weight = torch.full_like(advantage, 1 / len(pairs))
        own = (advantage.clamp(min=0) * weight, advantage.clamp(max=0) * weight) if tree else (advantage, weight)
        loss, clipped = (tree_policy_loss if tree else policy_loss)(log_ratio, torch.zeros(len(pairs)), *own,
                                                                    clip_epsilon=0.2)
        loss.backward()
        return loss.item(), log_ratio.grad, clipped

    (loss, gradient, clipped), (tree_loss, tree_gradient, tree_clipped) = result(tree=False), result(tree=True)
    assert_close(tree_loss, loss, terms=len(pairs), scale=sum(abs(a) for _, a in pairs) * math.e / len(pairs))
    assert_close(tree_gradient, gradient, terms=2)  # products of two
    assert tree_clipped == clipped


class Table(torch.nn.Module):
    """A policy whose token probabilities depend on the whole prefix: hashed bigram features."""

    def __init__(self, seed: int, vocabulary: int = 30) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = torch.nn.Parameter(torch.randn(97, vocabulary, generator=generator, dtype=torch.double))

    def logprob(self, ids: list[int], t: int) -> Tensor:
        bucket = sum((i + 1) * token for i, token in enumerate(ids[:t])) % 97
        return self.weight[bucket].log_softmax(0)[ids[t]]


def objective(model: Table, groups: list[Group], credit: TokenCredit, beta: float, reference: Table) -> Tensor:
    new, old, ref = [], [], []
    for row in rows_of(groups):
        ids, old_all = row.transcript.ids, row.transcript.logprobs
        for t, trained in enumerate(row.loss_mask):
            if trained:
                new.append(model.logprob(ids, t))
                ref.append(reference.logprob(ids, t).detach())
                old.append(old_all[t])
    old_N = torch.tensor(old, dtype=torch.double)
    if credit.signed_sums_N is None:
        loss, _ = policy_loss(torch.stack(new), old_N, credit.advantage_N.double(), credit.weight_N.double(),
                              clip_epsilon=0.2)
    else:
        loss, _ = tree_policy_loss(torch.stack(new), old_N, *(part.double() for part in credit.signed_sums_N),
                                   clip_epsilon=0.2)
    return loss + beta * kl_k3(torch.stack(new), torch.stack(ref), credit.weight_N.double())


def written_out(model: Table, groups: list[Group], estimator: GroupEstimator, rewards, beta: float,
                reference: Table) -> Tensor:
    """Eq. 3 as it stands, on every leaf apart: a shared turn is computed once for each leaf."""
    total = torch.zeros((), dtype=torch.double)
    for group, group_rewards in zip(groups, rewards, strict=True):
        for leaf, advantage_K in zip(group.transcripts, estimator.advantages(group, group_rewards), strict=True):
            ids, old, turn_id, mask = leaf.ids, leaf.logprobs, leaf.turn_id, leaf.loss_mask
            terms = []
            for t, trained in enumerate(mask):
                if trained:
                    new = model.logprob(ids, t)
                    ratio, advantage = (new - old[t]).exp(), advantage_K[turn_id[t]]
                    difference = reference.logprob(ids, t).detach() - new
                    terms.append(torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
                                 - beta * (difference.exp() - difference - 1).clamp(max=10))
            total = total + torch.stack(terms).mean() / len(group.transcripts) / len(groups)
    return -total


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 10_000), st.integers(2, 3), st.integers(2, 4), st.sampled_from([0.0, 0.4]),
       st.sampled_from([0.0, 0.1]), st.sampled_from(["per_turn", "terminal"]))
def test_a_tree_equals_its_leaves_written_out(seed: int, branching: int, turns: int, early: float, beta: float,
                                              placement: str) -> None:
    groups = [random_tree(seed + i, branching, turns, early=early, question=str(i)) for i in range(2)]
    rewards = [random_rewards(seed + i, group) for i, group in enumerate(groups)]
    model, twin, reference = Table(seed), Table(seed), Table(seed + 1)  # old log-probs are random: off-policy, clipped
    estimator = make_estimator(Algorithm.model_validate({
        "estimator": "group", "placement": placement, "content": "full", "rollout": "tree"}),
                               TrainingConfig(alpha=0.7))
    rows = rows_of(groups)
    count = sum(int(row.loss_mask.sum()) for row in rows)
    credit = estimator.credit(groups, rewards, rows, old_logprob_N=torch.zeros(count))

    def compute() -> tuple[Tensor, Tensor]:
        tree = objective(model, groups, credit, beta, reference)
        return tree, torch.autograd.grad(tree, model.weight)[0]

    leaves = written_out(twin, groups, estimator, rewards, beta, reference)
    leaves.backward()
    # all is float64, but the credit is rounded to float32 once
    scales = sensitivity(compute, [*(credit.signed_sums_N or [credit.advantage_N]), credit.weight_N])
    for found, expected, scale in zip(compute(), (leaves, twin.weight.grad), scales, strict=True):
        assert_close(found, expected, scale=scale)


def test_value_loss_by_hand() -> None:
    value, old, target = torch.tensor([1.0, 0.2]), torch.zeros(2), torch.tensor([2.0, 0.0])
    loss = value_loss(value, old, target, torch.tensor([0.5, 0.5]), value_clip=0.5)
    assert_close(loss, 0.5 * (0.5 * (2 - 0.5) ** 2 + 0.5 * 0.2**2), terms=2)


def test_k3_is_zero_at_equality_never_negative_and_close_to_kl() -> None:
    logits, reference = torch.randn(2, 2000, 8, generator=torch.Generator().manual_seed(0)).unbind(0)
    logits, reference = logits[0].log_softmax(0), (logits[0] + 0.1 * reference[0]).log_softmax(0)
    assert kl_k3(logits, logits, torch.ones(8)).item() == 0
    assert kl_k3(logits, reference, torch.ones(8)).item() > 0
    exact = (logits.exp() * (logits - reference)).sum()
    # 3 * 8 numbers are added, p exp(d), -p d and -p: of size 1 in all, they cancel to about 0.01
    assert_close(kl_k3(logits, reference, logits.exp()), exact, terms=24, scale=1.0)


def test_k3_is_bounded_at_10_and_has_no_gradient_beyond() -> None:
    inside = [(d, math.exp(d) - d - 1) for d in (2.0, -10.9)]
    for drift, value in (*inside, (2.7, 10.0), (10.0, 10.0), (-50.0, 10.0)):
        logprob = torch.tensor([-drift], requires_grad=True)
        kl = kl_k3(logprob, torch.zeros(1), torch.ones(1))
        kl.backward()
        assert_close(kl, value, terms=3, scale=10.0)
        assert (logprob.grad.item() == 0) == (value == 10)


def test_entropy_is_rewarded() -> None:
    assert entropy_loss(torch.tensor([1.0, 3.0]), torch.tensor([0.25, 0.75])).item() == -2.5


def test_losses_add_up_over_any_split_and_leave_inputs_alone() -> None:
    inputs = [torch.randn(10, generator=torch.Generator().manual_seed(s)) for s in range(4)]
    before = copy.deepcopy(inputs)
    new, old, advantage, weight = *inputs[:3], torch.full((10,), 0.1)
    whole, _ = policy_loss(new, old, advantage, weight, clip_epsilon=0.2)
    alone = [policy_loss(*(x[i:i + 1] for x in (new, old, advantage, weight)), clip_epsilon=0.2)[0] for i in range(10)]
    size = sum(abs(loss.item()) for loss in alone)
    for cut in (1, 4, 7):
        parts = [policy_loss(new[s], old[s], advantage[s], weight[s], clip_epsilon=0.2)[0]
                 for s in (slice(None, cut), slice(cut, None))]
        assert_close(sum(parts), whole, terms=10, scale=size)
    assert all(torch.equal(a, b) for a, b in zip(inputs, before, strict=True))


def test_an_extreme_ratio_stays_finite() -> None:
    loss, _ = policy_loss(torch.tensor([0.0]), torch.tensor([-200.0]), -torch.ones(1), torch.ones(1), clip_epsilon=0.2)
    assert torch.isfinite(loss)
