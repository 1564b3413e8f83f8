"""One output's rows as the search sees them: logarithms, signs, and a target of size 1.

The law that is looked for is ``y**p = sum_k c_k prod_i x_i**w_ki``. Inputs are divided by their geometric mean and y by
its root mean square, so that nothing depends on the units; `Equation` folds both back into the constants. Where units
restrict the exponents of a term to ``w = w0 + Z u``, the search runs over u: the inputs are then products of powers of
the columns (``logs @ Z``), and every term has the factor ``exp(logs @ w0)``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from npu_kernels._laws.products.units import Exponents

Array = Any  # np.ndarray; numpy's own types change from version to version

ZERO_LOG = -69.0  # the logarithm that stands for a zero: 1e-30 of the geometric mean
BOUND = 6.0  # of exponents
BLOCK = 20_000  # rows at once, where all rows are gone through


def blocks(rows: int) -> Iterator[slice]:
    """All rows, `BLOCK` at a time."""
    for begin in range(0, rows, BLOCK):
        yield slice(begin, min(begin + BLOCK, rows))


@dataclass(frozen=True)
class Columns:
    """The inputs X ``[N, n]`` of all outputs and powers; of each column the mean of ``log |x|``, and whether it is
    negative somewhere, 0 somewhere, and of both signs.
    """

    X: Array
    log_mean: Array
    negative: Array
    zero: Array
    mixed: Array

    @classmethod
    def of(cls, X: Array) -> Columns:
        total, count = np.zeros(X.shape[1]), np.zeros(X.shape[1])
        negative = np.zeros(X.shape[1], dtype=bool)
        positive = np.zeros(X.shape[1], dtype=bool)
        for rows in blocks(len(X)):
            zero = X[rows] == 0
            total += np.log(np.where(zero, 1.0, np.abs(X[rows]))).sum(0)
            count += (~zero).sum(0)
            negative |= (X[rows] < 0).any(0)
            positive |= (X[rows] > 0).any(0)
        # Without the zeros; a column of zeros has mean 1.
        return cls(X, total / np.maximum(count, 1), negative, count < len(X), negative & positive)

    def logs(self, rows: Any) -> Array:
        """``log |x| - mean`` of these rows, `ZERO_LOG` where x is 0."""
        X = self.X[rows]
        zero = X == 0
        return np.where(zero, ZERO_LOG, np.log(np.where(zero, 1.0, np.abs(X))) - self.log_mean)


@dataclass(frozen=True)
class Problem:
    """What one search works on.

    logs ``[N, m]``: of the effective inputs. negative ``[N, m]`` or None: 1 where one is negative. base ``[N]``: the
    factor of every term. target ``[N]``: ``sign y / scale``. weight ``[N]``: square roots of the rows' weights.
    power: p. low, high ``[m]``: bounds of u. signed ``[m]``: which effective inputs are negative somewhere: their
    exponents are whole numbers. mixed ``[m]``: which of them have both signs, so that the signs of the terms follow
    from the parity of their exponents. noise: the known standard deviation of the target's errors, or None. floor: the
    root mean square of the weighted targets to which errors gave the other sign; smaller targets are errors mostly.
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
    mixed: Array
    exponents: Exponents
    noise: float | None
    floor: float

    @property
    def rows(self) -> int:
        return len(self.target)

    @property
    def inputs(self) -> int:
        return int(self.logs.shape[1])

    @cached_property
    def size(self) -> float:
        """The weighted sum of squares of the target."""
        return float(((self.weight * self.target) ** 2).sum())

    def blocks(self) -> Iterator[tuple[slice, Problem]]:
        """All rows at once: see `AllRows.blocks`."""
        yield slice(0, self.rows), self

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
            size = np.maximum(
                np.abs(y), np.maximum(self.floor / self.weight if p > 0 else 0, 1e-12)
            )
            z, slope = (
                np.copysign(size**p if p < 0 else np.abs(y) ** p, y),
                size ** (1 - p) / abs(p),
            )
            weight = self.weight * np.minimum(slope, 100 * np.median(slope))
            if p < 0 and p != -1:
                weight = np.where(y > 0, weight, 0.0)
        return z / self.base, weight * np.abs(self.base)


