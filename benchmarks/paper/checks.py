"""What counts as reaching a number: checks with a verdict, of single values and of statistics of many runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.paper.summary import interval, number

Statistic = Callable[[Sequence[float]], float]


@dataclass(frozen=True)
class Check:
    """One number that a reproduction has to reach; `near`: not reached, but as these runs' chance has it, it may be."""

    what: str
    wanted: str
    found: str
    reached: bool
    near: bool = False

    @property
    def verdict(self) -> str:
        if self.reached:
            return "reached"
        return "not reached, within the error of these runs" if self.near else "**not reached**"


def statistic(what: str, of: Statistic, values: Sequence[float], low: float, high: float) -> Check:
    """A statistic of independent runs; its interval tells whether missing the range means anything."""
    check, around = within(what, of(values), low, high), interval(of, values)
    if around is None:
        return check
    found = f"{check.found} ({number(around[0])} to {number(around[1])})"
    return replace(check, found=found, near=not check.reached and around[0] <= high and around[1] >= low)


def within(what: str, value: float, low: float, high: float) -> Check:
    """A value in an interval."""
    if low == -math.inf:
        wanted = f"≤ {number(high)}"
    elif high == math.inf:
        wanted = f"≥ {number(low)}"
    else:
        wanted = f"{number(low)} to {number(high)}"
    return Check(what, wanted, number(value), low <= value <= high)


def at_most(what: str, value: float, high: float) -> Check:
    return within(what, value, -math.inf, high)


def order(what: str, wanted: str, holds: bool, values: Sequence[float]) -> Check:
    """An order of values."""
    return Check(what, wanted, ", ".join(map(number, values)), holds)
