"""Turn-level credit assignment: per-turn rewards in, per-token advantages out. Pure; an algorithm a file.

========================  ==========================  =========================================
equation                  function                    algorithm
========================  ==========================  =========================================
Eq. 2, 9                  ``placement``               where rewards are placed: M1, M2, M3
Eq. 4                     ``grpo.group_zscore``       GRPO-OR (terminal), GRPO-MR (delayed)
Eq. 5-6, 12               ``mt_grpo.turn_advantages`` MT-GRPO (per turn)
Eq. 10                    ``mt_grpo.intermediate_advantages``
Eq. 11                    ``mt_grpo.outcome_advantages``
Eq. 8                     ``gae.gae``                 PPO-OR, PPO-MR, MT-PPO
Eq. 1, 3, 7               ``turncredit.losses``       the clipped surrogate of all of them
========================  ==========================  =========================================

``registry`` lists the estimators. A new one is a file here and a line there: CONTRIBUTING.md adds RLOO.
"""
