"""What counts as reaching a number: checks with a verdict of three values, of single values and of statistics of runs.

A statistic of runs is judged by its 95 % interval: the check holds where the whole interval is as wanted, it does not
where none of it is, and else these runs cannot tell. A value that no chance changes has no interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from benchmarks.paper.summary import FEWEST, interval, number, samples, wilson

Statistic = Callable[[Sequence[float]], float]
SURE = 0.975  # share of a bootstrap's samples from which on an order holds


@dataclass(frozen=True)
class Check:
    """One number that a reproduction has to reach.

    Args:
        what, wanted, found: for the table.
        holds: whether it does; None where these runs cannot tell.
        why: what is known of the reason, where it does not hold or cannot be told.
    """

    what: str
    wanted: str
    found: str
    holds: bool | None
    why: str = ""

    @property
    def verdict(self) -> str:
        if self.holds:
            return "holds"
        word = "**does not hold**" if self.holds is False else "cannot be told"
        return f"{word}: {self.why}" if self.why else word


def explained(check: Check, why: str) -> Check:
    """The check with its reason, should it not hold."""
    return replace(check, why=why)


def judged(
    what: str, value: float, around: tuple[float, float] | None, low: float, high: float
) -> Check:
    """A value with its 95 % interval, and the range in which it should lie. Without an interval nothing can be told."""
    holds = None if around is None else _lies(around, low, high)
    found = number(value) + (
        "" if around is None else f" ({number(around[0])} to {number(around[1])})"
    )
    return Check(what, _range(low, high), found, holds, "" if around else "too few runs")


def _lies(around: tuple[float, float], low: float, high: float) -> bool | None:
    if low <= around[0] and around[1] <= high:
        return True
    return False if around[1] < low or high < around[0] else None


def _range(low: float, high: float) -> str:
    if low == -math.inf:
        return f"≤ {number(high)}"
    return f"≥ {number(low)}" if high == math.inf else f"{number(low)} to {number(high)}"


def statistic(what: str, of: Statistic, values: Sequence[float], low: float, high: float) -> Check:
    """A statistic of independent runs."""
    return judged(what, of(values), interval(of, values), low, high)


def share(what: str, count: int, total: int, low: float, high: float) -> Check:
    """A share of independent runs."""
    return judged(what, count / max(1, total), wilson(count, total), low, high)


def within(what: str, value: float, low: float, high: float) -> Check:
    """A value that no chance changes, or one that is only about these very runs."""
    return Check(what, _range(low, high), number(value), low <= value <= high)


def at_most(what: str, value: float, high: float) -> Check:
    return within(what, value, -math.inf, high)


def order(what: str, wanted: str, values: Sequence[float], samples: Sequence[bool] | None) -> Check:
    """An order of statistics, with whether each of a bootstrap's samples has it; None: there are too few runs."""
    found = ", ".join(map(number, values))
    if samples is None:
        return Check(what, wanted, found, None, "too few runs")
    part = sum(samples) / len(samples)
    holds = True if part >= SURE else False if part <= 1 - SURE else None
    return Check(what, wanted, f"{found} (in {100 * part:.0f} % of samples)", holds)


def ranked(
    what: str,
    wanted: str,
    of: Statistic,
    groups: Sequence[Sequence[float]],
    holds: Callable[..., bool],
) -> Check:
    """An order of the statistics of groups of independent runs: `holds` gets one number for each group."""
    values = [of(group) for group in groups]
    if any(len(group) < FEWEST for group in groups):
        return order(what, wanted, values, None)
    drawn = zip(*(map(of, samples(group, key)) for key, group in enumerate(groups)), strict=True)
    return order(what, wanted, values, [holds(*sample) for sample in drawn])
