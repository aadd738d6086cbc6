"""README.md and docs/EXPERIMENTS.md show what the shipped runs say: every number is computed again from them."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd
import pytest

from turncredit.config.load import load_scale
from turncredit.reporting.audit import audit
from turncredit.reporting.catalogue import TABLES, UNTRAINED
from turncredit.reporting.reported import Reported
from turncredit.reporting.runs import read_folders
from turncredit.reporting.scores import Results
from turncredit.reporting.summary import BEGIN, END, experiments_section, readme_section
from turncredit.reporting.tables.builders import tabulate
from turncredit.reporting.tables.render import markdown

ROOT = Path(__file__).parents[2]
RUNS, SHIPPED = ROOT / "results/shipped/mini", ROOT / "paper_tables/shipped/mini"
PAGE = (ROOT / "docs/EXPERIMENTS.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def results() -> Results:
    scale = load_scale("mini", ROOT / "config")
    return Results(scale, read_folders([RUNS / name for name in (UNTRAINED, *scale.experiments)], scale))


def generated(text: str) -> str:
    """What stands between the markers of a page."""
    return text.partition(BEGIN)[2].partition(END)[0].strip()


def test_the_generated_sentences_are_those_of_the_shipped_runs(results: Results, reported: Reported) -> None:
    assert generated(PAGE) == experiments_section(results, reported)
    picture = ("learning", "figures/shipped/mini/learning.png")
    entries = audit(results.runs, results.scale, reported)
    assert generated((ROOT / "README.md").read_text(encoding="utf-8")) == readme_section(
        entries, results, reported, [picture])


def test_no_number_of_the_shipped_runs_is_written_by_hand() -> None:
    shown = PAGE.split("## What the shipped runs show")[1].split("\n## ")[0]
    rest = re.sub(r"```.*?```", "", shown.replace(generated(PAGE), ""), flags=re.DOTALL).replace("Qwen2.5-7B", "")
    assert not re.findall(r"\d+\.\d+", rest)


@pytest.mark.parametrize("name", TABLES)
def test_shipped_tables_are_those_of_the_shipped_runs(results: Results, reported: Reported, name: str) -> None:
    runs = {key: found for key, found in results.runs.items() if key in TABLES[name]}
    assert (SHIPPED / f"{name}.md").read_text(encoding="utf-8") == markdown(
        tabulate(name, runs, results.scale, reported))


def test_the_table_of_base_policies_is_their_evaluation(results: Results) -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines()
            if re.match(r"\| \d+ \| \d+ \|", line)]
    assert [int(row[0]) for row in rows] == [*range(results.scale.base_policies)]
    episodes = results.runs[UNTRAINED].evaluation
    searching = episodes[episodes["experiment"] == "search"]
    trained = searching[searching["dataset"].isin(results.scale.experiments["search"].train_on)]

    def mean(part: pd.DataFrame, policy: str, base: str, decoding: str, metric: str = "answer_correct") -> float:
        mine = part[(part["arm"] == policy) & (part["base"] == int(base)) & (part["decoding"] == decoding)]
        return float(mine[metric].mean())

    for base, _seed, *written in rows:
        assert [float(text) for text in written] == [pytest.approx(value, abs=0.005001) for value in (
            mean(trained, "expert", base, "greedy"), mean(trained, "expert", base, "sampled"),
            mean(trained, "initial", base, "greedy"), mean(trained, "initial", base, "sampled"),
            mean(trained, "initial", base, "sampled", "format_correct"),
            mean(searching[searching["dataset"] == "facts"], "closed_book", base, "greedy"))], base
