"""Encodes texts as vectors as E5 does: prefix, transformer, mean over tokens, length 1.

``embed_shard`` encodes one shard of a corpus and writes it to disk; each shard can be a job of its own.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor
from tqdm import tqdm
from transformers import AutoModel, AutoTokenizer

from turncredit.config.retriever import FaissConfig
from turncredit.data.corpus import PassageTable
from turncredit.data.fetch import read_record
from turncredit.data.sources import load_registry
from turncredit.errors import CheckpointError, ConfigError, DataError, NonFiniteError, nearest
from turncredit.files import atomic, write_text
from turncredit.retrieval.vectors import ShardManifest, read_shard, shard_path, shard_range

_SORTED_BATCHES = 32  # batches whose texts are sorted by length together

Vectors_N_D = NDArray[np.float32]


class Encoder:
    """A transformer that encodes queries and passages.

    Texts that are encoded together change a vector only by rounding (about 1e-7 in float32).

    Args:
        config: names the encoder (a folder or a hub id) and how to use it.
        root: the clone, whose ``config/sources.yaml`` may name the encoder.

    Raises:
        CheckpointError: weights are missing or misshapen.
        DataError: the folder or hub id has no encoder, or cannot be fetched.
    """

    def __init__(self, config: FaissConfig, root: Path = Path()) -> None:
        self.config = config
        self._device = torch.device(config.device)
        self._tokenizer, model = _load(*locate(config.encoder, root))
        self._padding = int(self._tokenizer.pad_token_id)
        self.dimension = int(model.config.hidden_size)
        self.identity = _identity(model, self._tokenizer, config)
        self._model = model.to(self._device, getattr(torch, config.precision)).eval()

    def queries(self, texts: Sequence[str]) -> Vectors_N_D:
        """Vectors [N, D] of queries, in order."""
        return self._encode(texts, self.config.query_prefix, self.config.max_query_tokens)

    def passages(self, texts: Sequence[str]) -> Vectors_N_D:
        """Vectors [N, D] of passages' contents, in order."""
        return self._encode(texts, self.config.passage_prefix, self.config.max_passage_tokens)

    def _encode(self, texts: Sequence[str], prefix: str, limit: int) -> Vectors_N_D:
        encoded_N_D = np.empty((len(texts), self.dimension), dtype=np.float32)
        if not texts:
            return encoded_N_D
        ids_N: list[list[int]] = self._tokenizer(
            [prefix + text for text in texts], truncation=True, max_length=limit)["input_ids"]
        by_length = sorted(range(len(texts)), key=lambda n: len(ids_N[n]))  # less padding in a batch
        for start in range(0, len(texts), self.config.batch):
            rows = by_length[start:start + self.config.batch]
            encoded_N_D[rows] = self._batch([ids_N[n] for n in rows])
        return encoded_N_D

    @torch.inference_mode()
    def _batch(self, ids_B: list[list[int]]) -> Vectors_N_D:
        width = max(map(len, ids_B))
        padded_B_T = torch.tensor([ids + [self._padding] * (width - len(ids)) for ids in ids_B], device=self._device)
        real_B_T = torch.tensor([[1] * len(ids) + [0] * (width - len(ids)) for ids in ids_B], device=self._device)
        hidden_B_T_H: Tensor = self._model(input_ids=padded_B_T, attention_mask=real_B_T).last_hidden_state
        pooled_B_H = pool(hidden_B_T_H.float(), real_B_T, self.config.pooling)
        if self.config.normalize:
            pooled_B_H = torch.nn.functional.normalize(pooled_B_H, dim=-1)
        if not bool(torch.isfinite(pooled_B_H).all()):
            raise NonFiniteError(f"{self.config.encoder}: a vector is not finite in {self.config.precision}",
                                 "set retriever.faiss.precision: float32")
        vectors: Vectors_N_D = pooled_B_H.cpu().numpy()
        return vectors


