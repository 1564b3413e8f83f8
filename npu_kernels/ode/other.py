"""Neural Power Unit, a layer, in a time loop: models that the fused loop does not know, through torchdiffeq."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from npu_kernels.ode import checks

# What torchdiffeq calls them. Its "rk4" is not the classic method.
NAMES = {"euler": "euler", "midpoint": "midpoint", "rk4_38": "rk4"}


def rollout_any(
    model: Callable[[Tensor], Tensor], u0: Tensor, *, steps: int, dt: float, method: str = "euler", **options: Any
) -> Tensor:
    """The trajectory ``[..., steps + 1, D]`` of ``u' = model(u)`` from ``u0 [..., D]``, for any model.

    Needs torchdiffeq (``pip install "npu_kernels[ode]"``), and the time of its loop: every operation of every stage of
    every step is one of torch's, forward and backward, hundreds of times what `rollout` takes for small models.

    method: "euler", "midpoint", "rk4_38" (the 3/8 rule, torchdiffeq's "rk4"), or the name of another of torchdiffeq's
    methods, such as "dopri5", which chooses its own steps and is read at the times n dt. `options` go to
    ``torchdiffeq.odeint``.
    """
    checks.check_grid("rollout_any", steps, dt)
    if method == "rk4":
        raise ValueError(
            "rollout_any: method 'rk4' is the classic Runge-Kutta method in npu_kernels and the 3/8 rule in "
            "torchdiffeq; say 'rk4_38' for the latter"
        )
    try:
        from torchdiffeq import odeint
    except ImportError as error:
        raise ImportError('rollout_any: torchdiffeq is not installed; pip install "npu_kernels[ode]"') from error
    times = torch.arange(steps + 1, dtype=u0.dtype, device=u0.device) * dt
    found: Tensor = odeint(lambda _, u: model(u), u0, times, method=NAMES.get(method, method), **options)
    return found.movedim(0, -2)
