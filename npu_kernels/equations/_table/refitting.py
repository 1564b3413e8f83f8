"""Refits of a law with its form kept: to new data, and to rows drawn anew (the bootstrap)."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from npu_kernels.equations._products.digits import FLOAT64_ROUNDING
from npu_kernels.equations._products.groups import starts
from npu_kernels.equations._products.problem import AllRows, Columns, Output
from npu_kernels.equations._table import refine
from npu_kernels.equations._table.equation import Equation
from npu_kernels.equations._table.estimates import (
    Rows,
    equation_of,
    left_out,
    outer_signs,
    sizes,
    unscaled,
)
from npu_kernels.equations._table.interval import Interval
from npu_kernels.equations._table.refine import Sum

Array = Any

UNTOLD = 1e-10  # of a singular value of derivatives of length 1: below, rows tell nothing of it


def rows_of(
    equation: Equation, X: Array, y: Array, weight: Array, origin: Array, group: Array | None,
    labels: Any, noise: float | str | None = None, digits: float = FLOAT64_ROUNDING,
) -> Rows:  # fmt: skip
    """Return rows for a law of known form.

    origin: the rows' numbers in the table. group: the rows are sorted by it. noise: as in
    `NPURegressor`, of which only a number matters. digits: the relative error to which y is
    rounded. The labels of the groups may be others than those of the law.
    """
    parts = equation.functions, equation.output, (equation.function,), equation.constraint
    of_law = equation.part, equation.limits, group, labels
    return Rows(X, y, weight, *parts, noise, digits, (), origin, *of_law)


def refitted(equation: Equation, rows: Rows, loss: str) -> tuple[Rows, Equation]:
    """Return the rows, and the law with its form and the parameters that fit them best."""
    if rows.deviation is not None or equation.noise == "known":
        equation = replace(equation, noise="constant" if rows.deviation is None else "known")
    for again in range(2):  # errors in proportion to y are in proportion to the first law's y
        is_new = not again and rows.labels is not None
        data, start = _started(equation, rows, "refit", is_new)
        law = refine.refit(_of_terms(data, start), start, loss)
        if not math.isfinite(law.rss):
            raise ValueError("refit: the law must have finite values in all rows")
        error = left_out(rows, data, law)
        equation = equation_of(rows, data, law, error, 0, equation.noise, loss)
    untold = _untold(data, law) if equation.labels is None else ""
    if untold:
        free = equation.free
        equation = replace(
            equation, coef_std=np.full_like(equation.coef, math.inf),
            exponents_std=np.where(free, math.inf, equation.exponents_std),
        )  # fmt: skip
        rows = replace(rows, notes=(untold,))
    return rows, equation


def _of_terms(data: AllRows, law: Sum) -> AllRows:
    """The rows, for the terms of a law: a coefficient that its limits make 0 is no error."""
    if data.limits is None:
        return data
    return replace(data, limits=data.limits.of_terms(law.u, law.parity, data.below))


def _untold(data: AllRows, law: Sum) -> str:
    """A note if the rows do not tell all parameters of a law; without a note the empty text."""
    R = refine.triangle(
        np.concatenate([refine.triangle(J) for _, J in refine.derivatives(data, law)])
    )
    k, _ = np.nonzero(law.free)
    told = np.append(np.ones(len(law.c), dtype=bool), law.c[k] != 0)
    R = (R / refine.lengths(R))[:, told]
    rank = int(np.linalg.matrix_rank(R, tol=UNTOLD)) if R.size and np.isfinite(R).all() else 0
    if rank == told.sum():
        return ""
    return (
        f"The rows tell {rank} of the law's {told.sum()} parameters: the others are no estimates, "
        "and no parameter has a standard error."
    )


def _started(
    equation: Equation, rows: Rows, function: str, is_new: bool = False
) -> tuple[AllRows, Sum]:
    """The rows of a fit, and the law for them with the parameters that it has.

    function: that is called, for messages. is_new: the groups are others than the law's.
    """
    columns = Columns.of(equation.functions.expand(rows.X))
    root = rows.root
    if equation.noise == "relative":
        root = root / sizes(rows.y if is_new else equation._predicted(rows.X, rows.group))
    output = Output(  # any y of the other sign is taken for an error, as in the last fit of `fit`
        columns, rows.y, root, equation.constraint, rows.deviation, math.inf,
        equation.noise == "factor", equation.function, equation.limits,
        None if equation.part is None else equation.part.values(rows.X), rows.group,
        rows.digits,
    )  # fmt: skip
    data = output.scaled(equation.power, equation.below)
    if data is None or _fractional(equation, columns).any():
        _refuse(equation, columns, rows.y, function)
    assert data is not None
    free = equation.free[:, equation.constraint.free]
    u = equation.exponents[:, equation.constraint.free]
    parity = np.where(data.mixed, np.abs(u) % 2, 0.0)
    if is_new:
        return data, Sum(u, parity, free, _solved(data, u, parity))
    above = equation.terms - equation.below
    shift = equation.exponents @ (columns.log_mean - equation.log_mean)
    shift[:above] += equation.power * math.log(equation.scale / data.scale)
    c = equation.scaled * np.exp(shift) * outer_signs(data, u)
    return data, Sum(u, parity, free, c.T)


def _fractional(equation: Equation, columns: Columns) -> Array:
    """The columns with negative values whose exponents in the law are no whole numbers ``[n]``."""
    fractional = (equation.free | (equation.exponents % 1 != 0)).any(0)
    negative: Array = columns.negative & fractional
    return negative


def _refuse(equation: Equation, columns: Columns, y: Array, function: str) -> NoReturn:
    """Raise the ValueError that says why rows are none of a law."""
    if equation.noise == "factor" and not ((y > 0).all() or (y < 0).all()):
        rule = "y must have one sign and no zeros, as the errors of the law are factors of y"
        raise ValueError(f"{function}: {rule}, got y from {y.min():g} to {y.max():g}")
    negative = _fractional(equation, columns)
    if negative.any():
        names = ", ".join(equation.names[i] for i in np.flatnonzero(negative))
        rule = "columns must not be negative where their exponents are no whole numbers"
        raise ValueError(f"{function}: {rule}, got negative values in {names}")
    raise ValueError(f"{function}: the law must have finite values in all rows")


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
    data, start = _started(equation, rows, "bootstrap")
    data = _of_terms(data, start)
    start = refine.refit(data, start, loss)
    signs = outer_signs(data, start.u)
    generator = np.random.default_rng(seed)
    results: list[Array] = []
    for _ in range(draws):
        drawn = data.choose(_drawn(data, generator))
        law = refine.refit(drawn, replace(start, rss=np.inf), loss)
        full, shift = unscaled(data, law.u)
        c = (law.c.T * signs * shift).T
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
    columns, groups = list[int](), count // equation.terms
    for k in range(equation.terms):  # in the order of the equation's intervals
        columns += range(k * groups, (k + 1) * groups)
        columns += [int(exponents[k, i]) for i in np.flatnonzero(equation.free[k])]
    numbers = np.stack([error, low, high], 1)[columns].tolist()
    results = []
    for interval, (deviation, first, last) in zip(equation.intervals(level), numbers, strict=True):
        results.append(replace(interval, error=deviation, low=first, high=last))
    return results
