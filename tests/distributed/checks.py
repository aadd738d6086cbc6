"""What two processes find out together: ``python -m tests.distributed.checks ROOT``, started twice by torchrun.

``... ROOT train`` only trains, for longer than any test lasts.

Starting processes takes far longer than what they check, so each launch makes many checks. A check
returns facts, which the tests judge; each process writes its own to ``ROOT/facts-RANK.json``.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from tests.models import sampled_by, tiny_policy
from tests.small_run import FakeRetriever, config, events, train
from tests.tolerance import longest_sum, sensitivity
from tests.trees import random_rewards, random_tree
from turncredit.config.algorithm import Algorithm
from turncredit.config.load import RunConfig
from turncredit.config.runtime import LaunchConfig
from turncredit.config.training import TrainingConfig
from turncredit.credit.base import make_estimator
from turncredit.credit.rows import rows_of
from turncredit.distributed.layout import local_packs
from turncredit.distributed.processes import SINGLE_PROCESS, Processes
from turncredit.errors import Interrupted, RetrieverError, TurncreditError
from turncredit.policy.model import Critic
from turncredit.training.batch import Batch
from turncredit.training.learner import Learner
from turncredit.training.lock import run_lock
from turncredit.training.run_folder import RunPaths
from turncredit.types import Group

Facts = dict[str, Any]
LAUNCH = LaunchConfig(processes=2, accelerate="fsdp_8")
ARMS = {"tree": Algorithm(estimator="group", placement="per_turn", content="full", rollout="tree"),
        "critic": Algorithm(estimator="critic", placement="per_turn", content="full", rollout="single")}
# a plain gradient step of size 1: the change of the weights is the gradient
GRADIENT = TrainingConfig(minibatches=1, max_grad_norm=1e9, warmup_steps=0, critic_warmup_steps=0, kl_coefficient=0.1,
                          entropy_coefficient=0.05, micro_batch_tokens=60, learning_rate=1, critic_learning_rate=1)


@contextmanager
def sharded(on: bool = True) -> Iterator[None]:
    """Say what accelerate's FSDP files say."""
    names = {"ACCELERATE_USE_FSDP": str(on).lower(), "FSDP_VERSION": "2", "FSDP_RESHARD_AFTER_FORWARD": "true"}
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(names)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def run_config(arm: str, **training: Any) -> RunConfig:
    """A run of two processes."""
    return config(arm, **training).model_copy(update={"launch": LAUNCH})


# The gradient -----------------------------------------------------------------------------------


