"""Shows a plan as terminal tables and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from rich import box
from rich.table import Table

from turncredit.planning.memory import GIB, PARTS
from turncredit.planning.plan import Plan, RunPlan

Record = tuple[str, str, str, str, float | int | str]  # experiment, arm, section, item, value
TB = 1e12


def records(plan: Plan) -> Iterator[Record]:
    """All numbers of a plan, one per row: memory in GiB, disk in bytes, time in hours or seconds."""
    for run_plan in plan.runs:
        names = run_plan.run.experiment, run_plan.run.arm
        load, hours = run_plan.load, run_plan.hours
        batch = {
            "runs": run_plan.count, "steps": run_plan.run.training.steps, "questions": load.questions,
            "trajectories": load.trajectories, "trajectories_per_question": load.leaves,
            "tokens_sampled": load.sampled_tokens, "tokens_read": load.read_tokens,
            "tokens_per_trajectory": load.row_tokens, "micro_batches": load.micro_batches,
            "optimizer_steps": load.optimizer_steps, "epochs": "" if load.epochs is None else round(load.epochs, 3)}
        yield from ((*names, "batch", item, value) for item, value in batch.items())
        for place, moments in (("gpu", run_plan.memory.gpu), ("host", run_plan.memory.host),
                               ("sampling gpu", {"sampling": run_plan.memory.server})):
            yield from ((*names, f"{place}, {moment}", part, round(size / GIB, 3))
                        for moment, parts in moments.items() for part, size in parts.items())
        if hours is not None:
            parts = {"sampling": hours.sampling, "scoring": hours.scoring, "update": hours.update,
                     "traffic": hours.traffic, "clock": hours.clock, "gpu_hours": hours.gpu_hours}
            yield from ((*names, "hours", item, round(value, 3)) for item, value in parts.items())
        yield *names, "disk", "checkpoints", run_plan.checkpoint_bytes
        yield *names, "disk", "kept checkpoints", run_plan.kept_bytes
        yield *names, "disk", "final", run_plan.final_bytes
        yield *names, "seconds", "save", round(run_plan.save_s, 1)
        yield *names, "seconds", "warning_s", "" if run_plan.warning_s is None else round(run_plan.warning_s, 1)
        yield from ((*names, "fault", str(n), fault) for n, fault in enumerate(run_plan.faults))
    yield "", "", "disk", "downloads", plan.downloads


def to_csv(plan: Plan) -> str:
    """The plan as a CSV file; see ``records``."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("experiment", "arm", "section", "item", "value"))
    writer.writerows(records(plan))
    return text.getvalue()


def tables(plan: Plan) -> list[Table | str]:
    """The plan as tables and lines: batches, memory, time, disk, assumptions."""
    shape, assumed = plan.shape, plan.assumed
    name = plan.scale.policy.path_or_id or "policy from scratch"
    runs = sum(run_plan.count for run_plan in plan.runs)
    paid = sum(run_plan.count * run_plan.hours.gpu_hours for run_plan in plan.runs if run_plan.hours is not None)
    finals = sum(run_plan.count * run_plan.final_bytes for run_plan in plan.runs)
    kept = sum(run_plan.count * run_plan.kept_bytes for run_plan in plan.runs)
    most, save_s, warning_s = (max((number(run_plan) for run_plan in plan.runs), default=0) for number in (
        lambda run_plan: run_plan.checkpoint_bytes, lambda run_plan: run_plan.save_s,
        lambda run_plan: run_plan.warning_s or 0))
    parts: list[Table | str | None] = [
        f"{name}: {shape.parameters:,} weights, {shape.layers} layers (from {shape.source})",
        _batches(plan), _memory(plan), _hours(plan),
        f"{runs} runs: {paid:,.0f} GPU hours; final policies {finals / TB:.2f} TB, checkpoints kept after training"
        f" {kept / TB:.2f} TB, of a run in training up to {most / TB:.2f} TB, downloads {plan.downloads / TB:.3f} TB as"
        " far as known",
        f"A checkpoint is saved in up to {save_s:,.0f} s"
        + (f"; with an update before it {warning_s:,.0f} s, the least warning_s of a SLURM site" if warning_s else ""),
        "Assumed, not measured (config/models.yaml): "
        + ", ".join(f"{key} {value:g}" for key, value in assumed.model_dump().items()),
        "Counted: 2 operations per weight and token, 4 per layer, hidden component and token of context; a backward"
        " pass costs two forward passes, checkpointing one more; decoding reads weights and cache once per token."]
    return [part for part in parts if part is not None]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for n, column in enumerate(columns):
        table.add_column(column, justify="left" if n == 0 else "right", overflow="fold")
    return table


