"""Runs that were made elsewhere: checked, brought in under ``results/imported``, and called so ever after.

What is brought in is a run's files (metrics.csv and evaluation.csv, or the evaluation alone), or a
Hugging Face checkpoint that is evaluated here. By importing it a person says that it is a run of that
arm; what can be checked is checked, and the manifest tells what was not.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from turncredit.config.load import RunConfig, Scale
from turncredit.data.questions import ids_digest
from turncredit.errors import ConfigError, DataError, nearest
from turncredit.files import atomic_folder, sha256
from turncredit.reporting.runs import check_config, read_metrics
from turncredit.reporting.schema import EVALUATION, read_cells, typed
from turncredit.reporting.scores import DECODING

FOLDER = "imported"
MANIFEST = "manifest.json"
_DECLARED = "as declared, not checked"


def imported_run(root: Path, config: RunConfig) -> Path:
    """Where an imported run of this configuration lies."""
    return root / "results" / FOLDER / config.scale / config.experiment / config.arm / f"seed-{config.seed}"


def import_run(source: Path, config: RunConfig, scale: Scale, label: str, root: Path,
               questions: Sequence[tuple[str, str]] | None, when: str) -> Path:
    """Bring a run in.

    Args:
        source: a folder with evaluation.csv, and metrics.csv and manifest.json if there are any; or a
            Hugging Face checkpoint, whose evaluation is left to ``turncredit evaluate``.
        config: the run that it stands for.
        scale: gives the data sets of the evaluation.
        label: where it is from, in a few words: it stands beside every number.
        root: the clone.
        questions: (data set, id) of the test questions here; None: not known, so not compared.
        when: the time, for the manifest.

    Returns:
        the run's folder.

    Raises:
        ConfigError: a label that cannot be shown.
        DataError: files are missing or break their schema, were made with other settings or for other
            questions, or there is such a run already.
    """
    if not label.strip() or set(label) & set(";|\n"):
        raise ConfigError(f"--label {label!r}: is blank, or holds ; or | or a line break", "say who made it, and where")
    run = imported_run(root, config)
    if run.exists():
        raise DataError(f"{run}: there is such a run already", "remove that folder first")
    if (source / "evaluation.csv").exists():
        files, manifest = _files(source, config, scale, questions)
    elif (source / "config.json").exists() and list(source.glob("*.safetensors")):
        files, manifest = {}, _checkpoint(source, questions)
    else:
        raise DataError(f"{source}: holds neither evaluation.csv nor a checkpoint (config.json with *.safetensors)",
                        f"did you mean a folder in it? {_inside(source)}")
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


def _files(source: Path, config: RunConfig, scale: Scale,
           questions: Sequence[tuple[str, str]] | None) -> tuple[dict[str, Path], dict[str, Any]]:
    """The files to copy, and what the manifest says of them."""
    files = {name: source / name for name in ("evaluation.csv", "metrics.csv") if (source / name).exists()}
    steps: int | None = None
    if "metrics.csv" in files:
        steps = int(read_metrics(files["metrics.csv"])["step"].iloc[-1])
    evaluation = typed(read_cells(files["evaluation.csv"]), EVALUATION, files["evaluation.csv"])
    greedy = evaluation[evaluation["decoding"] == DECODING]
    wanted, found = scale.evaluated(config.experiment), {*map(str, greedy["dataset"])}
    if missing := [name for name in wanted if name not in found]:
        raise DataError(f"{files['evaluation.csv']}: no {DECODING} episodes of {missing[0]!r}",
                        nearest(missing[0], found))
    if strangers := sorted(found - {*wanted}):
        raise DataError(f"{files['evaluation.csv']}: {strangers[0]!r} is no data set of {config.experiment}",
                        nearest(strangers[0], wanted))
    asked = [(str(a), str(b)) for a, b in zip(greedy["dataset"], greedy["question_id"], strict=True)]
    _compare(asked, questions, files["evaluation.csv"])
    origin: dict[str, Any] = {
        "files": {name: sha256(path) for name, path in files.items()}, "metrics": "metrics.csv" in files,
        "questions": "not compared" if questions is None else "the same", "settings": _DECLARED}
    if (theirs := source / MANIFEST).exists():
        manifest = _read(theirs)
        made = check_config(manifest, scale, str(theirs))
        if (made.experiment, made.arm, made.seed) != (config.experiment, config.arm, config.seed):
            raise DataError(f"{theirs}: is of {made.experiment}/{made.arm}/seed-{made.seed}", "import it as that run")
        origin |= {"settings": "the same", "manifest": manifest}
    return files, {"origin": origin, "steps": steps, "evaluation_ids_sha256": ids_digest(asked)}


def _checkpoint(source: Path, questions: Sequence[tuple[str, str]] | None) -> dict[str, Any]:
    if questions is None:
        raise DataError(f"{source}: a checkpoint is evaluated here, and the data of the scale are not",
                        "make them first: snakemake data")
    files = {path.name: sha256(path) for path in sorted(source.glob("*.safetensors"))}
    origin = {"files": files, "metrics": False, "questions": "the same", "settings": _DECLARED}
    return {"origin": origin, "steps": None, "evaluation_ids_sha256": ids_digest(questions)}


def _compare(asked: Sequence[tuple[str, str]], questions: Sequence[tuple[str, str]] | None, path: Path) -> None:
    if questions is None or sorted(asked) == sorted(questions):
        return
    odd = min({*asked} ^ {*questions}, default=asked[0])
    raise DataError(f"{path}: was not evaluated on the test questions here: {' '.join(odd)}",
                    "evaluate the run's checkpoint here instead")


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {error}", "mend it, or leave it out") from error
    return found


def _inside(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    return ", ".join(names[:5]) or "there is none"
