"""An equation in the units of its data, its standard errors, error on other rows, and refits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NoReturn

import numpy as np

from npu_kernels._common.checks import is_number
from npu_kernels.equations._equation import EXCLUDED, Equation
from npu_kernels.equations._expression import Expression
from npu_kernels.equations._functions import Functions, OutputFunction
from npu_kernels.equations._limits import Limits
from npu_kernels.equations._numbers import FLOAT64_ROUNDING, Interval
from npu_kernels.equations._problem import AllRows, Columns, Output, root_mean_square
from npu_kernels.equations._rows import of_rows, starts
from npu_kernels.equations._table import refine
from npu_kernels.equations._table.refine import Sum, is_exact
from npu_kernels.equations._units import Exponents

Array = Any

# ---- free exponents ------------------------------------------------------------------------------
# Free exponents in place of fractions, and whether rows exclude a fraction.


@dataclass(frozen=True)
class Freed:
    """A sum with a free exponent in place of a fraction, for the columns of the data."""

    candidate: Sum
    where: Array  # [K, n]: the fractions that it has no more: several where units tie them
    exponents: Array  # [K, n]
    errors: Array  # [K, n]: their standard errors

    def excludes(self, fractions: Array) -> bool:
        """Return whether the rows exclude one of the fractions that exponents ``[K, n]`` have."""
        apart = np.abs(self.exponents - fractions) > EXCLUDED * self.errors
        return bool((apart & self.where).any())


def covariance(data: AllRows, candidate: Sum) -> Array:
    """Return the covariance of the coefficients and the free exponents."""
    if data.noise is not None:
        variance = data.noise**2
    else:
        degrees = data.rows - candidate.parameters
        variance = candidate.rss / degrees if degrees > 0 else math.inf
    C = refine.covariance(data, candidate)
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(C), C, C * variance) if variance < math.inf else C + math.inf


def untold(data: AllRows, candidate: Sum) -> tuple[str, ...]:
    """Return a note if the rows do not tell all parameters of an equation."""
    C = refine.covariance(data, candidate)
    unknown = np.isinf(np.diagonal(C, axis1=-2, axis2=-1)).reshape(-1, C.shape[-1])
    K = len(candidate.c)
    count = int(unknown[:, :K].sum() + unknown[0, K:].sum())
    if not count:
        return ()
    return (
        f"The rows do not determine {count} of the {candidate.parameters} parameters, at most "
        "combinations of them: these numbers are not estimates, and have no standard error.",
    )


def _deviations(T: Array, C: Array) -> Array:
    """The standard errors of ``T p`` for parameters p with the covariance C.

    They are infinite where T has a part of what is.
    """
    unknown = np.isinf(np.diagonal(C, axis1=-2, axis2=-1))
    variances = np.diagonal(
        T @ np.where(np.isinf(C), 0.0, C) @ T.swapaxes(-1, -2), axis1=-2, axis2=-1
    )
    reached = ((T != 0) & unknown[..., None, :]).any(-1)
    deviations: Array = np.where(reached, math.inf, np.sqrt(np.maximum(variances, 0.0)))
    return deviations


def exponent_errors(data: AllRows, candidate: Sum, C: Array) -> Array:
    """Return the standard errors of the columns' exponents ``[K, n]``. C: the covariance."""
    K, (k, i) = len(candidate.c), np.nonzero(candidate.free)
    errors = np.zeros((K, len(data.matrix)))
    of_exponents = C.reshape(-1, *C.shape[-2:])[0, K:, K:]  # the same in all groups
    for term in range(K):
        of_term = k == term
        errors[term] = _deviations(
            data.matrix[:, i[of_term]], of_exponents[np.ix_(of_term, of_term)]
        )
    return errors


def freed(
    data: AllRows, candidate: Sum, loss: str | None, integers: bool = False
) -> Iterator[Freed]:
    """Yield the sum with each of its fractions as a free exponent, one at a time.

    Terms that were given keep theirs, and so does an exact sum. loss: None yields nothing.
    integers: of integers other than 0 too.
    """
    if loss is None or is_exact(data, candidate):
        return
    full = data.exponents.full(candidate.u, data.power, data.below)
    tied, rounded = data.matrix != 0, full != 0 if integers else full % 1 != 0
    chosen = (rounded @ tied) & ~candidate.free & ~data.signed
    chosen[: data.fixed] = False
    for k, j in np.argwhere(chosen):
        free = candidate.free.copy()
        free[k, j] = True
        other = refine.refit(data, replace(candidate, free=free), loss)
        if math.isfinite(other.cost):
            where = np.zeros(full.shape, dtype=bool)
            where[k] = tied[:, j] & rounded[k]
            exponents = data.exponents.full(other.u, data.power, data.below)
            errors = exponent_errors(data, other, covariance(data, other))
            if np.isfinite(errors[where]).all():
                yield Freed(other, where, exponents, errors)


