"""Inputs of the ODE solver: known columns v(t), linear between their times.

Between two times of the inputs, ``u' = f(u, v)`` with ``v' = constant`` is a model of more states:
a power layer with one product more, of exponents 0, and a NAU in which this product moves the
inputs. So each segment is solved as for plain models, and its result is that of exact inputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npu_kernels._common.checks import check_numbers, check_real, check_tensor
from npu_kernels.ode import _checks as checks
from npu_kernels.ode._adaptive import Statistics
from npu_kernels.ode._loop import Weights

ROUNDINGS = 4  # of a dtype, in a time that is given in it
SAME_TIME = 1e-12  # of the span: times that are nearer are one


class Inputs(NamedTuple):
    """The times ``[T]`` of the inputs, float64 on the CPU, and their values ``[T, J]``."""

    times: Tensor
    values: Tensor
    rounding: float = 0.0  # relative, of the times as the user gave them

    def at_steps(self, dt: float) -> Inputs:
        """Return the inputs with the exact times of steps, where theirs are those but for rounding.

        0.2 in float32 is no multiple of a dt of 0.05.
        """
        exact = (self.times / dt).round() * dt
        near = (exact - self.times).abs() <= self.rounding * self.times.abs()
        times = torch.where(near, exact, self.times)
        return self._replace(times=times) if bool((times.diff() > 0).all()) else self

    def segment(self, middle: float) -> tuple[Tensor, Tensor, Tensor]:
        """Return time, values and slopes of the inputs at the start of a time's segment."""
        k = int(torch.searchsorted(self.times, middle)) - 1
        k = min(max(k, 0), len(self.times) - 2)
        first, second = self.times[k], self.times[k + 1]
        slope = (self.values[k + 1] - self.values[k]) / float(second - first)
        return first, self.values[k], slope


class Segment(NamedTuple):
    """A part of the trajectory in which the inputs are linear.

    times ``[m]``, float64: those of the result, and the segment's ends. is_output ``[m]``: which of
    them are the result's. first: the inputs' values ``[J]`` at the first time. slope: theirs.
    """

    times: Tensor
    is_output: Tensor
    first: Tensor
    slope: Tensor


