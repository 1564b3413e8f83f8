"""Residuals of time series and their derivatives, for K candidates at once.

A candidate is a vector: exponents ``[h, D]``, coefficients ``[D, h]``, states at the first times
``[S, D]``. Every segment from node to node is a trajectory of one unit of time whose coefficients
are multiplied by its length: all segments of all candidates and series are one call of the
ODE solver, and D backward calls give their derivatives for the candidate and for the state at their
beginning. The chain rule along the nodes joins them to the derivatives of the trajectory.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from npu_kernels.equations._series.data import Series
from npu_kernels.ode import _adaptive as adaptive
from npu_kernels.ode import _inputs as known
from npu_kernels.ode import _methods as methods
from npu_kernels.ode._loop import Loop, by_fast_path, run
from npu_kernels.ode._loop import Weights as WeightsOfLayers
from npu_kernels.reference import CLIP

FIXED, IMPLICIT = "rk4", methods.IMPLICIT
RK4, EPSILON = methods.METHODS[FIXED], torch.finfo(torch.float64).eps
SAME_DISTANCE = 1e-9  # relative difference of distances in time that count as equal
IMPLICIT_TOLERANCE = 1e-3  # rtol and atol of implicit steps, for one step from node to node
MAX_IMPLICIT_STEPS = 100_000  # that a trajectory may try


@dataclass(frozen=True)
class Shape:
    """The layout of a candidate's vector: h terms, D states, S series, R rates; and its bounds."""

    terms: int
    states: int
    series: int
    columns: Tensor | None = (
        None  # [D, R]: coefficients are these times rates; None: they are rates
    )
    rate_size: Tensor | None = None  # [R], units of these rates
    low: Tensor | None = None  # [D], the bounds of exponents
    high: Tensor | None = None  # [D]
    integer: Tensor | None = None  # [D], the states whose exponents are integers
    fixed: int = 0  # the first terms, whose exponents stay
    signs: Tensor | None = None  # [R, h] of rates: 1 for not below 0, -1 for not above 0, 0
    inputs: int = 0  # the last states, which no equation has
    # [D], logarithms of the states' sizes where all coefficients stay: then the rates of the
    # vector do not change with the exponents, as those of scaled states would. None: scaled.
    log_sizes: Tensor | None = None

    @property
    def rates(self) -> int:
        return self.states if self.columns is None else self.columns.shape[1]

    @property
    def weights(self) -> int:
        return self.terms * (self.states + self.rates)

    @property
    def size(self) -> int:
        return self.weights + self.series * self.states

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return exponents ``[.., h, D]``, rates ``[.., R, h]``, starts ``[.., S, D]``."""
        h, d, s = self.terms, self.states, self.series
        exponents, rates, starts = x.split([h * d, h * self.rates, s * d], -1)
        lead = x.shape[:-1]
        exponents, rates = exponents.reshape((*lead, h, d)), rates.reshape((*lead, self.rates, h))
        return exponents, rates, starts.reshape((*lead, s, d))

    def coefficients(self, exponents: Tensor, rates: Tensor) -> Tensor:
        """Return the scaled coefficients ``[.., D, h]`` of a vector's exponents and rates."""
        if self.log_sizes is not None:
            rates = rates * torch.exp(exponents @ self.log_sizes).unsqueeze(-2)
        return rates if self.columns is None else self.columns @ rates

    def free_exponents(self, positive: Tensor) -> Tensor:
        """Return which exponents ``[h, D]`` may be fractions; positive ``[D]``: the amounts."""
        free = positive if self.integer is None else positive & ~self.integer
        return free & (torch.arange(self.terms) >= self.fixed).unsqueeze(1)

    def limits(self) -> tuple[Tensor, Tensor]:
        """Return the bounds of every number ``[N]``."""
        low = torch.full((self.size,), -math.inf, dtype=torch.float64)
        high, powers = -low, self.terms * self.states
        if self.low is not None and self.high is not None:
            low[:powers], high[:powers] = self.low.repeat(self.terms), self.high.repeat(self.terms)
        if self.signs is not None:
            signs = self.signs.flatten()
            low[powers : self.weights] = torch.where(signs > 0, 0.0, -math.inf)
            high[powers : self.weights] = torch.where(signs < 0, 0.0, math.inf)
        return low, high

    def join(self, exponents: Tensor, coefficients: Tensor, starts: Tensor) -> Tensor:
        return torch.cat([exponents.flatten(-2), coefficients.flatten(-2), starts.flatten(-2)], -1)


