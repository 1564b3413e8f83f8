"""Time series for `fit`: checked, on common nodes, and in units of their own size.

A node is a sample's time, or a time between two samples that are far apart. A value that was not
measured has no weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from npu_kernels._common.checks import (
    check_index,
    check_numbers,
    check_real,
    is_whole,
    refuse_dates,
)
from npu_kernels.equations._numbers import FLOAT64_ROUNDING, digits_of
from npu_kernels.ode import _inputs as known
from npu_kernels.ode._inputs import Inputs

NAME = "ode.fit"
FAR = 2.0  # times the median distance; samples farther apart get nodes in between
MAX_NODES = 4  # for each sample
# Nodes of equal distances, at most so many for each sample, where all samples lie on such ones.
MAX_EQUAL, EQUAL_DISTANCE = 3.0, 1e-9
EXACT_RESIDUAL = 1e-5  # of a column's standard deviation: smaller residuals count as exact
BELOW_ZERO = 1e-9  # of a column's size: a solver's error where an amount ends at 0
# A column has both signs if it has values below minus this share of its largest one, or below
# minus so many standard deviations of its errors.
SIGNED, NOISY = 0.1, 4.0
# A value lies below 0 if it is so many standard deviations of at least so many values around 0.
NEAR_ZERO, MIN_NEAR = 12.0, 4
# An input jumps if it has so few values, most of them like the one before, and one more as long
# after another one as samples are apart.
FEW_LEVELS, MIN_PAIRS, LONG_JUMP = 5, 6, 0.9
MIN_PART = 3  # rows with ordered times, of each part of a table where they begin again
LARGEST_STATE = 1e100  # size of a state; squares beyond, or below its inverse, are lost


@dataclass(frozen=True)
class Series:
    """S series on M nodes each; shorter ones repeat their last time."""

    times: Tensor  # [S, M]
    values: Tensor  # [S, M, D], the measured states
    weight: Tensor  # [S, M, D], 1 / standard deviation up to a factor; 0: not measured
    start: Tensor  # [S, D], the states at the first times, nan where unknown
    positive: Tensor  # [D], which states are amounts, never negative
    names: tuple[str, ...]  # of the D states
    has_sigma: bool  # the user gave the standard deviations
    relative: bool  # residuals are those of logarithms
    time: float  # unit of the times; 1: the user's
    size: Tensor  # [D], units of the states; 1: the user's
    exact: Tensor  # [D], unweighted residuals that count as exact
    inputs: int = 0  # the last states, which are known: not fitted, linear between the nodes
    digits: float = FLOAT64_ROUNDING  # of a column's size: residuals below are those of rounding
    sized: bool = False  # weights are 1 over the size of a smooth curve
    # Of each input: whether it has two values, whose powers are one, and the times of its first
    # jump, between which it may have changed at any time; none without such a jump.
    two_values: tuple[bool, ...] = ()
    jumps: tuple[tuple[float, ...], ...] = ()
    # Of each sample: the part of its table, where the times begin again between parts.
    part: Tensor | None = None  # [S, M]
    begins: tuple[int, ...] = ()  # the first rows of later parts

    @property
    def in_proportion(self) -> bool:
        """Whether errors are in proportion to the values."""
        return self.relative or self.sized

    @property
    def lengths(self) -> Tensor:
        """Times from node to node ``[S, M - 1]``."""
        return self.times.diff()

    @property
    def slopes(self) -> Tensor | None:
        """The inputs' slopes from node to node ``[S, M - 1, J]``; None without any."""
        if not self.inputs:
            return None
        lengths = self.lengths.unsqueeze(-1)
        slopes = self.values[..., -self.inputs :].diff(dim=1) / lengths
        return torch.where(lengths > 0, slopes, 0.0)

    @property
    def seen(self) -> Tensor:
        """Which values were measured ``[S, M, D]``."""
        return self.weight > 0

    @property
    def observed(self) -> Tensor:
        """Which states were measured at all ``[D]``."""
        return self.seen.any(0).any(0)

    @property
    def crossing(self) -> Tensor:
        """Which states pass 0 within a series ``[D]``: there, negative powers are infinite."""
        low = torch.where(self.seen, self.values, math.inf).amin(1)
        high = torch.where(self.seen, self.values, -math.inf).amax(1)
        return ~self.positive & ((low < 0) & (high > 0)).any(0)

    @property
    def still(self) -> Tensor:
        """Which states never change within a series ``[D]``, once the series are `scaled`."""
        is_repeated = (self.seen.sum(1) > 1).any(0)
        return is_repeated & (self.deviation() <= self.digits)

    @property
    def constant(self) -> Tensor:
        """Which of these have one value in all series ``[D]``."""
        low = torch.where(self.seen, self.values, math.inf).amin((0, 1))
        high = torch.where(self.seen, self.values, -math.inf).amax((0, 1))
        return self.still & (high - low <= self.digits)

    def first(self, nodes: int) -> Series:
        """Return the first nodes of every series."""
        parts = {n: getattr(self, n)[:, :nodes] for n in ("times", "values", "weight")}
        return replace(self, **parts)

    def refined(self, parts: int) -> Series:
        """Return the series with nodes of no weight that divide the distances into equal parts."""

        def between(x: Tensor) -> Tensor:
            nodes = [x[:, :-1] + x.diff(dim=1) * (part / parts) for part in range(parts)]
            return torch.cat([torch.stack(nodes, 2).flatten(1, 2), x[:, -1:]], 1)

        times, values = between(self.times), between(self.values)
        return replace(self, times=times, values=values, weight=torch.zeros_like(values))

    def without(self, values: Tensor) -> Series:
        """Return the series without some of the values ``[S, M, D]``, as if they were nan."""
        states = slice(len(self.positive) - self.inputs)
        weight = self.weight.masked_fill(values, 0.0)
        tables = self.values.masked_fill(weight == 0, math.nan)[..., states]
        amounts = _amounts(self.times.unbind(), tables.unbind(), self.start[:, states])
        positive = torch.cat([amounts, self.positive[states.stop :]])
        return replace(self, weight=weight, positive=positive)

    def weighted(self, factor: Tensor) -> Series:
        """Return the series with the weights of all columns multiplied by ``factor [D]``."""
        return replace(self, weight=self.weight * factor)

    def scaled(self) -> Series:
        """Return the series in units of its length and of the columns' root mean squares.

        The length is the longest series'.
        A column without a measurement keeps the size of its start, or 1.
        """
        count = self.seen.sum((0, 1))
        square = torch.where(self.seen, self.values, 0.0).square().sum((0, 1)) / count.clamp(min=1)
        start_size = self.start.nan_to_num(0.0).abs().amax(0)
        size = torch.where(count > 0, square.sqrt(), start_size)
        if self.inputs:
            known = self.values[..., -self.inputs :]
            size[-self.inputs :] = known.square().mean((0, 1)).sqrt()
        size = torch.where(size > 0, size, 1.0)
        time = float((self.times[:, -1] - self.times[:, 0]).max())
        weight = self.weight * size if self.has_sigma else self.weight
        times, values, start = (
            (self.times - self.times[:, :1]) / time,
            self.values / size,
            self.start / size,
        )
        scaled = replace(
            self, times=times, values=values, weight=weight, start=start, time=time, size=size
        )
        exact = (EXACT_RESIDUAL * scaled.deviation()).clamp(min=self.digits)
        return replace(scaled, exact=exact)

    def deviation(self) -> Tensor:
        """Standard deviations of the measurements ``[D]``, of logarithms where errors are relative.

        They are those about each series' mean, and 0 for a column of one sample or none.
        """
        values = self.values.where(self.seen, 1.0)
        values = torch.where(self.seen, values.log() if self.relative else values, 0.0)
        count = self.seen.sum(1, keepdim=True)
        means = values.sum(1, keepdim=True) / count.clamp(min=1)
        squares = torch.where(self.seen, values - means, 0.0).square().sum((0, 1))
        return (squares / count.sum((0, 1)).clamp(min=1)).sqrt()

    def spread(self) -> Tensor:
        """Standard deviations ``[D]`` of the weighted residuals of constant states; 0 by rounding.

        Weighted measurements vary less, where weights are in inverse proportion to the values.
        """
        seen, weight = self.seen, self.weight.square()
        values = self.values.where(seen, 1.0)
        values = values.log() if self.relative else values
        means = (weight * values).sum((0, 1)) / weight.sum((0, 1)).clamp(min=1e-300)
        off = torch.nn.functional.hardshrink(values - means, self.digits)
        squares = (weight * off.square()).sum((0, 1))
        return (squares / (seen.sum((0, 1)) - 1).clamp(min=1)).sqrt()


