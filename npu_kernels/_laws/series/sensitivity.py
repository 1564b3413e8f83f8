"""Residuals of time series and their derivatives, for K laws at once.

A law is a vector: exponents ``[h, D]``, coefficients ``[D, h]``, states at the first times
``[S, D]``. Every stretch from node to node is a trajectory of one unit of time whose coefficients
are multiplied by the stretch's length: all stretches of all laws and series are one call of the
time loop, and D backward calls give their derivatives for the law and for the state at their
beginning. The chain rule along the nodes joins them to the derivatives of the trajectory.
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
SAME_DISTANCE = 1e-9  # relative difference of distances in time that count as equal


@dataclass(frozen=True)
class Shape:
    """The layout of a law's vector: h terms, D states, S series."""

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
        """Return exponents ``[.., h, D]``, coefficients ``[.., D, h]``, starts ``[.., S, D]``."""
        h, d, s = self.terms, self.states, self.series
        exponents, coefficients, starts = x.split([h * d, h * d, s * d], -1)
        lead = x.shape[:-1]
        exponents, coefficients = exponents.reshape(*lead, h, d), coefficients.reshape(*lead, d, h)
        return exponents, coefficients, starts.reshape(*lead, s, d)

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
    """Return the states ``[L, stretches + 1, D]`` of laws from ``u [L, D]`` on.

    exponents ``[L, h, D]``, coefficients ``[L, D, h]``. lengths: of the stretches, ``[L]`` or one
    number. steps: of a stretch.
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
    """The series from their first states on."""

    data: Series
    shape: Shape
    steps: int  # of Runge and Kutta, from node to node

    def first(self, nodes: int) -> Trajectories:
        return replace(self, data=self.data.first(nodes))

    def states(self, x: Tensor) -> Tensor:
        """Return the states ``[K, S, M, D]`` of laws ``[K, N]``."""
        exponents, coefficients, u = self.shape.split(x)
        models, series, d = u.shape
        lengths, u = self.data.lengths, u.reshape(-1, d)
        exponents, coefficients = _repeated(exponents, series), _repeated(coefficients, series)
        if torch.allclose(lengths, lengths[:1, :1], rtol=SAME_DISTANCE, atol=0):  # one call
            mean = float(lengths.mean())
            path = flow(exponents, coefficients, u, mean, self.steps, lengths.shape[1])
        else:
            states = [u]
            for column in lengths.unbind(1):
                distances = column.repeat(models)
                path = flow(exponents, coefficients, states[-1], distances, self.steps)
                states.append(path[:, -1])
            path = torch.stack(states, 1)
        return path.view(models, series, -1, d)

    def compare(self, states: Tensor) -> Tensor:
        """Return weighted residuals ``[K, S M D]``, 0 where nothing was measured."""
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
        # Derivatives of the state at a node: for the weights, and for the series' first state.
        eye = torch.eye(d, dtype=x.dtype).expand(models, series, d, d)
        chain = torch.cat([x.new_zeros(models, series, d, shape.weights), eye], -1)
        chains = [chain]
        for m in range(nodes - 1):
            chain = for_u[:, :, m] @ chain
            chain[..., : shape.weights] += for_law[:, :, m]
            chains.append(chain)
        local = torch.stack(chains, 2)  # [K, S, M, D, weights + D]
        if data.relative:
            local = local / states.unsqueeze(-1)
        local = torch.where(data.seen.unsqueeze(-1), local * data.weight.unsqueeze(-1), 0.0)
        jacobian = x.new_zeros(models, series, nodes, d, shape.size)
        jacobian[..., : shape.weights] = local[..., : shape.weights]
        for s in range(series):
            first = shape.weights + s * d
            jacobian[:, s, :, :, first : first + d] = local[:, s, :, :, shape.weights :]
        return self.compare(states), jacobian.view(models, -1, shape.size)


def windows(
    problem: Trajectories, x: Tensor, smooth: Tensor, nodes: int
) -> tuple[Trajectories, Tensor]:
    """Return the series in pieces of `nodes` stretches, each a series, and the laws for them.

    smooth ``[S, M, D]``: smoothed states, with which the pieces begin.
    """
    data, shape = problem.data, problem.shape
    last = data.times.shape[1] - 1
    begin = torch.arange(0, last, nodes)
    nodes_of = begin.unsqueeze(1) + torch.arange(nodes + 1)  # [W, nodes + 1]
    beyond, nodes_of = nodes_of > last, nodes_of.clamp(max=last)
    is_smoothed = data.start.isnan().unsqueeze(1) | (begin > 0).view(1, -1, 1)
    first = torch.where(is_smoothed, smooth[:, begin], data.start[:, None])
    weight = torch.where(beyond[..., None], 0.0, data.weight[:, nodes_of]).flatten(0, 1)
    pieces = replace(
        data,
        times=data.times[:, nodes_of].flatten(0, 1),
        values=data.values[:, nodes_of].flatten(0, 1),
        weight=weight,
        start=first.flatten(0, 1),
    )
    window_shape = replace(shape, series=len(pieces.start))
    exponents, coefficients, _ = shape.split(x)
    starts = pieces.start.expand(len(x), -1, -1)
    laws = window_shape.join(exponents, coefficients, starts)
    return replace(problem, data=pieces, shape=window_shape), laws


@dataclass(frozen=True)
class Stretches:
    """Every node from the node before, both smoothed: a necessary condition of a law, and cheap."""

    data: Series
    shape: Shape
    steps: int  # from node to node
    smooth: Tensor  # [S, M, D]

    def _residuals(self, states: Tensor) -> Tensor:
        present = (self.data.lengths > 0)[..., None]
        return torch.where(present, states - self.smooth[:, 1:], 0.0).flatten(1)

    def residual(self, x: Tensor) -> Tensor:
        exponents, coefficients, _ = self.shape.split(x)
        lengths, models = self.data.lengths, len(x)
        begin = self.smooth[:, :-1].reshape(-1, self.shape.states).repeat(models, 1)
        count = lengths.numel()
        lanes = _repeated(exponents, count), _repeated(coefficients, count)
        states = flow(*lanes, begin, lengths.flatten().repeat(models), self.steps)[:, -1]
        return self._residuals(states.view(models, *lengths.shape, -1))

    def jacobian(self, x: Tensor) -> tuple[Tensor, Tensor]:
        lengths, models, d = self.data.lengths, len(x), self.shape.states
        begin = self.smooth[:, :-1].reshape(-1, d).repeat(models, 1)
        states, for_law, _ = derivatives(self.shape, x, begin, lengths, self.steps)
        for_law = torch.where((lengths > 0)[..., None, None], for_law, 0.0)
        rows = for_law.flatten(1, 3)
        for_starts = rows.new_zeros(models, rows.shape[1], self.shape.series * d)
        return self._residuals(states), torch.cat([rows, for_starts], 2)


def _repeated(tensor: Tensor, count: int) -> Tensor:
    """Return every law `count` times, one copy after the other."""
    return tensor.unsqueeze(1).expand(-1, count, -1, -1).reshape(-1, *tensor.shape[1:])


def derivatives(
    shape: Shape, x: Tensor, begin: Tensor, lengths: Tensor, steps: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the ends ``[K, S, M - 1, D]`` of all stretches, and their derivatives.

    x ``[K, N]``: the laws, for whose weights and for `begin` the derivatives are.
    """
    exponents, coefficients, _ = shape.split(x)
    models, count, d = len(x), lengths.numel(), shape.states
    parts = [_repeated(exponents, count), _repeated(coefficients, count), begin]
    leaves = [part.detach().requires_grad_() for part in parts]
    with torch.enable_grad():
        end = flow(leaves[0], leaves[1], leaves[2], lengths.flatten().repeat(models), steps)[:, -1]
        sums = [end[:, i].sum() for i in range(d)]
        rows = [torch.autograd.grad(sums[i], leaves, retain_graph=i < d - 1) for i in range(d)]
    lead = (models, *lengths.shape)
    for_law = torch.stack([torch.cat([e.flatten(1), c.flatten(1)], 1) for e, c, _ in rows], 1)
    for_u = torch.stack([u for _, _, u in rows], 1)
    return end.detach().view(*lead, d), for_law.view(*lead, d, -1), for_u.view(*lead, d, d)
