"""The experiments of a scale: the task, the arms that are compared, and their training."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from turncredit.config.algorithm import Content
from turncredit.config.base import StrictModel, missing, optional, refuse, validate_as
from turncredit.config.names import ArmName
from turncredit.config.reading import Reading
from turncredit.config.runtime import EngineConfig, LaunchConfig
from turncredit.config.task import TaskConfig
from turncredit.config.training import TrainingConfig
from turncredit.credit.registry import Placement, Rollout
from turncredit.errors import nearest
from turncredit.tasks.registry import TASKS, plugin_of


def as_task(value: Any) -> Any:
    """A task's settings, validated by the model of the task that they name."""
    if not isinstance(value, Mapping):
        return value  # a task already, or a fault that pydantic describes
    if "name" not in value:
        raise missing("name")
    if not isinstance(name := value["name"], str) or name not in TASKS:
        raise refuse(name, f"no such task; {nearest(str(name), TASKS)}", "name")
    return validate_as(TASKS[name].config, value)


class ArmOverrides(StrictModel):
    """What an arm of an experiment changes beside its algorithm."""

    reading: Reading | None = None
    placement: Placement | None = None
    content: Content | None = None
    rollout: Rollout | None = None
    task: dict[str, Any] = Field(default={})  # other settings of the experiment's task
    rewards: dict[str, Any] = Field(default={})  # other values of that task's rewards


class Arm(StrictModel):
    """An arm: an algorithm of the grid with declared overrides, or another experiment's arm.

    ``same_as`` ("experiment/arm") reuses the runs of an identical arm instead of training it twice.
    """

    algorithm: str
    overrides: ArmOverrides = ArmOverrides()
    same_as: str | None = None


class Experiment(StrictModel):
    """Arms that are compared with one another, at equal budgets."""

    task: SerializeAsAny[TaskConfig]
    train_on: tuple[str, ...]  # datasets whose train questions are used
    evaluate_on: tuple[str, ...] | None = optional(min_length=1)  # null: all in-domain and out-of-domain sets
    training: TrainingConfig = TrainingConfig()
    reading: Reading | None = optional()  # null: the scale's
    seeds: int | None = optional(ge=1)  # null: as many as the scale says
    retriever: str | None = optional()  # one of ``retrievers``; null: ``retriever``
    engine: EngineConfig | None = optional()  # null: the scale's
    launch: LaunchConfig | None = optional()  # null: the scale's
    arms: dict[ArmName, Arm]

    _task = field_validator("task", mode="before")(as_task)

    @model_validator(mode="after")
    def _overrides_fit_the_task(self) -> Experiment:
        for name, arm in self.arms.items():
            place = ("arms", name, "overrides")
            validate_as(type(self.task), self.task.model_dump() | arm.overrides.task, *place, "task")
            validate_as(plugin_of(self.task.name).rewards, arm.overrides.rewards, *place, "rewards")
        return self


class CheckpointConfig(StrictModel):
    """A policy that others trained: evaluated like an arm, in the task of one experiment, and never trained here."""

    path_or_id: str
    revision: str | None = None
    experiment: str
    label: str  # its row in Table 2
    in_all: bool = True  # whether the target `all` needs it; if not, it is shown once it was evaluated by name
