"""The time loop: models that the fused loop does not know, through torchdiffeq."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels._common.checks import check_number, check_tensor, check_whole
from npu_kernels._common.errors import NonFiniteError
from npu_kernels._common.notices import warn
from npu_kernels.ode import _checks as checks
from npu_kernels.ode._accuracy import StepSizeError
from npu_kernels.ode._checks import FIXED
from npu_kernels.ode._loop import adaptive_reference as reference
from npu_kernels.ode._loop import inputs as known
from npu_kernels.ode._loop import methods
from npu_kernels.ode._solver import Inputs

TORCHDIFFEQ = {"euler": "euler", "midpoint": "midpoint", "rk4_38": "rk4"}  # names of methods
IMPLICIT_OPTIONS = "rtol", "atol", "max_steps"
ADAPTIVE = "dopri5"  # where t is given and no method

Model = Callable[[Tensor], Tensor] | Callable[[Tensor, Tensor], Tensor]


def rollout_any(
    model: Model,
    u0: Tensor,
    *,
    steps: int | None = None,
    dt: float | None = None,
    t: Tensor | Sequence[float] | None = None,
    method: str | None = None,
    inputs: Inputs | None = None,
    **options: Any,
) -> Tensor:
    """The trajectory ``[..., steps + 1, D]`` of ``u' = model(u)`` or ``model(t, u)`` from ``u0``.

    Needs torchdiffeq (``pip install "npu_kernels[ode]"``). Its loop calls torch for every operation
    of every stage of every step, forward and backward. For small models this takes hundreds of
    times as long as `rollout`.

    Args:
        model: any module or function of u, or of the time and u, recognised by its required
            arguments.
        u0: the first state ``[..., D]``.
        steps, dt: the result has the states at the times 0, dt, .. steps dt.
        t: the times of the result ``[M]`` instead, rising or falling, of which the first is u0's. A
            tensor gets a gradient. A method of fixed steps makes one from each time to the next.
        method: "euler" (without t the default), "midpoint", "rk4_38" (the 3/8 rule, torchdiffeq's
            "rk4"), or the name of another of torchdiffeq's methods, such as "dopri5" (with t the
            default), which chooses its own steps; "kvaerno5", the implicit steps of `rollout`,
            needs no torchdiffeq, and a model of u alone, whose rows do not depend on one another.
        inputs: known columns v(t) as in `rollout`, linear between their times. The model's u then
            has the inputs after the states: it maps D + J features to D.
        options: for ``torchdiffeq.odeint``; for "kvaerno5" rtol, atol and max_steps.

    The trajectory has a gradient for u0, t and all that the model uses, but not with torchdiffeq's
    "scipy_solver", which computes in NumPy: a `UserWarning` says so where one is asked for.
    """
    times = _times(steps, dt, t)
    if method is None:
        method = FIXED if t is None else ADAPTIVE
    slope = _slope(model)
    check_tensor("rollout_any", "u0", u0)
    if not u0.is_floating_point() or u0.dim() < 1:
        raise TypeError(
            "rollout_any: u0 must be floating-point of shape (..., D), got "
            f"{u0.dtype}, {tuple(u0.shape)}"
        )
    if not isinstance(method, str):
        raise TypeError(f"rollout_any: method must be a name, got {method!r}")
    if method == "rk4":
        raise ValueError(
            "rollout_any: method 'rk4' is the classic Runge-Kutta method in npu_kernels and the "
            "3/8 rule in torchdiffeq; say 'rk4_38' for the latter"
        )
    if method == methods.IMPLICIT and slope is model:
        raise ValueError(
            f"rollout_any: method {method!r} takes a model of u alone, got one of t and u"
        )
    unknown = [name for name in options if name not in IMPLICIT_OPTIONS]
    if method == methods.IMPLICIT and unknown:
        names = ", ".join(IMPLICIT_OPTIONS)
        raise TypeError(
            f"rollout_any: options of method {method!r} must be of {names}, got {unknown[0]!r}"
        )
    checked_slope, features = _checked(slope, u0.shape[-1]), u0.shape[-1]
    if inputs is None:
        return _by_torchdiffeq(checked_slope, u0, times, method, options)

    def solve(piece: known.Piece, state: Tensor) -> Tensor:
        def moved(time: Tensor, u: Tensor) -> Tensor:
            return known.with_inputs(checked_slope(time, u), piece.slope)

        begin = known.with_inputs(state, piece.first)
        return _by_torchdiffeq(moved, begin, piece.times, method, options)[..., :features]

    parts = known.pieces("rollout_any", known.read("rollout_any", inputs, u0), times)
    return known.along(parts, u0, solve)


def _by_torchdiffeq(
    slope: Callable[[Tensor, Tensor], Tensor],
    u0: Tensor,
    times: Tensor,
    method: str,
    options: dict[str, Any],
) -> Tensor:
    """Return the states ``[..., M, D]`` at times ``[M]``."""
    if method == methods.IMPLICIT:
        return _implicit(lambda u: slope(times[0], u), u0, times, **options)
    try:
        from torchdiffeq import odeint
    except ImportError as error:
        raise ImportError(
            'rollout_any: torchdiffeq is not installed; pip install "npu_kernels[ode]"'
        ) from error
    name = TORCHDIFFEQ.get(method, method)
    # Times may need more digits than states; torchdiffeq gives the model its time in u0's dtype.
    dtype = torch.promote_types(times.dtype, u0.dtype)
    states: Tensor = odeint(slope, u0, times.to(u0.device, dtype), method=name, **options)
    is_lost = torch.is_grad_enabled() and not states.requires_grad
    if is_lost and any(part.requires_grad for part in (u0, times, slope(times[0].to(u0), u0))):
        warn(
            f"rollout_any: method {method!r} gives a trajectory without a gradient; take one of "
            "torch's own methods, such as 'dopri5', or 'kvaerno5' for a stiff model, or call it "
            "under torch.no_grad()"
        )
    return states.movedim(0, -2)


def _times(steps: Any, dt: Any, t: Any) -> Tensor:
    """Return the times of the result, from t or from steps and dt."""
    if t is None:
        steps, dt = checks.check_grid("rollout_any", steps, dt)
        return torch.arange(steps + 1, dtype=torch.float64).mul(dt)
    for name, value in (("steps", steps), ("dt", dt)):
        if value is not None:
            raise ValueError(
                f"rollout_any: {name} must be None beside t, the times of the result, got {value!r}"
            )
    return checks.check_times("rollout_any", t)


def _implicit(
    f: Callable[[Tensor], Tensor],
    u0: Tensor,
    times: Tensor,
    rtol: float = checks.RTOL,
    atol: float = checks.ATOL,
    max_steps: int = checks.MAX_STEPS,
) -> Tensor:
    """Return the trajectory of a model of u by implicit steps."""
    function, pair = "rollout_any", methods.PAIRS[methods.IMPLICIT]
    control = reference.Control(
        check_number(function, "rtol", rtol, above=0),
        check_number(function, "atol", atol, above=0),
        check_whole(function, "max_steps", max_steps),
        max_steps + 1,
    )
    rows = u0 if u0.dim() > 1 else u0.unsqueeze(0)
    result = reference.find_steps(f, rows, times.detach().to("cpu", torch.float64), pair, control)
    status, reached = result.counts[..., 3], result.clock[..., 0]
    path = reference.replay(f, rows, times, result.times, pair, control)
    path = path if u0.dim() > 1 else path.squeeze(0)
    for code, message in (
        (reference.NOT_FINITE, "is not finite from t = {:.9g} on"),
        (reference.TOO_MANY, f"needs more than max_steps={max_steps} steps: it is at t = {{:.9g}}"),
        (reference.STUCK, "stops at t = {:.9g}, its steps became too small, as before a pole"),
    ):
        if (status == code).any():
            text = "rollout_any: a trajectory " + message.format(float(reached[status == code][0]))
            if code == reference.NOT_FINITE:
                raise NonFiniteError(text, checks.first_nonfinite(path))
            raise StepSizeError(text, reached)
    return path


def _checked(
    slope: Callable[[Tensor, Tensor], Tensor], features: int
) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the model with a check of its result's shape: torchdiffeq would broadcast another.

    features: of the states.
    """

    def checked(t: Tensor, u: Tensor) -> Tensor:
        k, shape = slope(t, u), (*u.shape[:-1], features)
        if not isinstance(k, Tensor) or k.shape != shape:
            got = tuple(k.shape) if isinstance(k, Tensor) else type(k).__name__
            raise ValueError(f"rollout_any: model must give the shape of u, {shape}, got {got}")
        return k

    return checked


def _slope(model: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the model as a function of time and state."""
    if not callable(model):
        raise TypeError(
            f"rollout_any: model must be a module or a function, got {type(model).__name__}"
        )
    function = model.forward if isinstance(model, nn.Module) else model
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # a built-in function without a signature
        return lambda _, u: model(u)
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    required = [p for p in positional if p.default is p.empty]
    if len(required) == 2:
        of_both: Callable[[Tensor, Tensor], Tensor] = model
        return of_both
    has_any = positional or any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if len(required) > 2 or not has_any:
        names = ", ".join(p.name for p in required)
        raise TypeError(f"rollout_any: model must take u, or t and u, got one that takes ({names})")
    return lambda _, u: model(u)
