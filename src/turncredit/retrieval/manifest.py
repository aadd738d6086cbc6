"""The manifest of an index, ``index.json``: what it holds, how it ranks and what memory it needs.

It is written last, so an index with a manifest is complete. ``ranking_sha256`` identifies a ranking: indexes with the
same identity return the same passages in the same order.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, TypeAdapter, ValidationError

from turncredit.config.base import StrictModel
from turncredit.config.retriever import FaissConfig, RetrieverConfig
from turncredit.data.corpus import rebuild_index
from turncredit.errors import ConfigError, DataError

BLOCK_ROWS = 65_536  # vectors that are read, converted or compared at once
CENTROIDS = 256  # of each part of a product quantiser, whose codes are one byte
_REBUILD = rebuild_index(Path())
_BYTES = {"float16": 2, "float32": 4}
_ID_BYTES = 8  # a row number in an inverted list
_LINK_BYTES = 4  # a link of HNSW

# Keys of ``FaissConfig`` that decide how vectors are computed or searched, not which vectors are in the index.
# (``encoder`` is where the encoder is found; ``FaissManifest.encoder`` is its identity.)
_NOT_BUILT = frozenset({"encoder", "batch", "precision", "device", "shards", "probes", "ef_search"})
_BUILT_BY_KIND = {"flat": frozenset[str](), "ivfpq": frozenset({"lists", "code_bytes", "opq", "training_rows"}),
                  "hnsw": frozenset({"links", "ef_construction"})}


class Needs(StrictModel):
    """Memory and disk that a FAISS index needs, in bytes.

    Attributes:
        disk: size of the index files.
        served: the part of them that searches touch and that should fit in memory. The files are memory-mapped: with
            less memory searches read the disk and nothing fails.
        build: most memory held while building, besides the memory-mapped embeddings.
    """

    disk: int
    served: int
    build: int


class LuceneManifest(StrictModel):
    """Manifest of a BM25 index; ``sha256`` is that of the corpus file."""

    kind: Literal["lucene"] = "lucene"
    sha256: str
    documents: int = Field(ge=1)
    k1: float
    b: float
    engine: str
    size_bytes: int
    seconds: float

    @property
    def index_sha256(self) -> str:
        """Identity of the ranking: corpus, parameters and engine."""
        return _digest(self.sha256, self.k1, self.b, self.engine)

    def ranking_sha256(self, config: RetrieverConfig) -> str:
        """Identity of the ranking that ``config`` asks of this index.

        Raises:
            ConfigError: ``config`` needs an index that was built in another way.
        """
        if config.kind != "lucene":
            raise ConfigError("this index is Lucene's, but the config says retriever.kind = faiss", _REBUILD)
        if (self.k1, self.b) != (config.k1, config.b):
            raise ConfigError(f"built for k1 = {self.k1:g}, b = {self.b:g}, but the config says {config.k1:g}, "
                              f"{config.b:g}", _REBUILD)
        return self.index_sha256


class FaissManifest(StrictModel):
    """Manifest of a vector index.

    Attributes:
        sha256: hash of the corpus file.
        encoder: identity of the encoder of its vectors (``Encoder.identity``).
        settings: the config that it was built with.
        engine: the library that searches it.
        needs: memory and disk by arithmetic; ``size_bytes`` is measured.
        seconds: duration of the build, without embedding.
    """

    kind: Literal["faiss"]
    sha256: str
    documents: int = Field(ge=1)
    dimension: int = Field(ge=1)
    encoder: str
    settings: FaissConfig
    engine: str
    needs: Needs
    size_bytes: int
    seconds: float

    def ranking_sha256(self, config: RetrieverConfig) -> str:
        """Identity of the ranking that ``config`` asks of this index; see ``LuceneManifest.ranking_sha256``."""
        if config.faiss is None:
            raise ConfigError("this index is FAISS's, but the config says retriever.kind = lucene", _REBUILD)
        mine, other = build_settings(self.settings), build_settings(config.faiss)
        if differing := sorted(key for key in mine.keys() | other.keys() if mine.get(key) != other.get(key)):
            key = differing[0]
            raise ConfigError(f"built for faiss.{key} = {mine.get(key)}, but the config says {other.get(key)}",
                              _REBUILD)
        return _digest(self.sha256, self.encoder, mine, self.engine, effort(config.faiss))


Manifest = LuceneManifest | FaissManifest


def build_settings(config: FaissConfig) -> dict[str, Any]:
    """The settings that decide what is in an index of vectors."""
    others = frozenset.union(*_BUILT_BY_KIND.values()) - _BUILT_BY_KIND[config.index]
    return config.model_dump(mode="json", exclude=set(_NOT_BUILT | others))


def effort(config: FaissConfig) -> int:
    """How much of an index a query looks at: cells of ivfpq, candidates of hnsw, 0 for all of a flat index."""
    return {"flat": 0, "ivfpq": config.probes, "hnsw": config.ef_search}[config.index]


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
        stored = round(documents * (vector + links * _LINK_BYTES + 8 + 4))
        return Needs(disk=stored, served=stored, build=stored + block)
    centroids = 4 * dimension * (config.lists + CENTROIDS + (dimension if config.opq else 0))
    stored = documents * (config.code_bytes + _ID_BYTES) + centroids
    sample = 4 * dimension * min(documents, config.training_rows)
    return Needs(disk=stored, served=stored, build=max(2 * sample, stored + block) + centroids)


def _kind(value: Any) -> str:
    return str(value.get("kind", "lucene") if isinstance(value, dict) else value.kind)


_ADAPTER: TypeAdapter[Manifest] = TypeAdapter(Annotated[
    Annotated[LuceneManifest, Tag("lucene")] | Annotated[FaissManifest, Tag("faiss")], Discriminator(_kind)])


def read_manifest(index_dir: Path) -> Manifest:
    """Read ``index.json``.

    Raises:
        DataError: no index, or a malformed manifest.
    """
    path = index_dir / "index.json"
    try:
        return _ADAPTER.validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: no finished index here ({error.strerror})", rebuild_index(index_dir)) from error
    except (ValidationError, UnicodeDecodeError, AttributeError) as error:
        raise DataError(f"{path}: not an index manifest: {error}", rebuild_index(index_dir, path.name)) from error


def check_index(index_dir: Path, config: RetrieverConfig) -> tuple[Manifest, str]:
    """The manifest of an index, and the identity of the ranking that ``config`` asks of it.

    Raises:
        DataError: no index, or one that was built in another way than ``config`` says.
    """
    manifest = read_manifest(index_dir)
    try:
        return manifest, manifest.ranking_sha256(config)
    except ConfigError as error:
        raise DataError(f"{index_dir / 'index.json'}: {error.message}", rebuild_index(index_dir)) from error


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
