"""Free exponents in place of fractions, and whether rows exclude a fraction."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npu_kernels.equations._products.problem import AllRows
from npu_kernels.equations._table import refine
from npu_kernels.equations._table.equation import EXCLUDED
from npu_kernels.equations._table.refine import Sum
from npu_kernels.equations._table.search import is_exact

Array = Any


@dataclass(frozen=True)
class Freed:
    """A sum with a free exponent in place of a fraction, for the columns of the data."""

    law: Sum
    where: Array  # [K, n]: the fractions that it has no more: several where units tie them
    exponents: Array  # [K, n]
    errors: Array  # [K, n]: their standard errors

    def excludes(self, fractions: Array) -> bool:
        """Return whether the rows exclude one of the fractions that exponents ``[K, n]`` have."""
        apart = np.abs(self.exponents - fractions) > EXCLUDED * self.errors
        return bool((apart & self.where).any())


def covariance(data: AllRows, law: Sum) -> Array:
    """Return the covariance of the coefficients and the free exponents."""
    if data.noise is not None:
        variance = data.noise**2
    else:
        degrees = data.rows - law.parameters
        variance = law.rss / degrees if degrees > 0 else math.inf
    C = refine.covariance(data, law)
    return C * variance if math.isfinite(variance) else np.full_like(C, math.inf)


def exponent_errors(data: AllRows, law: Sum, C: Array) -> Array:
    """Return the standard errors of the columns' exponents ``[K, n]``. C: the covariance."""
    K, (k, i) = len(law.c), np.nonzero(law.free)
    if not np.isfinite(C).all():
        return np.where((law.free @ (data.matrix != 0).T) > 0, math.inf, 0.0)
    errors = np.zeros((K, len(data.matrix)))
    of_exponents = C.reshape(-1, *C.shape[-2:])[0, K:, K:]  # the same in all groups
    for term in range(K):
        of_term = k == term
        Z, inner = data.matrix[:, i[of_term]], of_exponents[np.ix_(of_term, of_term)]
        errors[term] = np.sqrt(np.maximum(np.diag(Z @ inner @ Z.T), 0.0))
    return errors


def freed(data: AllRows, law: Sum, loss: str | None) -> Iterator[Freed]:
    """Yield the sum with each of its fractions as a free exponent, one at a time.

    Terms that were given keep theirs, and so does an exact sum. loss: None yields nothing.
    """
    if loss is None or is_exact(data, law):
        return
    full = data.exponents.full(law.u, data.power, data.below)
    tied = data.matrix != 0
    fractional = ((full % 1 != 0) @ tied) & ~law.free & ~data.signed
    fractional[: data.fixed] = False
    for k, j in np.argwhere(fractional):
        free = law.free.copy()
        free[k, j] = True
        other = refine.refit(data, replace(law, free=free), loss)
        if math.isfinite(other.cost):
            where = np.zeros(full.shape, dtype=bool)
            where[k] = tied[:, j] & (full[k] % 1 != 0)
            exponents = data.exponents.full(other.u, data.power, data.below)
            errors = exponent_errors(data, other, covariance(data, other))
            yield Freed(other, where, exponents, errors)


def in_place_of_fractions(data: AllRows, law: Sum, loss: str | None) -> Array:
    """Return the exponents that are free in place of fractions, and their errors ``[2, K, n]``.

    They are not a number elsewhere.
    """
    told = np.full((2, len(law.c), len(data.matrix)), np.nan)
    for rival in freed(data, law, loss):
        told[:, rival.where] = rival.exponents[rival.where], rival.errors[rival.where]
    return told
