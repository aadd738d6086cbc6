"""Tests and intervals of means and differences over runs, with base policies and seeds as random factors.

A run belongs to a base policy and has a seed. Arms share base policies and are paired within them. There are three
rules; each gives a t interval around the mean over base policies:

- *One base policy*: Welch's t over seeds. The interval does not cover other base policies.
- *Several*: the wider of two t intervals: over the base policies' contrasts (B - 1 degrees of freedom), and over runs
  within base policies (Welch), as if base policies made no difference.
- *Several, and a difference of arms of an experiment with more arms* (``peers``): the variance over seeds of the two
  arms, times the factor F by which contrasts vary more over base policies than seeds alone would make them. F is the
  mean over all pairs of the experiment's arms, at least 1, with (A - 1)(B - 1) degrees of freedom; the t has
  1 / (1 / that + 1 / Welch's) of them. It assumes that arms may differ in variance, but share the ratio r of the
  variance between base policies to the variance over seeds. If seeds change neither arm, the second rule holds.

Coverage of 95 % intervals, simulated with r from 0 to 2, seeds normal or skewed by collapsed runs, and standard
deviations of arms that differ by 2.5 (20,000 samples; ``tests/unit/test_inference.py`` repeats some):

| base policies x seeds | second rule | third rule, six arms |
| :-- | :-- | :-- |
| 3 x 4 | 95 to 99 % | 96 to 99 % |
| 4 x 4 | 95 to 98 % | 95 to 98 % |
| 6 x 4 | 95 to 98 % | 95 to 98 % |

The smallest effect that the audit finds with 80 % power in claim 4 (MT-PPO learns faster than PPO-OR and PPO-MR), in
standard deviations over seeds, at r = 0.5 with six arms. With 3 x 4 runs: 23 by the second rule, 4.9 by the third. By
the third rule: 3.6 with 6 x 2 (also 12 runs an arm), 2.6 with 6 x 4, 2.1 with 12 x 2. More base policies help more
than more seeds.

If the assumption of the third rule fails, its intervals are too narrow: with r = 2 for two arms and r = 0 for four
others, they cover the difference of the two in 82 % of cases. A plain bootstrap of 3 base policies covers at most 75 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import nctdtr, ndtr, ndtri, stdtr, stdtrit

Array = NDArray[np.float64]
Bases = NDArray[np.int64]
_ROUNDING = 1e-9  # of the largest value; two runs of a base policy have the same ``spread`` but for rounding


@dataclass(frozen=True, slots=True)
class Effect:
    """An estimate with one or two t distributions; of two, the wider interval and the larger p-value count.

    Attributes:
        value: the estimate; 0 standard error means that no run differs from another.
        errors: standard error and degrees of freedom of each t; none if an arm has a single run.
        bases: number of base policies that all arms share; the interval covers others only if it is above 1.
    """

    value: float
    errors: tuple[tuple[float, float], ...]
    bases: int = 1

    def p_above(self, threshold: float) -> float:
        """One-sided p-value of the hypothesis that the truth is at most ``threshold``; 1 without an error.

        >>> round(Effect(2.0, ((1.0, 10.0),)).p_above(0.0), 4)
        0.0367
        """
        return self._tail(self.value - threshold)

    def p_below(self, threshold: float) -> float:
        """One-sided p-value of the hypothesis that the truth is at least ``threshold``."""
        return self._tail(threshold - self.value)

    def interval(self, confidence: float = 0.95) -> tuple[float, float] | None:
        """The two-sided interval; None without an error."""
        if not self.errors:
            return None
        half = max(-float(stdtrit(df, (1 - confidence) / 2)) * se for se, df in self.errors)
        return self.value - half, self.value + half

    def detectable(self, alpha: float, power: float) -> float | None:
        """The distance from a threshold that a one-sided test at ``alpha`` finds with ``power``; None without an error.

        >>> round(Effect(0.0, ((1.0, 18.0),)).detectable(0.025, 0.8), 2)
        2.96
        """
        return max((se * _noncentrality(df, alpha, power) for se, df in self.errors), default=None)

    def _tail(self, beyond: float) -> float:
        if not self.errors:
            return 1.0
        return max(_p_of(beyond, se, df) for se, df in self.errors)


@dataclass(frozen=True, slots=True)
class ShareEffect:
    """A share of runs, or the difference of two shares, with score tests.

    Runs count as independent; their number is divided by a design effect if base policies differ in their share.

    Attributes:
        counts: (successes, runs) of each of one or two arms; effective numbers, so not whole.
    """

    counts: tuple[tuple[float, float], ...]
    bases: int = 1

    @property
    def value(self) -> float:
        """The share, or the first less the second."""
        shares = [successes / runs for successes, runs in self.counts]
        return shares[0] - sum(shares[1:])

    def p_above(self, threshold: float) -> float:
        """One-sided p-value of the hypothesis that the share (or difference) is at most ``threshold``.

        >>> ShareEffect(((9, 10),)).p_above(0.5) < 0.01, ShareEffect(((0, 5), (0, 5))).p_above(0)
        (True, 1.0)
        """
        return self._tail(threshold, 1)

    def p_below(self, threshold: float) -> float:
        """One-sided p-value of the hypothesis that it is at least ``threshold``."""
        return self._tail(threshold, -1)

    def detectable(self, alpha: float, power: float) -> float:
        """The distance that is found with ``power``, by the normal approximation at shares of one half."""
        return float(ndtri(1 - alpha) + ndtri(power)) * math.sqrt(sum(0.25 / runs for _, runs in self.counts))

    def _tail(self, threshold: float, sign: int) -> float:
        if len(self.counts) == 1:
            share, runs = threshold, self.counts[0][1]
            se = math.sqrt(share * (1 - share) / runs)
        else:
            share = sum(s for s, _ in self.counts) / sum(n for _, n in self.counts)
            se = math.sqrt(share * (1 - share) * sum(1 / n for _, n in self.counts))
        return 1.0 if se == 0 else float(ndtr(-sign * (self.value - threshold) / se))


@dataclass(frozen=True, slots=True)
class Cells:
    """A score of an arm's runs, summarised by base policy (made by ``cells``).

    Attributes:
        base_B: the base policies, ascending.
        count_B: number of runs.
        mean_B: their mean.
        square_B: sum of their squared distances from it.
    """

    base_B: Bases
    count_B: Bases
    mean_B: Array
    square_B: Array

    def of(self, bases: Sequence[int]) -> Cells:
        """The same for some base policies, which the arm must have."""
        rows = np.searchsorted(self.base_B, bases)
        return Cells(self.base_B[rows], self.count_B[rows], self.mean_B[rows], self.square_B[rows])

    @property
    def df(self) -> float:
        """Degrees of freedom of the variance over seeds; 0 if no base policy has two runs."""
        return float((self.count_B - 1).sum())

    @property
    def noise(self) -> float:
        """Variance over seeds of the mean over base policies, times their number; 0 without degrees of freedom."""
        return float(self.square_B.sum() / self.df * (1 / self.count_B).mean()) if self.df else 0.0


def cells(score_S: Array, base_S: Bases) -> Cells:
    """Summarises the runs of an arm; their order does not matter. Differences of the size of rounding count as none.

    Args:
        score_S: one value a run.
        base_S: the base policy of each run.
    """
    order = np.lexsort((score_S, base_S))
    sorted_S, (base_B, start_B, count_B) = score_S[order], np.unique(base_S[order], return_index=True,
                                                                     return_counts=True)
    mean_B = np.add.reduceat(sorted_S, start_B) / count_B
    square_B = np.add.reduceat((sorted_S - np.repeat(mean_B, count_B)) ** 2, start_B)
    apart_B = sorted_S[start_B + count_B - 1] - sorted_S[start_B]
    return Cells(base_B, count_B, mean_B, np.where(apart_B <= _ROUNDING * np.abs(score_S).max(), 0.0, square_B))


def effect(arms: Sequence[Cells], weights: Sequence[float], peers: Sequence[Cells] = ()) -> Effect:
    """The weighted sum of arms' means, ``sum_i w_i mean_i``; base policies count equally.

    Args:
        arms: the arms to compare.
        weights: (1,) for a mean, (1, -1) for a difference.
        peers: all arms of the experiment, for the pooled factor F; used for differences only (weights sum to 0).

    Raises:
        ValueError: the arms have no base policy in common.

    >>> effect([cells(np.array([1., 3.]), np.array([0, 0]))], [1.0])
    Effect(value=2.0, errors=((1.0, 1.0),), bases=1)
    """
    shared = shared_bases([arm.base_B for arm in arms])
    if not shared:
        raise ValueError("the arms have no base policy in common")
    inside, count = [arm.of(shared) for arm in arms], len(shared)
    contrast_B = np.sum([w * arm.mean_B for w, arm in zip(weights, inside, strict=True)], axis=0)
    value, complete = float(contrast_B.mean()), all(arm.df > 0 for arm in inside)
    seeds_only = _satterthwaite([(w * w * arm.noise / count, arm.df) for w, arm in zip(weights, inside, strict=True)])
    if count == 1:
        return Effect(value, (seeds_only,) if complete else (), 1)
    between = (float(contrast_B.std(ddof=1)) / math.sqrt(count), float(count - 1))
    if not complete:
        return Effect(value, (between,), count)
    factor = _factor(peers, shared) if abs(sum(weights)) < 1e-12 else None
    if factor is None or seeds_only[0] == 0:
        return Effect(value, (between, seeds_only), count)
    ratio, df = factor
    return Effect(value, ((seeds_only[0] * math.sqrt(max(1.0, ratio)), 1 / (1 / df + 1 / seeds_only[1])),), count)


def shares(flags: Sequence[Array], bases: Sequence[Bases]) -> ShareEffect:
    """The share of runs with a flag (0 or 1), or the difference of two arms' shares.

    >>> shares([np.array([1., 0., 0., 0.])], [np.array([0, 0, 0, 0])])
    ShareEffect(counts=((1.0, 4.0),), bases=1)
    """
    counts: list[tuple[float, float]] = []
    for flag_S, base_S in zip(flags, bases, strict=True):
        effective = len(flag_S) / _design_effect(flag_S, base_S)
        counts.append((float(flag_S.mean()) * effective, effective))
    return ShareEffect(tuple(counts), len(shared_bases(bases)))


def shared_bases(bases: Sequence[Bases]) -> tuple[int, ...]:
    """The base policies that all arms have, ascending.

    >>> shared_bases([np.array([0, 1, 1]), np.array([1, 2])])
    (1,)
    """
    return tuple(sorted(set.intersection(*({*base_S.tolist()} for base_S in bases))))


def spread(score_S_D: Array, base_S: Bases) -> Array:
    """``distance_S``: each run's distance from the median of its base policy, averaged over columns.

    A difference of two arms' means of it tests which arm varies more from run to run (Brown and Forsythe 1974). The
    factor sqrt(n / (n - 1)) makes groups of different sizes n comparable; a single run has NaN.

    >>> spread(np.array([[0.0], [1.0], [5.0]]), np.array([0, 0, 0])).round(3).tolist()
    [1.225, 0.0, 4.899]
    """
    distance_S = np.full(len(score_S_D), math.nan)
    for base in np.unique(base_S):
        inside = base_S == base
        n = int(inside.sum())
        if n > 1:
            from_median = np.abs(score_S_D[inside] - np.median(score_S_D[inside], axis=0))
            distance_S[inside] = from_median.mean(axis=1) * math.sqrt(n / (n - 1))
    return distance_S


def _satterthwaite(parts: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Standard error and degrees of freedom of a sum of independent variances."""
    total = sum(variance for variance, _ in parts)
    below = sum(variance**2 / df for variance, df in parts if df > 0)
    return math.sqrt(total), total**2 / below if below > 0 else max(1.0, sum(df for _, df in parts))


