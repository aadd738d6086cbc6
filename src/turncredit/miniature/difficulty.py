"""Measures how hard the tasks are for a base policy's expert and initial policies."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from turncredit.config.load import Scale
from turncredit.evaluation import evaluate
from turncredit.policy.engines.make import make_engine
from turncredit.policy.model import load_policy
from turncredit.policy.tokenizer import Codec
from turncredit.tasks.plugin import ServiceSettings
from turncredit.tasks.registry import plugin_of
from turncredit.training.run import make_runner, set_threads
from turncredit.workflow.inputs import task_experiments


def measure(scale: Scale, folder: Path, data: Path, index: Path) -> dict[str, float]:
    """Exact match on the test questions of each task's trained sets.

    Args:
        scale: the configuration.
        folder: a base policy with ``expert`` and ``initial/<task>``.
        data: the scale's questions.
        index: the index of its retriever.

    Returns:
        ``{expert,initial}_{task}_{greedy,sampled}_em``, e.g. ``initial_search_sampled_em``: mean exact match.
    """
    found = {}
    for task, experiment in task_experiments(scale).items():
        settings = scale.experiments[experiment]
        config = scale.run(experiment, next(iter(settings.arms)), 0)
        set_threads(config)
        plugin = plugin_of(task)
        items = plugin.read_items(data, "test", settings.train_on)
        services = ServiceSettings(scale.retriever_of(experiment), index / (settings.retriever or ""))
        for name, policy in (("expert", folder / "expert"), ("initial", folder / "initial" / task)):
            codec = Codec.load(policy)
            with ExitStack() as stack:
                engine = stack.enter_context(make_engine(
                    config.engine, codec, policy=policy, model=lambda: load_policy(policy, config.device),  # noqa: B023
                    window=config.task.max_context_tokens, device=config.device, precision=config.launch.precision,
                    folder=folder))
                opened = stack.enter_context(plugin.open_services(config.task, services))
                runner = make_runner(config, engine, opened, codec)
                for decoding in ("greedy", "sampled"):
                    episodes = evaluate(runner, items, decoding)
                    found[f"{name}_{task}_{decoding}_em"] = sum(
                        episode.rewards.metrics["answer_correct"] for episode in episodes) / len(episodes)
    return found
