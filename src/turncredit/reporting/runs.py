"""Reads, checks and collects run files.

A run is a folder ``{experiment}/{arm}/base-{b}/seed-{n}`` with metrics.csv, evaluation.csv and manifest.json.
``collect`` joins the runs of one experiment into four files that are small enough to ship; ``read_collected`` reads
them as ``Runs``, from which all tables, figures and the audit are made.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from pydantic import ValidationError

from turncredit.config.credit_bench import COLLECTED, CREDIT_BENCH
from turncredit.config.load import RUNTIME_KEYS, RunConfig, Scale
from turncredit.config.paths import run_key
from turncredit.episodes.records import GroupRecord, read_records, write_records
from turncredit.errors import ConfigError, DataError, nearest
from turncredit.files import atomic, write_text
from turncredit.reporting.catalogue import UNTRAINED
from turncredit.reporting.credit_bench import read_table
from turncredit.reporting.integrity import (
    RETRAIN,
    check_finished,
    check_questions,
    check_steps,
    check_sums,
    write_sums,
)
from turncredit.reporting.schema import (
    RUN,
    Schema,
    collected,
    evaluation_schema,
    mending,
    metrics_schema,
    read_cells,
    same_columns,
    typed,
)
from turncredit.tasks.registry import TASKS

Source = Literal["fresh", "shipped"]

FILES = ("metrics.csv", "evaluation.csv.gz", "manifests.json", "episodes.jsonl")  # of an experiment's collected runs
_COLLECT = "collect the runs again"
_STEPLESS = pd.DataFrame({"step": pd.Series(dtype=str)})


@dataclass(frozen=True)
class Runs:
    """All runs of one experiment, over arms, base policies and seeds.

    Attributes:
        experiment: its name in the configuration; ``untrained`` for the untrained policies; ``credit_bench``, whose
            ``metrics`` is the bench's table, without evaluations.
        metrics: rows of metrics.csv after columns for experiment, arm, base and seed; no rows for ``untrained``.
        evaluation: rows of evaluation.csv after the same columns.
        manifests: ``"{arm}/base-{b}/seed-{n}"`` -> manifest; empty for ``untrained``.
        episodes: a few whole episodes of each arm's first run.
        source: trained on this machine (fresh) or committed with the code (shipped). The manifest of an imported run
            holds its label (``import_label``).
    """

    experiment: str
    metrics: pd.DataFrame
    evaluation: pd.DataFrame
    manifests: Mapping[str, Mapping[str, Any]]
    source: Source
    episodes: tuple[GroupRecord, ...] = ()


def collect(experiment: str, run_dirs: Iterable[Path], out_dir: Path, scale: Scale) -> None:
    """Join finished runs of one experiment into four files (``FILES``), with their hashes in ``SHA256SUMS``.

    Cells are copied unchanged, sorted by arm, base and seed; the same runs give the same bytes. An arm with ``same_as``
    takes the runs of that arm under its own name; their manifests keep the original names. ``untrained`` has
    evaluations only. Of the whole episodes (``episodes.records``) a few of each arm's first run are kept.

    Args:
        experiment: its name, or ``untrained``.
        run_dirs: folders of its runs.
        out_dir: folder for the files.
        scale: the configuration; all runs must have been trained with it.

    Raises:
        DataError: a file is missing or breaks its schema; a run is unfinished, was trained with another
            configuration, belongs to no arm or is passed twice; runs were evaluated on different questions.
        ConfigError: no such experiment.
    """
    read = _read_untrained_run if experiment == UNTRAINED else _read_run
    runs = sorted((run for folder in run_dirs for run in read(folder, experiment, scale)), key=lambda run: run.order)
    if not runs:
        raise DataError(f"{out_dir}: no runs to collect", "train the experiment first")
    for one, other in pairwise(runs):
        if one.order == other.order:
            raise DataError(f"{other.folder}: {other.key} a second time, after {one.folder}",
                            "pass each run once")
    evaluation = _joined([(run, run.evaluation) for run in runs])
    _same_questions(evaluation, out_dir)
    for run in runs:
        check_questions(run.manifest, run.evaluation, str(run.folder / "manifest.json"), RETRAIN)
    if len({run.manifest.get("evaluation_ids_sha256") for run in runs}) > 1:
        raise DataError(f"{out_dir}: evaluation_ids_sha256 differs between the runs' manifests", RETRAIN)
    write_text(out_dir / "metrics.csv", _csv(_joined([(run, run.metrics) for run in runs])))
    with atomic(out_dir / "evaluation.csv.gz") as temporary:
        temporary.write_bytes(gzip.compress(_csv(evaluation).encode(), compresslevel=9, mtime=0))
    manifests = {run.key: run.manifest for run in runs if run.manifest}
    write_text(out_dir / "manifests.json", json.dumps(manifests, indent=1, sort_keys=True) + "\n")
    first_runs = {run.arm: run for run in reversed(runs)}
    write_records(out_dir / "episodes.jsonl", [
        record for arm in sorted(first_runs) for record in _episodes(first_runs[arm])])
    write_sums(out_dir, FILES)


def read_collected(folder: Path, source: Source, scale: Scale | None = None) -> Runs:
    """Read the collected runs of one experiment.

    Args:
        folder: named after the experiment; holds what ``collect`` wrote.
        source: origin of the runs, repeated in every table and figure.
        scale: if given, the runs must have been trained with this configuration.

    Raises:
        DataError: a file is missing, has changed or breaks its schema; the files disagree about which runs there are;
            a run is unfinished, lacks a step or question, or had another configuration.
    """
    experiment = folder.name
    if experiment == CREDIT_BENCH:
        return Runs(CREDIT_BENCH, read_table(folder / COLLECTED[0]), pd.DataFrame(), _read_json(folder / COLLECTED[1]),
                    source)
    check_sums(folder, FILES)
    tasks = _tasks(experiment, scale)
    evaluation = _read(folder / "evaluation.csv.gz", collected(evaluation_schema(tasks)))
    _same_questions(evaluation, folder / "evaluation.csv.gz")
    if experiment == UNTRAINED:
        return Runs(UNTRAINED, _no_metrics(), evaluation, {}, source)
    manifests = _read_json(folder / "manifests.json")
    trained = {key for key, manifest in manifests.items() if not _evaluated_only(manifest)}
    metrics = _read(folder / "metrics.csv", collected(metrics_schema(tasks))) if trained else _no_metrics()
    for file, frame, keys in (("metrics.csv", metrics, trained), ("evaluation.csv.gz", evaluation, {*manifests})):
        if strangers := set(frame["experiment"]) - {experiment}:
            raise DataError(f"{folder / file}: rows of experiment {min(strangers)!r}", mending(folder / file, _COLLECT))
        found = {*map(run_key, frame["arm"], frame["base"], frame["seed"])}
        if odd := found ^ keys:
            raise DataError(f"{folder}: {min(odd)} is in only one of {file} and manifests.json",
                            mending(folder, _COLLECT))
    rows_of, episodes_of = _by_run(metrics), _by_run(evaluation)
    for key, manifest in manifests.items():
        where, remedy = f"{folder / 'manifests.json'}: {key}", mending(folder / "manifests.json", RETRAIN)
        config = check_config(manifest, scale, where, remedy)
        check_finished(manifest, where, remedy)
        if key in trained:
            check_steps(rows_of[key]["step"].tolist(), manifest.get("steps"), where, remedy)
        check_questions(manifest, episodes_of[key], where, remedy)
        if scale is not None and key not in {
                run_key(arm, config.base, config.seed) for arm in _arms(config, experiment, scale)}:
            raise DataError(f"{where}: a run of {config.experiment}/{config.arm}, not of this arm",
                            mending(folder / "manifests.json", _COLLECT))
    if len({manifest.get("evaluation_ids_sha256") for manifest in manifests.values()}) > 1:
        raise DataError(f"{folder / 'manifests.json'}: evaluation_ids_sha256 differs between runs",
                        mending(folder / "manifests.json", RETRAIN))
    return Runs(experiment, metrics, evaluation, manifests, source, tuple(read_records(folder / "episodes.jsonl")))


def read_folders(folders: Iterable[Path], scale: Scale) -> dict[str, Runs]:
    """Collected runs by experiment. Folders under ``shipped`` hold shipped runs, all others fresh ones.

    Raises:
        DataError: see ``read_collected``; or two folders of one experiment.
    """
    found: dict[str, Runs] = {}
    for folder in folders:
        if folder.name in found:
            raise DataError(f"{folder}: a second folder of experiment {folder.name}",
                            "pass one folder for each experiment")
        found[folder.name] = read_collected(folder, "shipped" if "shipped" in folder.parts else "fresh", scale)
    return found


@dataclass(frozen=True)
class _Run:
    """One checked run folder; cells are still text."""

    folder: Path
    experiment: str
    arm: str
    base: int
    seed: int
    metrics: pd.DataFrame
    evaluation: pd.DataFrame
    manifest: dict[str, Any]

    @property
    def order(self) -> tuple[str, int, int]:
        return self.arm, self.base, self.seed

    @property
    def key(self) -> str:
        return run_key(*self.order)


def _read_run(folder: Path, experiment: str, scale: Scale) -> list[_Run]:
    """A run, once under the name of each arm of ``experiment`` that uses it (usually one)."""
    manifest_path = folder / "manifest.json"
    manifest = _read_json(manifest_path)
    config = check_config(manifest, scale, str(manifest_path))
    if "/".join(folder.parts[-3:]) != config.key:
        raise DataError(f"{manifest_path}: belongs to {config.key}, not to this folder", RETRAIN)
    check_finished(manifest, str(manifest_path), "run the same training command again; it resumes")
    metrics = _STEPLESS if _evaluated_only(manifest) else read_metrics(
        folder / "metrics.csv", config.task.name, manifest.get("steps"))
    evaluation = read_cells(folder / "evaluation.csv")
    typed(evaluation, evaluation_schema([config.task.name]), folder / "evaluation.csv")
    arms = _arms(config, experiment, scale)
    if not arms:
        raise DataError(f"{folder}: a run of {config.experiment}/{config.arm}, which is not an arm of {experiment}",
                        "pass runs of one experiment only")
    return [_Run(folder, experiment, arm, config.base, config.seed, metrics, evaluation, manifest) for arm in arms]


def _episodes(run: _Run) -> list[GroupRecord]:
    """One training group and one evaluation episode of each label, with the run's code and initial policy."""
    files = [file for name in ("episodes.jsonl", "evaluation.episodes.jsonl") if (file := run.folder / name).exists()]
    last_of_label = {record.label: record for file in files for record in read_records(file)}
    policy = {name: digest for name, digest in run.manifest.get("data", {}).items() if name.startswith("policy/")}
    origin = {"arm": run.arm, "code_revision": run.manifest.get("code_revision"), "policy": policy}
    return [replace(record, run=record.run | origin) for record in last_of_label.values()]


