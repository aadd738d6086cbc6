"""From run files to the arrays that statistics take: one row a seed, one column a dataset or step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from turncredit.config.load import Scale
from turncredit.errors import DataError, nearest
from turncredit.reporting.catalogue import BASE
from turncredit.reporting.runs import Runs, imported
from turncredit.reporting.statistics import Array
from turncredit.types import StopReason

DECODING = "greedy"  # of every reported score; sampled evaluations stand in the files only
TRAINED_ON = ("facts", "bridge")  # what claim_tests.csv calls the sets of one hop and of two that are trained on
DERIVED = {"turn_limit": StopReason.TURN_LIMIT, "answered": StopReason.ANSWERED}  # share of episodes that ended so


@dataclass(frozen=True)
class ArmRuns:
    """The runs of one arm, seeds in ascending order; without metrics where they were only evaluated."""

    experiment: str
    arm: str
    metrics: pd.DataFrame
    evaluation: pd.DataFrame
    source: str  # fresh, shipped, or imported with a label

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that were run."""
        return tuple(sorted(int(seed) for seed in self.evaluation["seed"].unique()))

    def final(self, metric: str, datasets: Sequence[str]) -> Array:
        """``score_S_D``: mean of a metric over each dataset's episodes in the final evaluation.

        Args:
            metric: a column of evaluation.csv, ``turn_limit`` or ``answered``.
            datasets: the columns of the result.

        Raises:
            DataError: no such metric or dataset in the evaluation.
        """
        episodes = self.evaluation[self.evaluation["decoding"] == DECODING]
        values = self._metric(episodes, metric)
        table = values.groupby([episodes["seed"], episodes["dataset"]]).mean().unstack()
        for dataset in datasets:
            if dataset not in table.columns:
                raise DataError(f"evaluation of {self.experiment}/{self.arm}: no {DECODING} episodes of {dataset!r}",
                                nearest(dataset, map(str, table.columns)))
        return np.asarray(table.sort_index()[list(datasets)], dtype=float)

    def final_by_hops(self, metric: str, *, multi: bool) -> Array:
        """``score_S_1``: the metric over questions of several hops (``multi``) or of one."""
        episodes = self.evaluation[self.evaluation["decoding"] == DECODING]
        episodes = episodes[(episodes["hops"] > 1) == multi]
        if episodes.empty:
            raise DataError(f"evaluation of {self.experiment}/{self.arm}: no questions of "
                            f"{'several hops' if multi else 'one hop'}", "evaluate on a data set that has them")
        means = self._metric(episodes, metric).groupby(episodes["seed"]).mean().sort_index()
        return np.asarray(means, dtype=float)[:, None]

    def curve(self, column: str) -> tuple[Array, Array]:
        """Steps ``_T`` and values ``_S_T`` of a column of metrics.csv, where any seed has a value.

        Raises:
            DataError: no such column.
        """
        if column not in self.metrics.columns:
            raise DataError(f"metrics of {self.experiment}/{self.arm}: no column {column!r}",
                            nearest(column, self.metrics.columns))
        table = self.metrics.pivot(index="seed", columns="step", values=column).sort_index()
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
    """All that was run at one scale, arm by arm; what was not run is ``None``.

    Attributes:
        scale: the configuration: which experiments and arms there are.
        runs: collected runs by experiment, ``base`` for the untrained policies; any may lack.
    """

    scale: Scale
    runs: Mapping[str, Runs]

    def arm(self, experiment: str, arm: str) -> ArmRuns | None:
        """An arm's runs, or None if there are none.

        An arm that the experiment's own files lack is looked for where ``same_as`` says.
        """
        found = self._own(experiment, arm)
        if found is None and arm in self._arms(experiment):
            where = self.scale.identical(experiment, arm)
            found = self._own(*where) if where != (experiment, arm) else None
        return found

    def base(self, kind: str, experiment: str) -> ArmRuns | None:
        """The evaluation of an untrained policy (``base`` or ``clean``) in an experiment's task."""
        if BASE not in self.runs:
            return None
        runs = self.runs[BASE]
        rows = runs.evaluation[(runs.evaluation["arm"] == kind) & (runs.evaluation["experiment"] == experiment)]
        return None if rows.empty else ArmRuns(experiment, kind, runs.metrics, rows, runs.source)

    def arms(self, experiment: str) -> dict[str, ArmRuns]:
        """The arms of an experiment that were run, in the configuration's order."""
        found = {arm: self.arm(experiment, arm) for arm in self._arms(experiment)}
        return {arm: runs for arm, runs in found.items() if runs is not None}

    def missing(self, experiment: str, arms: Iterable[str]) -> str:
        """Arms that were not run, or with fewer seeds than the scale asks for, in words; "" if there are none."""
        lacking: dict[str, list[str]] = {}
        for arm in arms:
            found = self.arm(experiment, arm)
            seeds = 0 if found is None else len(found.seeds)
            wanted = self.scale.seeds_of(experiment)
            if seeds < wanted:
                words = f"{seeds} of {wanted} seeds" if seeds else "not run"
                lacking.setdefault(words, []).append(arm)
        return "; ".join(f"{words}: {', '.join(names)}" for words, names in lacking.items())

    @property
    def datasets(self) -> tuple[str, ...]:
        """All evaluation datasets, in-domain first."""
        return (*self.scale.in_domain, *self.scale.out_of_domain)

    def stand_in(self, word: str, experiment: str) -> str:
        """The data set of this scale that ``facts`` or ``bridge`` means: the first and second that are trained on."""
        trained = self.scale.experiments[experiment].train_on if experiment in self.scale.experiments else ()
        return dict(zip(TRAINED_ON, trained, strict=False)).get(word, word)

    def _arms(self, experiment: str) -> Mapping[str, object]:
        return self.scale.experiments[experiment].arms if experiment in self.scale.experiments else {}

    def _own(self, experiment: str, arm: str) -> ArmRuns | None:
        if experiment not in self.runs:
            return None
        runs = self.runs[experiment]
        evaluation = runs.evaluation[runs.evaluation["arm"] == arm]
        if evaluation.empty:
            return None
        return ArmRuns(experiment, arm, runs.metrics[runs.metrics["arm"] == arm], evaluation, _source(runs, arm))


def _source(runs: Runs, arm: str) -> str:
    """Where an arm's runs are from; seeds are counted where they differ."""
    labels = [runs.source if (label := imported(manifest)) is None else f"imported: {label}"
              for key, manifest in runs.manifests.items() if key.rpartition("/")[0] == arm]
    words = [name if len({*labels}) == 1 else f"{name} ({labels.count(name)} of {len(labels)} seeds)"
             for name in dict.fromkeys(labels)]
    return ", ".join(words) or runs.source


def sources(found: Iterable[ArmRuns | None]) -> str:
    """Whose runs these are, in words: fresh, shipped, imported, several with what is what, or ``not run``."""
    by_source: dict[str, list[str]] = {}
    for arm in found:
        if arm is not None:
            names = by_source.setdefault(arm.source, [])
            names += [] if arm.experiment in names else [arm.experiment]
    if len(by_source) == 1:
        return next(iter(by_source))
    return "; ".join(f"{source}: {', '.join(names)}" for source, names in sorted(by_source.items())) or "not run"


def seed_counts(found: Iterable[ArmRuns | None]) -> str:
    """Seeds an arm, in words: ``10``, or ``3 to 10`` where the arms differ.

    >>> seed_counts([])
    '0'
    """
    counts = sorted({len(arm.seeds) for arm in found if arm is not None}) or [0]
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
