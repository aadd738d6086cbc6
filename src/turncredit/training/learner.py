"""The learner: policy, reference, critic, their optimisers, and the update from one batch.

The learner does not depend on the algorithm: its inputs are tokens and their credit. Losses are weighted
sums, so every split into micro-batches has the same gradient. Models stay in evaluation mode:
dropout would make the importance ratio differ from 1 before any update, and would need a random
state. Several ranks share the forward and backward passes of a batch and take the same step
(``distributed.layout``).
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
from turncredit.distributed.layout import local_packs, make_layout
from turncredit.distributed.processes import SINGLE_PROCESS, Processes
from turncredit.errors import NonFiniteError
from turncredit.losses import entropy_loss, kl_k3, policy_loss, tree_policy_loss, value_loss
from turncredit.policy.model import Critic, token_logprobs, token_values
from turncredit.seeding import permutation
from turncredit.training.batch import Batch, MicroBatch


def warm_up(step: int, warmup_steps: int) -> float:
    """Factor of the learning rate in training step ``step`` (from 0): linear warm-up, then 1.

    >>> [warm_up(step, 4) for step in (0, 1, 3, 9)]
    [0.25, 0.5, 1.0, 1.0]
    """
    return min(1.0, (step + 1) / max(1, warmup_steps))


def split_minibatches(branches: Sequence[Sequence[int]], count: int, *seed: int | str) -> list[list[int]]:
    """Shuffle branches by ``seed`` and deal their rows to at most ``count`` minibatches, none empty.

    Rows that share a turn are in one minibatch: a shared turn has the weight of all its leaves, and a
    minibatch's weights are scaled by their sum. Minibatches have similar numbers of branches. One tree is
    several branches, so that few questions still make ``count`` optimiser steps.

    >>> [sorted(map(len, split_minibatches([[0, 1, 2], [3], [4, 5]], count, 0))) for count in (1, 3, 9)]
    [[6], [1, 2, 3], [1, 2, 3]]
    """
    order = np.array_split(permutation(len(branches), *seed), min(count, len(branches)))
    return [sorted(row for i in minibatch for row in branches[i]) for minibatch in order]


class Scorer(nn.Module):
    """A policy whose forward pass gives log-probabilities, so that sharding hooks run on the pass of training."""

    def __init__(self, policy: PreTrainedModel) -> None:
        super().__init__()
        self.policy = policy
        self.config = policy.config

    def forward(self, micro: MicroBatch, temperature: float, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
        """See ``policy.model.token_logprobs``."""
        logprob_N, entropy_N = token_logprobs(self.policy, micro.ids_B_T, micro.attention_B_T, micro.loss_mask_B_T,
                                              temperature, entropy_gradient=entropy_gradient)
        return logprob_N.clone(), entropy_N  # no view: FSDP registers its hooks on the outputs


class Learner:
    """Owns all weights and optimisers of a run. All ranks call each method together.

    Args:
        policy: trained in place.
        critic: trained in place, or None.
        reference: frozen, or None if the KL coefficient is 0.
        settings: the run's training settings.
        device: ``cpu`` or ``cuda``.
        launch: precision, gradient checkpointing and offload.
        processes: the run's process group; rank 0 writes files.

    Attributes:
        policy, critic, reference: the same models; sharded if the layout shards weights.
        layout: places the weights (if ``layout.is_sharded``, an engine in this process needs its own model).
    """

    def __init__(self, policy: PreTrainedModel, critic: Critic | None, reference: PreTrainedModel | None,
                 settings: TrainingConfig, device: str = "cpu", launch: LaunchConfig | None = None,
                 processes: Processes = SINGLE_PROCESS) -> None:
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

    def _prepare(self, module: nn.Module, learning_rate: float, component: Offload | None = None) -> tuple[Any, Any]:
        betas = (self.settings.adam_beta1, self.settings.adam_beta2)
        if self.launch.gradient_checkpointing:
            for model in (child for child in module.modules() if isinstance(child, PreTrainedModel)):
                model.gradient_checkpointing_enable({"use_reentrant": False})
        return self.layout.prepare(
            module.eval(), lambda parameters: torch.optim.AdamW(
                parameters, learning_rate, betas, weight_decay=self.settings.weight_decay), component)

    # Log-probabilities and values before an update ---------------------------------------------

    @torch.no_grad()
    def reference_logprobs(self, batch: Batch) -> Tensor | None:
        """Return ``reference_logprob_N`` at the run's temperature, or None without a reference."""
        if self.reference is None:
            return None
        reference_N = torch.zeros(len(batch.old_logprob_N))
        with self.layout.onload(self.reference, "reference"):
            for micro, is_counted in self._micro_batches(batch, batch.trained):
                logprob_N = self._logprobs(self.reference, micro)[0].float().cpu()
                if is_counted:
                    reference_N[micro.flat_N.cpu()] = logprob_N
        return self.processes.all_reduce(reference_N)

    @torch.no_grad()
    def values(self, batch: Batch) -> Tensor | None:
        """Return ``value_M``, the return predicted before each critic token, or None without a critic."""
        if self.critic is None:
            return None
        value_M = torch.zeros(int(batch.value_start_R[-1]))
        with self.layout.onload(self.critic, "critic"):
            for micro, is_counted in self._micro_batches(batch, batch.trained):
                micro_value_M = self._values(self.critic, micro).cpu()
                if is_counted:
                    value_M[micro.flat_M.cpu()] = micro_value_M
        return self.processes.all_reduce(value_M)

    # Update ------------------------------------------------------------------------------------

    def update(self, batch: Batch, credit: TokenCredit, *, step: int, seed: int, kl_in_loss: bool,
               reference_logprob_N: Tensor | None, old_value_M: Tensor | None) -> dict[str, float]:
        """Take all optimiser steps of one batch; return their metrics (means over optimiser steps).

        A minibatch's weights are divided by their sum, so that the loss of every optimiser step is a mean.

        Args:
            batch, credit: tokens and their credit.
            step: training step from 0, for the warm-up and the order of branches.
            seed: the run's seed.
            kl_in_loss: add beta KL(policy || reference) to the policy's loss.
            reference_logprob_N, old_value_M: results of ``reference_logprobs`` and ``values`` for this batch.

        Raises:
            NonFiniteError: a log-probability, loss or gradient is NaN or infinite. The weights stay
                those of the last good optimiser step; checkpoints are untouched.
        """
        settings = self.settings
        _set_learning_rate(self.policy_optimizer, settings.learning_rate * warm_up(step, settings.warmup_steps))
        if self.critic is not None:
            _set_learning_rate(self.critic_optimizer,
                               settings.critic_learning_rate * warm_up(step, settings.critic_warmup_steps))
        check_finite("the sampler's log-probabilities", batch.old_logprob_N)
        check_finite("the advantages", credit.advantage_N)
        reports = []
        with self.processes.network_errors():
            for epoch in range(settings.inner_epochs):
                for rows in split_minibatches(batch.branches, settings.minibatches, seed, "minibatches", step, epoch):
                    flat = batch.flat(rows)
                    loss_scale = 1.0 / credit.weight_N[flat].sum().item()
                    micros = self._micro_batches(batch, rows)
                    report = self._policy_step(micros, batch, credit, loss_scale, len(flat),
                                               reference_logprob_N if kl_in_loss else None)
                    if self.critic is not None and old_value_M is not None:
                        report |= self._critic_step(self.critic, micros, credit, old_value_M, batch.value_flat(rows))
                    reports.append(report)
        means = {name: sum(report[name] for report in reports) / len(reports) for name in reports[0]}
        # Sampler and trainer are the same policy only before the first optimiser step.
        return means | {"sampler_trainer_kl": reports[0]["sampler_trainer_kl"]}

    def _policy_step(self, micros: Sequence[tuple[MicroBatch, bool]], batch: Batch, credit: TokenCredit,
                     loss_scale: float, tokens: int, reference_logprob_N: Tensor | None) -> dict[str, float]:
        """Take one optimiser step of the policy, on ``tokens`` loss tokens over all ranks; return its metrics."""
        report = dict.fromkeys(("policy_loss", "entropy", "clip_fraction", "sampler_trainer_kl"), 0.0)
        with self._training(self.scorer, None, self.policy_optimizer):
            for index, (micro, is_counted) in enumerate(micros, start=1):
                def select(flat_N: Tensor, micro: MicroBatch = micro) -> Tensor:
                    return flat_N[micro.flat_N.cpu()].to(self.accelerator.device)

                scale = loss_scale if is_counted else 0.0
                old_N, weight_N = select(batch.old_logprob_N), select(credit.weight_N) * scale
                logprob_N, entropy_N = self._logprobs(self.scorer, micro)
                if credit.signed_sums_N is None:
                    loss, clipped = policy_loss(logprob_N, old_N, select(credit.advantage_N), weight_N,
                                                clip_epsilon=self.settings.clip_epsilon)
                else:
                    positive_N, negative_N = (select(part_N) * scale for part_N in credit.signed_sums_N)
                    loss, clipped = tree_policy_loss(logprob_N, old_N, positive_N, negative_N,
                                                     clip_epsilon=self.settings.clip_epsilon)
                if reference_logprob_N is not None:
                    reference_N = select(reference_logprob_N).to(logprob_N)
                    loss = loss + self.settings.kl_coefficient * kl_k3(logprob_N, reference_N, weight_N)
                negative_entropy = entropy_loss(entropy_N, weight_N)
                if self.settings.entropy_coefficient:
                    loss = loss + self.settings.entropy_coefficient * negative_entropy
                self.layout.backward(loss, last=index == len(micros))
                if is_counted:
                    with torch.no_grad():
                        report["policy_loss"] += loss.item()
                        report["entropy"] -= negative_entropy.item()
                        report["clip_fraction"] += clipped.item() / tokens
                        drift = kl_k3(old_N, logprob_N, torch.ones_like(old_N)).item()
                        report["sampler_trainer_kl"] += max(0.0, drift) / tokens  # rounding may give -1e-9
            report = self._total(report)
            check_finite("the policy's loss", torch.tensor(report["policy_loss"]))
            return report | {"grad_norm": self._optimizer_step(self.scorer, self.policy_optimizer, "the policy")}

    def _critic_step(self, critic: Critic, micros: Sequence[tuple[MicroBatch, bool]], credit: TokenCredit,
                     old_value_M: Tensor, flat_M: Tensor) -> dict[str, float]:
        """Take one optimiser step of the critic, on the critic tokens ``flat_M`` over all ranks; return its metrics."""
        return_M, weight_M = credit.return_M, credit.value_weight_M
        if return_M is None or weight_M is None:
            raise ValueError("an estimator with a critic gives return_M and value_weight_M")
        loss_scale = 1.0 / weight_M[flat_M].sum().item()
        report = {"value_loss": 0.0}
        with self._training(critic, "critic", self.critic_optimizer):
            for index, (micro, is_counted) in enumerate(micros, start=1):
                old, target, weight = (t[micro.flat_M.cpu()].to(self.accelerator.device)
                                       for t in (old_value_M, return_M, weight_M))
                loss = value_loss(self._values(critic, micro), old, target,
                                  weight * (loss_scale if is_counted else 0.0), value_clip=self.settings.value_clip)
                self.layout.backward(loss, last=index == len(micros))
                report["value_loss"] += loss.item() if is_counted else 0.0
            report = self._total(report)
            check_finite("the critic's loss", torch.tensor(report["value_loss"]))
            return report | {"critic_grad_norm": self._optimizer_step(critic, self.critic_optimizer, "the critic")}

    @contextmanager
    def _training(self, module: nn.Module, component: Offload | None, optimizer: Any) -> Iterator[None]:
        """Set up one optimiser step: zero gradients, onloaded weights, gradient checkpointing.

        transformers recomputes a layer only if the layer is in training mode. Only the layer itself is
        set to it: dropout reads the mode of the modules inside. Afterwards the mode is reset, because a
        layer in training mode does not use a key-value cache.
        """
        layers = [child for child in module.modules() if isinstance(child, GradientCheckpointingLayer)]
        with self.layout.onload(module, component, optimizer):
            optimizer.zero_grad()
            for layer in layers:
                layer.training = self.launch.gradient_checkpointing
            try:
                yield
            finally:
                for layer in layers:
                    layer.training = False

    def _total(self, report: dict[str, float]) -> dict[str, float]:
        """Sum a report over ranks, so that all ranks see the same numbers and raise the same errors."""
        reports = self.processes.all_gather(report)
        return {name: sum(other[name] for other in reports) for name in report}

    def _optimizer_step(self, model: nn.Module, optimizer: Any, name: str) -> float:
        """Clip the gradient and take the step; return the gradient's norm before clipping."""
        norm = self.layout.clip_gradients(model)
        if not math.isfinite(norm):
            raise NonFiniteError(f"the gradient of {name} is not finite (norm {norm})", _REMEDY)
        optimizer.step()
        return norm

    # Forward passes ----------------------------------------------------------------------------

    def _micro_batches(self, batch: Batch, rows: Sequence[int]) -> list[tuple[MicroBatch, bool]]:
        """This rank's micro-batches, and whether each is counted or only repeated (see ``layout.local_packs``)."""
        micros = batch.micro_batches(rows, self.settings.micro_batch_tokens)
        return [(micro.to(self.accelerator.device), is_counted)
                for micro, is_counted in local_packs(micros, self.processes)]

    def _logprobs(self, scorer: Any, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """Return log-probabilities (at the run's temperature) and entropies of the loss tokens."""
        with self._autocast():
            return scorer(micro, self.settings.temperature, self.settings.entropy_coefficient > 0)

    def _values(self, critic: Critic, micro: MicroBatch) -> Tensor:
        with self._autocast():
            return token_values(critic, micro.ids_B_T, micro.attention_B_T, micro.value_mask_B_T)

    def _autocast(self) -> torch.autocast:
        return torch.autocast(self.accelerator.device.type, torch.bfloat16, self.launch.precision == "bfloat16")

    # State -------------------------------------------------------------------------------------

    def full_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the policy's full weights by name, one at a time; all ranks must iterate to the end."""
        return self.layout.full_weights(self.policy)

    def gather_weights(self) -> dict[str, Tensor]:
        """Return the policy's full weights in CPU memory on rank 0, {} on other ranks."""
        return self.layout.gather_weights(self.policy)

    def save(self, folder: Path) -> None:
        """Write weights (the policy as a Hugging Face folder) and optimisers; the format is the same for all layouts.

        Everything is gathered before rank 0 writes.
        """
        policy = self.gather_weights()
        optimizers = {"policy": self.layout.optimizer_state(self.policy_optimizer)}
        critic = {}
        if self.critic is not None:
            critic = self.layout.gather_weights(self.critic)
            optimizers["critic"] = self.layout.optimizer_state(self.critic_optimizer)
        self.layout.save_extra(folder)
        if self.processes.is_main:
            self.policy.save_pretrained(folder / "policy", state_dict=policy)
            if critic:
                save_file(critic, folder / "critic.safetensors")
            torch.save(optimizers, folder / "optimizers.pt")

    def load(self, folder: Path) -> None:
        """Load optimisers and critic from ``folder``; the policy was made from ``folder/policy``."""
        # memory-mapped if all tensors are copied to a GPU: then no process holds the whole file
        optimizers = torch.load(folder / "optimizers.pt", weights_only=True, map_location="cpu",
                                mmap=self.accelerator.device.type == "cuda")
        self.layout.load_optimizer(self.policy_optimizer, optimizers["policy"])
        if self.critic is not None:
            self.layout.load_weights(self.critic, load_file(folder / "critic.safetensors"))
            self.layout.load_optimizer(self.critic_optimizer, optimizers["critic"])
        self.layout.load_extra(folder)


_REMEDY = "see the last rows of metrics.csv; try a lower training.learning_rate or training.max_grad_norm"


def check_finite(name: str, value: Tensor, remedy: str = _REMEDY) -> None:
    """Check that a tensor has no NaN and no infinity.

    Args:
        name: what the tensor is, for the error message.
        value: tensor of any shape.
        remedy: what the user can do, for the error message.

    Raises:
        NonFiniteError: a number is NaN or infinite.
    """
    if not bool(torch.isfinite(value).all()):
        raise NonFiniteError(f"{name} is not finite", remedy)


def _set_learning_rate(optimizer: Any, learning_rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
