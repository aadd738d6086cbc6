"""Verdicts on claims from p-values, with one Holm family over the whole audit.

Each comparison of a claim gives three one-sided p-values: that the claim's side is true (*supported*), that the other
side is (*opposite*), and that the difference is within the margin (*equivalent*, two one-sided tests). A claim says
that all of its comparisons hold, so its p-values are:

- supported, equivalent: the largest over its comparisons (intersection-union test, no correction needed);
- opposite: the smallest times the number of comparisons (Bonferroni), as one reversed comparison refutes the claim.

Holm's method corrects the three p-values of all claims together, so at most 5 % of audits hold a false verdict,
whatever is true. The family does not depend on the results: it is every claim with a primary test whose runs exist,
decidable or not. *Equivalent* is a true verdict if the difference is within the margin.

Whole audits of exchangeable arms, simulated with the tests of ``claim_tests.csv``
(``python -m tests.simulated_audits``, 400 audits a design): 0 to 0.5 % hold a false verdict with 3 base policies x 4
seeds (variance between base policies 0 to 2 times that over seeds, seeds normal or skewed by collapsed runs, arms of
unequal variance), 0.25 % with 6 x 4 and 6 x 2. Uncorrected comparisons at 95 % would claim a difference in most audits.
If the arms of claim 4 differ by the smallest detectable effect that the audit prints, the claim is supported in 79 % of
300 audits with 3 x 4 and in 88 % with 6 x 4 (nominal: 80 %). With one base policy verdicts hold for that policy only:
of 100 simulated audits with one base policy and 10 seeds, 30 hold a verdict that is false for other base policies.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from turncredit.reporting.inference import Effect, ShareEffect

Verdict = Literal["supported", "opposite", "equivalent", "undecided", "not decidable", "by construction", "not run"]
ALPHA, POWER = 0.05, 0.8
HYPOTHESES = 3  # of each claim


@dataclass(frozen=True, slots=True)
class Evidence:
    """Three one-sided p-values of a comparison or a claim."""

    supported: float
    opposite: float
    equivalent: float

    @property
    def least(self) -> float:
        """The smallest of the three."""
        return min(self.supported, self.opposite, self.equivalent)


NO_EVIDENCE = Evidence(1.0, 1.0, 1.0)


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict of a tested claim: p-values before and after Holm's method."""

    verdict: Literal["supported", "opposite", "equivalent", "undecided"]
    evidence: Evidence
    adjusted: Evidence


def evidence(found: Effect | ShareEffect, direction: str, threshold: float, margin: float | None) -> Evidence:
    """The p-values of one comparison.

    Args:
        found: the estimate and its error.
        direction: ``greater`` or ``less`` than the threshold, or ``similar``: within the threshold of 0.
        threshold: in the unit of the estimate.
        margin: smaller distances from the threshold do not matter; None: equivalence is not tested.

    >>> found = evidence(Effect(0.3, ((0.1, 20.0),)), "greater", 0.0, 0.1)
    >>> round(found.supported, 4), round(found.opposite, 4), round(found.equivalent, 4)
    (0.0035, 0.9965, 0.9704)
    """
    match direction:
        case "greater":
            supported, opposite = found.p_above(threshold), found.p_below(threshold)
        case "less":
            supported, opposite = found.p_below(threshold), found.p_above(threshold)
        case "similar":
            outside = min(found.p_above(threshold), found.p_below(-threshold))
            return Evidence(max(found.p_above(-threshold), found.p_below(threshold)), min(1.0, 2 * outside), 1.0)
        case _:
            raise ValueError(f"direction {direction!r} is not greater, less or similar")
    within = 1.0 if margin is None else max(found.p_above(threshold - margin), found.p_below(threshold + margin))
    return Evidence(supported, opposite, within)


def combine(comparisons: Sequence[Evidence]) -> Evidence:
    """The p-values of a claim that says that all of its comparisons hold.

    >>> combine([Evidence(0.01, 0.99, 1.0), Evidence(0.2, 0.8, 1.0)])
    Evidence(supported=0.2, opposite=1.0, equivalent=1.0)
    """
    if not comparisons:
        return NO_EVIDENCE
    return Evidence(max(e.supported for e in comparisons),
                    min(1.0, len(comparisons) * min(e.opposite for e in comparisons)),
                    max(e.equivalent for e in comparisons))


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


def judge(claims: Mapping[int, Evidence]) -> dict[int, Judgement]:
    """The verdicts of all claims of an audit, by claim number; ``claims`` is the whole family.

    A claim that is both supported and within the margin is called supported.
    """
    flat = holm([p for e in claims.values() for p in (e.supported, e.opposite, e.equivalent)])
    judged: dict[int, Judgement] = {}
    for place, (claim, found) in enumerate(claims.items()):
        adjusted = Evidence(*flat[HYPOTHESES * place:HYPOTHESES * (place + 1)])
        verdict: Literal["supported", "opposite", "equivalent", "undecided"] = (
            "supported" if adjusted.supported <= ALPHA else "opposite" if adjusted.opposite <= ALPHA
            else "equivalent" if adjusted.equivalent <= ALPHA else "undecided")
        judged[claim] = Judgement(verdict, found, adjusted)
    return judged


def level(claims: int) -> float:
    """The strictest level in Holm's method: a p-value below it decides whatever the other claims give.

    >>> round(level(10), 5)
    0.00167
    """
    return ALPHA / (HYPOTHESES * max(1, claims))


def detectable(found: Effect | ShareEffect, claims: int, comparisons: int) -> float | None:
    """The smallest distance from the threshold that supports a claim with 80 % power.

    If all comparisons of the claim have such an effect (each in its unit), the claim is supported with a probability
    of at least 80 %: each comparison has a power of 1 - 0.2 / ``comparisons``.

    Args:
        found: the estimate; only its error matters.
        claims: size of the family.
        comparisons: number of decidable comparisons of the claim.
    """
    return found.detectable(level(claims), 1 - (1 - POWER) / max(1, comparisons))
