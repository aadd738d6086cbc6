"""Imports external runs into ``results/imported`` and labels them permanently.

An import is either a run's files (evaluation.csv, optionally metrics.csv and manifest.json) or a Hugging Face
checkpoint, which is evaluated here. The person who imports it declares which arm it is; the manifest records what was
checked and what was only declared.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turncredit.config.load import RunConfig, Scale
from turncredit.errors import ConfigError, DataError, nearest
from turncredit.files import atomic_folder, question_ids_sha256, sha256
from turncredit.reporting.runs import check_config, read_metrics
from turncredit.reporting.schema import evaluation_schema, read_cells, typed
from turncredit.reporting.scores import DECODING

FOLDER = "imported"
MANIFEST = "manifest.json"
_DECLARED = "as declared, not checked"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")  # one of them is in every checkpoint's folder


def imported_run(root: Path, config: RunConfig) -> Path:
    """The folder for an imported run of this configuration."""
    return root / "results" / FOLDER / config.scale / config.experiment / config.key


def import_run(source: Path, config: RunConfig, scale: Scale, label: str, root: Path,
               questions: Sequence[tuple[str, str]] | None, when: str) -> Path:
    """Import a run.

    Args:
        source: a folder with evaluation.csv and optionally metrics.csv and manifest.json; or a Hugging Face
            checkpoint, which ``turncredit evaluate`` evaluates later.
        config: the run that it is declared to be.
        scale: the scale, for the data sets of the evaluation.
        label: origin in a few words, shown beside every number.
        root: the clone.
        questions: (data set, id) of our test questions; None: unknown, so not compared.
        when: time of the import, for the manifest.

    Returns:
        the folder of the imported run.

    Raises:
        ConfigError: an invalid label.
        DataError: files are missing or break their schema, the run was trained with other settings or evaluated on
            other questions, or this run was imported before.
    """
    if not label.strip() or set(label) & set(";|\n"):
        raise ConfigError(f"--label {label!r}: blank, or contains ; or | or a line break",
                          "name who trained the run, and where")
    run = imported_run(root, config)
    if run.exists():
        raise DataError(f"{run}: already imported", "remove that folder first")
    if (source / "evaluation.csv").exists():
        files, manifest = _files(source, config, scale, questions)
    elif (source / "config.json").exists() and list(source.glob("*.safetensors")):
        files, manifest = {}, _checkpoint(source, questions)
    else:
        raise DataError(f"{source}: has neither evaluation.csv nor a checkpoint (config.json with *.safetensors)",
                        f"did you mean a subfolder? {_inside(source)}")
    manifest |= {"config": config.model_dump(mode="json"), "config_sha256": config.digest(), "seed": config.seed,
                 "state": "finished", "started": when, "ended": when, "resumed_from": []}
    manifest["origin"] |= {"label": label.strip()}
    with atomic_folder(run) as fresh:
        for name, path in files.items():
            (fresh / name).write_bytes(path.read_bytes())
        if not files:
            (fresh / "policy").mkdir()
            for path in sorted(path for path in source.iterdir() if path.is_file()):
                (fresh / "policy" / path.name).symlink_to(path.resolve())
        (fresh / MANIFEST).write_text(json.dumps(manifest, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return run


def check_checkpoint(run: Path) -> None:
    """Compare the files of an imported checkpoint, which are links, with those that were imported.

    Raises:
        DataError: a file is gone or has changed.
    """
    for name, digest in _read(run / MANIFEST)["origin"]["files"].items():
        path = run / "policy" / name
        if sha256(path, "remove that folder, and import the run again") != digest:
            raise DataError(f"{path}: has changed since its import", f"remove {run}, and import the run again")


def _files(source: Path, config: RunConfig, scale: Scale,
           questions: Sequence[tuple[str, str]] | None) -> tuple[dict[str, Path], dict[str, Any]]:
    """The files to copy, and their part of the manifest."""
    files = {name: source / name for name in ("evaluation.csv", "metrics.csv") if (source / name).exists()}
    steps: int | None = None
    if "metrics.csv" in files:
        steps = int(read_metrics(files["metrics.csv"], config.task.name)["step"].iloc[-1])
        if steps != config.training.steps:
            raise DataError(f"{files['metrics.csv']}: ends at step {steps} of {config.training.steps}",
                            "import the finished run, or name the scale it was trained at")
    schema = evaluation_schema([config.task.name])
    evaluation = typed(read_cells(files["evaluation.csv"]), schema, files["evaluation.csv"])
    greedy = evaluation[evaluation["decoding"] == DECODING]
    wanted, found = scale.evaluated(config.experiment), {*map(str, greedy["dataset"])}
    if missing := [name for name in wanted if name not in found]:
        raise DataError(f"{files['evaluation.csv']}: no {DECODING} episodes of {missing[0]!r}",
                        nearest(missing[0], found))
    if strangers := sorted(found - {*wanted}):
        raise DataError(f"{files['evaluation.csv']}: {strangers[0]!r} is not a data set of {config.experiment}",
                        nearest(strangers[0], wanted))
    asked = [(str(a), str(b)) for a, b in zip(greedy["dataset"], greedy["question_id"], strict=True)]
    _compare(asked, questions, files["evaluation.csv"])
    origin: dict[str, Any] = {
        "files": {name: sha256(path) for name, path in files.items()}, "metrics": "metrics.csv" in files,
        "questions": "not compared" if questions is None else "the same", "settings": _DECLARED}
    if (theirs := source / MANIFEST).exists():
        manifest = _read(theirs)
        made = check_config(manifest, scale, str(theirs))
        if (made.experiment, made.key) != (config.experiment, config.key):
            raise DataError(f"{theirs}: belongs to {made.experiment}/{made.key}",
                            "import it as that run")
        origin |= {"settings": "the same", "manifest": manifest}
    return files, {"origin": origin, "steps": steps, "evaluation_ids_sha256": question_ids_sha256(asked)}


def _checkpoint(source: Path, questions: Sequence[tuple[str, str]] | None) -> dict[str, Any]:
    if questions is None:
        raise DataError(f"{source}: a checkpoint needs the data of its scale for its evaluation, and they are missing",
                        "make them first: snakemake data")
    if not any((source / name).exists() for name in _TOKENIZERS):
        raise DataError(f"{source}: a checkpoint without its tokenizer (none of {', '.join(_TOKENIZERS)})",
                        "copy the tokenizer's files of the policy that it was trained from into that folder")
    files = {path.name: sha256(path) for path in sorted(source.iterdir()) if path.is_file()}
    origin = {"files": files, "metrics": False, "questions": "the same", "settings": _DECLARED}
    return {"origin": origin, "steps": None, "evaluation_ids_sha256": question_ids_sha256(questions)}


def _compare(asked: Sequence[tuple[str, str]], questions: Sequence[tuple[str, str]] | None, path: Path) -> None:
    if questions is None or sorted(asked) == sorted(questions):
        return
    odd = min({*asked} ^ {*questions}, default=asked[0])
    raise DataError(f"{path}: not evaluated on our test questions; first difference: {' '.join(odd)}",
                    "import the run's checkpoint instead, which is then evaluated here")


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}", "correct the file, or remove it from the folder") from error
    return found


def _inside(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    return ", ".join(names[:5]) or "it has none"
