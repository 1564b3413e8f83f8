"""One output's rows as the search sees them: logarithms, signs, and a target of size 1.

The law that is looked for is ``y**p = sum_k c_k prod_i x_i**w_ki``. Inputs are divided by their geometric mean and y by
its root mean square, so that nothing depends on the units; `Equation` folds both back into the constants. Where units
restrict the exponents of a term to ``w = w0 + Z u``, the search runs over u: the inputs are then products of powers of
the columns (``logs @ Z``), and every term has the factor ``exp(logs @ w0)``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npu_kernels.equations.units import Exponents

Array = Any  # np.ndarray; numpy's own types change from version to version

ZERO_LOG = -69.0  # the logarithm that stands for a zero: 1e-30 of the geometric mean
BOUND = 6.0  # of exponents


@dataclass(frozen=True)
class Columns:
    """The inputs of all outputs and powers: ``logs [N, n]`` of ``|x| / mean``, where x is negative, and where 0."""

    logs: Array
    negative: Array
    zero: Array
    log_mean: Array

    @classmethod
    def of(cls, X: Array) -> Columns:
        zero = X == 0
        with np.errstate(divide="ignore"):
            logs = np.log(np.abs(X))
        logs[zero] = 0.0
        # Without the zeros; a column of zeros has mean 1.
        mean = logs.sum(0) / np.maximum((~zero).sum(0), 1)
        logs = np.where(zero, ZERO_LOG, logs - mean)
        return cls(logs, (X < 0).astype(float), zero, mean)


@dataclass(frozen=True)
class Problem:
    """What one search works on.

    logs ``[N, m]``: of the effective inputs. negative ``[N, m]`` or None: 1 where one is negative. base ``[N]``: the
    factor of every term. target ``[N]``: ``sign y / scale``. weight ``[N]``: square roots of the rows' weights.
    power: p. low, high ``[m]``: bounds of u. signed ``[m]``: which effective inputs are negative somewhere: their
    exponents are whole numbers. noise: the known standard deviation of the target's errors, or None.
    """

    logs: Array
    negative: Array | None
    base: Array
    target: Array
    weight: Array
    power: float
    sign: float
    scale: float
    low: Array
    high: Array
    signed: Array
    exponents: Exponents
    noise: float | None

    @property
    def rows(self) -> int:
        return len(self.target)

    @property
    def inputs(self) -> int:
        return int(self.logs.shape[1])

    def take(self, rows: Array) -> Problem:
        """The same problem with some of the rows."""
        return replace(
            self,
            logs=self.logs[rows],
            negative=None if self.negative is None else self.negative[rows],
            base=self.base[rows],
            target=self.target[rows],
            weight=self.weight[rows],
        )

    def signs(self, parity: Array) -> Array:
        """``[N, K]``: the sign of every term, for parities ``[K, m]`` of the exponents."""
        if self.negative is None:
            return np.ones((self.rows, len(parity)))
        return 1.0 - 2.0 * ((self.negative @ parity.T) % 2)

    def terms(self, u: Array, parity: Array) -> Array:
        """``[N, K]``: the products of powers."""
        exponent = np.clip(self.logs @ u.T, -300, 300)
        return np.exp(exponent) * self.signs(parity) * self.base[:, None]

    def value(self, sums: Array) -> Array:
        """The prediction of the target from the sums of terms ``[N]``."""
        if self.power == 1:
            return sums
        with np.errstate(divide="ignore", over="ignore"):
            return np.sign(sums) * np.abs(sums) ** (1 / self.power)

    def linear(self) -> tuple[Array, Array]:
        """``(z, weight)`` with which ``weight (z - sum c_k prod r**u)`` is the error of the target to first order."""
        y, p = self.target, self.power
        if p == 1:
            z, weight = y, self.weight
        else:
            size = np.maximum(np.abs(y), 1e-12)
            z, slope = size**p, size ** (1 - p) / abs(p)
            weight = self.weight * np.minimum(slope, 100 * np.median(slope))
        return z / self.base, weight * np.abs(self.base)


def problem(
    columns: Columns, y: Array, weight: Array, power: float, exponents: Exponents, noise: float | None
) -> Problem | None:
    """The problem of one output and one output power, or None if the data exclude this power.

    Powers other than 1 need a y of one sign without zeros; with negative inputs and units, exponents that are fixed
    must be whole numbers.
    """
    scale = float(np.sqrt(np.average(y**2, weights=weight**2))) or 1.0
    sign = -1.0 if (y <= 0).all() and (y < 0).any() else 1.0
    target = sign * y / scale
    if power != 1 and not (target > 0).all():
        return None
    offset, matrix = exponents.at(power)
    logs = columns.logs @ matrix
    base = np.exp(np.clip(columns.logs @ offset, -300, 300))
    negative, signed = None, np.zeros(matrix.shape[1], dtype=bool)
    if columns.negative.any():
        touched = columns.negative.any(0)
        if (matrix[touched] % 1 != 0).any() or (offset[touched] % 1 != 0).any():
            return None
        base = base * (1 - 2 * ((columns.negative @ np.where(touched, offset, 0)) % 2))
        odd = (np.where(touched[:, None], matrix, 0)) % 2
        signed = (odd != 0).any(0)
        negative = (columns.negative @ odd) % 2
    bound = BOUND * max(1.0, abs(power))
    low, high = np.full(len(signed), -bound), np.full(len(signed), bound)
    free = exponents.free
    low[columns.zero.any(0)[free]] = 0.0  # a finite y excludes a negative power of zero
    return Problem(
        logs, negative, base, target, weight, power, sign, scale, low, high, signed, exponents,
        None if noise is None else noise / scale,
    )  # fmt: skip
