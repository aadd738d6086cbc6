"""attempts.csv: the warm starts that a base policy tried, and what was measured of each."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from turncredit.errors import DataError
from turncredit.files import atomic

FILE = "attempts.csv"
_FIXED = ("attempt", "warm_start_seed", "failed")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One warm start of a base policy.

    Attributes:
        warm_start_seed: its seed.
        measured: difficulty by name; empty where no gate needs it.
        failed: the gates that it failed, in words; "" for the attempt that was taken.
    """

    warm_start_seed: int
    measured: Mapping[str, float]
    failed: str


def write_attempts(folder: Path, attempts: Sequence[Attempt]) -> None:
    """Write a base policy's attempts, in their order, to attempts.csv."""
    names = list(dict.fromkeys(name for attempt in attempts for name in attempt.measured))
    with atomic(folder / FILE) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*_FIXED[:2], *names, *_FIXED[2:]])
        for n, attempt in enumerate(attempts):
            writer.writerow([n, attempt.warm_start_seed, *(attempt.measured.get(name, "") for name in names),
                             attempt.failed])


def read_attempts(folder: Path) -> list[Attempt]:
    """A base policy's attempts, the taken one last; none if it was not made by a warm start.

    Raises:
        DataError: the file cannot be read.
    """
    path = folder / FILE
    if not path.exists():
        return []
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return [Attempt(int(row["warm_start_seed"]),
                            {name: float(cell) for name, cell in row.items() if name not in _FIXED and cell},
                            row["failed"]) for row in csv.DictReader(file)]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{path}: cannot be read: {error!r}", f"remove {folder}, and make it again with snakemake") \
            from error
