"""Keeps the finished parts of a long evaluation, so that one that was interrupted goes on where it stopped."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turncredit.episodes.records import GroupRecord, read_records, write_records
from turncredit.files import write_text

PART = 2048  # items; an evaluation of fewer is played at once and keeps no parts
_IDENTITY = "identity.json"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Part:
    """The result of some items: rows of evaluation.csv, and the whole episodes that may be kept of them."""

    rows: Sequence[Mapping[str, Any]]
    examples: Sequence[GroupRecord]


@dataclass(frozen=True, slots=True)
class PartialEvaluation:
    """The parts of one evaluation in a folder, two files each.

    Attributes:
        folder: holds the parts until the evaluation is complete.
    """

    folder: Path

    @classmethod
    def open(cls, folder: Path, identity: str) -> PartialEvaluation:
        """The parts in ``folder`` if they are of the same evaluation, else none.

        Args:
            folder: made if it does not exist.
            identity: hash of policy, settings and items; parts of another one are removed.
        """
        try:
            found = json.loads((folder / _IDENTITY).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = None
        if found != identity:
            if found is not None:
                _log.warning("%s: parts of another policy, configuration or data; evaluating from the start", folder)
            shutil.rmtree(folder, ignore_errors=True)
            write_text(folder / _IDENTITY, json.dumps(identity))
        return cls(folder)

    def read(self, name: str) -> Part | None:
        """Return a part; None if it is not there yet."""
        rows = self.folder / f"{name}.json"
        if not rows.exists():
            return None
        return Part(json.loads(rows.read_text(encoding="utf-8")), read_records(self.folder / f"{name}.jsonl"))

    def write(self, name: str, part: Part) -> None:
        """Write a part; its rows come last, so that a part with rows is complete."""
        write_records(self.folder / f"{name}.jsonl", part.examples)
        write_text(self.folder / f"{name}.json", json.dumps([*part.rows]))

    def remove(self) -> None:
        """Remove all parts; the evaluation is complete."""
        shutil.rmtree(self.folder, ignore_errors=True)
