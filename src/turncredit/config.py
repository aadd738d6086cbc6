"""Scientific configuration: closed, typed, validated before any work.

``config/algorithms.yaml`` (the grid) and ``config/<scale>.yaml`` (data, policy, experiments) are the
only sources; ``Scale.run(experiment, arm, seed)`` resolves one training run completely. An unknown
key is an error that names the nearest known one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError, model_validator

from turncredit.closed import Closed, explain, read_mapping
from turncredit.errors import ConfigError, nearest

Estimator = Literal["group", "critic"]
Placement = Literal["terminal", "delayed", "per_turn"]
Content = Literal["outcome", "merged", "full"]
SHARED = frozenset({"algorithms", "sources"})  # files of config/ that are no scale


class Algorithm(Closed):
    """A point of the 2 x 3 grid, and the reward content that goes with it (design: three words)."""

    estimator: Estimator
    placement: Placement
    content: Content


class SearchRewards(Closed):
    """Values of the search rewards (paper section 5.2); which of them count is ``content``."""

    correct: float = 1.0  # R^O: exact match and format right
    format_only: float = 0.2  # R^O: format right, answer wrong
    format_wrong: float = -1.0  # R^O: format wrong
    retrieval: float = 0.3  # R_retrieval: an accepted answer in this turn's information
    turn_format_right: float = 0.1  # R_format of an intermediate turn
    turn_format_wrong: float = -0.2
    search_cost: float = Field(0.1, ge=0)  # lambda_s: cost of each search so far, every turn


class ToolRewards(Closed):
    """Values of the six reward functions of the two-turn study (paper appendix E.2)."""

    tool_execution: float = 0.2
    search_answer: float = 0.5
    answer_presence: float = 0.5
    exact_match: float = 1.0
    xml_format: float = 0.2
    xml_tags: float = 0.2


class TaskConfig(Closed):
    """The protocol of an episode."""

    name: Literal["search", "tool_search"]
    max_turns: int = Field(4, ge=1)  # N_max: the model's turns; the last can only answer
    max_turn_tokens: int = Field(32, ge=1)  # sampled tokens of one turn
    max_observation_tokens: int = Field(96, ge=8)  # of one observation, scaffolding included
    max_context_tokens: int = Field(512, ge=16)
    max_invalid_turns: int = Field(4, ge=1)
    top_k: int = Field(3, ge=1)
    instruction: Literal["short", "full"] = "short"  # the prompt: the question alone, or the protocol too


Dataset = Literal["facts", "bridge", "inverse", "compose", "chain"]


class WorldConfig(Closed):
    """The mini world: real country facts as passages and questions."""

    seed: int = 0
    cities: int = Field(2000, ge=0)  # distractor passages about cities
    train_questions: int = Field(2000, ge=1)  # per in-domain dataset
    validation_questions: int = Field(64, ge=1)  # per in-domain dataset
    test_questions: int = Field(100, ge=1)  # per dataset
    in_domain: tuple[Dataset, ...] = ("facts", "bridge")
    out_of_domain: tuple[Dataset, ...] = ("inverse", "compose", "chain")

    @model_validator(mode="after")
    def _each_dataset_once(self) -> WorldConfig:
        names = (*self.in_domain, *self.out_of_domain)
        if repeated := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"out_of_domain: {repeated[0]!r} is named twice; name it here or in in_domain, once")
        return self


class RetrieverConfig(Closed):
    """Lucene BM25 behind the /retrieve API."""

    kind: Literal["lucene"] = "lucene"
    k1: float = Field(0.9, gt=0)
    b: float = Field(0.4, ge=0, le=1)
    timeout_s: float = Field(20.0, gt=0)
    retries: int = Field(3, ge=0)
    max_query_tokens: int = Field(64, ge=1)  # whitespace words; longer queries are cut and counted


class PolicyConfig(Closed):
    """The base policy: a small Qwen2 made here, or any path or hub id that transformers loads."""

    path_or_id: str | None = None
    vocabulary: int = Field(4096, ge=256)
    hidden_size: int = Field(96, ge=8)
    layers: int = Field(3, ge=1)
    heads: int = Field(3, ge=1)
    kv_heads: int = Field(3, ge=1)
    intermediate_size: int = Field(256, ge=8)
    max_positions: int = Field(512, ge=32)


Flaw = Literal["no_search", "wrong_query", "repeated_search", "broken_tags"]
FLAWS: tuple[Flaw, ...] = get_args(Flaw)


class WarmStartConfig(Closed):
    """Supervised start: skills from clean demonstrations, then habits from flawed ones."""

    seed: int = 0
    batch: int = Field(48, ge=1)  # demonstrations an optimiser step
    clean_steps: int = Field(1200, ge=1)  # of the clean policy, the ceiling of every arm
    flawed_steps: int = Field(300, ge=1)  # from the clean policy to a task's base policy
    one_hop_epochs: int = Field(4, ge=0)  # passes over the one-hop questions before all of them
    clean_learning_rate: float = Field(3e-3, gt=0)
    muon_learning_rate: float = Field(2e-2, gt=0)  # of the clean policy's matrices; scales with the other
    flawed_learning_rate: float = Field(1e-3, gt=0)
    warmup_steps: int = Field(50, ge=0)
    threads: int = Field(2, ge=1)
    flaws: dict[Flaw, Annotated[float, Field(ge=0, le=1)]]  # mean chance of each flaw at a decision
    flaw_spread: float = Field(0.5, ge=0, lt=1)  # how unevenly flaws fall on the kinds of question

    @model_validator(mode="after")
    def _every_flaw_has_a_chance(self) -> WarmStartConfig:
        if missing := [flaw for flaw in FLAWS if flaw not in self.flaws]:
            raise ValueError(f"flaws: no chance of {', '.join(missing)}; add it, from 0 to 1")
        return self


class TrainingConfig(Closed):
    """One training run; the same for every arm of an experiment (equal budgets)."""

    steps: int = Field(60, ge=1)
    tokens_per_step: int = Field(2000, ge=1)  # sampled tokens a step, shared turns counted once
    group_size: int = Field(8, ge=2)  # G of the group baselines (chains)
    tree_branching: int = Field(2, ge=2)  # G of MT-GRPO's tree: actions sampled from each state
    inner_epochs: int = Field(1, ge=1)  # passes over a batch (mu of GRPO, ppo_epochs of PPO)
    minibatches: int = Field(2, ge=1)  # optimiser steps a pass
    micro_batch_tokens: int = Field(8192, ge=1)  # padded tokens a forward pass
    learning_rate: float = Field(3e-4, gt=0)
    critic_learning_rate: float = Field(1e-3, gt=0)
    warmup_steps: int = Field(5, ge=0)
    critic_warmup_steps: int = Field(1, ge=0)
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.99, ge=0, lt=1)
    max_grad_norm: float = Field(1.0, gt=0)
    clip_epsilon: float = Field(0.2, gt=0, lt=1)
    value_clip: float = Field(0.5, gt=0)
    kl_coefficient: float = Field(0.001, ge=0)  # beta
    entropy_coefficient: float = Field(0.0, ge=0)
    temperature: float = Field(1.0, gt=0)
    gamma: float = Field(1.0, ge=0, le=1)
    gae_lambda: float = Field(1.0, ge=0, le=1)
    alpha: float = Field(1.0, ge=0, le=1)  # weight of A^O in Eq. 5-6 and 12
    group_std: Literal["population", "sample"] = "population"
    loss_aggregation: Literal["sequence", "token"] = "sequence"  # 1/|y_i| of Eq. 3, or token mean
    validate_every: int = Field(10, ge=1)
    checkpoint_every: int = Field(20, ge=1)


class ArmOverrides(Closed):
    """What an arm of an experiment changes beside its algorithm."""

    placement: Placement | None = None
    content: Content | None = None
    max_turns: int | None = Field(None, ge=1)
    search_cost: float | None = Field(None, ge=0)


class Arm(Closed):
    """An arm: an algorithm of the grid with declared overrides, or another experiment's arm.

    ``same_as`` ("experiment/arm") reuses the runs of an identical arm instead of training it twice.
    """

    algorithm: str
    overrides: ArmOverrides = ArmOverrides()
    same_as: str | None = None


class Experiment(Closed):
    """Arms that are compared with one another, at equal budgets."""

    task: TaskConfig
    train_on: tuple[str, ...]  # datasets whose train questions are used
    training: TrainingConfig = TrainingConfig()
    arms: dict[str, Arm]


class Scale(Closed):
    """Everything that a scale fixes; one file ``config/<name>.yaml``."""

    name: str
    seeds: int = Field(3, ge=1)
    device: Literal["cpu", "cuda"] = "cpu"
    threads: int = Field(1, ge=1)  # torch threads of one training run
    world: WorldConfig
    retriever: RetrieverConfig = RetrieverConfig()
    policy: PolicyConfig
    warm_start: WarmStartConfig
    search_rewards: SearchRewards = SearchRewards()
    tool_rewards: ToolRewards = ToolRewards()
    experiments: dict[str, Experiment]
    algorithms: dict[str, Algorithm]

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Scale:
        for name, experiment in self.experiments.items():
            for fault in self._faults(experiment):
                raise ValueError(f"experiments.{name}.{fault}")
        return self

    def _faults(self, experiment: Experiment) -> Iterator[str]:
        """Values of an experiment that do not go with others, each behind its key."""
        datasets = (*self.world.in_domain, *self.world.out_of_domain)
        yield from (f"train_on: no dataset {name!r}; {nearest(name, datasets)}"
                    for name in experiment.train_on if name not in datasets)
        longest, positions = experiment.task.max_context_tokens, self.policy.max_positions
        if self.policy.path_or_id is None and longest > positions:
            yield f"task.max_context_tokens = {longest}: policy.max_positions = {positions} is less; raise it"
        trained = [f"{name}/{arm}" for name, other in self.experiments.items()
                   for arm in other.arms if other.arms[arm].same_as is None]
        for name, arm in experiment.arms.items():
            where = f"arms.{name}"
            if arm.algorithm not in self.algorithms:
                yield f"{where}.algorithm: no algorithm {arm.algorithm!r}; {nearest(arm.algorithm, self.algorithms)}"
            if arm.overrides.search_cost is not None and experiment.task.name != "search":
                yield f"{where}.overrides.search_cost: the task {experiment.task.name} has no such cost; remove it"
            if arm.same_as is not None and arm.same_as not in trained:
                yield f"{where}.same_as: no trained arm {arm.same_as!r}; {nearest(arm.same_as, trained)}"

    def run(self, experiment: str, arm: str, seed: int) -> RunConfig:
        """Resolve one training run.

        Raises:
            ConfigError: no such experiment or arm at this scale, or a negative seed.
        """
        if experiment not in self.experiments:
            raise ConfigError(f"no experiment {experiment!r} at scale {self.name!r}",
                              nearest(experiment, self.experiments))
        found = self.experiments[experiment]
        if arm not in found.arms:
            raise ConfigError(f"no arm {arm!r} in experiment {experiment!r}", nearest(arm, found.arms))
        if seed < 0:
            raise ConfigError(f"seed {seed} is negative", "use 0, 1, 2, ...")
        overrides = found.arms[arm].overrides
        algorithm = self.algorithms[found.arms[arm].algorithm]
        algorithm = algorithm.model_copy(
            update={k: v for k in ("placement", "content") if (v := getattr(overrides, k)) is not None})
        task = found.task if overrides.max_turns is None else found.task.model_copy(
            update={"max_turns": overrides.max_turns})
        rewards: SearchRewards | ToolRewards = self.search_rewards if task.name == "search" else self.tool_rewards
        if overrides.search_cost is not None:
            rewards = rewards.model_copy(update={"search_cost": overrides.search_cost})
        return RunConfig(
            scale=self.name, experiment=experiment, arm=arm, seed=seed, algorithm=algorithm, task=task,
            rewards=rewards, train_on=found.train_on, training=found.training, device=self.device,
            threads=self.threads)

    def identical(self, experiment: str, arm: str) -> tuple[str, str]:
        """Where an arm's runs are: itself, or the arm named by ``same_as`` (checked to be identical)."""
        same_as = self.experiments[experiment].arms[arm].same_as
        if same_as is None:
            return experiment, arm
        other_experiment, _, other_arm = same_as.partition("/")
        mine, other = self.run(experiment, arm, 0), self.run(other_experiment, other_arm, 0)
        if mine.science() != other.science():
            raise ConfigError(f"experiments.{experiment}.arms.{arm}.same_as: {same_as} differs in its settings",
                              "remove same_as, or make the two arms equal")
        return other_experiment, other_arm


