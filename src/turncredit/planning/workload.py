"""Batch arithmetic: what one training step samples, reads and trains, and how much computing that is.

A trajectory's length is not known before it is sampled: counts are made for the trajectory that
``config/models.yaml`` assumes, memory for the longest that the configuration allows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from turncredit.config.load import RunConfig
from turncredit.planning.catalogue import Assumptions, Shape


@dataclass(frozen=True)
class Workload:
    """One step of a run, and all of them.

    Attributes:
        branching: actions from each state, for every turn.
        questions, trajectories: of a step; ``leaves`` trajectories a question.
        sampled_tokens: of a step, shared turns once.
        read_tokens: prompts and observations of a step, shared ones once.
        row_tokens: of one trajectory, prompt and observations included.
        row_loss_tokens: sampled ones of it.
        micro_batches: of one minibatch on one process.
        optimizer_steps: of the whole run.
        epochs: passes over the training questions; None where their number is not known.
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
    """The batch arithmetic of a run.

    Args:
        run: resolved.
        branching: see ``Workload``; of the run's estimator.
        pool: training questions of an epoch, or None.
        assumed: the length of a trajectory.
    """
    task, training = run.task, run.training
    turns = min(assumed.turns, task.max_turns)
    turn = min(assumed.turn_tokens, task.max_turn_tokens)
    seen = round(assumed.observation_share * task.max_observation_tokens)
    copies_K = [math.prod(branching[:k + 1]) for k in range(turns)]
    leaves = math.prod(branching)
    sampled = turn * sum(copies_K)
    if training.trajectories_per_step is None:
        questions = max(1, round(training.tokens_per_step / sampled))
    else:
        questions = max(1, round(training.trajectories_per_step / leaves))
    questions = questions if pool is None else min(questions, pool)
    trajectories = questions * copies_K[-1]
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
    """Floating-point operations of a forward pass: two a weight and token, and attention over the context.

    Args:
        shape: the model.
        tokens: that pass the layers.
        context: tokens that each of them attends to, on average.
        logits: tokens for which the output matrix is used.
    """
    return tokens * (2 * shape.layers * shape.layer + 4 * shape.layers * shape.width * context) + \
        2 * shape.head * logits


@dataclass(frozen=True)
class Hours:
    """Time of a whole run by part, in hours of the clock, and how many GPUs it holds all the while.

    Attributes:
        sampling: prompts are read and turns decoded, validations included.
        scoring: reference and critic before an update.
        update: forward, backward and optimiser.
        traffic: offloaded weights and gradients between host and GPU.
        gpus: of training and, apart from it, of sampling.
    """

    sampling: float
    scoring: float
    update: float
    traffic: float
    gpus: int

    @property
    def clock(self) -> float:
        """Hours from start to end; parts follow one another."""
        return self.sampling + self.scoring + self.update + self.traffic

    @property
    def gpu_hours(self) -> float:
        """What is paid for."""
        return self.clock * self.gpus


@dataclass(frozen=True)
class Speed:
    """What one GPU does in a second, and what is moved to and from it."""

    flops: float
    memory_bytes: float
    host_bytes: float


def decode_seconds(run: RunConfig, shape: Shape, speed: Speed, *, trajectories: float, steps: float, context: float,
                   ) -> float:
    """Seconds in which trajectories take ``steps`` tokens each: every step reads the weights and the cache once.

    Sequences run side by side, ``engine.max_sequences`` on each copy of the policy; computing takes over where it is
    slower than reading.
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
    """Time of a run.

    Args:
        run, load: the run and its batch arithmetic.
        shape: of the policy; the critic has its backbone.
        speed: of one GPU, already at the shares that are assumed.
        critic, reference: whether there is one.
        sharded: whether weights are cut over processes (then offloaded weights travel with every pass).
        validations: episodes of all validations together.
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
    passes = 1.0 + 2.0 + float(run.launch.gradient_checkpointing)  # forward, backward, forward again
    backbone = forward_flops(shape, tokens, context)
    scored = reference * forward_flops(shape, tokens, context, losses) + critic * backbone
    updated = training.inner_epochs * passes * (forward_flops(shape, tokens, context, losses) + critic * backbone)
    moved = 0.0
    if sharded and {"parameters", "optimizer"} & {*run.launch.offload}:
        micro = load.micro_batches * training.minibatches
        modules = shape.parameters + critic * shape.backbone
        # to the GPU for each pass over a micro-batch, the gradient back; 4 bytes a weight, one part of it a process
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
