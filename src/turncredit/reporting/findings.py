"""Sentences about the results, computed from the runs: what learns fastest, what each factor changes, what is open.

A function for each sentence builds it from samples or estimates; sentences about experiments that were not run are
left out. Two arms are *separated* if p ≤ 0.05 after Holm's method over all pairs of arms of an outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from turncredit.reporting import samples as compare
from turncredit.reporting.arm_labels import READING, changes_of, factors
from turncredit.reporting.catalogue import FACTORIAL
from turncredit.reporting.claim_scores import COLLAPSE_LOSS, COLLAPSE_SHARE, NotMeasured, collapsed
from turncredit.reporting.differences import differences
from turncredit.reporting.factor_effects import main_effects
from turncredit.reporting.outcomes import (
    AREA,
    EARLY_FORMAT,
    EARLY_SEARCHES,
    FORMAT,
    MATCH,
    PRIMARY,
    STEPS,
    Outcome,
    measured,
    on_set,
)
from turncredit.reporting.reported import Reported
from turncredit.reporting.samples import Pair, Sample, excludes_zero, within
from turncredit.reporting.scores import Results
from turncredit.reporting.statistics import Estimate
from turncredit.reporting.tables.render import number

SEARCH, READINGS, ABLATION = "search", "readings", "ablation"
FEW_SEARCHES = 0.1
_GAVE_UP = f"Runs that gave up searching (at the end under {FEW_SEARCHES} searches a question of the training sets)"
DEFINITIONS = ("*Separated*: p ≤ 0.05 after Holm's method over all pairs of arms of an outcome. *Changes*: the 95% "
              "interval excludes 0, not corrected for the number of outcomes. *Within the margin*: the interval lies "
              "within it. *Undecided*: none of these.")
_SHORT = {"area": "area", "steps_to_half": "steps to half", "exact_match": "exact match", "format": "format",
          "searches": "searches", "early_searches": "early searches", "early_format": "early format"}


def headline(results: Results, reported: Reported) -> list[str]:
    """The main findings, for README and the terminal; empty without runs of search.

    Raises:
        DataError: the runs' files lack a metric or data set.
    """
    if not results.arms(SEARCH):
        return []
    effects = {name: factor_estimates(results, name, (AREA, MATCH)) for name in FACTORIAL if name != READINGS}
    return [*filter(None, [
        leader(measured(AREA, results, SEARCH), AREA), beside_the_paper(results, reported),
        *(in_brief(f"main effects in `{name}`", estimates) for name, estimates in effects.items()),
        in_brief("changes of one setting of MT-PPO", ablation_estimates(results, PRIMARY)), collapses(results),
        *without_searches(results, [SEARCH])])]


def findings(results: Results, reported: Reported) -> dict[str, list[str]]:
    """All findings under headings; empty headings are left out.

    Raises:
        DataError: the runs' files lack a metric or data set.
    """
    inside = {outcome: measured(outcome, results, SEARCH) for outcome in (*PRIMARY, EARLY_FORMAT, EARLY_SEARCHES)}
    outside = {dataset: measured(on_set(dataset), results, SEARCH) for dataset in results.scale.out_of_domain}
    two = {outcome: measured(outcome, results, "two_turn") for outcome in (AREA, STEPS, MATCH)}
    sections = {
        "Speed": [leader(inside[AREA], AREA), *(ranking(inside[outcome], outcome) for outcome in (
            AREA, STEPS, EARLY_FORMAT, EARLY_SEARCHES))],
        "Final scores on the training domain": [
            *(ranking(inside[outcome], outcome) for outcome in PRIMARY[2:]),
            pairs_decided({outcome: compare.pairs(inside[outcome]) for outcome in PRIMARY}),
            beside_the_paper(results, reported), *above_the_expert(results)],
        "Other data sets": [data_set(dataset, samples) for dataset, samples in outside.items()],
        "Content, placement, sampling, reading": [
            *factor_sentences(results),
            same_order({outcome: by_reading(results, outcome) for outcome in (AREA, MATCH, FORMAT)})],
        "Search cost and turn limit": ablation_sentences(results, (*PRIMARY, EARLY_SEARCHES)),
        "Two turns": [ranking(samples, outcome) for outcome, samples in two.items()],
        "Collapse": [collapses(results), *without_searches(results, (SEARCH, ABLATION, *FACTORIAL))]}
    return {title: kept for title, found in sections.items() if (kept := [*filter(None, found)])}


def leader(samples: Mapping[str, Sample], outcome: Outcome) -> str:
    """Which arm leads, and which arms are not separated from it."""
    if len(samples) < 2:
        return ""
    best = max(samples, key=lambda name: outcome.sign * samples[name].value)
    near = compare.tied(samples, best)
    rest = ("separated from every other arm" if not near else "separated from no other arm"
            if len(near) == len(samples) - 1 else f"not separated from {', '.join(near)}")
    return (f"Exact match is learnt fastest by {best} ({outcome.words}, step 0 left out: "
            f"{number(samples[best].value)}), {rest}.")


def ranking(samples: Mapping[str, Sample], outcome: Outcome) -> str:
    """Means of all arms, the best first (the largest, where neither is best), and the separated pairs."""
    if len(samples) < 2:
        return ""
    order = sorted(samples, key=lambda name: -(outcome.sign or 1) * samples[name].value)
    means = ", ".join(f"{name} {number(samples[name].value, outcome.digits)}" for name in order)
    apart = separation(compare.pairs(samples), outcome.digits)
    return f"{outcome.words[0].upper()}{outcome.words[1:]}: {means}; {apart}."


def separation(pairs: Sequence[Pair], digits: int = 3) -> str:
    """How many pairs are separated, and the most different of them."""
    apart = [pair for pair in pairs if pair.separated]
    if not apart:
        return f"none of {len(pairs)} pairs is separated"
    first, verb = apart[0], "is" if len(apart) == 1 else "are"
    return (f"{len(apart)} of {len(pairs)} pairs {verb} separated, most of all {first.high} − {first.low}: "
            f"{interval(first.gap, digits)}")


def pairs_decided(pairs: Mapping[Outcome, Sequence[Pair]]) -> str:
    """For each outcome how many pairs are separated, and how many of the others are within the margin."""
    parts = []
    for outcome, found in pairs.items():
        apart = [pair for pair in found if pair.separated]
        near = [pair for pair in found if not pair.separated and within(pair.gap, outcome.margin)]
        if found:
            parts.append(f"{_SHORT[outcome.key]} {len(apart)} / {len(near)} / {len(found) - len(apart) - len(near)}")
    total = max((len(found) for found in pairs.values()), default=0)
    return ("Pairs of arms that are separated (p ≤ 0.05 after Holm's method) / within the margin / undecided, of "
            f"{total}: {', '.join(parts)}." if parts else "")


def changes(subject: str, estimates: Mapping[Outcome, Estimate]) -> str:
    """What a change of one setting does: outcomes that it changes, those within the margin, and undecided ones."""
    changed = [f"{_SHORT[outcome.key]} by {interval(found, outcome.digits)}"
               for outcome, found in estimates.items() if excludes_zero(found)]
    near = [_SHORT[outcome.key] for outcome, found in estimates.items()
            if not excludes_zero(found) and within(found, outcome.margin)]
    open_ = [_SHORT[outcome.key] for outcome, found in estimates.items()
             if not excludes_zero(found) and not within(found, outcome.margin)]
    parts = [f"changes {_joined(changed)}" if changed else "changes nothing for certain",
             f"within the margin: {', '.join(near)}" if near else "", f"undecided: {', '.join(open_)}" if open_ else ""]
    return f"{subject} {'; '.join(filter(None, parts))}."


def in_brief(title: str, estimates: Mapping[str, Mapping[Outcome, Estimate]]) -> str:
    """All effects whose interval excludes 0, and how many of the others are within the margin."""
    everything = [(outcome, found) for by_outcome in estimates.values() for outcome, found in by_outcome.items()]
    clear = {subject: [f"{_SHORT[outcome.key]} {interval(found, outcome.digits)}"
                       for outcome, found in by_outcome.items() if excludes_zero(found)]
             for subject, by_outcome in estimates.items()}
    shown = "; ".join(f"{subject}: {', '.join(parts)}" for subject, parts in clear.items() if parts)
    count = sum(len(parts) for parts in clear.values())
    near = sum(not excludes_zero(found) and within(found, outcome.margin) for outcome, found in everything)
    return (f"Of {len(everything)} {title} the 95% interval of {count or 'none'} excludes 0"
            f"{': ' if shown else ''}{shown}. Of the others {near} are within the margin, "
            f"{len(everything) - count - near} undecided."
            if everything else "")


def factor_estimates(results: Results, experiment: str,
                     outcomes: tuple[Outcome, ...] = PRIMARY) -> dict[str, dict[Outcome, Estimate]]:
    """The main effects of each factor of an experiment."""
    found: dict[str, dict[Outcome, Estimate]] = {}
    for effect in main_effects(results, experiment, outcomes):
        found.setdefault(effect.name, {})[effect.outcome] = effect.estimate
    return found


def factor_sentences(results: Results) -> list[str]:
    """One sentence for each factor of each experiment that crosses factors."""
    return [changes(f"{name[0].upper()}{name[1:]} (`{experiment}`)", estimates)
            for experiment in FACTORIAL for name, estimates in factor_estimates(results, experiment).items()]


def by_reading(results: Results, outcome: Outcome) -> dict[str, dict[str, Sample]]:
    """Samples of experiment ``readings``: reading -> algorithm -> its runs."""
    found: dict[str, dict[str, Sample]] = {}
    if READINGS in results.scale.experiments:
        levels, arms = factors(results.scale, READINGS), results.scale.experiments[READINGS].arms
        for arm, sample in measured(outcome, results, READINGS).items():
            found.setdefault(levels[arm][READING], {})[arms[arm].algorithm] = sample
    return found


def same_order(outcomes: Mapping[Outcome, Mapping[str, Mapping[str, Sample]]]) -> str:
    """Whether two readings of the paper separate the same pairs of arms, for each outcome: reading -> arm -> runs."""
    parts = []
    for outcome, readings in outcomes.items():
        if len(readings) != 2 or not all(len(arms) > 1 for arms in readings.values()):
            continue
        (one, first), (other, second) = (
            (reading, {(pair.high, pair.low) for pair in compare.pairs(arms) if pair.separated})
            for reading, arms in readings.items())
        turned = {(low, high) for high, low in second}
        parts.append(f"{_SHORT[outcome.key]} {len(first & second)} under both, {len(first - second - turned)} under "
                     f"`{one}` only, {len(second) - len(first & second) - len(first & turned)} under `{other}` only, "
                     f"{len(first & turned)} in opposite order")
    return f"Pairs of arms that are separated under the two readings: {'; '.join(parts)}." if parts else ""


def ablation_sentences(results: Results, outcomes: Iterable[Outcome]) -> list[str]:
    """One sentence for each arm of the ablation: what its setting changes against the first arm's."""
    return [changes(words, found) for words, found in ablation_estimates(results, outcomes).items()]


