"""Every number that docs/EXPERIMENTS.md takes from the shipped runs is computed again from them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import pytest

from turncredit.config.load import load_scale
from turncredit.reporting.catalogue import UNTRAINED
from turncredit.reporting.findings import early_scores, separated_pairs
from turncredit.reporting.inference import Array
from turncredit.reporting.runs import read_folders
from turncredit.reporting.scores import ArmRuns, Results

ROOT = Path(__file__).parents[2]
RUNS, TABLES = ROOT / "results/shipped/mini", ROOT / "paper_tables/shipped/mini"
CRITIC, GROUP = ("PPO-OR", "PPO-MR", "MT-PPO"), ("GRPO-OR", "GRPO-MR", "MT-GRPO")
POLICIES = {"expert": "expert", "initial": "initial", "initial, closed book": "closed_book"}


def plain(text: str) -> str:
    return " ".join(text.split()).replace("−", "-")


PAGE = (ROOT / "docs/EXPERIMENTS.md").read_text(encoding="utf-8")
SHOWN = plain(PAGE.split("## What the shipped runs show")[1])


@pytest.fixture(scope="module")
def results() -> Results:
    scale = load_scale("mini", ROOT / "config")
    return Results(scale, read_folders([RUNS / name for name in (UNTRAINED, *scale.experiments)], scale))


@pytest.fixture(scope="module")
def arms(results: Results) -> dict[str, ArmRuns]:
    return results.arms("search")


def cell(table: str, row: str, column: str, block: str = "Ours") -> str:
    """A cell of a shipped table as it is shown."""
    rows = pd.read_csv(TABLES / f"{table}.csv", keep_default_na=False)
    found = rows[rows["block"].str.startswith(block) & (rows["row"] == row) & (rows["column"] == column)]
    return str(found["text"].iloc[0])


def comparison(part: str, words: str, sign: int = 1) -> str:
    """The estimate of a comparison in the shipped audit; ``sign`` -1 exchanges its arms."""
    rows = pd.read_csv(TABLES / "audit.csv", keep_default_na=False)
    row = rows[(rows["id"] == part) & rows["place"].str.contains(words, regex=False)].iloc[0]
    low, high = sorted((sign * float(row["low"]), sign * float(row["high"])))
    return f"{sign * float(row['ours']):.3f} [{low:.3f}, {high:.3f}]"


def gap(words: str) -> str:
    """Our difference in a row of the shipped audit's reported differences."""
    rows = pd.read_csv(TABLES / "audit.csv", keep_default_na=False)
    row = rows[(rows["kind"] == "difference") & (rows["what"] == words)].iloc[0]
    return f"{float(row['ours']):.3f} [{float(row['low']):.3f}, {float(row['high']):.3f}]"


def spread(values: Sequence[float], digits: int, joint: str = " to ") -> str:
    return f"{min(values):.{digits}f}{joint}{max(values):.{digits}f}"


def finals(arms: dict[str, ArmRuns], metric: str, datasets: Sequence[str]) -> dict[str, Array]:
    return {name: runs.final(metric, datasets) for name, runs in arms.items()}


