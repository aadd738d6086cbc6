"""Tables: every number is the mean of the runs, reported numbers stay apart, what is missing is said."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests import synthetic_runs as synthetic
from turncredit.errors import ConfigError
from turncredit.reporting.catalogue import TABLES
from turncredit.reporting.reported import Reported
from turncredit.reporting.scores import Results
from turncredit.reporting.statistics import Estimate
from turncredit.reporting.tables.builders import tabulate
from turncredit.reporting.tables.render import (
    Block,
    Cell,
    Table,
    TableRow,
    embolden,
    frame,
    latex,
    markdown,
    number,
    save,
)

ROOT = Path(__file__).parents[2]


def cells(table: Table, block: str, column: str) -> dict[str, Cell]:
    """Cells of one column by row label."""
    found = next(b for b in table.blocks if b.title.startswith(block))
    return {row.label: row.cells[found.columns.index(column)] for row in found.rows}


def value(cell: Cell) -> float:
    assert cell.estimate is not None
    return cell.estimate.value


def test_table2_holds_the_means_over_seeds_and_sets(results: Results, reported: Reported) -> None:
    table = tabulate("table2_answer", results.runs, results.scale, reported)
    rows = results.runs["search"].evaluation
    for arm in results.scale.experiments["search"].arms:
        mine = rows[rows["arm"] == arm]
        by_dataset = mine.groupby("dataset")["answer_correct"].mean()  # every seed answers as many questions
        assert value(cells(table, "Ours", "facts†")[arm]) == pytest.approx(by_dataset["facts"])
        assert value(cells(table, "Ours", "chain*")[arm]) == pytest.approx(by_dataset["chain"])
        assert value(cells(table, "Ours", "average")[arm]) == pytest.approx(by_dataset.mean())
    assert "the ceiling" not in markdown(table)  # arms may be better than the expert policy


def test_only_an_arm_that_is_separated_from_all_others_is_bold(results: Results, reported: Reported) -> None:
    def bold(lift: float) -> set[str]:
        search = results.runs["search"]
        noise = np.random.default_rng(0).normal(0, 0.01, len(search.evaluation))
        best = search.evaluation["arm"] == "MT-PPO"
        runs = replace(search, evaluation=search.evaluation.assign(answer_correct=0.5 + noise + lift * best))
        table = tabulate("table2_answer", {**results.runs, "search": runs}, results.scale, reported)
        return {row.label for block in table.blocks for row in block.rows if any(cell.best for cell in row.cells)}

    assert bold(0.4) == {"MT-PPO"}
    assert bold(0.0) == set()


def test_the_budget_is_summed_over_steps(results: Results, reported: Reported) -> None:
    table = tabulate("budget", results.runs, results.scale, reported)
    assert [block.title for block in table.blocks] == list(results.scale.experiments)
    assert cells(table, "search", "sampled tokens")["MT-PPO"].words == f"{30 * 2000:,}"
    assert cells(table, "search", "trajectories")["GRPO-OR"].words == f"{30 * 40 * 8:,}"
    assert cells(table, "search", "trajectories per question")["GRPO-OR"].words == "8.0"
    assert cells(table, "search", "minutes")["MT-PPO"].words == number(30 * 1.5 / 60, 1)
    assert "λ_s = 0" in cells(table, "ablation", "steps")


def test_reported_numbers_are_the_papers_and_stand_apart(results: Results, reported: Reported) -> None:
    answer = tabulate("table2_answer", results.runs, results.scale, reported)
    form = tabulate("table2_format", results.runs, results.scale, reported)
    assert cells(answer, "Reported", "HotpotQA†")["MT-PPO"].words == "0.453"
    assert cells(answer, "Reported", "average")["PPO-OR (Search-R1)"].words == "0.432"
    assert cells(form, "Reported", "NQ†")["PPO-MR (Search-R1)‡"].words == "not reported"
    ours, paper = answer.blocks
    assert not set(ours.columns[:-1]) & set(paper.columns[:-1])
    assert not {row.label for row in ours.rows} & {"Qwen2.5-7B-Base", "PPO (StepSearch)"}
    five = tabulate("table5_two_turn", results.runs, results.scale, reported)
    assert cells(five, "Reported", "exact match (0-1)")["MT-GRPO"].words == "0.5010"


def test_every_cell_of_table_2_is_in_the_reported_table(results: Results, reported: Reported) -> None:
    for name, metric in (("table2_answer", "answer_correct"), ("table2_format", "format_correct")):
        block = tabulate(name, results.runs, results.scale, reported).blocks[1]
        numbers = sorted(value(cell) for row in block.rows for cell in row.cells if cell.estimate)
        assert numbers == sorted(v.value for v in reported.table("Table 2", metric) if v.value is not None)


def test_averages_that_the_paper_prints_are_those_of_its_cells(reported: Reported) -> None:
    for metric in ("answer_correct", "format_correct"):
        values = reported.table("Table 2", metric)
        for method in {v.method for v in values}:
            mine = {v.dataset: v.value for v in values if v.method == method and v.value is not None}
            if mine:
                assert mine.pop("Average") == pytest.approx(sum(mine.values()) / 6, abs=1e-3)


def test_what_was_not_run_is_said(reported: Reported, tmp_path: Path) -> None:
    scale = synthetic.scale()
    for name in TABLES:
        table = tabulate(name, {}, scale, reported)
        text = markdown(table)
        assert name == "table1_granularity" or "not run" in text
        for suffix in save(table, tmp_path):
            assert suffix.stat().st_size > 0


def test_a_table_says_scale_seeds_source_and_that_it_is_not_comparable(results: Results, reported: Reported) -> None:
    for name in TABLES:
        if name not in ("table1_granularity", "budget"):
            text = markdown(tabulate(name, results.runs, results.scale, reported))
            for words in ("scale mini", "runs: fresh", "3 of each arm", "Not comparable", "one base policy"):
                assert words in text


def test_table1_is_the_papers_granularity(results: Results, reported: Reported) -> None:
    ours, paper = tabulate("table1_granularity", {}, results.scale, reported).blocks
    mine = {row.label: [cell.text for cell in row.cells] for row in ours.rows}
    theirs = {row.label: [cell.text for cell in row.cells] for row in paper.rows}
    assert mine["MT-GRPO"] == theirs["MT-GRPO"]
    assert mine["MT-PPO"] == theirs["MT-PPO"]
    assert mine["GRPO-OR"] == mine["GRPO-MR"] == theirs["GRPO"]
    assert mine["PPO-OR"] == mine["PPO-MR"] == theirs["PPO"]


def test_outcomes_stand_beside_the_papers_differences(results: Results, reported: Reported) -> None:
    table = tabulate("outcomes", results.runs, results.scale, reported)
    arms = cells(table, "Ours", "final exact match")
    gaps = cells(table, "Ours, differences", "final exact match")
    assert value(gaps["MT-PPO − PPO-OR"]) == pytest.approx(value(arms["MT-PPO"]) - value(arms["PPO-OR"]))
    paper = cells(table, "The paper", "final format")
    assert paper["MT-PPO − PPO-OR"].words == "0.086"
    assert paper["MT-PPO − PPO-MR"].words == "not reported"
    assert not any(row.label.startswith("MT-GRPO") for row in table.blocks[-1].rows)


def test_an_unknown_table_names_the_nearest(results: Results, reported: Reported) -> None:
    with pytest.raises(ConfigError, match="did you mean 'ablation'"):
        tabulate("ablations", results.runs, results.scale, reported)


# --- rendering -------------------------------------------------------------------------------------------------------

TABLE = Table("t", "50% of a_b & c†", (
    Block("one", "arm", ("x", "y"), (
        TableRow("a", (Cell(Estimate(0.25, 0.125, 0.5, (3, 4)), best=True), Cell(text="not run")), "3, fresh"),
        TableRow("b|c", (Cell(Estimate(-0.0001, None, None, (1,))), Cell(text="[z]")))), "seeds, runs"),
    Block("two", "method", ("z",), (TableRow("d", (Cell(text="-"),)),))), ("λ_s ≥ 0",))


def test_markdown_is_a_table_with_bold_best() -> None:
    text = markdown(TABLE)
    assert "| a | **0.250 [0.125, 0.500]** | not run | 3, fresh |" in text
    assert "| b\\|c | 0.000 | [z] |  |" in text
    for block in re.findall(r"(?:^\|.*\n?)+", text, flags=re.MULTILINE):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.strip().splitlines()}) == 1


def test_latex_needs_booktabs_only_and_is_balanced(results: Results, reported: Reported) -> None:
    known = {"begin", "end", "centering", "small", "caption", "medskip", "multicolumn", "textit", "textbf", "toprule",
             "midrule", "bottomrule", "par", "footnotesize", "dagger", "ddagger", "ast", "lambda", "geq", "leq", "pm",
             "times", "cdot", "rightarrow", "usepackage"}
    tables = [TABLE, *(tabulate(name, results.runs, results.scale, reported) for name in TABLES)]
    for table in tables:
        text = latex(table)
        assert set(re.findall(r"\\([a-zA-Z]+)", text)) <= known
        assert text.isascii()
        bare = re.sub(r"\\[{}$&%#_]", "", text)
        assert bare.count("{") == bare.count("}")
        assert bare.count("$") % 2 == 0
        for name in ("table", "tabular"):
            assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}")
        for columns, body in re.findall(r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", text, flags=re.DOTALL):
            for line in body.splitlines():
                if line.endswith(r"\\") and "multicolumn" not in line:
                    assert len(re.findall(r"(?<!\\)&", line)) == len(columns) - 1


def test_the_csv_holds_every_cell_with_its_interval(tmp_path: Path) -> None:
    save(TABLE, tmp_path)
    rows = pd.read_csv(tmp_path / "t.csv", keep_default_na=False)
    assert rows["text"].tolist() == ["0.250 [0.125, 0.500]", "not run", "0.000", "[z]", "-"]
    assert rows.loc[0, ["value", "low", "high", "seeds"]].tolist() == ["0.25", "0.125", "0.5", "3/4"]
    assert frame(TABLE)["best"].tolist() == [1, 0, 0, 0, 0]


def test_a_columns_winner_alone_is_bold() -> None:
    rows = [TableRow(label, (Cell(text="x"), Cell(text="y"))) for label in "ab"]
    found = embolden(rows, ["b", None])
    assert [[cell.best for cell in row.cells] for row in found] == [[False, False], [True, False]]
