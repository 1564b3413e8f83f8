"""Confidence intervals by profiles of the sum of squares.

One number is fixed at a distance from its estimate, and all others are fitted again. The interval
ends where the sum of squares, in units of the errors' variance, has risen by the square of
Student's t (Bates and Watts 1988, section 6.1). Where the trajectory is linear in the numbers these
are the intervals of the standard errors. All numbers and both sides are one batch.

The distance is measured in the units of the scaled series. For a coefficient of a term with free
exponents it is a distance of the logarithm in the user's units, which depend on the exponents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from npu_kernels.equations._series.laws import Law, limits, minimise
from npu_kernels.equations._series.sensitivity import Trajectories
from npu_kernels.optim.least_squares import error

ROOT_TOLERANCE = 0.01  # relative error of the root of the rise at an end
ROUNDS = 12  # distances that are tried: where none of them reaches the end it is infinite
SLOWEST, FASTEST = 1.02, 3.0  # growth of the distance in a round
ROUND_STEPS, TOLERANCE = 15, 1e-5  # of least squares in a round
SCALED_RIDGE = 1e-9  # of the normal equations, whose columns have length 1


@dataclass(frozen=True)
class Pinned(Trajectories):
    """The series for K laws, each with one number fixed at a distance from its estimate."""

    base: Tensor  # [N], the estimate
    number: Tensor  # [K], the index of the fixed number
    distance: Tensor  # [K]
    slope: Tensor  # [K, N], of a coefficient's logarithm by its exponents; 0 for other numbers
    logarithmic: Tensor  # [K], whether the distance is that of a logarithm

    def filled(self, x: Tensor) -> Tensor:
        """Return ``x [K, N]`` with the fixed numbers."""
        value = self.base[self.number]
        far = self.distance + ((x - self.base) * self.slope).sum(1)
        value = torch.where(self.logarithmic, value * far.clamp(max=700).exp(), value + far)
        return x.scatter(1, self.number.unsqueeze(1), value.unsqueeze(1))

    def states(self, x: Tensor) -> Tensor:
        return super().states(self.filled(x))

    def jacobian(self, x: Tensor, states: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the derivatives for the free numbers and, at the fixed one, the distance."""
        x = self.filled(x)
        r, j = super().jacobian(x, states)
        index = self.number.unsqueeze(1)
        factor = torch.where(self.logarithmic.unsqueeze(1), x.gather(1, index), 1.0)
        columns = index.unsqueeze(1).expand(-1, j.shape[1], 1)
        column = j.gather(2, columns) * factor.unsqueeze(1)  # [K, R, 1]
        j = j + column * self.slope.unsqueeze(1)
        return r, j.scatter(2, columns, column)

    def lanes(self, index: Tensor) -> Pinned:
        """Return the problem of some of the K laws."""
        names = "number", "distance", "slope", "logarithmic"
        return replace(self, **{name: getattr(self, name)[index] for name in names})


def distances(
    law: Law, index: Sequence[int], logarithmic: Sequence[bool], rise: float
) -> tuple[Tensor, Tensor]:
    """Return the distances ``[K]`` of free numbers below and above their estimates.

    index: of the numbers. rise: root of the sum of squares' rise at the ends. Distances are
    infinite where none that was tried reaches it.
    """
    if not index:
        return torch.zeros(0), torch.zeros(0)
    count = len(index)
    pinned, free = _pinned(law, list(index) * 2, list(logarithmic) * 2)
    side = torch.cat([-torch.ones(count), torch.ones(count)]).double()
    walked = _walked(pinned, free, law.x, side, rise)
    return walked[:count], walked[count:]


def _pinned(law: Law, index: list[int], logarithmic: list[bool]) -> tuple[Pinned, Tensor]:
    """Return the laws at distance 0, and their free numbers ``[K, N]``."""
    problem, number = law.weighted(), torch.tensor(index)
    shape, data = problem.shape, problem.data
    h, d = shape.terms, shape.states
    slope = torch.zeros(len(index), shape.size, dtype=torch.float64)
    for lane, (i, is_log) in enumerate(zip(index, logarithmic, strict=True)):
        if is_log:
            k = (i - h * d) % h
            slope[lane, k * d : (k + 1) * d] = data.size.log()
    zero = torch.zeros(len(index), dtype=torch.float64)
    parts = {f.name: getattr(problem, f.name) for f in fields(problem)}
    fixed: dict[str, Any] = {"base": law.x, "number": number, "distance": zero, "slope": slope}
    pinned = Pinned(**parts, **fixed, logarithmic=torch.tensor(logarithmic))
    return pinned, law.free.expand(len(index), -1).scatter(1, number.unsqueeze(1), False)


