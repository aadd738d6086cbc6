"""Any split of a batch has the same gradient, and the ratio starts at 1."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models import sampled_by, tiny_policy
from tests.tolerance import assert_close, error_ratio, longest_sum, sensitivity
from tests.trees import random_rewards, random_tree
from turncredit.config.algorithm import Algorithm
from turncredit.config.training import TrainingConfig
from turncredit.credit.base import TokenCredit, make_estimator
from turncredit.credit.rows import rows_of
from turncredit.policy.model import Critic
from turncredit.training.batch import Batch
from turncredit.training.learner import Learner
from turncredit.types import Group

pytestmark = pytest.mark.numeric
GROUP = Algorithm(estimator="group", placement="per_turn", content="full", rollout="tree")
CRITIC = Algorithm(estimator="critic", placement="per_turn", content="full", rollout="single")
# a plain gradient step of size 1: the change of the weights is the gradient
TRAINING = TrainingConfig(minibatches=1, max_grad_norm=1e9, warmup_steps=0, critic_warmup_steps=0, kl_coefficient=0.1,
                          entropy_coefficient=0.05)


def batch_of(algorithm: Algorithm, training: TrainingConfig, seed: int = 0):
    policy, reference = tiny_policy(seed=seed), tiny_policy(seed=seed + 1)
    if algorithm.estimator == "group":
        groups = [random_tree(seed + i, 2, 3, early=0.2, question=f"q{i}") for i in range(3)]
    else:
        groups = [Group.of_chains([random_tree(seed + i, 2, 3, question=f"q{i}").transcripts[0]]) for i in range(8)]
    groups = sampled_by(policy, groups, training.temperature)
    learner = Learner(policy, Critic(policy) if algorithm.estimator == "critic" else None, reference, training)
    learner.policy_optimizer = learner.accelerator.prepare(torch.optim.SGD(learner.policy.parameters()))
    if learner.critic is not None:
        learner.critic_optimizer = learner.accelerator.prepare(torch.optim.SGD(learner.critic.parameters()))
    rows = rows_of(groups)
    batch = Batch.of(rows, training.gae_tokens)
    values = learner.values(batch)
    reference_N = learner.reference_logprobs(batch)
    estimator = make_estimator(algorithm, training)
    credit = estimator.credit(groups, [random_rewards(seed, group) for group in groups], rows,
                              old_logprob_N=batch.old_logprob_N, reference_logprob_N=reference_N, value_M=values)
    return learner, batch, credit, dict(
        step=0, seed=0, kl_in_loss=not estimator.kl_in_reward, reference_logprob_N=reference_N, old_value_M=values)


def gradient(learner: Learner, batch: Batch, credit: TokenCredit, given: dict) -> torch.Tensor:
    """The gradient as the change of all weights by a step of learning rate 1."""
    before = [parameter.detach().double().clone() for parameter in parameters(learner)]
    learner.update(batch, credit, **given)
    return torch.cat([(old - new.detach().double()).flatten()
                      for old, new in zip(before, parameters(learner), strict=True)])


def parameters(learner: Learner) -> list[torch.nn.Parameter]:
    return [p for model in (learner.policy, learner.critic) if model is not None for p in model.parameters()]


def rounding(learner: Learner, batch: Batch, credit: TokenCredit, given: dict) -> dict[str, Any]:
    """``terms`` and ``scale`` of the gradient, for ``assert_close``; the backward pass sums over all tokens."""
    [scale] = sensitivity(lambda: [gradient(learner, batch, credit, given)], parameters(learner))
    return {"terms": longest_sum(learner.policy, sum(map(len, batch.ids_R))), "scale": scale}


@pytest.mark.parametrize(("algorithm", "gae_tokens"), [(GROUP, "sampled"), (CRITIC, "sampled"), (CRITIC, "response")])
def test_1x8_2x4_8x1_and_3_plus_5_give_the_same_gradient(algorithm, gae_tokens, monkeypatch):
    rate = {"learning_rate": 1.0, "critic_learning_rate": 1.0, "gae_tokens": gae_tokens}
    learner, batch, credit, given_ = batch_of(algorithm, TRAINING.model_copy(update=rate))
    start = copy.deepcopy({name: value for name, value in learner.policy.state_dict().items()})
    critic = None if learner.critic is None else copy.deepcopy(learner.critic.state_dict())
    rows = batch.trained
    allowed = rounding(learner, batch, credit, given_)
    found = []
    for sizes in ([len(rows)], [2] * len(rows), [4] * len(rows), [1] * len(rows), [3, len(rows)]):
        def split(self, chosen, most_tokens, pad_id=0, sizes=sizes):
            packs, rest = [], list(chosen)
            for size in sizes:
                if rest:
                    packs.append(self._pad(rest[:size], pad_id))
                    rest = rest[size:]
            return packs
        monkeypatch.setattr(Batch, "micro_batches", split)
        learner.policy.load_state_dict(start)
        if learner.critic is not None and critic is not None:
            learner.critic.load_state_dict(critic)
        found.append(gradient(learner, batch, credit, given_))
    assert found[0].abs().max() > 1e-3
    for other in found[1:]:
        assert_close(other, found[0], **allowed)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 200))
def test_the_limit_of_tokens_changes_no_weight(seed, most_tokens):
    packed, whole = (batch_of(GROUP, TRAINING.model_copy(update={"micro_batch_tokens": limit, "learning_rate": 1.0}),
                              seed) for limit in (most_tokens, 100_000))
    allowed = rounding(*whole)
    assert_close(gradient(*packed), gradient(*whole), **allowed)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("algorithm", [GROUP, CRITIC], ids=["tree", "critic"])
def test_the_ratio_is_1_before_the_first_update(algorithm, temperature):
    learner, batch, *_ = batch_of(algorithm, TRAINING.model_copy(update={"temperature": temperature}))
    for micro in batch.micro_batches(batch.trained, 60):
        def compute(micro=micro) -> list[torch.Tensor]:
            return [learner._logprobs(learner.scorer, micro)[0]]

        [logprob_N], [scale] = compute(), sensitivity(compute, learner.policy.parameters())
        old_N = batch.old_logprob_N[micro.flat_N]
        # the ratio's error is that of the log-probabilities, which are rounded themselves
        assert_close((logprob_N - old_N).exp(), torch.ones_like(old_N), scale=scale + old_N.abs().max().item(),
                     terms=longest_sum(learner.policy, micro.ids_B_T.shape[1]))


def test_weight_decay_shrinks_the_weights_of_policy_and_critic():
    policy = tiny_policy(seed=0)
    before = copy.deepcopy(policy.state_dict())
    settings = TRAINING.model_copy(update={"weight_decay": 0.5, "learning_rate": 0.1, "critic_learning_rate": 0.2})
    learner = Learner(policy, Critic(policy), None, settings)
    for optimizer, model in ((learner.policy_optimizer, learner.policy), (learner.critic_optimizer, learner.critic)):
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    for name, weight in learner.policy.state_dict().items():
        assert_close(weight, before[name] * (1 - 0.1 * 0.5), terms=2, scale=float(before[name].abs().max()))
    for name, weight in learner.critic.backbone.state_dict().items():
        assert_close(weight, before[f"model.{name}"] * (1 - 0.2 * 0.5), terms=2, scale=float(weight.abs().max()) * 2)


def test_another_temperature_would_be_noticed():
    learner, batch, credit, given_ = batch_of(GROUP, TRAINING)
    learner.settings = TRAINING.model_copy(update={"temperature": 0.7})
    assert learner.update(batch, credit, **given_)["sampler_trainer_kl"] > 0.015


def test_a_token_whose_credit_is_off_by_a_thousandth_would_be_noticed():
    settings = TRAINING.model_copy(update={"learning_rate": 1.0})
    expected = gradient(*batch_of(GROUP, settings))
    learner, batch, credit, given_ = batch_of(GROUP, settings)
    allowed = rounding(learner, batch, credit, given_)
    positive_N, negative_N = credit.signed_sums_N
    positive_N = positive_N.clone()
    positive_N[positive_N.argmax()] *= 1 + 1e-3
    found = gradient(learner, batch, replace(credit, signed_sums_N=(positive_N, negative_N)), given_)
    assert error_ratio(found, expected, **allowed) > 2
