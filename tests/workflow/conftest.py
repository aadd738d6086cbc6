"""A clone to run the workflow in. It has the tracked files only, so that no leftover of this folder is used."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from turncredit.workflow.runs import COLLECTED

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Clone:
    """A copy of the tracked files, and the Python that runs Snakemake there."""

    root: Path
    python: Path = Path(sys.executable)

    def snakemake(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run Snakemake there; stdout and stderr are joined."""
        return self.run(str(self.python), "-m", "snakemake", "--cores", "2", *arguments, check=check)

    def run(self, *command: str, check: bool = True, timeout_s: float = 800) -> subprocess.CompletedProcess[str]:
        """Run a command there; with ``check`` it must succeed."""
        done = subprocess.run(command, cwd=self.root, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              stdin=subprocess.DEVNULL, timeout=timeout_s, check=False,
                              env=os.environ | {"OMP_NUM_THREADS": "1"})
        assert not check or done.returncode == 0, done.stdout
        return done

    def jobs(self, *arguments: str) -> dict[str, int]:
        """The jobs of a dry run: rule -> number of jobs, without the targets ``all`` and ``search``."""
        output = self.snakemake(*arguments, "--dry-run", "--quiet", "rules").stdout
        counted = {name: int(count) for name, count in re.findall(r"^(\w+) +(\d+)$", output, re.MULTILINE)}
        return {name: count for name, count in counted.items() if name not in ("total", "all", "search")}


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return make_clone(tmp_path / "clone")


def make_clone(root: Path) -> Clone:
    """Copy the tracked files, with uncommitted edits, to ``root``."""
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=True)
    for name in listed.stdout.split("\0"):
        source = ROOT / name
        if name and (source.exists() or source.is_symlink()):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, root / name, follow_symlinks=False)
    return Clone(root)


@pytest.fixture
def ship(clone: Clone) -> Callable[..., None]:
    """Put empty shipped runs of experiments into the clone."""

    def put(*experiments: str, scale: str = "mini") -> None:
        for experiment in experiments:
            touch(clone.root / "results" / "shipped" / scale / experiment)

    return put


def touch(folder: Path) -> None:
    """Make empty collected files in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in COLLECTED:
        (folder / name).touch()
