"""Arms of any shape sample the same number of tokens, and every step about its share."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from tests.trees import random_tree
from turncredit.config.training import TrainingConfig
from turncredit.training.budget import FACTOR, Budget, Quota

POOL = 10_000


def spend(quota: Quota, mean_of_step, spread: float, steps: int = 60, seed: int = 0):
    """The budget after a run whose questions cost gamma-distributed numbers, and what each step spent."""
    rng, budget, spent = np.random.default_rng(seed), Budget(), []
    for step in range(steps):
        costs: list[int] = []
        while count := budget.more_questions(quota, costs, POOL - len(costs)):
            drawn = rng.gamma(spread**-2, mean_of_step(step) * spread**2, count)
            costs += [int(cost) for cost in drawn.clip(quota.least, quota.largest)]
        budget, spent = budget.observe(costs), [*spent, sum(costs)]
    return budget, np.array(spent)


def test_the_cost_of_a_question_by_hand():
    tree = random_tree(0, 2, 3, early=0.5)
    tokens, trajectories = (Quota.of(TrainingConfig.model_validate(settings), (2, 2, 1), 4)
                            for settings in ({"tokens_per_step": 9}, {"trajectories_per_step": 9}))
    assert tokens.cost(tree) == sum(len(turn.sampled_ids) for turn in tree.turns)
    assert trajectories.cost(tree) == len(tree.transcripts)
    assert (tokens.largest, trajectories.least, trajectories.largest) == ((2 + 4 + 4) * 4, 2, 4)


@pytest.mark.parametrize(("cost", "spread", "largest"), [(48, 0.5, 192), (150, 0.3, 800), (300, 0.3, 1500)])
@pytest.mark.parametrize("drift", [1.0, 3.0, 0.3])
def test_every_step_keeps_its_bounds_and_the_run_its_budget_while_costs_drift(cost, spread, largest, drift):
    """From the first step on, without a guess at the cost. Questions of up to a fifth of a step at the end."""
    target = 5000
    for seed in range(10):
        quota = Quota(target, True, 1, largest)
        budget, spent = spend(quota, lambda step: cost * drift ** (step / 60), spread, seed=seed)
        assert budget.spent == spent.sum()
        assert abs(budget.spent / (60 * target) - 1) < 0.05
        assert spent.min() >= target / FACTOR
        assert spent.max() <= target * FACTOR


def test_a_question_that_costs_a_step_is_played_alone():
    _, spent = spend(Quota(2000, True, 1, 9000), lambda step: 3000, 0.1)
    assert ((spent > 1500) & (spent < 4500)).all()  # one question each


def test_a_step_after_an_expensive_one_is_not_starved():
    steady = Budget(steps=1, spent=14_276, questions=2.0, cost=200.0, square=20_200.0)
    assert steady.more_questions(Quota(2000, True, 1, 20_000), [], POOL) > 1  # 1500 of 2000, not nothing


@pytest.mark.parametrize(("branching", "questions"), [((1, 1, 1), 512), ((5, 1, 1), 102), ((16, 1), 32)])
def test_a_fixed_number_of_trajectories_is_one_chunk(branching, questions):
    quota, budget = Quota.of(TrainingConfig(trajectories_per_step=512), branching, 32), Budget()
    assert budget.more_questions(quota, [], POOL) == questions
    assert budget.more_questions(quota, [branching[0]] * questions, POOL - questions) == 0
    for step in range(20):  # what rounding leaves is made up for
        count = budget.more_questions(quota, [], POOL)
        budget = budget.observe([branching[0]] * count)
        assert abs(budget.spent - 512 * (step + 1)) <= branching[0]


def test_leaves_that_early_ends_leave_out_are_made_up_by_questions():
    quota = Quota.of(TrainingConfig(trajectories_per_step=512), (3, 3, 3, 1), 32)
    _, spent = spend(quota, lambda step: 9.0, 0.5)  # 9 of 27 leaves on average
    assert abs(spent.mean() / 512 - 1) < 0.05


def test_a_small_pool_ends_a_step_and_a_budget_comes_back_from_its_file():
    quota = Quota(2000, True, 1, 100)
    assert Budget().more_questions(quota, [], 3) == 3
    assert Budget().more_questions(quota, [10, 10, 10], 0) == 0
    budget = Budget().observe([17, 3]).observe([1, 2, 5])
    assert Budget(**json.loads(json.dumps(asdict(budget)))) == budget
