"""Batch sizes, floating-point operations and time of a training step and of a whole run.

A trajectory's length is unknown before it is sampled. Counts use the typical trajectory of ``config/models.yaml``;
memory (``memory.py``) uses the longest that the configuration allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from turncredit.config.load import RunConfig
from turncredit.planning.catalogue import Assumptions, Shape
from turncredit.rollout.branching import copies_of


@dataclass(frozen=True)
class Workload:
    """Counts of one step, and of the whole run where noted.

    Attributes:
        branching: actions sampled from each state, for every turn.
        leaves: trajectories per question, where every branch has the typical number of turns.
        questions, trajectories: per step.
        sampled_tokens: per step; shared turns count once.
        read_tokens: tokens of prompts and observations per step; shared ones count once.
        row_tokens: tokens of one trajectory, prompt and observations included.
        row_loss_tokens: sampled tokens of one trajectory.
        micro_batches: per minibatch and process.
        optimizer_steps: number in the whole run.
        epochs: passes of the whole run over the training questions; None if their number is unknown.
    """

    branching: tuple[int, ...]
    leaves: int
    questions: int
    trajectories: int
    sampled_tokens: int
    read_tokens: int
    row_tokens: int
    row_loss_tokens: int
    micro_batches: int
    optimizer_steps: int
    epochs: float | None


def workload(run: RunConfig, branching: Sequence[int], pool: int | None, assumed: Assumptions) -> Workload:
    """Count what one step of a run samples, reads and trains.

    Args:
        run: the resolved configuration.
        branching: actions sampled from each state, for every turn.
        pool: number of training questions, or None.
        assumed: the typical trajectory.
    """
    task, training = run.task, run.training
    turns = min(assumed.turns, task.max_turns)
    turn = min(assumed.turn_tokens, task.max_turn_tokens)
    seen = round(assumed.observation_share * task.max_observation_tokens)
    copies_K = copies_of(branching[:turns])
    leaves = copies_K[-1]
    sampled = turn * sum(copies_K)
    if training.trajectories_per_step is None:
        questions = max(1, round(training.tokens_per_step / sampled))
    else:
        questions = max(1, round(training.trajectories_per_step / leaves))
    questions = questions if pool is None else min(questions, pool)
    trajectories = questions * leaves
    row = min(assumed.prompt_tokens + turns * turn + (turns - 1) * seen, task.max_context_tokens)
    rows_at_once = max(1, training.micro_batch_tokens // row)
    rows = math.ceil(trajectories / training.minibatches)
    return Workload(
        branching=tuple(branching), leaves=leaves, questions=questions, trajectories=trajectories,
        sampled_tokens=questions * sampled,
        read_tokens=questions * (assumed.prompt_tokens + seen * sum(copies_K[:-1])),
        row_tokens=row, row_loss_tokens=turns * turn,
        micro_batches=math.ceil(math.ceil(rows / rows_at_once) / run.launch.processes),
        optimizer_steps=training.steps * training.inner_epochs * training.minibatches,
        epochs=None if pool is None else training.steps * questions / pool)


def forward_flops(shape: Shape, tokens: float, context: float, logits: float = 0) -> float:
    """Floating-point operations of a forward pass: two per weight and token, and attention over the context.

    Args:
        shape: the model.
        tokens: tokens that pass through the layers.
        context: average number of tokens that each attends to.
        logits: tokens for which logits are computed.
    """
    return tokens * (2 * shape.layers * shape.layer + 4 * shape.layers * shape.width * context) + \
        2 * shape.head * logits


@dataclass(frozen=True)
class Hours:
    """Wall-clock time of a whole run in hours, by part, and the number of GPUs it occupies.

    Attributes:
        sampling: reading prompts and decoding turns, validations included.
        scoring: reference and critic before each update.
        update: forward, backward and optimiser.
        traffic: transfer of offloaded weights and gradients between host and GPU.
        gpus: number for training, and for a sampling server if there is one.
    """

    sampling: float
    scoring: float
    update: float
    traffic: float
    gpus: int

    @property
    def clock(self) -> float:
        """Hours from start to end; the parts do not overlap."""
        return self.sampling + self.scoring + self.update + self.traffic

    @property
    def gpu_hours(self) -> float:
        """GPU hours: wall-clock hours times GPUs."""
        return self.clock * self.gpus


@dataclass(frozen=True)
class Speed:
    """Per second of one GPU: operations, bytes of its memory, bytes to and from the host."""

    flops: float
    memory_bytes: float
    host_bytes: float


def decode_seconds(run: RunConfig, shape: Shape, speed: Speed, *, trajectories: float, steps: float, context: float,
                   ) -> float:
    """Seconds to decode ``steps`` tokens of each trajectory; each step reads the weights and the cache once.

    ``engine.max_sequences`` sequences run concurrently on each copy of the policy. A step takes the longer of
    reading and computing.
    """
    engine = run.engine
    gpus = engine.gpus if engine.mode == "server" else run.launch.processes
    copies = gpus / engine.tensor_parallel
    at_once = min(engine.max_sequences, math.ceil(trajectories / copies))
    waves = math.ceil(trajectories / copies / at_once)
    size = 2 if engine.kind == "vllm" or run.launch.precision == "bfloat16" else 4
    read = size * (shape.parameters + at_once * context * shape.cached)
    compute = forward_flops(shape, at_once, context, at_once)
    return waves * steps * max(read / speed.memory_bytes, compute / speed.flops) / engine.tensor_parallel


def hours(run: RunConfig, load: Workload, shape: Shape, speed: Speed, *, critic: bool, reference: bool, sharded: bool,
          validations: int) -> Hours:
    """Estimate the time of a run.

    Args:
        run, load: the run and its workload.
        shape: the policy's sizes; the critic has the same backbone.
        speed: what one GPU reaches, after the assumed shares of its peak.
        critic, reference: whether the run has one.
        sharded: whether weights are sharded (then offloaded weights move to the GPU for every pass).
        validations: number of validation episodes in the whole run.
    """
    training, engine = run.training, run.engine
    processes = run.launch.processes
    sampling_gpus = engine.gpus if engine.mode == "server" else processes
    context = load.row_tokens / 2
    tokens, losses = load.trajectories * load.row_tokens, load.trajectories * load.row_loss_tokens
    decode = decode_seconds(run, shape, speed, trajectories=load.trajectories, steps=load.row_loss_tokens,
                            context=context)
    reading = forward_flops(shape, load.read_tokens, context) / (sampling_gpus * speed.flops)
    validation = 0.0 if not validations else decode_seconds(
        run, shape, speed, trajectories=validations, steps=load.row_loss_tokens, context=context)
    passes = 1.0 + 2.0 + float(run.launch.gradient_checkpointing)  # forward, backward (twice forward), recomputation
    backbone = forward_flops(shape, tokens, context)
    scored = reference * forward_flops(shape, tokens, context, losses) + critic * backbone
    updated = training.inner_epochs * passes * (forward_flops(shape, tokens, context, losses) + critic * backbone)
    moved = 0.0
    if sharded and {"parameters", "optimizer"} & {*run.launch.offload}:
        micro = load.micro_batches * training.minibatches
        modules = shape.parameters + critic * shape.backbone
        # each process moves its shard, 4 bytes per weight: to the GPU for each pass over a micro-batch, gradients back
        per_pass = 4 * modules / processes
        moved = training.inner_epochs * micro * per_pass * 3 + micro * 4 * (
            reference * shape.parameters + critic * shape.backbone) / processes
    seconds = training.steps
    return Hours(
        sampling=(seconds * (decode + reading) + validation) / 3600,
        scoring=seconds * scored / (processes * speed.flops) / 3600,
        update=seconds * updated / (processes * speed.flops) / 3600,
        traffic=seconds * moved / speed.host_bytes / 3600,
        gpus=processes + (engine.gpus if engine.mode == "server" else 0))
