"""Intervals hold what they promise, equal what a hand computes, and do not depend on anything else."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from turncredit.reporting import statistics
from turncredit.reporting.inference import Array
from turncredit.reporting.statistics import Estimate

PAIR = st.lists(st.floats(0, 1).map(lambda x: round(x, 3)), min_size=2, max_size=2)
SCORES = st.lists(PAIR, min_size=2, max_size=6).map(np.array)


def covers(found: Estimate, truth: float) -> bool:
    assert found.low is not None
    assert found.high is not None
    return found.low <= truth <= found.high


# --- coverage --------------------------------------------------------------------------------------------------------

def seeds_that_collapse(rng: np.random.Generator, seeds: int) -> Array:
    """One run in five is 0.5 lower; two data sets move together. Mean 0.6."""
    collapsed = rng.random((seeds, 1)) < 0.2
    return 0.7 - 0.5 * collapsed + rng.normal(0, 0.05, (seeds, 1)) + rng.normal(0, 0.02, (seeds, 2))


def normal_scores(rng: np.random.Generator, seeds: int) -> Array:
    return 0.6 + rng.normal(0, 0.05, (seeds, 1)) + rng.normal(0, 0.02, (seeds, 2))


@pytest.mark.parametrize(("draw", "seeds", "least", "most"), [
    (normal_scores, 10, 0.91, 0.99), (normal_scores, 5, 0.92, 1.0), (normal_scores, 3, 0.84, 1.0),
    (seeds_that_collapse, 10, 0.90, 0.99)])
def test_a_difference_of_arms_is_covered(draw, seeds: int, least: float, most: float) -> None:  # type: ignore[no-untyped-def]
    rng = np.random.default_rng(0)
    hits = np.mean([covers(statistics.difference(draw(rng, seeds), draw(rng, seeds)), 0.0) for _ in range(250)])
    assert least <= hits <= most


@pytest.mark.parametrize("seeds", [2, 3, 10])
def test_the_mean_of_few_seeds_is_covered(seeds: int) -> None:
    rng = np.random.default_rng(1)
    hits = np.mean([covers(statistics.mean(normal_scores(rng, seeds)), 0.6) for _ in range(400)])
    assert 0.92 <= hits <= 0.98


def test_datasets_of_one_policy_are_not_drawn_apart() -> None:
    """Scores that move together: drawing each data set apart would halve the interval of their mean."""
    together = np.random.default_rng(3).normal(0.5, 0.1, (10, 1)) @ np.ones((1, 4))
    apart = np.random.default_rng(3).normal(0.5, 0.1, (10, 4))
    samples = {"together": together, "one": together[:, :1], "apart": apart}
    found = {name: statistics.mean(sample) for name, sample in samples.items()}
    width = {name: estimate.high - estimate.low for name, estimate in found.items()}  # type: ignore[operator]
    assert width["together"] == pytest.approx(width["one"])
    assert width["apart"] < 0.75 * width["together"]


# --- by hand, and against scipy --------------------------------------------------------------------------------------

def test_values_by_hand() -> None:
    a, b = np.array([[0.2, 0.4], [0.4, 0.6]]), np.array([[0.1, 0.1], [0.3, 0.5]])
    assert statistics.mean(a).value == pytest.approx(0.4)
    assert statistics.difference(a, b).value == pytest.approx(0.4 - 0.25)
    # first data set: 0.2 > 0.1, 0.2 < 0.3, 0.4 > both; second: 0.4 > 0.1, 0.4 < 0.5, 0.6 > both
    assert statistics.probability_of_improvement(a, b).value == pytest.approx(6 / 8)
    assert statistics.contrast([a, b, b, a], [1, -1, -1, 1]).value == pytest.approx(2 * (0.4 - 0.25))


def test_the_interquartile_mean_cuts_a_quarter_at_each_end() -> None:
    score = np.array([[0.0], [0.1], [0.2], [0.3], [0.4], [0.5], [0.6], [9.0]])
    assert statistics.iqm(score).value == pytest.approx(stats.trim_mean(score[:, 0], 0.25))
    assert statistics.iqm(score[:3]).value == pytest.approx((0.25 * 0.0 + 0.1 + 0.25 * 0.2) / 1.5)


def test_intervals_are_scipys() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.gamma(2.0, size=(7, 1)), rng.gamma(3.0, size=(5, 1))
    alone, gap = statistics.mean(a), statistics.difference(a, b)
    theirs = stats.ttest_1samp(a[:, 0], 0).confidence_interval()
    assert (alone.low, alone.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    theirs = stats.ttest_ind(a[:, 0], b[:, 0], equal_var=False).confidence_interval()
    assert (gap.low, gap.high) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
    score = rng.gamma(2.0, size=(60, 1))
    resampled = stats.bootstrap((score[:, 0],), lambda x: stats.trim_mean(x, 0.25), method="percentile",
                                n_resamples=20000, vectorized=False, rng=5).confidence_interval
    middle = statistics.iqm(score)
    assert (middle.low, middle.high) == pytest.approx((resampled.low, resampled.high), abs=0.06)


@pytest.mark.parametrize(("successes", "seeds"), [(0, 3), (3, 3), (2, 10), (9, 10)])
def test_shares_have_wilsons_interval(successes: int, seeds: int) -> None:
    theirs = stats.binomtest(successes, seeds).proportion_ci(method="wilson")
    ours = statistics.share(successes, seeds)
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=1e-6)


def test_newcombes_interval_of_a_published_example() -> None:
    found = statistics.share_difference((56, 70), (48, 80))  # Newcombe 1998, table II, case (a)
    assert (found.low, found.high) == pytest.approx((0.0524, 0.3339), abs=5e-5)


# --- invariances -----------------------------------------------------------------------------------------------------

@settings(max_examples=25, deadline=None)
@given(SCORES, SCORES, st.randoms())
def test_the_order_of_runs_changes_no_digit(a: Array, b: Array, random) -> None:  # type: ignore[no-untyped-def]
    shuffled = a[random.sample(range(len(a)), len(a))]
    for function in (statistics.difference, statistics.probability_of_improvement):
        assert repr(function(a, b)) == repr(function(shuffled, b))
    assert statistics.iqm(a) == statistics.iqm(shuffled)


@settings(max_examples=25, deadline=None)
@given(SCORES, SCORES)
def test_swapping_two_arms_turns_the_interval_round(a: Array, b: Array) -> None:
    one, other = statistics.difference(a, b), statistics.difference(b, a)
    assert one.seeds == other.seeds[::-1]
    assert one.value == -other.value
    if a.tolist() != b.tolist():
        assert (one.low, one.high) == (-other.high, -other.low)  # type: ignore[operator]


@settings(max_examples=25, deadline=None)
@given(SCORES, SCORES)
def test_the_value_is_inside_its_interval_and_a_shift_of_both_arms_cancels(a: Array, b: Array) -> None:
    found = statistics.difference(a, b)
    assert found.low is not None
    assert found.high is not None
    assert found.low <= found.value <= found.high
    moved = statistics.difference(a + 1, b + 1)
    assert (moved.low, moved.high) == pytest.approx((found.low, found.high), abs=1e-9)


def test_equal_scores_are_no_evidence_of_a_difference() -> None:
    same = statistics.difference(np.full((3, 2), 0.1), np.full((10, 2), 0.1))
    assert (same.value, same.low, same.high) == (0, 0, 0)


def test_a_single_seed_has_no_interval() -> None:
    one, many = np.array([[0.5, 0.7]]), np.array([[0.5, 0.5], [0.7, 0.8]])
    for found in (statistics.mean(one), statistics.iqm(one), statistics.difference(many, one),
                  statistics.probability_of_improvement(one, many)):
        assert found.low is None
        assert found.high is None


def test_no_global_generator_and_no_input_is_touched() -> None:
    np.random.seed(7)  # noqa: NPY002
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    a, b = np.array([[0.4, 0.1], [0.2, 0.9]]), np.array([[0.5, 0.3], [0.1, 0.2], [0.0, 0.6]])
    copies = a.copy(), b.copy()
    for function in (statistics.difference, statistics.probability_of_improvement):
        assert function(a, b) == function(a, b)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
    assert (a == copies[0]).all()
    assert (b == copies[1]).all()


def test_a_missing_score_is_refused() -> None:
    with pytest.raises(ValueError, match="finite"):
        statistics.mean(np.array([[0.1], [math.nan]]))


# --- several base policies -------------------------------------------------------------------------------------------

def with_bases(rng: np.random.Generator, base_sd: float, bases: int = 3, seeds: int = 4) -> tuple[Array, np.ndarray]:
    base_S = np.repeat(np.arange(bases), seeds)
    return 0.6 + rng.normal(0, base_sd, bases)[base_S, None] + rng.normal(0, 0.05, (bases * seeds, 2)), base_S


def test_arms_are_paired_within_a_base_policy() -> None:
    """A large shared effect of the base policy cancels in the difference and not in the mean."""
    rng, base_S = np.random.default_rng(8), np.repeat(np.arange(3), 4)
    shared = np.array([0.0, 0.4, 0.8])[base_S, None]
    a, b = (shared + rng.normal(0, 0.02, (12, 1)) for _ in range(2))
    gap, alone = statistics.difference(a, b, (base_S, base_S)), statistics.mean(a, base_S)
    assert gap.bases == alone.bases == 3
    assert gap.high - gap.low < 0.15  # type: ignore[operator]
    assert alone.high - alone.low > 1.0  # type: ignore[operator]


@pytest.mark.parametrize("base_sd", [0.0, 0.05, 0.05 * math.sqrt(2)])
def test_a_mean_covers_other_base_policies(base_sd: float) -> None:
    rng = np.random.default_rng(9)
    assert 0.93 <= np.mean([covers(statistics.mean(*with_bases(rng, base_sd)), 0.6) for _ in range(600)]) <= 1.0


def test_neither_the_order_of_runs_nor_the_names_of_base_policies_matter() -> None:
    rng = np.random.default_rng(10)
    (a, base_S), (b, _), order = with_bases(rng, 0.05), with_bases(rng, 0.05), rng.permutation(12)
    for function in (statistics.difference, statistics.probability_of_improvement):
        one = function(a, b, (base_S, base_S))
        assert repr(one) == repr(function(a[order], b, (base_S[order], base_S)))
    assert statistics.difference(a, b, (base_S + 7, base_S + 7)) == statistics.difference(a, b, (base_S, base_S))
    assert statistics.iqm(a, base_S) == statistics.iqm(a[order], base_S[order])


def test_one_base_policy_is_as_if_there_were_none() -> None:
    a, b, zeros = np.array([[0.4], [0.2], [0.7]]), np.array([[0.5], [0.3], [0.1]]), np.zeros(3, dtype=np.int64)
    assert statistics.difference(a, b, (zeros, zeros)) == statistics.difference(a, b)
    assert statistics.mean(a, zeros) == statistics.mean(a)
    assert statistics.mean(a).bases == 1


def test_only_shared_base_policies_are_compared() -> None:
    a, b = np.array([[0.1], [0.2], [0.9]]), np.array([[0.3], [0.5]])
    found = statistics.difference(a, b, (np.array([0, 0, 1]), np.array([0, 0])))
    assert (found.value, found.seeds) == (pytest.approx(0.15 - 0.4), (2, 2))
    with pytest.raises(ValueError, match="no base policy in common"):
        statistics.difference(a[2:], b, (np.array([1]), np.array([0, 0])))
