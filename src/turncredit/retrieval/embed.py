"""Passages as vectors, a shard of the corpus at a time: one job of an array embeds one shard."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

from turncredit.errors import ConfigError, DataError
from turncredit.files import atomic, write_text
from turncredit.retrieval.encoder import Encoder
from turncredit.retrieval.passages import PassageTable
from turncredit.retrieval.vectors import ShardManifest, read_shard, shard_path, shard_range

_BATCHES = 32  # that are sorted by length together


def embed_shard(table: PassageTable, encoder: Encoder, folder: Path, shard: int, shards: int) -> ShardManifest:
    """Write the vectors of shard ``shard`` of ``shards``, whole or not at all, and then its manifest.

    A finished shard of the same corpus and encoder is left as it is.

    Raises:
        ConfigError: there is no such shard.
        DataError: the disk is full or the place is not writable.
    """
    if not 0 <= shard < shards:
        raise ConfigError(f"no shard {shard} of {shards}", f"they are 0 to {shards - 1}")
    config, path = encoder.config, shard_path(folder, shard, shards)
    start, stop = shard_range(len(table), shard, shards)
    manifest = ShardManifest(
        corpus_sha256=table.manifest.sha256, start=start, stop=stop, encoder=encoder.identity,
        dimension=encoder.dimension, storage=config.storage, precision=config.precision, seconds=0.0)
    if (finished := _finished(path, manifest)) is not None:
        return finished
    began, many = time.perf_counter(), _BATCHES * config.batch
    path.with_suffix(".json").unlink(missing_ok=True)
    with atomic(path) as temporary, tqdm(total=stop - start, unit="passage", mininterval=10) as bar:
        vectors = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.dtype(config.storage),
                                            shape=(stop - start, encoder.dimension))
        for first in range(start, stop, many):
            rows = range(first, min(first + many, stop))
            vectors[first - start:rows.stop - start] = encoder.passages([table[row].contents for row in rows])
            bar.update(len(rows))
        vectors.flush()
    manifest = manifest.model_copy(update={"seconds": round(time.perf_counter() - began, 3)})
    write_text(path.with_suffix(".json"), manifest.model_dump_json(indent=2) + "\n")
    return manifest


def _finished(path: Path, wanted: ShardManifest) -> ShardManifest | None:
    """The manifest of a shard that is there already, if it is the wanted one."""
    if not path.with_suffix(".json").exists():
        return None
    try:
        found, _ = read_shard(path)
    except DataError:  # cut short by whatever ended its job: it is written again
        return None
    return found if found.model_copy(update={"seconds": 0.0}) == wanted else None
