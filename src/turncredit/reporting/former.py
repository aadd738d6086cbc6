"""Reads runs shipped before content ``merged`` became one number: it was what ``retrieval`` is now.

Only the arms of ``placement`` have a new name. PPO-MR and GRPO-MR kept theirs (docs/EXPERIMENTS.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from pydantic import ValidationError

from turncredit.config.load import RunConfig

_ARMS = {"merged-delayed": "retrieval-delayed", "merged-per_turn": "retrieval-per_turn"}


def rows_now(frame: pd.DataFrame) -> pd.DataFrame:
    """Rows of collected runs with the arms' names of today."""
    return frame.assign(arm=frame["arm"].replace(_ARMS))


def manifests_now(manifests: Mapping[str, Mapping[str, Any]], experiment: str) -> dict[str, Mapping[str, Any]]:
    """Manifests by ``run_key`` with the arms' names and the content of today.

    A manifest whose hash is not that of its configuration stays as it is, and is refused where it is checked.
    """
    now: dict[str, Mapping[str, Any]] = {}
    for key, manifest in manifests.items():
        arm, _, run = key.partition("/")
        name = _ARMS.get(arm, arm)
        now[f"{name}/{run}"] = manifest if name == arm else _renamed(manifest, experiment, name)
    return now


def _renamed(manifest: Mapping[str, Any], experiment: str, arm: str) -> Mapping[str, Any]:
    try:
        config = RunConfig.model_validate(manifest.get("config"))
    except ValidationError:
        return manifest
    if config.digest() != manifest.get("config_sha256") or config.algorithm.content != "merged":
        return manifest
    algorithm = config.algorithm.model_copy(update={"content": "retrieval"})
    found = config.model_copy(update={"experiment": experiment, "arm": arm, "algorithm": algorithm})
    return {**manifest, "config": found.model_dump(mode="json"), "config_sha256": found.digest()}