def read(function: str, inputs: Any, like: Tensor, converts: bool = False) -> Inputs:
    """Return the argument `inputs` of a function, its values as a tensor `like` u0.

    converts: whether a tensor of values may have another dtype or device. Raises TypeError and
    ValueError.
    """
    if not isinstance(inputs, (tuple, list)) or len(inputs) != 2:
        raise TypeError(
            f"{function}: inputs must be a pair (times, values), got {type(inputs).__name__}"
        )
    times, values = inputs
    for name, part in (("times", times), ("values", values)):
        if isinstance(part, Tensor):
            check_tensor(function, f"inputs' {name}", part)
            if name == "times" or converts:
                check_real(function, f"inputs' {name}", part)
        else:
            check_numbers(function, f"inputs' {name}", part)
    is_like = not isinstance(values, Tensor) or (values.dtype, values.device) == (
        like.dtype,
        like.device,
    )
    if not converts and not is_like:
        raise TypeError(
            f"{function}: inputs' values must have u0's dtype and device, {like.dtype} on "
            f"{like.device}, got {values.dtype} on {values.device}"
        )
    try:
        rounding = _rounding(times)
        times = torch.as_tensor(times, dtype=torch.float64, device="cpu").detach().contiguous()
        values = torch.as_tensor(values, dtype=like.dtype, device=like.device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{function}: inputs must be numbers: {error}") from None
    values = values.unsqueeze(1) if values.dim() == 1 else values
    if times.dim() != 1 or len(times) < 2 or values.dim() != 2 or len(values) != len(times):
        raise ValueError(
            f"{function}: inputs must be times (T,) with T of at least 2 and values (T,) or "
            f"(T, inputs), got shapes {tuple(times.shape)} and {tuple(values.shape)}"
        )
    rule = "inputs must have times that are finite and rise"
    if not times.isfinite().all():
        raise ValueError(f"{function}: {rule}, got {float(times[~times.isfinite()][0])}")
    if not (times.diff() > 0).all():
        index = int((times.diff() <= 0).nonzero()[0])
        pair = ", ".join(f"{float(time):.9g}" for time in times[index : index + 2])
        raise ValueError(f"{function}: {rule}, got {pair}")
    if not values.isfinite().all():
        wrong = float(values[~values.isfinite()][0])
        raise ValueError(f"{function}: inputs must have finite values, got {wrong}")
    return Inputs(times, values, rounding)


def _rounding(times: Any) -> float:
    """Return the relative error that sums of times in their dtype may have; 0 for lists."""
    dtype = torch.as_tensor(times).dtype if hasattr(times, "dtype") else torch.int64
    return ROUNDINGS * torch.finfo(dtype).eps if dtype.is_floating_point else 0.0


def check_covered(function: str, inputs: Inputs, times: Tensor) -> None:
    """Raise ValueError for times that the inputs do not cover."""
    low, high = float(times.min()), float(times.max())
    first, last = float(inputs.times[0]), float(inputs.times[-1])
    slack = SAME_TIME * max(high - low, abs(low), abs(high))
    if low < first - slack or high > last + slack:
        raise ValueError(
            f"{function}: inputs must cover all times, {low:g} to {high:g}, got {first:g} to "
            f"{last:g}"
        )


def segments(function: str, inputs: Inputs, t: Tensor) -> list[Segment]:
    """Return the parts of times ``[M]``, which rise or fall, in which the inputs are linear."""
    values = t.detach().to("cpu", torch.float64)
    check_covered(function, inputs, values)
    sign = 1.0 if values[-1] > values[0] else -1.0
    slack = SAME_TIME * float((values[-1] - values[0]).abs())
    inner = (inputs.times - values[0]) * sign > slack
    knots = inputs.times[inner & ((values[-1] - inputs.times) * sign > slack)]
    distance = (knots.unsqueeze(1) - values).abs()
    nearest = distance.min(1)
    new = knots[nearest.values > slack]
    times = torch.cat([t.double(), new.to(t.device)])
    exact = torch.cat([values, new])
    is_edge = torch.arange(len(times)) >= len(t)
    is_edge[nearest.indices[nearest.values <= slack]] = True
    order = (sign * exact).argsort()
    times, exact, is_edge, is_output = times[order], exact[order], is_edge[order], order < len(t)
    edges = [0, *is_edge.nonzero().squeeze(1).tolist(), len(times) - 1]
    parts = []
    for i, j in itertools.pairwise(edges):
        begin, value, slope = inputs.segment(float(exact[i] + exact[j]) / 2)
        first = value + slope * (times[i] - begin).to(slope)
        parts.append(Segment(times[i : j + 1], is_output[i : j + 1], first, slope))
    return parts


def along(parts: list[Segment], u0: Tensor, solve: Callable[[Segment, Tensor], Tensor]) -> Tensor:
    """Return the states ``[..., M, D]`` at the segments' outputs.

    solve: maps a segment and the states ``[..., D]`` at its start to the states ``[..., m, D]`` at
    its times.
    """
    paths, state = [], u0
    for number, segment in enumerate(parts):
        path = solve(segment, state)
        state = path[..., -1, :]
        is_output = segment.is_output.clone()
        is_output[0] &= number == 0
        paths.append(path[..., is_output.to(path.device), :])
    return torch.cat(paths, -2)


def with_inputs(states: Tensor, first: Tensor) -> Tensor:
    """Return states ``[..., D + J]``: the given ones, then the inputs' values ``[J]``."""
    return torch.cat([states, first.to(states).expand((*states.shape[:-1], -1))], -1)


def driven(weights: Weights, slope: Tensor, clip: bool) -> Weights:
    """Return the weights of the model of more states, for the inputs' slopes ``[..., J]``.

    clip: whether the NAU's weight is clipped to [-1, 1]; that of the result must not be.
    """
    weight_re, weight_im, gate, weight = weights
    weight = weight.clamp(-1.0, 1.0) if clip else weight
    *models, states, h = weight.shape
    count = slope.shape[-1]

    def with_product(exponents: Tensor) -> Tensor:
        return torch.cat([exponents, exponents.new_zeros((*models, 1, states + count))], -2)

    rows = weight.new_zeros((*models, count, h))
    column = torch.cat([slope.new_zeros((*slope.shape[:-1], states)), slope], -1).unsqueeze(-1)
    weight = torch.cat([torch.cat([weight, rows], -2), column.expand((*models, -1, 1))], -1)
    im = None if weight_im is None else with_product(weight_im)
    return with_product(weight_re), im, gate, weight


# ---- the ODE solver with inputs ------------------------------------------------------------------
#
# Segment by segment, each with inputs that are linear.

Solve = Callable[[checks.Options, Tensor, Weights], Any]


def integrate_with_inputs(
    options: checks.Options, u0: Tensor, weights: Weights, inputs: Inputs, solve: Solve
) -> Tensor | tuple[Any, ...]:
    """Return what `solve` returns without inputs."""
    function, states = options.function, weights[3].shape[-2]
    if u0.dim() == 0 or u0.shape[-1] != states:
        raise ValueError(
            f"{function}: u0 must have last dimension {states} (the NAU's out_features) with "
            f"inputs, got shape {tuple(u0.shape)}"
        )
    if options.return_error:
        raise ValueError(f"{function}: return_error must be False with inputs, got True")
    if options.is_adaptive:
        times = checks.check_times(function, options.t)
    else:
        times = torch.arange(options.steps + 1, dtype=torch.float64) * options.dt
        inputs = inputs.at_steps(options.dt)
    parts = segments(function, inputs, times)
    between = [segment.times[~segment.is_output] for segment in parts]
    if not options.is_adaptive and any(len(part) for part in between):
        wrong = next(float(part[0]) for part in between if len(part))
        raise ValueError(
            f"{function}: inputs must have their times at steps of dt={options.dt:g} with method "
            f"{options.method!r}, got {wrong:.9g}, nearest to the step at "
            f"{round(wrong / options.dt) * options.dt:.9g}; t= with adaptive steps takes any times"
        )
    extras: list[Any] = []

    def segment_of(segment: Segment, state: Tensor) -> Tensor:
        begin = with_inputs(state, segment.first)
        part = options._replace(clip=False)
        if options.is_adaptive:
            part = part._replace(t=segment.times)
        else:
            part = part._replace(steps=len(segment.times) - 1)
        result = solve(part, begin, driven(weights, segment.slope, options.clip))
        path, *rest = result if isinstance(result, tuple) else (result,)
        extras.append(rest[0] if rest else None)
        return path[..., :states]  # type: ignore[no-any-return]

    path = along(parts, u0, segment_of)
    if options.return_derivatives:
        behind = [part[..., 1:, :states] for part in extras]
        return path, torch.cat([extras[0][..., :1, :states], *behind], -2)
    if options.return_statistics:
        return path, Statistics._make(map(sum, zip(*extras, strict=True)))
    return path
