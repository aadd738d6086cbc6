"""``index.json``: what an index holds and how it ranks; written last, so it vouches for all."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, TypeAdapter, ValidationError

from turncredit.config.base import StrictModel
from turncredit.config.retriever import FaissConfig, RetrieverConfig
from turncredit.errors import ConfigError, DataError
from turncredit.retrieval.sizes import Needs

REBUILD = "build it again: snakemake index"
# Keys of ``FaissConfig`` that say how vectors are computed or searched, and not which vectors lie in the index.
# (``encoder`` is where the encoder is found; what it is stands in ``FaissManifest.encoder``.)
_HOW = frozenset({"encoder", "batch", "precision", "device", "shards", "probes", "ef_search"})
_OF_INDEX = {"flat": frozenset[str](), "ivfpq": frozenset({"lists", "code_bytes", "opq", "training_rows"}),
             "hnsw": frozenset({"links", "ef_construction"})}


class LuceneManifest(StrictModel):
    """A BM25 index."""

    kind: Literal["lucene"] = "lucene"
    sha256: str  # of the corpus file
    documents: int = Field(ge=1)
    k1: float
    b: float
    engine: str
    size_bytes: int
    seconds: float

    @property
    def index_sha256(self) -> str:
        """The identity of a ranking: equal corpus, parameters and engine rank alike."""
        return _digest(self.sha256, self.k1, self.b, self.engine)

    def served(self, config: RetrieverConfig) -> str:
        """The identity of the ranking that ``config`` asks of this index.

        Raises:
            ConfigError: it asks for another index.
        """
        if config.kind != "lucene":
            raise ConfigError("the index here is Lucene's, but the configuration says retriever.kind = faiss", REBUILD)
        if (self.k1, self.b) != (config.k1, config.b):
            raise ConfigError(f"built for k1 = {self.k1:g}, b = {self.b:g}, but the configuration says "
                              f"{config.k1:g}, {config.b:g}", REBUILD)
        return self.index_sha256


class FaissManifest(StrictModel):
    """An index of vectors.

    Attributes:
        sha256: of the corpus file.
        encoder: identity of what made the vectors (``Encoder.identity``).
        settings: the configuration that it was built with.
        engine: what searches it.
        needs: memory and disk by arithmetic (``sizes.needs``), beside the measured ``size_bytes``.
        seconds: of the build, embedding aside.
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

    def served(self, config: RetrieverConfig) -> str:
        """The identity of the ranking that ``config`` asks of this index; see ``LuceneManifest.served``."""
        if config.faiss is None:
            raise ConfigError("the index here is FAISS's, but the configuration says retriever.kind = lucene", REBUILD)
        mine, asked = built(self.settings), built(config.faiss)
        if differing := sorted(key for key in mine.keys() | asked.keys() if mine.get(key) != asked.get(key)):
            key = differing[0]
            raise ConfigError(f"built for faiss.{key} = {mine.get(key)}, but the configuration says {asked.get(key)}",
                              REBUILD)
        return _digest(self.sha256, self.encoder, mine, self.engine, effort(config.faiss))


def built(config: FaissConfig) -> dict[str, Any]:
    """The settings that decide what lies in an index."""
    others = frozenset.union(*_OF_INDEX.values()) - _OF_INDEX[config.index]
    return config.model_dump(mode="json", exclude=set(_HOW | others))


def effort(config: FaissConfig) -> int:
    """How much of an index a query looks at: cells of ivfpq, candidates of hnsw; 0 is all (flat)."""
    return {"flat": 0, "ivfpq": config.probes, "hnsw": config.ef_search}[config.index]


Manifest = LuceneManifest | FaissManifest


def _kind(value: Any) -> str:
    return str(value.get("kind", "lucene") if isinstance(value, dict) else value.kind)


_ADAPTER: TypeAdapter[Manifest] = TypeAdapter(Annotated[
    Annotated[LuceneManifest, Tag("lucene")] | Annotated[FaissManifest, Tag("faiss")], Discriminator(_kind)])


def read_manifest(index_dir: Path) -> Manifest:
    """Read ``index.json``.

    Raises:
        DataError: no index here, or a manifest that is not one.
    """
    path = index_dir / "index.json"
    try:
        return _ADAPTER.validate_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: no finished index here ({error.strerror})",
                        f"build it: snakemake --cores 2 {path}") from error
    except (ValidationError, UnicodeDecodeError, AttributeError) as error:
        raise DataError(f"{path}: not an index manifest: {error}", REBUILD) from error


def _digest(*parts: Any) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
