"""Demonstrations for the warm start, written by skilled agents with flaws.

Each task brings its own demonstrator, which plays the real task with the real services. How often a
flaw happens differs from one kind of item to another, as a base model is good at some and bad at
others: the right behaviour is rare, not absent, and greedy decoding does not hide the flaws.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from turncredit.miniature.renaming import Renamer
from turncredit.policy.tokenizer import Codec
from turncredit.rollout.batched import answer_requests
from turncredit.seeding import derive_seed
from turncredit.tasks.env import Environment, Message, Service, Task
from turncredit.tasks.plugin import Demonstrations, Demonstrator
from turncredit.types import Item, Observation, StopReason, TurnStop

Rates = Mapping[str, Mapping[str, float]]  # kind of item -> chance of each flaw at a decision


@dataclass(frozen=True, slots=True)
class Demonstration:
    """An episode as texts.

    Attributes:
        item_id: the item's id.
        prompt: the messages before the first turn.
        text_K: the text of each turn.
        observation_K: what followed each turn; nothing after the last.
        stop: why the episode ended.
        recalled: it uses what is known of the true world, and must not be renamed.
    """

    item_id: str
    prompt: tuple[Message, ...]
    text_K: tuple[str, ...]
    observation_K: tuple[Observation, ...]
    stop: StopReason
    recalled: bool = False


def flaw_rates(kinds: Sequence[str], means: Mapping[str, float], spread: float, seed: int) -> Rates:
    """A chance of each flaw for each kind of item, from a Beta distribution around the mean.

    Args:
        kinds: kinds of item.
        means: mean chance of each flaw; 0 stays 0.
        spread: in [0, 1); 0 gives every kind the mean, near 1 each chance is near 0 or 1; the
            variance is spread x mean x (1 - mean).
        seed: non-negative; the same seed gives the same chances.
    """
    rates: dict[str, dict[str, float]] = {}
    for kind in sorted(set(kinds)):
        rates[kind] = {}
        for flaw, mean in means.items():
            if mean in (0.0, 1.0) or spread == 0.0:
                rates[kind][flaw] = mean
            else:
                concentration = 1 / spread - 1
                rng = np.random.default_rng(derive_seed(seed, kind, flaw))
                rates[kind][flaw] = float(rng.beta(mean * concentration, (1 - mean) * concentration))
    return rates


@dataclass(slots=True)
class _Play:
    """One episode that a demonstrator plays."""

    item: Item
    environment: Environment
    demonstrator: Demonstrator
    prompt: tuple[Message, ...]
    stop: StopReason | None = None
    texts: list[str] = field(default_factory=list)
    observations: list[Observation] = field(default_factory=list)


def demonstrate(items: Sequence[Item], task: Task, demonstrations: Demonstrations, services: Mapping[str, Service],
                codec: Codec, renamer: Renamer, rates: Rates, seed: int) -> list[Demonstration]:
    """One demonstration per item (an item may come several times), all played together.

    Args:
        items: items of the task's own type; questions with their plans.
        task: makes the environments.
        demonstrations: makes the demonstrators.
        services: answer the task's requests, by name.
        codec: measures observations.
        renamer: has the world's names.
        rates: chance of each flaw, by kind of item.
        seed: non-negative; every decision of the demonstrators is drawn from it.
    """
    plays = []
    for n, item in enumerate(items):
        environment, rng = task.start(item, codec.count, codec.cut), random.Random(derive_seed(seed, item.id, n))
        demonstrator = demonstrations.make(item, rates[demonstrations.kind_of(item)], renamer, rng)
        plays.append(_Play(item, environment, demonstrator, tuple(environment.reset())))
    while live := [play for play in plays if play.stop is None]:
        texts = [play.demonstrator.act() for play in live]
        requests = [play.environment.request(text) for play, text in zip(live, texts, strict=True)]
        for play, text, response in zip(live, texts, answer_requests(requests, services), strict=True):
            step = play.environment.step(text, TurnStop.TAG, response)
            play.texts.append(text)
            play.observations.append(step.observation)
            play.demonstrator.observe(step.observation)
            play.stop = step.stop
    return [Demonstration(play.item.id, play.prompt, tuple(play.texts), tuple(play.observations), play.stop,
                          play.demonstrator.recalled)
            for play in plays if play.stop is not None]


def renamed(demonstration: Demonstration, renamer: Renamer, rng: random.Random) -> Demonstration:
    """The same episode in a fictional world: every name swapped, the same way throughout.

    Observations keep their text and role only: demonstrations are not scored.
    """
    texts = [message["content"] for message in demonstration.prompt]
    texts += [*demonstration.text_K, *(observation.text for observation in demonstration.observation_K)]
    fresh = iter(renamer.rename(texts, rng))
    return replace(
        demonstration,
        prompt=tuple(message | {"content": next(fresh)} for message in demonstration.prompt),
        text_K=tuple(next(fresh) for _ in demonstration.text_K),
        observation_K=tuple(Observation(next(fresh), role=observation.role)
                            for observation in demonstration.observation_K))
