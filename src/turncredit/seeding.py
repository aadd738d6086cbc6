"""Seeds and data order as pure functions, so that any sample can be reproduced alone, in any process.

No function uses a global random state or depends on PYTHONHASHSEED.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import numpy as np


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed: a hash of the parts, their types and their order.

    >>> derive_seed(0, 12, "facts-7", 3) == derive_seed(0, 12, "facts-7", 3) != derive_seed(0, 12, "facts-7", "3")
    True
    """
    payload = json.dumps(parts, separators=(",", ":")).encode()
    return int.from_bytes(hashlib.sha256(payload).digest()[:8], "big") >> 1


def permutation(size: int, *parts: int | str) -> list[int]:
    """Return a seeded permutation of 0 .. size - 1.

    >>> sorted(permutation(4, 0, "epoch", 1))
    [0, 1, 2, 3]
    """
    return np.random.default_rng(derive_seed(*parts)).permutation(size).tolist()


@dataclass(frozen=True, slots=True)
class Cursor:
    """Position in the data order; the order has no other state."""

    epoch: int = 0
    position: int = 0


START = Cursor()


def draw(cursor: Cursor, count: int, pool_size: int, seed: int) -> tuple[list[int], Cursor]:
    """Return the indices of the next ``count`` questions, and the cursor after them.

    Every epoch has its own permutation. A batch never crosses the end of an epoch, so it never
    contains a question twice; remaining questions that are too few for a batch are skipped.

    Args:
        cursor: position before the batch.
        count: number of questions, 1 to ``pool_size``.
        pool_size: number of questions of an epoch.
        seed: the run's seed.

    >>> draw(Cursor(0, 3), 2, 4, seed=0)[1]
    Cursor(epoch=1, position=2)
    """
    if not 1 <= count <= pool_size:
        raise ValueError(f"cannot draw {count} questions from a pool of {pool_size}")
    if cursor.position + count > pool_size:
        cursor = Cursor(cursor.epoch + 1, 0)
    end = cursor.position + count
    chosen = permutation(pool_size, seed, "epoch", cursor.epoch)[cursor.position:end]
    return chosen, Cursor(cursor.epoch, end)
