"""The starts of the search for a law: smoothed series, and products of powers that explain them.

Cubic smoothing splines give states and slopes. All columns of a series have one smoothness, by
generalised cross-validation (Craven and Wahba 1979): states of one system change at one pace, and
few points of one column may not tell it. The sets of terms that explain states and slopes best
become the starts; coefficients are least squares of the slopes.

Half of the sets are of simple products, and a third of products of whole powers, whose exponents
stay (`sets`). The others are drawn.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npu_kernels._common.seeds import stream
from npu_kernels.equations._series.data import Series
from npu_kernels.equations._series.sensitivity import Shape
from npu_kernels.equations._series.sets import Course, integer_sets, simple_sets

MIN_SAMPLES = 4  # of a column, for a smoothing spline
EXACT_SPLINE = 1e-6  # relative residuals below count as exact
LEAST_SIZE = 0.1  # of a column's root mean square: of a value, where errors are in proportion
MIN_AMOUNT = 1e-5  # of a column's size, where slopes are matched
DRAWN = (-1.0, -0.5, 0.0, 0.0, 0.0, 0.5, 0.5, 1.0, 1.0, 1.0, 1.5, 2.0)
DRAWN_SETS = 4096  # of exponents
SLOPES_RIDGE = 1e-6  # of the normal equations, whose columns have length 1
KINDS = "simple", "whole", "simple", "drawn", "simple", "whole"  # of the starts, in turn


def smoothed(data: Series) -> tuple[Tensor, Tensor]:
    """Return states and slopes ``[S, M, D]`` at the nodes; nan in columns of too few samples."""
    import numpy as np

    states = torch.full_like(data.values, math.nan)
    slopes = torch.full_like(data.values, math.nan)
    noise = torch.zeros(data.values.shape[2], dtype=torch.float64)
    for s in range(len(data.times)):
        for curve in _splines(data, s):
            d, distinct, line = curve.column, curve.times, curve.line
            nodes = data.times[s].clamp(float(distinct[0]), float(distinct[-1])).numpy()
            value, rate = torch.from_numpy(line(nodes)), torch.from_numpy(line.derivative()(nodes))
            states[s, :, d] = value.exp() if data.relative else value
            slopes[s, :, d] = value.exp() * rate if data.relative else rate
            noise[d] = max(float(noise[d]), math.sqrt(float(np.mean(curve.residuals**2))))
    states[:, 0] = torch.where(data.start.isnan() | ~data.observed, states[:, 0], data.start)
    # Below a tenth of the noise nothing is known of an amount's logarithm.
    floor = torch.where(data.positive, (noise / 10).clamp(min=MIN_AMOUNT), -math.inf)
    return torch.maximum(states, floor) if not data.relative else states, slopes


def sized(data: Series) -> Series:
    """Return the series with weights 1 over the size of the smooth curve."""
    size = smoothed(data.scaled())[0].abs().nan_to_num(1.0).clamp(min=LEAST_SIZE)
    return replace(data, weight=data.seen / size)


def spline_errors(data: Series) -> tuple[Tensor, Tensor]:
    """Return the standard deviations ``[D]`` of the errors, and their degrees of freedom ``[D]``.

    They are those of the smoothing splines, without any law; nan in columns of too few samples.
    """
    import numpy as np

    squares, freedom = torch.zeros(2, data.values.shape[2], dtype=torch.float64).unbind(0)
    for s in range(len(data.times)):
        for curve in _splines(data, s):
            seen = data.seen[s, :, curve.column]
            weights = data.weight[s, seen, curve.column].numpy()
            weight = np.interp(curve.times, data.times[s, seen].numpy(), weights)
            squares[curve.column] += float(((weight * curve.residuals) ** 2).sum())
            freedom[curve.column] += curve.freedom
    errors = torch.where(freedom > 0, squares / freedom.clamp(min=1e-3), math.nan).sqrt()
    return errors, freedom


class _Curve(NamedTuple):
    """A smoothing spline of one column of a series."""

    column: int
    times: Any  # [n], distinct ones
    residuals: Any  # of the means at these times
    freedom: float  # degrees that the residuals have
    line: Any  # the spline, a function of time


def _splines(data: Series, s: int) -> list[_Curve]:
    """Return the smoothing splines of the columns of series s that have enough samples."""
    import numpy as np

    columns = []
    for d in range(data.values.shape[2]):
        seen = data.seen[s, :, d]
        t, y = data.times[s, seen].numpy(), data.values[s, seen, d].numpy()
        distinct, time_index = np.unique(t, return_inverse=True)
        sums = np.bincount(time_index, np.log(y) if data.relative else y)
        mean = sums / np.maximum(np.bincount(time_index), 1)
        if len(distinct) >= MIN_SAMPLES:
            columns.append((d, distinct, mean))
    return _curves(columns)


def _curves(columns: list[tuple[int, Any, Any]]) -> list[_Curve]:
    """Return the natural smoothing splines of columns: number, times and values of each."""
    import numpy as np
    from scipy.interpolate import CubicSpline

    smoothness = 10.0 ** np.arange(-12, 3, 0.25)[:, None]
    score, parts = 0.0, []
    for _, t, y in columns:
        n, (values, vectors) = len(t), _roughness(t.tobytes())
        keep = 1 / (1 + smoothness * np.maximum(values, 0))
        z = vectors.T @ y
        rest = (((1 - keep) * z) ** 2).sum(1) / max(float(((y - y.mean()) ** 2).sum()), 1e-300)
        score = score + n * np.log(np.maximum(rest, EXACT_SPLINE**2) / (1 - keep.sum(1) / n) ** 2)
        parts.append((keep, vectors, z))
    if not columns:
        return []
    best = int(np.argmin(score))
    curves = []
    for (d, t, y), (keep, vectors, z) in zip(columns, parts, strict=True):
        fitted = vectors @ (keep[best] * z)
        line = CubicSpline(t, fitted, bc_type="natural")
        curves.append(_Curve(d, t, y - fitted, len(t) - float(keep[best].sum()), line))
    return curves


@functools.lru_cache(maxsize=32)
def _roughness(times: bytes) -> tuple[Any, Any]:
    """Return eigenvalues and eigenvectors of the roughness of natural splines through times.

    Columns that were measured at the same times have the same.
    """
    import numpy as np

    gap = np.diff(np.frombuffer(times))
    n = len(gap) + 1
    Q, R = np.zeros((n, n - 2)), np.zeros((n - 2, n - 2))
    for i in range(n - 2):  # Green and Silverman (1994), section 2.3
        Q[i : i + 3, i] = 1 / gap[i], -1 / gap[i] - 1 / gap[i + 1], 1 / gap[i + 1]
        R[i, i] = (gap[i] + gap[i + 1]) / 3
        if i:
            R[i, i - 1] = R[i - 1, i] = gap[i] / 6
    values, vectors = np.linalg.eigh(Q @ np.linalg.solve(R, Q.T))
    return values, vectors


def matched(
    data: Series,
    states: Tensor,
    slopes: Tensor,
    shape: Shape,
    fixed: Tensor,
    signed: Tensor,
    count: int,
    seed: int,
) -> tuple[Tensor, ...]:
    """Return exponents ``[count, h, D]``, coefficients ``[count, D, h]``, and what is free of them.

    fixed ``[n, D]``: exponents of the first terms. signed: the states with whole exponents. What is
    free are exponents ``[count, h, D]`` and terms ``[count, h]``. The first starts do not depend on
    their count.
    """
    course = Course(data.lengths, states, states[:, 1:] - states[:, :1], False)
    simple = simple_sets(course, shape, fixed, seed)
    integer = integer_sets(course, shape, fixed)
    random = drawn(max(DRAWN_SETS, count), shape, signed, stream("time series", seed))
    random[:, : len(fixed)] = fixed
    remainders = torch.cat([_solved(part, states, slopes)[1] for part in random.split(512)])
    random = random[remainders.nan_to_num(math.inf).argsort(stable=True)]
    kinds = {
        "simple": ((u, (u != 0) & ~signed, used) for u, used in simple),
        "whole": ((u, torch.zeros_like(u, dtype=torch.bool), used) for u, used in integer),
        "drawn": ((u, (~signed).expand_as(u), u.new_ones(len(u)).bool()) for u in random),
    }
    starts: list[tuple[Tensor, ...]] = []
    for kind in itertools.cycle(KINDS):
        if len(starts) == count:
            break
        starts.append(next(kinds[kind], ()) or next(kinds["drawn"]))
    exponents, free, used = map(torch.stack, zip(*starts, strict=True))
    coefficients = _solved(exponents, states, slopes, used.unsqueeze(1).double())[0]
    return exponents, coefficients, free, used


def drawn(count: int, shape: Shape, signed: Tensor, generator: torch.Generator) -> Tensor:
    """Draw exponents ``[count, h, D]``, integers for states of both signs."""
    lattice = torch.tensor(DRAWN, dtype=torch.float64)
    pick = torch.randint(len(DRAWN), (count, shape.terms, shape.states), generator=generator)
    exponents = lattice[pick]
    noise = 0.05 * torch.randn(exponents.shape, generator=generator, dtype=torch.float64)
    exponents = torch.where(signed, exponents.round(), exponents + noise)
    if shape.low is not None and shape.high is not None:
        exponents = exponents.clamp(shape.low, shape.high)
    return exponents


def _solved(
    exponents: Tensor, states: Tensor, slopes: Tensor, used: Tensor | float = 1.0
) -> tuple[Tensor, Tensor]:
    """Fit the slopes: coefficients ``[K, D, h]``, and remainders over the slopes' sizes ``[K]``.

    used ``[K, 1, h]``: 0 for absent terms.
    """
    keep = slopes.isfinite().all(-1) & states.isfinite().all(-1)
    X, Y = states[keep], slopes[keep]
    logarithms = (X.abs().clamp(min=1e-12).log() @ exponents.mT).clamp(-30, 30)
    P = torch.exp(logarithms) * used  # [K, rows, h]
    if (X < 0).any():
        P = P * (1 - 2 * (((X < 0).double() @ exponents.round().abs().mT) % 2))
    length = P.norm(dim=1, keepdim=True).clamp(min=1e-30)
    Q = P / length
    gram = Q.mT @ Q + SLOPES_RIDGE * torch.eye(Q.shape[2], dtype=Q.dtype)
    c = torch.linalg.solve(gram, Q.mT @ Y)
    remainder = (Y - Q @ c).square().sum(1) / Y.square().sum(0).clamp(min=1e-30)
    return (c / length.mT).mT, remainder.sum(1)
