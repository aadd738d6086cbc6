"""Statistics over runs with 95 % intervals: pure functions with their own seeded generator.

Shapes: a *sample* is ``score_S_D``, one row per run, one column per data set (or step); ``base_S`` holds the base
policy of each run. Data sets are fixed strata of equal weight. Unlike in rliable, runs are not drawn separately for
each data set: one policy answers all of them, so their scores are correlated, and separate draws would make the
interval of an average too narrow.

*Means, differences and other contrasts* have the t intervals of ``inference``, the same that its tests use. Arms are
paired within the base policies that they share. With one base policy the interval does not cover others.

*The interquartile mean and the probability of improvement* resample: base policies with replacement, the same ones for
both arms, then runs within each. The interval is the expanded percentile interval of Hesterberg (2015), "What teachers
should know about the bootstrap", section 3.6, whose half-width matches Student's t for a mean. It is still too narrow
with few base policies or runs (with 3, about 3 of 4 cover the truth).

The same data give the same interval to the last digit, in any order of the runs. No global generator is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri, stdtrit

from turncredit.reporting.inference import Array, Bases, Cells, Effect, cells, effect, shared_bases

CONFIDENCE = 0.95
RESAMPLES = 4000
_SEED = 2505_11821


@dataclass(frozen=True, slots=True)
class Estimate:
    """A statistic over runs and its 95 % interval.

    Attributes:
        value: the statistic of all runs; NaN if undefined (0 / 0).
        low: lower end of the interval; None if there is none (a single run).
        high: upper end.
        seeds: number of runs, one entry per arm.
        bases: number of base policies; 1: the interval does not cover other base policies.
    """

    value: float
    low: float | None
    high: float | None
    seeds: tuple[int, ...]
    bases: int = field(default=1, repr=False)


def mean(score_S_D: Array, base_S: Bases | None = None) -> Estimate:
    """Mean over runs and data sets, with its interval. Without ``base_S`` all runs share one base policy.

    >>> mean(np.array([[0.5], [0.5], [0.5]]))
    Estimate(value=0.5, low=0.5, high=0.5, seeds=(3,))
    >>> mean(np.array([[0.25, 0.75]]))
    Estimate(value=0.5, low=None, high=None, seeds=(1,))
    >>> found = mean(np.array([[0.1], [0.3], [0.2], [0.4]]), np.array([0, 0, 1, 1]))
    >>> found.value, found.bases
    (0.25, 2)
    """
    return contrast([score_S_D], [1.0], None if base_S is None else [base_S])


def iqm(score_S_D: Array, base_S: Bases | None = None) -> Estimate:
    """Interquartile mean over runs of each run's score (its mean over data sets), with its interval.

    A quarter of the runs is cut at each end. If that is not a whole number, the run at the edge gets a fractional
    weight, so that every number of runs is allowed.

    >>> iqm(np.array([[0.0], [1.0], [2.0], [9.0]])).value
    1.5
    """
    score_S_D, base_S = _checked(score_S_D, base_S)
    run_S, shared = score_S_D.mean(axis=1), shared_bases([base_S])
    value = float(iqm_weights(len(run_S)) @ np.sort(run_S))
    [drawn_R_S] = _draws([base_S], shared)
    draw_R_S = np.sort(run_S[drawn_R_S], axis=1)
    return _estimate(value, draw_R_S @ iqm_weights(draw_R_S.shape[1]), (len(run_S),), len(shared))


def iqm_weights(count: int) -> Array:
    """Weight of each sorted value in the interquartile mean; they sum to 1.

    >>> iqm_weights(3).round(3).tolist()
    [0.167, 0.667, 0.167]
    """
    edge = np.arange(count + 1) / count
    inside = np.clip(np.minimum(edge[1:], 0.75) - np.maximum(edge[:-1], 0.25), 0, None)
    return np.asarray(inside / inside.sum())


def contrast(samples: Sequence[Array], weights: Sequence[float], bases: Sequence[Bases] | None = None,
             peers: Sequence[Cells] = ()) -> Estimate:
    """Weighted sum of the means of arms, ``sum_i w_i mean(sample_i)``, with its t interval.

    Weights are (1, -1) for a difference and (1, -1, -1, 1) for the interaction of a 2 x 2 design. Only base policies
    count that all arms share, each equally. For ``peers`` see ``inference.effect``.

    Raises:
        ValueError: the arms have no base policy in common.

    >>> ones, zeros = np.ones((3, 2)), np.zeros((4, 2))
    >>> contrast([ones, zeros], [1, -1])
    Estimate(value=1.0, low=1.0, high=1.0, seeds=(3, 4))
    """
    scores, bases, _ = _paired(samples, bases)
    runs = [score_S_D.mean(axis=1) for score_S_D in scores]
    return estimate_of(effect([cells(*arm) for arm in zip(runs, bases, strict=True)], weights, peers),
                       tuple(len(run_S) for run_S in runs))


def estimate_of(found: Effect, counts: tuple[int, ...]) -> Estimate:
    """An effect with its t interval; ``counts``: runs of each arm."""
    low, high = found.interval(CONFIDENCE) or (None, None)
    return clean(Estimate(found.value, low, high, counts, found.bases))


def difference(a_S_D: Array, b_S_D: Array, bases: tuple[Bases, Bases] | None = None,
               peers: Sequence[Cells] = ()) -> Estimate:
    """Mean of arm a minus mean of arm b. ``difference(b, a)`` is exactly its negative; ``peers`` as in ``contrast``."""
    return contrast([a_S_D, b_S_D], [1.0, -1.0], bases, peers)


def probability_of_improvement(a_S_D: Array, b_S_D: Array, bases: tuple[Bases, Bases] | None = None) -> Estimate:
    """Probability that a run of arm a beats a run of arm b of the same base policy on a random data set.

    Ties count half.

    >>> probability_of_improvement(np.array([[2.0], [1.0]]), np.array([[1.0], [0.0]])).value
    0.875
    """
    (a_S_D, b_S_D), (base_a_S, base_b_S), shared = _paired([a_S_D, b_S_D], bases)
    if a_S_D.shape[1] != b_S_D.shape[1]:
        raise ValueError("both arms need scores on the same data sets")
    gap = a_S_D[:, None, :] - b_S_D[None, :, :]
    wins_A_B = ((gap > 0) + 0.5 * (gap == 0)).mean(axis=2)
    value = float(np.mean([wins_A_B[np.ix_(base_a_S == base, base_b_S == base)].mean() for base in shared]))
    drawn = [index_R_S.reshape(RESAMPLES, len(shared), -1) for index_R_S in _draws([base_a_S, base_b_S], shared)]
    draw_R = np.zeros(RESAMPLES)
    for slot in range(len(shared)):
        draw_R += wins_A_B[drawn[0][:, slot, :, None], drawn[1][:, slot, None, :]].mean(axis=(1, 2)) / len(shared)
    return _estimate(value, draw_R, (len(a_S_D), len(b_S_D)), len(shared))


def share(successes: float, seeds: float) -> Estimate:
    """A share of runs with its Wilson interval; a bootstrap of 3 of 3 would claim certainty.

    Counts need not be whole: ``inference.shares`` shrinks them where base policies differ.

    >>> found = share(3, 3)
    >>> found.value, round(found.low, 3), found.high
    (1.0, 0.439, 1.0)
    """
    return clean(Estimate(successes / seeds, *_wilson(successes, seeds), (round(seeds),)))


def share_difference(a: tuple[float, float], b: tuple[float, float]) -> Estimate:
    """Difference of two shares (successes, seeds) with Newcombe's score interval (1998, method 10).

    >>> found = share_difference((10, 10), (0, 10))
    >>> found.value, round(found.low, 2), found.high
    (1.0, 0.61, 1.0)
    """
    p, q = a[0] / a[1], b[0] / b[1]
    (p_low, p_high), (q_low, q_high) = _wilson(*a), _wilson(*b)
    low = p - q - math.hypot(p - p_low, q_high - q)
    high = p - q + math.hypot(p_high - p, q - q_low)
    return clean(Estimate(p - q, low, high, (round(a[1]), round(b[1]))))


def _paired(samples: Sequence[Array],
            bases: Sequence[Bases] | None) -> tuple[list[Array], list[Bases], tuple[int, ...]]:
    """The samples' runs of the base policies that all of them share, sorted, and these base policies."""
    checked = ([_checked(sample, None) for sample in samples] if bases is None else
               [_checked(sample, base_S) for sample, base_S in zip(samples, bases, strict=True)])
    shared = shared_bases([base_S for _, base_S in checked])
    if not shared:
        raise ValueError("the arms have no base policy in common")
    inside = [np.isin(base_S, shared) for _, base_S in checked]
    return ([sample[rows] for (sample, _), rows in zip(checked, inside, strict=True)],
            [base_S[rows] for (_, base_S), rows in zip(checked, inside, strict=True)], shared)