def in_place_of_rounded(data: AllRows, candidate: Sum, loss: str | None) -> Array:
    """Return the exponents that are free in place of rounded ones, and their errors ``[2, K, n]``.

    They are not a number elsewhere.
    """
    told = np.full((2, len(candidate.c), len(data.matrix)), np.nan)
    for other in freed(data, candidate, loss, integers=True):
        told[:, other.where] = other.exponents[other.where], other.errors[other.where]
    return told


# ---- estimates -----------------------------------------------------------------------------------

NOISE_FLOOR = 0.1  # of the median of |y|: below it, errors in proportion to y grow no smaller
SMALLEST_SIZE = 1e-100  # of an output that relative errors are in proportion to, over the largest


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
    notes: tuple[str, ...]  # doubts about the data
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
    def weighted(self) -> bool:
        """Whether rows have different weights."""
        return bool((self.weight != self.weight[0]).any())

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


def _floor(y: Array) -> float:
    """Return the size below which `sizes` raises some of y; 0: there are none."""
    size = np.abs(y)
    floor = NOISE_FLOOR * float(np.median(size))
    return floor if (size < floor).any() else 0.0


def _relative(rows: Rows, data: AllRows, errors: Array, held: Any = slice(None)) -> float:
    """The root mean square of errors over that of y about its mean; weights are those of `fit`.

    What y is rounded to belongs to it. held: the rows of the errors; the mean is that of all.
    """
    weight, y = rows.weight[held], data.target[held]
    mean = rows.weight @ data.target / rows.weight.sum()
    squares = float(weight @ errors**2)
    size = float(weight @ ((y - mean) ** 2 + (rows.digits * y) ** 2))
    return math.sqrt(squares / (size or float(weight.sum())))


def held_out(rows: Rows, data: AllRows, candidate: Sum, held: Array) -> float:
    """The relative error on the rows that were held out."""
    part = data.take(held)
    errors = part.target - part.predict(candidate.u, candidate.parity, candidate.c)[0]
    return _relative(rows, data, errors, held)