def gradient(arm: str, processes: Processes, launch: LaunchConfig, *,
             rounding: bool = False) -> tuple[Learner, dict[str, Tensor], Facts]:
    """The gradient of one batch, in full, and what else the learner finds; asked for, also how rounding enters them."""
    policy, reference = tiny_policy(seed=0), tiny_policy(seed=1)
    trees = [random_tree(i, 2, 3, early=0.2, question=f"q{i}") for i in range(3 if arm == "tree" else 9)]
    groups = trees if arm == "tree" else [Group.of_chains([tree.transcripts[0]]) for tree in trees]
    groups = sampled_by(policy, groups, 1.0)
    critic = Critic(policy) if arm == "critic" else None
    learner = Learner(policy, critic, reference, GRADIENT, "cpu", launch, processes)
    learner.policy_optimizer = torch.optim.SGD(learner.scorer.parameters(), lr=1.0)
    models = [learner.scorer]
    if learner.critic is not None:
        learner.critic_optimizer = torch.optim.SGD(learner.critic.parameters(), lr=1.0)
        models.append(learner.critic)
    rows = rows_of(groups)
    batch = Batch.of(rows)
    value_M, reference_N = learner.values(batch), learner.reference_logprobs(batch)
    estimator = make_estimator(ARMS[arm], GRADIENT)
    credit = estimator.credit(groups, [random_rewards(0, group) for group in groups], rows, value_M=value_M,
                              old_logprob_N=batch.old_logprob_N, reference_logprob_N=reference_N)

    def weights() -> dict[str, Tensor]:
        return {f"{i} {name}": tensor.double().clone() for i, model in enumerate(models)
                for name, tensor in learner.layout.full_weights(model)}

    def update() -> tuple[Facts, dict[str, Tensor]]:
        before = weights()
        report = learner.update(batch, credit, step=0, seed=0, kl_in_loss=not estimator.kl_in_reward,
                                reference_logprob_N=reference_N, old_value_M=value_M)
        after = weights()
        return report, {name: before[name] - after[name] for name in before}

    def results() -> list[Tensor]:
        first = [learner.reference_logprobs(batch)] + ([] if value_M is None else [learner.values(batch)])
        report, steps = update()
        return [*first, torch.cat([step.flatten() for step in steps.values()]), *map(torch.tensor, report.values())]

    perturbed = [weight for model in (*models, reference) for weight in model.parameters()]
    scales = sensitivity(results, perturbed) if rounding else []
    logits_rows: list[int] = []
    hook = learner.policy.get_output_embeddings().register_forward_hook(
        lambda module, inputs, output: logits_rows.append(output.numel() // output.shape[-1]))
    report, steps = update()
    hook.remove()
    micros = batch.micro_batches(batch.trained, GRADIENT.micro_batch_tokens)
    mine = local_packs(micros, processes)
    names = ["reference", *([] if value_M is None else ["values"]), "gradient", *report]
    found = {"report": report, "micro_batches": len(micros), "logits_rows": sum(logits_rows),
             "loss_tokens": sum(len(micro.flat_N) for micro, counts in mine if counts),
             "repeated": sum(len(micro.flat_N) for micro, counts in mine if not counts),
             "all": len(batch.old_logprob_N), "terms": longest_sum(learner.policy, sum(map(len, batch.ids_R))),
             "scales": dict(zip(names, scales, strict=rounding)),
             "values": [] if value_M is None else value_M.tolist(), "reference": reference_N.tolist()}
    return learner, steps, found


def same_gradient(processes: Processes, root: Path) -> Facts:
    """Two processes beside one, for both families, with whole and with sharded weights."""
    facts: Facts = {}
    for arm in ARMS:
        _, alone, expected = gradient(arm, SINGLE_PROCESS, LaunchConfig(), rounding=True)
        for name, shard, launch in (
                ("whole", False, LAUNCH), ("sharded", True, LAUNCH),
                ("recomputed", True, LAUNCH.model_copy(update={"gradient_checkpointing": True})),
                ("offloaded", False, LAUNCH.model_copy(update={"offload": ("reference", "critic", "optimizer")})),
                ("bfloat16", True, LAUNCH.model_copy(update={"precision": "bfloat16"}))):
            with sharded(shard):
                learner, together, found = gradient(arm, processes, launch)
            parameters = [p for model in (learner.scorer, learner.critic) if model for p in model.parameters()]
            one, two = (torch.cat([part[key].flatten() for key in alone]) for part in (alone, together))
            facts[f"{arm} {name}"] = {
                "world": dist.get_world_size(), "largest": one.abs().max().item(),
                "apart": (one - two).abs().max().item(),
                "angle": torch.nn.functional.cosine_similarity(one, two, dim=0).item(),
                "parameters": sum(p.numel() for p in parameters),
                "held": sum(p.to_local().numel() if isinstance(p, DTensor) else p.numel() for p in parameters),
                "sharded": [isinstance(p, DTensor) for p in parameters], "found": found, "expected": expected}
    return facts


def weights_for_an_engine(processes: Processes, root: Path) -> Facts:
    """Weights are handed over in full, under the names of the whole model; tied ones under both."""
    with sharded():
        learner, _, _ = gradient("tree", processes, LAUNCH)
    whole = tiny_policy().state_dict()
    handed = {name: list(tensor.shape) for name, tensor in learner.full_weights()}
    return {"world": dist.get_world_size(), "handed": handed,
            "expected": {name: list(tensor.shape) for name, tensor in whole.items()}}


# Whole runs -------------------------------------------------------------------------------------


def digest_of(paths: RunPaths) -> str:
    """The final weights."""
    return hashlib.sha256((paths.final_policy / "model.safetensors").read_bytes()).hexdigest()


def interrupted(root: Path, run: RunConfig, at: str, count: int, rank: int) -> str:
    """Train until a signal arrives at one process, at its ``count``-th event of a name; how it ended."""
    seen = []

    def watch(number: int, name: str) -> None:
        seen.append(name)
        if dist.get_rank() == rank and name == at and seen.count(at) == count:
            os.kill(os.getpid(), signal.SIGUSR1)
    try:
        with events(watch):
            train(root, run)
    except Interrupted as stopped:
        return stopped.message
    return "finished"


def whole_runs(processes: Processes, root: Path) -> Facts:
    """Runs of two processes: undisturbed, stopped by a signal at one of them, and taken over in every direction."""
    facts: Facts = {"world": dist.get_world_size()}
    for name, arm, shard in (("tree", "tree", False), ("critic", "critic", False), ("critic-sharded", "critic", True)):
        with sharded(shard):
            paths = train(root / name, run_config(arm))
            facts[name] = processes.all_gather(digest_of(paths))
    # the signal arrives at the second process only, in its rollout, in an update, and in a rollout of a sharded run
    for name, shard, at, count in (("stopped-rollout", False, "generate", 7),
                                   ("stopped-update", False, "_optimizer_step", 9),
                                   ("stopped-sharded", True, "generate", 7)):
        with sharded(shard):
            facts[name] = processes.all_gather(interrupted(root / name, run_config("critic"), at, count, rank=1))
    with sharded(False):
        train(root / "stopped-update", run_config("critic"))  # the same two processes go on
        train(root / "saved-by-one", run_config("critic"))
    facts["resumed"] = digest_of(RunPaths.under(root / "stopped-update", run_config("critic")))
    return facts


# What goes wrong --------------------------------------------------------------------------------


def ending(work: Callable[[], object]) -> Facts:
    """How ``work`` ends, and after how long."""
    started = time.monotonic()
    try:
        work()
        kind, message, code = "none", "", 0
    except TurncreditError as error:
        kind, message, code = type(error).__name__, str(error), error.exit_code
    except ValueError as error:
        kind, message, code = type(error).__name__, str(error), 1
    return {"kind": kind, "message": message, "code": code, "seconds": time.monotonic() - started}


def faults(processes: Processes, root: Path) -> Facts:
    """An error of one process ends all of them, at once and with a message that says which it was."""
    facts: Facts = {"world": dist.get_world_size()}
    real = FakeRetriever.search

    def failing(error: Exception) -> Callable[..., Any]:
        def search(self: FakeRetriever, queries: Any, top_k: int) -> Any:
            if processes.rank == 1:
                raise error
            return real(self, queries, top_k)
        return search

    try:
        for name, error in (("retriever", RetrieverError("nobody answers", "start it")),
                            ("crash", ValueError("a bug"))):
            FakeRetriever.search = failing(error)  # type: ignore[method-assign]
            many = run_config("tree", tokens_per_step=600)  # chunks of several questions, so that rank 1 plays some
            facts[name] = ending(lambda name=name, many=many: train(root / name, many))
    finally:
        FakeRetriever.search = real  # type: ignore[method-assign]
    paths = RunPaths.under(root / "locked", run_config("tree"))
    if processes.is_main:
        with run_lock(paths.checkpoints):
            facts["locked"] = ending(lambda: train(root / "locked", run_config("tree")))
    else:
        facts["locked"] = ending(lambda: train(root / "locked", run_config("tree")))
    three = run_config("tree").model_copy(update={"launch": LAUNCH.model_copy(update={"processes": 3})})
    facts["three"] = ending(lambda: train(root / "locked", three))
    processes.all_gather(None)
    hasty = replace(processes, group=dist.new_group(backend="gloo", timeout=timedelta(seconds=2)))
    if processes.is_main:
        facts["late"] = ending(lambda: hasty.all_gather(1))
    else:
        time.sleep(4)
    return facts


def lost(processes: Processes) -> Facts:
    """How the first process ends when the second one is gone."""
    if not processes.is_main:
        os._exit(0)
    return ending(lambda: processes.all_gather(None))


CHECKS = (same_gradient, weights_for_an_engine, whole_runs, faults)


def main(root: Path) -> None:
    """Make all checks."""
    processes = Processes.join(2, "cpu", timeout_s=120)
    facts = {check.__name__: check(processes, root) for check in CHECKS}
    path = root / f"facts-{processes.rank}.json"
    path.write_text(json.dumps(facts))
    facts["lost"] = lost(processes)
    path.write_text(json.dumps(facts))


if __name__ == "__main__":
    if sys.argv[2:] == ["train"]:
        train(Path(sys.argv[1]), run_config("tree", steps=100_000, checkpoint_every=100_000))
    else:
        main(Path(sys.argv[1]))
