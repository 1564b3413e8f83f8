"""Estimates of the equations' numbers in the user's units, their standard errors and intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from npu_kernels.equations._numbers import term_text
from npu_kernels.equations._series.candidates import Candidate, limits, minimise
from npu_kernels.equations._series.data import Series
from npu_kernels.equations._series.known import label
from npu_kernels.equations._series.sensitivity import Shape, Trajectories
from npu_kernels.optim.least_squares import error

NAMED_SHARE = 0.3  # of a direction's largest part: parameters that are named with it
ROUNDED_ENTRY = 1e-9  # of an integer in a matrix that was scaled and is scaled back


@dataclass(frozen=True)
class Estimate:
    """One parameter of the equations.

    Attributes:
        name: name such as "exponent of x in term 1".
        value: estimate.
        stderr: standard error, inf if the data do not determine the parameter.
        logarithmic: whether intervals are computed for the logarithm of the parameter, as for
            coefficients of terms with free exponents.
        taken: number in the equations if it differs from the estimate, because it was rounded to a
            fraction, or fitted again after other exponents became fractions.
        index: index in the vector of all parameters.
        unit: the estimate divided by the scaled parameter in that vector.
    """

    name: str
    value: float
    stderr: float
    logarithmic: bool
    taken: float | None
    index: int
    unit: float

    def at(self, distance: float) -> float:
        """Return the value of the parameter at a distance from its estimate."""
        if self.logarithmic:
            return self.value * math.exp(min(distance, 700.0)) + 0.0  # not -0
        return self.value + distance * self.unit


def unscaled(candidate: Candidate) -> tuple[Tensor, Tensor, Tensor]:
    """Return exponents ``[h, D]``, rates ``[R, h]``, first states in the user's units."""
    exponents, rates, starts = candidate.problem.shape.split(candidate.x)
    data = candidate.problem.data
    return exponents, rates / units(data, candidate.problem.shape, exponents), starts * data.size


def unscaled_coefficients(candidate: Candidate, rates: Tensor) -> Tensor:
    """Return the coefficients ``[D, h]`` of rates ``[R, h]``, both in the user's units."""
    columns = changes(candidate)
    return rates if columns is None else columns @ rates


def changes(candidate: Candidate) -> Tensor | None:
    """Return the changes of the states by the rates ``[D, R]`` in the user's units."""
    shape = candidate.problem.shape
    if shape.columns is None or shape.rate_size is None:
        return None
    columns = shape.columns * candidate.problem.data.size.unsqueeze(1) / shape.rate_size
    return torch.where((columns - columns.round()).abs() < ROUNDED_ENTRY, columns.round(), columns)


def units(data: Series, shape: Shape, exponents: Tensor) -> Tensor:
    """Return factors ``[..., R, h]`` from rates in the user's units to scaled ones."""
    logs = data.size.log() if shape.log_sizes is None else torch.zeros_like(data.size)
    products = torch.exp(exponents @ logs)  # [..., h]
    sizes = data.size if shape.rate_size is None else shape.rate_size
    return data.time * products.unsqueeze(-2) / sizes.unsqueeze(-1)


def _errors(candidate: Candidate) -> tuple[Tensor, list[str]]:
    """Return standard errors ``[N]`` in the user's units, and names of unidentified directions."""
    shape, data = candidate.problem.shape, candidate.problem.data
    covariance, unidentified = candidate.uncertainty()
    exponents, rates, _ = shape.split(candidate.x)
    h, d = shape.terms, shape.states
    factor = 1 / units(data, shape, exponents)
    change = torch.zeros(shape.size, shape.size, dtype=torch.float64)
    ones = torch.ones(h * d, dtype=torch.float64)
    change.diagonal()[:] = torch.cat([ones, factor.flatten(), data.size.repeat(shape.series)])
    for j in range(shape.rates):
        for k in range(h):
            row = h * d + j * h + k
            change[row, k * d : (k + 1) * d] = -rates[j, k] * factor[j, k] * data.size.log()
    index = candidate.free.nonzero().squeeze(1)
    change = change[index][:, index]
    unknown = covariance.diagonal().isinf()
    determined = torch.where(unknown | unknown.unsqueeze(1), 0.0, covariance)
    variance = (change @ determined @ change.mT).diagonal()
    reached = (change[:, unknown].abs() > 0).any(1)
    errors = torch.full((shape.size,), 0.0, dtype=torch.float64)
    errors[index] = torch.where(reached, math.inf, variance.clamp(min=0).sqrt())
    return errors, _directions(candidate, index, unidentified)


