"""The time loop with inputs: piece by piece, each with inputs that are linear."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from npu_kernels.ode import _checks as checks
from npu_kernels.ode._adaptive import Statistics
from npu_kernels.ode._loop import inputs as known
from npu_kernels.ode._loop.loop import Weights

Solve = Callable[[checks.Options, Tensor, Weights], Any]


def integrate_with_inputs(
    options: checks.Options, u0: Tensor, weights: Weights, inputs: known.Inputs, solve: Solve
) -> Tensor | tuple[Any, ...]:
    """Return what `solve` returns without inputs."""
    function, states = options.function, weights[3].shape[-2]
    if u0.dim() == 0 or u0.shape[-1] != states:
        raise ValueError(
            f"{function}: u0 must have last dimension {states} (the NAU's out_features) beside "
            f"inputs, got shape {tuple(u0.shape)}"
        )
    if options.error:
        raise ValueError(f"{function}: error must be False beside inputs, got True")
    if options.is_adaptive:
        times = checks.check_times(function, options.t)
    else:
        times = torch.arange(options.steps + 1, dtype=torch.float64) * options.dt
        inputs = inputs.at_steps(options.dt)
    parts = known.pieces(function, inputs, times)
    between = [piece.times[~piece.is_output] for piece in parts]
    if not options.is_adaptive and any(len(part) for part in between):
        wrong = next(float(part[0]) for part in between if len(part))
        raise ValueError(
            f"{function}: inputs must have their times at steps of dt={options.dt:g} with method "
            f"{options.method!r}, got {wrong:.9g}, nearest to the step at "
            f"{round(wrong / options.dt) * options.dt:.9g}; t= with adaptive steps takes any times"
        )
    extras: list[Any] = []

    def piece_of(piece: known.Piece, state: Tensor) -> Tensor:
        begin = known.with_inputs(state, piece.first)
        part = options._replace(clip=False)
        if options.is_adaptive:
            part = part._replace(t=piece.times)
        else:
            part = part._replace(steps=len(piece.times) - 1)
        result = solve(part, begin, known.driven(weights, piece.slope, options.clip))
        path, *rest = result if isinstance(result, tuple) else (result,)
        extras.append(rest[0] if rest else None)
        return path[..., :states]  # type: ignore[no-any-return]

    path = known.along(parts, u0, piece_of)
    if options.derivatives:
        behind = [part[..., 1:, :states] for part in extras]
        return path, torch.cat([extras[0][..., :1, :states], *behind], -2)
    if options.statistics:
        return path, Statistics(*map(sum, zip(*extras, strict=True)))  # type: ignore[arg-type]
    return path
