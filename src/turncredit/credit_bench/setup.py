"""Inputs of the bench: the policy of a checkpoint, the task of an experiment, and the arms that are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from turncredit.config.algorithm import Algorithm
from turncredit.config.credit_bench import INITIAL
from turncredit.config.load import RunConfig, Scale
from turncredit.errors import CheckpointError, ConfigError, nearest
from turncredit.files import json_sha256
from turncredit.tasks.registry import plugin_of
from turncredit.training.run_folder import RunPaths


def bench_config(scale: Scale, base: int) -> RunConfig:
    """The task, reward values and training settings of the bench's experiment, without any arm's overrides.

    Args:
        scale: its configuration.
        base: the base policy.

    Raises:
        ConfigError: no such base policy.
    """
    return scale.without_overrides(experiment_name(scale), base)


def experiment_name(scale: Scale) -> str:
    """The experiment whose task the bench plays."""
    return scale.credit_bench.experiment or next(iter(scale.experiments))


def policy_folder(root: Path, scale: Scale, config: RunConfig, checkpoint: str) -> Path:
    """The folder of a checkpoint's policy.

    Args:
        root: the clone.
        scale: its configuration.
        config: of the bench (``bench_config``).
        checkpoint: ``initial``, or the policy of an arm's first seed: ``ARM.final`` or ``ARM.step-20``.

    Raises:
        ConfigError: no such arm.
        CheckpointError: the policy is not there.
    """
    trained = trained_run(scale, config, checkpoint)
    if trained is None:
        return _existing(RunPaths.under(root, config).policy, "the bench's initial policy")
    paths, when = RunPaths.under(root, trained), checkpoint.rpartition(".")[2]
    folder = paths.final_policy if when == "final" else paths.checkpoints / when / "policy"
    return _existing(folder, f"checkpoint {checkpoint!r}")


def trained_run(scale: Scale, config: RunConfig, checkpoint: str) -> RunConfig | None:
    """The run whose policy a checkpoint is; None for ``initial``.

    Raises:
        ConfigError: no such arm.
    """
    if checkpoint == INITIAL:
        return None
    arm = checkpoint.rpartition(".")[0]
    return scale.run(*scale.identical(experiment_name(scale), _known(scale, arm)), config.seed, config.base)


def bench_hash(scale: Scale, base: int) -> str:
    """Hash of all settings that change the bench's numbers; the policy and the data are not part of it."""
    config = bench_config(scale, base)
    arms = {name: algorithm.hashed_fields() for name, algorithm in arms_of(scale, config).items()}
    return json_sha256([config.settings(), arms, scale.credit_bench.hashed_fields(exclude={"checkpoints"}),
                        scale.retriever_of(experiment_name(scale)).result_settings()])[:16]


def _known(scale: Scale, arm: str) -> str:
    arms = scale.experiments[experiment_name(scale)].arms
    if arm not in arms:
        raise ConfigError(f"no arm {arm!r} in experiment {experiment_name(scale)!r}", nearest(arm, arms))
    return arm


def _existing(folder: Path, what: str) -> Path:
    if not (folder / "config.json").exists():
        raise CheckpointError(f"{folder}: {what} is missing",
                              "train it first; a run keeps its last two checkpoints and the final policy")
    return folder


def arms_of(scale: Scale, config: RunConfig, chosen: Sequence[str] = ()) -> Mapping[str, Algorithm]:
    """The algorithms to compare, by arm.

    Every algorithm of ``config/algorithms.yaml`` whose content the task has, and every further arm of the scale's
    experiments that differs from them in the algorithm alone.

    Args:
        scale: its configuration.
        config: of the bench (``bench_config``).
        chosen: only these arms; empty: all.

    Raises:
        ConfigError: no such arm.
    """
    known = plugin_of(config.task.name).contents
    arms = {name: algorithm for name, algorithm in scale.algorithms.items() if algorithm.content in known}
    for name, experiment in scale.experiments.items():
        for arm in experiment.arms:
            run = scale.run(name, arm, 0)
            if (run.task, run.rewards, run.training) == (config.task, config.rewards, config.training) \
                    and run.algorithm not in arms.values():
                arms[arm] = run.algorithm
    for arm in chosen:
        if arm not in arms:
            raise ConfigError(f"no arm {arm!r} for the credit bench of scale {scale.name!r}", nearest(arm, arms))
    return {arm: algorithm for arm, algorithm in arms.items() if not chosen or arm in chosen}