def fragments(results: Results, arms: dict[str, ArmRuns]) -> Iterator[str]:
    """Pieces of the page with their numbers, each computed from the shipped files."""
    match, form, chain, inverse, inside = (
        {name: float(sample.mean()) for name, sample in finals(arms, metric, sets).items()}
        for metric, sets in (("answer_correct", results.datasets), ("format_correct", ["inverse"]),
                             ("answer_correct", ["chain"]), ("answer_correct", ["inverse"]),
                             ("answer_correct", results.scale.in_domain)))
    yield f"lie between {spread([*match.values()], 3, ' and ')}"
    yield f"MT-PPO - PPO-OR is {gap('MT-PPO − PPO-OR, exact match, Average')}"
    yield f"MT-PPO - PPO-MR is {gap('MT-PPO − PPO-MR, exact match, Average')}"
    for arm in ("GRPO-MR", "MT-GRPO"):
        yield f"{arm} ({cell('search_summary', arm, 'in-domain')})"
    yield f"the other four arms ({spread([v for k, v in inside.items() if k not in ('GRPO-MR', 'MT-GRPO')], 3)})"
    for metric, label in (("answer_correct", "exact match"), ("format_correct", "format correctness")):
        early = early_scores(arms, metric)
        yield f"| {label} | " + " | ".join(f"{early[arm].mean():.3f}" for arm in (*GROUP, *CRITIC)) + " |"
    yield f"MT-PPO is {comparison('4a', 'PPO-OR', -1)} below PPO-OR"
    yield f"and {comparison('4a', 'PPO-MR', -1)} below PPO-MR"
    searches = {arm: runs.metrics.pivot(index="step", columns=["base", "seed"], values="searches_mean")
                for arm, runs in arms.items()}
    low, other = searches["MT-PPO"], searches["PPO-OR"]
    few = low.loc[6:8].min() < 0.5
    assert set(low.min()[few].index) == set(low.min()[low.min() < 0.5].index)
    yield (f"In {few.sum()} of {len(few)} seeds MT-PPO first almost stops searching: some step from 6 to 8 has fewer "
           f"than 0.5 searches per episode, in the worst seed {low.min().min():.2f}.")
    assert (other.idxmin() <= 3).all()
    yield f"its minimum, {spread([*other.min()], 2)} by seed, in the first three steps"
    yield f"at least {other.loc[5:8].min().min():.2f} searches at steps 5 to 8"
    yield f"in the last step they make {spread([*low.iloc[-1]], 1)} searches"
    for arm, words in (("MT-PPO", "{:.2f} on `facts` and {:.2f} on `bridge` with MT-PPO"),
                       ("PPO-OR", "and {:.2f} and {:.2f} with PPO-OR")):
        step = arms[arm].metrics[arms[arm].metrics["step"] == 5]
        yield words.format(*(step[f"validation_{d}_retrieval_correct"].mean() for d in ("facts", "bridge")))
    yield f"by {comparison('7a', 'searches')} searches per episode"
    average = {arm: cell("table2_format", arm, "average") for arm in arms}
    yield (f"MT-PPO has {average['MT-PPO']}, PPO-OR {average['PPO-OR']} and GRPO-OR {average['GRPO-OR']}")
    yield f"not at 0.999: on `inverse` it has {form['MT-PPO']:.3f}"
    pairs = separated_pairs(finals(arms, "format_correct", results.datasets))
    yield f"by {spread([gap.value for *_, gap in pairs], 3)}"
    effects = {name: cell("placement", name, "difference", "Ours, effects on exact match") for name in (
        "placement, mean of both", "content, mean of both", "both at once, as in the paper")}
    yield "placement changes final exact match by {} and content by {}; both at once, as in the paper, by {}".format(
        *effects.values())
    two = [cell("table5_two_turn", arm, "exact match (0-1)", "Ours, in-domain").split()[0] for arm in GROUP]
    used = {cell("table5_two_turn", arm, "tool execution (0-0.2)", "Ours, in-domain").split()[0] for arm in GROUP}
    yield f"(execution reward {used.pop()} of 0.2) and end at exact match {min(two)} to {max(two)} on `facts`"
    assert not used
    limit = [cell("ablation", f"turns-{n} minus lambda-0.1", "exact match", "Ours, differences").split()[0]
             for n in (5, 6)]
    yield f"N_max of 5 or 6 changes final exact match by {limit[0]} and {limit[1]}"
    yield f"is higher by {cell('ablation', 'turns-6 minus lambda-0.1', 'format', 'Ours, differences')}"
    expert = results.untrained("expert", "search")
    assert expert is not None
    ceiling = expert.final("answer_correct", ["inverse", "chain"])[0]
    yield (f"exact match ends at {spread([*inverse.values()], 2)} and on `chain` (three hops) at "
           f"{spread([*chain.values()], 2)}, where the expert policy has {ceiling[0]:.2f} and {ceiling[1]:.2f}")
    yield f"on the training domain ends at {spread([*inside.values()], 2)}"


def test_every_decimal_of_the_shipped_runs_is_the_computed_one(results: Results, arms: dict[str, ArmRuns]) -> None:
    rest = re.sub(r"```.*?```", "", SHOWN)
    for fragment in fragments(results, arms):
        assert plain(fragment) in SHOWN, fragment
        rest = rest.replace(plain(fragment), "")
    rest = rest.replace("intervals of about ± 0.02", "").replace("Qwen2.5-7B", "")
    assert not re.findall(r"\d+\.\d+", rest)  # no decimal is left that nothing computes


