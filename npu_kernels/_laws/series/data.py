"""Time series as `fit` gets them: checked, on common nodes, and in units of their own size.

A node is a sample's time, or a time between two samples that are far apart. What was not measured there has no weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from npu_kernels._common.checks import is_whole

NAME = "ode.fit"
FAR = 2.0  # times the median distance: samples farther apart than that get nodes in between
MOST_NODES = 4  # for each sample
SIGNED = 0.1  # of the greatest value: a column with values below minus this has both signs


@dataclass(frozen=True)
class Series:
    """S series on M nodes each; shorter ones repeat their last time.

    times ``[S, M]``. values, weight ``[S, M, D]``: measured states, and one over their standard deviation up to a
    factor; weight 0 where nothing was measured. start ``[S, D]``: states at the first times, nan where unknown.
    positive ``[D]``: which states are amounts, never negative. names: of the D states. known: whether the weights are
    the errors' own. relative: whether residuals are those of logarithms. time, size ``[D]``: units in which the
    numbers are given, those of the user where they are 1.
    """

    times: Tensor
    values: Tensor
    weight: Tensor
    start: Tensor
    positive: Tensor
    names: tuple[str, ...]
    known: bool
    relative: bool
    time: float
    size: Tensor

    @property
    def lengths(self) -> Tensor:
        """From node to node ``[S, M - 1]``."""
        return self.times.diff()

    @property
    def seen(self) -> Tensor:
        """What was measured ``[S, M, D]``."""
        return self.weight > 0

    @property
    def observed(self) -> Tensor:
        """Which states were measured at all ``[D]``."""
        return self.seen.any(0).any(0)

    def first(self, nodes: int) -> Series:
        """The beginning of every series."""
        return replace(
            self,
            times=self.times[:, :nodes],
            values=self.values[:, :nodes],
            weight=self.weight[:, :nodes],
        )

    def weighted(self, factor: Tensor) -> Series:
        """The same with the weights of all columns multiplied by ``factor [D]``."""
        return replace(self, weight=self.weight * factor)

    def scaled(self) -> Series:
        """In units of the longest series' length, and of the root mean squares of the columns.

        A column without a measurement keeps the size of its start, or 1.
        """
        count = self.seen.sum((0, 1))
        square = torch.where(self.seen, self.values, 0.0).square().sum((0, 1)) / count.clamp(min=1)
        given = self.start.nan_to_num(0.0).abs().amax(0)
        size = torch.where(count > 0, square.sqrt(), given)
        size = torch.where(size > 0, size, 1.0)
        time = float((self.times[:, -1] - self.times[:, 0]).max())
        weight = self.weight * size if self.known else self.weight
        return replace(
            self,
            times=(self.times - self.times[:, :1]) / time,
            values=self.values / size,
            weight=weight,
            start=self.start / size,
            time=time,
            size=size,
        )


# ---- what the user gives ---------------------------------------------------------------------------------------------


def read(t: Any, u: Any, u0: Any, sigma: Any, observed: Any, names: Any, features: int) -> Series:
    """The arguments of `fit` as one `Series`; raises ValueError and TypeError that name argument, value and rule."""
    tables = [
        _columns(part, index, features, observed) for index, part in enumerate(_parts("u", u, 2))
    ]
    given = _parts("t", t, 1)
    if len(given) == 1:
        given = given * len(tables)
    if len(given) != len(tables):
        raise ValueError(
            f"{NAME}: t must have one entry for each series of u, {len(tables)}, got {len(given)}"
        )
    names = _names(names, u, features, observed)
    times = [
        _times(one, table, index)
        for index, (one, table) in enumerate(zip(given, tables, strict=True))
    ]
    errors, known = _errors(sigma, tables, features, observed)
    relative = isinstance(sigma, str)
    if relative and any(bool((table[~table.isnan()] <= 0).any()) for table in tables):
        raise ValueError(
            f"{NAME}: sigma='relative' fits logarithms, for which u must be greater than 0"
        )
    start = _start(u0, len(tables), features)
    everything = torch.cat(tables)
    seen = ~everything.isnan()
    if not seen.any():
        raise ValueError(f"{NAME}: u must have at least one value that is not nan")
    low = torch.where(seen, everything, math.inf).amin(0)
    high = torch.where(seen, everything, -math.inf).amax(0)
    start_low = start.nan_to_num(math.inf).amin(0)
    positive = (low >= -SIGNED * high.clamp(min=0)) & (start_low >= 0)
    nodes = _nodes(times)
    rows = max(len(one) for one in nodes)
    values, weight = torch.zeros(2, len(tables), rows, features, dtype=torch.float64).unbind(0)
    grid = torch.stack([torch.cat([one, one[-1:].expand(rows - len(one))]) for one in nodes])
    for s, (table, time, error) in enumerate(zip(tables, times, errors, strict=True)):
        order = time.argsort(stable=True)
        place = _places(nodes[s], time[order])
        values[s, place] = table[order].nan_to_num(0.0)
        weight[s, place] = torch.where(table[order].isnan(), 0.0, 1 / error[order])
    size = torch.ones(features, dtype=torch.float64)
    return Series(grid, values, weight, start, positive, names, known, relative, 1.0, size)


def _parts(name: str, value: Any, dimensions: int) -> list[Tensor]:
    """One tensor for each series: of a list of arrays, of a table with one more dimension; of t also of lists."""

    def apart(part: Any) -> bool:
        return bool(getattr(part, "ndim", 0)) or (
            dimensions == 1 and isinstance(part, (list, tuple, range))
        )

    many = isinstance(value, (list, tuple)) and len(value) > 0 and all(map(apart, value))
    found = [tensor(NAME, name, part) for part in value] if many else [tensor(NAME, name, value)]
    if not many and found[0].dim() == dimensions + 1 and (dimensions == 1 or found[0].dim() == 3):
        found = list(found[0])
    if dimensions == 2:
        found = [part.unsqueeze(1) if part.dim() == 1 else part for part in found]
    for part in found:
        if part.dim() != dimensions or not len(part):
            rule = (
                "(samples,) or (series, samples)"
                if dimensions == 1
                else "(samples, D) or (series, samples, D)"
            )
            raise ValueError(
                f"{NAME}: {name} must have shape {rule}, or be a list of such, got {tuple(part.shape)}"
            )
    return found


def tensor(function: str, name: str, value: Any) -> Tensor:
    """Any numbers as float64 on the CPU."""
    import numpy

    try:
        array = (
            value.detach().cpu().double()
            if isinstance(value, Tensor)
            else numpy.array(value, dtype=numpy.float64)
        )
        return torch.as_tensor(array)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"{function}: {name} must be numbers, got {type(value).__name__}: {error}"
        ) from None


def _columns(table: Tensor, index: int, features: int, observed: Any) -> Tensor:
    """All D columns ``[M, D]``, with nan for those that were not measured."""
    if table.isinf().any():
        raise ValueError(f"{NAME}: u must be finite or nan (missing), got inf in series {index}")
    width = features if observed is None else len(observed)
    if table.shape[1] != width:
        rule = (
            f"{features} columns (the model's features)"
            if observed is None
            else f"{width} columns, as observed"
        )
        more = "; observed= says which states the columns are" if observed is None else ""
        raise ValueError(
            f"{NAME}: u must have {rule}, got shape {tuple(table.shape)} in series {index}{more}"
        )
    if observed is None:
        return table
    found = table.new_full((len(table), features), math.nan)
    found[:, list(observed)] = table
    return found


def check_observed(observed: Any, features: int) -> None:
    if observed is None:
        return
    good = isinstance(observed, Sequence) and not isinstance(observed, str) and len(observed) > 0
    if not good or not all(is_whole(i) and 0 <= i < features for i in observed):
        raise ValueError(
            f"{NAME}: observed must be numbers of states, 0 to {features - 1}, got {observed!r}"
        )
    if len(set(observed)) != len(observed):
        raise ValueError(f"{NAME}: observed must name every state once, got {observed!r}")


def _names(names: Any, u: Any, features: int, observed: Any) -> tuple[str, ...]:
    first = u[0] if isinstance(u, (list, tuple)) and len(u) else u
    if names is None and hasattr(first, "columns") and observed is None:
        names = [str(name) for name in first.columns]
    if names is None:
        names = [f"x{i}" for i in range(features)]
    if isinstance(names, str) or len(names) != features or len(set(map(str, names))) != features:
        raise ValueError(
            f"{NAME}: names must be {features} different names (of the states), got {names!r}"
        )
    return tuple(str(name) for name in names)


def _times(time: Tensor, table: Tensor, index: int) -> Tensor:
    if len(time) != len(table):
        raise ValueError(
            f"{NAME}: t must have a time for each row of u, {len(table)} in series {index}, got {len(time)}"
        )
    if not time.isfinite().all():
        raise ValueError(
            f"{NAME}: t must be finite, got {time[~time.isfinite()][0]} in series {index}"
        )
    if len(time.unique()) < 2:
        raise ValueError(
            f"{NAME}: t must have at least two different times, got {time.unique().tolist()}"
        )
    return time


def _errors(
    sigma: Any, tables: list[Tensor], features: int, observed: Any
) -> tuple[list[Tensor], bool]:
    """The errors of all values, and whether they are the user's."""
    if sigma is None or (isinstance(sigma, str) and sigma == "relative"):
        return [torch.ones_like(table) for table in tables], False
    if isinstance(sigma, str):
        raise ValueError(f"{NAME}: sigma must be None, 'relative' or numbers, got {sigma!r}")
    found = []
    many = (
        isinstance(sigma, (list, tuple))
        and len(sigma) == len(tables)
        and all(hasattr(s, "ndim") for s in sigma)
    )
    for s, table in enumerate(tables):
        one = tensor(NAME, "sigma", sigma[s] if many else sigma)
        one = one[s] if one.dim() == 3 and len(one) == len(tables) else one
        if observed is not None and one.dim() and one.shape[-1] == len(observed):
            wide = one.new_ones((*one.shape[:-1], features))
            wide[..., list(observed)] = one
            one = wide
        try:
            one = one.expand(table.shape)
        except RuntimeError:
            raise ValueError(
                f"{NAME}: sigma must be a number, one for each column, or have the shape of u, "
                f"got shape {tuple(one.shape)} beside {tuple(table.shape)}"
            ) from None
        bad = ~((one > 0) & one.isfinite()) & ~table.isnan()
        if bad.any():
            raise ValueError(
                f"{NAME}: sigma must be greater than 0 and finite, got {float(one[bad][0])!r}"
            )
        found.append(torch.where(table.isnan(), 1.0, one))
    return found, True