# ---- the arguments -----------------------------------------------------------------------------


def read(t: Any, u: Any, u0: Any, sigma: Any, observed: Any, names: Any, features: int) -> Series:
    """Return the arguments of `fit` as a `Series`; raise ValueError or TypeError for wrong ones."""
    digits = max(map(digits_of, u if isinstance(u, (list, tuple)) and len(u) else [u]))
    parts = enumerate(_parts("u", u, 2))
    tables = [_columns(part, index, features, observed) for index, part in parts]
    time_parts = _parts("t", t, 1)
    if len(time_parts) == 1:
        time_parts = time_parts * len(tables)
    if len(time_parts) != len(tables):
        raise ValueError(
            f"{NAME}: t must have one entry for each series of u, {len(tables)}, "
            f"got {len(time_parts)}"
        )
    names = _names(names, u, features, observed)
    for s in range(len(tables)):
        parts_of_s = (_of_series(value, s) for value in (u, t, sigma))
        check_index(NAME, **dict(zip(("u", "t", "sigma"), parts_of_s, strict=True)))
    pairs = enumerate(zip(time_parts, tables, strict=True))
    times = [_times(time, table, index) for index, (time, table) in pairs]
    errors, has_sigma = _errors(sigma, tables, features, observed)
    sized = isinstance(sigma, str) and any(bool((table <= 0).any()) for table in tables)
    relative = isinstance(sigma, str) and not sized
    start = _start(u0, len(tables), features)
    _check_values(torch.cat(tables))
    positive = _amounts(times, tables, start)
    nodes = _nodes(times)
    rows = max(len(time) for time in nodes)
    values, weight = torch.zeros(2, len(tables), rows, features, dtype=torch.float64).unbind(0)
    grid = torch.stack([torch.cat([time, time[-1:].expand(rows - len(time))]) for time in nodes])
    part = torch.zeros(len(tables), rows, dtype=torch.int64)
    begins = [_begins(time) for time in times]
    for s, (table, time, error) in enumerate(zip(tables, times, errors, strict=True)):
        order = time.argsort(stable=True)
        node_index = _node_indices(nodes[s], time[order])
        values[s, node_index] = table[order].nan_to_num(0.0)
        weight[s, node_index] = torch.where(table[order].isnan(), 0.0, 1 / error[order])
        part[s, node_index] = torch.bucketize(
            order, torch.tensor(begins[s], dtype=order.dtype), right=True
        )
    size, exact = torch.ones(features, dtype=torch.float64), torch.zeros(features)
    return Series(
        times=grid,
        values=values,
        weight=weight,
        start=start,
        positive=positive,
        names=names,
        has_sigma=has_sigma,
        relative=relative,
        time=1.0,
        size=size,
        exact=exact.double(),
        digits=digits,
        sized=sized,
        part=part if any(begins) else None,
        begins=tuple(row for rows_of_series in begins for row in rows_of_series),
    )


