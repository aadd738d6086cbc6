"""The budget table: sampled tokens, questions, trajectories and wall time of a run of each arm."""

from __future__ import annotations

import numpy as np

from turncredit.reporting.arm_labels import arm_labels
from turncredit.reporting.reported import Reported
from turncredit.reporting.scores import ArmRuns, Results, sources
from turncredit.reporting.statistics import Estimate
from turncredit.reporting.tables.parts import remark
from turncredit.reporting.tables.render import NOT_RUN, Block, Cell, Table, TableRow

_SUMS = {"tokens_sampled": "sampled tokens", "tokens_env": "observed tokens", "questions": "questions",
         "trajectories": "trajectories"}
_COLUMNS = ("steps", *_SUMS.values(), "trajectories per question", "minutes")


def budget(results: Results, reported: Reported) -> Table:
    """What a run of each arm costs: means over runs. An arm that takes another's runs has them too."""
    blocks, used = [], []
    for name in results.scale.experiments:
        labels, arms = arm_labels(results.scale, name), results.arms(name)
        if arms or not results.runs:
            rows = tuple(TableRow(label, _cells(arms.get(arm)), remark(arms.get(arm))) for arm, label in labels.items())
            blocks.append(Block(name, "arm", _COLUMNS, rows, "runs"))
            used += [*arms.values()]
    return Table("budget", "Budget of a run: tokens, questions, trajectories, time", tuple(blocks), (
        "Means over runs, of the whole training without the final evaluation. Observed tokens: what the environment "
        "returned. A leaf of a tree counts as a trajectory. Minutes: wall time with validation, on the machines of "
        f"the runs. Scale {results.scale.name}, runs: {sources(used)}",))


def _cells(runs: ArmRuns | None) -> tuple[Cell, ...]:
    if runs is None or runs.metrics.empty:
        return (Cell(text=NOT_RUN),) * len(_COLUMNS)
    sums = {column: float(np.nansum(runs.curve(column)[1], axis=1).mean()) for column in _SUMS}
    minutes = float(np.nanmax(runs.curve("wall_s")[1], axis=1).mean()) / 60
    per_question = sums["trajectories"] / sums["questions"]
    count = (len(runs.runs),)
    return (Cell(text=str(runs.steps)), *(Cell(text=f"{total:,.0f}") for total in sums.values()),
            *(Cell(Estimate(value, None, None, count), digits=1) for value in (per_question, minutes)))