def test_counts_and_verdicts_are_those_of_the_files(results: Results, arms: dict[str, ArmRuns]) -> None:
    runs = {}
    for experiment in results.scale.experiments:
        for manifest in json.loads((RUNS / experiment / "manifests.json").read_text()).values():
            config = manifest["config"]
            runs[config["experiment"], config["arm"], config["seed"]] = manifest
    assert {manifest["steps"] for manifest in runs.values()} == {40}
    assert {manifest["code_revision"][:7] for manifest in runs.values()} == {"ae1f5c1"}
    assert f"{len(runs)} runs of 40 steps" in SHOWN
    for experiment, seeds in (("search", 10), ("two_turn", 10), ("ablation", 5), ("placement", 5)):
        assert {len(found.runs) for found in results.arms(experiment).values()} == {seeds}
    metrics = pd.concat([found.metrics for name in results.scale.experiments for found in results.arms(name).values()])
    tokens = metrics[metrics["step"] > 0].groupby(["experiment", "arm", "seed"])["tokens_sampled"].mean()
    assert f"samples {tokens.min():,.0f} to {tokens.max():,.0f} tokens per step on average" in SHOWN
    audit = pd.read_csv(TABLES / "audit.csv", keep_default_na=False)
    first = Counter(audit[audit["id"].str.fullmatch(r"1[a-z]") & (audit["ours"] != "")]["verdict"])
    assert (f"{sum(first.values())} comparisons that could be run: {first['holds']} holds, {first['within margin']} "
            f"lie within the margin, {first['open']} are open, and {first['not decidable']} on") in SHOWN
    verdicts = audit[audit["kind"] == "claim"].set_index("id")["verdict"]
    assert [verdicts[claim] for claim in ("1", "4", "14")] == ["undecided", "undecided", "not decidable"]
    collapses = pd.read_csv(TABLES / "search_summary.csv", keep_default_na=False)
    assert set(collapses[collapses["column"] == "collapsed seeds"]["text"]) == {"0 of 10"}
    book = results.untrained("closed_book", "search")
    assert book is not None
    assert book.final("answer_correct", results.datasets).max() == 0
    intervals = [cell("table2_answer", arm, "average") for arm in arms]
    for text in intervals:
        value, low, high = (float(n) for n in re.findall(r"[\d.]+", text))
        assert max(value - low, high - value) < 0.03  # "about ± 0.02"


def test_arms_are_separated_where_the_page_says(results: Results, arms: dict[str, ArmRuns]) -> None:
    def pairs(metric: str, datasets: Sequence[str]) -> set[tuple[str, str]]:
        return {(high, low) for high, low, _ in separated_pairs(finals(arms, metric, datasets))}

    assert not pairs("answer_correct", results.datasets)
    below = ("GRPO-MR", "MT-GRPO")
    assert pairs("answer_correct", results.scale.in_domain) == {
        (high, low) for high in arms if high not in below for low in below}
    assert pairs("format_correct", results.datasets) == {
        ("MT-PPO", "GRPO-OR"), ("MT-PPO", "GRPO-MR"), ("MT-PPO", "MT-GRPO"), ("PPO-MR", "GRPO-OR"),
        ("PPO-MR", "GRPO-MR")}
    match, form = (early_scores(arms, metric) for metric in ("answer_correct", "format_correct"))
    assert {*sorted(match, key=lambda arm: -match[arm].mean())[:2]} == {"GRPO-OR", "PPO-OR"}
    assert {*sorted(form, key=lambda arm: -form[arm].mean())[:2]} == {"MT-GRPO", "MT-PPO"}


def test_the_table_of_kept_policies_is_their_evaluation(results: Results) -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines()
            if re.match(r"\| (expert|initial|initial, closed book) \|", line)]
    episodes = results.runs[UNTRAINED].evaluation
    assert len(rows) == 9
    for policy, task, decoding, *written in rows:
        experiment = {"search": "search", "two turns": "two_turn"}[task]
        mine = episodes[(episodes["arm"] == POLICIES[policy]) & (episodes["experiment"] == experiment)
                        & (episodes["decoding"] == decoding)]
        by_set = mine.groupby("dataset")["answer_correct"].mean()
        means = [*by_set[["facts", "bridge", "inverse", "compose", "chain"]], mine["answer_correct"].mean(),
                 mine["format_correct"].mean()]
        assert [float(text) for text in written] == [pytest.approx(mean, abs=0.005001) for mean in means], policy
