"""The ODE solver: its options and operands, whether its result is finite, how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npu_kernels._common.checks import (
    NonFiniteError,
    as_number,
    check_choice,
    check_flag,
    check_number,
    check_numbers,
    check_tensor,
    check_whole,
)
from npu_kernels._operators.operands import EPS, check_positive, unrecorded
from npu_kernels.ode import _methods as methods
from npu_kernels.ode._loop import Weights, right_hand_side
from npu_kernels.reference import CLIP, STRAIGHT_THROUGH

RTOL, ATOL, MAX_STEPS = 1e-6, 1e-9, 10_000
*_FIRST, _LAST = map(repr, methods.ADAPTIVE)
NAMES = (*methods.ALL, methods.AUTO)
FIXED = "euler"  # where neither t nor a method is given


class Options(NamedTuple):
    """The options of `rollout` and `integrate`, under their names there; `checked` raises."""

    function: str  # the public function's name, for messages
    steps: Any
    dt: Any
    t: Any
    method: Any
    rtol: Any
    atol: Any
    max_steps: Any
    memory: Any
    nonfinite: Any
    return_derivatives: Any
    return_error: Any
    return_statistics: Any
    eps: Any
    gate_gradient: Any
    clip: Any
    starts: tuple[int, ...] | None = None  # the user's numbers of the starts; None: all

    @property
    def is_adaptive(self) -> bool:
        """Whether the arguments are for steps of their own sizes; t without a method is."""
        return self.t is not None or (
            isinstance(self.method, str) and self.method in methods.ADAPTIVE
        )

    @property
    def order(self) -> int:
        return methods.ALL[self.method].order

    def checked(self) -> Options:
        """Return the options, numbers as Python's; raise ValueError or TypeError.

        The tensors, with what depends on them, are checked by `check_operands` and `check_times`.
        """
        if self.method is None:
            method = methods.EXPLICIT if self.is_adaptive else FIXED
            return self._replace(method=method).checked()
        check = self._check_adaptive if self.is_adaptive else self._check_fixed
        numbers = check()
        for name in ("memory", "nonfinite"):
            check_choice(self.function, name, getattr(self, name), _CHOICES[name])
        for name in ("return_derivatives", "return_error", "return_statistics", "clip"):
            check_flag(self.function, name, getattr(self, name))
        return self._replace(**numbers) if numbers else self

    def _check_fixed(self) -> dict[str, Any]:
        defaults = {"rtol": RTOL, "atol": None, "max_steps": MAX_STEPS, "return_statistics": False}
        for name, default in defaults.items():
            if (value := getattr(self, name)) != default:
                raise ValueError(
                    f"{self.function}: {name} is for method={', '.join(_FIRST)} or {_LAST}, "
                    f"got {name}={value!r} with method={self.method!r}"
                )
        steps = check_whole(self.function, "steps", self.steps)
        dt = check_dt(self.function, self.dt)
        check_choice(self.function, "method", self.method, NAMES)
        exact = type(self.steps) is int and type(self.dt) is float
        return {} if exact else {"steps": steps, "dt": dt}

    def _check_adaptive(self) -> dict[str, Any]:
        function, method = self.function, self.method
        check_choice(function, "method", method, NAMES)
        if method not in methods.ADAPTIVE:
            raise ValueError(
                f"{function}: t is for the methods that choose their own steps, "
                f"{', '.join(_FIRST)} and {_LAST}; method {method!r} takes steps and dt"
            )
        for name in ("steps", "dt", "return_derivatives", "return_error"):
            if (value := getattr(self, name)) is not None and value is not False:
                advice = _ADVICE.get(name, "takes t, the times of the result, rtol and atol")
                raise ValueError(
                    f"{function}: {name} is for methods of fixed steps; method {method!r} chooses "
                    f"its own and {advice}; got {name}={value!r}"
                )
        if self.t is None:
            raise ValueError(
                f"{function}: t must be given for method {method!r}: the times of the result, "
                "u0's first"
            )
        names = [n for n in _TOLERANCES if n != "atol" or self.atol is not None]
        tolerances = {n: check_number(function, n, getattr(self, n), above=0) for n in names}
        return tolerances | {"max_steps": check_whole(function, "max_steps", self.max_steps)}


_CHOICES = {"memory": ("full", "checkpointed"), "nonfinite": ("raise", "keep")}
_TOLERANCES = "rtol", "atol"
_ADVICE = {
    "return_derivatives": "has its states at any times: t may be as dense as you like",
    "return_error": "keeps its error below rtol and atol",
}


def check_dt(function: str, dt: Any) -> float:
    """Return the size of a step, which may be negative; raise ValueError for no such number."""
    size = as_number(dt)
    if not math.isfinite(size) or size == 0:
        raise ValueError(f"{function}: dt must be finite and other than 0, got {dt!r}")
    return size


# ---- tensors -----------------------------------------------------------------------------------


def check_tensors(function: str, u0: Any, weights: dict[str, Tensor | None]) -> None:
    """Check the types, one dtype, one device, and the weights' shapes."""
    optional = ("weight_im", "gate")
    present: dict[str, Any] = {
        name: w for name, w in weights.items() if w is not None or name not in optional
    }
    tensors = {"u0": u0, **present}
    for name, tensor in tensors.items():
        check_tensor(function, name, tensor)
        if tensor.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"{function}: {name} must be float32 or float64, got {tensor.dtype}")
    for attribute, error in (("dtype", TypeError), ("device", ValueError)):
        values = {name: getattr(tensor, attribute) for name, tensor in tensors.items()}
        if any(value != values["u0"] for value in values.values()):
            listed = ", ".join(f"{name} {value}" for name, value in values.items())
            raise error(f"{function}: all tensors must have one {attribute}, got {listed}")
    shape = tuple(present["weight_re"].shape)
    if len(shape) not in (2, 3):
        raise ValueError(
            f"{function}: weight_re must have shape (h, D) or (num_models, h, D), got shape {shape}"
        )
    models, (h, d) = shape[:-2], shape[-2:]
    expected = {"weight_im": shape, "gate": (*models, d), "weight": (*models, d, h)}
    for name, size in expected.items():
        if name in present and tuple(present[name].shape) != size:
            raise ValueError(
                f"{function}: {name} must have shape {size} for weight_re of shape {shape}, "
                f"got shape {tuple(present[name].shape)}"
            )


