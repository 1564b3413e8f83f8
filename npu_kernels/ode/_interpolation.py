"""The time loop: trajectories between their steps."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from npu_kernels._common.checks import check_tensor
from npu_kernels.ode import _checks as checks


def interpolate(
    trajectory: Tensor,
    times: Tensor | Sequence[float],
    *,
    dt: float,
    method: str = "linear",
    derivatives: Tensor | None = None,
) -> Tensor:
    """A trajectory ``[..., steps + 1, D]`` of step dt at `times` ``[M]``: ``[..., M, D]``, differentiable.

    times: between 0 and steps dt, in any order; they get no gradient.
    method: "linear", or "hermite", of order 4: the cubic with the states and the slopes k_n, k_{n+1} of both ends,

        (1 - t) u_n + t u_{n+1} + t (t - 1) ((1 - 2 t) (u_{n+1} - u_n) + (t - 1) dt k_n + t dt k_{n+1})

    derivatives: the slopes ``[..., steps + 1, D]``, for "hermite": ``rollout(..., derivatives=True)`` returns them.

    At a step's own time the result is that state, to the bit. What is not finite stays where it is: times before it
    are not touched. Raises ValueError for times outside of the trajectory.
    """
    dt = checks.check_dt("interpolate", dt)
    checks.check_choice("interpolate", "method", method, ("linear", "hermite"))
    checks.check_trajectory("interpolate", trajectory, 2)
    if (method == "hermite") != (derivatives is not None):
        raise ValueError(
            "interpolate: derivatives must be given for method 'hermite' (rollout(..., derivatives=True) returns them) "
            f"and only for it, got method {method!r}"
        )
    if derivatives is not None:
        checks.check_trajectory("interpolate", derivatives, 2, "derivatives")
        if derivatives.dtype != trajectory.dtype:
            raise TypeError(
                f"interpolate: derivatives must have trajectory's dtype, {trajectory.dtype}, got {derivatives.dtype}"
            )
    if derivatives is not None and derivatives.shape != trajectory.shape:
        raise ValueError(
            f"interpolate: derivatives must have the shape of trajectory, {tuple(trajectory.shape)}, "
            f"got shape {tuple(derivatives.shape)}"
        )
    steps = trajectory.shape[-2] - 1
    if isinstance(times, Tensor):
        check_tensor("interpolate", "times", times)
        if times.is_complex():
            raise TypeError(f"interpolate: times must be real, got {times.dtype}")
    try:
        at = torch.as_tensor(times, dtype=torch.float64, device="cpu").detach() / dt
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"interpolate: times must be a tensor or numbers, got {times!r}: {error}"
        ) from None
    if at.dim() != 1:
        raise ValueError(f"interpolate: times must have one dimension, got shape {tuple(at.shape)}")
    slack = (
        4 * torch.finfo(torch.float64).eps * steps
    )  # of times that were themselves computed as n dt
    outside = ~((at >= -slack) & (at <= steps + slack))
    if outside.any():
        raise ValueError(
            f"interpolate: times must lie between 0 and {steps * dt:g} (steps dt), "
            f"got {float(at[outside.nonzero()[0, 0]]) * dt:g}"
        )
    n = at.floor().clamp(0, steps - 1)
    t = (at - n).clamp(0, 1).to(trajectory).unsqueeze(-1)
    left = n.long().to(trajectory.device)
    right = left + 1
    # A nan or inf of the next state times t = 0 would spoil the state that is asked for.
    right = torch.where(t.squeeze(-1) == 0, left, right)
    u, w = trajectory.index_select(-2, left), trajectory.index_select(-2, right)
    if derivatives is None:
        return u + t * (w - u)
    k, l = derivatives.index_select(-2, left), derivatives.index_select(-2, right)
    bend = (1 - 2 * t) * (w - u) + ((t - 1) * dt) * k + (t * dt) * l
    return (1 - t) * u + t * w + (t * (t - 1)) * bend
