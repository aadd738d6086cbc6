"""True gradients: score-function (REINFORCE) gradients of expected metrics, from thousands of episodes.

For a metric m of an episode tau, grad E[m] = E[(m(tau) - b) sum_t grad log pi(a_t | s_t)]. The baseline b of an
episode is the mean of the other episodes of its question, so the estimate has no bias. Nothing is discounted,
clipped, whitened or divided by a length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from turncredit.config.credit_bench import CreditBenchConfig
from turncredit.credit.base import TokenCredit
from turncredit.credit.rloo import leave_one_out
from turncredit.credit.rows import Row, rows_of
from turncredit.credit_bench.gradients import GradientSpace, policy_gradients
from turncredit.credit_bench.play import FULL, Player, target_names, targets_of
from turncredit.seeding import permutation
from turncredit.training.batch import Batch
from turncredit.types import Group, Item

BLOCKS = 8  # independent parts of the episodes, for the reliability and the standard errors


@dataclass(frozen=True, slots=True)
class Truth:
    """True gradients and means of the targets.

    Attributes:
        names: the targets.
        gradient_H_M_D: of each block of episodes and target; their mean over blocks estimates the truth.
        value_H_M: mean of each target in each block.
        items, groups: the episodes, from which critics are fitted and costs are estimated.
        tokens: sampled tokens.
    """

    names: tuple[str, ...]
    gradient_H_M_D: Tensor
    value_H_M: NDArray[np.float64]
    items: tuple[Item, ...]
    groups: tuple[Group, ...]
    tokens: int


def measure_truth(player: Player, space: GradientSpace, pool: Sequence[Item], sizes: CreditBenchConfig) -> Truth:
    """Play ``sizes.chains`` episodes in ``BLOCKS`` blocks, ``sizes.chains_per_question`` on each question.

    A block has no question twice, so a small pool gives fewer episodes. Blocks share questions if the pool is small.
    """
    task = player.config.task
    names = target_names(task.name)
    branching = (sizes.chains_per_question, *(1,) * (task.max_turns - 1))
    questions = max(sizes.chains // sizes.chains_per_question // BLOCKS, 1)  # of a block
    order = permutation(len(pool), "credit bench", player.seed, "truth")
    gradients, values, all_items, all_groups = [], [], [], []
    for block in range(BLOCKS):
        items = [pool[order[(block * questions + n) % len(pool)]] for n in range(questions)]
        distinct = list({item.id: item for item in items}.values())
        groups = player.play(distinct, branching, "truth", block)
        target_G_L_M = np.array([[targets_of(rewards, names) for rewards in leaves]
                                 for leaves in player.score(distinct, groups, FULL)])
        gradients.append(score_gradients(space, groups, target_G_L_M, player))
        values.append(target_G_L_M.mean(axis=(0, 1)))
        all_items += distinct
        all_groups += groups
    return Truth(names, torch.stack(gradients), np.array(values), tuple(all_items), tuple(all_groups),
                 sum(group.sampled_count for group in all_groups))


def score_gradients(space: GradientSpace, groups: Sequence[Group], target_G_L_M: NDArray[np.float64],
                    player: Player) -> Tensor:
    """The score-function gradient of each target's mean over these episodes, ``gradient_M_D``.

    Args:
        space: where gradients are measured.
        groups: chains, equally many of each question.
        target_G_L_M: the targets of each episode.
        player: for the settings of training.
    """
    rows = rows_of(groups)
    advantage_R_M = np.stack([
        np.concatenate([leave_one_out(target_L) for target_L in target_G_L_M[:, :, m]])
        for m in range(target_G_L_M.shape[2])], axis=1)
    credits = [credit_of_rows(rows, advantage_R_M[:, m]) for m in range(advantage_R_M.shape[1])]
    return policy_gradients(space, Batch.of(rows), credits, player.config.training)


def credit_of_rows(rows: Sequence[Row], advantage_R: NDArray[np.float64]) -> TokenCredit:
    """The same credit for every token of a row, and the weight 1 / R for every token."""
    length_R = torch.tensor([len(row.turn_N) for row in rows])
    advantage_N = torch.from_numpy(advantage_R).float().repeat_interleave(length_R)
    return TokenCredit(advantage_N, torch.full_like(advantage_N, 1 / len(rows)))