def _check_values(values: Tensor) -> None:
    """Raise ValueError for a table without a value, and for sizes whose squares are lost."""
    if values.isnan().all():
        raise ValueError(f"{NAME}: u must have at least one value that is not nan")
    largest = values.nan_to_num(0.0).abs().amax(0)
    if bool(((largest > LARGEST_STATE) | ((largest > 0) & (largest < 1 / LARGEST_STATE))).any()):
        rule = f"u must have columns of zeros or with a largest size from {1 / LARGEST_STATE:g} to"
        raise ValueError(f"{NAME}: {rule} {LARGEST_STATE:g}, got {largest.tolist()}")


def _of_series(value: Any, s: int) -> Any:
    """Return the part of an argument for a series, of a list of such parts."""
    return value[s] if isinstance(value, (list, tuple)) and s < len(value) else value


def _amounts(times: Sequence[Tensor], tables: Sequence[Tensor], start: Tensor) -> Tensor:
    """Return which states ``[D]`` are amounts, never negative. start ``[S, D]``: nan if unknown."""
    values = torch.cat([*tables])
    low, high = values.nan_to_num(math.inf).amin(0), values.nan_to_num(-math.inf).amax(0)
    start_low = start.nan_to_num(math.inf).amin(0)
    noise = NOISY * _noise(times, tables) + BELOW_ZERO * high.clamp(min=0)
    lowest_amount = torch.minimum(SIGNED * high.clamp(min=0), noise)
    return (low >= -lowest_amount) & (start_low >= 0)


