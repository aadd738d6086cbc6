"""What a FAISS index of a given size needs: arithmetic, so that a plan is refused before it is run."""

from __future__ import annotations

from turncredit.config.base import StrictModel
from turncredit.config.retriever import FaissConfig

BLOCK_ROWS = 65_536  # vectors that are read, converted or compared at once
CENTROIDS = 256  # of each part of a product quantiser: a byte each
_BYTES = {"float16": 2, "float32": 4}
_ID = 8  # bytes of a row's number in an inverted list
_LINK = 4  # bytes of a link of HNSW


class Needs(StrictModel):
    """Bytes.

    Attributes:
        disk: of the index's files.
        served: of those that searching comes by, and that are therefore best kept in memory. They are mapped:
            with less memory searches read the disk, and nothing fails.
        build: the most that building holds in memory, the mapped embeddings aside.
    """

    disk: int
    served: int
    build: int


def needs(config: FaissConfig, documents: int, dimension: int) -> Needs:
    """Needs of an index of ``documents`` vectors with ``dimension`` components.

    >>> needs(FaissConfig(index="flat", storage="float32"), 21_015_324, 768).disk / 2**30  # doctest: +ELLIPSIS
    60.12...
    """
    vector = dimension * _BYTES[config.storage]
    block = BLOCK_ROWS * dimension * 4
    if config.index == "flat":
        stored = documents * vector
        return Needs(disk=stored, served=stored, build=2 * block)
    if config.index == "hnsw":
        # 2 M links on the ground level; a share of 1 / M of the nodes has M more, 1 / M² as many again, ...
        links = 2 * config.links + config.links / (config.links - 1)
        stored = round(documents * (vector + links * _LINK + 8 + 4))
        return Needs(disk=stored, served=stored, build=stored + block)
    centroids = 4 * dimension * (config.lists + CENTROIDS + (dimension if config.opq else 0))
    stored = documents * (config.code_bytes + _ID) + centroids
    sample = 4 * dimension * min(documents, config.training_rows)
    return Needs(disk=stored, served=stored, build=max(2 * sample, stored + block) + centroids)
