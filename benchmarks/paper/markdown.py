"""What the sections of the report share: numbers with their spread, the signs of the operations."""

from __future__ import annotations

import math

from benchmarks.paper.summary import number

SIGNS = {"add": "+", "mul": "×", "div": "÷", "sqrt": "√", "sub": "-"}


def plus_minus(centre: float, spread: float) -> str:
    """A number, and its spread where it has one."""
    return number(centre) if math.isnan(spread) else f"{number(centre)} ± {number(spread, 2)}"


def between(value: float, interval: tuple[float, float] | None) -> str:
    """A number, and its interval where it has one."""
    return (
        number(value)
        if interval is None
        else f"{number(value)} ({number(interval[0])} to {number(interval[1])})"
    )


def probable(value: float) -> str:
    """A probability with two digits."""
    return "< 0.001" if value < 0.001 else f"{value:.{2 if value >= 0.0995 else 3}f}"
