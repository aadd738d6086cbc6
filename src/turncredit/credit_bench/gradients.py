"""The policy gradient of one batch under several credits: one forward pass, one backward pass for each credit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from turncredit.config.training import TrainingConfig
from turncredit.credit.base import TokenCredit
from turncredit.losses import policy_loss, tree_policy_loss
from turncredit.policy.model import token_logprobs
from turncredit.seeding import derive_seed
from turncredit.training.batch import Batch, MicroBatch


@dataclass(frozen=True, slots=True)
class GradientSpace:
    """Where gradients are measured: all parameters of a policy, or a fixed random subset of coordinates.

    On a random subset of coordinates inner products keep their expected proportions, so cosines and signal-to-noise
    ratios are estimated, not changed.

    Attributes:
        policy: the model.
        chosen_D: indices of the coordinates among all parameters, ascending; None: all of them.
    """

    policy: PreTrainedModel
    chosen_D: Tensor | None

    @classmethod
    def of(cls, policy: PreTrainedModel, most: int) -> GradientSpace:
        """All parameters, or ``most`` of them if there are more; the choice depends on their number only."""
        total = sum(parameter.numel() for parameter in policy.parameters())
        if total <= most:
            return cls(policy, None)
        generator = torch.Generator().manual_seed(derive_seed("credit bench", "coordinates", total))
        return cls(policy, torch.randperm(total, generator=generator)[:most].sort().values)

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return sum(p.numel() for p in self.policy.parameters()) if self.chosen_D is None else len(self.chosen_D)

    def flat(self, gradients: Sequence[Tensor]) -> Tensor:
        """The gradients of all parameters as one vector of shape (D,), float32 on the CPU."""
        whole = torch.cat([gradient.detach().reshape(-1).float().cpu() for gradient in gradients])
        return whole if self.chosen_D is None else whole[self.chosen_D]


def policy_gradients(space: GradientSpace, batch: Batch, credits: Sequence[TokenCredit],
                     settings: TrainingConfig) -> Tensor:
    """The negative gradient of the policy's loss at ratio 1, under each credit.

    The loss is that of training (``losses``) without its KL and entropy terms.

    Args:
        space: where gradients are measured.
        batch: the tokens.
        credits: credits of the same batch.
        settings: temperature, clip and size of the micro-batches.

    Returns:
        ``gradient_C_D``, float32.
    """
    gradient_C_D = torch.zeros(len(credits), space.size)
    parameters = list(space.policy.parameters())
    for micro in batch.micro_batches(batch.trained, settings.micro_batch_tokens):
        on_device = micro.to(space.policy.device)
        logprob_N, _ = token_logprobs(space.policy, on_device.ids_B_T, on_device.attention_B_T,
                                      on_device.loss_mask_B_T, settings.temperature)
        for c, credit in enumerate(credits):
            loss = _loss(logprob_N, credit, micro, settings.clip_epsilon)
            gradients = torch.autograd.grad(loss, parameters, retain_graph=c + 1 < len(credits))
            gradient_C_D[c] -= space.flat(gradients)
    return gradient_C_D


def _loss(logprob_N: Tensor, credit: TokenCredit, micro: MicroBatch, clip_epsilon: float) -> Tensor:
    """The loss of a micro-batch for the policy that sampled it."""
    def select(value_N: Tensor) -> Tensor:
        return value_N[micro.flat_N].to(logprob_N)

    old_N = logprob_N.detach()
    if credit.signed_sums_N is None:
        return policy_loss(logprob_N, old_N, select(credit.advantage_N), select(credit.weight_N),
                           clip_epsilon=clip_epsilon)[0]
    positive_N, negative_N = map(select, credit.signed_sums_N)
    return tree_policy_loss(logprob_N, old_N, positive_N, negative_N, clip_epsilon=clip_epsilon)[0]