def _factor(peers: Sequence[Cells], shared: Sequence[int]) -> tuple[float, float] | None:
    """The pooled factor F and its degrees of freedom; None with fewer than three arms that have all base policies."""
    inside = [arm.of(shared) for arm in peers if {*shared} <= {*arm.base_B.tolist()}]
    if len(inside) < 3:
        return None
    mean_A_B, noise_A = np.array([arm.mean_B for arm in inside]), np.array([arm.noise for arm in inside])
    one, other = np.triu_indices(len(inside), 1)
    between_P = (mean_A_B[one] - mean_A_B[other]).var(axis=1, ddof=1)
    noise_P = noise_A[one] + noise_A[other]
    if not (noise_P > 0).any():
        return None
    ratio = float((between_P[noise_P > 0] / noise_P[noise_P > 0]).mean())
    return ratio, float((len(inside) - 1) * (len(shared) - 1))


def _design_effect(flag_S: Array, base_S: Bases) -> float:
    """1 + (n - 1) times the correlation of runs of one base policy, estimated; 1 if nothing varies."""
    found = cells(flag_S, base_S)
    count, n = len(found.base_B), len(flag_S) / len(found.base_B)
    if count == 1 or found.df == 0 or flag_S.min() == flag_S.max():
        return 1.0
    between, within = n * float(found.mean_B.var(ddof=1)), float(found.square_B.sum()) / found.df
    return max(1.0, 1 + (n - 1) * (between - within) / (between + (n - 1) * within))


def _p_of(beyond: float, se: float, df: float) -> float:
    if se == 0:
        return 0.0 if beyond > 0 else 1.0
    return float(stdtr(df, -beyond / se))


def _noncentrality(df: float, alpha: float, power: float) -> float:
    """The effect, in standard errors, that a one-sided t test at ``alpha`` finds with ``power``."""
    critical = -float(stdtrit(df, alpha))
    return _root(lambda nc: 1 - float(nctdtr(df, nc, critical)) - power, 0.0, 4 * critical + 40)


def _root(function: Callable[[float], float], low: float, high: float) -> float:
    """The root of a rising function by bisection."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if function(middle) > 0 else (middle, high)
    return (low + high) / 2