def _directions(candidate: Candidate, index: Tensor, unidentified: list[Tensor]) -> list[str]:
    """Return the parameters in each direction that the data do not determine."""
    all_names = _names(candidate, list(range(candidate.problem.shape.terms)))
    texts = []
    for direction in unidentified:
        parts = direction.abs() >= NAMED_SHARE * direction.abs().max()
        names = [all_names[int(i)] for i in index[parts]]
        text = f"the {names[0]}" if len(names) == 1 else None
        texts.append(text or "these parameters separately: " + ", ".join(names))
    return list(dict.fromkeys(texts))


def _names(candidate: Candidate, number: list[int]) -> list[str]:
    """Return the names of all numbers of a candidate; number: of its terms."""
    shape, data = candidate.problem.shape, candidate.problem.data
    exponents = shape.split(candidate.x)[0]
    terms, states = range(shape.terms), range(shape.states)
    texts = [f"exponent of {data.names[i]} in term {number[k] + 1}" for k in terms for i in states]
    columns = changes(candidate)
    rates = [f"{name}'" for name in data.names]
    fitted = shape.states - shape.inputs
    is_tied = columns is not None and not torch.equal(columns[:fitted], torch.eye(fitted).double())
    if columns is None or not is_tied:
        rates = rates[:fitted]
    else:
        rates = [label(column.tolist(), data.names) for column in columns.T]
    for rate in rates:
        for k in terms:
            product = term_text(1.0, [round(w, 3) for w in exponents[k].tolist()], data.names, 1)
            kind = "constant" if product == "1" else f"coefficient of {product}"
            texts.append(f"{kind} in {rate}")
    for s in range(shape.series):
        more = f" of series {s}" if shape.series > 1 else ""
        texts += [f"initial {name}{more}" for name in data.names]
    return texts


def estimated(
    candidate: Candidate, unrounded: Candidate, number: list[int]
) -> tuple[list[Estimate], list[str]]:
    """Return the candidate's parameters, and directions that the data do not tell.

    unrounded: the same candidate before its exponents became fractions; if some did, the exponents
    are estimated by it. number: the position of each term in the equations' text.
    """
    errors, unidentified = _errors(candidate)
    loose = errors if unrounded is candidate else _errors(unrounded)[0]
    shape, data = candidate.problem.shape, candidate.problem.data
    exponents, rates, u0 = unscaled(candidate)
    values = shape.join(exponents, rates, u0)
    factor = 1 / units(data, shape, exponents)
    parts = torch.ones_like(exponents), factor, data.size.expand_as(u0)
    unit = shape.join(*parts).tolist()
    free_values = shape.join(*unscaled(unrounded))
    names, estimates = _names(candidate, number), []
    h, d = shape.terms, shape.states
    powers = shape.split(candidate.free)[0].any(1).tolist()
    fractions = bool((unrounded.free & ~candidate.free)[: h * d].any())
    for i in [*range(h * d, shape.weights), *range(h * d), *range(shape.weights, shape.size)]:
        if candidate.free[i] and not (i < h * d and fractions):
            logarithmic = h * d <= i < shape.weights and powers[(i - h * d) % h]
            numbers = float(values[i]), float(errors[i])
            estimates.append(Estimate(names[i], *numbers, logarithmic, None, i, unit[i]))
        elif unrounded.free[i]:
            numbers = float(free_values[i]), float(loose[i])
            estimates.append(Estimate(names[i], *numbers, False, float(values[i]), i, 1.0))
    return estimates, unidentified


