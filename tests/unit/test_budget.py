"""Arms of any shape sample the same number of tokens."""

import numpy as np
import pytest

from tests.trees import transcript, turn
from turncredit.training.budget import TokenBudget, tokens_per_question


def test_cost_of_a_tree_by_hand():
    # turns of 2, 3 and 1 tokens; branching 2, 2, 1 samples them 2, 4 and 4 times
    episode = transcript(turn(5, 5), turn(5, 5, 5), turn(5))
    assert tokens_per_question((2, 2, 1), [episode]) == 2 * 2 + 4 * 3 + 4 * 1
    assert tokens_per_question((1, 1, 1), [episode, transcript(turn(5, 5))]) == 4.0


@pytest.mark.parametrize(("cost", "spread"), [(48, 12), (380, 90), (900, 300)])
@pytest.mark.parametrize("drift", [1.0, 3.0, 0.3])
def test_spending_stays_within_ten_percent_while_costs_drift(cost, spread, drift):
    rng, steps = np.random.default_rng(0), 60
    budget = TokenBudget(2000, cost * 0.6)  # a poor first guess
    for step in range(steps):
        questions = budget.question_count(most=1000)
        now = cost * drift ** (step / steps)
        tokens = int(sum(max(1.0, rng.normal(now, spread)) for _ in range(questions)))
        budget = budget.observe(questions, tokens)
    assert abs(budget.spent / (steps * 2000) - 1) < 0.1


def test_at_least_one_question_and_at_most_the_pool():
    assert TokenBudget(2000, 10.0, steps=1, spent=100_000).question_count(most=50) == 1
    assert TokenBudget(2000, 10.0).question_count(most=50) == 50
