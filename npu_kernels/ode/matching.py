"""Where the search for a law begins: smoothed series, their slopes, and products of powers that explain the slopes.

A cubic smoothing spline of every column, its smoothness by generalised cross-validation, gives states and slopes. The
sets of terms that leave least of the slopes become the starts (gradient matching); coefficients are least squares.

Half of the sets are of simple products, from the library of `npu_kernels.equations`, chosen term by term for all slopes
together, many sets at once. The others are drawn.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from npu_kernels.fitting.data import stream
from npu_kernels.ode.sensitivity import Shape
from npu_kernels.ode.series import Series

ENOUGH = 5  # samples of a column that a smoothing spline needs
SMALLEST = 1e-5  # of a column's size: what an amount is at least, where slopes are matched
DRAWN = (-1.0, -0.5, 0.0, 0.0, 0.0, 0.5, 0.5, 1.0, 1.0, 1.0, 1.5, 2.0)
SETS = 4096  # of drawn exponents
RIDGE = 1e-6
WIDTH = 64  # sets of simple products that are continued by one term
OWN = 1e-2  # of a product's square: what those before it must leave


def smoothed(data: Series) -> tuple[Tensor, Tensor]:
    """States and slopes ``[S, M, D]`` at the nodes of a scaled series; nan in columns of too few samples."""
    states = torch.full_like(data.values, math.nan)
    slopes = torch.full_like(data.values, math.nan)
    floor = torch.where(data.positive, SMALLEST, -math.inf)
    for s in range(len(data.times)):
        for d in range(data.values.shape[2]):
            seen = data.seen[s, :, d]
            t, y = data.times[s, seen].numpy(), data.values[s, seen, d].numpy()
            found = _curve(t, y, data.relative, data.times[s].numpy())
            if found is not None:
                states[s, :, d], slopes[s, :, d] = map(torch.from_numpy, found)
                if data.positive[d]:  # below a tenth of the noise nothing is known of the logarithm
                    noise = float((states[s, seen, d] - data.values[s, seen, d]).square().mean().sqrt())
                    floor[d] = max(float(floor[d]), noise / 10)
    known = ~data.start.isnan()
    states[:, 0] = torch.where(known & data.observed, data.start, states[:, 0])
    return torch.maximum(states, floor), slopes


def _curve(t: Any, y: Any, relative: bool, nodes: Any) -> tuple[Any, Any] | None:
    """A curve's values and slopes at the nodes; outside of the samples those at the nearest one."""
    import numpy as np
    from scipy.interpolate import CubicSpline, make_smoothing_spline

    known, place = np.unique(t, return_inverse=True)
    if len(known) < 3:
        return None
    y = np.log(y) if relative else y
    count = np.bincount(place)
    mean = np.bincount(place, y) / count
    nodes = np.clip(nodes, known[0], known[-1])
    line = CubicSpline(known, mean) if len(known) < ENOUGH else make_smoothing_spline(known, mean, count.astype(float))
    value, rate = line(nodes), line.derivative()(nodes)
    return (np.exp(value), np.exp(value) * rate) if relative else (value, rate)


def matched(states: Tensor, slopes: Tensor, shape: Shape, signed: Tensor, count: int, seed: int) -> tuple[Tensor, ...]:
    """Exponents ``[count, h, D]``, coefficients ``[count, D, h]``, and which exponents are free."""
    simple = torch.from_numpy(_simple(states, slopes, shape.terms, seed))[: (count + 1) // 2]
    exponents = drawn(max(SETS, count), shape, signed, stream("time series", seed))
    found = [_solved(part, states, slopes) for part in exponents.split(512)]
    left = torch.cat([part for _, part in found])
    exponents = exponents[left.nan_to_num(math.inf).argsort()[: count - len(simple)]]
    free = torch.cat([simple != 0, torch.ones_like(exponents, dtype=torch.bool)]) & ~signed
    exponents = torch.cat([simple, exponents])
    return exponents, _solved(exponents, states, slopes)[0], free


def _simple(states: Tensor, slopes: Tensor, terms: int, seed: int) -> Any:
    """Sets of simple products ``[sets, h, D]``, the best first."""
    import numpy as np

    from npu_kernels.equations.library import Library
    from npu_kernels.equations.problem import Columns, problem
    from npu_kernels.equations.units import Exponents

    keep = (slopes.isfinite().all(-1) & states.isfinite().all(-1)).flatten()
    X, Y = states.flatten(0, 1)[keep].numpy(), slopes.flatten(0, 1)[keep].numpy()
    n, d = X.shape
    every = Exponents(np.zeros(d), np.eye(d), np.arange(d))
    rows = problem(Columns.of(X), np.ones(n), np.ones(n), 1.0, every, None)
    assert rows is not None
    library = Library(rows, np.random.default_rng(seed))
    Y = Y / np.maximum(np.linalg.norm(Y, axis=0), 1e-300)
    beam: list[tuple[float, tuple[int, ...]]] = [(float((Y**2).sum()), ())]
    for _ in range(terms):
        longer: dict[tuple[int, ...], float] = {}
        for left, chosen in beam:
            Q = np.linalg.qr(library.A[:, list(chosen)])[0]
            own = 1 - ((Q.T @ library.A) ** 2).sum(0)
            gain = (((Y - Q @ (Q.T @ Y)).T @ library.A) ** 2).sum(0)
            gain = np.where(own > OWN, gain / np.maximum(own, OWN), -math.inf)
            for k in np.argsort(-gain, kind="stable")[:WIDTH]:
                longer[tuple(sorted((*chosen, int(k))))] = left - float(gain[k])
        beam = sorted((left, chosen) for chosen, left in longer.items())[:WIDTH]
    return np.array([library.u[list(chosen)] for _, chosen in beam])


def drawn(count: int, shape: Shape, signed: Tensor, generator: torch.Generator) -> Tensor:
    """Exponents ``[count, h, D]``, whole for states of both signs."""
    lattice = torch.tensor(DRAWN, dtype=torch.float64)
    pick = torch.randint(len(DRAWN), (count, shape.terms, shape.states), generator=generator)
    found = lattice[pick]
    noise = 0.05 * torch.randn(found.shape, generator=generator, dtype=torch.float64)
    return torch.where(signed, found.round(), found + noise)


def _solved(exponents: Tensor, states: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """Least squares of the slopes: coefficients ``[K, D, h]``, and what they leave, over the slopes' sizes ``[K]``."""
    keep = slopes.isfinite().all(-1) & states.isfinite().all(-1)
    X, Y = states[keep], slopes[keep]
    signs = 1 - 2 * (((X < 0).double() @ exponents.round().abs().mT) % 2)
    P = torch.exp((X.abs().clamp(min=1e-12).log() @ exponents.mT).clamp(-30, 30)) * signs  # [K, rows, h]
    length = P.norm(dim=1, keepdim=True).clamp(min=1e-30)
    Q = P / length
    gram = Q.mT @ Q + RIDGE * torch.eye(Q.shape[2], dtype=Q.dtype)
    c = torch.linalg.solve(gram, Q.mT @ Y)
    left = (Y - Q @ c).square().sum(1) / Y.square().sum(0).clamp(min=1e-30)
    return (c / length.mT).mT, left.sum(1)
