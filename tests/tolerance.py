"""Tolerances for float32 results, derived from the machine epsilon, the length of the sums and their magnitude.

Two correct computations of one number differ, since they add in another order: with a cache or
without, in another batch, with other vector instructions. ``assert_close`` allows this and no more.

**A sum.** Let s = sum of ``terms`` products w_i x_i, added one after another in float32. Each product
and each partial sum is rounded by at most eps / 2 of its size: an error of standard deviation
eps / sqrt(12) of it, for rounding errors are spread evenly. With terms of random signs the partial sum
s_k has about k w^2 x^2 for its square, so that the errors of all partial sums and products have the
standard deviation eps / sqrt(12) sqrt(terms / 2 + 1) scale, where ``scale`` is the norm of the
products, sqrt(sum (w_i x_i)^2). With terms of one sign it is less than eps / sqrt(12) sqrt(terms / 3 + 1)
times ``scale`` = |s|. The difference of two such computations has sqrt(2) times this error: about
0.3 eps sqrt(terms) scale. The bound is ::

    SIGMAS 0.3 eps (sqrt(terms) scale + |expected|),  SIGMAS = 7

where the second part is the rounding of the results and of the functions behind them (log, exp, a
quotient), which are off by a few units of their last place. Seven standard deviations are never
reached by chance; blocked sums of vector instructions stay far below.

**A network.** The first layer's rounding passes through all later ones, which may enlarge it: where
attention scores are large, softmax turns an absolute error of a score into a relative error of its
output. To first order a rounding error acts as a relative change of the numbers that are
multiplied, so ``sensitivity`` measures the change of the results under random relative changes of
all weights: for one sum this is the norm of the products again. It is the ``scale``; the length of
the longest sum on the way (``longest_sum``) is the number of ``terms``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn

EPSILON = torch.finfo(torch.float32).eps
SIGMAS = 7
_DEVIATION = 0.3  # of the difference of two sums, in units of eps sqrt(terms) scale
_STEP = 2.0**-10  # of the weights: far above rounding, and small enough that the change is linear
_DRAWS = 4


def bound(terms: int, scale: float) -> float:
    """How far two float32 computations of a sum may differ; see the module."""
    return SIGMAS * _DEVIATION * EPSILON * math.sqrt(terms) * scale


def error_ratio(actual: object, expected: object, *, terms: int = 1, scale: float | None = None) -> float:
    """The largest difference as a multiple of its bound.

    Args:
        actual, expected: numbers, sequences, arrays or tensors of one shape.
        terms: the length of the longest sum behind each number.
        scale: the magnitude of these sums' terms and partial sums (see the module); by default the
            largest expected magnitude, which suits sums without cancellation.
    """
    left, right = (torch.as_tensor(value).detach().double() for value in (actual, expected))
    assert left.shape == right.shape, f"shapes differ: {tuple(left.shape)} and {tuple(right.shape)}"
    assert left.numel(), "nothing to compare"
    largest = right.abs().max().item() if scale is None else scale
    allowed = bound(terms, largest) + bound(1, 1.0) * right.abs() + torch.finfo(torch.float32).smallest_normal
    ratio = ((left - right).abs() / allowed).max().item()
    return math.inf if math.isnan(ratio) else ratio


def assert_close(actual: object, expected: object, *, terms: int = 1, scale: float | None = None) -> None:
    """Assert that two float32 results are the same but for rounding; arguments as in ``error_ratio``."""
    ratio = error_ratio(actual, expected, terms=terms, scale=scale)
    assert ratio <= 1, f"off by {ratio:.3g} times the bound ({terms=}, {scale=}):\n{actual}\n{expected}"


def longest_sum(module: nn.Module, *others: int) -> int:
    """The length of the longest sum in a forward pass: the largest input of a layer, or one of ``others``."""
    return max(*others, *(weight.shape[-1] for weight in module.parameters() if weight.ndim == 2))


@torch.no_grad()
def sensitivity(compute: Callable[[], Sequence[Tensor]], weights: Iterable[Tensor]) -> list[float]:
    """How much results move for each unit of a random relative change of all weights.

    Args:
        compute: computes the results from the weights as they are.
        weights: changed in place meanwhile, and put back; ``compute`` may change them too.

    Returns:
        for each result its ``scale``: the root mean square change over draws, largest over entries.
    """
    own = list(weights)
    kept = [weight.clone() for weight in own]
    generator = torch.Generator().manual_seed(0)

    def results(step: float) -> list[Tensor]:
        try:
            for weight in own:
                weight.mul_(1 + step * torch.randn(weight.shape, generator=generator))
            with torch.enable_grad():
                return [result.detach().double().clone() for result in compute()]
        finally:
            for weight, old in zip(own, kept, strict=True):
                weight.copy_(old)

    before = results(0.0)
    total = [torch.zeros_like(result) for result in before]
    for _ in range(_DRAWS):
        for sum_, start, moved in zip(total, before, results(_STEP), strict=True):
            sum_ += ((moved - start) / _STEP).square() / _DRAWS
    return [sum_.max().sqrt().item() for sum_ in total]
