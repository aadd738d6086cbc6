"""Run folders as training would write them, made by a few lines of arithmetic: for tests of reporting."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from turncredit.config.load import RunConfig, Scale, load_scale
from turncredit.files import question_ids_sha256
from turncredit.reporting.runs import collect, read_folders
from turncredit.reporting.scores import Results

STEPS, EVERY, QUESTIONS = 30, 5, 20
LIFT = (0.0, 0.15, 0.1)  # of each rate over exact match
RATES = ("answer_correct", "format_correct", "retrieval_correct")
TOP = {  # final exact match, roughly, of each arm
    "GRPO-OR": 0.35, "GRPO-MR": 0.55, "MT-GRPO": 0.6, "PPO-OR": 0.5, "PPO-MR": 0.62, "MT-PPO": 0.8,
    "lambda-0.0": 0.3, "turns-5": 0.78, "turns-6": 0.79, "retrieval-delayed": 0.62,
    "retrieval-per_turn": 0.66, "full-delayed": 0.7}
PARTS = {"tool_execution": 0.2, "search_answer": 0.5, "answer_presence": 0.5, "exact_match": 1.0,
         "xml_format": 0.2, "xml_tags": 0.2}


def scale(seeds: int = 3, bases: int = 1) -> Scale:
    """Scale mini on data sets, with turns and with small experiments that the tests name, whatever mini has."""
    mini = load_scale("mini")
    assert mini.world is not None
    world = mini.world.model_copy(update={"in_domain": ("facts", "bridge"),
                                          "out_of_domain": ("inverse", "compose", "chain")})
    experiments = {
        name: found.model_copy(update={"seeds": None} if len(found.train_on) == 1 else {
            "train_on": type(found.train_on)(("facts", "bridge")), "seeds": None,
            "task": found.task.model_copy(update={"max_turns": 4})})
        for name, found in mini.experiments.items() if name != "readings"}
    crossed, ablation = experiments.pop("factorial"), experiments["ablation"]
    longer = ablation.arms["turns-7"]
    experiments["placement"] = crossed.model_copy(update={"arms": {
        name.removeprefix("critic-"): arm for name, arm in crossed.arms.items()
        if re.fullmatch("critic-(retrieval|full)-(delayed|per_turn)", name)}})
    experiments["ablation"] = ablation.model_copy(update={"arms": {
        **{name: arm for name, arm in ablation.arms.items() if name.startswith("lambda")},
        **{f"turns-{n}": longer.model_copy(update={"overrides": longer.overrides.model_copy(
            update={"task": {"max_turns": n}})}) for n in (5, 6)}}})
    return mini.model_copy(update={"seeds": seeds, "base_policies": bases, "world": world, "experiments": experiments})


def rng_of(*names: object) -> np.random.Generator:
    return np.random.default_rng(int.from_bytes(hashlib.sha256(repr(names).encode()).digest()[:8]))


def write_run(root: Path, config: RunConfig, found: Scale) -> Path:
    """A finished run of ``config`` under ``root``."""
    folder = root / config.experiment / config.key
    folder.mkdir(parents=True)
    metrics_of(config, found).to_csv(folder / "metrics.csv", index=False)
    evaluation = evaluation_of(config.experiment, config.arm, config.random_seed, found)
    evaluation.to_csv(folder / "evaluation.csv", index=False)
    asked = zip(evaluation["dataset"], evaluation["question_id"], strict=True)
    (folder / "manifest.json").write_text(json.dumps({
        "code_revision": "0" * 40, "dirty": False, "config": config.model_dump(mode="json"),
        "config_sha256": config.digest(), "seed": config.seed, "data": {}, "packages": {}, "hardware": {},
        "started": "2025-01-01T00:00:00+00:00", "ended": "2025-01-01T00:01:00+00:00", "resumed_from": [],
        "steps": STEPS, "evaluation_ids_sha256": question_ids_sha256(asked)}))
    return folder


def metrics_of(config: RunConfig, found: Scale) -> pd.DataFrame:
    rng = rng_of("metrics", config.experiment, config.arm, config.random_seed)
    top, pace = TOP.get(config.arm, 0.5) + rng.normal(0, 0.03), 6 + 3 * rng.random()
    rows = []
    for step in range(STEPS + 1):
        level = 0.12 + (top - 0.12) / (1 + np.exp(-(step - 12) / pace * 2))
        def noisy(value: float) -> float:
            return float(np.clip(value + rng.normal(0, 0.04), 0, 1))

        row: dict[str, Any] = {"step": step}
        if step:
            rates = {rate: noisy(level + extra) for rate, extra in zip(RATES, LIFT, strict=True)}
            row |= {
                "wall_s": step * 1.5, "questions": 40, "tokens_sampled": 2000, "tokens_trained": 2000,
                "tokens_env": 3000, "reward_intermediate": 0.0,
                "trajectories": 40 * (1 if config.algorithm.estimator == "critic" else 8),
                "turns_mean": 1.2 + level * 1.5, "searches_mean": level * 1.4, "reward_total": level,
                "reward_outcome": level, **rates, "policy_loss": 0.0, "kl": 0.01, "entropy": 1.0, "clip_fraction": 0.0,
                "value_loss": 0.1 if config.algorithm.estimator == "critic" else None, "grad_norm": 0.5,
                "sampler_trainer_kl": 0.0, "stop_answered": 1.0, "stop_turn_limit": 0.0, "stop_context_overflow": 0.0,
                "stop_invalid_limit": 0.0, "seconds_rollout": 1.0, "seconds_scoring": 0.2, "seconds_update": 0.3}
            row |= {f"component_{name}": most * noisy(level + 0.2) for name, most in PARTS.items()}
            row |= {f"{d}_{rate}": noisy(value - 0.1 * (d == "bridge"))
                    for d in config.train_on for rate, value in rates.items()}
            row |= {f"{d}_turns_mean": 1.2 + level * 1.5 for d in config.train_on}
        if step % EVERY == 0:
            row |= {f"validation_{d}_{rate}": noisy(level + extra - 0.1 * (d == "bridge"))
                    for d in dict.fromkeys((*found.in_domain, *config.train_on))
                    for rate, extra in zip(RATES, LIFT, strict=True)}
        rows.append(row)
    columns = ["critic_grad_norm", "zero_std_groups", "collapse"]
    return pd.DataFrame(rows).assign(**dict.fromkeys(columns))


def evaluation_of(experiment: str, arm: str, seed: int, found: Scale) -> pd.DataFrame:
    rng = rng_of("evaluation", experiment, arm, seed)
    lift = rng.normal(0, 0.03)
    rows = []
    for dataset, hops in zip(found.evaluated(experiment), itertools.cycle((1, 2, 1, 2, 3)), strict=False):
        level = TOP.get(arm, 0.12 if arm == "initial" else 0.95) + lift - 0.08 * (hops - 1)
        for n in range(QUESTIONS):
            right = rng.random() < level
            searches = int(rng.integers(0, 3))
            rows.append({
                "dataset": dataset, "question_id": f"{dataset}-test-{n}", "hops": hops,
                "prediction": "NA" if right else "", "answer_correct": float(right), "f1": float(right),
                "format_correct": float(rng.random() < level + 0.15),
                "retrieval_correct": float(rng.random() < level + 0.1), "turns": searches + 1, "searches": searches,
                "stop_reason": "answered" if rng.random() < 0.9 else "turn_limit", "decoding": "greedy",
                **{f"component_{name}": most * float(rng.random() < level + 0.1) for name, most in PARTS.items()}})
    return pd.DataFrame(rows)


def write_experiments(root: Path, found: Scale, seeds: Mapping[str, int]) -> list[Path]:
    """Collected folders of experiments under ``root``, with so many seeds a base; ``same_as`` arms are shared."""
    made: dict[tuple[str, str, int, int], Path] = {}
    folders = []
    for experiment, count in seeds.items():
        if experiment == "untrained":
            runs = [write_untrained(root, kind, found, base) for kind in ("initial", "expert")
                    for base in range(found.base_policies)]
        else:
            arms = found.experiments[experiment].arms
            keys = [(*found.identical(experiment, arm), seed, base) for arm in arms
                    for base in range(found.base_policies) for seed in range(count)]
            for key in keys:
                if key not in made:
                    made[key] = write_run(root, found.run(*key), found)
            runs = [made[key] for key in keys]
        collect(experiment, runs, root / experiment, found)
        folders.append(root / experiment)
    return folders


def write_untrained(root: Path, kind: str, found: Scale, base: int = 0) -> Path:
    folder = root / "untrained" / kind / f"base-{base}"
    folder.mkdir(parents=True)
    pd.concat(evaluation_of(experiment, kind, base, found).assign(experiment=experiment)
              for experiment in ("search", "two_turn")).to_csv(folder / "evaluation.csv", index=False)
    return folder


def results(root: Path, seeds: Mapping[str, int], found: Scale | None = None) -> Results:
    found = found or scale()
    return Results(found, read_folders(write_experiments(root, found, seeds), found))


ALL = {"search": 3, "two_turn": 3, "ablation": 3, "placement": 3, "untrained": 1}
