"""The time loop where every start has its own times of the result."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from npu_kernels.ode import _checks as checks
from npu_kernels.ode._adaptive import Statistics
from npu_kernels.ode._loop.loop import Weights

Solve = Callable[[checks.Options, Tensor, Weights], Any]


def has_rows(t: Any) -> bool:
    """Return whether t has times for each start: two dimensions, or a list of lists or tensors."""
    if isinstance(t, (list, tuple)):
        return bool(t) and all(
            isinstance(row, (list, tuple)) or getattr(row, "ndim", 0) for row in t
        )
    return getattr(t, "ndim", 1) == 2


def integrate_each_start(options: checks.Options, u0: Tensor, weights: Weights, solve: Solve) -> Any:
    """Return what `solve` returns for common times, nan after the last time of each start.

    Starts whose first and last times are the same are one call, at the times of all of them.
    """
    rows = _rows(options.function, options.t)
    has_starts = u0.dim() == weights[0].dim()
    if not has_starts or u0.shape[-2] != len(rows):
        raise ValueError(
            f"{options.function}: t of two dimensions must have a row for each start, got "
            f"{len(rows)} rows beside u0 of shape {tuple(u0.shape)}"
            + ("" if has_starts else ", which has no dimension of starts")
        )
    length = max(map(len, rows))
    paths: dict[int, Tensor] = {}
    counts: dict[int, Statistics] = {}
    for numbers in _groups(rows):
        times = rows[numbers[0]] if len(numbers) == 1 else _union([rows[n] for n in numbers])
        part = options._replace(t=times, starts=tuple(numbers))
        result = solve(part, u0[..., numbers, :], weights)
        path, *rest = result if isinstance(result, tuple) else (result,)
        for position, n in enumerate(numbers):
            states = path[..., position, :, :]
            if len(numbers) > 1:
                states = states[..., torch.isin(times, rows[n]).to(states.device), :]
            padding = (0, 0, 0, length - len(rows[n]))
            paths[n] = torch.nn.functional.pad(states, padding, value=math.nan)
            if rest:
                counts[n] = Statistics(*(part[..., position] for part in rest[0]))
    path = torch.stack([paths[n] for n in range(len(rows))], -3)
    if not options.statistics:
        return path
    columns = zip(*(counts[n] for n in range(len(rows))), strict=True)
    return path, Statistics(*(torch.stack(column, -1) for column in columns))


def _rows(function: str, t: Any) -> list[Tensor]:
    """Return the times of each start, without the nan after them."""
    rows = []
    for number, row in enumerate(t):
        times = row if isinstance(row, Tensor) else torch.as_tensor(row, dtype=torch.float64)
        is_time = ~times.isnan()
        count = int(is_time.sum())
        if times.dim() != 1 or not is_time[:count].all():
            raise ValueError(
                f"{function}: t must have nan only after the last time of a start, got "
                f"{times.tolist()} for start {number}"
            )
        if count < 2:
            raise ValueError(
                f"{function}: t must have at least two times for each start, got {times.tolist()} "
                f"for start {number}"
            )
        rows.append(checks.check_times(function, times[:count]))
    return rows


def _groups(rows: list[Tensor]) -> list[list[int]]:
    """Return the numbers of the starts with the same first and last time.

    A start whose times need a gradient of their own is alone.
    """
    groups: dict[Any, list[int]] = {}
    for number, times in enumerate(rows):
        span = *times.detach()[[0, -1]].tolist(), times.dtype
        groups.setdefault(number if times.requires_grad else span, []).append(number)
    return list(groups.values())


def _union(rows: list[Tensor]) -> Tensor:
    """Return all times of some starts, in their direction."""
    times: Tensor = torch.cat(rows).unique()
    return times if rows[0][-1] > rows[0][0] else times.flip(0)
