"""What a run is equipped with: a retriever, the engine that samples, the processes that train.

Engine and processes change how fast a run is made and not what it computes, rounding aside, so
neither is part of a run's digest.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from turncredit.closed import Closed, optional

Offload = Literal["parameters", "optimizer", "reference", "critic"]


class FaissConfig(Closed):
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
    index: Literal["flat", "ivfpq", "hnsw"] = "flat"
    lists: int = Field(65536, ge=1)  # ivfpq: cells
    probes: int = Field(64, ge=1)  # ivfpq: cells that a query looks into
    code_bytes: int = Field(64, ge=1)  # ivfpq: bytes a vector; divides its dimension
    links: int = Field(32, ge=2)  # hnsw: neighbours of a vector
    ef_construction: int = Field(200, ge=1)  # hnsw: candidates while building
    ef_search: int = Field(128, ge=1)  # hnsw: candidates of a query


class RetrieverConfig(Closed):
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

    @model_validator(mode="after")
    def _parts_fit_together(self) -> RetrieverConfig:
        if (self.kind == "faiss") != (self.faiss is not None):
            raise ValueError(f"faiss: {'is missing' if self.faiss is None else 'does not belong here'}"
                             f" where kind = {self.kind!r}")
        return self


class EngineConfig(Closed):
    """What samples the turns: transformers in the training process, or vLLM beside it or on GPUs of its own."""

    kind: Literal["hf", "vllm"] = "hf"
    placement: Literal["colocate", "server"] = "colocate"  # of vllm: on the training GPUs, or on its own
    gpus: int = Field(1, ge=1)  # of a server
    tensor_parallel: int = Field(1, ge=1)  # GPUs that share one copy of the policy
    gpu_memory_utilization: float = Field(0.6, gt=0, lt=1)  # share of a GPU that vLLM takes, weights included
    sleep: bool = True  # colocated: weights and cache leave the GPU while it trains
    max_sequences: int = Field(256, ge=1)  # episodes in flight on one copy of the policy

    @model_validator(mode="after")
    def _parts_fit_together(self) -> EngineConfig:
        if self.kind == "hf" and self.placement == "server":
            raise ValueError("placement = 'server': kind = 'hf' samples in the training process; use vllm")
        if self.placement == "server" and self.gpus % self.tensor_parallel:
            raise ValueError(f"tensor_parallel = {self.tensor_parallel}: does not divide gpus = {self.gpus}")
        return self


class LaunchConfig(Closed):
    """The processes of one training run, one a GPU, and what keeps them within memory."""

    nodes: int = Field(1, ge=1)
    processes: int = Field(1, ge=1)  # of all nodes together
    accelerate: str | None = None  # config/accelerate/<name>.yaml; null: one process, started as it is
    precision: Literal["float32", "bfloat16"] = "float32"  # of forward and backward; master weights stay float32
    gradient_checkpointing: bool = False
    offload: tuple[Offload, ...] = ()  # what lies in the host's memory while it is not used

    @model_validator(mode="after")
    def _parts_fit_together(self) -> LaunchConfig:
        if self.processes % self.nodes:
            raise ValueError(f"processes = {self.processes}: is no multiple of nodes = {self.nodes}")
        if self.processes > 1 and self.accelerate is None:
            raise ValueError(f"processes = {self.processes}: accelerate is null; name a file of config/accelerate/")
        return self