def ablation_estimates(results: Results, outcomes: Iterable[Outcome]) -> dict[str, dict[Outcome, Estimate]]:
    """Differences of each arm of the ablation from the first arm."""
    words = changes_of(results.scale, ABLATION)
    reference = next(iter(words), "")
    estimates: dict[str, dict[Outcome, Estimate]] = {}
    for outcome in outcomes:
        samples = measured(outcome, results, ABLATION)
        for arm in samples:
            if arm != reference and reference in samples and compare.share_bases([samples[arm], samples[reference]]):
                estimates.setdefault(words[arm], {})[outcome] = compare.difference(
                    samples[arm], samples[reference], samples.values())
    return estimates


def data_set(dataset: str, samples: Mapping[str, Sample]) -> str:
    """The range of exact match on a data set, and the separated pairs."""
    if len(samples) < 2:
        return ""
    low, high = (function(samples, key=lambda name: samples[name].value) for function in (min, max))
    return (f"`{dataset}`: exact match from {number(samples[low].value)} ({low}) to {number(samples[high].value)} "
            f"({high}); {separation(compare.pairs(samples))}.")


def above_the_expert(results: Results) -> list[str]:
    """Arms whose mean exact match is above the expert policy's, by data set; the expert is no upper bound."""
    expert = results.untrained("expert", SEARCH)
    if expert is None or not results.arms(SEARCH):
        return []
    parts = []
    for dataset in results.datasets:
        level = float(expert.final("answer_correct", [dataset]).mean())
        above = [arm for arm, found in measured(on_set(dataset), results, SEARCH).items() if found.value > level]
        parts += [f"`{dataset}` ({number(level)}): {', '.join(above)}"] if above else []
    return [f"Above the expert policy's exact match are on {'; '.join(parts)}."] if parts else [
        "No arm's mean exact match is above the expert policy's on any data set."]


