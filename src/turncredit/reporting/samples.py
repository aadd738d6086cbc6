"""Scores of an arm's runs with the base policy of each run, and the intervals and tests made from them.

All figures, tables and findings take their intervals from here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr

from turncredit.reporting import statistics
from turncredit.reporting.scores import ArmRuns
from turncredit.reporting.statistics import Array, Estimate

ALPHA = 0.05


@dataclass(frozen=True)
class Sample:
    """Scores of the runs of one arm.

    Attributes:
        score_S_D: one row a run, one column a data set.
        base_S: the base policy of each run.
    """

    score_S_D: Array
    base_S: NDArray[np.int64]

    @property
    def run_S(self) -> Array:
        """Each run's mean over data sets."""
        return np.asarray(self.score_S_D.mean(axis=1))

    @property
    def value(self) -> float:
        """The mean over runs."""
        return float(self.run_S.mean())


@dataclass(frozen=True)
class Pair:
    """A comparison of two arms.

    Attributes:
        high: the arm with the larger mean.
        low: the other.
        gap: mean of ``high`` minus mean of ``low``, with its 95 % interval.
        p_value: two-sided, adjusted by Holm's method for all pairs of the outcome.
    """

    high: str
    low: str
    gap: Estimate
    p_value: float

    @property
    def separated(self) -> bool:
        """Whether the arms differ at the 5 % level, over all pairs of the outcome."""
        return self.p_value <= ALPHA


def final(runs: ArmRuns, metric: str, datasets: Sequence[str]) -> Sample:
    """A metric of the final evaluation, one column a data set.

    Raises:
        DataError: the evaluation has no such metric or data set.
    """
    return of_runs(runs, runs.final(metric, datasets))


def of_runs(runs: ArmRuns, score_S_D: Array) -> Sample:
    """A sample of scores computed from an arm's runs, one row for each."""
    return Sample(score_S_D, np.zeros(len(score_S_D), dtype=np.int64))


def mean(sample: Sample) -> Estimate:
    """Mean over runs and data sets, with its interval."""
    return statistics.mean(sample.score_S_D)


def difference(a: Sample, b: Sample) -> Estimate:
    """Mean of ``a`` minus mean of ``b``, with its interval."""
    return statistics.difference(a.score_S_D, b.score_S_D)


def contrast(samples: Sequence[Sample], weights: Sequence[float]) -> Estimate:
    """Weighted sum of the means, with its interval."""
    return statistics.contrast([sample.score_S_D for sample in samples], weights)


def iqm(sample: Sample) -> Estimate:
    """Interquartile mean over runs, with its interval."""
    return statistics.iqm(sample.score_S_D)


def probability_of_improvement(a: Sample, b: Sample) -> Estimate:
    """Probability that a run of ``a`` beats a run of ``b`` on a random data set; ties count half."""
    return statistics.probability_of_improvement(a.score_S_D, b.score_S_D)


def p_value(a: Sample, b: Sample) -> float:
    """Two-sided p-value of equal means, by Welch's t test over runs; 1 if an arm has a single run.

    >>> same = Sample(np.array([[1.], [2.]]), np.array([0, 0]))
    >>> round(p_value(same, Sample(same.score_S_D + 10, same.base_S)), 4)
    0.0049
    """
    parts = [(float(run_S.var(ddof=1)) / len(run_S), len(run_S) - 1)
             for run_S in (a.run_S, b.run_S) if len(run_S) > 1]
    if len(parts) < 2:
        return 1.0
    gap, variance = abs(a.value - b.value), sum(part for part, _ in parts)
    if variance == 0:
        return 1.0 if gap == 0 else 0.0
    degrees = variance**2 / sum(part**2 / df for part, df in parts)
    return float(2 * stdtr(degrees, -gap / math.sqrt(variance)))


def pairs(samples: Mapping[str, Sample]) -> list[Pair]:
    """All pairs of arms, p-values adjusted by Holm's method; the largest difference first."""
    names = [(a, b) if samples[a].value >= samples[b].value else (b, a)
             for a, b in itertools.combinations(samples, 2)]
    adjusted = holm([p_value(samples[high], samples[low]) for high, low in names])
    found = [Pair(high, low, difference(samples[high], samples[low]), p)
             for (high, low), p in zip(names, adjusted, strict=True)]
    return sorted(found, key=lambda pair: -pair.gap.value)


def winner(samples: Mapping[str, Sample], sign: int = 1) -> str | None:
    """The best arm if it is separated from every other arm, else None.

    Args:
        samples: the outcome of each arm.
        sign: 1 if the largest mean is best, -1 if the smallest is, 0 if neither.
    """
    if len(samples) < 2 or sign == 0:
        return None
    best = max(samples, key=lambda name: sign * samples[name].value)
    return best if not tied(samples, best) else None


def tied(samples: Mapping[str, Sample], name: str) -> list[str]:
    """The arms that are not separated from one of them."""
    near = {pair.high if pair.low == name else pair.low
            for pair in pairs(samples) if name in (pair.high, pair.low) and not pair.separated}
    return [other for other in samples if other in near]


def excludes_zero(found: Estimate) -> bool:
    """Whether the interval excludes 0."""
    return found.low is not None and found.high is not None and (found.low > 0 or found.high < 0)


def within(found: Estimate, margin: float) -> bool:
    """Whether the interval lies within the margin of 0."""
    return found.low is not None and found.high is not None and -margin < found.low and found.high < margin


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values, in the given order.

    >>> holm([0.03, 0.01, 0.5])
    [0.06, 0.03, 0.5]
    """
    order, adjusted, largest = sorted(range(len(p_values)), key=lambda i: p_values[i]), [1.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted
