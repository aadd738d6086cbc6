"""Tables of the primary outcomes: the arms of search and their differences, and the main effects of factors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from turncredit.reporting import samples
from turncredit.reporting.arm_labels import arm_labels
from turncredit.reporting.catalogue import FACTORIAL
from turncredit.reporting.differences import Difference, differences
from turncredit.reporting.factor_effects import main_effects
from turncredit.reporting.outcomes import PRIMARY, measured
from turncredit.reporting.reported import Reported
from turncredit.reporting.samples import Sample
from turncredit.reporting.scores import Results
from turncredit.reporting.statistics import Estimate
from turncredit.reporting.tables.parts import BOLD, provenance, remark
from turncredit.reporting.tables.render import NOT_REPORTED, NOT_RUN, Block, Cell, Table, TableRow, embolden

_COLUMNS = tuple(outcome.words for outcome in PRIMARY)
_NOTES = (
    "Area: mean validation exact match after step 0. Steps to half: the first validated step at half of the expert "
    "policy's final exact match, or the last step. All outcomes are of the data sets that an arm was trained on",
    "Margins, below which a difference does not matter: " + ", ".join(
        f"{outcome.words} {outcome.margin:g}" for outcome in PRIMARY))


def outcomes_table(results: Results, reported: Reported) -> Table:
    """Primary outcomes of the arms of search, their differences, and the paper's."""
    found = differences(results, "search", reported)
    rows = _gap_rows(found)
    paper = tuple(TableRow(name, tuple(
        Cell(text=NOT_REPORTED) if gap.paper is None else Cell(Estimate(gap.paper, None, None, ())) for gap in gaps))
        for name, gaps in _by_name(found).items() if any(gap.paper is not None for gap in gaps))
    blocks = [_arm_block(results, "search", "Ours"), Block("Ours, differences", "arms", _COLUMNS, rows)]
    if paper:
        blocks.append(Block("The paper, differences of its in-domain averages (Table 2)", "arms", _COLUMNS, paper))
    return Table("outcomes", "Primary outcomes of search", tuple(blocks), (
        BOLD, "A bold difference: p ≤ 0.05 after Holm's method over all pairs of arms", *_NOTES,
        *provenance(results, results.arms("search").values())))


def effects_table(results: Results, reported: Reported) -> Table:
    """Primary outcomes of arms that cross factors, and the main effects of these factors."""
    blocks: list[Block] = []
    known = [name for name in FACTORIAL if name in results.scale.experiments]
    for name in known:
        effects: dict[str, dict[str, Cell]] = {}
        for effect in main_effects(results, name):
            cell = Cell(effect.estimate, digits=effect.outcome.digits)
            effects.setdefault(f"{effect.name} ({effect.pairs} pairs)", {})[effect.outcome.words] = cell
        rows = tuple(TableRow(label, tuple(cells.get(column, Cell(text=NOT_RUN)) for column in _COLUMNS))
                     for label, cells in effects.items())
        blocks += [_arm_block(results, name, f"Ours, arms of {name}"),
                   Block(f"Ours, main effects in {name}", "factor", _COLUMNS, rows)]
    return Table("effects", "Main effects of content, placement, estimator, sampling and reading", tuple(blocks), (
        "A main effect is the mean difference over all pairs of arms that differ in this factor only", BOLD, *_NOTES,
        *provenance(results, [runs for name in known for runs in results.arms(name).values()])))


def _arm_block(results: Results, experiment: str, title: str) -> Block:
    """One row for each arm."""
    labels, arms = arm_labels(results.scale, experiment), results.arms(experiment)
    found: list[Mapping[str, Sample]] = [measured(outcome, results, experiment) for outcome in PRIMARY]
    rows = [TableRow(label, tuple(
        Cell(samples.mean(by_arm[arm]), digits=outcome.digits) if arm in by_arm else Cell(text=NOT_RUN)
        for outcome, by_arm in zip(PRIMARY, found, strict=True)), remark(arms.get(arm)))
        for arm, label in labels.items()]
    winners = [None if (best := samples.winner(by_arm, outcome.sign)) is None else labels[best]
               for outcome, by_arm in zip(PRIMARY, found, strict=True)]
    return Block(title, "arm", _COLUMNS, embolden(rows, winners), "runs")


def _gap_rows(found: Sequence[Difference]) -> tuple[TableRow, ...]:
    rows = []
    for name, gaps in _by_name(found).items():
        cells = {gap.outcome.words: Cell(gap.estimate, digits=gap.outcome.digits, best=gap.separated) for gap in gaps}
        rows.append(TableRow(name, tuple(cells.get(column, Cell(text=NOT_RUN)) for column in _COLUMNS)))
    return tuple(rows)


def _by_name(found: Sequence[Difference]) -> dict[str, list[Difference]]:
    by_name: dict[str, list[Difference]] = {}
    for gap in found:
        by_name.setdefault(gap.name, []).append(gap)
    return by_name
