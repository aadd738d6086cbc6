"""Tasks and rewards by the name of the task."""

from __future__ import annotations

from turncredit.config.algorithm import Content
from turncredit.config.task import SearchRewards, TaskConfig, ToolRewards
from turncredit.errors import ConfigError
from turncredit.tasks.env import Task
from turncredit.tasks.search import protocol as search
from turncredit.tasks.search.environment import EpisodeTask
from turncredit.tasks.search.rewards import SearchReward
from turncredit.tasks.search.shared import RewardFunction
from turncredit.tasks.tool_search import protocol as tool_search
from turncredit.tasks.tool_search.rewards import ToolReward


def make_task(config: TaskConfig) -> Task:
    """The task that ``config.name`` names."""
    rules = {"search": search.RULES, "tool_search": tool_search.RULES}[config.name]
    return EpisodeTask(config, rules)


def make_reward(task: TaskConfig, content: Content, values: SearchRewards | ToolRewards) -> RewardFunction:
    """The reward function of a task, in which the components of ``content`` count.

    Raises:
        ConfigError: the values belong to another task.
    """
    if task.name == "search" and isinstance(values, SearchRewards):
        return SearchReward(content, values)
    if task.name == "tool_search" and isinstance(values, ToolRewards):
        return ToolReward(content, values)
    raise ConfigError(f"task {task.name!r} cannot be judged with {type(values).__name__}",
                      "give search SearchRewards and tool_search ToolRewards")
