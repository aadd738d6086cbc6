"""Statistics of gradients: cosines of an arm's batches with the true gradients, and signal-to-noise ratios.

All but ``predicted_change`` are functions of inner products, so gradients of any size are first reduced to small
matrices. Squared lengths are estimated from products of *different* batches, which noise does not inflate. Standard
errors are jackknifed over batches and over the blocks of the true gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.float64]


class Measured(NamedTuple):
    """A number and its standard error; NaN where the samples do not determine it."""

    value: float
    error: float


UNKNOWN = Measured(float("nan"), float("nan"))


@dataclass(frozen=True, slots=True)
class Products:
    """Inner products of an arm's gradients with one another and with one true gradient's blocks.

    Attributes:
        arm_B_B: of the batches with one another.
        cross_B_H: of the batches with the blocks.
        truth_H_H: of the blocks with one another.
    """

    arm_B_B: Array
    cross_B_H: Array
    truth_H_H: Array

    @classmethod
    def of(cls, gradient_B_D: Tensor, truth_H_D: Tensor) -> Products:
        """The inner products of gradients, in float64."""
        a, t = gradient_B_D.double(), truth_H_D.double()
        return cls((a @ a.T).numpy(), (a @ t.T).numpy(), (t @ t.T).numpy())

    def without(self, batch: int | None = None, block: int | None = None) -> Products:
        """The same products without one batch or one block."""
        b = np.delete(np.arange(len(self.arm_B_B)), [] if batch is None else [batch])
        h = np.delete(np.arange(len(self.truth_H_H)), [] if block is None else [block])
        return Products(self.arm_B_B[np.ix_(b, b)], self.cross_B_H[np.ix_(b, h)], self.truth_H_H[np.ix_(h, h)])


def jackknife(statistic: Callable[[Products], float], products: Products) -> Measured:
    """A statistic and its standard error over batches and over blocks."""
    batches = [statistic(products.without(batch=b)) for b in range(len(products.arm_B_B))]
    blocks = [statistic(products.without(block=h)) for h in range(len(products.truth_H_H))]
    return Measured(statistic(products), float(np.hypot(spread(batches), spread(blocks))))


def spread(left_out: list[float]) -> float:
    """Jackknife standard error of a statistic, from its values with one part left out at a time."""
    values = np.array(left_out)
    return float(np.sqrt((len(values) - 1) * values.var()))


def squared_length(gram_B_B: Array) -> float:
    """|E g|^2 without bias: the mean product of two different members; NaN for fewer than two.

    >>> squared_length(np.array([[9.0, 1.0], [1.0, 7.0]]))
    1.0
    """
    n = len(gram_B_B)
    return float((gram_B_B.sum() - np.trace(gram_B_B)) / (n * (n - 1))) if n > 1 else float("nan")


def cosine_of_means(products: Products) -> float:
    """Cosine of the arm's expected gradient with the true one, corrected for the noise of both.

    Both squared lengths are those of expectations (correction for attenuation). NaN where one of them is not above 0,
    i.e. where the samples do not show that there is a gradient. Noise may give values beyond 1.
    """
    lengths = squared_length(products.arm_B_B), squared_length(products.truth_H_H)
    if not min(lengths) > 0:
        return float("nan")
    return float(products.cross_B_H.mean() / np.sqrt(lengths[0] * lengths[1]))


def cosine_of_batches(products: Products) -> float:
    """Mean cosine of a single batch's gradient with the true one, corrected for the noise of the true gradient only."""
    length, norm_B = squared_length(products.truth_H_H), np.sqrt(np.diag(products.arm_B_B))
    if not length > 0 or not norm_B.any():
        return float("nan")
    cosine_B = np.divide(products.cross_B_H.mean(axis=1), norm_B, out=np.zeros_like(norm_B), where=norm_B > 0)
    return float(cosine_B.mean() / np.sqrt(length))


def snr(products: Products, tokens: float) -> float:
    """Signal-to-noise ratio per 1,000 sampled tokens: |E g|^2 over the trace of the covariance.

    Args:
        products: of the arm's batches.
        tokens: sampled tokens of a batch; noise falls as 1 / tokens.
    """
    signal = squared_length(products.arm_B_B)
    noise = float(np.diag(products.arm_B_B).mean()) - signal
    return signal / noise * 1000 / tokens if noise > 0 else float("nan")


def snr_along(products: Products, tokens: float) -> float:
    """``snr`` of the gradient's component along the true gradient."""
    along_B = products.cross_B_H.mean(axis=1)
    noise = along_B.var(ddof=1)
    signal = squared_length(np.outer(along_B, along_B))
    return float(signal / noise * 1000 / tokens) if noise > 0 else float("nan")


def halves_cosine(truth_H_H: Array) -> float:
    """Cosine of the means of the even and the odd blocks: the reliability of an estimate from half of the episodes."""
    even, odd = np.arange(0, len(truth_H_H), 2), np.arange(1, len(truth_H_H), 2)
    lengths = truth_H_H[np.ix_(even, even)].mean() * truth_H_H[np.ix_(odd, odd)].mean()
    return float(truth_H_H[np.ix_(even, odd)].mean() / np.sqrt(lengths)) if lengths > 0 else float("nan")


def reliability(halves: float) -> float:
    """Spearman and Brown's reliability of the whole from that of its halves, 2 r / (1 + r).

    Noise shrinks a plain cosine with the estimated gradient by the square root of this.

    >>> reliability(0.5)
    0.6666666666666666
    """
    return 2 * halves / (1 + halves)


def predicted_change(gradient_B_D: Tensor, truth_H_D: Tensor, *, learning_rate: float, max_norm: float,
                     share: float = 1.0) -> Measured:
    """The first-order change of a target in one step of Adam along an arm's gradient.

    Batches are clipped as in training. Adam divides the mean gradient by the root of the mean square, here those over
    the batches, so the step is that of Adam once its averages have settled.

    Args:
        gradient_B_D: the arm's gradients.
        truth_H_D: blocks of the target's true gradient.
        learning_rate, max_norm: of training.
        share: coordinates measured as a share of all parameters.
    """
    norm_B = gradient_B_D.double().norm(dim=1) / share**0.5
    clipped_B_D = gradient_B_D * (max_norm / norm_B.clamp(min=max_norm)).float()[:, None]
    first_D, second_D = clipped_B_D.sum(0), clipped_B_D.square().sum(0)
    truth_D, batches = truth_H_D.mean(0), len(gradient_B_D)

    def change(sum_D: Tensor, square_D: Tensor, count: int, along_D: Tensor) -> float:
        step_D = (sum_D / count) / ((square_D.clamp(min=0) / count).sqrt() + 1e-8)
        return float(learning_rate * (step_D * along_D).sum(dtype=torch.float64) / share)

    value = change(first_D, second_D, batches, truth_D)
    over_batches = [change(first_D - row_D, second_D - row_D.square(), batches - 1, truth_D) for row_D in clipped_B_D]
    block_H = [change(first_D, second_D, batches, block_D) for block_D in truth_H_D]
    over_blocks = float(np.std(block_H, ddof=1) / np.sqrt(len(block_H)))
    return Measured(value, float(np.hypot(spread(over_batches), over_blocks)))
