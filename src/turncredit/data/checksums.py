"""Checks data files against the hashes that ``world.json`` records."""

from __future__ import annotations

import json
from pathlib import Path

from turncredit.errors import DataError
from turncredit.files import sha256


def recorded_hashes(data: Path) -> dict[str, str]:
    """The sha256 of each data file of a scale, by its path under the folder ``data``.

    Raises:
        DataError: ``world.json`` is missing or malformed.
    """
    path = data / "world.json"
    try:
        hashes: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))["sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: cannot be read: {error}", _remake(data)) from error
    return hashes


def checked_file(data: Path, name: str) -> Path:
    """The path of a data file, after comparing its bytes with the hash in ``world.json``.

    Raises:
        DataError: the file is missing or altered.
    """
    path = data / name
    if sha256(path, _remake(data)) != recorded_hashes(data).get(name):
        raise DataError(f"{path}: differs from the sha256 in world.json", _remake(data))
    return path


def _remake(data: Path) -> str:
    """The command that writes the data files of a scale, even if Snakemake takes them for finished."""
    return f"make it again: snakemake --cores 2 --force data/{data.name}/world.json"