def has_starts(function: str, u0: Tensor, weight_re: Tensor) -> bool:
    """Return whether u0 has a dimension of starts; raise ValueError for a wrong shape."""
    d, shape = weight_re.shape[-1], tuple(u0.shape)
    if weight_re.dim() == 2:
        if len(shape) not in (1, 2) or shape[-1] != d:
            raise ValueError(
                f"{function}: u0 must have shape ({d},) or (starts, {d}), got shape {shape}"
            )
        return len(shape) == 2
    k = weight_re.shape[0]
    models_fit = shape[0] in {1: (d,), 2: (k,), 3: (1, k)}.get(len(shape), ()) if shape else False
    if not models_fit or shape[-1] != d:
        raise ValueError(
            f"{function}: u0 must have shape ({d},), ({k}, {d}) (num_models, D), ({k}, starts, {d})"
            f" or (1, starts, {d}) (shared by all models), got shape {shape}"
        )
    return len(shape) == 3


def check_operands(options: Options, u0: Tensor, weights: Weights) -> tuple[float, bool]:
    """Return eps, by default the dtype's, and whether u0 has a dimension of starts; or raise."""
    function = options.function
    names = "weight_re", "weight_im", "gate", "weight"
    with unrecorded():
        check_tensors(function, u0, dict(zip(names, weights, strict=True)))
        with_starts = has_starts(function, u0, weights[0])
    if options.eps is None:
        eps = EPS[u0.dtype]
    else:
        eps = check_positive(function, "eps", options.eps, u0.dtype)
    check_choice(function, "gate_gradient", options.gate_gradient, (CLIP, STRAIGHT_THROUGH))
    return eps, with_starts