def _start(u0: Any, series: int, features: int) -> Tensor:
    if isinstance(u0, str):
        if u0 != "fit":
            raise ValueError(f"{NAME}: u0 must be 'fit' or numbers (nan where unknown), got {u0!r}")
        return torch.full((series, features), math.nan, dtype=torch.float64)
    found = tensor(NAME, "u0", u0)
    if tuple(found.shape) not in ((features,), (series, features)) or found.isinf().any():
        raise ValueError(
            f"{NAME}: u0 must have shape ({features},) or ({series}, {features}) (series, D), finite or nan (to be "
            f"fitted), got {'inf' if found.isinf().any() else f'shape {tuple(found.shape)}'}"
        )
    return found.expand(series, features).clone()


# ---- nodes -----------------------------------------------------------------------------------------------------------


def _nodes(times: list[Tensor]) -> list[Tensor]:
    """The sorted times of each series, with times between two that are far apart."""
    ordered = [time.sort().values for time in times]
    gaps = torch.cat([one.diff() for one in ordered])
    far = FAR * float(gaps[gaps > 0].median())
    found = []
    for one in ordered:
        limit = max(far, float(one[-1] - one[0]) / (MOST_NODES * len(one)))
        between = (one.diff() / limit * (1 - 1e-9)).floor().long().tolist()
        pieces = [
            one[i] + (one[i + 1] - one[i]) * torch.arange(count + 1, dtype=one.dtype) / (count + 1)
            for i, count in enumerate(between)
        ]
        found.append(torch.cat([*pieces, one[-1:]]))
    return found


def _places(nodes: Tensor, times: Tensor) -> Tensor:
    """The node of each time; equal times have nodes of their own, in order."""
    place = torch.searchsorted(nodes, times)
    repeated = torch.zeros_like(place)
    for i in range(1, len(times)):
        if times[i] == times[i - 1]:
            repeated[i] = repeated[i - 1] + 1
    return place + repeated