class Weights(NamedTuple):
    """Equations of sums of products: exponents ``[L, h, D]``, coefficients ``[L, D, h]``."""

    exponents: Tensor
    coefficients: Tensor

    def of_layers(self) -> WeightsOfLayers:
        """Return the weights of the power layer and of the sums, as the ODE solver takes them."""
        return self.exponents, None, None, self.coefficients

    def repeated(self, count: int) -> Weights:
        """Return all equations `count` times, one copy after the other."""
        return Weights(_repeated(self.exponents, count), _repeated(self.coefficients, count))

    def driven(self, slopes: Tensor) -> Weights:
        """Return equations of a term more, whose inputs move by slopes ``[L, J]``."""
        rows = self.coefficients[:, : self.coefficients.shape[1] - slopes.shape[1]]
        weights = known.driven((self.exponents, None, None, rows), slopes, False)
        return Weights(weights[0], weights[3])


def flow(
    equations: Weights,
    u: Tensor,
    lengths: Tensor | float,
    steps: int,
    segments: int = 1,
    method: str = FIXED,
) -> Tensor:
    """Return the states ``[L, segments + 1, D]`` of equations from ``u [L, D]`` on.

    lengths: of the segments, ``[L]`` or one number. steps: of a segment. method: `FIXED`, or
    `IMPLICIT`, whose tolerance is that of so many steps: its states are nan from where it does
    not get on.
    """
    if isinstance(lengths, Tensor):
        equations = equations._replace(coefficients=equations.coefficients * lengths[:, None, None])
        lengths = 1.0
    if method == IMPLICIT:
        times = lengths * torch.arange(segments + 1, dtype=torch.float64)
        return stiff_flow(equations, u, times, steps)
    dt = lengths / steps
    loop = Loop(RK4, steps * segments, dt, EPSILON, CLIP, False, "full", False, False)
    weights = equations.of_layers()
    states = (by_fast_path(loop, u, weights) or run(loop, u, weights))[0]
    return states[:, ::steps]


def adaptive_call(
    method: str, tolerance: float, max_steps: int, max_at_bound: int
) -> adaptive.Call:
    """Return the options of adaptive steps of equations; tolerance: relative, and absolute."""
    return adaptive.Call(
        method, tolerance, tolerance, max_steps, max_at_bound, EPSILON, CLIP, False, "full", False
    )


def stiff_flow(equations: Weights, u: Tensor, times: Tensor, steps: int) -> Tensor:
    """Return the states ``[L, M, D]`` of equations by implicit steps at times ``[M]``; see `flow`.

    Times may be repeated.
    """
    distinct, index = times.unique_consecutive(return_inverse=True)
    if len(distinct) < 2:
        return u.unsqueeze(1).expand(-1, len(times), -1)
    tolerance = IMPLICIT_TOLERANCE / steps ** methods.ALL[IMPLICIT].order
    call = adaptive_call(IMPLICIT, tolerance, MAX_IMPLICIT_STEPS, MAX_IMPLICIT_STEPS + 1)
    return adaptive.run(call, distinct, u, equations.of_layers())[0][:, index]


