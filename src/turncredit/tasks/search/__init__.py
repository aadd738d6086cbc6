"""The multi-turn search agent (section 6.2), and what it shares with the two-turn tool agent."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace

from turncredit.config.algorithm import CONTENTS, Content
from turncredit.data.questions import read_split
from turncredit.tasks.env import Service
from turncredit.tasks.plugin import ServiceSettings, TaskPlugin
from turncredit.tasks.search.config import QuestionTaskConfig, SearchConfig, SearchRewards
from turncredit.tasks.search.demonstrations import DEMONSTRATIONS
from turncredit.tasks.search.environment import SearchTask
from turncredit.tasks.search.protocol import RULES
from turncredit.tasks.search.rewards import COMPONENTS, METRICS, SearchReward
from turncredit.tasks.search.search_r1 import SEARCH_R1
from turncredit.tasks.tags import Grammar


def make_task(config: SearchConfig) -> SearchTask:
    """The search task with the fixed texts of ``config.prompt``; its action is found by ``config.action``."""
    rules = {"own": RULES, "search_r1": SEARCH_R1}[config.prompt]
    return SearchTask(config, replace(rules, grammar=_grammar(config)))


def make_reward(config: SearchConfig, content: Content, values: SearchRewards) -> SearchReward:
    """The reward function of the search task, which reads answers as the task does."""
    return SearchReward(content, values, _grammar(config))


def _grammar(config: SearchConfig) -> Grammar:
    return replace(RULES.grammar, action=config.action)


def open_services(config: QuestionTaskConfig,
                  settings: ServiceSettings) -> AbstractContextManager[Mapping[str, Service]]:
    """See ``tasks.search.services.open_services``."""
    from turncredit.tasks.search import services  # reading a configuration must not load the retriever's client

    return services.open_services(config, settings)


TASK = TaskPlugin(
    name="search", config=SearchConfig, rewards=SearchRewards, make_task=make_task, make_reward=make_reward,
    open_services=open_services, read_items=read_split, tags=("think", "search", "information", "answer"),
    metrics=METRICS, components=COMPONENTS, columns={"hops": "count", "prediction": "text"},
    contents=CONTENTS, demonstrations=DEMONSTRATIONS)
