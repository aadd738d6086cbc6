"""Scores of collected runs as arrays: one row per run, one column per data set or training step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from turncredit.config.load import Scale
from turncredit.errors import DataError, nearest
from turncredit.reporting.catalogue import UNTRAINED
from turncredit.reporting.inference import Array
from turncredit.reporting.runs import Runs, import_label
from turncredit.types import StopReason

DECODING = "greedy"  # every score uses greedy episodes; sampled ones are kept in the files only
TRAINED_ON = ("first", "second")  # names in claim_tests.csv for the sets that an experiment trains on
DERIVED = {"turn_limit": StopReason.TURN_LIMIT, "answered": StopReason.ANSWERED}  # metric: share of a stop reason
RATES = ("answer_correct", "format_correct", "retrieval_correct", "f1", "turn_limit")  # between 0 and 1
METRIC_LABELS = {
    "answer_correct": "exact match", "format_correct": "format", "retrieval_correct": "retrieval", "f1": "F1",
    "turns": "turns", "searches": "searches", "turn_limit": "ended at N_max",
    "component_tool_execution": "tool execution (0-0.2)", "component_search_answer": "answer in result (0-0.5)",
    "component_xml_format": "XML format (0-0.2)", "component_exact_match": "exact match (0-1)"}


@dataclass(frozen=True)
class ArmRuns:
    """The runs of one arm. Imported runs that were only evaluated have no metrics.

    Attributes:
        metrics: rows of metrics.csv of all runs.
        evaluation: rows of evaluation.csv of all runs.
        source: fresh, shipped, or imported with its label.
    """

    experiment: str
    arm: str
    metrics: pd.DataFrame
    evaluation: pd.DataFrame
    source: str

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """(base policy, seed) of each run, ascending: the rows of ``final`` and ``final_by_hops``."""
        return _runs(self.evaluation)

    @property
    def base_S(self) -> NDArray[np.int64]:
        """The base policy of each row of ``final`` and ``final_by_hops``."""
        return np.array([base for base, _ in self.runs], dtype=np.int64)

    @property
    def curve_base_S(self) -> NDArray[np.int64]:
        """The base policy of each row of ``curve``, which lacks imported runs without metrics."""
        return np.array([base for base, _ in _runs(self.metrics)], dtype=np.int64)

    def final(self, metric: str, datasets: Sequence[str]) -> Array:
        """``score_S_D``: mean of a metric over the episodes of each data set in the final evaluation.

        Args:
            metric: a column of evaluation.csv, ``turn_limit`` or ``answered``.
            datasets: columns of the result.

        Raises:
            DataError: the evaluation has no such metric or data set.
        """
        episodes = self.evaluation[self.evaluation["decoding"] == DECODING]
        values = self._metric(episodes, metric)
        table = values.groupby([episodes["base"], episodes["seed"], episodes["dataset"]]).mean().unstack()
        for dataset in datasets:
            if dataset not in table.columns:
                raise DataError(f"evaluation of {self.experiment}/{self.arm}: no {DECODING} episodes of {dataset!r}",
                                nearest(dataset, map(str, table.columns)))
        return np.asarray(table.sort_index()[list(datasets)], dtype=float)

    def final_by_hops(self, metric: str, *, multi: bool) -> Array:
        """``score_S_1``: mean of a metric over multi-hop (``multi``) or one-hop questions.

        Raises:
            DataError: no such questions were evaluated.
        """
        episodes = self.evaluation[self.evaluation["decoding"] == DECODING]
        episodes = episodes[(episodes["hops"] > 1) == multi]
        if episodes.empty:
            raise DataError(f"evaluation of {self.experiment}/{self.arm}: no questions of "
                            f"{'several hops' if multi else 'one hop'}", "evaluate on a data set that has some")
        means = self._metric(episodes, metric).groupby([episodes["base"], episodes["seed"]]).mean().sort_index()
        return np.asarray(means, dtype=float)[:, None]

    def curve(self, column: str) -> tuple[Array, Array]:
        """``step_T`` and ``value_S_T`` of a column of metrics.csv, at steps where any run has a value.

        Raises:
            DataError: metrics.csv has no such column.
        """
        if column not in self.metrics.columns:
            raise DataError(f"metrics of {self.experiment}/{self.arm}: no column {column!r}",
                            nearest(column, self.metrics.columns))
        table = self.metrics.pivot(index=["base", "seed"], columns="step", values=column).sort_index()
        table = table.loc[:, table.notna().any(axis=0)]
        return np.asarray(table.columns, dtype=float), np.asarray(table, dtype=float)

    @property
    def steps(self) -> int:
        """The last training step."""
        return int(self.metrics["step"].max())

    def _metric(self, episodes: pd.DataFrame, metric: str) -> pd.Series:
        if metric in DERIVED:
            return (episodes["stop_reason"] == DERIVED[metric]).astype(float)
        if metric not in episodes.columns:
            raise DataError(f"evaluation of {self.experiment}/{self.arm}: no column {metric!r}",
                            nearest(metric, [*map(str, episodes.columns), *DERIVED]))
        return episodes[metric]


@dataclass(frozen=True)
class Results:
    """All runs of one scale, by experiment and arm; ``None`` where nothing was run.

    Attributes:
        scale: the configuration; it names the experiments and arms.
        runs: collected runs by experiment, ``untrained`` for the untrained policies; any may be missing.
    """

    scale: Scale
    runs: Mapping[str, Runs]

    def arm(self, experiment: str, arm: str) -> ArmRuns | None:
        """The runs of an arm, or None. An arm with ``same_as`` falls back to the runs of that arm."""
        runs = self._own(experiment, arm)
        if runs is None and arm in self.arm_names(experiment):
            where = self.scale.identical(experiment, arm)
            runs = self._own(*where) if where != (experiment, arm) else None
        return runs

    def untrained(self, kind: str, experiment: str) -> ArmRuns | None:
        """The evaluation of an untrained policy (``initial``, ``expert``, ``closed_book``) on an experiment's task.

        Policies play each task once, so the rows may name another experiment with the same task.
        """
        if UNTRAINED not in self.runs or experiment not in self.scale.experiments:
            return None
        runs, task = self.runs[UNTRAINED], self.scale.experiments[experiment].task
        mine = runs.evaluation[runs.evaluation["arm"] == kind]
        for name, other in self.scale.experiments.items():
            if other.task == task and not (rows := mine[mine["experiment"] == name]).empty:
                return ArmRuns(experiment, kind, runs.metrics, rows, runs.source)
        return None

    def arms(self, experiment: str) -> dict[str, ArmRuns]:
        """The arms of an experiment that were run, in the configuration's order."""
        return {arm: runs for arm in self.arm_names(experiment) if (runs := self.arm(experiment, arm)) is not None}

    def missing(self, experiment: str, arms: Iterable[str]) -> str:
        """Which arms lack runs or have fewer runs than configured, in words; "" if none."""
        lacking: dict[str, list[str]] = {}
        for arm in arms:
            runs = self.arm(experiment, arm)
            count = 0 if runs is None else len(runs.runs)
            wanted = self.scale.runs_of(experiment)
            if count < wanted:
                words = f"{count} of {wanted} runs" if count else "not run"
                lacking.setdefault(words, []).append(arm)
        return "; ".join(f"{words}: {', '.join(names)}" for words, names in lacking.items())

    @property
    def datasets(self) -> tuple[str, ...]:
        """All evaluation data sets, in-domain first."""
        return (*self.scale.in_domain, *self.scale.out_of_domain)

    def stand_in(self, word: str, experiment: str) -> str:
        """The training set that ``first`` or ``second`` names at this scale; any other word as it is."""
        trained = self.scale.experiments[experiment].train_on if experiment in self.scale.experiments else ()
        return dict(zip(TRAINED_ON, trained, strict=False)).get(word, word)

    def arm_names(self, experiment: str) -> tuple[str, ...]:
        """An experiment's arms in the configuration's order; none if the scale does not have the experiment."""
        return tuple(self.scale.experiments[experiment].arms) if experiment in self.scale.experiments else ()

    def _own(self, experiment: str, arm: str) -> ArmRuns | None:
        if experiment not in self.runs:
            return None
        runs = self.runs[experiment]
        evaluation = runs.evaluation[runs.evaluation["arm"] == arm]
        if evaluation.empty:
            return None
        return ArmRuns(experiment, arm, runs.metrics[runs.metrics["arm"] == arm], evaluation, _source(runs, arm))


