"""Verdicts: what each says, and how often a whole audit is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from tests.simulated_audits import Design, error_rate, found_rate
from turncredit.reporting.inference import Effect
from turncredit.reporting.verdicts import Evidence, Verdict, combine, detectable, evidence, holm, judge, level


def at(value: float, se: float = 0.01) -> Effect:
    return Effect(value, ((se, 30.0),))


@pytest.mark.parametrize(("value", "direction", "threshold", "margin", "verdict"), [
    (0.1, "greater", 0.0, 0.05, "supported"), (-0.1, "greater", 0.0, 0.05, "opposite"),
    (0.0, "greater", 0.0, 0.05, "equivalent"), (0.04, "greater", 0.0, 0.05, "supported"),
    (0.02, "greater", 0.0, None, "undecided"), (0.0, "greater", 0.0, None, "undecided"),
    (-0.1, "less", 0.0, 0.05, "supported"), (0.1, "less", 0.0, 0.05, "opposite"),
    (0.0, "greater", -0.05, None, "supported"), (0.98, "greater", 0.9, None, "supported"),
    (0.0, "similar", 0.05, None, "supported"), (0.2, "similar", 0.05, None, "opposite"),
    (0.05, "similar", 0.05, None, "undecided")])
def test_a_verdict_says_where_the_effect_is(value: float, direction: str, threshold: float, margin: float | None,
                                            verdict: Verdict) -> None:
    assert judge({1: evidence(at(value), direction, threshold, margin)})[1].verdict == verdict


def test_a_claim_holds_if_all_of_its_comparisons_do_and_falls_with_one() -> None:
    up, down, near = (evidence(at(value), "greater", 0.0, 0.05) for value in (0.1, -0.1, 0.0))
    for comparisons, verdict in (((up, up), "supported"), ((up, near), "undecided"), ((up, down), "opposite"),
                                 ((near, near), "equivalent"), ((), "undecided")):
        assert judge({1: combine(comparisons)})[1].verdict == verdict
    assert combine([up, down]).opposite == pytest.approx(2 * down.opposite)


def test_more_claims_make_each_harder_to_decide() -> None:
    weak = Evidence(0.01, 0.99, 1.0)
    assert judge({1: weak})[1].verdict == "supported"
    assert judge({n: weak if n == 1 else Evidence(1, 1, 1) for n in range(1, 11)})[1].verdict == "undecided"
    assert holm([0.01, 0.04, 0.03]) == [0.03, 0.06, 0.06]


@pytest.mark.parametrize("comparisons", [1, 4])
def test_the_printed_effect_supports_a_claim_with_four_fifths(comparisons: int) -> None:
    """One claim of ten has the effect in all of its comparisons, whose errors are independent."""
    rng, se, df, found = np.random.default_rng(0), 0.02, 12.0, 0
    size = detectable(Effect(0, ((se, df),)), claims=10, comparisons=comparisons)
    assert size is not None
    for _ in range(1000):
        drawn = [Effect(size + rng.normal(0, se), ((se * np.sqrt(rng.chisquare(df) / df), df),))
                 for _ in range(comparisons)]
        parts = [evidence(one, "greater", 0.0, None) for one in drawn]
        found += max(e.supported for e in parts) <= level(10)
    assert 0.77 <= found / 1000 <= 0.86


@pytest.mark.parametrize("design", [Design(3, 4, 0.5), Design(3, 4, 2.0, noisy=2.5, skewed=True)])
def test_an_audit_of_exchangeable_arms_is_rarely_wrong(design: Design) -> None:
    wrong, tempting = error_rate(design, audits=100, seed=1)
    assert wrong <= 0.05
    assert tempting >= 0.3  # what single comparisons at 95 % would have claimed


def test_planted_effects_of_the_printed_size_are_found() -> None:
    size, share = found_rate(claim=4, arm="MT-PPO", design=Design(3, 4, 0.5), audits=60, seed=2)
    assert size > 0
    assert share >= 0.65  # 0.8 promised; three standard errors of 60 audits are 0.15
