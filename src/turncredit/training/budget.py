"""Questions per training step, chosen so that all arms sample equally many tokens or trajectories."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from turncredit.types import Transcript

_DECAY = 0.7  # weight of the earlier steps in the moving average


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """Keeps the number of sampled tokens near ``step * tokens_per_step``; immutable.

    Attributes:
        tokens_per_step: target of sampled tokens (shared turns counted once).
        tokens_per_question: moving average of the tokens that a question costs.
        steps: observed steps.
        spent: tokens sampled in these steps.
    """

    tokens_per_step: int
    tokens_per_question: float
    steps: int = 0
    spent: int = 0

    def question_count(self, most: int) -> int:
        """Return the number of questions of the next step, 1 to ``most``; corrects the error of earlier steps.

        >>> TokenBudget(2000, 100.0).question_count(500)
        20
        >>> TokenBudget(2000, 100.0, steps=1, spent=2500).question_count(500)
        15
        """
        left = self.tokens_per_step * (self.steps + 1) - self.spent
        return min(max(round(left / self.tokens_per_question), 1), most)

    def observe(self, questions: int, tokens: int) -> TokenBudget:
        """Return the budget after a step that sampled ``tokens`` tokens for ``questions`` questions."""
        average = _DECAY * self.tokens_per_question + (1 - _DECAY) * tokens / questions
        return replace(self, tokens_per_question=average, steps=self.steps + 1, spent=self.spent + tokens)


def question_count(trajectories: int | None, branching: Sequence[int], budget: TokenBudget, most: int) -> int:
    """Return the number of questions of the next step, 1 to ``most``.

    Args:
        trajectories: number per step, each leaf of a tree counted; None: use the token budget.
        branching: actions sampled from each state, for every turn.
        budget: used if ``trajectories`` is None.
        most: number of training questions (one epoch).

    >>> [question_count(512, b, TokenBudget(1, 1.0), 1000) for b in ((1, 1, 1), (5, 1, 1), (3, 3, 1))]
    [512, 102, 57]
    """
    if trajectories is None:
        return budget.question_count(most)
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
