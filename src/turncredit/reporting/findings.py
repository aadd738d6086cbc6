"""Findings of the search experiment in sentences: which arms are separated, which learn fastest, which collapsed.

Every sentence is computed from the runs. Two arms are *separated* if the 95 % interval of their difference excludes 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence

from turncredit.reporting import statistics
from turncredit.reporting.claim_scores import COLLAPSE_LOSS, COLLAPSE_SHARE, NotMeasured, collapsed, windowed_curve
from turncredit.reporting.inference import Array
from turncredit.reporting.scores import ArmRuns, Results
from turncredit.reporting.statistics import Estimate
from turncredit.reporting.tables.render import number

EXPERIMENT = "search"
FIRST_THIRD = (0.0, 1 / 3)  # of the training steps
_SEPARATED = ("Two arms are *separated* if the 95% interval of their difference excludes 0. The pairs were not chosen "
              "in advance: about 1 in 20 would be separated by chance.")
SPEEDS = {"answer_correct": ("Exact match", "exact match"), "format_correct": ("The format", "format correctness")}


def findings(results: Results) -> list[str]:
    """Sentences on final scores, learning speed and collapse; empty without runs.

    Raises:
        DataError: the runs' files lack a metric or data set.
    """
    arms = results.arms(EXPERIMENT)
    if not arms:
        return []
    sentences = [_SEPARATED if len(arms) > 1 else "", _final(arms, results)]
    sentences += [_speed(results, arms, metric) for metric in SPEEDS]
    sentences.append(_collapse(arms, results.scale.in_domain))
    return [*filter(None, sentences)]


def early_scores(arms: Mapping[str, ArmRuns], metric: str) -> dict[str, Array]:
    """``score_S_1`` of each arm: a training metric (sampled episodes), averaged over the first third of the steps.

    Arms without training metrics are left out.
    """
    scores: dict[str, Array] = {}
    for name, runs in arms.items():
        try:
            scores[name] = windowed_curve(runs, metric, FIRST_THIRD).mean(axis=1, keepdims=True)
        except NotMeasured:
            continue
    return scores


def separated_pairs(samples: Mapping[str, Array]) -> list[tuple[str, str, Estimate]]:
    """Pairs (higher arm, lower arm, difference) whose interval excludes 0, the largest difference first."""
    pairs: list[tuple[str, str, Estimate]] = []
    for one, other in itertools.combinations(samples, 2):
        gap = statistics.difference(samples[one], samples[other])
        if gap.low is not None and gap.low > 0:
            pairs.append((one, other, gap))
        elif gap.high is not None and gap.high < 0:
            pairs.append((other, one, statistics.difference(samples[other], samples[one])))
    return sorted(pairs, key=lambda pair: -pair[2].value)


def _separation(samples: Mapping[str, Array]) -> str:
    """How many pairs of arms are separated, and the largest difference."""
    if min(len(sample) for sample in samples.values()) < 2:
        return "some arms have a single seed, so no interval"
    count, pairs = len(samples) * (len(samples) - 1) // 2, separated_pairs(samples)
    if not pairs:
        return f"none of the {count} pairs of arms is separated"
    high, low, gap = pairs[0]
    return f"{len(pairs)} of {count} pairs of arms are separated, most of all {high} − {low}: {_interval(gap)}"


def _final(arms: Mapping[str, ArmRuns], results: Results) -> str:
    def samples(datasets: Sequence[str]) -> dict[str, Array]:
        return {name: runs.final("answer_correct", datasets) for name, runs in arms.items()}

    if len(arms) < 2:
        return ""
    return (f"Final exact match: over all test sets {_separation(samples(results.datasets))}; on the training domain "
            f"({', '.join(results.scale.in_domain)}) {_separation(samples(results.scale.in_domain))}.")


def _speed(results: Results, arms: Mapping[str, ArmRuns], metric: str) -> str:
    scores = early_scores(arms, metric)
    if len(scores) < 2:
        return ""
    order = sorted(scores, key=lambda name: -float(scores[name].mean()))
    ranking = ", ".join(f"{name} {number(float(scores[name].mean()))}" for name in order)
    subject, words = SPEEDS[metric]
    return (f"{subject} is learnt fastest by {_fastest(results, order)}. Mean {words} of the sampled "
            f"episodes over the first third of training: {ranking}; {_separation(scores)}.")


def _fastest(results: Results, order: Sequence[str]) -> str:
    """The kind of arm that leads a ranking if its arms fill the first places, else the first arm."""
    algorithms = {name: results.scale.run(EXPERIMENT, name, 0).algorithm for name in order}
    kinds: dict[str, Callable[[str], bool]] = {
        "the outcome-only arms": lambda name: algorithms[name].content == "outcome",
        "the merged-reward arms": lambda name: algorithms[name].content == "merged",
        "the per-turn arms": lambda name: algorithms[name].placement == "per_turn"}
    for words, belongs in kinds.items():
        members = {name for name in order if belongs(name)}
        if len(members) > 1 and {*order[:len(members)]} == members:
            return words
    return order[0]


def _collapse(arms: Mapping[str, ArmRuns], datasets: Sequence[str]) -> str:
    flags: list[float] = []
    for runs in arms.values():
        try:
            flags += collapsed(runs, "answer_correct", datasets).ravel().tolist()
        except NotMeasured:
            continue
    fall = (f"validation exact match ends below {COLLAPSE_SHARE:.0%} of its best value, and at least "
            f"{COLLAPSE_LOSS} below it")
    return f"Collapsed runs ({fall}): {int(sum(flags))} of {len(flags)}." if flags else ""


def _interval(estimate: Estimate) -> str:
    bounds = "" if estimate.low is None or estimate.high is None else (
        f" [{number(estimate.low)}, {number(estimate.high)}]")
    return number(estimate.value) + bounds