def left_out(rows: Rows, data: AllRows, candidate: Sum) -> float:
    """The relative error of leaving out one row at a time, with the form of the equation kept."""
    residuals = data.predict(candidate.u, candidate.parity, candidate.c)[1]
    errors = refine.left_out(data, candidate, residuals)[0] / data.weight
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
    rows: Rows, data: AllRows, candidate: Sum, error: float, held_out: int, kind: str,
    loss: str | None = None,
) -> Equation:  # fmt: skip
    """The equation in the units of the data, with standard errors.

    loss: that free exponents are fitted by in place of rounded ones; None: none are.
    """
    columns, matrix, p = data.columns, data.matrix, data.power
    K = len(candidate.c)
    above = K - data.below
    full, shift = unscaled(data, candidate.u)
    factor = outer_signs(data, candidate.u)
    C = covariance(data, candidate)
    coef = candidate.c.T
    coef_std = _errors(coef, C, candidate.free, matrix.T @ columns.log_mean) * shift
    squares = []
    for _, part in data.blocks():
        terms = part.predict(candidate.u, candidate.parity, candidate.c)[2] * of_rows(
            candidate.c, part.group
        )
        squares.append(((terms * part.weight[:, None]) ** 2).sum(0))
    term_index = np.arange(K)
    if is_exact(data, candidate):  # what is no more than rounding is 0
        lost = np.sqrt(np.sum(squares, axis=0)) <= refine.SOLVED_ERROR * math.sqrt(data.size)
        coef = np.where(lost, 0.0, coef)
        candidate = replace(candidate, c=coef.T)
    order = np.lexsort([-np.sum(squares, axis=0), term_index >= above, term_index >= data.fixed])
    prediction, residuals, _ = data.predict(candidate.u, candidate.parity, candidate.c)
    sizes = data.weight * (1.0 if data.factor else data.target)
    return Equation(
        names=rows.functions.names, output=rows.output, functions=rows.functions,
        target_transform=data.function, target_power=p, sign=data.sign if abs(p) != 1 else 1.0,
        coef=(coef * shift * factor)[..., order], coef_stderr=coef_std[..., order],
        exponents=full[order], exponents_stderr=exponent_errors(data, candidate, C)[order],
        free=((candidate.free @ (matrix != 0).T) > 0)[order],
        freed=in_place_of_rounded(data, candidate, loss)[:, order],
        nonnegative=tuple(bool(v) for v in ~columns.negative),
        nrmse=_relative(rows, data, data.target - prediction), holdout_nrmse=error,
        n_held_out=held_out, bic=candidate.cost,
        exact=is_exact(data, candidate), df_resid=float(data.rows - candidate.parameters),
        scaled=(coef * factor)[..., order], log_mean=columns.log_mean, scale=data.scale,
        constraint=rows.exponents, noise=kind,
        weighted_nrmse=math.sqrt(float(residuals @ residuals) / (float(sizes @ sizes) or 1.0)),
        floor=data.unit * _floor(prediction) if kind == "proportional" else 0.0,
        n_denominator_terms=data.below, known_part=rows.part, limits=rows.limits,
        labels=rows.labels,
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
    return _deviations(T, C)


# ---- refits --------------------------------------------------------------------------------------
# Refits of an equation with its form kept: to new data, and to resampled rows (the bootstrap).


def rows_of(
    equation: Equation, X: Array, y: Array, weight: Array, origin: Array, group: Array | None,
    labels: Any, noise: float | str | None = None, digits: float = FLOAT64_ROUNDING,
) -> Rows:  # fmt: skip
    """Return rows for an equation of known form.

    origin: the rows' numbers in the table. group: the rows are sorted by it. noise: as in
    `NPURegressor`, of which only a number matters. digits: the relative error to which y is
    rounded. The labels of the groups may be others than those of the equation.
    """
    parts = equation.functions, equation.output, (equation.target_transform,), equation.constraint
    of_equation = equation.known_part, equation.limits, group, labels
    return Rows(X, y, weight, *parts, noise, digits, (), origin, *of_equation)


def refitted(equation: Equation, rows: Rows, loss: str) -> tuple[Rows, Equation]:
    """Return the rows, and the equation with its form and the parameters that fit them best."""
    if rows.deviation is not None or equation.noise == "known":
        equation = replace(equation, noise="additive" if rows.deviation is None else "known")
    for again in range(2):  # errors in proportion to y are in proportion to the first equation's y
        is_new = not again and rows.labels is not None
        data, start = started(equation, rows, "refit", is_new)
        candidate = refine.refit(_of_terms(data, start), start, loss)
        if not math.isfinite(candidate.rss):
            raise ValueError("refit: the equation must have finite values in all rows")
        error = left_out(rows, data, candidate)
        equation = equation_of(rows, data, candidate, error, 0, equation.noise, loss)
    return rows, equation


def _of_terms(data: AllRows, candidate: Sum) -> AllRows:
    """The rows, for the terms of an equation: a coefficient that its limits make 0 is no error."""
    if data.limits is None:
        return data
    return replace(data, limits=data.limits.of_terms(candidate.u, candidate.parity, data.below))


def started(
    equation: Equation, rows: Rows, function: str, is_new: bool = False
) -> tuple[AllRows, Sum]:
    """The rows of a fit, and the equation for them with the parameters that it has.

    function: that is called, for messages. is_new: the groups are others than the equation's.
    """
    functions = equation.functions
    columns = Columns.of(functions.expand(rows.X), functions.exponential)
    root = rows.root
    if equation.noise == "proportional":
        root = root / sizes(rows.y if is_new else equation._predicted(rows.X, rows.group))
    output = Output(  # any y of the other sign is taken for an error, as in the last fit of `fit`
        columns,
        rows.y,
        root,
        equation.constraint,
        noise=rows.deviation,
        error=math.inf,
        factor=equation.noise == "multiplicative",
        function=equation.target_transform,
        limits=equation.limits,
        addend=None if equation.known_part is None else equation.known_part.values(rows.X),
        group=rows.group,
        digits=rows.digits,
    )
    data = output.scaled(equation.target_power, equation.n_denominator_terms)
    if data is None or _fractional(equation, columns).any():
        _refuse(equation, columns, rows.y, function)
    assert data is not None
    free = equation.free[:, equation.constraint.free]
    u = equation.exponents[:, equation.constraint.free]
    parity = np.where(data.mixed, np.abs(u) % 2, 0.0)
    if is_new:
        return data, Sum(u, parity, free, _solved(data, u, parity))
    above = equation.n_terms - equation.n_denominator_terms
    shift = equation.exponents @ (columns.log_mean - equation.log_mean)
    shift[:above] += equation.target_power * math.log(equation.scale / data.scale)
    c = equation.scaled * np.exp(shift) * outer_signs(data, u)
    return data, Sum(u, parity, free, c.T)


def _fractional(equation: Equation, columns: Columns) -> Array:
    """The columns with negative values whose exponents in the equation are not integers ``[n]``."""
    fractional = (equation.free | (equation.exponents % 1 != 0)).any(0)
    negative: Array = columns.negative & fractional
    return negative


def _refuse(equation: Equation, columns: Columns, y: Array, function: str) -> NoReturn:
    """Raise the ValueError that says why rows are none of an equation."""
    if equation.noise == "multiplicative" and not ((y > 0).all() or (y < 0).all()):
        rule = "y must have one sign and no zeros, because its errors are multiplicative"
        raise ValueError(f"{function}: {rule}, got y from {y.min():g} to {y.max():g}")
    negative = _fractional(equation, columns)
    if negative.any():
        names = ", ".join(equation.names[i] for i in np.flatnonzero(negative))
        rule = "columns must not be negative if their exponents are not integers"
        raise ValueError(f"{function}: {rule}, got negative values in {names}")
    raise ValueError(f"{function}: the equation must have finite values in all rows")


def _solved(data: AllRows, u: Array, parity: Array) -> Array:
    """The coefficients ``[K, G]`` by least squares to first order."""
    problem = data.block
    assert problem.group is not None
    z, weight = problem.linear()
    A = problem.products(u, parity) * weight[:, None]
    parts = (problem.group == g for g in range(problem.group[-1] + 1))
    c = [np.linalg.lstsq(A[part], (z * weight)[part], rcond=1e-12)[0] for part in parts]
    return np.stack(c, 1)


def _drawn(data: AllRows, generator: Any) -> Array:
    """Indices of rows with replacement; of each group as many as it has."""
    if data.group is None:
        rows: Array = generator.integers(data.rows, size=data.rows)
        return rows
    sizes = np.bincount(data.group)
    parts = zip(starts(data.group), sizes, strict=True)
    return np.concatenate([first + generator.integers(n, size=n) for first, n in parts])


def resampled(equation: Equation, rows: Rows, loss: str, seed: list[int], draws: int) -> Array:
    """Estimate coefficients and free exponents from drawn rows: ``[draws, parameters]``.

    The rows of each estimate are drawn with replacement, those of a group from its own.
    """
    data, start = started(equation, rows, "bootstrap")
    data = _of_terms(data, start)
    start = refine.refit(data, start, loss)
    signs = outer_signs(data, start.u)
    generator = np.random.default_rng(seed)
    results: list[Array] = []
    for _ in range(draws):
        drawn = data.choose(_drawn(data, generator))
        candidate = refine.refit(drawn, replace(start, rss=np.inf), loss)
        full, shift = unscaled(data, candidate.u)
        c = (candidate.c.T * signs * shift).T
        results.append(np.concatenate([c.ravel(), full[equation.free]]))
    return np.array(results)


def intervals(equation: Equation, draws: Array, level: float) -> list[Interval]:
    """Percentiles of the estimates, in the order of `Equation.intervals`."""
    size = np.abs(draws).max(0)
    size = np.where((size > 0) & np.isfinite(size), size, 1.0)
    with np.errstate(invalid="ignore"):
        low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2], axis=0)
        error = size * (draws / size).std(0, ddof=1)
    count = equation.coef.size
    exponents = np.cumsum(equation.free.ravel()).reshape(equation.free.shape) - 1 + count
    columns, groups = list[int](), count // equation.n_terms
    for k in range(equation.n_terms):  # in the order of the equation's intervals
        columns += range(k * groups, (k + 1) * groups)
        columns += [int(exponents[k, i]) for i in np.flatnonzero(equation.free[k])]
    numbers = np.stack([error, low, high], 1)[columns].tolist()
    results = []
    for interval, (deviation, first, last) in zip(
        equation.confidence_intervals(level), numbers, strict=True
    ):
        results.append(replace(interval, stderr=deviation, low=first, high=last))
    return results