def beside_the_paper(results: Results, reported: Reported) -> str:
    """How many of the paper's differences lie in our intervals."""
    gaps = [gap for gap in differences(results, SEARCH, reported) if gap.paper is not None]
    inside = [gap for gap in gaps if gap.paper is not None and gap.estimate.low is not None
              and gap.estimate.high is not None and gap.estimate.low <= gap.paper <= gap.estimate.high]
    return (f"Of {len(gaps)} in-domain differences of exact match and format that the paper reports, {len(inside)} "
            f"{'lies' if len(inside) == 1 else 'lie'} in our 95% interval." if gaps else "")


def collapses(results: Results) -> str:
    """How many runs of search collapsed."""
    flags: list[float] = []
    for runs in results.arms(SEARCH).values():
        try:
            flags += collapsed(runs, "answer_correct", results.scale.in_domain).ravel().tolist()
        except NotMeasured:
            continue
    fall = f"validation ends below {COLLAPSE_SHARE:.0%} of its best, and at least {COLLAPSE_LOSS} below it"
    return f"Collapsed runs ({fall}): {int(sum(flags))} of {len(flags)}." if flags else ""


def without_searches(results: Results, experiments: Iterable[str]) -> list[str]:
    """How many runs of each arm end with a policy that gave up searching, by experiment."""
    sentences: list[str] = []
    for experiment in experiments:
        words = changes_of(results.scale, experiment) if experiment == ABLATION else {}
        found = {}
        for arm, runs in results.arms(experiment).items():
            searches_S = runs.final("searches", results.scale.in_domain).mean(axis=1)
            if words.get(arm) != "":  # the ablation's first arm is an arm of search
                found[words.get(arm, arm)] = (int((searches_S < FEW_SEARCHES).sum()), len(searches_S))
        some = sorted((arm for arm, (count, _) in found.items() if count), key=lambda arm: -found[arm][0])
        none = [arm for arm, (count, _) in found.items() if not count]
        listed = [*(f"{arm} {found[arm][0]} of {found[arm][1]}" for arm in some),
                  *([f"no run of {_joined(none)}"] if none else [])]
        if listed:
            sentences.append(f"{f'The same in `{experiment}`' if sentences else _GAVE_UP}: {', '.join(listed)}.")
    return sentences


