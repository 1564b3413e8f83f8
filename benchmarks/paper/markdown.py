"""Numbers with their spread, and the signs of the operations, for the report's sections."""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.paper.summary import Statistic, interval, median, number

SIGNS = {"add": "+", "mul": "×", "div": "÷", "sqrt": "√", "sub": "-"}


def plus_minus(centre: float, spread: float) -> str:
    """A number, and its spread where it has one."""
    return number(centre) if math.isnan(spread) else f"{number(centre)} ± {number(spread, 2)}"


def between(value: float, bounds: tuple[float, float] | None) -> str:
    """A number, and its interval where it has one."""
    return number(value) + (f" ({number(bounds[0])} to {number(bounds[1])})" if bounds else "")


def middle(values: Sequence[float], of: Statistic = median) -> str:
    """A statistic of runs with its 95 % interval."""
    return between(of(values), interval(of, values))


def probable(value: float) -> str:
    """A probability with two digits."""
    return "< 0.001" if value < 0.001 else f"{value:.{2 if value >= 0.0995 else 3}f}"