def read_metrics(path: Path, task: str, steps: int | None = None) -> pd.DataFrame:
    """The cells of a run's metrics.csv as text: one row per training step, starting at step 0 or 1.

    Args:
        path: the file.
        task: the run's task.
        steps: the expected last step; None: not checked.

    Raises:
        DataError: the file breaks its schema, a step is missing, or the last step is not ``steps``.
    """
    cells = read_cells(path)
    found = typed(cells, metrics_schema([task]), path)["step"].tolist()
    check_steps(found, steps, str(path), RETRAIN)
    return cells


def import_label(manifest: Mapping[str, Any]) -> str | None:
    """The label of an imported run; None for a run trained here."""
    origin = manifest.get("origin")
    return str(origin["label"]) if isinstance(origin, dict) and "label" in origin else None


def _evaluated_only(manifest: Mapping[str, Any]) -> bool:
    """Whether a run was imported without training metrics."""
    return import_label(manifest) is not None and not manifest["origin"].get("metrics")


def _no_metrics() -> pd.DataFrame:
    return pd.DataFrame({name: [] for name in (*RUN, "step")})


def _read_untrained_run(folder: Path, experiment: str, scale: Scale) -> list[_Run]:
    """The evaluation of an untrained policy, ``untrained/{kind}/base-{b}``; its seed is 0.

    The optional column ``experiment`` names the experiment whose task was evaluated; without it, that is the
    scale's first experiment.
    """
    path = folder / "evaluation.csv"
    evaluation = read_cells(path)
    if "experiment" not in evaluation.columns:
        evaluation = evaluation.assign(experiment=next(iter(scale.experiments)))
    schema = evaluation_schema(_tasks(UNTRAINED, scale))
    typed(evaluation, replace(schema, columns={**schema.columns, "experiment": RUN["experiment"]},
                              key=("experiment", *schema.key)), path)
    arm, base = folder.parts[-2], folder.name.removeprefix("base-")
    if not base.isdigit():
        raise DataError(f"{folder}: not a run folder", "pass folders like untrained/expert/base-0")
    return [_Run(folder, experiment, arm, int(base), 0, _STEPLESS, evaluation, {})]


