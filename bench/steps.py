"""Times of an arm's training steps: rollout, scoring and update."""

from __future__ import annotations

import resource
from collections.abc import Mapping
from statistics import median
from typing import Any

from bench.cost import CountingLearner
from bench.results import Measured
from turncredit.config.load import RunConfig
from turncredit.credit.base import make_estimator
from turncredit.data.questions import read_split
from turncredit.policy.engines.hf import HFEngine
from turncredit.policy.model import Critic, load_policy
from turncredit.policy.tokenizer import Codec
from turncredit.tasks.env import Service
from turncredit.training.interrupt import StopRequest
from turncredit.training.loop import Progress, Trainer
from turncredit.training.manifest import now
from turncredit.training.run import make_runner
from turncredit.training.run_folder import RunPaths


def arm_steps(config: RunConfig, paths: RunPaths, services: Mapping[str, Service], steps: int,
              peak: float) -> list[Measured]:
    """Train an arm for one warm-up step and ``steps`` measured ones.

    Args:
        config: the run; it is cut to these steps, and does not validate.
        paths: give data and initial policy; checkpoints go to ``paths.checkpoints``.
        services: services with empty caches.
        steps: number of measured steps.
        peak: FLOP/s of this machine (``matmul_peak``).
    """
    training = config.training.model_copy(update={"steps": steps + 1, "validate_every": steps + 1,
                                                  "checkpoint_every": steps + 1})
    config = config.model_copy(update={"training": training})
    codec, estimator = Codec.load(paths.policy), make_estimator(config.algorithm, training)
    policy = load_policy(paths.policy, config.device)
    learner = CountingLearner(policy, Critic(policy) if estimator.uses_critic else None,
                              load_policy(paths.policy, config.device) if training.kl_coefficient else None,
                              training, config.device)
    trainer = Trainer(
        config, make_runner(config, HFEngine(learner.policy, codec), services, codec), estimator, learner,
        read_split(paths.data, "train", config.train_on), read_split(paths.data, "validation", config.train_on)[:16],
        paths.checkpoints, "bench", StopRequest())
    rows: Any = trainer.train(Progress(started=now())).rows[2:]  # without the first validation and the warm-up step
    found = {f"{part} s": [row[f"seconds_{part}"] for row in rows] for part in ("rollout", "scoring", "update")}
    found["step s"] = [sum(times) for times in zip(*found.values(), strict=True)]
    found["sampled tok/s"] = [row["tokens_sampled"] / row["seconds_rollout"] for row in rows]
    found["trained tok/s"] = [row["tokens_trained"] / row["seconds_update"] for row in rows]
    found["update GFLOP"] = [flops / 1e9 for flops in learner.flops[1:]]
    found["% of peak"] = [
        100 * flops / row["seconds_update"] / peak for flops, row in zip(learner.flops[1:], rows, strict=True)]
    found["GB so far"] = [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9]
    return [Measured("one training step (medians; GB: this process's peak)", config.arm, name, median(values))
            for name, values in found.items()]
