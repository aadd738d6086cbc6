"""Settings of a retriever and its server."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import Field, model_validator

from turncredit.config.base import StrictModel, optional


class FaissConfig(StrictModel):
    """A dense retriever: an encoder and a FAISS index of passage vectors, compared by inner product."""

    encoder: str = "intfloat/e5-base-v2"  # a folder, a hub id or a name in config/sources.yaml
    pooling: Literal["mean", "cls"] = "mean"
    normalize: bool = True  # vectors have length 1
    query_prefix: str = "query: "
    passage_prefix: str = "passage: "
    max_query_tokens: int = Field(256, ge=1)  # of the encoder
    max_passage_tokens: int = Field(180, ge=1)
    batch: int = Field(512, ge=1)  # texts encoded at once
    precision: Literal["float32", "float16", "bfloat16"] = "float16"  # of the encoder
    device: Literal["cpu", "cuda"] = "cuda"  # of the encoder
    shards: int = Field(1, ge=1)  # parts of the corpus, each encoded by its own job
    storage: Literal["float16", "float32"] = "float16"  # of vectors on disk; float16 halves flat and hnsw
    index: Literal["flat", "ivfpq", "hnsw"] = "flat"
    lists: int = Field(65536, ge=1)  # ivfpq: cells
    probes: int = Field(64, ge=1)  # ivfpq: cells searched per query
    code_bytes: int = Field(64, ge=1)  # ivfpq: bytes per vector; must divide the dimension
    opq: bool = False  # ivfpq: learn a rotation first, for better codes
    training_rows: int = Field(2_621_440, ge=256)  # ivfpq: at most so many vectors train cells and codes
    links: int = Field(32, ge=2)  # hnsw: neighbours per vector
    ef_construction: int = Field(200, ge=1)  # hnsw: candidates during construction
    ef_search: int = Field(128, ge=1)  # hnsw: candidates per query


class ServerConfig(StrictModel):
    """Settings of a retrieval server; they do not change search results."""

    host: str = Field("loopback", min_length=1)  # listens on: loopback, hostname (of its machine), or a name
    window_ms: float = Field(2.0, ge=0)  # how long a request waits for others to be batched with it
    max_batch: int = Field(1024, ge=1)  # queries searched at once
    queue: int = Field(8192, ge=1)  # queries that may wait; further requests get 503 and a retry time
    max_request: int = Field(4096, ge=1)  # queries of one request; more get 413
    threads: int = Field(2, ge=1)  # of the search
    heap: str = Field("512m", pattern=r"^[1-9]\d*[kmg]$")  # of Java, for indexing and for the server
    start_s: float = Field(180.0, gt=0)  # how long clients wait for it; location job: including its time in the queue
    linger_s: float = Field(15.0, gt=0)  # how long it runs without clients
    lease_s: float = Field(180.0, gt=0)  # location job: a client that is silent for so long is gone
    mem_mb: int = Field(4000, ge=1)  # location job: memory
    gpus: int = Field(0, ge=0)  # location job: GPUs
    runtime: int = Field(1440, ge=1)  # location job: minutes


class RetrieverConfig(StrictModel):
    """The retriever behind /retrieve: Lucene BM25, or a dense encoder with a FAISS index."""

    kind: Literal["lucene", "faiss"] = "lucene"
    k1: float = Field(0.9, gt=0)
    b: float = Field(0.4, ge=0, le=1)
    timeout_s: float = Field(20.0, gt=0)
    retries: int = Field(3, ge=0)
    max_query_tokens: int = Field(64, ge=1)  # whitespace words; longer queries are truncated and counted
    corpus: str | None = optional()  # a corpus of config/sources.yaml; null: the passages of the world
    prebuilt: str | None = optional()  # an index of config/sources.yaml, fetched instead of built
    faiss: FaissConfig | None = optional()
    # Not in a run's hash: where the server runs (on the machine of the training job, or as a SLURM job) and how.
    location: Literal["local", "job"] = Field("local", exclude=True)
    server: ServerConfig = Field(ServerConfig(), exclude=True)

    @model_validator(mode="after")
    def _parts_fit_together(self) -> RetrieverConfig:
        if (self.kind == "faiss") != (self.faiss is not None):
            raise ValueError(f"faiss: {'is required' if self.faiss is None else 'is not allowed'}"
                             f" with kind = {self.kind!r}")
        if self.location == "job" and self.server.host == "loopback":
            raise ValueError("server.host = 'loopback': other machines must reach it (location = 'job'); set hostname")
        if self.location == "job" and self.faiss and self.faiss.device == "cuda" and self.server.gpus == 0:
            raise ValueError("server.gpus = 0: with location = 'job' and faiss.device = 'cuda' it must be at least 1")
        return self

    def result_settings(self) -> dict[str, Any]:
        """The settings that decide what a search returns, as JSON; time limits, retries and devices do not."""
        found = self.hashed_fields(exclude={"timeout_s", "retries", "faiss"})
        if self.faiss is not None:
            found["faiss"] = self.faiss.hashed_fields(exclude={"device", "batch", "shards"})
        return found

    def to_json(self) -> str:
        """Return all settings as JSON, including those that are not in a run's hash."""
        return json.dumps(self.model_dump(mode="json") | {
            "location": self.location, "server": self.server.model_dump(mode="json")})