def _noise(times: Sequence[Tensor], tables: Sequence[Tensor]) -> Tensor:
    """Return the standard deviations ``[D]`` of errors, inf in columns of too few values.

    They are the distances of values from the line through their neighbours (Gasser, Sroka and
    Jennen-Steinmetz 1986): where a column bends, they are too large.
    """
    squares, count = torch.zeros(2, tables[0].shape[1], dtype=torch.float64).unbind(0)
    for time, table in zip(times, tables, strict=True):
        for d in range(table.shape[1]):
            seen = (~table[:, d].isnan()).nonzero().squeeze(1)
            seen = seen[time[seen].argsort(stable=True)]
            if len(seen) < 3:
                continue
            square = _off_line(time[seen], table[seen, d])
            squares[d] += square.sum()
            count[d] += len(square)
    return torch.where(count > 0, squares / count.clamp(min=1), math.inf).sqrt()


def _off_line(time: Tensor, y: Tensor) -> Tensor:
    """Return squared distances ``[M - 2]`` of inner values from the line of their neighbours.

    Their mean is the variance of the errors where the line is straight.
    """
    before, at, after = time.unfold(0, 3, 1).unbind(1)
    span = after - before
    share = torch.where(span > 0, (after - at) / span.clamp(min=1e-300), 0.5)
    off = share * y[:-2] + (1 - share) * y[2:] - y[1:-1]
    return off.square() / (share.square() + (1 - share).square() + 1)


def is_below_zero(data: Series, d: int) -> bool:
    """Return whether values of a state lie below 0 by more than the errors of those around 0."""
    for s in range(len(data.times)):
        seen = data.seen[s, :, d]
        y = data.values[s, seen, d]
        lowest = float(y.min()) if len(y) > 2 else 0.0
        if lowest < 0:
            near = (y.abs() <= -lowest).unfold(0, 3, 1).any(1)
            squares = _off_line(data.times[s, seen], y)[near]
            if len(squares) >= MIN_NEAR and -lowest > NEAR_ZERO * float(squares.mean().sqrt()):
                return True
    return False


def _parts(name: str, value: Any, dimensions: int) -> list[Tensor]:
    """Return one tensor for each series.

    value: a table, a list of tables, or a table with one more dimension; of t also a list of lists.
    """

    def apart(part: Any) -> bool:
        return bool(getattr(part, "ndim", 0)) or (
            dimensions == 1 and isinstance(part, (list, tuple, range))
        )

    is_list = isinstance(value, (list, tuple)) and len(value) > 0 and all(map(apart, value))
    parts = [tensor(NAME, name, part) for part in value] if is_list else [tensor(NAME, name, value)]
    if (
        not is_list
        and parts[0].dim() == dimensions + 1
        and (dimensions == 1 or parts[0].dim() == 3)
    ):
        parts = list(parts[0])
    if dimensions == 2:
        parts = [part.unsqueeze(1) if part.dim() == 1 else part for part in parts]
    for part in parts:
        if part.dim() != dimensions or not len(part):
            rule = "(samples,) or (series, samples)"
            rule = rule if dimensions == 1 else "(samples, D) or (series, samples, D)"
            raise ValueError(
                f"{NAME}: {name} must have shape {rule}, or be a list of such, "
                f"got {tuple(part.shape)}"
            )
    return parts


