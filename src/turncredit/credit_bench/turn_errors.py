"""Statistics of single turns' credit against Q - V: correlation, bias, variance, sign errors. Pure functions.

The unit of an arm's credit is arbitrary (a z-score, a whitened return), and a positive factor does not change the
direction of the gradient. So the credit is first divided by its regression slope on Q - V; bias and variance are then
shares of E[(Q - V)^2].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from turncredit.credit_bench.alignment import UNKNOWN, Measured
from turncredit.seeding import derive_seed

Array = NDArray[np.float64]
DRAWS = 200  # of the bootstrap over probes
FEWEST = 8  # probes below which nothing is reported
SURE = 2.0  # standard errors beyond which the sign of Q - V counts as known
NAMES = ("turn_correlation", "turn_bias", "turn_variance", "turn_sign_error")


@dataclass(frozen=True, slots=True)
class TurnCredits:
    """Credit and true advantage of P probed turns.

    Attributes:
        credit_P_R: the arm's credit of the turn in each replicate; replicates differ in what is sampled after the turn
            and in the other episodes.
        half_P_2: two estimates of Q - V from different continuations.
        error_P: standard error of their mean.
    """

    credit_P_R: Array
    half_P_2: Array
    error_P: Array

    def at(self, chosen: NDArray[np.int64] | NDArray[np.bool_]) -> TurnCredits:
        """Some of the turns."""
        return TurnCredits(self.credit_P_R[chosen], self.half_P_2[chosen], self.error_P[chosen])


def advantage(before_C: Array, after_C: Array) -> tuple[float, float, float]:
    """Two estimates of Q - V of a turn, and the standard error of their mean.

    Args:
        before_C: the target in continuations from the state before the turn.
        after_C: in continuations from the state after it; a constant if the turn ended its episode.

    Only the third and the fourth quarter of the continuations are used. The first half gives the exact critic its
    values (``records``), so that their noise is independent of that of Q - V.

    >>> advantage(np.zeros(4), np.ones(4))
    (1.0, 1.0, 0.0)
    """
    quarter = len(before_C) // 4
    third, fourth = (after_C[part].mean() - before_C[part].mean()
                     for part in (slice(2 * quarter, 3 * quarter), slice(3 * quarter, None)))
    half = len(before_C) - 2 * quarter
    variance = sum(values_C.var(ddof=1) for values_C in (before_C, after_C)) / half
    return float(third), float(fourth), float(np.sqrt(variance))


def measure(turns: TurnCredits) -> dict[str, Measured]:
    """All statistics of an arm's credit of single turns.

    Returns:
        ``turn_correlation``: correlation of the credit in one replicate with Q - V; means are not subtracted, and the
        noise of Q - V is corrected for.
        ``turn_bias``: E[(E[credit | turn] / slope - (Q - V))^2] / E[(Q - V)^2]. It includes a baseline that depends on
        the state alone, which does not change the expected gradient where all tokens weigh the same.
        ``turn_variance``: E[Var(credit | turn)] / slope^2 / E[(Q - V)^2].
        ``turn_sign_error``: share of wrong signs among turns whose Q - V is beyond two standard errors; half for a
        credit of 0.
        NaN with few probes, and for bias and variance where the slope is not positive.
    """
    probes = len(turns.credit_P_R)
    if probes < FEWEST:
        return dict.fromkeys(NAMES, UNKNOWN)
    moment_P_J = _moments(turns)
    rng = np.random.default_rng(derive_seed("credit bench", "bootstrap over probes"))
    weight_D_P = rng.multinomial(probes, np.full(probes, 1 / probes), size=DRAWS) / probes
    drawn = [_statistics(moment_J) for moment_J in weight_D_P @ moment_P_J]
    found = _statistics(moment_P_J.mean(axis=0))
    return {name: Measured(found[name], _spread([draw[name] for draw in drawn])) for name in NAMES}


def _spread(drawn: list[float]) -> float:
    known = [value for value in drawn if np.isfinite(value)]
    return float(np.std(known, ddof=1)) if len(known) > DRAWS // 2 else float("nan")


def _moments(turns: TurnCredits) -> Array:
    """For each probe the terms whose means decide all statistics.

    Products of the two estimates of Q - V, and of even and odd replicates, share no noise. Variances are those of even
    and of odd replicates apart, because these use other values of the exact critic.
    """
    credit_P_R, true_P = turns.credit_P_R, turns.half_P_2.mean(axis=1)
    even_P_R, odd_P_R = credit_P_R[:, 0::2], credit_P_R[:, 1::2]
    sure_P = np.abs(true_P) > np.maximum(SURE * turns.error_P, 1e-9)
    wrong_P = (1 - np.sign(credit_P_R) * np.sign(true_P)[:, None]).mean(axis=1) / 2
    return np.stack([
        turns.half_P_2.prod(axis=1), credit_P_R.mean(axis=1) * true_P, np.square(credit_P_R).mean(axis=1),
        even_P_R.mean(axis=1) * odd_P_R.mean(axis=1),
        (even_P_R.var(axis=1, ddof=1) + odd_P_R.var(axis=1, ddof=1)) / 2, sure_P, sure_P * wrong_P], axis=1)


def _statistics(moment_J: Array) -> dict[str, float]:
    """The statistics from mean moments.

    With slope = E[c A] / E[A^2], the bias E[(c / slope - A)^2] / E[A^2] of expected credits c is
    E[c^2] E[A^2] / E[c A]^2 - 1.
    """
    power, covariance, square, expected_square, noise, sure, wrong = moment_J.tolist()
    unknown = float("nan")
    scale = power / covariance**2 if power > 0 and covariance > 0 else unknown
    return {
        "turn_correlation": covariance / (power * square)**0.5 if power > 0 and square > 0 else unknown,
        "turn_bias": expected_square * scale - 1, "turn_variance": noise * scale,
        "turn_sign_error": wrong / sure if sure > 0 else unknown}


def shares_by_turn(value_K: Sequence[Array]) -> list[float]:
    """The share of each turn in a sum of squares over turns.

    Args:
        value_K: for each turn number, the terms of all episodes that have such a turn.

    >>> shares_by_turn([np.array([1.0, 1.0]), np.array([6.0])])
    [0.25, 0.75]
    """
    sums = [float(values.sum()) for values in value_K]
    total = sum(sums)
    return [part / total if total > 0 else float("nan") for part in sums]