def check_times(function: str, t: Any) -> Tensor:
    """Return `t` as a tensor, float64 unless it is one already.

    Raises ValueError unless it rises or falls all the way.
    """
    if isinstance(t, Tensor):
        check_tensor(function, "t", t)
        times = t if t.is_floating_point() or t.is_complex() else t.double()
    else:
        check_numbers(function, "t", t)
        try:
            times = torch.tensor(t, dtype=torch.float64)
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise TypeError(
                f"{function}: t must be a tensor or numbers, got {t!r}: {error}"
            ) from None
    if times.is_complex():
        raise TypeError(f"{function}: t must be real, got {times.dtype}")
    if times.dim() != 1 or len(times) < 2:
        raise ValueError(
            f"{function}: t must have one dimension and at least two times, "
            f"got shape {tuple(times.shape)}"
        )
    steps = times.detach().to("cpu", torch.float64).diff()
    if not steps.isfinite().all() or not ((steps > 0).all() or (steps < 0).all()):
        wrong = (~(steps * steps[0].sign() > 0)).nonzero()
        index = int(wrong[0]) if len(wrong) else 0
        pair = ", ".join(f"{float(time):g}" for time in times[index : index + 2])
        raise ValueError(
            f"{function}: t must be finite and rise, or fall, from each time to the next, "
            f"got {pair}"
        )
    return times


def check_trajectory(
    function: str, trajectory: Any, min_states: int, name: str = "trajectory"
) -> None:
    check_tensor(function, name, trajectory)
    if not trajectory.is_floating_point():
        raise TypeError(
            f"{function}: {name} must have a floating-point dtype, got {trajectory.dtype}"
        )
    if trajectory.dim() < 2 or trajectory.shape[-2] < min_states:
        rule = " with at least one step" if min_states > 1 else ""
        raise ValueError(
            f"{function}: {name} must have shape (..., steps + 1, D){rule}, "
            f"got shape {tuple(trajectory.shape)}"
        )


# ---- results -----------------------------------------------------------------------------------


def first_nonfinite(trajectory: Tensor) -> Tensor:
    """Return the first step at which a trajectory ``[..., steps + 1, D]`` is inf or nan.

    The result ``[...]`` is -1 for a finite trajectory.
    """
    check_trajectory("first_nonfinite", trajectory, 1)
    return first_true(~trajectory.detach().isfinite().all(-1))


def first_true(flags: Tensor) -> Tensor:
    """Return the index of the first True along the last dimension; -1 without any."""
    return torch.where(flags.any(-1), flags.int().argmax(-1), -1)


def trajectory_name(index: tuple[int, ...], has_models: bool, has_starts: bool) -> str:
    """Return the name of the trajectory with this index, for a message."""
    names = ["model"] * has_models + ["start"] * has_starts
    parts = [f"{name} {number}" for name, number in zip(names, index, strict=True)]
    return " ".join(parts) or "the trajectory"


def raise_nonfinite(
    function: str,
    trajectory: Tensor,
    derivatives: Tensor | None,
    has_models: bool,
    has_starts: bool,
) -> None:
    """Raise a NonFiniteError with model and step unless all is finite.

    ``u + dt k`` of an inf or a nan is one again: so the last state tells of all states before it.
    """
    with torch.no_grad():
        last = trajectory.select(-2, -1).sum()
        if derivatives is not None:
            last = last + derivatives.select(-2, -1).sum()
    if math.isfinite(last.item()):  # a sum that overflows is no proof: then all states are read
        return
    paths = trajectory if derivatives is None else torch.cat([trajectory, derivatives], -1)
    first = first_nonfinite(paths)
    failed = (first >= 0).nonzero()
    if not len(failed):
        return
    index = tuple(failed[0].tolist())
    count = f", the first of {len(failed)} of {first.numel()} trajectories"
    raise NonFiniteError(
        f"{function}: {trajectory_name(index, has_models, has_starts)} is not finite from step "
        f"{int(first[index])} on{count if first.numel() > 1 else ''}; nonfinite='keep' returns it "
        "as it is",
        first,
    )