@dataclass(frozen=True)
class Trajectories:
    """The series from their first states on."""

    data: Series
    shape: Shape
    steps: int  # of Runge and Kutta, from node to node
    method: str = field(default=FIXED, kw_only=True)
    stiff: bool = field(default=False, kw_only=True)  # whether implicit steps may follow

    def first(self, nodes: int) -> Trajectories:
        return replace(self, data=self.data.first(nodes))

    def finer(self) -> Trajectories:
        """Return the problem with twice as many steps."""
        return replace(self, steps=2 * self.steps)

    def lanes(self, index: Tensor) -> Trajectories:
        """Return the problem of some of the K candidates: for all candidates it is the same."""
        return self

    def states(self, x: Tensor) -> Tensor:
        """Return the states ``[K, S, M, D]`` of candidates ``[K, N]``."""
        exponents, rates, u = self.shape.split(x)
        coefficients = self.shape.coefficients(exponents, rates)
        models, series, d = u.shape
        lengths, u = self.data.lengths, u.reshape(-1, d)
        equations = Weights(exponents, coefficients).repeated(series)
        same = not self.data.inputs  # the equations are the same in each segment
        if same and torch.allclose(lengths, lengths[:1, :1], rtol=SAME_DISTANCE, atol=0):
            mean = float(lengths.mean())
            path = flow(equations, u, mean, self.steps, lengths.shape[1], self.method)
        elif same and self.method == IMPLICIT and bool((lengths == lengths[:1]).all()):
            path = stiff_flow(equations, u, self.data.times[0], self.steps)
        else:
            path = self._by_segments(equations, u, models)
        return path.view(models, series, -1, d)

    def _by_segments(self, equations: Weights, u: Tensor, models: int) -> Tensor:
        """Return the states ``[K S, M, D]``, a call for each segment."""
        distances, slopes, states = self.data.lengths.repeat(models, 1), self.data.slopes, [u]
        if slopes is not None:
            slopes = slopes.repeat(models, 1, 1)
            equations = equations.driven(slopes[:, 0])
        for number, column in enumerate(distances.unbind(1)):
            if slopes is not None:
                equations = equations._replace(coefficients=equations.coefficients.clone())
                equations.coefficients[:, -self.data.inputs :, -1] = slopes[:, number]
            path = flow(equations, states[-1], column, self.steps, method=self.method)
            states.append(path[:, -1])
        return torch.stack(states, 1)

    def compare(self, states: Tensor) -> Tensor:
        """Return weighted residuals ``[K, S M D]``, 0 where nothing was measured."""
        data = self.data
        measured = data.values.where(data.seen, 1.0)
        r = states.log() - measured.log() if data.relative else states - measured
        return torch.where(data.seen, r * data.weight, 0.0).flatten(1)

    def residual(self, x: Tensor) -> Tensor:
        return self.compare(self.states(x))

    def jacobian(self, x: Tensor, states: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return residuals and their derivatives; states: those of x, if they are known."""
        states, data, shape = self.states(x) if states is None else states, self.data, self.shape
        models, series, nodes, d = states.shape
        begin = states[:, :, :-1].reshape(-1, d)
        _, for_weights, for_u = derivatives(shape, x, begin, data, self.steps, self.method)
        local = chained(for_weights, for_u)  # [K, S, M, D, weights + D]
        if data.relative:
            local = local / states.unsqueeze(-1)
        local = torch.where(data.seen.unsqueeze(-1), local * data.weight.unsqueeze(-1), 0.0)
        if series == 1:
            return self.compare(states), local.view(models, -1, shape.size)
        jacobian = x.new_zeros(models, series, nodes, d, shape.size)
        jacobian[..., : shape.weights] = local[..., : shape.weights]
        for s in range(series):
            first = shape.weights + s * d
            jacobian[:, s, :, :, first : first + d] = local[:, s, :, :, shape.weights :]
        return self.compare(states), jacobian.view(models, -1, shape.size)


def chained(for_weights: Tensor, for_u: Tensor) -> Tensor:
    """Return the derivatives ``[K, S, M, D, N + D]`` of the states at all nodes.

    They are those for the candidate's weights and for the first state. for_weights ``[K, S, M - 1,
    D, N]``, for_u ``[K, S, M - 1, D, D]``: of the ends of the segments, for the weights and the
    beginnings.

    Some neighbouring segments are a block. The chain rule is applied within all blocks at once,
    and then to the blocks: that takes about 2 sqrt(M) calls.
    """
    models, series, segments, d, weights = for_weights.shape
    lanes, size = models * series, math.isqrt(segments - 1) + 1
    count = -(-segments // size)
    eye = torch.eye(weights + d, dtype=for_u.dtype)[weights:]
    by_u = eye[:, weights:].repeat(lanes, count * size, 1, 1)
    by_u[:, :segments] = for_u.flatten(0, 1)
    by_u = by_u.view(-1, size, d, d)
    blocks = for_weights.new_zeros(lanes, count * size, d, weights + d)
    blocks[:, :segments, :, :weights] = for_weights.flatten(0, 1)
    blocks = blocks.view(-1, size, d, weights + d)
    blocks[:, 0, :, weights:] = by_u[:, 0]
    for m in range(1, size):
        blocks[:, m] = torch.baddbmm(blocks[:, m], by_u[:, m], blocks[:, m - 1])
    blocks = blocks.view(lanes, count, size, d, weights + d)
    last = blocks[:, :, -1]
    last_by_weights = torch.nn.functional.pad(last[..., :weights], (0, d))  # 0 for the first state
    starts = [eye.expand(lanes, -1, -1)]
    for n in range(count - 1):
        starts.append(torch.baddbmm(last_by_weights[:, n], last[:, n, :, weights:], starts[-1]))
    nodes = blocks[..., weights:] @ torch.stack(starts, 1).unsqueeze(2)
    nodes[..., :weights] += blocks[..., :weights]
    chain = for_weights.new_empty(lanes, segments + 1, d, weights + d)
    chain[:, 0], chain[:, 1:] = eye, nodes.flatten(1, 2)[:, :segments]
    return chain.view(models, series, -1, d, weights + d)


def windows(
    problem: Trajectories, x: Tensor, smooth: Tensor, nodes: int
) -> tuple[Trajectories, Tensor]:
    """Return the series in windows of `nodes` segments, each a series, and the candidates for them.

    smooth ``[S, M, D]``: smoothed states, with which the windows begin.
    """
    data, shape = problem.data, problem.shape
    last = data.times.shape[1] - 1
    begin = torch.arange(0, last, nodes)
    nodes_of = begin.unsqueeze(1) + torch.arange(nodes + 1)  # [W, nodes + 1]
    beyond, nodes_of = nodes_of > last, nodes_of.clamp(max=last)
    is_smoothed = data.start.isnan().unsqueeze(1) | (begin > 0).view(1, -1, 1)
    first = torch.where(is_smoothed, smooth[:, begin], data.start[:, None])
    weight = torch.where(beyond[..., None], 0.0, data.weight[:, nodes_of]).flatten(0, 1)
    windowed = replace(
        data,
        times=data.times[:, nodes_of].flatten(0, 1),
        values=data.values[:, nodes_of].flatten(0, 1),
        weight=weight,
        start=first.flatten(0, 1),
    )
    window_shape = replace(shape, series=len(windowed.start))
    exponents, rates, _ = shape.split(x)
    starts = windowed.start.expand(len(x), -1, -1)
    equations = window_shape.join(exponents, rates, starts)
    return replace(problem, data=windowed, shape=window_shape), equations


@dataclass(frozen=True)
class Segments:
    """Every node from the node before, both smoothed: a necessary and cheap condition."""

    data: Series
    shape: Shape
    steps: int  # from node to node
    smooth: Tensor  # [S, M, D]
    method: str = field(default=FIXED, kw_only=True)

    def lanes(self, index: Tensor) -> Segments:
        """Return the problem of some of the K candidates: for all candidates it is the same."""
        return self

    def states(self, x: Tensor) -> Tensor:
        """Return the ends of the segments ``[K, S, M - 1, D]`` of candidates ``[K, N]``."""
        exponents, rates, _ = self.shape.split(x)
        coefficients = self.shape.coefficients(exponents, rates)
        lengths, models = self.data.lengths, len(x)
        begin = self.smooth[:, :-1].reshape(-1, self.shape.states).repeat(models, 1)
        count = lengths.numel()
        lanes = Weights(exponents, coefficients).repeated(count)
        if (slopes := self.data.slopes) is not None:
            lanes = lanes.driven(slopes.flatten(0, 1).repeat(models, 1))
        distances = lengths.flatten().repeat(models)
        states = flow(lanes, begin, distances, self.steps, method=self.method)[:, -1]
        return states.view((models, *lengths.shape, -1))

    def compare(self, states: Tensor) -> Tensor:
        """Return residuals ``[K, S (M - 1) D]``, 0 where there is no segment."""
        present = (self.data.lengths > 0)[..., None]
        return torch.where(present, states - self.smooth[:, 1:], 0.0).flatten(1)

    def residual(self, x: Tensor) -> Tensor:
        return self.compare(self.states(x))

    def jacobian(self, x: Tensor, states: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return residuals and their derivatives, which come with the states."""
        lengths, models, d = self.data.lengths, len(x), self.shape.states
        begin = self.smooth[:, :-1].reshape(-1, d).repeat(models, 1)
        states, for_weights, _ = derivatives(
            self.shape, x, begin, self.data, self.steps, self.method
        )
        for_weights = torch.where((lengths > 0)[..., None, None], for_weights, 0.0)
        rows = for_weights.flatten(1, 3)
        for_starts = rows.new_zeros(models, rows.shape[1], self.shape.series * d)
        return self.compare(states), torch.cat([rows, for_starts], 2)


