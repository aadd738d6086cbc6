"""The policy, its reference and its critic, and the optimiser steps of one batch.

Algorithm-blind: it sees tokens and their credit. Losses are sums that carry their weights, so any
split into micro-batches has the same gradient. Models stay in evaluation mode: dropout would make
the importance ratio differ from 1 before any update, and would need a random state. Several
processes share the forward and backward passes of a batch and take the same step (``layout``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from turncredit.config.runtime import LaunchConfig, Offload
from turncredit.config.training import TrainingConfig
from turncredit.credit.base import TokenCredit
from turncredit.distributed.layout import make_layout, share
from turncredit.distributed.processes import ALONE, Processes
from turncredit.errors import NonFiniteError
from turncredit.losses import entropy_loss, kl_k3, policy_loss, tree_policy_loss, value_loss
from turncredit.policy.model import Critic, token_logprobs, token_values
from turncredit.seeding import permutation
from turncredit.training.batch import Batch, MicroBatch


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


class Scorer(nn.Module):
    """A policy whose forward pass is what training asks of it, so that whatever shards it sees that pass."""

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        self.policy = policy
        self.config = policy.config

    def forward(self, micro: MicroBatch, temperature: float, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        """See ``policy.model.token_logprobs``."""
        logprob_N, entropy_N = token_logprobs(self.policy, micro.ids_B_T, micro.attention_B_T, micro.loss_mask_B_T,
                                              temperature, entropy_gradient=entropy_gradient)
        return logprob_N.clone(), entropy_N  # no view: what shards a module hangs its hooks on what it returns


class Learner:
    """Owner of all weights and optimisers of a run. Processes call each method together.

    Args:
        policy: trained in place.
        critic: trained in place, or None.
        reference: frozen, or None where KL has no weight.
        settings: the run's training settings.
        device: ``cpu`` or ``cuda``.
        launch: precision, gradient checkpointing and what is offloaded.
        processes: who shares the work.

    Attributes:
        policy, critic, reference: the same models; parts of them where weights are sharded.
        layout: where the weights are (``layout.shards``: an engine in this process needs a model of its own).
    """

    def __init__(self, policy: PreTrainedModel, critic: Critic | None, reference: PreTrainedModel | None,
                 settings: TrainingConfig, device: str = "cpu", launch: LaunchConfig | None = None,
                 processes: Processes = ALONE) -> None:
        self.settings, self.processes, self.launch = settings, processes, launch or LaunchConfig()
        self.accelerator = Accelerator(cpu=device == "cpu")
        self.layout = make_layout(self.accelerator, self.launch, processes, settings.max_grad_norm)
        self.policy = policy
        self.scorer, self.policy_optimizer = self._prepare(Scorer(policy), settings.learning_rate)
        self.critic: Critic | None = None
        if critic is not None:
            self.critic, self.critic_optimizer = self._prepare(critic, settings.critic_learning_rate, "critic")
        self.reference = None
        if reference is not None:
            self.reference = self.layout.freeze(Scorer(reference).eval(), "reference")

    def _prepare(self, module: nn.Module, learning_rate: float, part: Offload | None = None) -> tuple[Any, Any]:
        betas = (self.settings.adam_beta1, self.settings.adam_beta2)
        if self.launch.gradient_checkpointing:
            for model in (found for found in module.modules() if isinstance(found, PreTrainedModel)):
                model.gradient_checkpointing_enable({"use_reentrant": False})
        return self.layout.place(
            module.eval(), lambda those: torch.optim.AdamW(those, learning_rate, betas, weight_decay=0.0), part)

    # Log-probabilities and values before an update ---------------------------------------------

    @torch.no_grad()
    def reference_logprobs(self, batch: Batch) -> Tensor | None:
        """``reference_logprob_N`` at the run's temperature, or None without a reference."""
        if self.reference is None:
            return None
        found_N = torch.zeros(len(batch.old_logprob_N))
        with self.layout.awake(self.reference, "reference"):
            for micro, counts in self._micro_batches(batch, batch.trained):
                logprob_N = self._logprobs(self.reference, micro)[0].float().cpu()
                if counts:
                    found_N[micro.flat_N.cpu()] = logprob_N
        return self.processes.total(found_N)

    @torch.no_grad()
    def values(self, batch: Batch) -> Tensor | None:
        """``value_N``: the return predicted before each loss token; None without a critic."""
        if self.critic is None:
            return None
        found_N = torch.zeros(len(batch.old_logprob_N))
        with self.layout.awake(self.critic, "critic"):
            for micro, counts in self._micro_batches(batch, batch.trained):
                value_N = self._values(self.critic, micro).cpu()
                if counts:
                    found_N[micro.flat_N.cpu()] = value_N
        return self.processes.total(found_N)

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
        finite("the advantages", credit.advantage_N)
        reports = []
        with self.processes.waiting():
            for epoch in range(settings.inner_epochs):
                for rows in split(batch.trained, settings.minibatches, seed, "minibatches", step, epoch):
                    flat = batch.flat(rows)
                    scale = 1.0 / credit.weight_N[flat].sum().item()
                    micros = self._micro_batches(batch, rows)
                    report = self._policy_step(micros, batch, credit, scale, len(flat),
                                               reference_logprob_N if kl_in_loss else None)
                    if self.critic is not None and credit.return_N is not None and old_value_N is not None:
                        report |= self._critic_step(self.critic, micros, credit, credit.return_N, old_value_N, scale)
                    reports.append(report)
        means = {name: sum(report[name] for report in reports) / len(reports) for name in reports[0]}
        # Only before the first optimiser step are sampler and trainer the same policy.
        return means | {"sampler_trainer_kl": reports[0]["sampler_trainer_kl"]}

    def _policy_step(self, micros: Sequence[tuple[MicroBatch, bool]], batch: Batch, credit: TokenCredit, scale: float,
                     tokens: int, reference_logprob_N: Tensor | None) -> dict[str, float]:
        """One optimiser step of the policy, on ``tokens`` loss tokens of all processes; its metrics."""
        report = dict.fromkeys(("policy_loss", "entropy", "clip_fraction", "sampler_trainer_kl"), 0.0)
        with self._training(self.scorer, None, self.policy_optimizer):
            for place, (micro, counts) in enumerate(micros, start=1):
                def here(value_N: Tensor, micro: MicroBatch = micro) -> Tensor:
                    return value_N[micro.flat_N.cpu()].to(self.accelerator.device)

                factor = scale if counts else 0.0
                old_N, weight_N = here(batch.old_logprob_N), here(credit.weight_N) * factor
                logprob_N, entropy_N = self._logprobs(self.scorer, micro)
                if credit.shared_N is None:
                    loss, clipped = policy_loss(logprob_N, old_N, here(credit.advantage_N), weight_N,
                                                clip_epsilon=self.settings.clip_epsilon)
                else:
                    positive_N, negative_N = (here(part_N) * factor for part_N in credit.shared_N)
                    loss, clipped = tree_policy_loss(logprob_N, old_N, positive_N, negative_N,
                                                     clip_epsilon=self.settings.clip_epsilon)
                if reference_logprob_N is not None:
                    reference_N = here(reference_logprob_N).to(logprob_N)
                    loss = loss + self.settings.kl_coefficient * kl_k3(logprob_N, reference_N, weight_N)
                negative_entropy = entropy_loss(entropy_N, weight_N)
                if self.settings.entropy_coefficient:
                    loss = loss + self.settings.entropy_coefficient * negative_entropy
                self.layout.backward(loss, last=place == len(micros))
                if counts:
                    with torch.no_grad():
                        report["policy_loss"] += loss.item()
                        report["entropy"] -= negative_entropy.item()
                        report["clip_fraction"] += clipped.item() / tokens
                        drift = kl_k3(old_N, logprob_N, torch.ones_like(old_N)).item()
                        report["sampler_trainer_kl"] += max(0.0, drift) / tokens  # rounding may leave -1e-9
            report = self._total(report)
            finite("the policy's loss", torch.tensor(report["policy_loss"]))
            return report | {"grad_norm": self._optimizer_step(self.scorer, self.policy_optimizer, "the policy")}

    def _critic_step(self, critic: Critic, micros: Sequence[tuple[MicroBatch, bool]], credit: TokenCredit,
                     return_N: Tensor, old_value_N: Tensor, scale: float) -> dict[str, float]:
        """One optimiser step of the critic; its metrics."""
        report = {"value_loss": 0.0}
        with self._training(critic, "critic", self.critic_optimizer):
            for place, (micro, counts) in enumerate(micros, start=1):
                old_N, target_N, weight_N = (t[micro.flat_N.cpu()].to(self.accelerator.device)
                                             for t in (old_value_N, return_N, credit.weight_N))
                loss = value_loss(self._values(critic, micro), old_N, target_N,
                                  weight_N * (scale if counts else 0.0), value_clip=self.settings.value_clip)
                self.layout.backward(loss, last=place == len(micros))
                report["value_loss"] += loss.item() if counts else 0.0
            report = self._total(report)
            finite("the critic's loss", torch.tensor(report["value_loss"]))
            return report | {"critic_grad_norm": self._optimizer_step(critic, self.critic_optimizer, "the critic")}

    @contextmanager
    def _training(self, module: nn.Module, part: Offload | None, optimizer: Any) -> Iterator[None]:
        """One optimiser step: fresh gradients, offloaded parts at hand, layers that compute themselves again.

        transformers recomputes a layer only if the layer is in training mode, which is said here of the
        layer alone: dropout is asked of the modules inside it. Elsewhere a cache may pass through it.
        """
        layers = [found for found in module.modules() if isinstance(found, GradientCheckpointingLayer)]
        with self.layout.awake(module, part, optimizer):
            optimizer.zero_grad()
            for layer in layers:
                layer.training = self.launch.gradient_checkpointing
            try:
                yield
            finally:
                for layer in layers:
                    layer.training = False

    def _total(self, report: dict[str, float]) -> dict[str, float]:
        """Sums over processes; every process then sees the same numbers, and refuses the same."""
        parts = self.processes.gather(report)
        return {name: sum(part[name] for part in parts) for name in report}

    def _optimizer_step(self, model: nn.Module, optimizer: Any, name: str) -> float:
        """Clip, step; the gradient's norm before clipping."""
        norm = self.layout.clip(model)
        if not math.isfinite(norm):
            raise NonFiniteError(f"the gradient of {name} is not finite (norm {norm})", _LOWER)
        optimizer.step()
        return norm

    # Forward passes ----------------------------------------------------------------------------

    def _micro_batches(self, batch: Batch, rows: Sequence[int]) -> list[tuple[MicroBatch, bool]]:
        """This process's share, and whether each counts (see ``layout.share``)."""
        micros = batch.micro_batches(rows, self.settings.micro_batch_tokens)
        return [(micro.to(self.accelerator.device), counts) for micro, counts in share(micros, self.processes)]

    def _logprobs(self, scorer: Any, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """Log-probabilities (at the run's temperature) and entropies of the loss tokens."""
        with self._autocast():
            return scorer(micro, self.settings.temperature, self.settings.entropy_coefficient > 0)

    def _values(self, critic: Critic, micro: MicroBatch) -> Tensor:
        with self._autocast():
            return token_values(critic, micro.ids_B_T, micro.attention_B_T, micro.loss_mask_B_T)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.accelerator.device.type, torch.bfloat16, self.launch.precision == "bfloat16")

    # State -------------------------------------------------------------------------------------

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """The policy's whole weights by name, one at a time, for an engine; all processes go through it together."""
        return self.layout.weights(self.policy)

    def collect(self) -> dict[str, Tensor]:
        """The policy's whole weights in the host's memory of the first process; elsewhere nothing."""
        return self.layout.collect(self.policy)

    def save(self, folder: Path) -> None:
        """Weights (the policy as a Hugging Face folder) and optimisers into ``folder``, the same for any layout.

        All parts are gathered before the first process writes any.
        """
        policy = self.collect()
        optimizers = {"policy": self.layout.optimizer_state(self.policy_optimizer)}
        critic = {}
        if self.critic is not None:
            critic = self.layout.collect(self.critic)
            optimizers["critic"] = self.layout.optimizer_state(self.critic_optimizer)
        self.layout.save_extra(folder)
        if self.processes.first:
            self.policy.save_pretrained(folder / "policy", state_dict=policy)
            if critic:
                save_file(critic, folder / "critic.safetensors")
            torch.save(optimizers, folder / "optimizers.pt")

    def load(self, folder: Path) -> None:
        """Optimisers and critic of ``folder``; the policy was loaded from ``folder/policy`` already."""
        # mapped where every part is copied to a GPU: then no process holds all of it
        optimizers = torch.load(folder / "optimizers.pt", weights_only=True, map_location="cpu",
                                mmap=self.accelerator.device.type == "cuda")
        self.layout.load_optimizer(self.policy_optimizer, optimizers["policy"])
        if self.critic is not None:
            self.layout.load_weights(self.critic, load_file(folder / "critic.safetensors"))
            self.layout.load_optimizer(self.critic_optimizer, optimizers["critic"])
        self.layout.load_extra(folder)


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
