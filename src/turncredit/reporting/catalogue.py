"""Names of all figures and tables, with the experiments each one reads.

The workflow imports this module at every start, so it imports no plotting code. ``figures.builders`` and
``tables.builders`` hold one function for each name; ``workflow/report/<name>.rst`` is a figure's caption.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from turncredit.config.credit_bench import CREDIT_BENCH
from turncredit.config.load import Scale
from turncredit.errors import ConfigError

UNTRAINED = "untrained"  # pseudo-experiment: evaluations of policies that were not trained here

FACTORIAL = ("factorial", "placement", "readings")  # experiments whose arms cross factors

FIGURES: dict[str, tuple[str, ...]] = {  # those that show most come first
    "learning": ("search",),
    "fig5_validation": ("search",),
    "fig5_all_arms": ("search",),
    "differences": ("search", UNTRAINED),
    "effects": (*FACTORIAL, UNTRAINED),
    "final_scores": ("search",),
    "fig1_tool_use": ("two_turn",),
    "fig3_training_dynamics": ("search",),
    "fig3_all_arms": ("search",),
    "fig4_ablations": ("ablation",),
    "fig9_reward_components": ("two_turn",),
    "fig10_grpo_or": ("two_turn",),
    "fig11_grpo_mr": ("two_turn",),
    "fig12_mt_grpo": ("two_turn",),
    "episodes": ("search",),
}

# Figures of the credit bench, which `snakemake credit_bench` draws and the default target does not
BENCH_FIGURES: dict[str, tuple[str, ...]] = {
    "credit_alignment": (CREDIT_BENCH,),
    "credit_prediction": (CREDIT_BENCH, "search"),
}

TABLES: dict[str, tuple[str, ...]] = {
    "outcomes": ("search", UNTRAINED),
    "effects": (*FACTORIAL, UNTRAINED),
    "budget": ("search", "two_turn", "ablation", *FACTORIAL),
    "table1_granularity": (),
    "table2_answer": ("search", UNTRAINED),
    "table2_format": ("search", UNTRAINED),
    "table5_two_turn": ("two_turn", UNTRAINED),
    "search_summary": ("search",),
    "ablation": ("ablation",),
}


def check_folders(page: str, reads: Collection[str], folders: Sequence[Path], scale: Scale, root: Path, target: str, *,
                  complete: bool = False) -> None:
    """Check that a page gets the runs it reads, so that no empty page overwrites a good one.

    Args:
        page: its name, for the error message.
        reads: experiments it reads; if empty, no folder is needed. Experiments that are not in the scale are skipped.
        folders: folders of collected runs, each named after its experiment.
        scale: the scale of the runs.
        root: the clone.
        target: the Snakemake target that makes the page.
        complete: require the runs of every experiment; by default one is enough.

    Raises:
        ConfigError: no folder of the experiments was passed (with ``complete``: one is missing), or the scale has
            none of them.
    """
    known = [name for name in reads if name in (UNTRAINED, CREDIT_BENCH) or name in scale.experiments]
    if reads and not known:
        raise ConfigError(f"{page} reads the runs of {', '.join(reads)}, and scale {scale.name!r} has none",
                          "use another scale, or add the experiment to this one")
    missing = [name for name in known if name not in {folder.name for folder in folders}]
    if missing and (complete or missing == known):
        shipped, fresh = Path("results/shipped", scale.name), Path("results", scale.name)
        shown = [str((shipped if (root / shipped / name).exists() else fresh) / name) for name in missing]
        raise ConfigError(f"{page} reads the runs of {', '.join(missing)}; pass their folders",
                          f"add {' '.join(shown)}, or let the workflow find them: snakemake --cores 2 {target}")
