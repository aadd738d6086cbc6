"""Tasks: the protocols of an episode, as pure environments."""

from __future__ import annotations

from turncredit.config import TaskConfig
from turncredit.tasks import search, tool_search
from turncredit.tasks.base import Environment, Message, Step, Task
from turncredit.tasks.episode import EpisodeTask

__all__ = ["Environment", "Message", "Step", "Task", "make_task"]


def make_task(config: TaskConfig) -> Task:
    """The task that ``config.name`` names."""
    rules = {"search": search.RULES, "tool_search": tool_search.RULES}[config.name]
    return EpisodeTask(config, rules)
