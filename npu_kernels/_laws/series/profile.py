"""Intervals of the numbers of a law by the profile of the sum of squares.

One number is fixed at a distance from its estimate, and all others are fitted again. The interval ends where the sum of
squares, in units of the errors' variance, has risen by the square of Student's t (Bates and Watts 1988, section 6.1).
Where the trajectory is linear in the numbers these are the intervals of the standard errors. All numbers and both sides
are one batch.

The distance is one of the number in the units of the scaled series. For a coefficient of a term with free exponents it
is one of the logarithm in the user's units: these depend on the exponents.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from npu_kernels._laws.series.laws import Law, lowest, minimise
from npu_kernels._laws.series.sensitivity import Trajectories
from npu_kernels.optim.least_squares import error

CLOSE = 0.01  # relative error of the root of the rise with which an end counts as found
ROUNDS = 12  # distances that are tried: where none of them reaches the end it is infinite
SLOWEST, FASTEST = 1.02, 3.0  # growth of the distance in a round
STEPS, TOLERANCE = 15, 1e-5  # of least squares in a round
RIDGE = 1e-9


@dataclass(frozen=True)
class Pinned(Trajectories):
    """The series for K laws, each with one number at a given distance from the estimate.

    base ``[N]``: the estimate. place ``[K]``: which number. distance ``[K]``. slope ``[K, N]``: of the logarithm of a
    coefficient in scaled units, by the exponents of its term; 0 for other numbers. logarithmic ``[K]``.
    """

    base: Tensor
    place: Tensor
    distance: Tensor
    slope: Tensor
    logarithmic: Tensor

    def filled(self, x: Tensor) -> Tensor:
        """``x [K, N]`` with these numbers."""
        value = self.base[self.place]
        far = self.distance + ((x - self.base) * self.slope).sum(1)
        value = torch.where(self.logarithmic, value * far.clamp(max=700).exp(), value + far)
        return x.scatter(1, self.place.unsqueeze(1), value.unsqueeze(1))

    def residual(self, x: Tensor) -> Tensor:
        return super().residual(self.filled(x))

    def jacobian(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Of the other numbers; in the place of the fixed one, of the distance."""
        x = self.filled(x)
        r, j = super().jacobian(x)
        index = self.place.unsqueeze(1)
        factor = torch.where(self.logarithmic.unsqueeze(1), x.gather(1, index), 1.0)
        own = j.gather(2, index.unsqueeze(1).expand(-1, j.shape[1], 1)) * factor.unsqueeze(
            1
        )  # [K, R, 1]
        j = j + own * self.slope.unsqueeze(1)
        return r, j.scatter(2, index.unsqueeze(1).expand(-1, j.shape[1], 1), own)

    def lanes(self, keep: Tensor, distance: Tensor) -> Pinned:
        """Some of the K laws, at other distances."""
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("place", "slope", "logarithmic"):
            parts[name] = parts[name][keep]
        return Pinned(**{**parts, "distance": distance})


def ends(
    law: Law, index: Sequence[int], logarithmic: Sequence[bool], rise: float
) -> tuple[Tensor, Tensor]:
    """How far each of these free numbers may be below and above its estimate: distances ``[K]``.

    rise: root of the sum of squares' rise at the ends. Distances are infinite where none that was tried reaches it.
    """
    if not index:
        return torch.zeros(0), torch.zeros(0)
    count = len(index)
    pinned, free = _pinned(law, list(index) * 2, list(logarithmic) * 2)
    side = torch.cat([-torch.ones(count), torch.ones(count)]).double()
    found = _walked(pinned, free, law.x, side, rise)
    return found[:count], found[count:]


def _pinned(law: Law, index: list[int], logarithmic: list[bool]) -> tuple[Pinned, Tensor]:
    """The lanes at distance 0, and their free numbers ``[K, N]``."""
    problem, place = law.weighted(), torch.tensor(index)
    shape, data = problem.shape, problem.data
    h, d = shape.terms, shape.states
    slope = torch.zeros(len(index), shape.size, dtype=torch.float64)
    for lane, (i, is_log) in enumerate(zip(index, logarithmic, strict=True)):
        if is_log:
            k = (i - h * d) % h
            slope[lane, k * d : (k + 1) * d] = data.size.log()
    zero = torch.zeros(len(index), dtype=torch.float64)
    parts = {f.name: getattr(problem, f.name) for f in fields(problem)}
    pinned = Pinned(
        **parts,
        base=law.x,
        place=place,
        distance=zero,
        slope=slope,
        logarithmic=torch.tensor(logarithmic),
    )
    return pinned, law.free.expand(len(index), -1).scatter(1, place.unsqueeze(1), False)


