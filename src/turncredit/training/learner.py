"""The policy, its reference and its critic, and the optimiser steps of one batch.

Algorithm-blind: it sees tokens and their credit. Losses are sums that carry their weights, so any
split into micro-batches has the same gradient. Models stay in evaluation mode: dropout would make
the importance ratio differ from 1 before any update, and would need a random state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from safetensors.torch import load_model, save_model
from torch import Tensor, nn
from transformers import PreTrainedModel

from turncredit.config import TrainingConfig
from turncredit.credit import TokenCredit
from turncredit.errors import NonFiniteError
from turncredit.losses import entropy_loss, kl_k3, policy_loss, value_loss
from turncredit.policy.model import Critic, token_logprobs, token_values
from turncredit.training.batch import Batch, MicroBatch
from turncredit.training.seeding import permutation


def warm_up(step: int, warmup_steps: int) -> float:
    """Share of the learning rate in training step ``step`` (from 0): linear, then constant.

    >>> [warm_up(step, 4) for step in (0, 1, 3, 9)]
    [0.25, 0.5, 1.0, 1.0]
    """
    return min(1.0, (step + 1) / max(1, warmup_steps))


def split(rows: Sequence[int], parts: int, *seed: int | str) -> list[list[int]]:
    """Rows in a seeded order, cut into at most ``parts`` minibatches of like size, none empty."""
    order = [rows[i] for i in permutation(len(rows), *seed)]
    return [sorted(part.tolist()) for part in np.array_split(order, min(parts, len(rows)))]


class Learner:
    """Owner of all weights and optimisers of a run.

    Args:
        policy: trained in place.
        critic: trained in place, or None.
        reference: frozen, or None where KL has no weight.
        settings: the run's training settings.
        device: ``cpu`` or ``cuda``.
    """

    def __init__(self, policy: PreTrainedModel, critic: Critic | None, reference: PreTrainedModel | None,
                 settings: TrainingConfig, device: str = "cpu") -> None:
        self.settings = settings
        self.accelerator = Accelerator(cpu=device == "cpu")
        self.policy, self.policy_optimizer = self._prepare(policy, settings.learning_rate)
        self.critic: Critic | None = None
        if critic is not None:
            self.critic, self.critic_optimizer = self._prepare(critic, settings.critic_learning_rate)
        self.reference = None
        if reference is not None:
            self.reference = reference.requires_grad_(False).eval().to(self.accelerator.device)

    def _prepare(self, model: Any, learning_rate: float) -> tuple[Any, Any]:
        betas = (self.settings.adam_beta1, self.settings.adam_beta2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, betas=betas, weight_decay=0.0)
        model, optimizer = self.accelerator.prepare(model.eval(), optimizer)
        return model, optimizer

    # Log-probabilities and values before an update ---------------------------------------------

    @torch.no_grad()
    def reference_logprobs(self, batch: Batch) -> Tensor | None:
        """``reference_logprob_N`` at the run's temperature, or None without a reference."""
        if self.reference is None:
            return None
        found_N = torch.empty(len(batch.old_logprob_N))
        for micro in self._micro_batches(batch, batch.trained):
            found_N[micro.flat_N.cpu()] = self._logprobs(self.reference, micro)[0].float().cpu()
        return found_N

    @torch.no_grad()
    def values(self, batch: Batch) -> Tensor | None:
        """``value_N``: the return predicted before each loss token; None without a critic."""
        if self.critic is None:
            return None
        found_N = torch.empty(len(batch.old_logprob_N))
        for micro in self._micro_batches(batch, batch.trained):
            value_N = token_values(self.critic, micro.ids_B_T, micro.attention_B_T, micro.loss_mask_B_T)
            found_N[micro.flat_N.cpu()] = value_N.cpu()
        return found_N

    # Update ------------------------------------------------------------------------------------

    def update(self, batch: Batch, credit: TokenCredit, *, step: int, seed: int, kl_in_loss: bool,
               reference_logprob_N: Tensor | None, old_value_N: Tensor | None) -> dict[str, float]:
        """All optimiser steps of one batch; returns their metrics (means over optimiser steps).

        A minibatch's weights are divided by their sum, so that every optimiser step sees a mean.

        Args:
            batch, credit: tokens and their credit.
            step: training step from 0, for the warm-up and the order of rows.
            seed: the run's seed.
            kl_in_loss: whether beta KL(policy || reference) is added to the policy's loss.
            reference_logprob_N, old_value_N: see above.

        Raises:
            NonFiniteError: a log-probability, loss or gradient is NaN or infinite. The weights are
                then those after the last good optimiser step; checkpoints are untouched.
        """
        settings = self.settings
        _set_learning_rate(self.policy_optimizer, settings.learning_rate * warm_up(step, settings.warmup_steps))
        if self.critic is not None:
            _set_learning_rate(self.critic_optimizer,
                               settings.critic_learning_rate * warm_up(step, settings.critic_warmup_steps))
        finite("the sampler's log-probabilities", batch.old_logprob_N)
        finite("credit", credit.positive_N + credit.negative_N)
        reports = []
        for epoch in range(settings.inner_epochs):
            for rows in split(batch.trained, settings.minibatches, seed, "minibatches", step, epoch):
                scale = 1.0 / credit.weight_N[batch.flat(rows)].sum().item()
                micros = self._micro_batches(batch, rows)
                report = self._policy_step(micros, batch, credit, scale, reference_logprob_N if kl_in_loss else None)
                if self.critic is not None and credit.return_N is not None and old_value_N is not None:
                    report |= self._critic_step(self.critic, micros, credit, credit.return_N, old_value_N, scale)
                reports.append(report)
        means = {name: sum(report[name] for report in reports) / len(reports) for name in reports[0]}
        # Only before the first optimiser step are sampler and trainer the same policy.
        return means | {"sampler_trainer_kl": reports[0]["sampler_trainer_kl"]}

    def _policy_step(self, micros: Sequence[MicroBatch], batch: Batch, credit: TokenCredit, scale: float,
                     reference_logprob_N: Tensor | None) -> dict[str, float]:
        """One optimiser step of the policy; its metrics."""
        self.policy_optimizer.zero_grad()
        tokens = sum(len(micro.flat_N) for micro in micros)
        report = dict.fromkeys(("policy_loss", "entropy", "clip_fraction", "sampler_trainer_kl"), 0.0)
        for micro in micros:
            old_N, positive_N, negative_N, weight_N = (
                t[micro.flat_N.cpu()].to(self.accelerator.device)
                for t in (batch.old_logprob_N, credit.positive_N, credit.negative_N, credit.weight_N))
            logprob_N, entropy_N = self._logprobs(self.policy, micro)
            surrogate, metrics = policy_loss(logprob_N, old_N, positive_N * scale, negative_N * scale,
                                             clip_epsilon=self.settings.clip_epsilon)
            loss = surrogate
            if reference_logprob_N is not None:
                reference_N = reference_logprob_N[micro.flat_N.cpu()].to(logprob_N)
                loss = loss + self.settings.kl_coefficient * kl_k3(logprob_N, reference_N, weight_N * scale)
            negative_entropy = entropy_loss(entropy_N, weight_N * scale)
            if self.settings.entropy_coefficient:
                loss = loss + self.settings.entropy_coefficient * negative_entropy
            finite("the policy's loss", loss)
            self.accelerator.backward(loss)
            with torch.no_grad():
                report["policy_loss"] += loss.item()
                report["entropy"] -= negative_entropy.item()
                report["clip_fraction"] += metrics["clipped"].item() / tokens
                drift = kl_k3(old_N, logprob_N, torch.ones_like(old_N)).item()
                report["sampler_trainer_kl"] += max(0.0, drift) / tokens  # rounding may leave -1e-9
        return report | {"grad_norm": self._optimizer_step(self.policy, self.policy_optimizer, "the policy")}

    def _critic_step(self, critic: Critic, micros: Sequence[MicroBatch], credit: TokenCredit, return_N: Tensor,
                     old_value_N: Tensor, scale: float) -> dict[str, float]:
        """One optimiser step of the critic; its metrics."""
        self.critic_optimizer.zero_grad()
        total = 0.0
        for micro in micros:
            old_N, target_N, weight_N = (t[micro.flat_N.cpu()].to(self.accelerator.device)
                                         for t in (old_value_N, return_N, credit.weight_N))
            value_N = token_values(critic, micro.ids_B_T, micro.attention_B_T, micro.loss_mask_B_T)
            loss, _ = value_loss(value_N, old_N, target_N, weight_N * scale, value_clip=self.settings.value_clip)
            finite("the critic's loss", loss)
            self.accelerator.backward(loss)
            total += loss.item()
        return {"value_loss": total,
                "critic_grad_norm": self._optimizer_step(critic, self.critic_optimizer, "the critic")}

    def _optimizer_step(self, model: nn.Module, optimizer: Any, name: str) -> float:
        """Clip, step; the gradient's norm before clipping."""
        norm = float(self.accelerator.clip_grad_norm_(model.parameters(), self.settings.max_grad_norm))
        if not math.isfinite(norm):
            raise NonFiniteError(f"the gradient of {name} is not finite (norm {norm})", _LOWER)
        optimizer.step()
        return norm

    # Forward passes ----------------------------------------------------------------------------

    def _micro_batches(self, batch: Batch, rows: Sequence[int]) -> list[MicroBatch]:
        micros = batch.micro_batches(rows, self.settings.micro_batch_tokens)
        return [micro.to(self.accelerator.device) for micro in micros]

    def _logprobs(self, model: Any, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """Log-probabilities (at the run's temperature) and entropies of the loss tokens."""
        return token_logprobs(model, micro.ids_B_T, micro.attention_B_T, micro.loss_mask_B_T,
                              self.settings.temperature, entropy_gradient=self.settings.entropy_coefficient > 0)

    # State -------------------------------------------------------------------------------------

    def save(self, folder: Path) -> None:
        """Weights (the policy as a Hugging Face folder) and optimisers into ``folder``."""
        self.accelerator.unwrap_model(self.policy).save_pretrained(folder / "policy")
        optimizers = {"policy": self.policy_optimizer.state_dict()}
        if self.critic is not None:
            save_model(self.accelerator.unwrap_model(self.critic), str(folder / "critic.safetensors"))
            optimizers["critic"] = self.critic_optimizer.state_dict()
        torch.save(optimizers, folder / "optimizers.pt")

    def load(self, folder: Path) -> None:
        """Optimisers and critic of ``folder``; the policy was loaded from ``folder/policy`` already."""
        optimizers = torch.load(folder / "optimizers.pt", weights_only=True, map_location=self.accelerator.device)
        self.policy_optimizer.load_state_dict(optimizers["policy"])
        if self.critic is not None:
            load_model(self.accelerator.unwrap_model(self.critic), str(folder / "critic.safetensors"))
            self.critic_optimizer.load_state_dict(optimizers["critic"])


_LOWER = "look at the last metrics rows; a lower learning rate or max_grad_norm may help"


def finite(name: str, value: Tensor) -> None:
    """Refuse NaN and infinity.

    Raises:
        NonFiniteError: naming what is not finite.
    """
    if not bool(torch.isfinite(value).all()):
        raise NonFiniteError(f"{name} is not finite", _LOWER)


def _set_learning_rate(optimizer: Any, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
