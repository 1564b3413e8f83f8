"""Residuals of time series and their derivatives, for K laws at once.

A law is a vector: exponents ``[h, D]``, coefficients ``[D, h]``, states at the first times ``[S, D]``. Every stretch
from node to node is a trajectory of one unit of time whose coefficients are multiplied by the stretch's length: all
stretches of all laws and series are one call of the time loop, and D backward calls give their derivatives for the law
and for the state at their beginning. The chain rule along the nodes makes the whole trajectory's of these.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from npu_kernels._laws.series.data import Series
from npu_kernels._time_loop.loop import Loop, by_fast_path, run
from npu_kernels._time_loop.methods import METHODS
from npu_kernels.reference import CLIP

RK4, EPSILON = METHODS["rk4"], torch.finfo(torch.float64).eps
EQUAL = 1e-9  # relative difference of distances in time that count as equal


@dataclass(frozen=True)
class Shape:
    """How a law of h terms for D states and S series lies in its vector."""

    terms: int
    states: int
    series: int

    @property
    def weights(self) -> int:
        return 2 * self.terms * self.states

    @property
    def size(self) -> int:
        return self.weights + self.series * self.states

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Exponents ``[..., h, D]``, coefficients ``[..., D, h]``, starts ``[..., S, D]``."""
        h, d, s = self.terms, self.states, self.series
        parts = x.split([h * d, h * d, s * d], -1)
        lead = x.shape[:-1]
        return (
            parts[0].reshape(*lead, h, d),
            parts[1].reshape(*lead, d, h),
            parts[2].reshape(*lead, s, d),
        )

    def join(self, exponents: Tensor, coefficients: Tensor, starts: Tensor) -> Tensor:
        return torch.cat([exponents.flatten(-2), coefficients.flatten(-2), starts.flatten(-2)], -1)


def flow(
    exponents: Tensor,
    coefficients: Tensor,
    u: Tensor,
    lengths: Tensor | float,
    steps: int,
    stretches: int = 1,
) -> Tensor:
    """The states ``[L, stretches + 1, D]`` of laws ``[L, h, D]``, ``[L, D, h]`` from ``u [L, D]`` on.

    lengths: of the stretches, ``[L]`` or one number. steps: of a stretch.
    """
    if isinstance(lengths, Tensor):
        coefficients, dt = coefficients * lengths[:, None, None], 1 / steps
    else:
        dt = lengths / steps
    loop = Loop(RK4, steps * stretches, dt, EPSILON, CLIP, False, "full", False, False)
    weights = exponents, None, None, coefficients
    states = (by_fast_path(loop, u, weights) or run(loop, u, weights))[0]
    return states[:, ::steps]


