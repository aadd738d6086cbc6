"""Seeds and data order as pure functions, so that any sample can be reproduced alone, in any process.

No function uses a global random state or depends on PYTHONHASHSEED.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
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


def draw(cursor: Cursor, count: int, pool_size: int, seed: int, *, taken: Sequence[int] = (),
         ) -> tuple[list[int], Cursor]:
    """Return the indices of the next ``count`` questions, and the cursor after them.

    Every epoch has its own permutation. A draw never crosses the end of an epoch; remaining questions that are
    too few for it are skipped. A batch of several draws may cross it, and ``taken`` keeps it from holding a
    question twice.

    Args:
        cursor: position before the draw.
        count: number of questions, 1 to ``pool_size`` minus those taken.
        pool_size: number of questions of an epoch.
        seed: the run's seed.
        taken: indices that the batch already holds, each once; they are passed over.

    >>> draw(Cursor(0, 3), 2, 4, seed=0)[1]
    Cursor(epoch=1, position=2)
    """
    if not 1 <= count <= pool_size - len(taken):
        raise ValueError(f"cannot draw {count} questions from a pool of {pool_size}, {len(taken)} of them taken")
    left_out = set(taken)
    while True:
        order = permutation(pool_size, seed, "epoch", cursor.epoch)
        places = [place for place in range(cursor.position, pool_size) if order[place] not in left_out][:count]
        if len(places) == count:
            return [order[place] for place in places], Cursor(cursor.epoch, places[-1] + 1)
        cursor = Cursor(cursor.epoch + 1, 0)
