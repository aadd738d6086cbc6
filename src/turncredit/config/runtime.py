"""Runtime settings of a run: the engine that samples and the processes that train.

They change how fast a run is, not what it computes (except for rounding), so they are not part of a
run's hash.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from turncredit.config.base import StrictModel

Offload = Literal["parameters", "optimizer", "reference", "critic"]
Tracker = Literal["tensorboard", "wandb"]


class EngineConfig(StrictModel):
    """The engine that samples turns: transformers in the training process, or vLLM."""

    kind: Literal["hf", "vllm"] = "hf"
    mode: Literal["colocate", "server"] = "colocate"  # of vllm: on the training GPUs, or on its own GPUs
    gpus: int = Field(1, ge=1)  # mode server: number of its GPUs
    tensor_parallel: int = Field(1, ge=1)  # GPUs that share one copy of the policy
    gpu_memory_utilization: float = Field(0.6, gt=0, lt=1)  # share of a GPU that vLLM takes, including weights
    sleep: bool = True  # mode colocate: free weights and cache during the update
    max_sequences: int = Field(256, ge=1)  # concurrent episodes on one copy of the policy

    @model_validator(mode="after")
    def _parts_fit_together(self) -> EngineConfig:
        if self.kind == "hf" and self.mode == "server":
            raise ValueError("mode = 'server': kind = 'hf' samples in the training process; set kind to vllm")
        if self.mode == "server" and self.gpus % self.tensor_parallel:
            raise ValueError(f"tensor_parallel = {self.tensor_parallel}: must divide gpus = {self.gpus}")
        return self


class LaunchConfig(StrictModel):
    """The processes of a training run, one per GPU; options that save memory; trackers."""

    nodes: int = Field(1, ge=1)
    processes: int = Field(1, ge=1)  # on all nodes
    accelerate: str | None = None  # config/accelerate/<name>.yaml; null: one process without a launcher
    precision: Literal["float32", "bfloat16"] = "float32"  # of forward and backward passes; master weights are float32
    gradient_checkpointing: bool = False
    offload: tuple[Offload, ...] = ()  # kept in CPU memory while it is not used
    gpu: str | None = None  # of config/models.yaml, for the plan; null: none, or an unknown one
    host_memory_gib: float | None = Field(None, gt=0)  # of a node, for the plan; null: not checked
    keep_checkpoints: bool = True  # after the final evaluation; false: only the final policy stays
    trackers: tuple[Tracker, ...] = ()  # metrics are also logged there, by rank 0

    @model_validator(mode="after")
    def _parts_fit_together(self) -> LaunchConfig:
        if self.processes % self.nodes:
            raise ValueError(f"processes = {self.processes}: must be a multiple of nodes = {self.nodes}")
        if self.processes > 1 and self.accelerate is None:
            raise ValueError(f"processes = {self.processes}: accelerate is null; set a file of config/accelerate/")
        return self
