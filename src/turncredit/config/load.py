"""Scientific configuration: closed, typed, validated before any work.

``config/algorithms.yaml`` (the grid) and ``config/<scale>.yaml`` (data, policy, experiments) are the
only sources; ``Scale.run(experiment, arm, seed, base)`` resolves one training run completely. An unknown
key is an error that names the nearest known one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SerializeAsAny, ValidationError, ValidationInfo, field_validator, model_validator

from turncredit.config.algorithm import Algorithm
from turncredit.config.base import StrictModel, explain, optional, read_mapping, refuse, validate_as
from turncredit.config.credit_bench import CreditBenchConfig
from turncredit.config.data import PolicyConfig, QuestionsConfig, WarmStartConfig, WorldConfig
from turncredit.config.experiment import Arm, ArmOverrides, CheckpointConfig, Experiment, as_task
from turncredit.config.names import CheckpointName, ExperimentName, RetrieverName
from turncredit.config.paths import run_key
from turncredit.config.reading import Reading, with_reading
from turncredit.config.retriever import RetrieverConfig
from turncredit.config.runtime import EngineConfig, LaunchConfig
from turncredit.config.task import RewardConfig, TaskConfig
from turncredit.config.training import TrainingConfig
from turncredit.errors import ConfigError, nearest
from turncredit.files import json_sha256
from turncredit.seeding import derive_seed
from turncredit.tasks.registry import TASKS, plugin_of

SHARED_FILES = frozenset({"algorithms", "models", "sources"})  # files of config/ that are not scales

# How a run is executed, not what it computes: these keys are not part of its hash.
RUNTIME_KEYS = frozenset({"device", "threads", "engine", "launch"})


class Scale(StrictModel):
    """Everything that a scale fixes; one file ``config/<name>.yaml``.

    Its questions come from a ``world`` that is made here or from real sets (``questions``): exactly one of them.
    """

    name: str
    reading: Reading = "text"  # where the paper's text and its authors' code differ (``config.reading``)
    base_policies: int = Field(1, ge=1)  # policies that RL training starts from, each with every seed
    seeds: int = Field(3, ge=1)  # of RL training, for each base policy
    device: Literal["cpu", "cuda"] = "cpu"
    threads: int = Field(1, ge=1)  # torch threads of one training run
    evaluate_in_training: bool = False  # the process that trained plays the test questions too (training.early)
    world: WorldConfig | None = None
    questions: QuestionsConfig | None = None
    retriever: RetrieverConfig = RetrieverConfig()
    retrievers: dict[RetrieverName, RetrieverConfig] = Field(default={})  # further ones, for experiments that name them
    policy: PolicyConfig
    warm_start: WarmStartConfig | None = None  # null: the initial policy is ``policy.path_or_id`` as it is
    engine: EngineConfig = EngineConfig()
    launch: LaunchConfig = LaunchConfig()
    rewards: dict[str, SerializeAsAny[RewardConfig]] = Field(default={}, validate_default=True)  # by task
    experiments: dict[ExperimentName, Experiment]
    checkpoints: dict[CheckpointName, CheckpointConfig] = Field(default={})
    credit_bench: CreditBenchConfig = CreditBenchConfig()
    algorithms: dict[str, Algorithm]

    @field_validator("rewards", mode="before")
    @classmethod
    def _rewards_of_every_task(cls, value: Any) -> Any:
        if not isinstance(value, Mapping):
            return value
        for name in value:
            if name not in TASKS:
                raise refuse(value[name], f"no such task; {nearest(str(name), TASKS)}", str(name))
        return {name: value[name] if isinstance(value.get(name), task.rewards)
                else validate_as(task.rewards, value.get(name, {}), name) for name, task in TASKS.items()}

    @property
    def in_domain(self) -> tuple[str, ...]:
        """Data sets that policies are trained on (the paper's dagger)."""
        return self._sets.in_domain

    @property
    def out_of_domain(self) -> tuple[str, ...]:
        """Data sets that policies are only tested on (the paper's star)."""
        return self._sets.out_of_domain

    @property
    def datasets(self) -> tuple[str, ...]:
        """All data sets, those apart from the two columns last."""
        return (*self.in_domain, *self.out_of_domain, *(self.questions.apart if self.questions else ()))

    @property
    def _sets(self) -> WorldConfig | QuestionsConfig:
        sets = self.world or self.questions
        assert sets is not None  # checked when the scale was read
        return sets

    def require_world(self) -> WorldConfig:
        """The world that is made here.

        Raises:
            ConfigError: the questions of this scale are fetched.
        """
        if self.world is None:
            raise ConfigError(f"scale {self.name!r} has no world: its questions are fetched", "snakemake fetch")
        return self.world

    def require_warm_start(self) -> WarmStartConfig:
        """How the policies before reinforcement are made.

        Raises:
            ConfigError: they are not made here.
        """
        if self.warm_start is None:
            raise ConfigError(f"scale {self.name!r} has no warm_start: its initial policy is {self.policy.path_or_id}",
                              "train with it as it is, or add warm_start")
        return self.warm_start

    @property
    def environment(self) -> str:
        """The pinned environment of ``envs/`` for its jobs: ``gpu`` where vLLM or CUDA is used, else ``core``."""
        engines = (self.engine, *(e.engine for e in self.experiments.values() if e.engine is not None))
        return "gpu" if self.device == "cuda" or any(engine.kind == "vllm" for engine in engines) else "core"

    def seeds_of(self, experiment: str) -> int:
        """Training seeds of an experiment's arms, for each base policy."""
        return self.experiments[experiment].seeds or self.seeds

    def runs_of(self, experiment: str) -> int:
        """Runs of each arm of an experiment: every seed from every base policy."""
        return self.base_policies * self.seeds_of(experiment)

    def evaluated(self, experiment: str) -> tuple[str, ...]:
        """Data sets of an experiment's final evaluation."""
        own = plugin_of(self.experiments[experiment].task.name).datasets
        return self.experiments[experiment].evaluate_on or own or (*self.in_domain, *self.out_of_domain)

    def retriever_of(self, experiment: str) -> RetrieverConfig:
        """What answers the searches of an experiment."""
        name = self.experiments[experiment].retriever
        return self.retriever if name is None else self.retrievers[name]

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Scale:
        if (self.world is None) == (self.questions is None):
            raise ValueError("world is missing: add it, or questions" if self.world is None
                             else "questions: stands beside world; remove one of them")
        if self.warm_start is None and self.policy.path_or_id is None:
            raise ValueError("warm_start is missing: add it, or name a policy in policy.path_or_id")
        if self.warm_start is None and self.base_policies > 1:
            raise ValueError("base_policies: only a warm start makes several; set it to 1")
        for name, experiment in self.experiments.items():
            for fault in self._faults(experiment):
                raise ValueError(f"experiments.{name}.{fault}")
        for fault in self._flaw_faults():
            raise ValueError(f"warm_start.flaws{fault}")
        if (named := self.credit_bench.experiment) is not None and named not in self.experiments:
            raise ValueError(f"credit_bench.experiment: no experiment {named!r}; {nearest(named, self.experiments)}")
        for name, checkpoint in self.checkpoints.items():
            if checkpoint.experiment not in self.experiments:
                raise ValueError(f"checkpoints.{name}.experiment: no experiment {checkpoint.experiment!r}; "
                                 f"{nearest(checkpoint.experiment, self.experiments)}")
        return self

    def _faults(self, experiment: Experiment) -> Iterator[str]:
        """Values of an experiment that do not go with others, each behind its key."""
        datasets = plugin_of(experiment.task.name).datasets or self.datasets
        for key, names in (("train_on", experiment.train_on), ("evaluate_on", experiment.evaluate_on or ())):
            yield from (f"{key}: no dataset {name!r}; {nearest(name, datasets)}"
                        for name in names if name not in datasets)
        if (named := experiment.retriever) is not None and named not in self.retrievers:
            yield f"retriever: none of retrievers is {named!r}; {nearest(named, self.retrievers)}"
        longest, positions = experiment.task.max_context_tokens, self.policy.max_positions
        if self.policy.path_or_id is None and longest > positions:
            yield f"task.max_context_tokens = {longest}: policy.max_positions = {positions} is less; raise it"
        trained = [f"{name}/{arm}" for name, other in self.experiments.items()
                   for arm in other.arms if other.arms[arm].same_as is None]
        for name, arm in experiment.arms.items():
            where = f"arms.{name}"
            if arm.algorithm not in self.algorithms:
                yield f"{where}.algorithm: no algorithm {arm.algorithm!r}; {nearest(arm.algorithm, self.algorithms)}"
            if arm.same_as is not None and arm.same_as not in trained:
                yield f"{where}.same_as: no trained arm {arm.same_as!r}; {nearest(arm.same_as, trained)}"

    def _flaw_faults(self) -> Iterator[str]:
        """Flaws of the tasks' demonstrations without a chance, and chances of unknown flaws."""
        demonstrations = [TASKS[experiment.task.name].demonstrations for experiment in self.experiments.values()]
        known = dict.fromkeys(flaw for task in demonstrations if task for flaw in task.flaws)
        chances = {} if self.warm_start is None else self.warm_start.flaws
        yield from (f".{flaw}: no such flaw; {nearest(flaw, known)}" for flaw in chances if flaw not in known)
        if self.warm_start is not None and (unset := [flaw for flaw in known if flaw not in chances]):
            yield f": no chance of {', '.join(unset)}; add it, from 0 to 1"

    def task_of(self, experiment: str) -> TaskConfig:
        """The task of an experiment under its reading, without the overrides of its arms."""
        found = self.experiments[experiment]
        return with_reading(found.reading or self.reading, found.task, {})

    def checkpoint(self, name: str) -> CheckpointConfig:
        """A policy that others trained.

        Raises:
            ConfigError: there is none of that name.
        """
        if name not in self.checkpoints:
            raise ConfigError(f"no checkpoint {name!r} at scale {self.name!r}", nearest(name, self.checkpoints))
        return self.checkpoints[name]

    def run(self, experiment: str, arm: str, seed: int, base: int = 0) -> RunConfig:
        """Resolve one training run.

        Raises:
            ConfigError: no such experiment or arm at this scale, a negative number, a second base policy without a
                warm start, or overrides that do not fit.
        """
        found = self._arm(experiment, arm)
        if seed < 0:
            raise ConfigError(f"seed {seed} is negative", "use 0, 1, 2, ...")
        return self._resolve(experiment, arm, found.overrides, seed, base)

    def _arm(self, experiment: str, arm: str) -> Arm:
        if experiment not in self.experiments:
            raise ConfigError(f"no experiment {experiment!r} at scale {self.name!r}",
                              nearest(experiment, self.experiments))
        if arm not in (arms := self.experiments[experiment].arms):
            raise ConfigError(f"no arm {arm!r} in experiment {experiment!r}", nearest(arm, arms))
        return arms[arm]

    def without_overrides(self, experiment: str, base: int = 0) -> RunConfig:
        """An experiment's task, rewards and training settings as its first arm has them without its overrides.

        Raises:
            ConfigError: no such base policy.
        """
        return self._resolve(experiment, next(iter(self.experiments[experiment].arms)), ArmOverrides(), 0, base)

    def _resolve(self, experiment: str, arm: str, overrides: ArmOverrides, seed: int, base: int) -> RunConfig:
        self.check_base(base)
        found = self.experiments[experiment]
        algorithm = self.algorithms[found.arms[arm].algorithm]
        try:
            algorithm = Algorithm.model_validate(algorithm.model_dump() | {
                k: v for k in ("placement", "content", "rollout") if (v := getattr(overrides, k)) is not None})
        except ValidationError as error:
            raise ConfigError(f"experiments.{experiment}.arms.{arm}.overrides: {explain(error, Algorithm)}",
                              "change the overrides") from error
        if algorithm.content not in (known := plugin_of(found.task.name).contents):
            raise ConfigError(f"experiments.{experiment}.arms.{arm}: task {found.task.name!r} has no content "
                              f"{algorithm.content!r}", f"use {', '.join(known)}")
        reading = overrides.reading or found.reading or self.reading
        task = with_reading(reading, found.task, overrides.task)
        rewards = with_reading(reading, self.rewards[task.name], overrides.rewards)
        training = with_reading(reading, found.training, {})
        if algorithm.rollout == "tree":
            try:
                training.tree_branching_K(task.max_turns)
            except ValueError as error:
                raise ConfigError(f"experiments.{experiment}.training.{error}; arm {arm!r} samples a tree",
                                  "give one number for each turn, or fewer") from error
        evaluated = self.evaluated(experiment)  # None if it equals all data sets, so that the hash does not change
        return RunConfig(
            scale=self.name, experiment=experiment, arm=arm, base=base, seed=seed, algorithm=algorithm,
            task=task, rewards=rewards, train_on=found.train_on, retriever=found.retriever,
            evaluate_on=None if evaluated == self.datasets else evaluated,
            training=training, device=self.device, threads=self.threads,
            engine=found.engine or self.engine, launch=found.launch or self.launch)

    def check_base(self, base: int) -> None:
        """Check the index of a base policy.

        Raises:
            ConfigError: it is negative, or this scale has base policy 0 only.
        """
        if base < 0 or (base > 0 and self.warm_start is None):
            raise ConfigError(f"no base policy {base} at scale {self.name!r}",
                              "use 0, its only one" if self.warm_start is None else "use 0, 1, 2, ...")

    def identical(self, experiment: str, arm: str) -> tuple[str, str]:
        """Where an arm's runs are: itself, or the arm named by ``same_as``.

        Raises:
            ConfigError: no such experiment or arm, or ``same_as`` names one with other settings.
        """
        same_as = self._arm(experiment, arm).same_as
        if same_as is None:
            return experiment, arm
        other_experiment, _, other_arm = same_as.partition("/")
        mine, other = self.run(experiment, arm, 0), self.run(other_experiment, other_arm, 0)
        if mine.settings() != other.settings():
            raise ConfigError(f"experiments.{experiment}.arms.{arm}.same_as: {same_as} differs in its settings",
                              "remove same_as, or make the two arms equal")
        return other_experiment, other_arm


class RunConfig(StrictModel):
    """One training run, completely; its hash stands in the manifest and in every checkpoint."""

    scale: str
    experiment: str
    arm: str
    base: int = Field(0, ge=0)  # index of the base policy
    seed: int = Field(ge=0)
    algorithm: Algorithm
    task: SerializeAsAny[TaskConfig]
    rewards: SerializeAsAny[RewardConfig]
    train_on: tuple[str, ...]
    evaluate_on: tuple[str, ...] | None = optional()
    retriever: str | None = optional()
    training: TrainingConfig
    device: str
    threads: int
    engine: EngineConfig = EngineConfig()
    launch: LaunchConfig = LaunchConfig()

    _task = field_validator("task", mode="before")(as_task)

    @field_validator("rewards", mode="before")
    @classmethod
    def _rewards_of_the_task(cls, value: Any, info: ValidationInfo) -> Any:
        task = info.data.get("task")  # absent if it has a fault of its own
        if not isinstance(value, Mapping) or task is None:
            return RewardConfig() if task is None else value
        return validate_as(plugin_of(task.name).rewards, value)

    def settings(self) -> dict[str, Any]:
        """The hashed fields without experiment, arm, base and seed: equal for arms that may share runs."""
        return self.hashed_fields(exclude={"experiment", "arm", "base", "seed", *RUNTIME_KEYS})

    @property
    def random_seed(self) -> int:
        """The seed of all random streams of the run: ``seed``, or from base policy 1 on a hash of base and seed."""
        return self.seed if self.base == 0 else derive_seed("base", self.base, self.seed)

    @property
    def key(self) -> str:
        """Names the run among those of its experiment, as the last folders of its path do."""
        return run_key(self.arm, self.base, self.seed)

    def digest(self) -> str:
        """sha256 (hex) of the hashed fields, experiment, arm, base and seed included."""
        return json_sha256(self.hashed_fields(exclude=RUNTIME_KEYS))


def scale_names(config_dir: Path = Path("config")) -> list[str]:
    """The scales of a folder: its YAML files, but for those that every scale shares."""
    return sorted(path.stem for path in config_dir.glob("*.yaml") if path.stem not in SHARED_FILES)


def load_scale(name: str, config_dir: Path = Path("config")) -> Scale:
    """Read and check ``config/<name>.yaml`` with ``config/algorithms.yaml``.

    Raises:
        ConfigError: no such scale, unreadable YAML, an unknown key, a value out of range or a
            ``same_as`` that differs; the message names the file, the key, the value and the remedy.
    """
    scales = scale_names(config_dir)
    if name not in scales:
        raise ConfigError(f"no scale {name!r} in {config_dir}/",
                          nearest(name, scales) if scales else "run in the clone, or say --root CLONE")
    path = config_dir / f"{name}.yaml"
    raw: dict[str, Any] = {"name": name}
    for part in (config_dir / "algorithms.yaml", path):
        content = read_mapping(part)
        if foreign := sorted(content.keys() & raw.keys()):
            raise ConfigError(f"{part}: key {foreign[0]} does not belong in this file", "remove it")
        raw |= content
    try:
        scale = Scale.model_validate(raw)
        for experiment, settings in scale.experiments.items():
            for arm in settings.arms:
                scale.run(experiment, arm, 0)  # resolve every arm, so that its overrides are checked here
                scale.identical(experiment, arm)
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error, Scale)}",
                          f"{config_dir / 'README.md'} tells what each key holds") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", error.remedy) from error
    return scale
