"""Writes manifest.json: code revision, configuration, inputs, packages and hardware of a run."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import turncredit
from turncredit.files import write_text

_PACKAGES = ("torch", "transformers", "accelerate", "tokenizers", "safetensors", "numpy", "pandas", "pyserini",
             "snakemake")


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def code_revision() -> tuple[str, bool | None]:
    """Return the clone's commit and whether tracked files differ from it; ("unknown", None) without git."""
    def git(*arguments: str) -> str:
        return subprocess.run(["git", "-C", str(Path(turncredit.__file__).parent), *arguments], check=True,
                              capture_output=True, text=True, timeout=60).stdout.strip()
    try:
        return git("rev-parse", "HEAD"), bool(git("status", "--porcelain", "--untracked-files=no"))
    except (OSError, subprocess.SubprocessError):
        return "unknown", None


def provenance() -> dict[str, Any]:
    """Return code revision, package versions and hardware of this process."""
    revision, dirty = code_revision()
    packages = {}
    for name in _PACKAGES:
        try:
            packages[name] = version(name)
        except PackageNotFoundError:
            packages[name] = "not installed"
    return {
        "code_revision": revision, "dirty": dirty,
        "packages": {"python": platform.python_version(), "turncredit": turncredit.__version__, **packages},
        "hardware": {
            "host_cpus": os.cpu_count(), "machine": platform.machine(), "system": platform.system(),
            "torch_threads": torch.get_num_threads(),
            "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]}}


def write_manifest(path: Path, manifest: Mapping[str, Any]) -> None:
    """Write a manifest atomically."""
    write_text(path, json.dumps(manifest, indent=2, sort_keys=True) + "\n")