def _repeated(tensor: Tensor, count: int) -> Tensor:
    return tensor.unsqueeze(1).expand(-1, count, -1, -1).reshape((-1, *tensor.shape[1:]))


def derivatives(
    shape: Shape, x: Tensor, begin: Tensor, data: Series, steps: int, method: str
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the ends ``[K, S, M - 1, D]`` of all segments, and their derivatives.

    x ``[K, N]``: the candidates, for whose weights and for `begin` the derivatives are.
    """
    exponents, rates, _ = shape.split(x)
    lengths, slopes = data.lengths, data.slopes
    models, count, d = len(x), lengths.numel(), shape.states
    parts = [_repeated(exponents, count), _repeated(rates, count), begin]
    leaves = [part.detach().requires_grad_() for part in parts]
    with torch.enable_grad():
        distances = lengths.flatten().repeat(models)
        equations = Weights(leaves[0], shape.coefficients(leaves[0], leaves[1]))
        if slopes is not None:
            equations = equations.driven(slopes.flatten(0, 1).repeat(models, 1))
        end = flow(equations, leaves[2], distances, steps, method=method)[:, -1]
        sums = [end[:, i].sum() for i in range(d)]
        rows = [torch.autograd.grad(sums[i], leaves, retain_graph=i < d - 1) for i in range(d)]
    lead = (models, *lengths.shape)
    for_weights = torch.stack([torch.cat([e.flatten(1), c.flatten(1)], 1) for e, c, _ in rows], 1)
    for_u = torch.stack([u for _, _, u in rows], 1)
    for_weights, for_u = for_weights.view((*lead, d, -1)), for_u.view((*lead, d, d))
    return end.detach().view((*lead, d)), for_weights, for_u