def tensor(function: str, name: str, value: Any) -> Tensor:
    """Return any numbers as float64 on the CPU, masked entries as nan."""
    import numpy

    if isinstance(value, Tensor):
        check_real(function, name, value)
        return value.detach().cpu().double()
    refuse_dates(function, name, value)
    check_numbers(function, name, value)
    try:
        if isinstance(value, numpy.ma.MaskedArray):
            value = numpy.where(numpy.ma.getmaskarray(value), math.nan, value.data)
        return torch.as_tensor(numpy.array(value, dtype=numpy.float64))
    except (TypeError, ValueError, OverflowError) as error:
        raise TypeError(
            f"{function}: {name} must be numbers, got {type(value).__name__}: {error}"
        ) from None


def _columns(table: Tensor, index: int, features: int, observed: Any) -> Tensor:
    """Return all D columns ``[M, D]``, nan in those that were not measured."""
    if table.isinf().any():
        raise ValueError(f"{NAME}: u must be finite or nan (missing), got inf in series {index}")
    width = features if observed is None else len(observed)
    if table.shape[1] != width:
        rule, hint = f"{width} columns, as observed", ""
        if observed is None:
            rule = f"{features} columns (the model's features)"
            hint = "; observed= says which states the columns are"
        raise ValueError(
            f"{NAME}: u must have {rule}, got shape {tuple(table.shape)} in series {index}{hint}"
        )
    if observed is None:
        return table
    columns = table.new_full((len(table), features), math.nan)
    columns[:, list(observed)] = table
    return columns


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
    check_names(names)
    return tuple(str(name) for name in names)


def check_names(names: Sequence[Any]) -> None:
    """ValueError for a name that cannot be printed."""
    if not all(str(name).strip() and str(name).isprintable() for name in names):
        rule = "names must have printable characters only, and no name may be empty"
        raise ValueError(f"{NAME}: {rule}, got {list(names)!r}")


def _times(time: Tensor, table: Tensor, index: int) -> Tensor:
    if len(time) != len(table):
        raise ValueError(
            f"{NAME}: t must have a time for each row of u, {len(table)} in series {index}, "
            f"got {len(time)}"
        )
    if not time.isfinite().all():
        raise ValueError(
            f"{NAME}: t must be finite, got {time[~time.isfinite()][0]} in series {index}"
        )
    if len(time.unique()) < 2:
        raise ValueError(
            f"{NAME}: t must have at least two different times, got {time.unique().tolist()} "
            f"in series {index}"
        )
    return time


def _begins(time: Tensor) -> list[int]:
    """Return the rows where the times begin again; none if they have no order otherwise."""
    steps = time.diff()
    turns = (steps < 0 if (steps > 0).sum() >= (steps < 0).sum() else steps > 0).nonzero()
    begins = (turns.squeeze(1) + 1).tolist()
    ends = torch.tensor([0, *begins, len(time)])
    return begins if bool((ends.diff() >= MIN_PART).all()) else []


