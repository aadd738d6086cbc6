"""Figures draw what their data say, say what is missing, and come out the same every time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

from tests import synthetic_runs as synthetic
from turncredit.episodes.records import EpisodeRecord, GroupRecord, RewardRecord, TurnRecord
from turncredit.errors import ConfigError
from turncredit.reporting import statistics
from turncredit.reporting.catalogue import FIGURES, TABLES
from turncredit.reporting.figures import style
from turncredit.reporting.figures.builders import ALL_ARMS, BUILDERS, COMPONENTS, CRITIC, GROUP, draw
from turncredit.reporting.figures.learning_curves import EMA_DECAY
from turncredit.reporting.scores import Results
from turncredit.reporting.tables import builders as tables
from turncredit.tasks.tool_search.config import ToolRewards

ROOT = Path(__file__).parents[2]
Drawn = dict[str, tuple[Figure, pd.DataFrame]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return synthetic.results(tmp_path_factory.mktemp("runs"), {**synthetic.ALL, "search": 2})


def test_every_page_that_the_workflow_knows_has_a_builder_and_no_other() -> None:
    assert list(BUILDERS) == list(FIGURES)
    assert list(tables.BUILDERS) == list(TABLES)


def words(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(Text))


@pytest.fixture(scope="module")
def drawn(results: Results) -> Drawn:
    return {name: draw(name, results.runs, results.scale) for name in FIGURES}


def curve(results: Results, experiment: str, arm: str, column: str) -> tuple[np.ndarray, np.ndarray]:
    found = results.arm(experiment, arm)
    assert found is not None
    return found.curve(column)


def test_every_curve_in_an_axis_is_in_the_data(drawn: Drawn) -> None:
    for name, (figure, data) in drawn.items():
        if "line" not in data.columns:
            continue
        lines = [np.asarray(line.get_ydata(), dtype=float) for ax in figure.axes for line in ax.get_lines()]
        shown = sorted(tuple(np.round(line, 9)) for line in lines if len(line) and not np.isnan(line).all())
        columns = [c for c in ("line", "dotted") if c in data.columns]
        kept = sorted(tuple(np.round(part[c], 9)) for _, part in data.groupby(["panel", "arm"]) for c in columns)
        assert shown == kept, name


def test_figure_3_draws_the_mean_of_the_smoothed_runs(results: Results, drawn: Drawn) -> None:
    data = drawn["fig3_training_dynamics"][1]
    mine = data[(data["panel"] == "bridge (for HotpotQA): format correctness") & (data["arm"] == "MT-PPO")]
    steps, runs = curve(results, "search", "MT-PPO", "bridge_format_correct")
    smooth = np.stack([statistics.ema(run, EMA_DECAY) for run in runs])
    assert mine["step"].tolist() == steps.tolist()
    assert mine["line"].to_numpy() == pytest.approx(smooth.mean(axis=0))
    assert (mine["high"] - mine["line"]).to_numpy() == pytest.approx(smooth.std(axis=0, ddof=1))
    assert set(data["arm"]) == {"PPO-OR", "PPO-MR", "MT-PPO"}
    assert set(drawn["fig3_all_arms"][1]["arm"]) == set(ALL_ARMS)


def test_curves_at_the_ends_of_their_range_show_whole_and_bands_stay_within_it(drawn: Drawn) -> None:
    for name, (figure, _) in drawn.items():
        if not name.startswith("fig"):
            continue
        for ax in figure.axes:
            low, high = ax.get_ylim()
            for line in ax.get_lines():
                height = np.asarray(line.get_ydata(), dtype=float)
                assert np.isnan(height).all() or (low < np.nanmin(height) and np.nanmax(height) < high), name
            if not name.startswith(("fig3", "fig5")):
                continue
            assert low < 0
            assert high > 1
            bands = [np.asarray(path.vertices)[:, 1] for band in ax.collections for path in band.get_paths()]
            assert all(height.min() >= 0 and height.max() <= 1 for height in bands), name


def test_the_six_arms_have_a_row_a_family_and_the_legend_pairs_them(drawn: Drawn) -> None:
    for name in ("fig3_all_arms", "fig5_all_arms"):
        figure, data = drawn[name]
        arms = {panel: set(part["arm"]) for panel, part in data.groupby("panel")}
        assert len(arms) == 12
        assert {tuple(sorted(found)) for found in arms.values()} == {tuple(sorted(CRITIC)), tuple(sorted(GROUP))}
        assert [text.get_text().split()[0] for text in figure.legends[0].get_texts()] == list(ALL_ARMS)


def test_figures_1_and_9_draw_the_mean_and_its_moving_average(results: Results, drawn: Drawn) -> None:
    for name in ("fig1_tool_use", "fig9_reward_components"):
        data = drawn[name][1]
        mine = data[(data["panel"] == "tool execution") & (data["arm"] == "MT-GRPO")]
        mean = curve(results, "two_turn", "MT-GRPO", "component_tool_execution")[1].mean(axis=0)
        assert mine["dotted"].to_numpy() == pytest.approx(mean)
        assert mine["line"].to_numpy() == pytest.approx(statistics.ema(mean, EMA_DECAY))


def test_figures_10_to_12_draw_the_range(results: Results, drawn: Drawn) -> None:
    data = drawn["fig12_mt_grpo"][1]
    mine = data[data["panel"] == "exact match"]
    runs = curve(results, "two_turn", "MT-GRPO", "component_exact_match")[1]
    assert mine["low"].to_numpy() == pytest.approx(runs.min(axis=0))
    assert mine["high"].to_numpy() == pytest.approx(runs.max(axis=0))
    assert data["panel"].nunique() == 6


def test_every_figure_names_its_band_seeds_and_runs(drawn: Drawn) -> None:
    for name, (figure, _) in drawn.items():
        text = words(figure)
        assert "scale mini" in text, name
        if name == "episodes":  # no statistic
            continue
        assert "runs: fresh" in text, name
        assert any(word in text for word in ("dotted: mean", "band: ±", "band: minimum to", "95% bootstrap")), name
        caption = (ROOT / f"workflow/report/{name}.rst").read_text()
        assert any(word in caption for word in ("Band: ", "Dotted: ", "Bar: ", "Bars: ")), name


def test_a_partial_set_of_runs_says_so(results: Results, drawn: Drawn) -> None:
    assert "PARTIAL, 2 of 3 runs: PPO-OR, PPO-MR, MT-PPO" in words(drawn["fig3_training_dynamics"][0])
    assert "PARTIAL" not in words(drawn["fig1_tool_use"][0])
    runs = results.runs["two_turn"]
    metrics, evaluation = (frame[frame["arm"] != "GRPO-MR"] for frame in (runs.metrics, runs.evaluation))
    less = type(runs)(runs.experiment, metrics, evaluation, runs.manifests, runs.source)
    figure, data = draw("fig1_tool_use", {"two_turn": less}, results.scale)
    assert "PARTIAL, not run: GRPO-MR" in words(figure)
    assert "GRPO-MR" not in set(data["arm"])


def test_without_runs_every_panel_says_not_run(results: Results, tmp_path: Path) -> None:
    for name in FIGURES:
        figure, data = draw(name, {}, results.scale)
        assert "not run" in words(figure), name
        assert data.empty
    style.save(name, figure, data, tmp_path)


def test_the_same_runs_give_the_same_bytes(results: Results, tmp_path: Path) -> None:
    for name in ("fig3_training_dynamics", "placement_effect"):
        for folder in ("a", "b"):
            figure, data = draw(name, results.runs, results.scale)
            style.save(name, figure, data, tmp_path / folder)
        for suffix in ("pdf", "png", "csv"):
            one, other = ((tmp_path / folder / f"{name}.{suffix}").read_bytes() for folder in "ab")
            assert one == other, (name, suffix)


def test_the_callers_settings_are_left_alone(results: Results, tmp_path: Path) -> None:
    before = {key: value for key, value in mpl.rcParams.items() if key != "backend"}  # chosen when first asked for
    figure, data = draw("final_scores", results.runs, results.scale)
    style.save("final_scores", figure, data, tmp_path)
    assert {key: mpl.rcParams[key] for key in before} == before


def test_final_scores_and_effects_are_their_statistics(results: Results, drawn: Drawn) -> None:
    data = drawn["final_scores"][1]
    mine = data[(data["panel"] == "exact match, in-domain") & (data["arm"] == "GRPO-MR")]
    found = results.arm("search", "GRPO-MR")
    assert found is not None
    scores = found.final("answer_correct", results.scale.in_domain)
    assert mine[mine["series"] == "IQM"]["value"].item() == statistics.iqm(scores).value
    assert sorted(mine[mine["series"] == "seed"]["value"]) == sorted(scores.mean(axis=1))
    assert "retrieval content (n = 3)" in words(drawn["placement_effect"][0])
    effects = drawn["placement_effect"][1]
    assert effects[effects["panel"] == "effects on exact match"]["item"].nunique() == 8


def test_arms_differ_by_more_than_colour() -> None:
    looks = [(style.look(arm).marker, style.look(arm).line) for arm in ALL_ARMS]
    assert len(set(looks)) == len(ALL_ARMS)


def test_the_components_are_those_of_the_rewards() -> None:
    assert set(COMPONENTS) == set(ToolRewards.model_fields)


def test_an_unknown_figure_names_the_nearest(results: Results) -> None:
    with pytest.raises(ConfigError, match="did you mean 'fig4_ablations'"):
        draw("fig4_ablation", results.runs, results.scale)


def test_episodes_are_written_out_with_each_turns_reward(results: Results) -> None:
    tokens = ("<search>", " long" * 200, "</search>")
    searched = TurnRecord(tokens, (-1.0,) * 3, "tag", "<information>$x_1$</information>")
    turns = (searched,
             TurnRecord(("<answer> Rome", "\r</answer>"), (-1.0,) * 2, "tag"))
    rewards = {"full": RewardRecord((0.3, 0.0), 1.0)}
    lone = EpisodeRecord((0, 1), turns, "answered", rewards, {"answer_correct": 1.0}, {})
    run = {"arm": "MT-PPO", "seed": 0, "code_revision": "abcdef0123"}
    record = GroupRecord(run, "evaluation", None, "right", "facts", "facts-7",
                         {"question": "Capital of Italy?", "answers": ["Rome"]}, "p", 1, (lone,))
    runs = replace(results.runs["search"], episodes=(record, replace(record, source="training", label="group")))
    figure, data = draw("episodes", {"search": runs}, results.scale)
    text = words(figure)
    assert "right: Capital of Italy?  (accepted: Rome)" in text
    assert "R^I = 0.30" in text
    assert "R^O = 1.00" in text
    assert "seed 0, code abcdef0" in text
    assert "..." in text  # a long turn is cut in the figure ...
    assert data["text"].tolist() == ["".join(turn.tokens) for turn in turns]  # ... and whole in the data
    assert data["reward"].tolist() == [0.3, 1.0]
