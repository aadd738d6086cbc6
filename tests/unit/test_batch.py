"""Rows as micro-batches: every loss token once, in an order that can be undone."""

import torch

from tests.tolerance import assert_close
from tests.trees import random_rewards, random_tree, transcript, turn
from turncredit.config.algorithm import Algorithm
from turncredit.config.training import TrainingConfig
from turncredit.credit.base import make_estimator
from turncredit.credit.rows import rows_of
from turncredit.training.batch import Batch
from turncredit.training.learner import split_minibatches
from turncredit.types import Group


def test_masks_by_hand():
    # row 0: prompt 1 2, sampled 10 11, seen 20, sampled 12      row 1: prompt 1 2, sampled 13
    group = Group.of_chains([transcript(turn(10, 11, observed=(20,), logprob=-0.5), turn(12, logprob=-0.25)),
                             transcript(turn(13, logprob=-2.0))])
    batch = Batch.of(rows_of([group]))
    micro, = batch.micro_batches(batch.trained, 100, pad_id=9)
    assert micro.ids_B_T.tolist() == [[1, 2, 10, 11, 20, 12], [1, 2, 13, 9, 9, 9]]
    assert micro.attention_B_T.tolist() == [[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]]
    assert micro.loss_mask_B_T.int().tolist() == [[0, 0, 1, 1, 0, 1], [0, 0, 1, 0, 0, 0]]
    assert micro.flat_N.tolist() == [0, 1, 2, 3]
    assert batch.old_logprob_N.tolist() == [-0.5, -0.5, -0.25, -2.0]


def test_a_shared_turn_is_trained_in_its_first_leaf_only():
    shared = turn(10, observed=(20,))
    group = Group((transcript(shared, turn(11)), transcript(shared, turn(12))), ((0, 1), (0, 2)))
    micro, = (batch := Batch.of(rows_of([group]))).micro_batches([0, 1], 100)
    assert micro.loss_mask_B_T.int().tolist() == [[0, 0, 1, 0, 1], [0, 0, 0, 0, 1]]
    assert batch.start_R.tolist() == [0, 2, 3]


def test_any_packing_holds_every_loss_token_once_and_finds_its_way_back():
    groups = [random_tree(seed, 2, 3, early=0.3, question=f"q{seed}") for seed in range(5)]
    batch = Batch.of(rows_of(groups))
    sampled_N = torch.tensor([token for row in rows_of(groups)
                              for token, mask in zip(row.transcript.ids, row.loss_mask, strict=True) if mask])
    for most_tokens in (1, 20, 60, 10_000):
        micros = batch.micro_batches(batch.trained, most_tokens)
        found_N = torch.zeros_like(sampled_N)
        for micro in micros:
            found_N[micro.flat_N] += micro.ids_B_T[micro.loss_mask_B_T]
            assert micro.ids_B_T.numel() <= most_tokens or len(micro.ids_B_T) == 1
        assert torch.equal(found_N, sampled_N)


def test_the_critics_tokens_have_their_own_order():
    # prompt 1 2, sampled 10 11, seen 20, sampled 12      prompt 1 2, sampled 13
    group = Group.of_chains([transcript(turn(10, 11, observed=(20,)), turn(12)), transcript(turn(13))])
    batch = Batch.of(rows_of([group]), "response")
    micro, = batch.micro_batches(batch.trained, 100)
    assert micro.value_mask_B_T.int().tolist() == [[0, 0, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0]]
    assert micro.loss_mask_B_T.int().tolist() == [[0, 0, 1, 1, 0, 1], [0, 0, 1, 0, 0, 0]]
    assert (micro.flat_M.tolist(), micro.flat_N.tolist()) == ([0, 1, 2, 3, 4], [0, 1, 2, 3])
    assert (batch.value_flat([1]).tolist(), batch.flat([1]).tolist()) == ([4], [3])


def test_a_minibatch_has_all_leaves_of_a_shared_turn_and_chains_are_dealt_one_by_one():
    trees = [random_tree(seed, 3, 4, early=0.3, question=f"q{seed}") for seed in range(3)]
    rows = rows_of(trees)
    for count in (1, 2, 4):
        minibatches = split_minibatches(Batch.of(rows).branches, count, seed := 5)
        assert sorted(row for minibatch in minibatches for row in minibatch) == list(range(len(rows)))
        assert len(minibatches) == count
        of_row = {row: n for n, minibatch in enumerate(minibatches) for row in minibatch}
        homes: dict[tuple[int, int], set[int]] = {}
        for r, row in enumerate(rows):
            for node in trees[row.group].node_L_K[row.leaf]:
                homes.setdefault((row.group, node), set()).add(of_row[r])
        assert all(len(home) == 1 for home in homes.values())
        chains = rows_of([Group.of_chains([transcript(turn(n)) for n in range(9)])])
        assert {len(minibatch) for minibatch in split_minibatches(Batch.of(chains).branches, count, seed)} <= {
            9 // count, -(-9 // count)}


def test_a_minibatch_of_a_tree_weighs_as_much_as_its_leaves():
    """A shared turn has the weight of all its leaves, so a leaf elsewhere would be missing from its minibatch."""
    trees = [random_tree(seed, 3, 4, early=0.3, question=f"q{seed}") for seed in range(3)]
    rows = rows_of(trees)
    batch = Batch.of(rows)
    credit = make_estimator(
        Algorithm(estimator="group", placement="per_turn", content="full", rollout="tree"), TrainingConfig()).credit(
        trees, [random_rewards(0, tree) for tree in trees], rows, old_logprob_N=batch.old_logprob_N)
    for minibatch in split_minibatches(batch.branches, 2, 0):
        leaves = sum(1 / (len(trees) * len(trees[rows[r].group].transcripts)) for r in minibatch)
        assert_close(credit.weight_N[batch.flat(minibatch)].sum(), leaves, terms=len(credit.weight_N))


def test_packing_keeps_rows_of_like_length_together():
    rows = rows_of([Group.of_chains([transcript(turn(*range(10, 10 + n))) for n in (1, 9, 1, 9)])])
    batch = Batch.of(rows)
    assert [len(micro.ids_B_T[0]) for micro in batch.micro_batches([0, 1, 2, 3], 22)] == [11, 3]
