"""What counts as reaching a number: checks with a verdict, of single values and of statistics of many runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.paper.summary import interval, number

Statistic = Callable[[Sequence[float]], float]


@dataclass(frozen=True)
class Check:
    """One number that a reproduction has to reach.

    Args:
        what, wanted, found: for the table.
        reached: whether it is.
        near: it is not, but as these runs' chance has it, it may be.
        why: what is known of the reason, where it is not reached.
    """

    what: str
    wanted: str
    found: str
    reached: bool
    near: bool = False
    why: str = ""

    @property
    def verdict(self) -> str:
        if self.reached:
            return "reached"
        if self.near:
            return "not reached, within the error of these runs"
        return f"**not reached**: {self.why}" if self.why else "**not reached**"


def explained(check: Check, why: str) -> Check:
    """The check with its reason, should it not be reached."""
    return replace(check, why=why)


def judged(check: Check, around: tuple[float, float] | None, low: float, high: float) -> Check:
    """The check of a value in a range, beside the value's 95 % interval: whether missing the range means anything."""
    if around is None:
        return check
    found = f"{check.found} ({number(around[0])} to {number(around[1])})"
    return replace(check, found=found, near=not check.reached and around[0] <= high and around[1] >= low)


def statistic(what: str, of: Statistic, values: Sequence[float], low: float, high: float) -> Check:
    """A statistic of independent runs; its interval tells whether missing the range means anything."""
    return judged(within(what, of(values), low, high), interval(of, values), low, high)


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
