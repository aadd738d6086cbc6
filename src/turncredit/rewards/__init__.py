"""Rewards: pure functions from an episode to numbers, by task and by content."""

from __future__ import annotations

from turncredit.config import Content, SearchRewards, TaskConfig, ToolRewards
from turncredit.errors import ConfigError
from turncredit.rewards.base import RewardFunction, Rewards
from turncredit.rewards.search import SearchReward
from turncredit.rewards.tool_call import ToolReward

__all__ = ["RewardFunction", "Rewards", "make_reward"]


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
