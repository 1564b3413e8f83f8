"""Refits of a law with its form kept: to new data, and to rows drawn anew (the bootstrap)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npu_kernels._laws.products.groups import starts
from npu_kernels._laws.products.problem import AllRows, Columns, Output, root_mean_square
from npu_kernels._laws.table import refine
from npu_kernels._laws.table.equation import Equation, Interval
from npu_kernels._laws.table.estimates import Rows, equation_of, left_out, sizes
from npu_kernels._laws.table.refine import Sum

Array = Any

UNTOLD = 1e-10  # of a singular value of derivatives of length 1: below, rows tell nothing of it


@dataclass(frozen=True)
class Table:
    """The data of one output for a law of known form; with groups sorted by them."""

    X: Array  # [N, inputs]
    y: Array  # [N]
    weight: Array  # [N]
    group: Array | None  # [N]: indices of labels
    labels: tuple[Any, ...] | None


def refitted(
    equation: Equation, table: Table, noise: float | None, loss: str
) -> tuple[Rows, Equation]:
    """Return the rows, and the law with its form and the parameters that fit them best.

    noise: the standard deviation of the errors, if it was measured. The labels of the groups may be
    others than those of the law.
    """
    X, y, weight = table.X, table.y, table.weight
    parts = equation.functions, equation.output, (equation.function,), equation.constraint
    origin = np.arange(len(y))
    of_law = equation.part, equation.limits, table.group, table.labels
    rows = Rows(X, y, weight, *parts, noise, (), origin, *of_law)
    for again in range(2):  # errors in proportion to y are in proportion to the first law's y
        is_new = not again and table.labels is not None
        data, start = _started(equation, table, noise, "refit", is_new)
        law = refine.refit(_of_terms(data, start), start, loss)
        if not math.isfinite(law.rss):
            raise ValueError("refit: the law must have finite values in all rows")
        error = left_out(rows, data, law)
        equation = equation_of(rows, data, law, error, 0, equation.noise)
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
    equation: Equation, table: Table, noise: float | None, function: str, is_new: bool = False
) -> tuple[AllRows, Sum]:
    """The rows of a fit, and the law for them with the parameters that it has.

    function: that is called, for messages. is_new: the groups are others than the law's.
    """
    X, y, weight = table.X, table.y, table.weight
    columns = Columns.of(equation.functions.expand(X))
    root = np.sqrt(weight / weight.mean())
    if equation.noise == "relative":
        root = root / sizes(y if is_new else equation._predicted(X, table.group))
    output = Output(
        columns, y, root, equation.constraint, noise,
        equation.relative_rms * root_mean_square(y, root), equation.noise == "factor",
        equation.function, equation.limits,
        None if equation.part is None else equation.part.values(X), table.group,
    )  # fmt: skip
    data = output.scaled(equation.power, equation.below)
    if data is None:
        raise ValueError(
            f"{function}: y must be greater than 0 for the output power {equation.power:g}"
        )
    free = equation.free[:, equation.constraint.free]
    u = equation.exponents[:, equation.constraint.free]
    parity = np.where(data.mixed, np.abs(u) % 2, 0.0)
    if is_new:
        return data, Sum(u, parity, free, _solved(data, u, parity))
    above = equation.terms - equation.below
    signs = data.outer_signs(u)
    signs[:above] *= data.sign if abs(equation.power) == 1 else 1.0
    shift = equation.exponents @ (columns.log_mean - equation.log_mean)
    shift[:above] += equation.power * math.log(equation.scale / data.scale)
    c = equation.scaled * np.exp(shift) * signs
    return data, Sum(u, parity, free, c.T)


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


def resampled(equation: Equation, table: Table, loss: str, seed: list[int], draws: int) -> Array:
    """Estimate coefficients and free exponents from drawn rows: ``[draws, parameters]``.

    The rows of each estimate are drawn with replacement, those of a group from its own.
    """
    data, start = _started(equation, table, None, "bootstrap")
    data = _of_terms(data, start)
    start = refine.refit(data, start, loss)
    above = equation.terms - equation.below
    signs = data.outer_signs(start.u)
    signs[:above] *= data.sign if abs(equation.power) == 1 else 1.0
    generator = np.random.default_rng(seed)
    results: list[Array] = []
    for _ in range(draws):
        rows = _drawn(data, generator)
        law = refine.refit(data.choose(rows), replace(start, rss=np.inf), loss)
        full = equation.constraint.full(law.u, equation.power, equation.below)
        size = np.where(np.arange(equation.terms) < above, equation.power * math.log(data.scale), 0)
        with np.errstate(over="ignore", under="ignore"):
            shift = np.exp(size - full @ data.columns.log_mean)
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
