"""Reads ``config/models.yaml``: model shapes, GPUs, and the assumptions of a plan."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from turncredit.config.base import StrictModel, explain, read_mapping
from turncredit.config.data import PolicyConfig
from turncredit.errors import ConfigError, DataError, nearest

MODELS = "models.yaml"


class Gpu(StrictModel):
    """One GPU model, from its data sheet."""

    memory_gib: float = Field(gt=0)
    tflops: float = Field(gt=0)  # dense, bfloat16
    memory_gb_s: float = Field(gt=0)


class Assumptions(StrictModel):
    """Assumptions of a plan; the file gives the source of each."""

    computing_share: float = Field(gt=0, le=1)
    decoding_share: float = Field(gt=0, le=1)
    host_gb_s: float = Field(gt=0)
    disk_gb_s: float = Field(gt=0)
    reserve_gib: float = Field(ge=0)
    prompt_tokens: int = Field(ge=1)
    turns: int = Field(ge=1)
    turn_tokens: int = Field(ge=1)
    observation_share: float = Field(ge=0, le=1)


class Catalogue(StrictModel):
    """The whole file config/models.yaml."""

    models: dict[str, dict[str, Any]]
    gpus: dict[str, Gpu]
    assumptions: Assumptions

    def gpu(self, name: str) -> Gpu:
        """The GPU of that name.

        Raises:
            ConfigError: unknown name.
        """
        if name not in self.gpus:
            raise ConfigError(f"launch.gpu = {name!r}: not a GPU of config/{MODELS}", nearest(name, self.gpus))
        return self.gpus[name]


def load_catalogue(config_dir: Path) -> Catalogue:
    """Read and check ``config/models.yaml``.

    Raises:
        ConfigError: an unreadable file, an unknown key, or a value out of range.
    """
    path = config_dir / MODELS
    try:
        return Catalogue.model_validate(read_mapping(path))
    except ValidationError as error:
        raise ConfigError(f"{path}: {explain(error, Catalogue)}",
                          "correct the key") from error


@dataclass(frozen=True)
class Shape:
    """A model's sizes, counted on the meta device.

    Attributes:
        settings: the keys of its config.json.
        source: where these were read, in words.
        parameters: number of parameters, tied ones counted once.
        layer: parameters of one transformer layer.
        outside: parameters outside the layers: embeddings, last norm and head.
        head: parameters of the output matrix, tied or not; the cost of one token's logits.
        layers, width: number of layers and hidden size.
        cached: numbers that one token adds to the key-value cache, over all layers.
    """

    settings: dict[str, Any]
    source: str
    parameters: int
    layer: int
    outside: int
    head: int
    layers: int
    width: int
    cached: int

    @property
    def backbone(self) -> int:
        """Parameters without an untied head; a critic has these."""
        return self.parameters - (0 if self.settings.get("tie_word_embeddings", True) else self.head)

    @property
    def longest(self) -> int:
        """Length of the longest sequence in tokens."""
        return int(self.settings["max_position_embeddings"])


def shape_of(policy: PolicyConfig, vocabulary: int, catalogue: Catalogue) -> Shape:
    """The shape of a scale's policy.

    A policy without ``path_or_id`` takes its shape from its config section. Otherwise config.json is looked for in
    the folder or the hub's cache, then in ``catalogue``, then on the hub.

    Raises:
        DataError: the policy is in none of them.
    """
    settings, source = _settings(policy, vocabulary, catalogue)
    from turncredit.planning.activations import meta_model  # slow to load

    model = meta_model(settings)
    layers: Any = model.base_model.layers
    config = model.config
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    parameters = sum(p.numel() for p in model.parameters())
    layer = sum(p.numel() for p in layers[0].parameters())
    return Shape(settings, source, parameters, layer, parameters - layer * len(layers),
                 model.get_output_embeddings().weight.numel(), len(layers), config.hidden_size,
                 2 * len(layers) * config.num_key_value_heads * head_size)


def _settings(policy: PolicyConfig, vocabulary: int, catalogue: Catalogue) -> tuple[dict[str, Any], str]:
    if policy.path_or_id is None:
        return {"model_type": "qwen2", "vocab_size": vocabulary, "hidden_size": policy.hidden_size,
                "intermediate_size": policy.intermediate_size, "num_hidden_layers": policy.layers,
                "num_attention_heads": policy.heads, "num_key_value_heads": policy.kv_heads,
                "max_position_embeddings": policy.max_positions, "tie_word_embeddings": True}, "its config section"
    from transformers import AutoConfig

    name = policy.path_or_id
    for here, source in ((True, "its own config.json"), (False, "the hub")):
        try:
            found = AutoConfig.from_pretrained(name, revision=policy.revision, local_files_only=here)
            return found.to_diff_dict() | {"model_type": found.model_type,
                                           "tie_word_embeddings": found.tie_word_embeddings}, source
        except (OSError, ValueError) as error:
            if here and name in catalogue.models:
                return catalogue.models[name], f"config/{MODELS}"
            fault = str(error).strip().partition("\n")[0]
    raise DataError(f"{name}: not in config/{MODELS}, not a folder, and not available from the hub: {fault}",
                    f"add the model to config/{MODELS}, or check the name and the network")
