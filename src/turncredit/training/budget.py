"""Questions per training step, chosen so that all arms sample equally many tokens or trajectories."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from turncredit.types import Transcript


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """Keeps the number of sampled tokens near ``step * tokens_per_step``; immutable.

    Attributes:
        tokens_per_step: target of sampled tokens (shared turns counted once).
        tokens_per_question: moving average.
        steps: observed steps.
        spent: tokens sampled in these steps.
    """

    tokens_per_step: int
    tokens_per_question: float
    steps: int = 0
    spent: int = 0

    def questions(self, most: int) -> int:
        """Return the questions of the next step, 1 to ``most``; it compensates the error of earlier steps.

        >>> TokenBudget(2000, 100.0).questions(500), TokenBudget(2000, 100.0, steps=1, spent=2500).questions(500)
        (20, 15)
        """
        left = self.tokens_per_step * (self.steps + 1) - self.spent
        return min(max(round(left / self.tokens_per_question), 1), most)

    def observe(self, questions: int, tokens: int, decay: float = 0.7) -> TokenBudget:
        """Return the budget after a step that sampled ``tokens`` tokens for ``questions`` questions."""
        average = decay * self.tokens_per_question + (1 - decay) * tokens / questions
        return replace(self, tokens_per_question=average, steps=self.steps + 1, spent=self.spent + tokens)


def questions_of(trajectories: int | None, branching: Sequence[int], budget: TokenBudget, most: int) -> int:
    """Return the questions of the next step, 1 to ``most``.

    Args:
        trajectories: of a step, counting each leaf of a tree; None: use the token budget.
        branching: actions sampled from each state, for every turn.
        budget: the token budget.
        most: the size of an epoch.

    >>> [questions_of(512, b, TokenBudget(1, 1.0), 1000) for b in ((1, 1, 1), (5, 1, 1), (3, 3, 1))]
    [512, 102, 57]
    """
    if trajectories is None:
        return budget.questions(most)
    return min(max(round(trajectories / math.prod(branching)), 1), most)


def tokens_per_question(branching: Sequence[int], transcripts: Sequence[Transcript]) -> float:
    """Estimate the sampled tokens of one question from episodes without branching.

    Turn k is sampled branching_1 * ... * branching_k times in each episode that reaches it.

    Args:
        branching: actions sampled from each state, for every turn.
        transcripts: single episodes of the same policy (the validation before training).
    """
    copies_K = [math.prod(branching[:k + 1]) for k in range(len(branching))]
    total = sum(copies * len(turn.sampled_ids) for transcript in transcripts
                for copies, turn in zip(copies_K, transcript.turns, strict=False))
    return max(total / len(transcripts), 1.0)
