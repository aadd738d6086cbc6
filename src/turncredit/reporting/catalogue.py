"""Which figures and tables there are, and the experiments that each reads.

The workflow reads this at every start, so it imports nothing of what draws: ``figures.BUILDERS`` and
``tables.BUILDERS`` have a function for each name. A figure's caption in the report is ``workflow/report/<name>.rst``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from turncredit.config.load import Scale
from turncredit.errors import ConfigError

BASE = "base"  # the pseudo-experiment that holds the evaluations of the untrained policies

FIGURES: dict[str, tuple[str, ...]] = {
    "fig1_tool_use": ("two_turn",),
    "fig3_training_dynamics": ("search",),
    "fig3_all_arms": ("search",),
    "fig4_ablations": ("ablation",),
    "fig5_validation": ("search",),
    "fig5_all_arms": ("search",),
    "fig9_reward_components": ("two_turn",),
    "fig10_grpo_or": ("two_turn",),
    "fig11_grpo_mr": ("two_turn",),
    "fig12_mt_grpo": ("two_turn",),
    "placement_effect": ("placement",),
    "final_scores": ("search",),
}

TABLES: dict[str, tuple[str, ...]] = {
    "table1_granularity": (),
    "table2_answer": ("search", BASE),
    "table2_format": ("search", BASE),
    "table5_two_turn": ("two_turn", BASE),
    "search_summary": ("search",),
    "ablation": ("ablation",),
    "placement": ("placement",),
}


def check_folders(page: str, reads: Collection[str], folders: Sequence[Path], scale: Scale, root: Path, target: str, *,
                  whole: bool = False) -> None:
    """Refuse to make a page of nothing, which would say "not run" in the place of a good one.

    Args:
        page: its name, for the message.
        reads: experiments that it reads, of this scale or not; a page that reads none wants no folder.
        folders: of collected runs; each has its experiment's name.
        scale: whose runs they are.
        root: the clone.
        target: what Snakemake makes the page by.
        whole: whether it wants all that it reads, and not only some.

    Raises:
        ConfigError: no folder of what it reads, or with ``whole`` not all of them; or the scale has no such experiment.
    """
    known = [name for name in reads if name == BASE or name in scale.experiments]
    if reads and not known:
        raise ConfigError(f"{page} reads the runs of {', '.join(reads)}, and scale {scale.name!r} has none",
                          "name another scale, or add the experiment to this one")
    missing = [name for name in known if name not in {folder.name for folder in folders}]
    if missing and (whole or missing == known):
        shipped, fresh = Path("results/shipped", scale.name), Path("results", scale.name)
        shown = [str((shipped if (root / shipped / name).exists() else fresh) / name) for name in missing]
        raise ConfigError(f"{page} reads the runs of {', '.join(missing)}, and no folder of theirs is named",
                          f"name them: {' '.join(shown)}; or let the workflow find them: snakemake --cores 2 {target}")
