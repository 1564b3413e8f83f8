"""Exponents and terms of laws as text in Python's operators."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from npu_kernels.equations._products.exponent_length import MOST_DENOMINATOR

Array = Any

ROUNDING = 2.0**-52
DIGITS = 6  # of an exponent that is no fraction, and of a factor in a function


class Exponential(str):
    """The name of a column ``exp(factor x)``, whose powers are exponentials again."""

    __slots__ = ("factor", "variable")
    variable: str
    factor: float

    def power(self, w: float, digits: int = DIGITS) -> str:
        """``exp(-2*x)`` for w = -2. digits: of a decimal."""
        return f"exp({argument(self.variable, w * self.factor, digits)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return exponential, (str(self), self.variable, self.factor)


def exponential(name: str, variable: str, factor: float) -> Exponential:
    """Return the name of a column of exponentials."""
    result = Exponential(name)
    result.variable, result.factor = variable, factor
    return result


def simple_fraction(value: float) -> Fraction | None:
    """The simple fraction that a number is to rounding, or None."""
    fraction = Fraction(value).limit_denominator(100_000)
    return fraction if abs(float(fraction) - value) <= 4 * ROUNDING * abs(value) else None


def argument(variable: str, factor: float, digits: int = DIGITS) -> str:
    """Return ``factor * variable`` as text: ``x/2``, ``pi*x/180``, ``0.137*x``."""
    for unit, pi in ((1.0, ""), (math.pi, "pi*")):
        fraction = simple_fraction(factor / unit)
        if fraction is not None and (fraction.denominator <= 12 or abs(fraction.numerator) == 1):
            top = {1: "", -1: "-"}.get(fraction.numerator, f"{fraction.numerator}*")
            below = f"/{fraction.denominator}" if fraction.denominator > 1 else ""
            return f"{top}{pi}{variable}{below}"
    return f"{factor:.{digits}g}*{variable}"


def exponent_text(w: float, digits: int = DIGITS) -> str:
    """``3``, ``(3/2)``, ``(-1)``, ``1.47``. digits: of a decimal."""
    fraction = Fraction(float(w)).limit_denominator(MOST_DENOMINATOR)
    if abs(float(fraction) - w) > 1e-12:
        return f"{w:.{digits}g}" if w > 0 else f"({w:.{digits}g})"
    return str(fraction) if fraction.denominator == 1 and w > 0 else f"({fraction})"


def _power(name: str, w: float, digits: int) -> str:
    return name if abs(w - 1) < 1e-12 else f"{name}**{exponent_text(w, digits)}"


def term_text(c: float | str, row: Array, names: tuple[str, ...], digits: int) -> str:
    """One term: ``0.7003*M*m/r**2``. c: its coefficient, or the name of it.

    digits: of the coefficient; exponents that are no fractions have at least `DIGITS`.
    """
    fine = max(digits, DIGITS)
    pairs = [(name, w) for name, w in zip(names, row, strict=True) if w != 0]
    above = [_power(n, w, fine) for n, w in pairs if w > 0 and not isinstance(n, Exponential)]
    above += [name.power(w, fine) for name, w in pairs if isinstance(name, Exponential)]
    below = [_power(n, -w, fine) for n, w in pairs if w < 0 and not isinstance(n, Exponential)]
    number = c if isinstance(c, str) else f"{c:.{digits}g}"
    top = "*".join(above)
    if top:
        top = {"1": top, "-1": f"-{top}"}.get(number, f"{number}*{top}")
    top = top or number
    if not below:
        return top
    return f"{top}/{below[0] if len(below) == 1 else '(' + '*'.join(below) + ')'}"
