"""Settings of the two-turn tool task."""

from __future__ import annotations

from typing import Literal

from turncredit.config.task import RewardConfig
from turncredit.tasks.search.config import QuestionTaskConfig


class ToolSearchConfig(QuestionTaskConfig):
    """The two-turn tool agent (paper appendix E)."""

    name: Literal["tool_search"]


class ToolRewards(RewardConfig):
    """Values of the six reward functions of the two-turn study (paper appendix E.2)."""

    tool_execution: float = 0.2
    search_answer: float = 0.5
    answer_presence: float = 0.5
    exact_match: float = 1.0
    xml_format: float = 0.2
    xml_tags: float = 0.2