def _tasks(experiment: str, scale: Scale | None) -> list[str]:
    """The tasks whose episodes an experiment's files may hold."""
    if scale is None:
        return [*TASKS]
    settings = scale.experiments.get(experiment)
    return [settings.task.name] if settings else [other.task.name for other in scale.experiments.values()]


def _arms(config: RunConfig, experiment: str, scale: Scale) -> list[str]:
    """Arms of ``experiment`` that use the run of ``config``: the arm itself, and arms with ``same_as``."""
    if experiment not in scale.experiments:
        raise ConfigError(f"no experiment {experiment!r} at scale {scale.name!r}",
                          nearest(experiment, scale.experiments))
    made = (config.experiment, config.arm)
    return [arm for arm in scale.experiments[experiment].arms if scale.identical(experiment, arm) == made]


def check_config(manifest: Mapping[str, Any], scale: Scale | None, where: str, remedy: str = RETRAIN) -> RunConfig:
    """The configuration in a manifest, checked against its own hash and against ``scale``.

    Args:
        manifest: content of a run's manifest.json.
        scale: the configuration now; None: not compared.
        where: location of the manifest, for error messages.
        remedy: what to do about a damaged manifest, for error messages.

    Raises:
        DataError: the hash is wrong, or a setting differs.
    """
    raw = manifest.get("config")
    if not isinstance(raw, dict):
        raise DataError(f"{where}: has no 'config'", remedy)
    try:
        config = RunConfig.model_validate(raw)  # a key that is newer than the run takes its default
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise DataError(f"{where}: config does not fit this version: {key}: {first['msg']}", remedy) from error
    if config.digest() != manifest.get("config_sha256"):
        raise DataError(f"{where}: config_sha256 is not the hash of its config", remedy)
    if scale is not None:
        now, then = (c.model_dump(mode="json", exclude=set(RUNTIME_KEYS))
                     for c in (scale.run(config.experiment, config.arm, config.seed, config.base), config))
        if changed := _changed(then, now):
            raise DataError(f"{where}: trained with {changed[0]}",
                            "train again (--config runs=fresh), or revert the configuration")
    return config