@dataclass(frozen=True)
class AllRows:
    """All rows of one output for one output power: some of them, or block after block, become a `Problem`.

    The fields that `Problem` has too mean the same. offset ``[n]``, matrix ``[n, m]``: of the exponents.
    """

    columns: Columns
    target: Array
    weight: Array
    power: float
    sign: float
    scale: float
    low: Array
    high: Array
    signed: Array
    mixed: Array
    exponents: Exponents
    noise: float | None
    floor: float
    offset: Array
    matrix: Array

    @property
    def rows(self) -> int:
        return len(self.target)

    @property
    def inputs(self) -> int:
        return int(self.matrix.shape[1])

    @cached_property
    def size(self) -> float:
        """The weighted sum of squares of the target."""
        return float(
            sum(((self.weight[rows] * self.target[rows]) ** 2).sum() for rows in blocks(self.rows))
        )

    def take(self, rows: Any) -> Problem:
        """The problem with these rows, a slice or indices."""
        logs = self.columns.logs(rows)
        base = np.exp(np.clip(logs @ self.offset, -300, 300))
        negative, touched = None, self.columns.mixed
        if touched.any():
            below = (self.columns.X[rows] < 0).astype(float)
            base = base * (1 - 2 * ((below @ np.where(touched, self.offset, 0)) % 2))
            negative = (below @ (np.where(touched[:, None], self.matrix, 0) % 2)) % 2
        return Problem(
            logs @ self.matrix, negative, base, self.target[rows], self.weight[rows], self.power, self.sign,
            self.scale, self.low, self.high, self.signed, self.mixed, self.exponents, self.noise, self.floor,
        )  # fmt: skip

    def outer_signs(self, u: Array) -> Array:
        """``[K]``: the signs of terms by the columns that are negative in all rows: a `Problem` has their sizes."""
        one = self.columns.negative & ~self.columns.mixed
        odd = np.round(u) @ (self.matrix[one] % 2).sum(0) + (self.offset[one] % 2).sum()
        found: Array = 1.0 - 2.0 * (odd % 2)
        return found

    def blocks(self) -> Iterator[tuple[slice, Problem]]:
        """Every block of rows: where it is, and the problem with these rows."""
        for rows in blocks(self.rows):
            yield rows, self.take(rows)

    def choose(self, rows: Array) -> AllRows:
        """With these rows only, and as often as they are given."""
        columns = replace(self.columns, X=self.columns.X[rows])
        return replace(self, columns=columns, target=self.target[rows], weight=self.weight[rows])


def all_rows(
    columns: Columns, y: Array, weight: Array, power: float, exponents: Exponents, noise: float | None,
    error: float = 0.0,
) -> AllRows | None:  # fmt: skip
    """The rows of one output and one output power, or None if the data exclude this power.

    Powers other than 1 and -1 need a y of one sign, and all but 1 one without zeros, but for what errors explain. With
    negative inputs and units, exponents that are fixed must be whole numbers. error: an estimate of the standard
    deviation of ``weight * y``.
    """
    scale = float(np.sqrt(np.average(y**2, weights=weight**2))) or 1.0
    sign = -1.0 if weight**2 @ y < 0 else 1.0
    target, error = sign * y / scale, max(error, noise or 0.0) / scale
    lost = (target if abs(power) != 1 else np.abs(target)) <= 0
    wrong = (weight * target)[lost]
    if power != 1 and lost.any() and wrong.min() <= -_most_errors(len(y)) * error:
        return None
    floor = math.sqrt(np.mean(wrong**2)) if lost.any() else 0.0
    offset, matrix = exponents.at(power)
    touched = columns.negative
    if (matrix[touched] % 1 != 0).any() or (offset[touched] % 1 != 0).any():
        return None
    signed, mixed = (
        (np.where(some[:, None], matrix, 0) % 2 != 0).any(0)
        for some in (columns.negative, columns.mixed)
    )
    bound = BOUND * max(1.0, abs(power))
    low, high = np.full(len(signed), -bound), np.full(len(signed), bound)
    low[columns.zero[exponents.free]] = 0.0  # a finite y excludes a negative power of zero
    return AllRows(
        columns, target, weight, power, sign, scale, low, high, signed, mixed, exponents,
        None if noise is None else noise / scale, floor, offset, matrix,
    )  # fmt: skip


def _most_errors(rows: int) -> float:
    """How many standard deviations the largest of so many normal errors is, and one more."""
    return 1 + math.sqrt(2 * math.log(rows + 1))
