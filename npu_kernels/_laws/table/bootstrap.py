"""Confidence intervals from resampled rows, with the form of the equation kept."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from npu_kernels._laws.products.problem import Columns, all_rows, root_mean_square
from npu_kernels._laws.table import refine
from npu_kernels._laws.table.equation import Equation, Interval
from npu_kernels._laws.table.output import sizes
from npu_kernels._laws.table.refine import Sum

Array = Any


def resampled(
    equation: Equation, X: Array, y: Array, weight: Array, loss: str, seed: list[int], draws: int
) -> Array:
    """Estimate coefficients and free exponents from drawn rows: ``[draws, parameters]``.

    The rows of each estimate are drawn with replacement.
    """
    columns = Columns.of(equation.functions.expand(X))
    root = np.sqrt(weight / weight.mean())
    if equation.noise == "relative":
        root = root / sizes(equation.predict(X))
    factor = equation.noise == "factor"
    error = equation.relative_rms * root_mean_square(y, root)
    form, function, below = (equation.power, equation.constraint), equation.function, equation.below
    data = all_rows(columns, y, root, *form, None, error, factor, function, below)
    if data is None:
        raise ValueError(
            f"bootstrap: y must be greater than 0 for the output power {equation.power:g}"
        )
    free = equation.free[:, equation.constraint.free]
    u = equation.exponents[:, equation.constraint.free]
    above = equation.terms - equation.below
    signs = data.outer_signs(u)
    signs[:above] *= data.sign if abs(equation.power) == 1 else 1.0
    shift = equation.exponents @ (columns.log_mean - equation.log_mean)
    shift[:above] += equation.power * math.log(equation.scale / data.scale)
    c = equation.scaled * np.exp(shift) * signs
    start = Sum(u, np.where(data.mixed, np.abs(u) % 2, 0.0), free, c)
    start = refine.refit(data, start, loss)
    generator = np.random.default_rng(seed)
    results: list[Array] = []
    for _ in range(draws):
        rows = generator.integers(data.rows, size=data.rows)
        refitted = refine.refit(data.choose(rows), replace(start, rss=np.inf), loss)
        full = equation.constraint.full(refitted.u, equation.power, equation.below)
        size = np.where(np.arange(equation.terms) < above, equation.power * math.log(data.scale), 0)
        with np.errstate(over="ignore", under="ignore"):
            shift = np.exp(size - full @ columns.log_mean)
        coef = refitted.c * signs * shift
        results.append(np.concatenate([coef, full[equation.free]]))
    return np.array(results)


def intervals(equation: Equation, draws: Array, level: float) -> list[Interval]:
    """Percentiles of the estimates, in the order of `Equation.intervals`."""
    size = np.abs(draws).max(0)
    size = np.where((size > 0) & np.isfinite(size), size, 1.0)
    with np.errstate(invalid="ignore"):
        low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2], axis=0)
        error = size * (draws / size).std(0, ddof=1)
    exponents = np.cumsum(equation.free.ravel()).reshape(equation.free.shape) - 1 + equation.terms
    columns = []  # of the estimates, to which the equation's intervals belong
    for k in range(equation.terms):
        columns += [k, *(int(exponents[k, i]) for i in np.flatnonzero(equation.free[k]))]
    numbers = np.stack([error, low, high], 1)[columns].tolist()
    results = []
    for interval, (deviation, first, last) in zip(equation.intervals(level), numbers, strict=True):
        results.append(replace(interval, error=deviation, low=first, high=last))
    return results
