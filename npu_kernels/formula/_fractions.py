"""Weights as simple fractions. Needs torch only."""

from __future__ import annotations

import torch
from torch import Tensor

from npu_kernels._common.checks import check_denominator, check_floating

# From this size on the numbers of float64 are at least 1/128 apart: too far for fractions.
FRACTION_LIMIT = 2.0**45


@torch.no_grad()
def as_fraction(weights: Tensor, max_denominator: int = 12) -> tuple[Tensor, Tensor]:
    """The nearest fraction of every weight, in lowest terms: ``(numerator, denominator)``.

    Both are whole numbers in float64. Of two fractions that are equally near, the result is the one
    with the smaller denominator. inf and nan keep their value, over 1. Weights from 2^45 on get the
    nearest whole number: float64 does not distinguish fractions of that size.

    Args:
        weights: a tensor of any shape, floating-point.
        max_denominator: the greatest denominator, from 1 (whole numbers) to 1000.

    Raises TypeError for weights that are no floating-point tensor, ValueError for another
    denominator.

        >>> import torch
        >>> from npu_kernels.formula import as_fraction
        >>> as_fraction(torch.tensor([0.3334, -0.5, 2.0]), 3)
        (tensor([ 1., -1.,  2.], dtype=torch.float64), tensor([3., 2., 1.], dtype=torch.float64))
    """
    check_floating("as_fraction", "weights", weights)
    max_denominator = check_denominator("as_fraction", "max_denominator", max_denominator)
    exact = weights.detach().double()
    numerator, denominator = exact.round(), torch.ones_like(exact)
    error = (exact - numerator).abs()
    # Smaller denominators come first, so the result is in lowest terms.
    for q in range(2, max_denominator + 1):
        p = (exact * q).round()
        distance = (exact - p / q).abs()
        better = (distance < error) & (exact.abs() < FRACTION_LIMIT)
        numerator, error = torch.where(better, p, numerator), torch.where(better, distance, error)
        denominator = denominator.masked_fill(better, q)
    return numerator + 0.0, denominator  # no -0


def nearest_fraction(weights: Tensor, max_denominator: int = 12) -> Tensor:
    """Each weight's nearest fraction with at most this denominator: a new tensor without gradient.

    Args:
        weights: a floating-point tensor.
        max_denominator: the greatest denominator, from 1 to 1000.

    Returns a tensor of the same shape, dtype and device. Raises TypeError for weights that are no
    floating-point tensor, ValueError for another denominator.

        >>> import torch
        >>> from npu_kernels.formula import nearest_fraction
        >>> nearest_fraction(torch.tensor([0.3334, -0.499, 1.98]), 2)
        tensor([ 0.5000, -0.5000,  2.0000])
    """
    numerator, denominator = as_fraction(weights, max_denominator)
    return (numerator / denominator).to(weights.dtype)
