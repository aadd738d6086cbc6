"""The audit: one row for each claim, each of its comparisons, each reported difference and each reported number.

Claims and their comparisons come from ``claims``, differences and numbers from ``reported_numbers``. Each claim's
comparisons are fixed in ``paper_tables/reported/claim_tests.csv``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isinf

from turncredit.config.load import Scale
from turncredit.reporting.claims import Comparison, Result, compare, decide, family_size, smallest_effect
from turncredit.reporting.entries import Entry, numbers, words
from turncredit.reporting.reported import Claim, Reported
from turncredit.reporting.reported_numbers import reported_rows
from turncredit.reporting.runs import Runs
from turncredit.reporting.scores import Results
from turncredit.reporting.tables.render import number


def audit(runs: Mapping[str, Runs], scale: Scale, reported: Reported) -> list[Entry]:
    """All rows: each claim followed by its comparisons, then reported differences and numbers.

    Raises:
        DataError: the runs' files lack a metric or data set.
    """
    results = Results(scale, runs)
    compared = {claim.claim_id: [c for test in reported.tests if test.claim_id == claim.claim_id
                                 for c in compare(test, results)] for claim in reported.claims}
    decided, family = decide(compared), family_size(compared.values())
    entries: list[Entry] = []
    for claim in reported.claims:
        comparisons = compared[claim.claim_id]
        rows = [_comparison(c, comparisons, family, results) for c in comparisons]
        power = _power(comparisons, rows)
        entries += [_claim(claim, comparisons, decided[claim.claim_id], power), *rows]
    return entries + reported_rows(results, reported)


def _claim(claim: Claim, comparisons: Sequence[Comparison], result: Result, power: str) -> Entry:
    estimates = [c.estimate for c in comparisons if c.estimate is not None]
    seeds = sorted({n for estimate in estimates for n in estimate.seeds})
    judged = result.judgement
    return Entry(
        "claim", str(claim.claim_id), claim.statement, f"{claim.paper_version}, {claim.source}", "", None, None, None,
        " to ".join(dict.fromkeys(map(str, (*seeds[:1], *seeds[-1:])))),
        "; ".join(dict.fromkeys(c.runs for c in comparisons if c.runs)), result.verdict, result.note,
        min((estimate.bases for estimate in estimates), default=None),
        None if judged is None else judged.evidence.least, None if judged is None else judged.adjusted.least,
        power=power)


def _power(comparisons: Sequence[Comparison], rows: Sequence[Entry]) -> str:
    """The largest smallest effect of each metric among the primary comparisons, in words."""
    largest: dict[str, float] = {}
    for comparison, row in zip(comparisons, rows, strict=True):
        if comparison.test.role == "primary" and comparison.found is not None and row.detects is not None:
            kind = "spread of " if comparison.test.statistic.startswith("spread") else ""
            name = kind + words(comparison.metric)
            largest[name] = max(largest.get(name, 0.0), row.detects)
    return ", ".join(f"{name} {'none' if isinf(size) else number(size)}" for name, size in largest.items())


def _comparison(found: Comparison, comparisons: Sequence[Comparison], family: int, results: Results) -> Entry:
    test = found.test
    sides = {"greater": "> {:g}", "less": "< {:g}", "similar": "within ±{:g}"}
    side = sides.get(test.direction, "").format(test.threshold)
    arms = f"{found.arm_a} − {found.arm_b}" if found.arm_b else found.arm_a
    named = " − ".join(results.stand_in(word, test.experiment) for word in found.dataset.split("-"))
    datasets = {"in": "in-domain", "out": "out-of-domain", "all": "all sets"}.get(found.dataset, named)
    measured = (test.experiment, arms, words(found.metric) if arms else "", datasets)
    estimate = found.estimate
    return Entry(
        "comparison", f"{test.claim_id}{test.part}", test.says, ", ".join(filter(None, measured)), side,
        *numbers(estimate), found.runs, found.finding,
        "; ".join(filter(None, ("" if test.role == "primary" else test.role, found.note))),
        bases=None if estimate is None else estimate.bases,
        p=None if found.found is None else found.found.supported, margin=test.margin,
        detects=smallest_effect(found, comparisons, family),
        precondition="" if estimate is None else found.barrier or "met")
