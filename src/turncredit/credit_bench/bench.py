"""The whole bench at one checkpoint: from a policy and its data to one table in long form."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from turncredit.config.credit_bench import COLUMNS, FILES, TRUTH, CreditBenchConfig
from turncredit.config.load import Scale
from turncredit.config.task import TaskConfig
from turncredit.config.training import TrainingConfig
from turncredit.credit_bench import alignment, turn_errors
from turncredit.credit_bench.alignment import Measured, Products
from turncredit.credit_bench.arms import (
    Arm,
    Creditor,
    Measurement,
    branching_for,
    by_branching,
    fit_heads,
    make_arms,
    measure_batches,
    questions_per_batch,
)
from turncredit.credit_bench.gradients import GradientSpace
from turncredit.credit_bench.play import Player
from turncredit.credit_bench.probes import measure_probes
from turncredit.credit_bench.records import ProbeStudy, Record, record
from turncredit.credit_bench.setup import arms_of, bench_config, experiment_name, policy_folder
from turncredit.credit_bench.truth import BLOCKS, Truth, measure_truth
from turncredit.errors import DataError
from turncredit.files import atomic_folder, json_sha256, sha256
from turncredit.policy.engines.make import make_engine
from turncredit.policy.model import load_policy
from turncredit.policy.tokenizer import Codec
from turncredit.tasks.plugin import ServiceSettings
from turncredit.tasks.registry import plugin_of
from turncredit.training.manifest import now, provenance, write_manifest
from turncredit.training.run import set_threads
from turncredit.training.run_folder import RunPaths
from turncredit.types import Item

COMPARABLE = 0.8  # cosine_batch is left out for batches below this share of a training step's tokens
Report = Callable[[str], None]


def run_bench(scale: Scale, root: Path, output: Path, *, base: int = 0, checkpoint: str = "initial", seed: int = 0,
              quick: bool = False, chosen: Sequence[str] = (), report: Report = lambda text: None) -> None:
    """Measure one checkpoint, and write ``credit_bench.csv`` and ``manifest.json`` into ``output``, both or none.

    Args:
        scale: its configuration; ``scale.credit_bench`` has the sizes.
        root: the clone.
        output: replaced if it exists.
        base: the base policy.
        checkpoint: see ``setup.policy_folder``.
        seed: of all samples.
        quick: use the fewest samples.
        chosen: only these arms; empty: all.
        report: gets a line after each part.

    Raises:
        ConfigError: no such arm, base policy or checkpoint.
        CheckpointError: the policy is missing or damaged.
        DataError: data or index are missing, or there are fewer than two questions.
        RetrieverError: the retriever cannot be reached.
    """
    started, clock = now(), time.perf_counter()
    config = bench_config(scale, base)
    set_threads(config)
    sizes = scale.credit_bench.quick() if quick else scale.credit_bench
    algorithms = arms_of(scale, config, chosen)
    paths, plugin = RunPaths.under(root, config), plugin_of(config.task.name)
    folder = policy_folder(root, scale, config, checkpoint)
    pool = plugin.read_items(paths.data, "train", config.train_on)
    if len(pool) < 2:
        raise DataError(f"{paths.data}: {len(pool)} training questions; the bench needs at least 2", "make the data")
    services = ServiceSettings(scale.retriever_of(experiment_name(scale)), paths.index)
    codec = Codec.load(paths.policy)
    with ExitStack() as stack:
        policy = load_policy(folder, config.device)
        opened = stack.enter_context(plugin.open_services(config.task, services))
        engine = stack.enter_context(make_engine(
            config.engine.model_copy(update={"mode": "colocate", "tensor_parallel": 1}), codec, policy=folder,
            model=lambda: policy, window=config.task.max_context_tokens, device=config.device,
            precision=config.launch.precision, folder=output.parent))
        bench = Bench(Player(config, engine, opened, codec, seed), GradientSpace.of(policy, sizes.coordinates), pool,
                      sizes, make_arms(algorithms, config.training), report)
        records, dropped = bench.measure()
    table = pd.DataFrame(records).assign(scale=scale.name, base=base, checkpoint=checkpoint)[list(COLUMNS)]
    weights = {path.name: sha256(path) for path in sorted(folder.glob("*.safetensors"))}
    measured = {"config": config.model_dump(mode="json", exclude={"algorithm", "arm"}),
                "algorithms": {name: algorithm.model_dump(mode="json") for name, algorithm in algorithms.items()},
                "sizes": sizes.model_dump(mode="json", exclude={"checkpoints", "experiment"}), "seed": seed,
                "services": services.identity(), "data": sha256(paths.data / "world.json"), "policy": weights}
    with atomic_folder(output) as fresh:
        table.to_csv(fresh / FILES[0], index=False, lineterminator="\n", float_format="%.6g")
        write_manifest(fresh / FILES[1], {
            **measured, "config_sha256": json_sha256(measured), "base": base, "checkpoint": checkpoint,
            "probes_dropped": dropped, "started": started, "ended": now(),
            "wall_s": round(time.perf_counter() - clock, 1), **provenance()})


@dataclass(frozen=True)
class Bench:
    """One checkpoint's measurement.

    Attributes:
        player: plays and scores.
        space: the policy, and where its gradients are measured.
        pool: training items.
        sizes: how much is sampled.
        arms: what is compared.
        report: gets a line after each part.
    """

    player: Player
    space: GradientSpace
    pool: Sequence[Item]
    sizes: CreditBenchConfig
    arms: Sequence[Arm]
    report: Report = field(default=lambda text: None)

    def measure(self) -> tuple[list[Record], int]:
        """All records of the table, without the columns of the checkpoint; and the number of dropped probes."""
        self.sweep_points()  # what cannot be sampled is refused now, not after the long part
        truth = measure_truth(self.player, self.space, self.pool, self.sizes)
        self.report(f"true gradients: {len(truth.items)} questions, {truth.tokens} tokens")
        heads = fit_heads(self.player, self.space, self.arms, truth.items, truth.groups)
        creditor = Creditor(self.player, self.space, heads)
        records = list(_truth_records(truth))
        probes = measure_probes(self.player, self.pool, self.sizes)
        self.report(f"probes: {len(probes.members)}, dropped {probes.dropped}")
        study = ProbeStudy(self.player, probes.members, self.arms)
        records += study.truth_records()
        training, limit = self.player.config.training, self.player.config.task.max_turns
        for branching, arms in by_branching(self.arms, training, limit).items():
            questions = questions_per_batch(training, branching, truth.groups, len(self.pool))
            in_batches = [arm for arm in arms if arm.critic != "exact"]
            step_tokens: float = training.tokens_per_step
            if in_batches:
                measured = measure_batches(creditor, in_batches, self.pool, branching, questions, self.sizes.batches)
                step_tokens = step_tokens if training.trajectories_per_step is None else measured.tokens
                records += self._gradient_records(measured, in_batches, truth, step_tokens)
            exact = [arm for arm in arms if arm.critic == "exact"]
            if exact and (measured_exactly := study.exact_batches(creditor, exact, truth)) is not None:
                records += self._gradient_records(measured_exactly, exact, truth, step_tokens)
            records += study.credit_records(creditor, arms, branching, questions, self.sizes.replicates)
            self.report(f"arms with branching {branching}: {', '.join(dict.fromkeys(arm.name for arm in arms))}")
        if self.sizes.sweep_batches:
            records += self._sweeps(creditor, truth)
        return records, probes.dropped

    def _gradient_records(self, measured: Measurement, arms: Sequence[Arm], truth: Truth,
                          step_tokens: float) -> Iterable[Record]:
        training = self.player.config.training
        for arm, gradient_B_D, square_K, explained_B in zip(
                arms, measured.gradient_A_B_D, measured.square_A_K, measured.explained_A_B, strict=True):
            def row(quantity: str, found: Measured, target: str = "", variant: str = "", arm: Arm = arm) -> Record:
                return record(arm.name, variant or arm.variant, quantity, target, found, measured.tokens)

            share = self.space.size / sum(p.numel() for p in self.space.policy.parameters())
            for m, name in enumerate(truth.names):
                truth_H_D = truth.gradient_H_M_D[:, m]
                products = Products.of(gradient_B_D, truth_H_D)
                yield row("cosine_mean", alignment.jackknife(alignment.cosine_of_means, products), name)
                if measured.tokens > COMPARABLE * step_tokens:
                    yield row("cosine_batch", alignment.jackknife(alignment.cosine_of_batches, products), name)
                yield row("snr_along", alignment.jackknife(
                    partial(alignment.snr_along, tokens=measured.tokens), products), name)
                yield row("predicted_change", alignment.predicted_change(
                    gradient_B_D, truth_H_D, learning_rate=training.learning_rate, max_norm=training.max_grad_norm,
                    share=share), name)
            yield row("snr", alignment.jackknife(partial(alignment.snr, tokens=measured.tokens), products))
            joined = f"{arm.variant} " if arm.variant else ""
            for turn, part in enumerate(turn_errors.shares_by_turn(square_K), start=1):
                yield row("credit_share", Measured(part, float("nan")), variant=f"{joined}turn={turn}")
            if arm.critic is not None:
                yield row("critic_explained", Measured(
                    float(np.mean(explained_B)), float(np.std(explained_B, ddof=1) / np.sqrt(len(explained_B)))))

    def sweep_points(self) -> list[tuple[str, TrainingConfig, TaskConfig]]:
        """Name, training and task settings of each point of the sweeps.

        A list of ``tree_branching`` is cut where fewer turns leave no room for it.

        Raises:
            ValueError: an arm cannot be sampled at one of them.
        """
        training, task = self.player.config.training, self.player.config.task
        points = [(f"{key}={value}", TrainingConfig.model_validate(training.model_dump() | {key: value}), task)
                  for key, values in (("group_size", self.sizes.group_sizes),
                                      ("tree_branching", self.sizes.tree_branchings)) for value in values]
        for limit in self.sizes.turn_limits:
            listed = training.tree_branching
            branching = listed if isinstance(listed, int) else listed[:max(limit - 1, 1)]
            points.append((f"max_turns={limit}",
                           TrainingConfig.model_validate(training.model_dump() | {"tree_branching": branching}),
                           task.model_validate(task.model_dump() | {"max_turns": limit})))
        for _, changed, shorter in points:
            by_branching(self.arms, changed, shorter.max_turns)
        return points

    def _sweeps(self, creditor: Creditor, truth: Truth) -> Iterable[Record]:
        """The signal-to-noise ratio against group size, branching and number of turns; critics at 0."""
        arms = [arm for arm in self.arms if arm.critic in (None, "zero")]
        config, own = self.player.config, self.player
        for variant, training, task in self.sweep_points():
            player = own if task == config.task else Player(
                config.model_copy(update={"task": task}), own.engine, own.services, own.codec, own.seed)
            yield from self._sweep(Creditor(player, self.space, creditor.heads), arms, variant, truth, training,
                                   task.max_turns)

    def _sweep(self, creditor: Creditor, arms: Sequence[Arm], variant: str, truth: Truth, training: TrainingConfig,
               limit: int) -> Iterable[Record]:
        """One point of a sweep, for the arms whose batches it changes."""
        task, own = self.player.config.task, self.player.config.training
        changed = [arm for arm in arms if limit != task.max_turns
                   or branching_for(arm, training, limit) != branching_for(arm, own, limit)]
        for branching, members in by_branching(changed, training, limit).items():
            groups = truth.groups if limit == task.max_turns else creditor.player.play(
                self.pool[:64], (1,) * limit, "cost of a question", limit)
            questions = questions_per_batch(own, branching, groups, len(self.pool))
            measured = measure_batches(creditor, members, self.pool, branching, questions, self.sizes.sweep_batches)
            for arm, gradient_B_D in zip(members, measured.gradient_A_B_D, strict=True):
                joined = f"{arm.variant} {variant}".strip()
                products = Products.of(gradient_B_D, truth.gradient_H_M_D[:, 0])
                yield record(arm.name, joined, "snr", "", alignment.jackknife(
                    partial(alignment.snr, tokens=measured.tokens), products), measured.tokens)
        self.report(f"sweep {variant}")


def _truth_records(truth: Truth) -> Iterable[Record]:
    def row(quantity: str, found: Measured, target: str, variant: str = "") -> Record:
        return record(TRUTH, variant, quantity, target, found, truth.tokens)

    for m, name in enumerate(truth.names):
        truth_H_D = truth.gradient_H_M_D[:, m]
        products = Products.of(truth_H_D, truth_H_D)
        halves = alignment.halves_cosine(products.truth_H_H)
        value_H = truth.value_H_M[:, m]
        yield row("mean", Measured(float(value_H.mean()), float(value_H.std(ddof=1) / np.sqrt(BLOCKS))), name)
        yield row("halves_cosine", Measured(halves, float("nan")), name)
        yield row("reliability", Measured(alignment.reliability(halves), float("nan")), name)
        length = alignment.squared_length(products.truth_H_H)
        yield row("gradient_norm", Measured(max(length, 0.0)**0.5, float("nan")), name)
        for n, other in enumerate(truth.names):
            if n != m:
                yield row("cosine_mean", _cosine_of_truths(truth, m, n), other, variant=name)


def _cosine_of_truths(truth: Truth, m: int, n: int) -> Measured:
    """Cosine of the true gradients of targets ``m`` and ``n``, from different blocks; jackknifed over blocks."""
    first_H_D, second_H_D = truth.gradient_H_M_D[:, m].double(), truth.gradient_H_M_D[:, n].double()
    grams = [(a @ b.T).numpy() for a, b in ((first_H_D, first_H_D), (first_H_D, second_H_D), (second_H_D, second_H_D))]

    def cosine(kept: Any) -> float:
        own, cross, other = (alignment.squared_length(gram[np.ix_(kept, kept)]) for gram in grams)
        return float(cross / np.sqrt(own * other)) if min(own, other) > 0 else float("nan")

    blocks = np.arange(len(first_H_D))
    return Measured(cosine(blocks), alignment.spread([cosine(np.delete(blocks, h)) for h in blocks]))