def _along(pinned: Pinned, free: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distances' standard errors ``[K]``, and the others' slopes by them ``[K, N]``."""
    _, j = pinned.jacobian(pinned.base.expand(len(pinned.number), -1))
    column = j.gather(2, pinned.number.view(-1, 1, 1).expand(-1, j.shape[1], 1))
    j = torch.where(free.unsqueeze(1), j, 0.0)
    length = j.norm(dim=1).clamp(min=1e-300)
    j = j / length.unsqueeze(1)
    hessian = j.mT @ j + SCALED_RIDGE * torch.eye(j.shape[2], dtype=j.dtype)
    move = -torch.linalg.solve(hessian, j.mT @ column)
    rest = (column + j @ move).square().sum((1, 2))
    return 1 / rest.sqrt(), move.squeeze(2) / length


def _walked(pinned: Pinned, free: Tensor, x: Tensor, side: Tensor, rise: float) -> Tensor:
    """Return the distances at which the root of the rise is `rise`."""
    spread, move = _along(pinned, free)
    minimum = pinned.residual(x.expand(len(side), -1)).square().sum(1)
    low = limits(pinned)[0]
    low[: pinned.shape.weights] = -math.inf  # the data alone set the ends of the others
    bound = (low - x)[pinned.number]
    inner, inner_root = torch.zeros_like(side), torch.zeros_like(side)
    inner_x = x.expand(len(side), -1).clone()
    outer, outer_root = side * math.inf, torch.full_like(side, math.inf)
    slope = side / spread  # of the root by the distance
    distances = side * math.inf
    trial, active = (side * rise * spread).maximum(bound), torch.arange(len(side))
    for _ in range(ROUNDS):
        a = active
        begin = inner_x[a] + move[a] * (trial[a] - inner[a]).unsqueeze(1)
        begin = torch.where(free[a], begin, x).clamp(*limits(pinned))
        lanes = replace(pinned, distance=trial).lanes(a)
        near = torch.where(free[a], inner_x[a], x)
        better = error(lanes.residual(begin)) < error(lanes.residual(near))
        begin = torch.where(better.unsqueeze(1), begin, near)
        x_fit, _ = minimise(lanes, begin, free[a], ROUND_STEPS, TOLERANCE)
        rows = lanes.residual(x_fit).square().sum(1)
        root = (rows - minimum[a]).clamp(min=0).sqrt().nan_to_num(math.inf, math.inf)
        within = root <= rise
        done = ((root - rise).abs() < ROOT_TOLERANCE * rise) | (within & (trial[a] <= bound[a]))
        distances[a] = torch.where(done, trial[a], distances[a])
        moved = trial[a] - inner[a]
        rate = (x_fit - inner_x[a]) / moved.unsqueeze(1)
        move[a] = torch.where((within & (moved != 0)).unsqueeze(1), rate, move[a])
        slope[a] = torch.where(within, (root - inner_root[a]) / moved, slope[a])
        inner_x[a] = torch.where(within.unsqueeze(1), x_fit, inner_x[a])
        inner[a] = torch.where(within, trial[a], inner[a])
        inner_root[a] = torch.where(within, root, inner_root[a])
        outer[a] = torch.where(within, outer[a], trial[a])
        outer_root[a] = torch.where(within, outer_root[a], root)
        active = a[~done]
        if not len(active):
            break
        trial = _next(inner, inner_root, outer, outer_root, slope, rise).maximum(bound)
    distances[active] = outer[active]
    return distances


def _next(
    inner: Tensor, inner_root: Tensor, outer: Tensor, outer_root: Tensor, slope: Tensor, rise: float
) -> Tensor:
    """Return the next distances ``[K]``.

    They lie between those below and above the rise, and farther out where none is above it.
    """
    share = ((rise - inner_root) / (outer_root - inner_root)).clamp(0.1, 0.9)
    between = inner + torch.where(outer_root.isfinite(), share, 0.5) * (outer - inner)
    growth = 1 + (rise - inner_root) / (slope * inner)
    growth = torch.where(growth >= 1, growth, FASTEST).clamp(SLOWEST, FASTEST)
    return torch.where(outer.isfinite(), between, growth * inner)
