"""The multi-turn search agent (section 6.2), and what it shares with the two-turn tool agent."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from turncredit.config.algorithm import CONTENTS
from turncredit.data.questions import read_split
from turncredit.tasks.env import Service
from turncredit.tasks.plugin import ServiceSettings, TaskPlugin
from turncredit.tasks.search.config import QuestionTaskConfig, SearchConfig, SearchRewards
from turncredit.tasks.search.demonstrations import DEMONSTRATIONS
from turncredit.tasks.search.environment import SearchTask
from turncredit.tasks.search.protocol import RULES
from turncredit.tasks.search.rewards import COMPONENTS, METRICS, SearchReward


def make_task(config: SearchConfig) -> SearchTask:
    """The search task."""
    return SearchTask(config, RULES)


def open_services(config: QuestionTaskConfig,
                  settings: ServiceSettings) -> AbstractContextManager[Mapping[str, Service]]:
    """See ``tasks.search.services.open_services``."""
    from turncredit.tasks.search import services  # reading a configuration must not load the retriever's client

    return services.open_services(config, settings)


TASK = TaskPlugin(
    name="search", config=SearchConfig, rewards=SearchRewards, make_task=make_task, make_reward=SearchReward,
    open_services=open_services, read_items=read_split, tags=("think", "search", "information", "answer"),
    metrics=METRICS, components=COMPONENTS, columns={"hops": "count", "prediction": "text"},
    contents=CONTENTS, demonstrations=DEMONSTRATIONS)
