"""Trajectories between their steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from npu_kernels._common.checks import check_choice, check_tensor
from npu_kernels.ode import _checks as checks


def interpolate(
    trajectory: Tensor,
    times: Tensor | Sequence[float],
    *,
    dt: float,
    method: str = "linear",
    derivatives: Tensor | None = None,
) -> Tensor:
    """Interpolate a trajectory ``[..., steps + 1, D]`` of step dt at times: ``[..., M, D]``.

    Args:
        times: ``[M]``, between 0 and ``steps * dt``, in any order; they get no gradient. The
            trajectory does.
        method: "linear", or "hermite", the cubic of order 4 with the states and derivatives k at
            both ends of a step: ``(1 - s) u_n + s u_{n+1} + s (s - 1) ((1 - 2 s) (u_{n+1} - u_n) +
            (s - 1) dt k_n + s dt k_{n+1})`` with ``s = time / dt - n``.
        derivatives: the derivatives k ``[..., steps + 1, D]``, for "hermite":
            ``rollout(..., return_derivatives=True)`` returns them for fixed steps. An adaptive
            method needs no interpolation: `rollout` returns its states at any times t.

    At the time of a step the result is bitwise identical to its state. A state ``u_n`` that is not
    finite does not affect times up to ``(n - 1) * dt``. Raises ValueError for times outside of the
    trajectory.
    """
    dt = checks.check_dt("interpolate", dt)
    check_choice("interpolate", "method", method, ("linear", "hermite"))
    checks.check_trajectory("interpolate", trajectory, 2)
    if (method == "hermite") != (derivatives is not None):
        raise ValueError(
            "interpolate: derivatives must be given for method 'hermite' (rollout(..., steps=.., "
            "dt=.., return_derivatives=True) returns them; adaptive steps need no "
            "interpolation: their t "
            f"may be as dense as you like) and only for it, got method {method!r}"
        )
    if derivatives is not None:
        checks.check_trajectory("interpolate", derivatives, 2, "derivatives")
        if derivatives.dtype != trajectory.dtype:
            raise TypeError(
                "interpolate: derivatives must have trajectory's dtype, "
                f"{trajectory.dtype}, got {derivatives.dtype}"
            )
        if derivatives.shape != trajectory.shape:
            raise ValueError(
                f"interpolate: derivatives must have the shape of trajectory, "
                f"{tuple(trajectory.shape)}, got shape {tuple(derivatives.shape)}"
            )
    steps = trajectory.shape[-2] - 1
    position = _positions(times, steps, dt)
    n = position.floor().clamp(0, steps - 1)
    t = (position - n).clamp(0, 1).to(trajectory).unsqueeze(-1)
    first = n.long().to(trajectory.device)
    second = first + 1
    # A nan or inf of the next state times t = 0 would corrupt the state that is asked for.
    second = torch.where(t.squeeze(-1) == 0, first, second)
    u, w = trajectory.index_select(-2, first), trajectory.index_select(-2, second)
    if derivatives is None:
        return u + t * (w - u)
    k, l = derivatives.index_select(-2, first), derivatives.index_select(-2, second)
    bend = (1 - 2 * t) * (w - u) + ((t - 1) * dt) * k + (t * dt) * l
    return (1 - t) * u + t * w + (t * (t - 1)) * bend


def _positions(times: Tensor | Sequence[float], steps: int, dt: float) -> Tensor:
    """Return the times in units of dt, float64 on the CPU; raise what is wrong with them."""
    if isinstance(times, Tensor):
        check_tensor("interpolate", "times", times)
        if times.is_complex():
            raise TypeError(f"interpolate: times must be real, got {times.dtype}")
    try:
        position = torch.as_tensor(times, dtype=torch.float64, device="cpu").detach() / dt
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"interpolate: times must be a tensor or numbers, got {times!r}: {error}"
        ) from None
    if position.dim() != 1:
        raise ValueError(
            f"interpolate: times must have one dimension, got shape {tuple(position.shape)}"
        )
    slack = 4 * torch.finfo(torch.float64).eps * steps  # of times that were computed as n dt
    outside = ~((position >= -slack) & (position <= steps + slack))
    if outside.any():
        time = float(position[outside][0]) * dt
        raise ValueError(
            f"interpolate: times must lie between 0 and {steps * dt:g} (steps dt), got {time:g}"
        )
    return position
