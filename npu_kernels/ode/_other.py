"""The time loop: models that the fused loop does not know, through torchdiffeq."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels._common.checks import check_tensor
from npu_kernels.ode import _checks as checks

TORCHDIFFEQ = {"euler": "euler", "midpoint": "midpoint", "rk4_38": "rk4"}  # names of methods

Model = Callable[[Tensor], Tensor] | Callable[[Tensor, Tensor], Tensor]


def rollout_any(
    model: Model, u0: Tensor, *, steps: int, dt: float, method: str = "euler", **options: Any
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
        method: "euler", "midpoint", "rk4_38" (the 3/8 rule, torchdiffeq's "rk4"), or the name of
            another of torchdiffeq's methods, such as "dopri5", which chooses its own steps.
        options: for ``torchdiffeq.odeint``.
    """
    steps, dt = checks.check_grid("rollout_any", steps, dt)
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
    try:
        from torchdiffeq import odeint
    except ImportError as error:
        raise ImportError(
            'rollout_any: torchdiffeq is not installed; pip install "npu_kernels[ode]"'
        ) from error
    times = torch.arange(steps + 1, dtype=u0.dtype, device=u0.device) * dt
    name = TORCHDIFFEQ.get(method, method)
    states: Tensor = odeint(_checked(slope), u0, times, method=name, **options)
    return states.movedim(0, -2)


def _checked(slope: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the model with an error for another shape, which torchdiffeq's sums would expand."""

    def checked(t: Tensor, u: Tensor) -> Tensor:
        k = slope(t, u)
        if not isinstance(k, Tensor) or k.shape != u.shape:
            got = tuple(k.shape) if isinstance(k, Tensor) else type(k).__name__
            raise ValueError(
                f"rollout_any: model must give the shape of u, {tuple(u.shape)}, got {got}"
            )
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
