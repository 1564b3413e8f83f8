"""Known inputs of time series: columns of the series that are not fitted.

The inputs are states behind the D others. Their values at the nodes are known, and no equation has
them: between two nodes each has a constant slope. The inputs' own times are nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from npu_kernels.equations._series.data import NAME, SIGNED, Series, tensor
from npu_kernels.ode._loop import inputs as known
from npu_kernels.ode._loop.inputs import Inputs


def read(inputs: Any, series: int, function: str = NAME) -> list[Inputs]:
    """Return the inputs of each series; raise ValueError or TypeError for what are none."""
    is_list = isinstance(inputs, list) and all(isinstance(part, tuple) for part in inputs)
    parts = inputs if is_list else [inputs]
    if is_list and len(parts) != series:
        raise ValueError(
            f"{function}: inputs must be (times, values) or a list of {series} such pairs, one for "
            f"each series, got {len(parts)}"
        )
    like = torch.zeros(0, dtype=torch.float64)
    tables = []
    for part in parts:
        if isinstance(part, tuple) and len(part) == 2:
            names = "inputs' times", "inputs' values"
            part = tuple(tensor(function, *pair) for pair in zip(names, part, strict=True))
        tables.append(known.read(function, part, like, converts=True))
    if len({table.values.shape[1] for table in tables}) > 1:
        raise ValueError(f"{function}: inputs must have the same columns in each series")
    return tables * series if len(tables) == 1 else tables


def columns(inputs: Any) -> int:
    """Return the number of the inputs' columns, 0 without inputs."""
    if inputs is None:
        return 0
    series = len(inputs) if isinstance(inputs, list) else 1
    return read(inputs, series)[0].values.shape[1]


def column_names(inputs: Any, count: int) -> list[str]:
    """Return the names of the inputs' columns: a DataFrame's, or v0, v1, .."""
    if not count:
        return []
    first = inputs[0] if isinstance(inputs, list) else inputs
    if hasattr(first[1], "columns"):
        return [str(name) for name in first[1].columns]
    if getattr(first[1], "name", None) is not None:
        return [str(first[1].name)]
    return [f"v{i}" for i in range(count)]


def with_inputs(data: Series, tables: Sequence[Inputs], names: Sequence[str]) -> Series:
    """Return the series with the inputs as further columns, and their times as nodes."""
    rows = []
    for s, table in enumerate(tables):
        times = data.times[s]
        known.check_covered(NAME, table, times)
        slack = known.SAME_TIME * float(times[-1] - times[0])
        inner = (table.times > times[0] + slack) & (table.times < times[-1] - slack)
        knots = table.times[inner]
        knots = knots[((knots.unsqueeze(1) - times).abs() > slack).all(1)]
        rows.append((torch.cat([times, knots]), table))
    length, count = max(len(times) for times, _ in rows), len(names)
    lead, states = (len(rows), length), data.values.shape[2]
    grid = torch.zeros(lead, dtype=torch.float64)
    values, weight = torch.zeros(2, *lead, states + count, dtype=torch.float64).unbind(0)
    for s, (times, table) in enumerate(rows):
        order = times.argsort(stable=True)
        node_index = order.argsort()[: data.times.shape[1]]
        grid[s] = torch.cat([times[order], times.max().expand(length - len(times))])
        values[s, node_index, :states] = data.values[s]
        weight[s, node_index, :states] = data.weight[s]
        values[s, :, states:] = interpolated(table, grid[s])
    known_start = values[:, 0, states:]
    low = torch.stack([table.values.amin(0) for table in tables]).amin(0)
    high = torch.stack([table.values.amax(0) for table in tables]).amax(0)
    positive = low >= -SIGNED * high.clamp(min=0)
    return replace(
        data,
        times=grid,
        values=values,
        weight=weight,
        start=torch.cat([data.start, known_start], 1),
        positive=torch.cat([data.positive, positive]),
        names=(*data.names, *names),
        size=torch.ones(states + count, dtype=torch.float64),
        exact=torch.zeros(states + count, dtype=torch.float64),
        inputs=count,
    )


def interpolated(table: Inputs, times: Tensor) -> Tensor:
    """Return the inputs ``[M, J]`` at times ``[M]``."""
    k = (torch.searchsorted(table.times, times) - 1).clamp(0, len(table.times) - 2)
    first, second = table.times[k], table.times[k + 1]
    share = ((times - first) / (second - first)).clamp(0, 1).unsqueeze(1)
    return table.values[k] + share * (table.values[k + 1] - table.values[k])
