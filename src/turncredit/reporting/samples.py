"""Scores of an arm's runs with the base policy of each run, and the intervals and tests made from them.

All figures, tables and findings take their intervals from here.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turncredit.reporting import inference, statistics
from turncredit.reporting.inference import Array
from turncredit.reporting.scores import ArmRuns
from turncredit.reporting.statistics import Estimate
from turncredit.reporting.verdicts import ALPHA, holm


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
        """The mean, as ``mean`` estimates it; base policies count equally."""
        return mean(self).value


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
    return Sample(runs.final(metric, datasets), runs.base_S)


def of_curves(runs: ArmRuns, score_S_D: Array) -> Sample:
    """A sample from scores that were computed from the curves of an arm's runs, one row a run."""
    return Sample(score_S_D, runs.curve_base_S)


def mean(sample: Sample) -> Estimate:
    """Mean over runs and data sets, with its interval."""
    return statistics.mean(sample.score_S_D, sample.base_S)


def share_bases(samples: Iterable[Sample]) -> bool:
    """Whether the arms have a base policy in common, so that they can be compared."""
    return bool(inference.shared_bases([sample.base_S for sample in samples]))


def difference(a: Sample, b: Sample, peers: Iterable[Sample] = ()) -> Estimate:
    """Mean of ``a`` minus mean of ``b``, with its interval; for ``peers`` see ``contrast``."""
    return contrast([a, b], [1.0, -1.0], peers)


def contrast(samples: Sequence[Sample], weights: Sequence[float], peers: Iterable[Sample] = ()) -> Estimate:
    """Weighted sum of the means, with its interval.

    Args:
        samples: arms with a base policy in common.
        weights: one for each arm.
        peers: all arms of the experiment. With several base policies their variation over these is pooled
            (``inference``), which makes the interval narrower.
    """
    return statistics.contrast([sample.score_S_D for sample in samples], weights,
                               [sample.base_S for sample in samples], [_cells(peer) for peer in peers])


def iqm(sample: Sample) -> Estimate:
    """Interquartile mean over runs, with its interval."""
    return statistics.iqm(sample.score_S_D, sample.base_S)


def probability_of_improvement(a: Sample, b: Sample) -> Estimate:
    """Probability that a run of ``a`` beats a run of ``b`` on a random data set; ties count half."""
    return statistics.probability_of_improvement(a.score_S_D, b.score_S_D, (a.base_S, b.base_S))


def p_value(a: Sample, b: Sample, peers: Iterable[Sample] = ()) -> float:
    """Two-sided p-value of equal means, as ``inference.effect`` tests them; 1 if an arm has a single run.

    Args:
        a: one arm.
        b: the other.
        peers: all arms of the experiment, whose variation over base policies is pooled.

    >>> same = Sample(np.array([[1.], [2.]]), np.array([0, 0]))
    >>> round(p_value(same, Sample(same.score_S_D + 10, same.base_S)), 3)
    0.005
    """
    found = inference.effect([_cells(a), _cells(b)], [1.0, -1.0], [_cells(peer) for peer in peers])
    return min(1.0, 2 * min(found.p_above(0.0), found.p_below(0.0)))


def pairs(samples: Mapping[str, Sample]) -> list[Pair]:
    """All pairs of arms that share a base policy, p-values adjusted by Holm's method; the largest difference first."""
    names = [(a, b) if samples[a].value >= samples[b].value else (b, a)
             for a, b in itertools.combinations(samples, 2) if share_bases([samples[a], samples[b]])]
    adjusted = holm([p_value(samples[high], samples[low], samples.values()) for high, low in names])
    found = [Pair(high, low, difference(samples[high], samples[low], samples.values()), p)
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
    """The arms that are not separated from the arm ``name``."""
    near = {pair.high if pair.low == name else pair.low
            for pair in pairs(samples) if name in (pair.high, pair.low) and not pair.separated}
    return [other for other in samples if other in near]


def excludes_zero(found: Estimate) -> bool:
    """Whether the interval excludes 0."""
    return found.low is not None and found.high is not None and (found.low > 0 or found.high < 0)


def within(found: Estimate, margin: float) -> bool:
    """Whether the interval lies within the margin of 0."""
    return found.low is not None and found.high is not None and -margin < found.low and found.high < margin


def _cells(sample: Sample) -> inference.Cells:
    return inference.cells(sample.run_S, sample.base_S)
