"""Chooses the number of questions of each training step, so that all arms sample equally many tokens or trajectories.

The cost of a question (its tokens or trajectories) is unknown before it is sampled. So a step plays questions in
chunks and ends near its quota. The size of a chunk follows from the costs of earlier questions; once they are known,
one chunk is usually enough. The first step measures costs on its own first chunks, and trains on these too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from turncredit.config.training import TrainingConfig
from turncredit.rollout.branching import copies_of
from turncredit.types import Group

FACTOR = 1.5  # a step samples between target / 1.5 and 1.5 * target
_CORRECTION = 0.25  # largest part of the target by which a step corrects the error of earlier steps
_TOLERANCE = 0.1  # a step ends when it lacks less than this part of the target; the next step makes up for it
_DECAY = 0.7  # weight of the earlier steps in the statistics of costs
_DEVIATIONS = 2.0  # standard errors between a chunk's expected cost and the limit
_FIRST = 4  # questions of the first chunk
_GROWTH = 2.0  # largest chunk, as a multiple of the questions whose costs are known


@dataclass(frozen=True, slots=True)
class Quota:
    """How much a training step should sample, and bounds of the cost of one question.

    Attributes:
        target: tokens (a turn that leaves share counts once) or trajectories (each leaf of a tree counts).
        counts_tokens: whether costs are tokens; else trajectories.
        least, largest: bounds of the cost of one question, in the same unit.
    """

    target: int
    counts_tokens: bool
    least: int
    largest: int

    @classmethod
    def of(cls, training: TrainingConfig, branching: Sequence[int], max_turn_tokens: int) -> Quota:
        """The quota of a run.

        Args:
            training: ``trajectories_per_step``, or else ``tokens_per_step``.
            branching: turns sampled from each state, for every turn.
            max_turn_tokens: the longest turn.

        >>> Quota.of(TrainingConfig(trajectories_per_step=512), (3, 3, 1), 32)  # a tree may end at its first turns
        Quota(target=512, counts_tokens=False, least=3, largest=9)
        >>> Quota.of(TrainingConfig(tokens_per_step=2000), (3, 3, 1), 32).largest  # (3 + 9 + 9) * 32
        672
        """
        copies_K = copies_of(branching)
        if training.trajectories_per_step is not None:
            return cls(training.trajectories_per_step, False, copies_K[0], copies_K[-1])
        return cls(training.tokens_per_step, True, copies_K[0], sum(copies_K) * max_turn_tokens)

    def cost(self, group: Group) -> int:
        """The cost of one question: sampled tokens or trajectories of its group."""
        return group.sampled_count if self.counts_tokens else len(group.transcripts)


@dataclass(frozen=True, slots=True)
class Budget:
    """How much a run has sampled, and statistics of its questions' costs; immutable.

    Attributes:
        steps: observed steps.
        spent: total cost of their questions.
        questions, cost, square: number of questions, sum and sum of squares of their costs; earlier steps
            count less.
    """

    steps: int = 0
    spent: int = 0
    questions: float = 0.0
    cost: float = 0.0
    square: float = 0.0

    def more_questions(self, quota: Quota, cost_Q: Sequence[int], most: int) -> int:
        """Return the size of a step's next chunk of questions; 0 ends the step.

        The step aims at the target, corrected by at most a quarter of it for what earlier steps sampled too much
        or too little. A chunk is as large as its expected cost plus two standard errors stays below 1.5 times the
        target, and a step with less than target / 1.5 goes on. So a step leaves these bounds only if a single question
        costs a large part of the target, if costs change suddenly between two steps, or if no questions are left.

        Args:
            quota: what a step should sample.
            cost_Q: costs of the questions that the step has played.
            most: number of questions that it may still play.

        >>> steady = Budget(steps=1, spent=2000, questions=20.0, cost=2000.0, square=200_000.0)
        >>> quota = Quota(target=2000, counts_tokens=True, least=1, largest=900)
        >>> [steady.more_questions(quota, cost_Q, most=500) for cost_Q in ([], [100] * 20, [100] * 12)]
        [20, 0, 8]
        >>> Budget().more_questions(quota, [], most=500)  # no cost is known; three questions fit in any case
        3
        """
        played, target = sum(cost_Q), quota.target
        aim = min(max(target * (self.steps + 1) - self.spent, target * (1 - _CORRECTION)), target * (1 + _CORRECTION))
        room = FACTOR * target - played
        known = self.questions + len(cost_Q)
        if quota.least == quota.largest:
            count = round((aim - played) / quota.largest)
        elif not known:
            count = min(_FIRST, int(room / quota.largest))
        elif aim - played <= _TOLERANCE * target:
            count = 0
        else:
            mean = (self.cost + played) / known
            square = (self.square + sum(cost * cost for cost in cost_Q)) / known
            variance = max(square - mean * mean, 0.0) if known >= 2 else mean * mean
            count = min(round((aim - played) / mean), math.ceil(_GROWTH * known))
            while count > 0 and count * mean + _DEVIATIONS * math.sqrt(
                    variance * (count + count * count / known)) > room:
                count -= 1
        if played * FACTOR < target:
            count = max(count, 1)
        return min(max(count, 0), most)

    def observe(self, cost_Q: Sequence[int]) -> Budget:
        """Return the budget after a step whose questions cost ``cost_Q``."""
        return Budget(
            self.steps + 1, self.spent + sum(cost_Q), _DECAY * self.questions + len(cost_Q),
            _DECAY * self.cost + sum(cost_Q), _DECAY * self.square + sum(cost * cost for cost in cost_Q))


NOTHING_SPENT = Budget()