def _label(run_plan: RunPlan) -> str:
    return f"{run_plan.run.experiment}/{run_plan.run.arm}"


def _batches(plan: Plan) -> Table:
    table = _table("A training step and the run", "arm", "runs", "questions", "× leaves", "trajectories",
                   "sampled tokens", "micro-batches", "steps", "optimiser steps", "epochs")
    for run_plan in plan.runs:
        load = run_plan.load
        table.add_row(
            _label(run_plan), str(run_plan.count), str(load.questions), str(load.leaves), str(load.trajectories),
            f"{load.sampled_tokens:,}", f"{load.micro_batches} × {run_plan.run.training.minibatches}",
            str(run_plan.run.training.steps), str(load.optimizer_steps),
            "?" if load.epochs is None else f"{load.epochs:.2f}")
    return table


def _memory(plan: Plan) -> Table:
    """Arms with equal memory share rows. Every part in use has a column, so that the columns add up to the sum."""
    held = [parts for run_plan in plan.runs
            for parts in (*run_plan.memory.gpu.values(), *run_plan.memory.host.values(), run_plan.memory.server)]
    shown = [part for part in PARTS if any(parts.get(part) for parts in held)]
    table = _table("Memory in GiB: each moment of a training GPU, then the node", "arm", "moment", *shown, "sum", "of")
    alike: dict[tuple[tuple[str, ...], ...], list[RunPlan]] = {}
    rows_of = {}
    for run_plan in plan.runs:
        rows = []
        places = [(moment, parts, run_plan.gpu.memory_gib if run_plan.gpu else None)
                  for moment, parts in run_plan.memory.gpu.items()]
        places += [(f"node, {moment}", parts, run_plan.run.launch.host_memory_gib)
                   for moment, parts in run_plan.memory.host.items()]
        if run_plan.memory.server:
            places.append(("a sampling GPU", run_plan.memory.server, run_plan.gpu.memory_gib if run_plan.gpu else None))
        for moment, parts, limit in places:
            rows.append((moment, *(f"{parts[p] / GIB:.1f}" if parts.get(p) else "" for p in shown),
                         f"{sum(parts.values()) / GIB:.1f}", "?" if limit is None else f"{limit:g}"))
        alike.setdefault(tuple(rows), []).append(run_plan)
        rows_of[tuple(rows)] = rows
    for key, group in alike.items():
        for n, row in enumerate(rows_of[key]):
            table.add_row("\n".join(map(_label, group)) if n == 0 else "", *row)
    return table


def _hours(plan: Plan) -> Table | None:
    if not any(run_plan.hours for run_plan in plan.runs):
        return None
    table = _table("One run, wall-clock hours", "arm", "GPUs", "sampling", "scoring", "update", "traffic", "together",
                   "GPU hours", "all runs")
    for run_plan in plan.runs:
        if (hours := run_plan.hours) is not None:
            times = (hours.sampling, hours.scoring, hours.update, hours.traffic, hours.clock)
            table.add_row(_label(run_plan), f"{hours.gpus} × {run_plan.run.launch.gpu}", *(f"{t:.1f}" for t in times),
                          f"{hours.gpu_hours:,.0f}", f"{run_plan.count * hours.gpu_hours:,.0f}")
    return table
