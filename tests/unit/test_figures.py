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
from turncredit.reporting.catalogue import BENCH_FIGURES, FIGURES, TABLES
from turncredit.reporting.figures import style
from turncredit.reporting.figures.builders import ALL_ARMS, BUILDERS, COMPONENTS, CRITIC, GROUP, draw
from turncredit.reporting.figures.final_scores import stacked
from turncredit.reporting.reported import Reported
from turncredit.reporting.scores import Results
from turncredit.reporting.tables import builders as tables
from turncredit.tasks.tool_search.config import ToolRewards

ROOT = Path(__file__).parents[2]
Drawn = dict[str, tuple[Figure, pd.DataFrame]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return synthetic.results(tmp_path_factory.mktemp("runs"), {**synthetic.ALL, "search": 2})


def test_every_page_that_the_workflow_knows_has_a_builder_and_no_other() -> None:
    assert list(BUILDERS) == [*FIGURES, *BENCH_FIGURES]
    assert list(tables.BUILDERS) == list(TABLES)


def words(figure: Figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(Text))


@pytest.fixture(scope="module")
def drawn(results: Results, reported: Reported) -> Drawn:
    return {name: draw(name, results.runs, results.scale, reported) for name in FIGURES}


def curve(results: Results, experiment: str, arm: str, column: str) -> tuple[np.ndarray, np.ndarray]:
    found = results.arm(experiment, arm)
    assert found is not None
    return found.curve(column)


def test_every_run_has_a_thin_line_and_a_column(drawn: Drawn) -> None:
    """What an axis shows is what the CSV holds: each arm's mean and each of its runs, and nothing else."""
    for name, (figure, data) in drawn.items():
        if "mean" not in data.columns:
            continue
        lines = [np.asarray(line.get_ydata(), dtype=float) for ax in figure.axes for line in ax.get_lines()]
        shown = sorted(tuple(np.round(line, 9)) for line in lines if len(line))
        runs = [column for column in data.columns if column.startswith(("mean", "base"))]
        kept = sorted(tuple(np.round(part[run], 9)) for _, part in data.groupby(["panel", "arm"]) for run in runs
                      if part[run].notna().any())
        assert shown == kept, name
        assert len(runs) == (3 if name.startswith(("fig3", "fig5", "learning")) else 4)


def test_training_curves_are_centred_means_and_validation_is_raw(results: Results, drawn: Drawn) -> None:
    data = drawn["fig3_training_dynamics"][1]
    mine = data[(data["panel"] == "bridge (for HotpotQA): format correctness") & (data["arm"] == "MT-PPO")]
    steps, runs = curve(results, "search", "MT-PPO", "bridge_format_correct")
    assert mine["step"].tolist() == steps.tolist()
    assert mine["base 0 seed 0"].iloc[7] == pytest.approx(runs[0, 6:9].mean())
    assert mine["mean"].iloc[7] == pytest.approx(runs[:, 6:9].mean())
    assert mine["mean"].iloc[0] == pytest.approx(runs[:, :2].mean())
    assert set(data["arm"]) == set(CRITIC)
    data = drawn["fig5_validation"][1]
    mine = data[(data["panel"] == "bridge (for HotpotQA): format correctness") & (data["arm"] == "MT-PPO")]
    assert mine["mean"].to_numpy() == pytest.approx(
        curve(results, "search", "MT-PPO", "validation_bridge_format_correct")[1].mean(axis=0))
    data = drawn["learning"][1]
    mine = data[(data["panel"] == "critic baseline: exact match, validation") & (data["arm"] == "MT-PPO")]
    sets = [curve(results, "search", "MT-PPO", f"validation_{d}_answer_correct")[1] for d in ("facts", "bridge")]
    assert mine["mean"].to_numpy() == pytest.approx(np.mean(sets, axis=(0, 1)))


def test_curves_at_the_ends_of_their_range_show_whole(drawn: Drawn) -> None:
    for name, (figure, _) in drawn.items():
        if name.startswith(("fig", "learning")):
            for ax in figure.axes:
                low, high = ax.get_ylim()
                for line in ax.get_lines():
                    height = np.asarray(line.get_ydata(), dtype=float)
                    assert low <= np.nanmin(height) <= np.nanmax(height) < high, name


def test_arms_at_the_ceiling_are_counted_and_dated(results: Results, reported: Reported) -> None:
    search = results.runs["search"]
    column = "validation_facts_answer_correct"
    for arms, words in ((CRITIC, "all 3 at the ceiling\nfrom step 10"), (CRITIC[:2], "")):
        top = search.metrics["arm"].isin(arms) & (search.metrics["step"] >= 10) & search.metrics[column].notna()
        metrics = search.metrics.assign(**{column: search.metrics[column].clip(upper=0.5).where(~top, 0.99)})
        figure, _ = draw("fig5_validation", {"search": replace(search, metrics=metrics)}, results.scale, reported)
        first = figure.axes[0]
        assert [text.get_text() for text in first.texts] == ([words] if words else [])


def test_the_six_arms_have_a_row_a_family_and_the_legend_pairs_them(drawn: Drawn) -> None:
    for name in ("fig3_all_arms", "fig5_all_arms"):
        figure, data = drawn[name]
        arms = {panel: set(part["arm"]) for panel, part in data.groupby("panel")}
        assert len(arms) == 12
        assert {tuple(sorted(found)) for found in arms.values()} == {tuple(sorted(CRITIC)), tuple(sorted(GROUP))}
        assert [text.get_text().split()[0] for text in figure.legends[0].get_texts()] == list(ALL_ARMS)


def test_every_figure_says_what_it_draws(drawn: Drawn) -> None:
    for name, (figure, _) in drawn.items():
        text = words(figure)
        assert "scale mini" in text, name
        if name == "episodes":  # no statistic
            continue
        assert "runs: fresh" in text, name
        assert any(word in text for word in ("thin: each run", "95% interval")), name
        caption = (ROOT / f"workflow/report/{name}.rst").read_text()
        assert any(word in caption for word in ("Thin:\neach run", "Thin: each run", "Bar: ", "Bars: ")), name


def test_labels_are_those_of_the_configuration(drawn: Drawn) -> None:
    text = words(drawn["fig4_ablations"][0])
    assert "$λ_s$ = 0 (n = 3)" in text
    assert "lambda" not in text
    assert set(drawn["fig4_ablations"][1]["arm"]) == {"lambda-0.1", "lambda-0.0", "turns-5", "turns-6"}


def test_a_partial_set_of_runs_says_so(results: Results, drawn: Drawn, reported: Reported) -> None:
    assert "PARTIAL, 2 of 3 runs: PPO-OR, PPO-MR, MT-PPO" in words(drawn["fig3_training_dynamics"][0])
    assert "PARTIAL" not in words(drawn["fig1_tool_use"][0])
    runs = results.runs["two_turn"]
    metrics, evaluation = (frame[frame["arm"] != "GRPO-MR"] for frame in (runs.metrics, runs.evaluation))
    less = type(runs)(runs.experiment, metrics, evaluation, runs.manifests, runs.source)
    figure, data = draw("fig1_tool_use", {"two_turn": less}, results.scale, reported)
    assert "PARTIAL, not run: GRPO-MR" in words(figure)
    assert "GRPO-MR" not in set(data["arm"])


def test_without_runs_every_panel_says_not_run(results: Results, tmp_path: Path, reported: Reported) -> None:
    for name in FIGURES:
        figure, data = draw(name, {}, results.scale, reported)
        assert "not run" in words(figure), name
        assert data.empty
    style.save(name, figure, data, tmp_path)


def test_the_same_runs_give_the_same_bytes(results: Results, tmp_path: Path, reported: Reported) -> None:
    for name in ("fig3_training_dynamics", "differences"):
        for folder in ("a", "b"):
            figure, data = draw(name, results.runs, results.scale, reported)
            style.save(name, figure, data, tmp_path / folder)
        for suffix in ("pdf", "png", "csv"):
            one, other = ((tmp_path / folder / f"{name}.{suffix}").read_bytes() for folder in "ab")
            assert one == other, (name, suffix)


def test_the_callers_settings_are_left_alone(results: Results, tmp_path: Path, reported: Reported) -> None:
    before = {key: value for key, value in mpl.rcParams.items() if key != "backend"}  # chosen when first asked for
    figure, data = draw("final_scores", results.runs, results.scale, reported)
    style.save("final_scores", figure, data, tmp_path)
    assert {key: mpl.rcParams[key] for key in before} == before


def test_final_scores_are_means_with_every_run_and_ties_are_stacked(results: Results, drawn: Drawn) -> None:
    data = drawn["final_scores"][1]
    mine = data[(data["panel"] == "exact match, bridge") & (data["arm"] == "GRPO-MR")]
    found = results.arm("search", "GRPO-MR")
    assert found is not None
    scores = found.final("answer_correct", ["bridge"])
    assert mine[mine["series"] == "mean"]["value"].item() == pytest.approx(scores.mean())
    assert sorted(mine[mine["series"] == "run"]["value"]) == sorted(scores.ravel())
    depths = stacked([0.5] * 10 + [0.6])
    assert len(set(depths[:10])) == 10
    assert max(depths) < 0.7  # above the next row
    assert depths[10] == depths[0]


def test_differences_have_their_margin_and_the_papers_mark(results: Results, reported: Reported, drawn: Drawn) -> None:
    data = drawn["differences"][1].set_index(["outcome", "item"])
    row = data.loc[("exact_match", "MT-PPO − PPO-OR")]
    arms = [results.arm("search", name) for name in ("MT-PPO", "PPO-OR")]
    mean = [arm.final("answer_correct", results.scale.in_domain).mean() for arm in arms if arm is not None]
    assert row["value"] == pytest.approx(mean[0] - mean[1])
    assert row["paper"] == pytest.approx((0.490 + 0.453 - 0.483 - 0.435) / 2)  # NQ and HotpotQA in Table 2
    assert row["margin"] == 0.02
    assert np.isnan(data.loc[("area", "MT-PPO − PPO-OR"), "paper"])
    assert len(data) == 5 * 9  # three pairs an estimator, and three of estimators
    figure = drawn["differences"][0]
    marks = [line for ax in figure.axes for line in ax.get_lines() if line.get_marker() == "D"]
    assert len(marks) == int(data["paper"].notna().sum())
    filled = sum(line.get_markerfacecolor() == "black" and line.get_marker() == "o"
                 for ax in figure.axes for line in ax.get_lines())
    assert filled == int((data["p_value"] <= 0.05).sum())
    effects = drawn["effects"][1]
    assert set(effects["item"]) == {"content (full − retrieval)", "placement (per turn − delayed)"}


def test_arms_differ_by_more_than_colour() -> None:
    looks = style.looks(ALL_ARMS).values()
    assert len({(look.marker, look.line) for look in looks}) == len(ALL_ARMS)
    others = style.looks(["a", "b", "c", "d", "e", "f"]).values()
    assert len({(look.marker, look.line) for look in others}) == 6


def test_the_components_are_those_of_the_rewards() -> None:
    assert set(COMPONENTS) == set(ToolRewards.model_fields)


def test_an_unknown_figure_names_the_nearest(results: Results, reported: Reported) -> None:
    with pytest.raises(ConfigError, match="did you mean 'fig4_ablations'"):
        draw("fig4_ablation", results.runs, results.scale, reported)


def test_episodes_are_written_out_with_each_turns_reward(results: Results, reported: Reported) -> None:
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
    figure, data = draw("episodes", {"search": runs}, results.scale, reported)
    text = words(figure)
    assert "right: Capital of Italy?  (accepted: Rome)" in text
    assert "R^I = 0.30" in text
    assert "R^O = 1.00" in text
    assert "seed 0, code abcdef0" in text
    assert "..." in text  # a long turn is cut in the figure ...
    assert data["text"].tolist() == ["".join(turn.tokens) for turn in turns]  # ... and whole in the data
    assert data["reward"].tolist() == [0.3, 1.0]
