"""Checks that collected files are whole: hashes of the files, and each run's rows against its manifest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from turncredit.errors import DataError
from turncredit.files import question_ids_sha256, sha256, write_text
from turncredit.reporting.schema import mending

SUMS = "SHA256SUMS"  # as `sha256sum` writes it: `sha256sum -c SHA256SUMS` checks it too
RETRAIN = "remove the run's folders under results/ and checkpoints/, and train it again"
_COLLECT = "collect the runs again"


def write_sums(folder: Path, names: Iterable[str]) -> None:
    """Write the hashes of a folder's files into ``SHA256SUMS``."""
    write_text(folder / SUMS, "".join(f"{sha256(folder / name)}  {name}\n" for name in sorted(names)))


def check_sums(folder: Path, names: Iterable[str]) -> None:
    """Compare files with ``SHA256SUMS``.

    Raises:
        DataError: a file, or its hash, is missing, or a file has changed since it was collected.
    """
    sums = folder / SUMS
    try:
        lines = sums.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{sums}: cannot be read: {error}", mending(sums, _COLLECT)) from error
    known = {name: digest for digest, _, name in (line.partition("  ") for line in lines)}
    for name in names:
        path = folder / name
        if sha256(path, mending(path, _COLLECT)) != known.get(name):
            raise DataError(f"{path}: is not the file whose hash is in {SUMS}", mending(path, _COLLECT))


def check_finished(manifest: Mapping[str, Any], where: str, remedy: str) -> None:
    """Check that a run has ended.

    Raises:
        DataError: it has not.
    """
    if not manifest.get("ended") or manifest.get("state", "finished") != "finished":
        raise DataError(f"{where}: the run has not finished", remedy)


def check_steps(found: Sequence[int], steps: int | None, where: str, remedy: str) -> None:
    """Check that a run's rows are those of all its training steps, from 0 or 1 to ``steps`` (None: not checked).

    Raises:
        DataError: a step is missing, or the last one is not ``steps``.
    """
    if [*found] != [*range(found[0], found[0] + len(found))] or found[0] > 1 or steps not in (None, found[-1]):
        expected = "" if steps is None else f"; the manifest says {steps} steps"
        raise DataError(f"{where}: column 'step' runs from {found[0]} to {found[-1]} in {len(found)} rows{expected}",
                        remedy)


def check_questions(manifest: Mapping[str, Any], evaluation: pd.DataFrame, where: str, remedy: str) -> None:
    """Check that a run was evaluated on the questions that its manifest names.

    Raises:
        DataError: an episode is missing or of another question.
    """
    asked = {(str(a), str(b)) for a, b in zip(evaluation["dataset"], evaluation["question_id"], strict=True)}
    if manifest.get("evaluation_ids_sha256", wanted := question_ids_sha256(asked)) != wanted:
        raise DataError(f"{where}: evaluation_ids_sha256 is not the hash of the {len(asked)} questions in its "
                        "evaluation", remedy)
