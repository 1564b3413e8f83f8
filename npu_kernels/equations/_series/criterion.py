"""The criterion by which laws of time series are compared.

It is the Bayesian information criterion of the trajectory: minus twice the logarithm of the
likelihood plus log n for each free number, and twice the length of the products' description. That
says of each factor which state it is a power of, and which power. Where the errors are unknown,
each column has a variance of its own, the mean square of its residuals, but never below that of
residuals that count as exact.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from npu_kernels.equations._products.exponent_length import exponent_nats, factor_nats
from npu_kernels.equations._series.sensitivity import Trajectories

SAME_CRITERION = 0.05  # difference of the criterion below which a law is no better than another
# The description of a negative exponent is longer, and that of one that is no whole number, a free
# one too: of those of laws about one in six is negative, and about one in six no whole number.
NEGATIVE_NATS = FRACTION_NATS = math.log(5)


def criteria(
    problem: Trajectories, x: Tensor, free: Tensor, residual: Tensor | None = None
) -> Tensor:
    """Return the criterion of K laws ``[K, N]``.

    It is inf where a law is not finite, or lacks a term that it is known to have. residual: the
    laws', if it is known.
    """
    data, n = problem.data, int(problem.data.seen.sum())
    residual = problem.residual(x) if residual is None else residual
    squares = residual.view(len(x), -1, data.values.shape[2]).square().sum(1)  # [K, D]
    if data.has_sigma:
        likelihood = squares.sum(1)
    else:
        count = data.seen.sum((0, 1))
        mean = (squares / count.clamp(min=1)).maximum(data.exact.square().clamp(min=1e-300))
        likelihood = (count * mean.log()).sum(1)
    shape = problem.shape
    exponents, rates, _ = shape.split(x)
    free_exponents, free_rates, _ = shape.split(free)
    exponents, fixed = exponents.flatten(1), ~free_exponents.flatten(1)
    pairs = zip(exponents, fixed, strict=True)
    nats = [sum(map(exponent_nats, row[keep].tolist())) for row, keep in pairs]
    described = torch.tensor(nats, dtype=torch.float64)
    described += factor_nats(shape.states) * (exponents != 0).sum(1).double()
    described += NEGATIVE_NATS * (exponents < 0).sum(1).double()
    described += FRACTION_NATS * (exponents != exponents.round()).sum(1).double()
    values = likelihood + math.log(n) * free.sum(1).double() + 2 * described
    if not data.still.all():  # else no equation has a term
        has_terms = ((rates != 0) | free_rates)[:, :, : shape.fixed].any(1).all(1)
        values = values.where(has_terms, math.inf)
    return values.nan_to_num(math.inf, math.inf)
