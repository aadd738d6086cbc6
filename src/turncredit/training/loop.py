"""The training loop: questions, rollouts, credit, update, metrics row. It does not depend on the algorithm.

All state is in ``Progress`` and the ``Learner``; everything else is a pure function of the run's
configuration, so a resumed run continues bit for bit. All ranks run the loop together: each plays its
share of the questions, and the groups are gathered, so that all ranks have the same batch and the
same ``Progress``; rank 0 writes.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import Tensor
from tqdm import tqdm

from turncredit.config.load import RunConfig
from turncredit.credit.base import Estimator, TokenCredit
from turncredit.credit.rows import rows_of
from turncredit.distributed.processes import SINGLE_PROCESS, Processes
from turncredit.episodes.keep import EpisodeRecorder, kept_steps
from turncredit.episodes.records import step_episodes, write_records
from turncredit.errors import NonFiniteError, RankError, TurncreditError
from turncredit.evaluation import Episode, EpisodeRunner
from turncredit.files import writing
from turncredit.losses import kl_k3
from turncredit.rollout.branching import branching_of
from turncredit.seeding import START, Cursor, derive_seed, draw
from turncredit.training import checkpoint
from turncredit.training.batch import Batch
from turncredit.training.budget import NOTHING_SPENT, Budget, Quota
from turncredit.training.interrupt import StopRequest
from turncredit.training.learner import Learner
from turncredit.training.metrics import (
    MetricsRow,
    success_column,
    training_columns,
    training_rates,
    validation_columns,
    write_metrics,
)
from turncredit.training.monitor import collapse_flags
from turncredit.training.trackers import MetricsLogger
from turncredit.types import Group, Item

STATE = "state.json"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Progress:
    """All state of a run except weights and optimisers.

    Attributes:
        started: time of the run's first start.
        step: training steps done.
        cursor: position in the data order.
        budget: what was sampled, and what questions cost.
        rows: metrics rows; the first one is from before training.
        wall_s: seconds of training, including those before a resume.
        resumed_from: steps at which the run was resumed.
    """

    started: str
    step: int = 0
    cursor: Cursor = START
    budget: Budget = NOTHING_SPENT
    rows: tuple[MetricsRow, ...] = ()
    wall_s: float = 0.0
    resumed_from: tuple[int, ...] = ()

    def save(self, folder: Path) -> None:
        """Write ``state.json`` into a checkpoint."""
        (folder / STATE).write_text(json.dumps(asdict(self), indent=1), encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Progress:
        """Read ``state.json`` of a checkpoint."""
        raw: dict[str, Any] = json.loads((folder / STATE).read_text(encoding="utf-8"))
        return cls(cursor=Cursor(**raw.pop("cursor")), budget=Budget(**raw.pop("budget")),
                   rows=tuple(raw.pop("rows")), resumed_from=tuple(raw.pop("resumed_from")), **raw)


@dataclass(frozen=True, slots=True)
class _Collected:
    """The episodes of a step with their credit, and what follows from them for the next one."""

    groups: list[Group]
    episodes: Sequence[Sequence[Episode]]
    batch: Batch
    credit: TokenCredit
    reference_N: Tensor | None
    value_M: Tensor | None
    cursor: Cursor
    budget: Budget
    timestamps: list[float]


@dataclass(frozen=True, slots=True)
class Trainer:
    """Trains one run.

    Args:
        config: the resolved run.
        runner: plays and scores episodes with the learner's policy.
        estimator: turns rewards into credit.
        learner: weights and optimisers.
        pool: training items.
        validation: validation items.
        folder: checkpoints are saved here, and metrics.csv while the run trains.
        identity: hash of configuration and inputs (see ``checkpoint.save``).
        stop: checked at safe places.
        processes: the run's process group; rank 0 writes files.
        logger: logs every metrics row to the trackers.
        recorder: records a few whole episodes; None keeps none.
    """

    config: RunConfig
    runner: EpisodeRunner
    estimator: Estimator
    learner: Learner
    pool: Sequence[Item]
    validation: Sequence[Item]
    folder: Path
    identity: str
    stop: StopRequest
    processes: Processes = SINGLE_PROCESS
    logger: MetricsLogger = field(default_factory=MetricsLogger)
    recorder: EpisodeRecorder | None = None

    def train(self, progress: Progress) -> Progress:
        """Train from ``progress`` to the last step; each step writes a metrics row and, if due, a checkpoint.

        Raises:
            Interrupted: a signal arrived; the state is saved. A rollout is dropped between two turns, an
                update is always finished.
            TurncreditError: a retriever, engine, environment or item failed before an update; the state is saved.
            NonFiniteError: see ``Learner.update``; the last checkpoint is kept.
            RankError: another process of the run failed.
        """
        settings = self.config.training
        before, started = progress.wall_s, time.perf_counter()

        def timed(progress: Progress) -> Progress:
            return replace(progress, wall_s=before + time.perf_counter() - started)

        self._update_engine(progress.step)
        with _ProgressBar(settings.steps, progress.step, training_rates(self.runner.plugin),
                          shown=self.processes.is_main) as bar:
            whole = True  # weights and progress belong together on all ranks, and can be saved
            try:
                while True:
                    progress = self._validate(progress)
                    progress = self._finish_row(timed(progress))
                    self._write_metrics(progress)
                    bar.show(progress)
                    done = progress.step == settings.steps
                    if done or (progress.step and progress.step % settings.checkpoint_every == 0):
                        whole = False  # a save that fails is not tried again
                        self._save(progress)
                        whole = True
                    if done:
                        return progress
                    self.stop.check(self.processes)
                    collected = self._collect(progress)
                    whole = False
                    progress = self._learn(progress, collected)
                    whole = self.processes.world_size == 1  # ranks hand over weights together; one may wait for another
                    progress = self._hand_over(progress)
                    whole = True
            except TurncreditError as error:
                # half an update, weights that may be bad, or a rank that is gone
                if not whole or isinstance(error, NonFiniteError | RankError):
                    raise
                path = self._save_after(error, timed(progress))
                raise type(error)(f"{error.message}; saved {path}", error.remedy) from error
            except Exception as error:
                if whole and self.processes.world_size == 1:  # other ranks do not know of it
                    _log.error("saved %s before this error", self._save_after(error, timed(progress)))
                raise

    def _save_after(self, error: Exception, progress: Progress) -> Path:
        """Save the state after an error; if that fails too, raise the first error."""
        try:
            return self._save(progress)
        except Exception as second:
            _log.error("the state of step %d cannot be saved: %s", progress.step, second)
            raise error from second

    def _save(self, progress: Progress) -> Path:
        def write(folder: Path) -> None:
            self.learner.save(folder)
            if self.processes.is_main:
                progress.save(folder)
        return checkpoint.save(self.folder, progress.step, self.identity, write, processes=self.processes)

    def _write_metrics(self, progress: Progress) -> None:
        def write() -> None:
            write_metrics(progress.rows, self.folder / "metrics.csv", self.runner.plugin)
            with writing(self.folder):
                self.logger.log(progress.rows)
        self.processes.on_rank_0(write)

    def _update_engine(self, version: int) -> None:
        """Give the learner's weights to the engine."""
        weights = self.learner.full_weights()
        self.runner.engine.update_weights(weights, version)
        for _ in weights:  # all ranks must iterate to the end, even if the engine did not
            pass

    def _validate(self, progress: Progress) -> Progress:
        """Validate greedily if due: before training, every ``validate_every`` steps and at the end."""
        settings = self.config.training
        due = progress.step % settings.validate_every == 0 or progress.step == settings.steps
        row: MetricsRow = dict(progress.rows[-1]) if progress.rows else {"step": 0}
        if not due or any(name.startswith("validation_") for name in row):
            return progress
        episodes = self.processes.scatter_gather(self.validation, self.runner.chains)
        self.runner.engine.reset_prefix_cache()  # the next rollout must not depend on them, as after a resume
        row |= validation_columns(episodes, self.config.train_on, self.runner.plugin)
        return replace(progress, rows=(*progress.rows[:-1], row))

    def _finish_row(self, progress: Progress) -> Progress:
        """Add the time and the collapse flags to the last row."""
        flags = collapse_flags(progress.rows, max_turns=self.config.task.max_turns,
                               success=success_column(self.runner.plugin))
        row = progress.rows[-1] | {"wall_s": round(progress.wall_s, 3), "collapse": ";".join(flags)}
        return replace(progress, rows=(*progress.rows[:-1], row))

    def step(self, progress: Progress) -> Progress:
        """Take one training step."""
        return self._hand_over(self._learn(progress, self._collect(progress)))

    def _collect(self, progress: Progress) -> _Collected:
        """Play and judge the step's episodes; weights and progress are unchanged, also if it raises."""
        config, step, timestamps = self.config, progress.step, [time.perf_counter()]
        branching = branching_of(config.algorithm.rollout, config.task.max_turns, config.training)
        quota = Quota.of(config.training, branching, config.task.max_turn_tokens)
        items, groups, cursor = self._play(progress, branching, quota)
        self.processes.on_all_ranks(self.runner.engine.sleep)  # an error of one rank is known to all
        timestamps.append(time.perf_counter())

        episodes = self.runner.score(items, groups, branching)
        if (recorder := self.recorder) is not None and step + 1 in kept_steps(config.training.steps):
            self.processes.on_rank_0(lambda: write_records(
                step_episodes(self.folder, step + 1), recorder.training(step + 1, groups, episodes)))
        rows = rows_of(groups)
        batch = Batch.of(rows, config.training.gae_tokens)
        reference_N = self.learner.reference_logprobs(batch)
        value_M = self.learner.values(batch)
        credit = self.estimator.credit(
            groups, [[episode.rewards for episode in leaves] for leaves in episodes], rows,
            old_logprob_N=batch.old_logprob_N, reference_logprob_N=reference_N, value_M=value_M)
        timestamps.append(time.perf_counter())
        self.stop.check(self.processes)  # the last place where the step can be dropped
        return _Collected(groups, episodes, batch, credit, reference_N, value_M, cursor,
                          progress.budget.observe([*map(quota.cost, groups)]), timestamps)

    def _learn(self, progress: Progress, found: _Collected) -> Progress:
        """Update policy and critic with what a step collected."""
        config, step = self.config, progress.step
        report = self.learner.update(
            found.batch, found.credit, step=step, seed=config.random_seed,
            kl_in_loss=not self.estimator.kl_in_reward, reference_logprob_N=found.reference_N,
            old_value_M=found.value_M)
        seconds = [round(later - earlier, 4)
                   for earlier, later in pairwise([*found.timestamps, time.perf_counter()])]
        measured = training_columns(found.groups, found.episodes, found.credit, config.train_on, self.runner.plugin)
        row = {"step": step + 1, **measured, **report,
               **dict(zip(("seconds_rollout", "seconds_scoring", "seconds_update"), seconds, strict=True))}
        if found.reference_N is not None:
            row["kl"] = max(0.0, kl_k3(found.batch.old_logprob_N, found.reference_N, found.credit.weight_N).item())
        return replace(progress, step=step + 1, cursor=found.cursor, budget=found.budget,
                       rows=(*progress.rows, row))

    def _hand_over(self, progress: Progress) -> Progress:
        """Give the engine the new weights; the time counts as part of the update."""
        started = time.perf_counter()
        self._update_engine(progress.step)
        row = dict(progress.rows[-1])
        row["seconds_update"] = round(float(row["seconds_update"] or 0.0) + time.perf_counter() - started, 4)
        return replace(progress, rows=(*progress.rows[:-1], row))

    def _play(self, progress: Progress, branching: Sequence[int], quota: Quota,
              ) -> tuple[list[Item], list[Group], Cursor]:
        """Play questions in chunks up to the step's quota; return them, their groups and the cursor after them."""
        config, cursor = self.config, progress.cursor
        chosen: list[int] = []
        groups: list[Group] = []
        while count := progress.budget.more_questions(quota, [*map(quota.cost, groups)], len(self.pool) - len(chosen)):
            drawn, cursor = draw(cursor, count, len(self.pool), config.random_seed, taken=chosen)
            groups += self.processes.scatter_gather([self.pool[i] for i in drawn], lambda share: self.runner.play(
                share, branching, temperature=config.training.temperature,
                seed_of=lambda item, path: derive_seed(config.random_seed, progress.step, item, *path)))
            chosen += drawn
        return [self.pool[i] for i in chosen], groups, cursor


class _ProgressBar:
    """Progress on stderr: a bar on a terminal, otherwise a line every ten steps and at the end. Rank 0 shows it."""

    def __init__(self, steps: int, done: int, rates: Sequence[str], *, shown: bool) -> None:
        self._steps, self._shown = steps, shown
        self._names = ("reward_total", *rates, "turns_mean")
        self._bar = tqdm(total=steps, initial=done, unit="step", disable=not (shown and sys.stderr.isatty()))

    def __enter__(self) -> _ProgressBar:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()

    def show(self, progress: Progress) -> None:
        """Show the last row."""
        if not self._shown:
            return
        row = progress.rows[-1]
        shown = {name: f"{value:.3f}" for name in self._names if isinstance(value := row.get(name), float)}
        if row["collapse"]:
            shown["collapse"] = str(row["collapse"])
        self._bar.set_postfix(shown)
        self._bar.update(progress.step - self._bar.n)
        if self._bar.disable and (progress.step % 10 == 0 or progress.step == self._steps):
            details = " ".join(f"{name}={value}" for name, value in shown.items())
            print(f"step {progress.step}/{self._steps} {progress.wall_s:.0f} s {details}".rstrip(), file=sys.stderr)
