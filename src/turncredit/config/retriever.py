"""The settings of a retriever and its server."""

from __future__ import annotations

import json
from typing import Literal

from pydantic import Field, model_validator

from turncredit.config.base import StrictModel, optional


class FaissConfig(StrictModel):
    """A dense retriever: passages as vectors of one encoder in one FAISS index, inner product."""

    encoder: str = "intfloat/e5-base-v2"  # a folder, a hub id or a name in config/sources.yaml
    pooling: Literal["mean", "cls"] = "mean"
    normalize: bool = True  # vectors have length 1
    query_prefix: str = "query: "
    passage_prefix: str = "passage: "
    max_query_tokens: int = Field(256, ge=1)  # of the encoder
    max_passage_tokens: int = Field(180, ge=1)
    batch: int = Field(512, ge=1)  # texts that are encoded at once
    precision: Literal["float32", "float16", "bfloat16"] = "float16"  # of the encoder
    device: Literal["cpu", "cuda"] = "cuda"  # of the encoder
    shards: int = Field(1, ge=1)  # parts of the corpus that are encoded by jobs of their own
    storage: Literal["float16", "float32"] = "float16"  # of vectors on disk; float16 halves flat and hnsw
    index: Literal["flat", "ivfpq", "hnsw"] = "flat"
    lists: int = Field(65536, ge=1)  # ivfpq: cells
    probes: int = Field(64, ge=1)  # ivfpq: cells that a query looks into
    code_bytes: int = Field(64, ge=1)  # ivfpq: bytes a vector; divides its dimension
    opq: bool = False  # ivfpq: a rotation learnt first, for better codes
    training_rows: int = Field(2_621_440, ge=256)  # ivfpq: vectors that cells and codes are learnt from, at most
    links: int = Field(32, ge=2)  # hnsw: neighbours of a vector
    ef_construction: int = Field(200, ge=1)  # hnsw: candidates while building
    ef_search: int = Field(128, ge=1)  # hnsw: candidates of a query


class ServerConfig(StrictModel):
    """How a retrieval server is run; none of it changes an answer."""

    host: str = Field("loopback", min_length=1)  # where it listens: loopback, hostname (its machine's), or a name
    window_ms: float = Field(2.0, ge=0)  # a request waits so long for others that are searched with it
    max_batch: int = Field(1024, ge=1)  # queries that are searched at once
    queue: int = Field(8192, ge=1)  # queries that may wait; further requests get 503 and a time to come back
    threads: int = Field(2, ge=1)  # of the search
    heap: str = Field("512m", pattern=r"^[1-9]\d*[kmg]$")  # of Java, for the index and its server
    start_s: float = Field(180.0, gt=0)  # how long its users wait for it; placed as a job, its time in the queue too
    linger_s: float = Field(15.0, gt=0)  # how long it stays without a user
    lease_s: float = Field(180.0, gt=0)  # placed as a job: a user that gave no sign for so long is gone
    mem_mb: int = Field(4000, ge=1)  # what its own job asks for: memory
    gpus: int = Field(0, ge=0)  # GPUs
    runtime: int = Field(1440, ge=1)  # minutes


class RetrieverConfig(StrictModel):
    """What answers /retrieve: Lucene BM25, or a dense encoder with a FAISS index."""

    kind: Literal["lucene", "faiss"] = "lucene"
    k1: float = Field(0.9, gt=0)
    b: float = Field(0.4, ge=0, le=1)
    timeout_s: float = Field(20.0, gt=0)
    retries: int = Field(3, ge=0)
    max_query_tokens: int = Field(64, ge=1)  # whitespace words; longer queries are cut and counted
    corpus: str | None = optional()  # a corpus of config/sources.yaml; null: the passages of the world
    prebuilt: str | None = optional()  # an index of config/sources.yaml that is fetched instead of built
    faiss: FaissConfig | None = optional()
    # The server of a training job, on its machine; or a job of its own. No part of what a run is made of.
    placement: Literal["local", "job"] = Field("local", exclude=True)
    server: ServerConfig = Field(ServerConfig(), exclude=True)

    @model_validator(mode="after")
    def _parts_fit_together(self) -> RetrieverConfig:
        if (self.kind == "faiss") != (self.faiss is not None):
            raise ValueError(f"faiss: {'is missing' if self.faiss is None else 'does not belong here'}"
                             f" where kind = {self.kind!r}")
        if self.placement == "job" and self.server.host == "loopback":
            raise ValueError("server.host = 'loopback': other machines cannot reach a job there; write hostname")
        if self.placement == "job" and self.faiss and self.faiss.device == "cuda" and self.server.gpus == 0:
            raise ValueError("server.gpus = 0: faiss.device = 'cuda' wants one where the server is a job of its own")
        return self

    def whole(self) -> str:
        """Every setting as JSON, those too that are no part of what a run is made of."""
        return json.dumps(self.model_dump(mode="json") | {
            "placement": self.placement, "server": self.server.model_dump(mode="json")})
