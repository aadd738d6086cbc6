"""Folder names of runs and base policies, relative to the clone."""

from __future__ import annotations

from pathlib import Path


def run_key(arm: str, base: int, seed: int) -> str:
    """The key of a run among those of its experiment, and the end of its folder's path.

    >>> run_key("MT-PPO", 1, 0)
    'MT-PPO/base-1/seed-0'
    """
    return f"{arm}/base-{base}/seed-{seed}"


def base_folder(scale: str, base: int) -> Path:
    """The folder of a base policy: ``initial/<task>`` and, after a warm start, ``expert`` and attempts.csv.

    >>> base_folder("mini", 2).as_posix()
    'policy/mini/base-2'
    """
    return Path("policy", scale, f"base-{base}")
