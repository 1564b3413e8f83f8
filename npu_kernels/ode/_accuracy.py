"""How far a trajectory can be trusted: the error of fixed steps, and whether its model is stiff."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from npu_kernels.ode._checks import first_true, trajectory_name
from npu_kernels.ode._loop import methods
from npu_kernels.ode._loop.loop import slope_function

MIN_STIFF_STEPS = 100  # adaptive steps at the bound of stability; fewer cost little
ADVICE = "ode.rollout(model, u0, t=..., method='kvaerno5')"


class InaccurateError(FloatingPointError):
    """A trajectory whose estimated error is larger than its states.

    message: names the model, the step and, where the model is stiff, the largest dt. first: the
    first such step of each trajectory, -1 without any.
    """

    def __init__(self, message: str, first: Tensor) -> None:
        super().__init__(message)
        self.first = first


class StepSizeError(FloatingPointError):
    """A trajectory of adaptive steps that did not reach its end: too many steps, or too small ones.

    message: names the model and the time and, where the model is stiff, an alternative. reached:
    the time that each trajectory has reached, ``[(K,) (B,)]``.
    """

    def __init__(self, message: str, reached: Tensor) -> None:
        super().__init__(message)
        self.reached = reached


class StiffWarning(UserWarning):
    """Most of a trajectory's adaptive steps are as long as its stability allows, not its tolerance.

    message: names the model, the time and an alternative. steps: how many such steps each
    trajectory has, ``[(K,) (B,)]``.
    """

    def __init__(self, message: str, steps: Tensor) -> None:
        super().__init__(message)
        self.steps = steps


def right_side(
    weights: Sequence[Tensor | None], model: int | None, options: Any
) -> Callable[[Tensor], Tensor]:
    """Return ``u' = NAU(NPU(u))`` of one model, for a state ``[D]``, without gradients for weights.

    model: its index in an ensemble; None: there is only one. options: as `slope_function` takes.
    """
    index = ... if model is None else model
    parts = [None if weight is None else weight.detach()[index] for weight in weights]
    slope = slope_function(parts, options)
    return lambda u: slope(u[None])[0]


def estimate(trajectory: Tensor, halved: Tensor, order: int) -> Tensor:
    """Return the size of the error of `trajectory` ``[..., steps + 1, D]``.

    halved: the trajectory by steps of half the size. Richardson's extrapolation: a method of order
    p has 2^p times the error when its steps are twice as long.
    """
    factor: int = 2**order
    return (trajectory - halved[..., ::2, :]).abs() * (factor / (factor - 1))


def _damping(slope: Callable[[Tensor], Tensor], state: Tensor, dt: float) -> float:
    """Return the fastest rate at which the model damps near a state ``[D]``; nan: unknown.

    The sign of dt is the direction of time.
    """
    jacobian = torch.autograd.functional.jacobian(slope, state)
    if not jacobian.isfinite().all():
        return math.nan
    return -float((torch.linalg.eigvals(jacobian.double()).real * (1 if dt > 0 else -1)).min())


def _stiff(rate: float, dt: float, method: str) -> str:
    return (
        f"; the model is stiff (an eigenvalue of its Jacobian there is "
        f"{-rate if dt > 0 else rate:.3g}), and {method} needs steps of at most "
        f"{methods.ALL[method].stable / rate:.2g}"
    )


def stiffness(slope: Callable[[Tensor], Tensor], state: Tensor, dt: float, method: str) -> str:
    """Return advice where steps of size dt do not damp what the model damps at a state; else ""."""
    rate = _damping(slope, state, dt)
    if not abs(dt) * rate > methods.ALL[method].stable:
        return ""
    return (
        f"{_stiff(rate, dt, method)}, got {abs(dt):g}. Take more steps, or an implicit method: "
        f"{ADVICE}"
    )


def at_the_bound(slope: Callable[[Tensor], Tensor], state: Tensor, size: float, method: str) -> str:
    """Return advice where stability limits adaptive steps to `size` at a state ``[D]``; else ""."""
    rate = _damping(slope, state, size)
    if not abs(size) * rate > methods.ALL[method].stable / 2:
        return ""
    return f"{_stiff(rate, size, method)} at any tolerance. Take an implicit method: {ADVICE}"


def raise_inaccurate(
    function: str,
    trajectory: Tensor,
    error: Tensor,
    hint: Callable[[tuple[int, ...], Tensor], str],
    eps: float,
    has_models: bool,
    has_starts: bool,
) -> None:
    """Raise InaccurateError where an error exceeds all of the trajectory's states before it.

    No solution grows like that. hint: for the index of a trajectory and its last state with an
    error below a tenth, the end of the message.
    """
    size, largest = error.amax(-1), trajectory.detach().abs().amax(-1).cummax(-1).values
    # Near 0 nothing but the layer's own eps moves the state.
    largest = largest.clamp(min=100 * eps)
    first = first_true(~(size <= largest))
    failed = (first >= 0).nonzero()
    if not len(failed):
        return
    index = tuple(failed[0].tolist())
    step = int(first[index])
    is_good = size[index][:step] <= largest[index][:step] / 10  # the first state has no error
    last_good = trajectory[index][int(is_good.nonzero().max())]
    raise InaccurateError(
        f"{function}: {trajectory_name(index, has_models, has_starts)} grows as no solution does: "
        f"at step {step} its estimated error is {float(size[index][step]):.2g}, and its states are "
        f"at most {float(largest[index][step]):.2g}{hint(index, last_good)}; nonfinite='keep' "
        "returns it as it is",
        first,
    )