@dataclass(frozen=True)
class Trajectories:
    """The series from their first states on. steps: Runge-Kutta steps from node to node."""

    data: Series
    shape: Shape
    steps: int

    def first(self, nodes: int) -> Trajectories:
        return replace(self, data=self.data.first(nodes))

    def states(self, x: Tensor) -> Tensor:
        """``[K, S, M, D]``."""
        exponents, coefficients, u = self.shape.split(x)
        models, series, d = u.shape
        lengths, u = self.data.lengths, u.reshape(-1, d)
        exponents, coefficients = _each(exponents, series), _each(coefficients, series)
        if torch.allclose(
            lengths, lengths[:1, :1], rtol=EQUAL, atol=0
        ):  # equal distances: one call
            mean = float(lengths.mean())
            found = flow(exponents, coefficients, u, mean, self.steps, lengths.shape[1])
        else:
            states = [u]
            for m in range(lengths.shape[1]):
                states.append(
                    flow(
                        exponents,
                        coefficients,
                        states[-1],
                        lengths[:, m].repeat(models),
                        self.steps,
                    )[:, -1]
                )
            found = torch.stack(states, 1)
        return found.view(models, series, -1, d)

    def compare(self, states: Tensor) -> Tensor:
        """Weighted residuals ``[K, S M D]``, 0 where nothing was measured."""
        data = self.data
        measured = data.values.where(data.seen, 1.0)
        r = states.log() - measured.log() if data.relative else states - measured
        return torch.where(data.seen, r * data.weight, 0.0).flatten(1)

    def residual(self, x: Tensor) -> Tensor:
        return self.compare(self.states(x))

    def jacobian(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states, data, shape = self.states(x), self.data, self.shape
        models, series, nodes, d = states.shape
        begin = states[:, :, :-1].reshape(-1, d)
        _, for_law, for_u = derivatives(shape, x, begin, data.lengths, self.steps)
        # of the state at a node: for the weights, and for this series' own first state
        eye = torch.eye(d, dtype=x.dtype).expand(models, series, d, d)
        own = torch.cat([x.new_zeros(models, series, d, shape.weights), eye], -1)
        found = [own]
        for m in range(nodes - 1):
            own = for_u[:, :, m] @ own
            own[..., : shape.weights] += for_law[:, :, m]
            found.append(own)
        local = torch.stack(found, 2)  # [K, S, M, D, weights + D]
        if data.relative:
            local = local / states.unsqueeze(-1)
        local = torch.where(data.seen.unsqueeze(-1), local * data.weight.unsqueeze(-1), 0.0)
        whole = x.new_zeros(models, series, nodes, d, shape.size)
        whole[..., : shape.weights] = local[..., : shape.weights]
        for s in range(series):
            at = shape.weights + s * d
            whole[:, s, :, :, at : at + d] = local[:, s, :, :, shape.weights :]
        return self.compare(states), whole.view(models, -1, shape.size)


def windows(
    problem: Trajectories, x: Tensor, smooth: Tensor, nodes: int
) -> tuple[Trajectories, Tensor]:
    """The series in pieces of so many stretches, each from its smoothed state ``[S, M, D]``, as series of their own."""
    data, shape = problem.data, problem.shape
    last = data.times.shape[1] - 1
    begin = torch.arange(0, last, nodes)
    at = (begin.unsqueeze(1) + torch.arange(nodes + 1)).clamp(max=last)  # [W, nodes + 1]
    beyond = (begin.unsqueeze(1) + torch.arange(nodes + 1)) > last
    first = torch.where(
        data.start.isnan().unsqueeze(1) | (begin > 0).view(1, -1, 1),
        smooth[:, begin],
        data.start[:, None],
    )
    weight = torch.where(beyond[..., None], 0.0, data.weight[:, at]).flatten(0, 1)
    pieces = replace(
        data,
        times=data.times[:, at].flatten(0, 1),
        values=data.values[:, at].flatten(0, 1),
        weight=weight,
        start=first.flatten(0, 1),
    )
    own = replace(shape, series=len(pieces.start))
    exponents, coefficients, _ = shape.split(x)
    return replace(problem, data=pieces, shape=own), own.join(
        exponents, coefficients, pieces.start.expand(len(x), -1, -1)
    )


@dataclass(frozen=True)
class Stretches:
    """Every node from the one before, both smoothed ``[S, M, D]``: what a law must do at least, and cheap."""

    data: Series
    shape: Shape
    steps: int
    smooth: Tensor

    def _ends(self, ends: Tensor) -> Tensor:
        present = (self.data.lengths > 0)[..., None]
        return torch.where(present, ends - self.smooth[:, 1:], 0.0).flatten(1)

    def residual(self, x: Tensor) -> Tensor:
        exponents, coefficients, _ = self.shape.split(x)
        lengths, models = self.data.lengths, len(x)
        begin = self.smooth[:, :-1].reshape(-1, self.shape.states).repeat(models, 1)
        many = lengths.numel()
        lanes = _each(exponents, many), _each(coefficients, many)
        ends = flow(*lanes, begin, lengths.flatten().repeat(models), self.steps)[:, -1]
        return self._ends(ends.view(models, *lengths.shape, -1))

    def jacobian(self, x: Tensor) -> tuple[Tensor, Tensor]:
        lengths, models, d = self.data.lengths, len(x), self.shape.states
        begin = self.smooth[:, :-1].reshape(-1, d).repeat(models, 1)
        ends, for_law, _ = derivatives(self.shape, x, begin, lengths, self.steps)
        for_law = torch.where((lengths > 0)[..., None, None], for_law, 0.0)
        rows = for_law.flatten(1, 3)
        return self._ends(ends), torch.cat(
            [rows, rows.new_zeros(models, rows.shape[1], self.shape.series * d)], 2
        )


def _each(tensor: Tensor, count: int) -> Tensor:
    """Every law `count` times, one after the other."""
    return tensor.unsqueeze(1).expand(-1, count, -1, -1).reshape(-1, *tensor.shape[1:])


def derivatives(
    shape: Shape, x: Tensor, begin: Tensor, lengths: Tensor, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """`flow` of laws ``[K, N]`` over all stretches: ends ``[K, S, M - 1, D]``, derivatives for weights and begin."""
    exponents, coefficients, _ = shape.split(x)
    models, many, d = len(x), lengths.numel(), shape.states
    parts = [_each(exponents, many), _each(coefficients, many), begin]
    leaves = [part.detach().requires_grad_() for part in parts]
    with torch.enable_grad():
        end = flow(leaves[0], leaves[1], leaves[2], lengths.flatten().repeat(models), steps)[:, -1]
        rows = [
            torch.autograd.grad(end[:, i].sum(), leaves, retain_graph=i < d - 1) for i in range(d)
        ]
    lead = (models, *lengths.shape)
    for_law = torch.stack([torch.cat([e.flatten(1), c.flatten(1)], 1) for e, c, _ in rows], 1)
    for_u = torch.stack([u for _, _, u in rows], 1)
    return end.detach().view(*lead, d), for_law.view(*lead, d, -1), for_u.view(*lead, d, d)