def _errors(
    sigma: Any, tables: list[Tensor], features: int, observed: Any
) -> tuple[list[Tensor], bool]:
    """Return the errors of all values, and whether they are the user's."""
    if sigma is None or (isinstance(sigma, str) and sigma == "proportional"):
        return [torch.ones_like(table) for table in tables], False
    if isinstance(sigma, str):
        raise ValueError(f"{NAME}: sigma must be None, 'proportional' or numbers, got {sigma!r}")
    errors = []
    is_list = isinstance(sigma, (list, tuple)) and len(sigma) == len(tables)
    is_list = is_list and all(hasattr(part, "ndim") for part in sigma)
    for s, table in enumerate(tables):
        error = tensor(NAME, "sigma", sigma[s] if is_list else sigma)
        error = error[s] if error.dim() == 3 and len(error) == len(tables) else error
        if observed is not None and error.dim() and error.shape[-1] == len(observed):
            wide = error.new_ones((*error.shape[:-1], features))
            wide[..., list(observed)] = error
            error = wide
        try:
            error = error.expand(table.shape)
        except RuntimeError:
            raise ValueError(
                f"{NAME}: sigma must be a number, one for each column, or have the shape of u, "
                f"got shape {tuple(error.shape)} for u of shape {tuple(table.shape)}"
            ) from None
        bad = ~((error > 0) & error.isfinite()) & ~table.isnan()
        if bad.any():
            raise ValueError(
                f"{NAME}: sigma must be greater than 0 and finite, got {float(error[bad][0])!r}"
            )
        errors.append(torch.where(table.isnan(), 1.0, error))
    _check_rounding(errors, tables)
    return errors, True


def _check_rounding(errors: list[Tensor], tables: list[Tensor]) -> None:
    """Raise ValueError for errors that are smaller than the values' own rounding in float64."""
    values, error = torch.cat(tables).nan_to_num(0.0), torch.cat(errors)
    half = torch.finfo(torch.float64).eps / 2
    size = torch.where(values == 0, values.abs().amax(0), values.abs())  # of 0: its column's
    small = error < half * size
    if small.any():
        raise ValueError(
            f"{NAME}: sigma must be at least the values' rounding in float64, {half:.2g} of their "
            f"size, got {float(error[small][0]):g} for the value {float(values[small][0]):g}"
        )


def _start(u0: Any, series: int, features: int) -> Tensor:
    if isinstance(u0, str):
        if u0 != "fit":
            raise ValueError(f"{NAME}: u0 must be 'fit' or numbers (nan where unknown), got {u0!r}")
        return torch.full((series, features), math.nan, dtype=torch.float64)
    if u0 is None:
        raise ValueError(f"{NAME}: u0 must be 'fit' or numbers (nan where unknown), got None")
    start = tensor(NAME, "u0", u0)
    has_inf = bool(start.isinf().any())
    if tuple(start.shape) not in ((features,), (series, features)) or has_inf:
        raise ValueError(
            f"{NAME}: u0 must have shape ({features},) or ({series}, {features}) (series, D), "
            "finite or nan (to be fitted), got "
            f"{'inf' if has_inf else f'shape {tuple(start.shape)}'}"
        )
    return start.expand(series, features).clone()


# ---- nodes -------------------------------------------------------------------------------------


def _nodes(times: list[Tensor]) -> list[Tensor]:
    """Return the sorted times of each series, with times between two that are far apart.

    Equal distances make all nodes of a trajectory one call of the ODE solver.
    """
    ordered = [time.sort().values for time in times]
    gaps = torch.cat([time.diff() for time in ordered])
    shortest = gaps.min()
    counts = gaps / shortest
    is_equal = bool(((counts - counts.round()).abs() <= EQUAL_DISTANCE * counts).all())
    if is_equal and float(counts.sum()) <= MAX_EQUAL * len(gaps):
        return [_filled(time, (time.diff() / shortest).round().long()) for time in ordered]
    far = FAR * float(gaps[gaps > 0].median())
    nodes = []
    for time in ordered:
        limit = max(far, float(time[-1] - time[0]) / (MAX_NODES * len(time)))
        nodes.append(_filled(time, (time.diff() / limit * (1 - 1e-9)).floor().long() + 1))
    return nodes


def _filled(time: Tensor, parts: Tensor) -> Tensor:
    """Return times ``[M]`` with those between them that divide each distance into equal parts."""
    share = torch.cat([torch.arange(n, dtype=time.dtype) / n for n in parts.tolist()])
    begin, length = time[:-1].repeat_interleave(parts), time.diff().repeat_interleave(parts)
    return torch.cat([begin + share * length, time[-1:]])


