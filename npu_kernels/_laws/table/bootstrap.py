"""Confidence intervals from resampled rows, with the form of the equation kept."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from npu_kernels._laws.products.problem import Columns, all_rows
from npu_kernels._laws.table import refine
from npu_kernels._laws.table.equation import Equation, Interval
from npu_kernels._laws.table.output import sizes
from npu_kernels._laws.table.refine import Sum

Array = Any


def resampled(
    one: Equation, X: Array, y: Array, weight: Array, loss: str, seed: list[int], draws: int
) -> Array:
    """Estimates ``[draws, parameters]`` of coefficients and free exponents, each from rows drawn with replacement."""
    columns = Columns.of(X)
    root = np.sqrt(weight / weight.mean())
    if one.relative:
        root = root / sizes(one.predict(X))
    error = one.rms * float(np.sqrt(np.average(y**2, weights=root**2)))
    whole = all_rows(columns, y, root, one.power, one.constraint, None, error)
    if whole is None:
        raise ValueError(f"bootstrap: y must be greater than 0 for the output power {one.power:g}")
    free = one.free[:, one.constraint.free]
    u = one.exponents[:, one.constraint.free]
    shift = np.exp(-one.exponents @ columns.log_mean) * whole.scale**one.power
    factor = whole.outer_signs(u) * (whole.sign if abs(one.power) == 1 else 1.0)
    start = Sum(u, np.where(whole.mixed, np.abs(u) % 2, 0.0), free, one.coef / shift * factor)
    start = refine.refit(whole, start, loss)
    generator = np.random.default_rng(seed)
    found: list[Array] = []
    for _ in range(draws):
        rows = generator.integers(whole.rows, size=whole.rows)
        again = refine.refit(whole.choose(rows), replace(start, rss=np.inf), loss)
        full = one.constraint.full(again.u, one.power)
        coef = again.c * factor * np.exp(-full @ columns.log_mean) * whole.scale**one.power
        found.append(np.concatenate([coef, full[one.free]]))
    return np.array(found)


def intervals(one: Equation, draws: Array, level: float) -> list[Interval]:
    """Percentiles of the estimates, in the order of `Equation.intervals`."""
    low, high = np.quantile(draws, [0.5 - level / 2, 0.5 + level / 2], axis=0)
    error = draws.std(0, ddof=1)
    exponents = np.cumsum(one.free.ravel()).reshape(one.free.shape) - 1 + one.terms
    found = []
    for interval, at in zip(one.intervals(level), _places(one, exponents), strict=True):
        found.append(
            replace(interval, error=float(error[at]), low=float(low[at]), high=float(high[at]))
        )
    return found


def _places(one: Equation, exponents: Array) -> list[int]:
    """Which column of the estimates each of the equation's intervals belongs to."""
    found = []
    for k in range(one.terms):
        found += [k, *(int(exponents[k, i]) for i in np.flatnonzero(one.free[k]))]
    return found