# ---- accuracy ------------------------------------------------------------------------------------
#
# How far a trajectory can be trusted: the error of fixed steps, and whether its model is stiff.

MIN_STIFF_STEPS = 100  # adaptive steps at the bound of stability; fewer cost little
ADVICE = "ode.rollout(model, u0, t=..., method='kvaerno5')"


class InaccurateError(FloatingPointError):
    """A trajectory whose estimated error is larger than its states.

    message: names the model, the step and, if the model is stiff, the largest dt. first: the first
    such step of each trajectory, -1 if there is none.
    """

    def __init__(self, message: str, first: Tensor) -> None:
        super().__init__(message)
        self.first = first


class StepSizeError(FloatingPointError):
    """A trajectory of adaptive steps that did not reach its end: too many steps, or too small ones.

    message: names the model, the time and, if the model is stiff, another method. reached: the
    time that each trajectory has reached, ``[(K,) (B,)]``.
    """

    def __init__(self, message: str, reached: Tensor) -> None:
        super().__init__(message)
        self.reached = reached


class StiffWarning(UserWarning):
    """Stability, not the tolerance, limits most of a trajectory's adaptive steps.

    message: names the model, the time and another method. steps: number of such steps of each
    trajectory, ``[(K,) (B,)]``.
    """

    def __init__(self, message: str, steps: Tensor) -> None:
        super().__init__(message)
        self.steps = steps


def right_side(
    weights: Sequence[Tensor | None], model: int | None, options: Any
) -> Callable[[Tensor], Tensor]:
    """Return ``u' = NAU(NPU(u))`` of one model, for a state ``[D]``, without gradients for weights.

    model: its index in an ensemble; None: there is only one. options: as `right_hand_side` takes.
    """
    index = ... if model is None else model
    parts = [None if weight is None else weight.detach()[index] for weight in weights]
    rhs = right_hand_side(parts, options)
    return lambda u: rhs(u[None])[0]


def estimate(trajectory: Tensor, halved: Tensor, order: int) -> Tensor:
    """Return the size of the error of `trajectory` ``[..., steps + 1, D]``.

    halved: the trajectory by steps of half the size. Richardson's extrapolation: a method of order
    p has 2^p times the error when its steps are twice as long.
    """
    factor: int = 2**order
    return (trajectory - halved[..., ::2, :]).abs() * (factor / (factor - 1))


def _damping(rhs: Callable[[Tensor], Tensor], state: Tensor, dt: float) -> float:
    """Return the fastest rate at which the model damps near a state ``[D]``; nan: unknown.

    The sign of dt is the direction of time.
    """
    jacobian = torch.autograd.functional.jacobian(rhs, state)
    if not jacobian.isfinite().all():
        return math.nan
    return -float((torch.linalg.eigvals(jacobian.double()).real * (1 if dt > 0 else -1)).min())


def _stiff(rate: float, dt: float, method: str) -> str:
    return (
        f"; the model is stiff (an eigenvalue of its Jacobian there is "
        f"{-rate if dt > 0 else rate:.3g}), and {method} needs steps of at most "
        f"{methods.ALL[method].stable / rate:.2g}"
    )


def stiffness(rhs: Callable[[Tensor], Tensor], state: Tensor, dt: float, method: str) -> str:
    """Return advice where steps of size dt do not damp what the model damps at a state; else ""."""
    rate = _damping(rhs, state, dt)
    if not abs(dt) * rate > methods.ALL[method].stable:
        return ""
    return (
        f"{_stiff(rate, dt, method)}, got {abs(dt):g}. Take more steps, or an implicit method: "
        f"{ADVICE}"
    )


def at_the_bound(rhs: Callable[[Tensor], Tensor], state: Tensor, size: float, method: str) -> str:
    """Return advice where stability limits adaptive steps to `size` at a state ``[D]``; else ""."""
    rate = _damping(rhs, state, size)
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
