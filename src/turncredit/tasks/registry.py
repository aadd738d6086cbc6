"""The registry of tasks. A new task adds one entry to ``TASKS``."""

from __future__ import annotations

from collections.abc import Sequence

from turncredit.config.algorithm import Content
from turncredit.config.task import RewardConfig, TaskConfig
from turncredit.errors import ConfigError, nearest
from turncredit.tasks import search, tool_search
from turncredit.tasks.env import Task
from turncredit.tasks.plugin import RewardFunction, TaskPlugin

TASKS: dict[str, TaskPlugin] = {"search": search.TASK, "tool_search": tool_search.TASK}


def plugin_of(name: str) -> TaskPlugin:
    """The plug-in of a task.

    Raises:
        ConfigError: no task of this name.
    """
    if name not in TASKS:
        raise ConfigError(f"no task {name!r}", nearest(name, TASKS))
    return TASKS[name]


def make_task(config: TaskConfig) -> Task:
    """The task that ``config.name`` names."""
    return plugin_of(config.name).make_task(config)


def make_reward(task: TaskConfig, content: Content, values: RewardConfig) -> RewardFunction:
    """The reward function of a task, in which the components of ``content`` count.

    Raises:
        ConfigError: the values belong to another task, or the task has no such content.
    """
    plugin = plugin_of(task.name)
    if not isinstance(values, plugin.rewards):
        raise ConfigError(f"the rewards of task {task.name!r} cannot be computed with {type(values).__name__}",
                          f"pass {plugin.rewards.__name__}")
    if content not in plugin.contents:
        raise ConfigError(f"task {task.name!r} has no content {content!r}", f"use {', '.join(plugin.contents)}")
    return plugin.make_reward(task, content, values)


def tags_of(tasks: Sequence[TaskPlugin]) -> tuple[str, ...]:
    """The opening and closing tags of tasks, each once, in the order of first appearance.

    >>> tags_of([search.TASK])[:4]
    ('<think>', '</think>', '<search>', '</search>')
    """
    names = dict.fromkeys(name for task in tasks for name in task.tags)
    return tuple(f"<{slash}{name}>" for name in names for slash in ("", "/"))


def all_tags() -> tuple[str, ...]:
    """The tags of all registered tasks."""
    return tags_of([*TASKS.values()])
