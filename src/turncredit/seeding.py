"""Seeds and data order as pure functions: any sample can be drawn again alone, in any process.

Nothing here touches a global random state, and no digest depends on PYTHONHASHSEED.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

import numpy as np


def digest(*parts: int | str) -> int:
    """A 63-bit seed from the sha256 of the parts, type and order included.

    >>> digest(0, 12, "facts-7", 3) == digest(0, 12, "facts-7", 3) != digest(0, 12, "facts-7", "3")
    True
    """
    payload = json.dumps(parts, separators=(",", ":")).encode()
    return int.from_bytes(hashlib.sha256(payload).digest()[:8], "big") >> 1


def permutation(size: int, *parts: int | str) -> list[int]:
    """A seeded order of 0 .. size - 1.

    >>> sorted(permutation(4, 0, "epoch", 1))
    [0, 1, 2, 3]
    """
    return np.random.default_rng(digest(*parts)).permutation(size).tolist()


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where the data order stands: all its state."""

    epoch: int = 0
    position: int = 0


START = Cursor()


def draw(cursor: Cursor, count: int, pool_size: int, seed: int) -> tuple[list[int], Cursor]:
    """The next ``count`` questions of the seeded order, and the cursor after them.

    Every epoch is an order of its own. A batch never crosses an epoch's end, so it never holds a
    question twice; an end too short for the batch is left out.

    Args:
        cursor: where the order stands.
        count: number of questions, 1 to ``pool_size``.
        pool_size: number of questions of an epoch.
        seed: the run's seed.

    >>> draw(Cursor(0, 3), 2, 4, seed=0)[1]
    Cursor(epoch=1, position=2)
    """
    if not 1 <= count <= pool_size:
        raise ValueError(f"{count} questions asked of a pool of {pool_size}")
    if cursor.position + count > pool_size:
        cursor = Cursor(cursor.epoch + 1, 0)
    end = cursor.position + count
    chosen = permutation(pool_size, seed, "epoch", cursor.epoch)[cursor.position:end]
    return chosen, Cursor(cursor.epoch, end)
