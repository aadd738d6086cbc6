"""Turn-level credit assignment: per-turn rewards in, per-token advantages out. Pure functions; one file per algorithm.

Where each equation of the paper is computed:

- Eq. 1: ``losses.policy_loss``, for episodes of one turn
- Eq. 2: ``placement.discounted_return``
- Eq. 3: ``losses.policy_loss``, with the weights of ``base.leaf_weights`` (GRPO)
- Eq. 4: ``grpo.group_zscore`` (GRPO-OR, GRPO-MR)
- Eq. 5: ``mt_grpo.turn_advantages``, first turn of two
- Eq. 6: ``mt_grpo.turn_advantages``, second turn of two
- Eq. 7: ``losses.policy_loss`` (PPO)
- Eq. 8: ``gae.gae`` (PPO-OR, PPO-MR, MT-PPO)
- Eq. 9: ``placement.place_on_tokens``, after ``placement.place_on_turns``
- Eq. 10: ``mt_grpo.intermediate_advantages`` (MT-GRPO)
- Eq. 11: ``mt_grpo.outcome_advantages`` (MT-GRPO)
- Eq. 12: ``mt_grpo.turn_advantages`` (MT-GRPO)

``registry`` lists the estimators. A new one is a file here and a line there; CONTRIBUTING.md shows it with RLOO.
"""