class RunConfig(Closed):
    """One training run, completely; its hash stands in the manifest and in every checkpoint."""

    scale: str
    experiment: str
    arm: str
    seed: int = Field(ge=0)
    algorithm: Algorithm
    task: TaskConfig
    rewards: SearchRewards | ToolRewards
    train_on: tuple[str, ...]
    training: TrainingConfig
    device: str
    threads: int

    def science(self) -> dict[str, Any]:
        """What decides the result, names and seed aside."""
        return self.model_dump(mode="json", exclude={"experiment", "arm", "seed", "device", "threads"})

    def digest(self) -> str:
        """sha256 of the run's science, names and seed (hex)."""
        payload = self.model_dump(mode="json", exclude={"device", "threads"})
        return hashlib.sha256(json.dumps(payload, sort_keys=True).encode()).hexdigest()


def scale_names(config_dir: Path = Path("config")) -> list[str]:
    """The scales of a folder: its YAML files, but for those that every scale shares."""
    return sorted(path.stem for path in config_dir.glob("*.yaml") if path.stem not in SHARED)


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
                scale.identical(experiment, arm)
    except ValidationError as error:
        raise ConfigError(f"{path}: " + "; ".join(explain(e, Scale) for e in error.errors()),
                          f"{config_dir / 'README.md'} tells what each key holds") from error
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", error.remedy) from error
    return scale
