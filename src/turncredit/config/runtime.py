"""What a run is equipped with: a retriever, the engine that samples, the processes that train.

Engine and processes change how fast a run is made and not what it computes, rounding aside, so
neither is part of a run's digest.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from turncredit.config.base import StrictModel

Offload = Literal["parameters", "optimizer", "reference", "critic"]


class EngineConfig(StrictModel):
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


class LaunchConfig(StrictModel):
    """The processes of one training run, one a GPU, and what keeps them within memory."""

    nodes: int = Field(1, ge=1)
    processes: int = Field(1, ge=1)  # of all nodes together
    accelerate: str | None = None  # config/accelerate/<name>.yaml; null: one process, started as it is
    precision: Literal["float32", "bfloat16"] = "float32"  # of forward and backward; master weights stay float32
    gradient_checkpointing: bool = False
    offload: tuple[Offload, ...] = ()  # what lies in the host's memory while it is not used
    gpu: str | None = None  # of config/models.yaml: what a plan reckons with; null: no GPU, or one that it knows not
    host_memory_gib: float | None = Field(None, gt=0)  # of a node, for a plan; null: not checked

    @model_validator(mode="after")
    def _parts_fit_together(self) -> LaunchConfig:
        if self.processes % self.nodes:
            raise ValueError(f"processes = {self.processes}: is no multiple of nodes = {self.nodes}")
        if self.processes > 1 and self.accelerate is None:
            raise ValueError(f"processes = {self.processes}: accelerate is null; name a file of config/accelerate/")
        return self
