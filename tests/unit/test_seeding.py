"""Seeds and data order: pure, stable in any process, complete."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turncredit.seeding import START, Cursor, derive_seed, draw, permutation


def test_digest_is_the_same_under_any_hash_seed():
    code = "from turncredit.seeding import derive_seed; print(derive_seed(1, 2, 'facts-train-3', 4))"
    found = {subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, check=True,
                            capture_output=True, text=True).stdout for seed in ("0", "1", "77")}
    assert found == {f"{derive_seed(1, 2, 'facts-train-3', 4)}\n"}


def test_digest_tells_every_part_apart_and_fits_a_signed_64_bit_number():
    parts = [(0, 0, "q", 1), (0, 1, "q", 0), (1, 0, "q", 0), (0, 0, "q0",), (0, 0, "q", "1"), (0, 0, "r", 1)]
    seeds = [derive_seed(*p) for p in parts]
    assert len(set(seeds)) == len(parts)
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_global_generators_are_untouched():
    before = np.random.get_state()[1].tolist()  # noqa: NPY002
    permutation(100, 0, "epoch", 3)
    assert np.random.get_state()[1].tolist() == before  # noqa: NPY002


def test_an_epoch_shows_every_question_once():
    cursor, seen = START, []
    for _ in range(4):
        chosen, cursor = draw(cursor, 5, 20, seed=3)
        seen += chosen
    assert sorted(seen) == list(range(20))
    assert cursor == Cursor(0, 20)
    assert draw(cursor, 5, 20, seed=3)[1].epoch == 1


def test_orders_differ_by_seed_and_by_epoch():
    orders = [draw(Cursor(epoch, 0), 20, 20, seed)[0] for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4


@given(st.integers(1, 30), st.lists(st.integers(1, 30), min_size=1, max_size=20), st.integers(0, 5))
def test_a_batch_never_holds_a_question_twice_and_the_cursor_is_all_the_state(pool, counts, seed):
    cursor = START
    for count in (min(count, pool) for count in counts):
        chosen, after = draw(cursor, count, pool, seed)
        assert len(set(chosen)) == count
        assert draw(Cursor(cursor.epoch, cursor.position), count, pool, seed) == (chosen, after)
        cursor = after


@given(st.integers(2, 30), st.lists(st.integers(1, 30), min_size=1, max_size=9), st.integers(0, 5), st.integers(0, 30))
def test_a_batch_of_several_draws_holds_no_question_twice_across_epochs(pool, counts, seed, start):
    cursor, batch = Cursor(0, min(start, pool)), []
    for count in counts:
        if room := min(count, pool - len(batch)):
            chosen, cursor = draw(cursor, room, pool, seed, taken=batch)
            batch += chosen
    assert len(set(batch)) == len(batch) == min(sum(counts), pool)
    assert 0 <= cursor.position <= pool


def test_a_batch_larger_than_the_pool_is_refused():
    with pytest.raises(ValueError, match="cannot draw 18 questions from a pool of 20, 3 of them taken"):
        draw(START, 18, 20, seed=0, taken=[1, 2, 3])
    with pytest.raises(ValueError, match="cannot draw 21 questions from a pool of 20"):
        draw(START, 21, 20, seed=0)