def _changed(then: Mapping[str, Any], now: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Keys whose values differ, each with both values in words."""
    found: list[str] = []
    for key, value in now.items():
        before = then.get(key)
        if isinstance(value, dict) and isinstance(before, dict):
            found += _changed(before, value, f"{prefix}{key}.")
        elif before != value:
            found.append(f"{prefix}{key} = {before!r}, but the configuration says {value!r}")
    return found


def _same_questions(evaluation: pd.DataFrame, where: Path) -> None:
    """Check that all runs of an experiment were evaluated on the same questions, greedy and sampled.

    Raises:
        DataError: two runs differ; the message names the first such question.
    """
    first: dict[str, tuple[str, frozenset[tuple[str, ...]]]] = {}
    for (experiment, arm, base, seed), rows in evaluation.groupby([*RUN], sort=True):
        key = run_key(str(arm), int(str(base)), int(str(seed)))
        for _, decoded in rows.groupby("decoding", sort=True):
            asked = frozenset(zip(decoded["dataset"], decoded["question_id"], strict=True))
            name, same = first.setdefault(str(experiment), (key, asked))
            if asked != same:
                odd = " ".join(sorted(asked ^ same)[0])
                raise DataError(f"{where}: {key} and {name} were evaluated on different questions: {odd}",
                                mending(where, "remove the older run's folder and train it again, so that both use "
                                               "the same data"))


def _by_run(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The rows of each run."""
    return {run_key(str(arm), int(str(base)), int(str(seed))): found
            for (arm, base, seed), found in rows.groupby(["arm", "base", "seed"], sort=False)}


def _joined(parts: Sequence[tuple[_Run, pd.DataFrame]]) -> pd.DataFrame:
    """All runs' cells in one frame, after columns for experiment, arm, base and seed."""
    frames = [cells.assign(**({} if "experiment" in cells.columns else {"experiment": run.experiment}),
                           arm=run.arm, base=str(run.base), seed=str(run.seed)) for run, cells in parts]
    columns = [*RUN, *(name for name in same_columns(frames) if name not in RUN)]
    return pd.concat(frames, ignore_index=True).reindex(columns=columns).fillna("")


def _read(path: Path, schema: Schema) -> pd.DataFrame:
    return typed(read_cells(path), schema, path)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}", mending(path, "run snakemake to make it")) from error
    except ValueError as error:
        raise DataError(f"{path}: not valid JSON: {error}", mending(path, RETRAIN)) from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: not a JSON object", mending(path, RETRAIN))
    return content


def _csv(frame: pd.DataFrame) -> str:
    return str(frame.to_csv(index=False, lineterminator="\n"))
