"""Policy and critic: make, load, save; log-probabilities and values at loss tokens.

Padding may be on either side: positions are computed from the attention mask. Logits are computed
only where ``loss_mask`` is 1.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase, Qwen2Config

from turncredit.config.data import PolicyConfig
from turncredit.errors import CheckpointError, ConfigError, DataError
from turncredit.files import atomic_folder


def make_tiny_policy(config: PolicyConfig, vocab_size: int, seed: int, *, tied: bool = True) -> PreTrainedModel:
    """Make a Qwen2 model with random weights from ``seed``; the global random state does not change.

    Args:
        config: sizes of the model.
        vocab_size: the tokenizer's length.
        seed: non-negative; the same seed gives the same weights.
        tied: input and output embeddings share one matrix.
    """
    if config.hidden_size % config.heads or config.heads % config.kv_heads:
        raise ConfigError(f"policy: hidden_size = {config.hidden_size}, heads = {config.heads}, "
                          f"kv_heads = {config.kv_heads} do not fit together",
                          "heads must divide hidden_size, and kv_heads must divide heads")
    sizes = Qwen2Config(
        vocab_size=vocab_size, hidden_size=config.hidden_size, num_hidden_layers=config.layers,
        num_attention_heads=config.heads, num_key_value_heads=config.kv_heads,
        intermediate_size=config.intermediate_size, max_position_embeddings=config.max_positions,
        tie_word_embeddings=tied, attention_dropout=0.0,
        initializer_range=config.hidden_size**-0.5,  # the default 0.02 is for wide models
        bos_token_id=None, eos_token_id=None, pad_token_id=None)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(sizes, attn_implementation="sdpa").eval()


def load_policy(path_or_id: str | Path, device: str = "cpu") -> PreTrainedModel:
    """Load a causal language model from a folder or hub id, in float32 and evaluation mode.

    Raises:
        CheckpointError: the folder is missing or damaged, or weights are missing.
        DataError: the hub id cannot be downloaded.
    """
    folder = Path(path_or_id)
    local = folder.is_dir()
    if not local and (isinstance(path_or_id, Path) or str(path_or_id).count("/") != 1):
        raise CheckpointError(f"{folder}: no such policy folder",
                              f"make it: snakemake --cores 2 {folder}; or give a hub id 'owner/name'")
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(path_or_id), dtype=torch.float32, attn_implementation="sdpa", output_loading_info=True)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        first = str(error).strip().partition("\n")[0]
        if local:
            raise CheckpointError(f"{folder}: the policy cannot be loaded: {first}",
                                  f"make it again: snakemake --cores 2 --force {folder}") from error
        raise DataError(f"{path_or_id}: no such folder, and the download from the hub failed: {first}",
                        "check the name and the network") from error
    model, report = loaded
    absent = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if absent:
        raise CheckpointError(f"{path_or_id}: weights are missing or have another shape: {', '.join(absent[:3])}",
                              f"make it again: snakemake --cores 2 --force {folder}" if local else "use another policy")
    model = model.to(device).eval()
    _check_own_logits(model, str(path_or_id))
    return model


def _check_own_logits(model: PreTrainedModel, name: str) -> None:
    """Compare the logits that training computes with the model's own, which may be scaled.

    Raises:
        CheckpointError: they differ.
    """
    ids_B_T = torch.arange(4, device=model.device)[None]
    with torch.no_grad():
        own_T_V = model(input_ids=ids_B_T, use_cache=False).logits[0].float()
        ours_T_V = head_logits(model, hidden_states(model.base_model, ids_B_T, torch.ones_like(ids_B_T))[0]).float()
    difference = (own_T_V - ours_T_V).abs().max()
    if not difference <= 1e-3 * own_T_V.abs().max().clamp(min=1.0):
        raise CheckpointError(
            f"{name}: {type(model).__name__} changes the output of its head (by up to {difference:.2g}): "
            "log-probabilities in training would differ from those of sampling",
            "use a model whose logits are those of its head, such as Qwen2.5")


def save_policy(model: PreTrainedModel, folder: Path, tokenizer: PreTrainedTokenizerBase | None = None,
                weights: Mapping[str, Tensor] | None = None) -> None:
    """Save a model (and its tokenizer) as a folder, atomically.

    Args:
        model: its configuration is saved, and its weights unless ``weights`` are given.
        folder: replaced if it exists.
        tokenizer: saved in the same folder.
        weights: the full weights by name, if the model itself holds only shards.

    Raises:
        DataError: the disk is full or the folder is not writable.
    """
    with atomic_folder(folder) as fresh:
        model.save_pretrained(fresh, state_dict=None if weights is None else dict(weights))
        if tokenizer is not None:
            tokenizer.save_pretrained(fresh)


class Critic(nn.Module):
    """A value function: a copy of the policy's backbone and a linear head that is initially 0.

    The value at index t predicts the return *before* token t is emitted, from the hidden state of
    token t - 1.
    """

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        self.backbone = copy.deepcopy(policy.base_model)
        self.head = nn.Linear(policy.config.hidden_size, 1, device=policy.device, dtype=policy.dtype)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, ids_B_T: Tensor, attention_B_T: Tensor) -> Tensor:
        """Return values [B, T], float32; the value at index 0, which has no previous token, is 0."""
        hidden_B_T_H = hidden_states(self.backbone, ids_B_T, attention_B_T)
        values_B_T = self.head(hidden_B_T_H).squeeze(-1).float()
        return nn.functional.pad(values_B_T[:, :-1], (1, 0))


def token_values(critic: Critic, ids_B_T: Tensor, attention_B_T: Tensor, value_mask_B_T: Tensor) -> Tensor:
    """Return the values [M] of the tokens of a mask, row-major (Eq. 8: V_t, before token t is emitted)."""
    _check_mask(value_mask_B_T)
    return critic(ids_B_T, attention_B_T)[value_mask_B_T.bool()]


def token_logprobs(model: PreTrainedModel, ids_B_T: Tensor, attention_B_T: Tensor, loss_mask_B_T: Tensor,
                   temperature: float, *, entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
    """Return log-probability and entropy of the policy at the loss tokens.

    Args:
        model: a causal language model.
        ids_B_T: token ids, padded on any side.
        attention_B_T: 1 on real tokens, 0 on padding.
        loss_mask_B_T: 1 on the loss tokens; logits are computed only for these.
        temperature: above 0, that of sampling; log-probabilities are log softmax(logits / temperature).
        entropy_gradient: compute gradients of the entropy (slower).

    Returns:
        logprob_N, entropy_N (nats, float32): N = loss_mask.sum(), row-major; the entry of token t
        belongs to p(. | ids[<t]).
    """
    _check_mask(loss_mask_B_T)
    hidden_B_T_H = hidden_states(model.base_model, ids_B_T, attention_B_T)
    predicts_B_T = loss_mask_B_T[:, 1:].bool()
    return logprobs_of(model, hidden_B_T_H[:, :-1][predicts_B_T], ids_B_T[:, 1:][predicts_B_T], temperature,
                       entropy_gradient=entropy_gradient)


def logprobs_of(model: PreTrainedModel, hidden_N_H: Tensor, ids_N: Tensor, temperature: float, *,
                entropy_gradient: bool = False) -> tuple[Tensor, Tensor]:
    """Return ``logprob_N`` of the tokens after the given hidden states, and ``entropy_N``; see ``token_logprobs``."""
    log_p_N_V = (head_logits(model, hidden_N_H) / temperature).log_softmax(-1)
    logprob_N = log_p_N_V.gather(-1, ids_N.unsqueeze(-1)).squeeze(-1)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy_N = -(log_p_N_V.exp() * log_p_N_V).sum(-1)
    return logprob_N, entropy_N


def head_logits(model: PreTrainedModel, hidden: Tensor) -> Tensor:
    """Return logits (float32) of hidden states [..., H], computed by the model's output embedding.

    Raises:
        ConfigError: the model transforms its logits further (soft-capping).
    """
    if getattr(model.config, "final_logit_softcapping", None):
        raise ConfigError(f"{type(model).__name__} soft-caps its logits, which is not supported", "use another policy")
    return model.get_output_embeddings()(hidden).float()


def hidden_states(backbone: nn.Module, ids_B_T: Tensor, attention_B_T: Tensor) -> Tensor:
    """Return the last hidden states [B, T, H]; padding has no position."""
    position_B_T = (attention_B_T.long().cumsum(-1) - 1).clamp(min=0)
    output = backbone(input_ids=ids_B_T, attention_mask=attention_B_T, position_ids=position_B_T, use_cache=False)
    return output.last_hidden_state


def _check_mask(mask_B_T: Tensor) -> None:
    if bool(mask_B_T[:, 0].any()):
        raise ValueError("the first token of a row has no previous token, so it has no log-probability and no value")
