"""Errors with two random factors: coverage, p-values that fit the interval, and effects that are found as promised."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from turncredit.reporting.inference import Array, Bases, Effect, cells, effect, shares, spread

FEW = np.repeat(np.arange(3), 4)  # 3 base policies x 4 seeds


def arms_of(rng: np.random.Generator, sd_A: Array, ratio: float, *, skewed: bool = False,
            base_S: Bases = FEW) -> list[Array]:
    """The runs of arms: base policies vary by themselves and with the arm, and seeds, with their standard deviation."""
    bases = len(np.unique(base_S))
    shared_B = rng.normal(0, 1, bases)
    runs: list[Array] = []
    for sd in sd_A:
        seed_S = rng.normal(0, 1, len(base_S))
        if skewed:  # one run in seven falls far
            seed_S = 0.5 * seed_S - 2.4 * ((rng.random(len(base_S)) < 0.15) - 0.15)
        runs.append((shared_B + sd * math.sqrt(ratio) * rng.normal(0, 1, bases))[base_S] + sd * seed_S)
    return runs


@pytest.mark.parametrize("ratio", [0.0, 0.5, 2.0])
@pytest.mark.parametrize(("sds", "skewed"), [((1, 1, 1, 1, 1, 1), False), ((1, 1, 1, 2.5, 2.5, 2.5), False),
                                             ((1, 1, 1, 1, 1, 1), True)])
@pytest.mark.parametrize("pooled", [False, True])
def test_differences_cover_the_truth_whatever_base_policies_do(ratio: float, sds: tuple[float, ...], skewed: bool,
                                                               pooled: bool) -> None:
    rng, hits = np.random.default_rng(0), []
    for _ in range(500):
        runs = arms_of(rng, np.array(sds, dtype=float), ratio, skewed=skewed)
        arms = [cells(run_S, FEW) for run_S in runs]
        low, high = effect([arms[0], arms[-1]], [1, -1], arms if pooled else ()).interval() or (0, 0)
        hits.append(low <= 0 <= high)
    assert 0.93 <= np.mean(hits) <= 1.0


def test_a_bootstrap_of_three_base_policies_would_be_too_narrow() -> None:
    """Why the intervals are not resampled: means of three drawn base policies hardly leave their range."""
    rng, hits = np.random.default_rng(1), []
    for _ in range(300):
        mean_B = arms_of(rng, np.array([1.0]), 2.0)[0].reshape(3, 4).mean(axis=1)
        drawn_R = mean_B[rng.integers(0, 3, (300, 3))].mean(axis=1)
        hits.append(np.quantile(drawn_R, 0.025) <= 0 <= np.quantile(drawn_R, 0.975))
    assert np.mean(hits) < 0.85


def test_pooling_over_the_arms_is_what_makes_three_base_policies_enough() -> None:
    rng, sizes = np.random.default_rng(2), []
    for _ in range(50):
        arms = [cells(run_S, FEW) for run_S in arms_of(rng, np.ones(6), 0.5)]
        sizes.append([effect(arms[:2], [1, -1], peers).detectable(0.001, 0.8) for peers in (arms, ())])
    pooled, alone = np.median(np.array(sizes, dtype=float), axis=0)
    assert pooled < alone / 3


def test_one_base_policy_gives_welchs_test() -> None:
    rng, zeros = np.random.default_rng(3), np.zeros(6, dtype=np.int64)
    a, b = rng.normal(0, 1, 6), rng.normal(0.5, 2, 6)
    found, theirs = effect([cells(a, zeros), cells(b, zeros)], [1, -1]), stats.ttest_ind(a, b, equal_var=False)
    assert found.p_above(0) + found.p_below(0) == pytest.approx(1)
    assert 2 * min(found.p_above(0), found.p_below(0)) == pytest.approx(theirs.pvalue)
    assert found.interval() == pytest.approx(tuple(theirs.confidence_interval()))


def test_an_interval_ends_where_the_p_value_is_a_fortieth() -> None:
    found = effect([cells(run_S, FEW) for run_S in arms_of(np.random.default_rng(4), np.ones(2), 1.0)], [1, -1])
    low, high = found.interval() or (0, 0)
    assert found.p_above(low) == pytest.approx(0.025)
    assert found.p_below(high) == pytest.approx(0.025)


@pytest.mark.parametrize("df", [2.0, 6.5, 18.0])
@pytest.mark.parametrize("alpha", [0.025, 0.001])
def test_the_detectable_effect_is_found_with_the_power_that_it_promises(df: float, alpha: float) -> None:
    size = Effect(0, ((1.0, df),)).detectable(alpha, 0.8)
    assert size is not None
    rng = np.random.default_rng(5)
    t_R = (size + rng.normal(size=200_000)) / np.sqrt(rng.chisquare(df, 200_000) / df)
    assert np.mean(stats.t.sf(t_R, df) <= alpha) == pytest.approx(0.8, abs=0.01)


def test_runs_without_spread_decide_and_a_single_run_does_not() -> None:
    zeros = np.zeros(5, dtype=np.int64)
    sure = effect([cells(np.full(5, 0.2), zeros)], [1])
    assert (sure.p_above(0.19), sure.p_above(0.2), sure.p_below(0.2)) == (0, 1, 1)
    single = effect([cells(np.array([0.2]), zeros[:1])], [1])
    assert (single.interval(), single.p_above(0), single.detectable(0.05, 0.8)) == (None, 1, None)


def test_shares_shrink_where_base_policies_differ() -> None:
    apart = np.array([1.0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0])
    mixed = np.array([1.0, 0, 0, 1, 0, 1, 0, 0, 1, 0, 0, 0])
    assert shares([mixed], [FEW]).counts[0] == (4, 12)
    assert shares([apart], [FEW]).counts[0][1] == pytest.approx(3)
    assert shares([apart], [FEW]).value == pytest.approx(1 / 3)


def test_spread_is_found_where_it_is() -> None:
    rng = np.random.default_rng(6)
    wide, narrow = 3 * rng.normal(size=(12, 2)), rng.normal(size=(12, 2))
    shift = 10.0 * FEW[:, None]  # base policies may differ: spread is within them
    found = effect([cells(spread(score_S_D + shift, FEW), FEW) for score_S_D in (wide, narrow)], [1, -1])
    assert found.p_above(0) < 0.05
    assert np.isnan(spread(wide[:1], FEW[:1])).all()


def test_a_constant_that_is_added_to_all_scores_changes_no_test_of_their_spread() -> None:
    """With two runs a base policy both are equally far from their median: what differs is rounding."""
    runs = [[0, .1, .2, .5, .1, .9], [0, .3, .3, .4, .7, .9], [0, .2, .6, .5, .3, .7]]
    bases = np.repeat(np.arange(3), 2)
    found = []
    for added in (0.0, 0.1, 0.2, 0.7):
        arms = [cells(spread(np.array(run)[:, None] + added, bases), bases) for run in runs]
        assert [arm.noise for arm in arms] == [0, 0, 0]
        found.append(effect(arms[:2], [1, -1], arms).interval())
    np.testing.assert_allclose(found, [found[0]] * 4, atol=1e-9)
