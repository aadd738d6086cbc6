"""The settings of a task: limits of an episode and reward values."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from turncredit.config.base import StrictModel


class SearchRewards(StrictModel):
    """Values of the search rewards (paper section 5.2); which of them count is ``content``."""

    correct: float = 1.0  # R^O: exact match and format right
    format_only: float = 0.2  # R^O: format right, answer wrong
    format_wrong: float = -1.0  # R^O: format wrong
    retrieval: float = 0.3  # R_retrieval: an accepted answer in this turn's information
    turn_format_right: float = 0.1  # R_format of an intermediate turn
    turn_format_wrong: float = -0.2
    search_cost: float = Field(0.1, ge=0)  # lambda_s: cost of each search so far, every turn


class ToolRewards(StrictModel):
    """Values of the six reward functions of the two-turn study (paper appendix E.2)."""

    tool_execution: float = 0.2
    search_answer: float = 0.5
    answer_presence: float = 0.5
    exact_match: float = 1.0
    xml_format: float = 0.2
    xml_tags: float = 0.2


class TaskConfig(StrictModel):
    """The protocol of an episode."""

    name: Literal["search", "tool_search"]
    max_turns: int = Field(4, ge=1)  # N_max: the model's turns; the last can only answer
    max_turn_tokens: int = Field(32, ge=1)  # sampled tokens of one turn
    max_observation_tokens: int = Field(96, ge=8)  # of one observation, scaffolding included
    max_context_tokens: int = Field(512, ge=16)
    max_invalid_turns: int = Field(4, ge=1)
    top_k: int = Field(3, ge=1)
    instruction: Literal["short", "full"] = "short"  # the question (and the tool's name), or the protocol too
