"""Settings of the search task, and what both question-answering tasks share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from turncredit.config.task import RewardConfig, TaskConfig
from turncredit.tasks.tags import ActionRule


class QuestionTaskConfig(TaskConfig):
    """Question answering with a retriever; the last turn can only answer."""

    top_k: int = Field(3, ge=1)  # passages of one search
    retrieval_noise: float = Field(0.0, ge=0, lt=1)  # chance that a search shows the next top_k passages instead
    instruction: Literal["short", "full"] = "short"  # the question (and the tool's name), or the protocol too

    @property
    def retrieved(self) -> int:
        """Passages that a search asks of the retriever; with noise also those that may be shown instead."""
        return self.top_k if self.retrieval_noise == 0 else 2 * self.top_k


class SearchConfig(QuestionTaskConfig):
    """The search agent (paper section 6.2)."""

    CODE: ClassVar[Mapping[str, Any]] = {"action": "first_pair"}

    name: Literal["search"]
    prompt: Literal["own", "search_r1"] = "own"  # fixed texts: ours, or those of Search-R1 word for word
    action: ActionRule = "first_block"  # what a turn does: its first action block, or its first complete pair of tags

    @model_validator(mode="after")
    def _has_an_instruction(self) -> SearchConfig:
        if self.prompt == "search_r1" and self.instruction != "full":
            raise ValueError("prompt: search_r1 is an instruction word for word; set instruction: full")
        return self


class SearchRewards(RewardConfig):
    """Values of the search rewards (paper section 5.2, Search-R1); ``content`` decides which of them count."""

    CODE: ClassVar[Mapping[str, Any]] = {"search_charge": "tag", "turn_format": "counts", "hit": "normalised"}

    correct: float = 1.0  # R^O: exact match and format right
    format_only: float = 0.2  # R^O: format right, answer wrong
    format_wrong: float = -1.0  # R^O: format wrong
    retrieval: float = 0.3  # R_retrieval: an accepted answer in this turn's information
    turn_format_right: float = 0.1  # R_format of an intermediate turn
    turn_format_wrong: float = -0.2
    search_cost: float = Field(0.1, ge=0)  # lambda_s: cost of each search so far, every turn
    search_charge: Literal["executed", "tag"] = "executed"  # what counts as a search: an executed one, or its tag
    turn_format: Literal["strict", "counts"] = "strict"  # the blocks alone, or counts and order of tags
    hit: Literal["raw", "normalised"] = "raw"  # how an accepted answer is looked for in the information
    # The merged reward, one number for the whole trajectory: the answer right or wrong, the format right or malformed
    merged_right: float = 1.0
    merged_right_malformed: float = 0.8
    merged_wrong_hit: float = 0.3  # format right and an accepted answer retrieved
    merged_wrong: float = 0.2  # format right
    merged_wrong_malformed: float = 0.1
    merged_no_answer: float = 0.0  # and malformed, as every trajectory without an answer is
