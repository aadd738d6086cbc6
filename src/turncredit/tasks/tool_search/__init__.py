"""The two-turn tool agent of the case study (appendix E)."""

from __future__ import annotations

from turncredit.config.algorithm import Content
from turncredit.data.questions import read_split
from turncredit.tasks.plugin import TaskPlugin
from turncredit.tasks.search import open_services
from turncredit.tasks.search.environment import SearchTask
from turncredit.tasks.search.rewards import METRICS
from turncredit.tasks.tool_search.config import ToolRewards, ToolSearchConfig
from turncredit.tasks.tool_search.demonstrations import DEMONSTRATIONS
from turncredit.tasks.tool_search.protocol import RULES
from turncredit.tasks.tool_search.rewards import COMPONENTS, ToolReward


def make_task(config: ToolSearchConfig) -> SearchTask:
    """The two-turn task: the search environment with other rules."""
    return SearchTask(config, RULES)


def make_reward(_: ToolSearchConfig, content: Content, values: ToolRewards) -> ToolReward:
    """The reward function of the two-turn task."""
    return ToolReward(content, values)


TASK = TaskPlugin(
    name="tool_search", config=ToolSearchConfig, rewards=ToolRewards, make_task=make_task, make_reward=make_reward,
    open_services=open_services, read_items=read_split, tags=("tool", "result", "reasoning", "answer"),
    metrics=METRICS, components=COMPONENTS, columns={"hops": "count", "prediction": "text"},
    demonstrations=DEMONSTRATIONS)
