"""Labels of arms, made from their resolved configurations: ``λ_s = 0``, ``merged, per turn``, ``MT-PPO``.

A *factor* is a setting in which the arms of an experiment differ; a *level* is one of its values. Arm ids name files
and rows of CSV files; labels are for readers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from turncredit.config.load import RUNTIME_KEYS, Scale
from turncredit.credit.registry import ESTIMATORS

Factors = dict[str, str]  # factor -> level, as text

CONTENT, PLACEMENT, ESTIMATOR, ROLLOUT, READING = WORDS = ("content", "placement", "estimator", "rollout", "reading")
LEVELS: Mapping[str, tuple[str, ...]] = {  # in this order an effect is the later level minus the earlier one
    CONTENT: ("outcome", "merged", "retrieval", "full"), PLACEMENT: ("terminal", "delayed", "per turn"),
    ESTIMATOR: tuple(ESTIMATORS), ROLLOUT: ("single", "chains", "tree"), READING: ("text", "code")}
PAID_ONCE = ("outcome", "merged")  # contents that are one number for a trajectory, so their placement has no effect
_SYMBOLS = {"rewards.search_cost": "λ_s", "task.max_turns": "N_max"}
_IDENTITY = {"experiment", "arm", "seed", "base"}


def factors(scale: Scale, experiment: str) -> dict[str, Factors]:
    """Levels of each arm in the settings that differ between the arms of an experiment.

    An algorithm's settings are factors by their own names (``content``); other keys by their path (``task.max_turns``).
    """
    found_experiment = scale.experiments[experiment]
    settings = {name: {READING: arm.overrides.reading or found_experiment.reading or scale.reading} | dict(
        _flat(scale.run(experiment, name, 0).model_dump(mode="json", exclude=_IDENTITY | RUNTIME_KEYS)))
        for name, arm in found_experiment.arms.items()}
    keys = list(dict.fromkeys(key for found in settings.values() for key in found))
    differ = [key for key in keys if len({found.get(key) for found in settings.values()}) > 1]
    if READING in differ:  # the reading stands for the keys that it sets
        run = scale.run(experiment, next(iter(settings)), 0)
        sections = {"task": run.task, "rewards": run.rewards, "training": run.training}
        set_by_it = {f"{name}.{key}" for name, section in sections.items() for key in type(section).CODE}
        differ = [key for key in differ if key not in set_by_it]
    return {arm: {key: found[key] for key in differ if key in found} for arm, found in settings.items()}


def arm_labels(scale: Scale, experiment: str) -> dict[str, str]:
    """The label of each arm of an experiment.

    Arms are called by their algorithms if these differ and no arm overrides content, placement or rollout; else by the
    levels of content, placement, estimator and rollout that differ. Other settings are added where they differ from the
    first arm's; the first arm's label has its own values.
    """
    if experiment not in scale.experiments:
        return {}
    arms, levels = scale.experiments[experiment].arms, factors(scale, experiment)
    changed = any(getattr(arm.overrides, word, None) is not None for arm in arms.values()
                  for word in (CONTENT, PLACEMENT, ROLLOUT))
    named = not changed and len({arm.algorithm for arm in arms.values()}) > 1
    first = next(iter(levels.values()))
    labels: dict[str, str] = {}
    for name, found in levels.items():
        parts = [arms[name].algorithm] if named else [found[w] for w in WORDS if w in found and w != READING]
        parts += [found[READING]] if READING in found else []
        parts += [f"{_symbol(key)} = {level}"
                  for key, level in found.items() if key not in WORDS and not key.startswith("settings.")
                  and (found is first or level != first.get(key))]
        labels[name] = ", ".join(parts) or arms[name].algorithm
    return labels if len({*labels.values()}) == len(labels) else {name: name for name in labels}


def changes_of(scale: Scale, experiment: str) -> dict[str, str]:
    """What each arm changes against the first, as ``λ_s = 0 instead of 0.1``; "" for the first."""
    if experiment not in scale.experiments:
        return {}
    levels = factors(scale, experiment)
    first = next(iter(levels.values()))
    return {arm: ", ".join(f"{_symbol(key)} = {level} instead of {first[key]}" for key, level in found.items()
                           if level != first.get(key)) for arm, found in levels.items()}


def _symbol(key: str) -> str:
    return _SYMBOLS.get(key, key.rpartition(".")[2].replace("_", " "))


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Settings as (path, level); the path of an algorithm's own settings has no prefix."""
    for key, value in settings.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, "" if path == "algorithm" else f"{path}.")
        else:
            yield path, f"{value:g}" if isinstance(value, float) else str(value).replace("_", " ")
