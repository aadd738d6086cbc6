"""Builds each figure from results: what the figures of the catalogue show, one pure function each."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pandas as pd
from matplotlib.figure import Figure

from turncredit.config.load import Scale
from turncredit.errors import ConfigError, nearest
from turncredit.reporting.arm_labels import factors
from turncredit.reporting.figures import credit_bench
from turncredit.reporting.figures.episodes import episodes_figure
from turncredit.reporting.figures.final_scores import final_scores
from turncredit.reporting.figures.forest import differences_figure, effects_figure
from turncredit.reporting.figures.learning_curves import Panel, curves_figure
from turncredit.reporting.reported import Reported
from turncredit.reporting.runs import Runs
from turncredit.reporting.scores import Results

Build = Callable[[Results, Reported], tuple[Figure, pd.DataFrame]]

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
STANDS_FOR = {"facts": "facts (for NQ)", "bridge": "bridge (for HotpotQA)",
              "chain": "chain (for NQ)", "long_chain": "long_chain (for HotpotQA)"}


def draw(name: str, runs: Mapping[str, Runs], scale: Scale, reported: Reported) -> tuple[Figure, pd.DataFrame]:
    """Draw the figure ``name`` and return it with its data. Panels without runs say "not run".

    Raises:
        ConfigError: no such figure.
        DataError: the runs' files lack a column.
    """
    if name not in BUILDERS:
        raise ConfigError(f"no figure {name!r}", nearest(name, BUILDERS))
    return BUILDERS[name](Results(scale, runs), reported)


def _learning(results: Results, reported: Reported) -> tuple[Figure, pd.DataFrame]:
    """Validation and searches of all six arms, averaged over the training sets, a row for each family."""
    sets = _train_on(results, "search")
    panels = [[*(Panel(f"{words}, validation", tuple(f"validation_{d}_{rate}" for d in sets), arms, row=family)
                 for rate, words in (("answer_correct", "exact match"), ("format_correct", "format"))),
               Panel("searches per episode, training", ("searches_mean",), arms, top=None, row=family)]
              for family, arms in FAMILIES.items()]
    return curves_figure(results, "search", panels, f"Search: learning on {' and '.join(sets)}", ALL_ARMS, tokens=True)


def _rates(families: Mapping[str, tuple[str, ...]], prefix: str, title: str, named: tuple[str, ...] = ()) -> Build:
    """Answer, format and retrieval correctness, one row per training set and family of arms (Figs. 3 and 5).

    Families have separate rows because six curves near the ceiling would hide one another.
    """
    def build(results: Results, reported: Reported) -> tuple[Figure, pd.DataFrame]:
        rows = [(d, arms, "\n".join(filter(None, (STANDS_FOR.get(d, d), family))))
                for d in _train_on(results, "search") for family, arms in families.items()]
        panels = [[Panel(words, (f"{prefix}{d}_{rate}",), arms, row=row) for rate, words in RATES.items()]
                  for d, arms, row in rows]
        return curves_figure(results, "search", panels, title, named)
    return build


def _ablations(results: Results, reported: Reported) -> tuple[Figure, pd.DataFrame]:
    first = next(iter(_train_on(results, "ablation")))
    where = STANDS_FOR.get(first, first)
    cost, limit = (_changed(results, "ablation", key) for key in ("rewards.search_cost", "task.max_turns"))
    panels = [[Panel(f"{words}: answer correctness", (f"{first}_answer_correct",), arms),
               Panel(f"{words}: number of turns", (f"{first}_turns_mean",), arms, top=None)]
              for words, arms in (("search cost", cost), ("turn limit", limit))]
    title = f"Training of MT-PPO on {where} (Fig. 4); each arm but the first changes one setting of the first"
    return curves_figure(results, "ablation", panels, title, results.arm_names("ablation"))


def _changed(results: Results, experiment: str, key: str) -> tuple[str, ...]:
    """The first arm of an experiment and those that differ from it in one setting."""
    levels = factors(results.scale, experiment)
    first = next(iter(levels.values()))
    return tuple(arm for arm, found in levels.items() if found is first or found.get(key) != first.get(key))


def _components(names: tuple[str, ...], arms: tuple[str, ...], title: str) -> Build:
    """Reward components during training of the two-turn study, three panels a row (Figs. 1 and 9 to 12)."""
    def build(results: Results, reported: Reported) -> tuple[Figure, pd.DataFrame]:
        largest = results.scale.rewards["tool_search"].model_dump()
        panels = [Panel(COMPONENTS[n], (f"component_{n}",), arms, top=largest[n]) for n in names]
        width = min(len(panels), 3)
        grid = [panels[start:start + width] for start in range(0, len(panels), width)]
        return curves_figure(results, "two_turn", grid, title)
    return build


def _train_on(results: Results, experiment: str) -> tuple[str, ...]:
    if experiment not in results.scale.experiments:
        raise ConfigError(f"scale {results.scale.name!r} has no experiment {experiment!r}",
                          nearest(experiment, results.scale.experiments))
    return results.scale.experiments[experiment].train_on


def _without_reported(build: Callable[[Results], tuple[Figure, pd.DataFrame]]) -> Build:
    return lambda results, reported: build(results)


_ALL = tuple(COMPONENTS)

BUILDERS: dict[str, Build] = {  # catalogue says which experiments each reads
    "learning": _learning,
    "fig5_validation": _rates({"": CRITIC}, "validation_", "Search: validation with the critic baseline (Fig. 5)"),
    "fig5_all_arms": _rates(FAMILIES, "validation_",
                            "Search: validation of all six algorithms (Fig. 5, with the group baseline)", ALL_ARMS),
    "differences": differences_figure,
    "effects": _without_reported(effects_figure),
    "final_scores": _without_reported(final_scores),
    "fig1_tool_use": _components(("tool_execution", "exact_match"), GROUP,
                                 "Two-turn study: rewards during training (Fig. 1)"),
    "fig3_training_dynamics": _rates({"": CRITIC}, "", "Search: training with the critic baseline (Fig. 3)"),
    "fig3_all_arms": _rates(FAMILIES, "", "Search: training of all six algorithms (Fig. 3, with the group baseline)",
                            ALL_ARMS),
    "fig4_ablations": _ablations,
    "fig9_reward_components": _components(
        _ALL, GROUP, "Two-turn study: the six reward components during training (Fig. 9)"),
    "fig10_grpo_or": _components(
        _ALL, ("GRPO-OR",), "Two-turn study: reward components of GRPO-OR during training (Fig. 10)"),
    "fig11_grpo_mr": _components(
        _ALL, ("GRPO-MR",), "Two-turn study: reward components of GRPO-MR during training (Fig. 11)"),
    "fig12_mt_grpo": _components(
        _ALL, ("MT-GRPO",), "Two-turn study: reward components of MT-GRPO during training (Fig. 12)"),
    "episodes": _without_reported(episodes_figure),
    "credit_alignment": _without_reported(credit_bench.alignment),
    "credit_prediction": _without_reported(credit_bench.prediction),
}