def runs_in_words(results: Results) -> str:
    """How many runs there are, of how many steps and tokens, and the code that made them."""
    parts, revisions, steps, tokens, count = [], set(), set(), [], 0
    for name in results.scale.experiments:
        arms = results.arms(name)
        if not arms or name not in results.runs:
            continue
        parts.append(f"`{name}` {len(arms)} arms of {_span([len(runs.runs) for runs in arms.values()])}")
        own = results.runs[name].manifests.values()
        revisions |= {str(manifest.get("code_revision"))[:7] for manifest in own}
        count += sum(arm not in results.scale.experiments[name].arms or
                     results.scale.experiments[name].arms[arm].same_as is None
                     for arm in (key.partition("/")[0] for key in results.runs[name].manifests))
        for runs in arms.values():
            if not runs.metrics.empty:
                steps.add(runs.steps)
                tokens += np.nanmean(runs.curve("tokens_sampled")[1], axis=1).tolist()
    return "" if not parts else (
        f"{count} runs of {_span(steps)} steps (runs an arm: {', '.join(parts)}; arms may share runs), "
        f"{min(tokens):,.0f} to {max(tokens):,.0f} sampled tokens a step, made at revision "
        f"{', '.join(sorted(revisions))}.")


def interval(estimate: Estimate, digits: int = 3) -> str:
    """A number with its interval.

    >>> interval(Estimate(-0.5, -0.75, -0.25, (3,)), 2)
    '-0.50 [-0.75, -0.25]'
    """
    bounds = "" if estimate.low is None or estimate.high is None else (
        f" [{number(estimate.low, digits)}, {number(estimate.high, digits)}]")
    return number(estimate.value, digits) + bounds


def _joined(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def _span(counts: Iterable[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"