# ---- profiles ------------------------------------------------------------------------------------
# Confidence intervals by profiles of the sum of squares.
#
# One number is fixed at a distance from its estimate, and all others are fitted again. The interval
# ends where the sum of squares, in units of the errors' variance, has risen by the square of
# Student's t (Bates and Watts 1988, section 6.1). Where the trajectory is linear in the numbers
# these are the intervals of the standard errors. All numbers and both sides are one batch.
#
# The distance is measured in the units of the scaled series. For a coefficient of a term with free
# exponents it is a distance of the logarithm in the user's units, which depend on the exponents.

ROOT_TOLERANCE = 0.01  # relative error of the root of the rise at an end
ROUNDS = 12  # distances that are tried: where none of them reaches the end it is infinite
SLOWEST, FASTEST = 1.02, 3.0  # growth of the distance in a round
ROUND_STEPS, TOLERANCE = 15, 1e-5  # of least squares in a round
SCALED_RIDGE = 1e-9  # of the normal equations, whose columns have length 1


@dataclass(frozen=True)
class Pinned(Trajectories):
    """The series for K candidates, each with one number fixed at a distance from its estimate."""

    base: Tensor  # [N], the estimate
    number: Tensor  # [K], the index of the fixed number
    distance: Tensor  # [K]
    log_change: Tensor  # [K, N], of a coefficient's logarithm by its exponents; 0 for other numbers
    logarithmic: Tensor  # [K], whether the distance is that of a logarithm

    def filled(self, x: Tensor) -> Tensor:
        """Return ``x [K, N]`` with the fixed numbers."""
        value = self.base[self.number]
        far = self.distance + ((x - self.base) * self.log_change).sum(1)
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
        j = j + column * self.log_change.unsqueeze(1)
        return r, j.scatter(2, columns, column)

    def lanes(self, index: Tensor) -> Pinned:
        """Return the problem of some of the K candidates."""
        names = "number", "distance", "log_change", "logarithmic"
        return replace(self, **{name: getattr(self, name)[index] for name in names})


def distances(
    candidate: Candidate, index: Sequence[int], logarithmic: Sequence[bool], rise: float
) -> tuple[Tensor, Tensor]:
    """Return the distances ``[K]`` of free numbers below and above their estimates.

    index: of the numbers. rise: root of the sum of squares' rise at the ends. Distances are
    infinite where none that was tried reaches it.
    """
    if not index:
        return torch.zeros(0), torch.zeros(0)
    count = len(index)
    pinned, free = _pinned(candidate, list(index) * 2, list(logarithmic) * 2)
    side = torch.cat([-torch.ones(count), torch.ones(count)]).double()
    walked = _walked(pinned, free, candidate.x, side, rise)
    return walked[:count], walked[count:]


def _pinned(
    candidate: Candidate, index: list[int], logarithmic: list[bool]
) -> tuple[Pinned, Tensor]:
    """Return the candidates at distance 0, and their free numbers ``[K, N]``."""
    problem, number = candidate.weighted(), torch.tensor(index)
    shape, data = problem.shape, problem.data
    h, d = shape.terms, shape.states
    log_change = torch.zeros(len(index), shape.size, dtype=torch.float64)
    for lane, (i, is_log) in enumerate(zip(index, logarithmic, strict=True)):
        if is_log:
            k = (i - h * d) % h
            log_change[lane, k * d : (k + 1) * d] = data.size.log()
    zero = torch.zeros(len(index), dtype=torch.float64)
    parts = {f.name: getattr(problem, f.name) for f in fields(problem)}
    fixed: dict[str, Any] = {
        "base": candidate.x,
        "number": number,
        "distance": zero,
        "log_change": log_change,
    }
    pinned = Pinned(**parts, **fixed, logarithmic=torch.tensor(logarithmic))
    return pinned, candidate.free.expand(len(index), -1).scatter(1, number.unsqueeze(1), False)


def _along(pinned: Pinned, free: Tensor) -> tuple[Tensor, Tensor]:
    """Return the standard errors of the distances ``[K]``.

    Also return the derivatives of the other numbers with respect to the distances ``[K, N]``.
    """
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
