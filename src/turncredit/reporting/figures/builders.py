"""Builds each figure from results: what the figures of ``catalogue.FIGURES`` show, one pure function each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd
from matplotlib.figure import Figure

from turncredit.config.load import Scale
from turncredit.errors import ConfigError, nearest
from turncredit.reporting.figures.episodes import episodes_figure
from turncredit.reporting.figures.final_scores import final_scores, placement_effect
from turncredit.reporting.figures.learning_curves import Kind, Panel, curves_figure
from turncredit.reporting.runs import Runs
from turncredit.reporting.scores import Results

Build = Callable[[Results], tuple[Figure, pd.DataFrame]]

CRITIC = ("PPO-OR", "PPO-MR", "MT-PPO")
GROUP = ("GRPO-OR", "GRPO-MR", "MT-GRPO")
ALL_ARMS = ("PPO-OR", "GRPO-OR", "PPO-MR", "GRPO-MR", "MT-PPO", "MT-GRPO")  # the legend pairs them by column
FAMILIES = {"critic baseline": CRITIC, "group baseline": GROUP}
RATES = {"answer_correct": "answer correctness", "format_correct": "format correctness",
         "retrieval_correct": "retrieval correctness"}
COMPONENTS = {  # reward components of the two-turn study, in the order of Fig. 9
    "tool_execution": "tool execution", "search_answer": "answer in search result",
    "answer_presence": "answer presence", "exact_match": "exact match", "xml_format": "XML format",
    "xml_tags": "XML tag usage"}
STANDS_FOR = {"facts": "facts (for NQ)", "bridge": "bridge (for HotpotQA)"}


def draw(name: str, runs: Mapping[str, Runs], scale: Scale) -> tuple[Figure, pd.DataFrame]:
    """Draw the figure ``name`` and return it with its data. Panels without runs say "not run".

    Raises:
        ConfigError: no such figure.
        DataError: the runs' files lack a column.
    """
    if name not in BUILDERS:
        raise ConfigError(f"no figure {name!r}", nearest(name, BUILDERS))
    return BUILDERS[name](Results(scale, runs))


def _rates(families: Mapping[str, tuple[str, ...]], prefix: str, kind: Kind, title: str,
           named: tuple[str, ...] = ()) -> Build:
    """Answer, format and retrieval correctness, one row per training set and family of arms (Figs. 3 and 5).

    Families have separate rows because six curves near the ceiling would hide one another.
    """
    def build(results: Results) -> tuple[Figure, pd.DataFrame]:
        rows = [(d, arms, "\n".join(filter(None, (STANDS_FOR.get(d, d), family))))
                for d in _train_on(results, "search") for family, arms in families.items()]
        panels = [[Panel(words, f"{prefix}{d}_{rate}", arms, row=row) for rate, words in RATES.items()]
                  for d, arms, row in rows]
        return curves_figure(results, "search", panels, kind, title, named)
    return build


def _ablations(results: Results) -> tuple[Figure, pd.DataFrame]:
    first = next(iter(_train_on(results, "ablation")))
    where = STANDS_FOR.get(first, first)
    cost, limit = ("lambda-0.1", "lambda-0.0"), ("lambda-0.1", "turns-5", "turns-6")
    panels = [[Panel("search cost: answer correctness", f"{first}_answer_correct", cost, row=where),
               Panel("search cost: number of turns", f"{first}_turns_mean", cost, top=None, row=where),
               Panel("turn limit: answer correctness", f"{first}_answer_correct", limit, row=where)]]
    title = "Training of MT-PPO (Fig. 4); lambda-0.1: $λ_s$ = 0.1, $N_{max}$ = 4; the others change one of the two"
    return curves_figure(results, "ablation", panels, "smooth_sd", title)


def _components(names: tuple[str, ...], arms: tuple[str, ...], kind: Kind, title: str) -> Build:
    """Reward components during training of the two-turn study, three panels a row (Figs. 1 and 9 to 12)."""
    def build(results: Results) -> tuple[Figure, pd.DataFrame]:
        largest = results.scale.rewards["tool_search"].model_dump()
        panels = [Panel(COMPONENTS[n], f"component_{n}", arms, top=largest[n]) for n in names]
        width = min(len(panels), 3)
        grid = [panels[start:start + width] for start in range(0, len(panels), width)]
        return curves_figure(results, "two_turn", grid, kind, title)
    return build


def _train_on(results: Results, experiment: str) -> tuple[str, ...]:
    if experiment not in results.scale.experiments:
        raise ConfigError(f"scale {results.scale.name!r} has no experiment {experiment!r}",
                          nearest(experiment, results.scale.experiments))
    return results.scale.experiments[experiment].train_on


_ALL = tuple(COMPONENTS)

BUILDERS: dict[str, Build] = {  # catalogue.FIGURES says which experiments each reads
    "fig1_tool_use": _components(
        ("tool_execution", "exact_match"), GROUP, "ema", "Two-turn study: rewards during training (Fig. 1)"),
    "fig3_training_dynamics": _rates(
        {"": CRITIC}, "", "smooth_sd", "Search: training with the critic baseline (Fig. 3)"),
    "fig3_all_arms": _rates(
        FAMILIES, "", "smooth_sd",
        "Search: training of all six algorithms (Fig. 3, with the group baseline)", ALL_ARMS),
    "fig4_ablations": _ablations,
    "fig5_validation": _rates(
        {"": CRITIC}, "validation_", "sd", "Search: validation with the critic baseline (Fig. 5)"),
    "fig5_all_arms": _rates(
        FAMILIES, "validation_", "sd",
        "Search: validation of all six algorithms (Fig. 5, with the group baseline)", ALL_ARMS),
    "fig9_reward_components": _components(
        _ALL, GROUP, "ema", "Two-turn study: the six reward components during training (Fig. 9)"),
    "fig10_grpo_or": _components(
        _ALL, ("GRPO-OR",), "minmax", "Two-turn study: reward components of GRPO-OR during training (Fig. 10)"),
    "fig11_grpo_mr": _components(
        _ALL, ("GRPO-MR",), "minmax", "Two-turn study: reward components of GRPO-MR during training (Fig. 11)"),
    "fig12_mt_grpo": _components(
        _ALL, ("MT-GRPO",), "minmax", "Two-turn study: reward components of MT-GRPO during training (Fig. 12)"),
    "placement_effect": placement_effect,
    "final_scores": final_scores,
    "episodes": episodes_figure,
}
