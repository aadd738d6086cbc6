"""A plan as tables on a terminal, and as one CSV file."""

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
    """Everything that a plan holds, a number a row; memory in GiB, disk in bytes, time in hours."""
    for found in plan.runs:
        names = found.run.experiment, found.run.arm
        load, hours = found.load, found.hours
        batch = {
            "seeds": found.seeds, "steps": found.run.training.steps, "questions": load.questions,
            "trajectories": load.trajectories, "trajectories_per_question": load.leaves,
            "tokens_sampled": load.sampled_tokens, "tokens_read": load.read_tokens,
            "tokens_per_trajectory": load.row_tokens, "micro_batches": load.micro_batches,
            "optimizer_steps": load.optimizer_steps, "epochs": "" if load.epochs is None else round(load.epochs, 3)}
        yield from ((*names, "batch", item, value) for item, value in batch.items())
        for place, moments in (("gpu", found.memory.gpu), ("host", found.memory.host),
                               ("sampling gpu", {"sampling": found.memory.server})):
            yield from ((*names, f"{place}, {moment}", part, round(size / GIB, 3))
                        for moment, parts in moments.items() for part, size in parts.items())
        if hours is not None:
            parts = {"sampling": hours.sampling, "scoring": hours.scoring, "update": hours.update,
                     "traffic": hours.traffic, "clock": hours.clock, "gpu_hours": hours.gpu_hours}
            yield from ((*names, "hours", item, round(value, 3)) for item, value in parts.items())
        yield *names, "disk", "checkpoints", found.checkpoint_bytes
        yield *names, "disk", "final", found.final_bytes
        yield from ((*names, "fault", str(n), fault) for n, fault in enumerate(found.faults))
    yield "", "", "disk", "downloads", plan.downloads


def to_csv(plan: Plan) -> str:
    """The records as a CSV file."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("experiment", "arm", "section", "item", "value"))
    writer.writerows(records(plan))
    return text.getvalue()


def tables(plan: Plan) -> list[Table | str]:
    """What a person reads: batches, memory, time, disk, and what all of it assumes."""
    shape, assumed = plan.shape, plan.assumed
    name = plan.scale.policy.path_or_id or "a policy made here"
    runs = sum(found.seeds for found in plan.runs)
    paid = sum(found.seeds * found.hours.gpu_hours for found in plan.runs if found.hours is not None)
    finals = sum(found.seeds * found.final_bytes for found in plan.runs)
    most = max((found.checkpoint_bytes for found in plan.runs), default=0)
    parts: list[Table | str | None] = [
        f"{name}: {shape.parameters:,} weights, {shape.layers} layers (from {shape.source})",
        _batches(plan), _memory(plan), _hours(plan),
        f"{runs} runs: {paid:,.0f} GPU hours; policies that stay {finals / TB:.2f} TB, checkpoints of a run while"
        f" it trains up to {most / TB:.2f} TB, downloads {plan.downloads / TB:.3f} TB as far as known",
        "Assumed (config/models.yaml; nothing of it was measured): "
        + ", ".join(f"{key} {value:g}" for key, value in assumed.model_dump().items()),
        "Counted: 2 operations a weight and token, 4 a layer, component and token of context; a backward pass"
        " twice a forward pass, checkpointed layers once more; decoding reads weights and cache once a token."]
    return [part for part in parts if part is not None]


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for n, column in enumerate(columns):
        table.add_column(column, justify="left" if n == 0 else "right", overflow="fold")
    return table


def _label(found: RunPlan) -> str:
    return f"{found.run.experiment}/{found.run.arm}"


def _batches(plan: Plan) -> Table:
    table = _table("A training step, and the run", "arm", "seeds", "questions", "× leaves", "trajectories",
                   "sampled tokens", "micro-batches", "steps", "optimiser steps", "epochs")
    for found in plan.runs:
        load = found.load
        table.add_row(_label(found), str(found.seeds), str(load.questions), str(load.leaves), str(load.trajectories),
                      f"{load.sampled_tokens:,}", f"{load.micro_batches} × {found.run.training.minibatches}",
                      str(found.run.training.steps), str(load.optimizer_steps),
                      "?" if load.epochs is None else f"{load.epochs:.2f}")
    return table


def _memory(plan: Plan) -> Table:
    """Alike arms share a row; a column for each part that some run has, so that the columns make the sum."""
    held = [parts for found in plan.runs
            for parts in (*found.memory.gpu.values(), *found.memory.host.values(), found.memory.server)]
    shown = [part for part in PARTS if any(parts.get(part) for parts in held)]
    table = _table("Memory, GiB: each moment of a training GPU, then the node", "arm", "moment", *shown, "sum", "of")
    alike: dict[tuple[tuple[str, ...], ...], list[RunPlan]] = {}
    rows_of = {}
    for found in plan.runs:
        rows = []
        places = [(moment, parts, found.gpu.memory_gib if found.gpu else None)
                  for moment, parts in found.memory.gpu.items()]
        places += [(f"node, {moment}", parts, found.run.launch.host_memory_gib)
                   for moment, parts in found.memory.host.items()]
        if found.memory.server:
            places.append(("a sampling GPU", found.memory.server, found.gpu.memory_gib if found.gpu else None))
        for moment, parts, limit in places:
            rows.append((moment, *(f"{parts[p] / GIB:.1f}" if parts.get(p) else "" for p in shown),
                         f"{sum(parts.values()) / GIB:.1f}", "?" if limit is None else f"{limit:g}"))
        alike.setdefault(tuple(rows), []).append(found)
        rows_of[tuple(rows)] = rows
    for key, group in alike.items():
        for n, row in enumerate(rows_of[key]):
            table.add_row("\n".join(map(_label, group)) if n == 0 else "", *row)
    return table


def _hours(plan: Plan) -> Table | None:
    if not any(found.hours for found in plan.runs):
        return None
    table = _table("One run, hours of the clock", "arm", "GPUs", "sampling", "scoring", "update", "traffic", "together",
                   "GPU hours", "all seeds")
    for found in plan.runs:
        if (hours := found.hours) is not None:
            times = (hours.sampling, hours.scoring, hours.update, hours.traffic, hours.clock)
            table.add_row(_label(found), f"{hours.gpus} × {found.run.launch.gpu}", *(f"{t:.1f}" for t in times),
                          f"{hours.gpu_hours:,.0f}", f"{found.seeds * hours.gpu_hours:,.0f}")
    return table