def _along(pinned: Pinned, free: Tensor) -> tuple[Tensor, Tensor]:
    """Standard errors ``[K]`` of the distances, and how fast the others move with them ``[K, N]``."""
    _, j = pinned.jacobian(pinned.base.expand(len(pinned.place), -1))
    own = j.gather(2, pinned.place.view(-1, 1, 1).expand(-1, j.shape[1], 1))
    j = torch.where(free.unsqueeze(1), j, 0.0)
    length = j.norm(dim=1).clamp(min=1e-300)
    j = j / length.unsqueeze(1)
    hessian = j.mT @ j + RIDGE * torch.eye(j.shape[2], dtype=j.dtype)
    move = -torch.linalg.solve(hessian, j.mT @ own)
    rest = (own + j @ move).square().sum((1, 2))
    return 1 / rest.sqrt(), move.squeeze(2) / length


def _walked(pinned: Pinned, free: Tensor, x: Tensor, side: Tensor, rise: float) -> Tensor:
    """The distances at which the root of the rise is `rise`."""
    spread, move = _along(pinned, free)
    least = pinned.residual(x.expand(len(side), -1)).square().sum(1)
    bound = torch.where(pinned.logarithmic, -math.inf, (lowest(pinned) - x)[pinned.place])
    inner, inner_root, inner_x = (
        torch.zeros_like(side),
        torch.zeros_like(side),
        x.expand(len(side), -1).clone(),
    )
    outer, outer_root = side * math.inf, torch.full_like(side, math.inf)
    slope = side / spread  # of the root by the distance
    found = side * math.inf
    trial, active = (side * rise * spread).maximum(bound), torch.arange(len(side))
    for _ in range(ROUNDS):
        a = active
        begin = inner_x[a] + move[a] * (trial[a] - inner[a]).unsqueeze(1)
        begin = torch.where(free[a], begin, x).maximum(lowest(pinned))
        lanes = pinned.lanes(a, trial[a])
        near = torch.where(free[a], inner_x[a], x)
        better = error(lanes.residual(begin)) < error(lanes.residual(near))
        at, _ = minimise(
            lanes, torch.where(better.unsqueeze(1), begin, near), free[a], STEPS, TOLERANCE
        )
        rows = lanes.residual(at).square().sum(1)
        root = (rows - least[a]).clamp(min=0).sqrt().nan_to_num(math.inf, math.inf)
        within = root <= rise
        done = ((root - rise).abs() < CLOSE * rise) | (within & (trial[a] <= bound[a]))
        found[a] = torch.where(done, trial[a], found[a])
        moved = (trial[a] - inner[a]).unsqueeze(1)
        move[a] = torch.where(
            (within & (moved.squeeze(1) != 0)).unsqueeze(1), (at - inner_x[a]) / moved, move[a]
        )
        slope[a] = torch.where(within, (root - inner_root[a]) / moved.squeeze(1), slope[a])
        inner_x[a] = torch.where(within.unsqueeze(1), at, inner_x[a])
        inner[a], inner_root[a] = (
            torch.where(within, trial[a], inner[a]),
            torch.where(within, root, inner_root[a]),
        )
        outer[a] = torch.where(within, outer[a], trial[a])
        outer_root[a] = torch.where(within, outer_root[a], root)
        active = a[~done]
        if not len(active):
            break
        trial = _next(inner, inner_root, outer, outer_root, slope, rise).maximum(bound)
    found[active] = outer[active]
    return found


def _next(
    inner: Tensor, inner_root: Tensor, outer: Tensor, outer_root: Tensor, slope: Tensor, rise: float
) -> Tensor:
    """The next distances ``[K]``: between those below and above the rise; farther out where there is none above it."""
    share = ((rise - inner_root) / (outer_root - inner_root)).clamp(0.1, 0.9)
    between = inner + torch.where(outer_root.isfinite(), share, 0.5) * (outer - inner)
    growth = 1 + (rise - inner_root) / (slope * inner)
    growth = torch.where(growth >= 1, growth, FASTEST).clamp(SLOWEST, FASTEST)
    return torch.where(outer.isfinite(), between, growth * inner)
