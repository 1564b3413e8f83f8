"""A law in the units of its data, with standard errors, and its error on other rows."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from npu_kernels._common.checks import is_number
from npu_kernels.equations._products.expression import Expression
from npu_kernels.equations._products.functions import Functions, OutputFunction
from npu_kernels.equations._products.groups import of_rows
from npu_kernels.equations._products.limits import Limits
from npu_kernels.equations._products.problem import AllRows, root_mean_square
from npu_kernels.equations._products.units import Exponents
from npu_kernels.equations._table import refine
from npu_kernels.equations._table.equation import Equation
from npu_kernels.equations._table.free_exponents import (
    covariance,
    exponent_errors,
    in_place_of_fractions,
)
from npu_kernels.equations._table.refine import Sum
from npu_kernels.equations._table.search import is_exact

Array = Any

NOISE_FLOOR = 0.1  # of the median of |y|: below it, errors in proportion to y grow no smaller
SMALLEST_SIZE = 1e-100  # of an output that relative errors are in proportion to, over the greatest


@dataclass(frozen=True)
class Rows:
    """The data of one output."""

    X: Array  # [N, inputs]
    y: Array  # [N]
    weight: Array  # [N]: 1 / variance, in units of `noise` where it is a number
    functions: Functions  # of the columns of X
    output: str  # name of y
    output_functions: tuple[OutputFunction | None, ...]  # to try
    exponents: Exponents  # that units allow
    noise: float | str | None  # as in `NPURegressor`; a number is that of rows of weight 1
    digits: float  # the relative error to which y is rounded
    notes: tuple[str, ...]  # what a reader should know of the data
    origin: Array  # [N]: the rows' numbers in the table that was given
    part: Expression | None = None  # of every sum, which is set
    limits: Limits | None = None  # of terms, exponents and coefficients
    group: Array | None = None  # [N]: indices of labels, sorted
    labels: tuple[Any, ...] | None = None  # of groups with coefficients of their own

    @cached_property
    def root(self) -> Array:
        """The square roots of the rows' weights, of which the mean is 1."""
        return np.sqrt(self.weight / self.weight.mean())

    @property
    def deviation(self) -> float | None:
        """The standard deviation of the errors of ``root * y``, if it is known."""
        return float(self.noise) / math.sqrt(self.weight.mean()) if is_number(self.noise) else None

    def take(self, rows: Array) -> Rows:
        """Return some of the rows."""
        parts = {name: getattr(self, name)[rows] for name in ("X", "y", "weight", "origin")}
        group = None if self.group is None else self.group[rows]
        return replace(self, **parts, group=group)


def sizes(y: Array) -> Array:
    """Return ``|y|``, raised near 0, with mean square 1. Squares of their inverses are finite."""
    size = np.abs(y)
    size = np.maximum(size, max(NOISE_FLOOR * np.median(size), SMALLEST_SIZE * size.max()) or 1.0)
    return size / root_mean_square(size, np.ones(len(size)))


def _relative(rows: Rows, data: AllRows, errors: Array, held: Any = slice(None)) -> float:
    """The root mean square of errors over that of y about its mean; weights are those of `fit`.

    What y is rounded to belongs to it. held: the rows of the errors; the mean is that of all.
    """
    weight, y = rows.weight[held], data.target[held]
    mean = rows.weight @ data.target / rows.weight.sum()
    squares = float(weight @ errors**2)
    size = float(weight @ ((y - mean) ** 2 + (rows.digits * y) ** 2))
    return math.sqrt(squares / (size or float(weight.sum())))


def held_out(rows: Rows, data: AllRows, law: Sum, held: Array) -> float:
    """The relative error on the rows that were held out."""
    part = data.take(held)
    errors = part.target - part.predict(law.u, law.parity, law.c)[0]
    return _relative(rows, data, errors, held)


def left_out(rows: Rows, data: AllRows, law: Sum) -> float:
    """The relative error of leaving out one row at a time, with the form of the law kept."""
    residuals = data.predict(law.u, law.parity, law.c)[1]
    errors = refine.left_out(data, law, residuals)[0] / data.weight
    if data.factor:  # the error e of log y stands for the prediction y exp(-e)
        with np.errstate(over="ignore"):
            errors = -data.target * np.expm1(-errors)
    return _relative(rows, data, errors)