def _node_indices(nodes: Tensor, times: Tensor) -> Tensor:
    """Return the node of each time; equal times have nodes of their own, in order."""
    node_index = torch.searchsorted(nodes, times)
    repeated = torch.zeros_like(node_index)
    for i in range(1, len(times)):
        if times[i] == times[i - 1]:
            repeated[i] = repeated[i - 1] + 1
    return node_index + repeated


# ---- known inputs --------------------------------------------------------------------------------
# Known inputs of time series: columns of the series that are not fitted.
#
# The inputs are states behind the D others. Their values at the nodes are known, and no equation
# has them: between two nodes each has a constant slope. The inputs' own times are nodes.


def read_inputs(inputs: Any, series: int, function: str = NAME) -> list[Inputs]:
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
            check_index(function, **dict(zip(names, part, strict=True)))
            part = tuple(tensor(function, *pair) for pair in zip(names, part, strict=True))
        tables.append(known.read(function, part, like, converts=True))
    if len({table.values.shape[1] for table in tables}) > 1:
        raise ValueError(f"{function}: inputs must have the same columns in each series")
    return tables * series if len(tables) == 1 else tables


def input_columns(inputs: Any) -> int:
    """Return the number of the inputs' columns, 0 without inputs."""
    if inputs is None:
        return 0
    series = len(inputs) if isinstance(inputs, list) else 1
    return read_inputs(inputs, series)[0].values.shape[1]


def input_names(inputs: Any, count: int) -> list[str]:
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
    part = torch.zeros(lead, dtype=torch.int64)
    values, weight = torch.zeros((2, *lead, states + count), dtype=torch.float64).unbind(0)
    for s, (times, table) in enumerate(rows):
        order = times.argsort(stable=True)
        node_index = order.argsort()[: data.times.shape[1]]
        grid[s] = torch.cat([times[order], times.max().expand(length - len(times))])
        values[s, node_index, :states] = data.values[s]
        weight[s, node_index, :states] = data.weight[s]
        values[s, :, states:] = interpolated(table, grid[s])
        if data.part is not None:
            part[s, node_index] = data.part[s]
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
        part=None if data.part is None else part,
        two_values=tuple(_different_values(tables, j) == 2 for j in range(count)),
        jumps=tuple(_first_jump(data, tables, j) for j in range(count)),
    )


def _different_values(tables: Sequence[Inputs], j: int) -> int:
    """Return how many values an input has, but for rounding."""
    values = torch.cat([table.values[:, j] for table in tables]).sort().values
    return 1 + int((values.diff() > FLOAT64_ROUNDING * values.abs().max()).sum())


def _first_jump(data: Series, tables: Sequence[Inputs], j: int) -> tuple[float, ...]:
    """Return the times of an input's first jump, if it has any as long as samples are apart."""
    if not 1 < _different_values(tables, j) <= FEW_LEVELS:
        return ()
    gaps = data.lengths[data.lengths > 0]
    steps = torch.cat([table.values[:, j].diff() for table in tables])
    if len(steps) < MIN_PAIRS or 2 * (steps == 0).sum() < len(steps):
        return ()
    for table in tables:
        is_long = (table.values[:, j].diff() != 0) & (
            table.times.diff() >= LONG_JUMP * float(gaps.median())
        )
        for k in is_long.nonzero().squeeze(1).tolist():
            return float(table.times[k]), float(table.times[k + 1])
    return ()


def interpolated(table: Inputs, times: Tensor) -> Tensor:
    """Return the inputs ``[M, J]`` at times ``[M]``."""
    k = (torch.searchsorted(table.times, times) - 1).clamp(0, len(table.times) - 2)
    first, second = table.times[k], table.times[k + 1]
    share = ((times - first) / (second - first)).clamp(0, 1).unsqueeze(1)
    return table.values[k] + share * (table.values[k + 1] - table.values[k])
