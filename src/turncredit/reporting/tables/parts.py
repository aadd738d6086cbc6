"""Cells and notes that several tables share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from turncredit.reporting import samples
from turncredit.reporting.comparability import comparability
from turncredit.reporting.scores import ArmRuns, Results, run_counts, sources
from turncredit.reporting.tables.render import NOT_RUN, Cell

BOLD = "Bold: separated from every other arm, p ≤ 0.05 after Holm's method over all pairs of arms of a column"


def provenance(results: Results, all_runs: Iterable[ArmRuns | None]) -> tuple[str, ...]:
    """The notes under every table of ours: scale, origin of the runs, their number, intervals, comparability."""
    arms = [arm for arm in all_runs if arm is not None]
    notes = [f"Ours: scale {results.scale.name}, runs: {sources(arms)}, {run_counts(arms)} of each arm; greedy "
             "decoding; mean over runs [95% interval]"]
    if arms and all(len({*arm.base_S.tolist()}) == 1 for arm in arms):
        notes.append("All runs start from one base policy, and the intervals do not cover other base policies")
    return (*notes, comparability(results.scale))


def mean_cell(runs: ArmRuns | None, metric: str, datasets: Sequence[str], digits: int = 3) -> Cell:
    """Mean of a final metric with its interval, or "not run"."""
    return Cell(text=NOT_RUN) if runs is None else Cell(samples.mean(samples.final(runs, metric, datasets)),
                                                        digits=digits)


def remark(runs: ArmRuns | None) -> str:
    """Number and origin of an arm's runs; "" if it was not run."""
    return "" if runs is None else f"{len(runs.runs)}, {runs.source}"