def outer_signs(data: AllRows, u: Array) -> Array:
    """Return the signs ``[K]`` by which coefficients of a fit become those of the data."""
    signs = data.outer_signs(u)
    signs[: len(u) - data.below] *= data.sign if abs(data.power) == 1 else 1.0
    return signs


def unscaled(data: AllRows, u: Array) -> tuple[Array, Array]:
    """Return the exponents of the columns ``[K, n]``, and the coefficients' factors ``[K]``.

    The factors are those by which coefficients become those of inputs and y that are not scaled.
    """
    above = np.arange(len(u)) < len(u) - data.below
    full = data.exponents.full(u, data.power, data.below)
    size = np.where(above, data.power * math.log(data.scale), 0.0)
    with np.errstate(over="ignore", under="ignore"):
        return full, np.exp(size - full @ data.columns.log_mean)


def equation_of(
    rows: Rows, data: AllRows, law: Sum, error: float, held_out: int, kind: str,
    loss: str | None = None,
) -> Equation:  # fmt: skip
    """The law in the units of the data, with standard errors.

    loss: that free exponents are fitted by in place of fractions; None: none are.
    """
    columns, matrix, p = data.columns, data.matrix, data.power
    K = len(law.c)
    above = K - data.below
    full, shift = unscaled(data, law.u)
    factor = outer_signs(data, law.u)
    C = covariance(data, law)
    coef, coef_std = law.c.T, np.full_like(law.c.T, math.inf)
    if np.isfinite(C).all():  # otherwise all standard errors are infinite
        coef_std = _errors(coef, C, law.free, matrix.T @ columns.log_mean) * shift
    squares = []
    for _, part in data.blocks():
        terms = part.predict(law.u, law.parity, law.c)[2] * of_rows(law.c, part.group)
        squares.append(((terms * part.weight[:, None]) ** 2).sum(0))
    term_index = np.arange(K)
    if is_exact(data, law):  # what is no more than rounding is 0
        lost = np.sqrt(np.sum(squares, axis=0)) <= refine.SOLVED_ERROR * math.sqrt(data.size)
        coef = np.where(lost, 0.0, coef)
        law = replace(law, c=coef.T)
    order = np.lexsort([-np.sum(squares, axis=0), term_index >= above, term_index >= data.fixed])
    prediction, residuals, _ = data.predict(law.u, law.parity, law.c)
    sizes = data.weight * (1.0 if data.factor else data.target)
    return Equation(
        names=rows.functions.names, output=rows.output, functions=rows.functions,
        function=data.function, power=p, sign=data.sign if abs(p) != 1 else 1.0,
        coef=(coef * shift * factor)[..., order], coef_std=coef_std[..., order],
        exponents=full[order], exponents_std=exponent_errors(data, law, C)[order],
        free=((law.free @ (matrix != 0).T) > 0)[order],
        freed=in_place_of_fractions(data, law, loss)[:, order],
        positive=tuple(bool(v) for v in ~columns.negative),
        rms=_relative(rows, data, data.target - prediction), error=error,
        held_out=held_out, bic=law.cost,
        exact=is_exact(data, law), degrees=float(data.rows - law.parameters),
        scaled=(coef * factor)[..., order], log_mean=columns.log_mean, scale=data.scale,
        constraint=rows.exponents, noise=kind,
        relative_rms=math.sqrt(float(residuals @ residuals) / (float(sizes @ sizes) or 1.0)),
        below=data.below, part=rows.part, limits=rows.limits, labels=rows.labels,
    )  # fmt: skip


def _errors(coef: Array, C: Array, free: Array, log_mean: Array) -> Array:
    """The standard errors of coefficients ``[K]``, or ``[G, K]``, for inputs that are not scaled.

    C: the covariance for scaled ones. free: which exponents are ``[K, m]``. log_mean: of the
    effective inputs ``[m]``. It is d log c = d c' / c' - sum_i log_mean_i d u_i.
    """
    K, (k, i) = coef.shape[-1], np.nonzero(free)
    T = np.zeros((*coef.shape, C.shape[-1]))
    T[..., np.arange(K), np.arange(K)] = 1.0
    T[..., k, K + np.arange(len(k))] = -coef[..., k] * log_mean[i]
    variances = np.diagonal(T @ C @ T.swapaxes(-1, -2), axis1=-2, axis2=-1)
    errors: Array = np.sqrt(np.maximum(variances, 0.0))
    return errors
