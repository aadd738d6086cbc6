"""Which figures and tables there are, and the experiments that each reads.

The workflow reads this at every start, so it imports nothing of what draws: ``figures.BUILDERS`` and
``tables.BUILDERS`` have a function for each name. A figure's caption in the report is ``workflow/report/<name>.rst``.
"""

from __future__ import annotations

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
