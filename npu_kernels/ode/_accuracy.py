"""How far a trajectory can be trusted: the error of fixed steps, and whether its model is stiff."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from npu_kernels import reference as layers
from npu_kernels.ode._checks import first_true, who
from npu_kernels.ode._pairs import PAIRS

ORDER = {"euler": 1, "midpoint": 2, "rk4": 4, "rk4_38": 4}
# A step damps u' = a u, a < 0, only for |dt a| up to this: the end of the stability region on the real axis.
STABLE = {"euler": 2.0, "midpoint": 2.0, "rk4": 2.785, "rk4_38": 2.785}
STABLE |= {name: pair.stable for name, pair in PAIRS.items()}
MANY = 100  # adaptive steps at that end; with fewer, stiffness costs little
WAY_OUT = "ode.rollout_any(model, u0, ..., method='scipy_solver')"


class InaccurateError(FloatingPointError):
    """A trajectory whose estimated error is larger than its states.

    message: names the model, the step and, where the model is stiff, the largest dt. first: the first such step of
    each trajectory, -1 where there is none.
    """

    def __init__(self, message: str, first: Tensor) -> None:
        super().__init__(message)
        self.first = first


class StepSizeError(FloatingPointError):
    """A trajectory of adaptive steps that did not reach its end: too many steps, or too small ones.

    message: names the model and the time and, where the model is stiff, the way out. reached: the time that each
    trajectory has reached, ``[(K,) (B,)]``.
    """

    def __init__(self, message: str, reached: Tensor) -> None:
        super().__init__(message)
        self.reached = reached


class StiffWarning(UserWarning):
    """Most of a trajectory's adaptive steps are as long as the method's stability allows, not its tolerance.

    message: names the model, the time and the way out. steps: how many such steps each trajectory has, ``[(K,) (B,)]``.
    """

    def __init__(self, message: str, steps: Tensor) -> None:
        super().__init__(message)
        self.steps = steps


def right_side(
    weights: Sequence[Tensor | None], model: int | None, eps: float, clip: bool
) -> Callable[[Tensor], Tensor]:
    """``u' = NAU(NPU(u))`` of one model, for a state ``[D]``."""
    own = [t if t is None or model is None else t[model] for t in weights]

    def f(u: Tensor) -> Tensor:
        y = layers.npu(u[None], *(t if t is None else t.detach() for t in own[:3]), eps=eps)  # type: ignore[arg-type]
        return layers.nau(y, own[3].detach(), clip=clip)[0]  # type: ignore[union-attr]

    return f


def estimate(trajectory: Tensor, halved: Tensor, method: str) -> Tensor:
    """The size of the error of `trajectory` ``[..., steps + 1, D]``, from one with steps of half the size.

    Richardson's extrapolation: a method of order p has 2^p times the error when its steps are twice as long.
    """
    factor: int = 2 ** ORDER[method]
    return (trajectory - halved[..., ::2, :]).abs() * (factor / (factor - 1))


def _damping(f: Callable[[Tensor], Tensor], state: Tensor, dt: float) -> float:
    """The fastest rate at which the model damps near a state ``[D]`` on its way in dt's direction; nan: unknown."""
    jacobian = torch.autograd.functional.jacobian(f, state)
    if not jacobian.isfinite().all():
        return math.nan
    return -float((torch.linalg.eigvals(jacobian.double()).real * (1 if dt > 0 else -1)).min())


def stiffness(f: Callable[[Tensor], Tensor], state: Tensor, dt: float, method: str) -> str:
    """What to do about a state ``[D]`` at which steps of size dt do not damp what the model damps; else empty."""
    rate = _damping(f, state, dt)
    if not abs(dt) * rate > STABLE[method]:
        return ""
    return (
        f"; the model is stiff (an eigenvalue of its Jacobian there is {-rate if dt > 0 else rate:.3g}), and {method} "
        f"needs steps of at most {STABLE[method] / rate:.2g}, got {abs(dt):g}. Take more steps, or an implicit method: "
        f"{WAY_OUT}"
    )


def at_the_bound(f: Callable[[Tensor], Tensor], state: Tensor, size: float, method: str) -> str:
    """What to do about a state ``[D]`` at which the model allows no longer adaptive steps than `size`; else empty."""
    rate = _damping(f, state, size)
    if not abs(size) * rate > STABLE[method] / 2:
        return ""
    return (
        f"; the model is stiff (an eigenvalue of its Jacobian there is {-rate if size > 0 else rate:.3g}), and "
        f"{method} needs steps of at most {STABLE[method] / rate:.2g} at any tolerance. Take an implicit method: "
        f"{WAY_OUT}"
    )


def raise_inaccurate(
    function: str,
    trajectory: Tensor,
    error: Tensor,
    hint: Callable[[tuple[int, ...], Tensor], str],
    models: bool,
    many: bool,
) -> None:
    """InaccurateError where an error exceeds all of the trajectory's states so far: no solution grows like that.

    hint: for the index of a trajectory and its last state with an error below a tenth, what the message adds.
    """
    size, largest = error.amax(-1), trajectory.detach().abs().amax(-1).cummax(-1).values
    largest = largest.clamp(
        min=100 * torch.finfo(error.dtype).eps
    )  # near 0 the layer's own eps is all that moves
    first = first_true(~(size <= largest))
    where = (first >= 0).nonzero()
    if not len(where):
        return
    at = tuple(where[0].tolist())
    step = int(first[at])
    good = int(
        (size[at][:step] <= largest[at][:step] / 10).nonzero().max()
    )  # the start has no error
    raise InaccurateError(
        f"{function}: {who(at, models, many)} grows as no solution does: at step {step} its estimated error is "
        f"{float(size[at][step]):.2g}, and its states are at most {float(largest[at][step]):.2g}"
        f"{hint(at, trajectory[at][good])}; nonfinite='keep' returns it as it is",
        first,
    )