def _source(runs: Runs, arm: str) -> str:
    """The origin of an arm's runs, with run counts where runs differ in origin."""
    labels = [runs.source if (label := import_label(manifest)) is None else f"imported: {label}"
              for key, manifest in runs.manifests.items() if key.partition("/")[0] == arm]
    words = [name if len({*labels}) == 1 else f"{name} ({labels.count(name)} of {len(labels)} runs)"
             for name in dict.fromkeys(labels)]
    return ", ".join(words) or runs.source


def sources(arms: Iterable[ArmRuns | None]) -> str:
    """The origin of runs in words: ``fresh``, ``shipped``, ``imported: <label>``, several of them, or ``not run``."""
    by_source: dict[str, list[str]] = {}
    for arm in arms:
        if arm is not None:
            names = by_source.setdefault(arm.source, [])
            names += [] if arm.experiment in names else [arm.experiment]
    if len(by_source) == 1:
        return next(iter(by_source))
    return "; ".join(f"{source}: {', '.join(names)}" for source, names in sorted(by_source.items())) or "not run"


def run_counts(arms: Iterable[ArmRuns | None]) -> str:
    """Runs per arm in words: ``10``, or ``3 to 10`` where arms differ.

    >>> run_counts([])
    '0'
    """
    counts = sorted({len(arm.runs) for arm in arms if arm is not None}) or [0]
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _runs(rows: pd.DataFrame) -> tuple[tuple[int, int], ...]:
    """(base policy, seed) of the runs that have rows, ascending."""
    return tuple(sorted({(int(base), int(seed)) for base, seed in zip(rows["base"], rows["seed"], strict=True)}))