def embed_shard(table: PassageTable, encoder: Encoder, folder: Path, shard: int, shards: int) -> ShardManifest:
    """Write the vectors of shard ``shard`` of ``shards`` atomically, then its manifest.

    A finished shard of the same corpus and encoder is kept.

    Raises:
        ConfigError: there is no such shard.
        DataError: the disk is full or the folder is not writable.
    """
    if not 0 <= shard < shards:
        raise ConfigError(f"no shard {shard} of {shards}", f"choose one of 0 to {shards - 1}")
    config, path = encoder.config, shard_path(folder, shard, shards)
    start, stop = shard_range(len(table), shard, shards)
    manifest = ShardManifest(
        corpus_sha256=table.manifest.sha256, start=start, stop=stop, encoder=encoder.identity,
        dimension=encoder.dimension, storage=config.storage, precision=config.precision, seconds=0.0)
    if (finished := _finished(path, manifest)) is not None:
        return finished
    began, many = time.perf_counter(), _SORTED_BATCHES * config.batch
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
    """The manifest of the shard on disk, if it is finished and is the wanted one."""
    if not path.with_suffix(".json").exists():
        return None
    try:
        manifest, _ = read_shard(path)
    except DataError:  # truncated when its job was killed: it is written again
        return None
    return manifest if manifest.model_copy(update={"seconds": 0.0}) == wanted else None


def pool(hidden_B_T_H: Tensor, attention_B_T: Tensor, pooling: str) -> Tensor:
    """One vector per text [B, H]: the mean over its tokens without padding, or the first token's vector.

    >>> pool(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[1, 1, 0]]), "mean")
    tensor([[2.]])
    """
    if pooling == "cls":
        return hidden_B_T_H[:, 0]
    weight_B_T_1 = attention_B_T.unsqueeze(-1).to(hidden_B_T_H.dtype)
    return (hidden_B_T_H * weight_B_T_1).sum(1) / weight_B_T_1.sum(1)


def locate(encoder: str, root: Path) -> tuple[str, str | None]:
    """The folder or hub id of an encoder, and its revision.

    Args:
        encoder: a folder, the name or hub id of a source in ``config/sources.yaml``, or another hub id.
        root: the clone.

    Raises:
        ConfigError: the name is none of these.
    """
    if Path(encoder).is_dir():
        return encoder, None
    sources = load_registry(root).sources if (root / "config" / "sources.yaml").exists() else {}
    for name, source in sources.items():
        if encoder in (name, source.repository):
            record = Path(load_registry(root).downloads, name)
            folder = read_record(record).get("folder") if record.is_dir() else None
            return (folder, None) if folder else (source.repository, source.revision)
    if encoder.count("/") != 1:
        raise ConfigError(f"retriever.faiss.encoder = {encoder!r}: not a folder, source or hub id",
                          f"{nearest(encoder, sources)}; or name a folder" if sources else "name its folder")
    return encoder, None


def _load(path_or_id: str, revision: str | None) -> tuple[Any, Any]:
    try:
        tokenizer = AutoTokenizer.from_pretrained(path_or_id, revision=revision)
        model, report = AutoModel.from_pretrained(path_or_id, revision=revision, dtype=torch.float32,
                                                  output_loading_info=True)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        first = str(error).strip().partition("\n")[0]
        raise DataError(f"{path_or_id}: no encoder there: {first}",
                        "fetch it (turncredit fetch), or name a folder that holds it") from error
    absent = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))  # BERT's, unused here
    if absent := absent + sorted(str(key) for key in report["mismatched_keys"]):
        raise CheckpointError(f"{path_or_id}: weights are missing or misshapen: {', '.join(absent[:3])}",
                              "fetch it again (turncredit fetch), or name another folder")
    return tokenizer, model


def _identity(model: Any, tokenizer: Any, config: FaissConfig) -> str:
    """sha256 of what decides a vector: weights, vocabulary and settings, but not the path or hub id."""
    ignored = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"}
    shape = {key: value for key, value in model.config.to_dict().items() if key not in ignored}
    used = config.model_dump(include={"pooling", "normalize", "query_prefix", "passage_prefix", "max_query_tokens",
                                      "max_passage_tokens"})
    digest = hashlib.sha256(json.dumps([type(model).__name__, shape, used], sort_keys=True, default=str).encode())
    digest.update(tokenizer.backend_tokenizer.to_str().encode())
    for name, weight in sorted(model.state_dict().items()):
        if not name.startswith("pooler."):
            digest.update(f"{name}{list(weight.shape)}".encode())
            digest.update(memoryview(weight.detach().contiguous().cpu().numpy()).cast("B"))
    return digest.hexdigest()
