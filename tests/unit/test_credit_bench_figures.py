"""The figures of the credit bench show the table's numbers, with intervals over base policies, and what is missing."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.text import Text

from tests import synthetic_runs as synthetic
from turncredit.config.credit_bench import COLUMNS, CREDIT_BENCH
from turncredit.reporting.credit_bench import correlations
from turncredit.reporting.figures.builders import draw
from turncredit.reporting.figures.credit_bench import cosines
from turncredit.reporting.reported import FOLDER, read_reported
from turncredit.reporting.runs import Runs
from turncredit.reporting.scores import Results

ROOT = Path(__file__).parents[2]
ARMS = {"GRPO-OR": "", "PPO-OR": "critic=zero", "MT-PPO": "critic=zero"}


def table(bases: int) -> pd.DataFrame:
    """Cosines and predictions of three arms at ``bases`` base policies."""
    rng, rows = np.random.default_rng(0), []
    for base in range(bases):
        for target in ("answer_correct", "format_correct", "shaped_return"):
            rows.append((base, "truth", "", "mean", target, 0.1))
            for arm, variant in ARMS.items():
                rows += [(base, arm, variant, quantity, target, rng.uniform(-0.2, 0.8))
                         for quantity in ("cosine_batch", "cosine_mean", "predicted_change")]
    return pd.DataFrame([("mini", base, "initial", arm, variant, quantity, target, value, 0.05, 100)
                         for base, arm, variant, quantity, target, value in rows], columns=[*COLUMNS])


def bench_results(folder: Path, bases: int, experiments: dict[str, int]) -> Results:
    found = synthetic.results(folder, experiments)
    bench = Runs(CREDIT_BENCH, table(bases), pd.DataFrame(), {}, "fresh")
    return replace(found, runs={**found.runs, CREDIT_BENCH: bench})


def test_a_cell_is_the_mean_over_base_policies_or_the_only_one_with_its_standard_error() -> None:
    for bases in (1, 4):
        found = cosines(table(bases))
        cell = found[(found["arm"] == "MT-PPO") & (found["quantity"] == "cosine_batch")
                     & (found["target"] == "format_correct")].iloc[0]
        given = table(bases)
        values = given[(given["arm"] == "MT-PPO") & (given["quantity"] == "cosine_batch")
                       & (given["target"] == "format_correct")]["value"]
        assert cell["value"] == pytest.approx(values.mean())
        assert (cell["bases"], cell["low"] < cell["value"] < cell["high"]) == (bases, True)
        if bases == 1:
            assert cell["high"] - cell["low"] == pytest.approx(2 * 1.96 * 0.05)


def test_both_figures_show_the_numbers_of_the_table(tmp_path: Path) -> None:
    results = bench_results(tmp_path, 1, {"search": 2})
    figure, data = draw("credit_alignment", results.runs, results.scale, read_reported(ROOT / FOLDER))
    shown = {text.get_text() for text in figure.findobj(Text)}
    assert {f"{value:.2f}" for value in data["value"]} <= shown
    assert "PPO-OR, V = 0" in shown
    figure, data = draw("credit_prediction", results.runs, results.scale, read_reported(ROOT / FOLDER))
    shown = {text.get_text() for text in figure.findobj(Text)}
    for target in ("answer_correct", "format_correct"):
        mine = data[data["target"] == target]
        assert set(mine["arm"]) == set(ARMS)
        plain, ranks = correlations(mine)
        assert f"r = {plain:.2f}, rank r = {ranks:.2f}" in shown


def test_a_prediction_without_training_runs_says_so(tmp_path: Path) -> None:
    results = bench_results(tmp_path, 1, {"two_turn": 1})
    figure, data = draw("credit_prediction", results.runs, results.scale, read_reported(ROOT / FOLDER))
    assert data.empty
    assert "not run" in {text.get_text() for text in figure.findobj(Text)}
