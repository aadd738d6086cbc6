"""Rows as micro-batches: every loss token once, in an order that can be undone."""

import torch

from tests.trees import random_tree, transcript, turn
from turncredit.credit.rows import rows_of
from turncredit.training.batch import Batch
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


def test_packing_keeps_rows_of_like_length_together():
    rows = rows_of([Group.of_chains([transcript(turn(*range(10, 10 + n))) for n in (1, 9, 1, 9)])])
    batch = Batch.of(rows)
    assert [len(micro.ids_B_T[0]) for micro in batch.micro_batches([0, 1, 2, 3], 22)] == [11, 3]