def _draws(bases: Sequence[Bases], shared: Sequence[int]) -> list[NDArray[np.int64]]:
    """Indices of resampled runs of each arm, ``RESAMPLES x runs``: base policies, then runs within each.

    All arms have the same drawn base policies. The runs of one drawn base policy are neighbours.
    """
    generator = np.random.default_rng(_SEED)
    slot_R_B = (np.zeros((RESAMPLES, 1), dtype=np.int64) if len(shared) == 1 else
                generator.integers(0, len(shared), size=(RESAMPLES, len(shared))))
    drawn: list[NDArray[np.int64]] = []
    for base_S in bases:
        size = -(-len(base_S) // len(shared))
        members = [np.flatnonzero(base_S == base) for base in shared]
        index_R_B_S = np.stack([runs[generator.integers(0, len(runs), size=(*slot_R_B.shape, size))]
                                for runs in members])
        chosen = np.take_along_axis(index_R_B_S, slot_R_B[None, :, :, None], axis=0)[0]
        drawn.append(chosen.reshape(RESAMPLES, -1))
    return drawn


def _checked(score_S_D: Array, base_S: Bases | None) -> tuple[Array, Bases]:
    """The sample and its base policies with sorted rows, so that the order of runs does not matter.

    Raises:
        ValueError: not a two-dimensional array of finite scores, or not one base policy a row.
    """
    if score_S_D.ndim != 2 or score_S_D.shape[0] < 1 or score_S_D.shape[1] < 1:
        raise ValueError(f"a sample has shape (runs, data sets), not {score_S_D.shape}")
    if not np.isfinite(score_S_D).all():
        raise ValueError("a sample must hold finite scores only")
    base_S = np.zeros(len(score_S_D), dtype=np.int64) if base_S is None else base_S
    if base_S.shape != (len(score_S_D),):
        raise ValueError(f"{len(score_S_D)} runs need as many base policies, not {base_S.shape}")
    order = np.lexsort((*score_S_D.T[::-1], base_S))
    return np.asarray(score_S_D[order], dtype=np.float64), base_S[order]


def _wilson(successes: float, seeds: float) -> tuple[float, float]:
    """Wilson's score interval of a share."""
    if not 0 <= successes <= seeds or seeds < 1:
        raise ValueError(f"{successes} of {seeds} seeds")
    z = float(ndtri(0.5 + CONFIDENCE / 2))
    p, scale = successes / seeds, 1 + z * z / seeds
    centre = (p + z * z / (2 * seeds)) / scale
    half = z * math.sqrt(p * (1 - p) / seeds + z * z / (4 * seeds * seeds)) / scale
    return max(0.0, centre - half), min(1.0, centre + half)


def _interval(draw_R: Array, seeds: int) -> tuple[float, float]:
    """The expanded percentile interval of the resamples; see the module's docstring."""
    tail = float(ndtr(math.sqrt(seeds / (seeds - 1)) * stdtrit(seeds - 1, (1 - CONFIDENCE) / 2)))
    low, high = np.quantile(draw_R, [tail, 1 - tail], method="nearest")
    return float(low), float(high)


def _estimate(value: float, draw_R: Array, seeds: tuple[int, ...], bases: int = 1) -> Estimate:
    """The estimate with the interval of its resamples; no interval if an arm has a single run."""
    if min(seeds) < 2:
        return clean(Estimate(value, None, None, seeds, bases))
    return clean(Estimate(value, *_interval(draw_R, bases if bases > 1 else min(seeds)), seeds, bases))


def clean(found: Estimate) -> Estimate:
    """The estimate rounded to 12 decimals, so that no verdict depends on the last bit of a sum."""
    low = None if found.low is None else round(found.low, 12)
    high = None if found.high is None else round(found.high, 12)
    return Estimate(round(found.value, 12), low, high, found.seeds, found.bases)
