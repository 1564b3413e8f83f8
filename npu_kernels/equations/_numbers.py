"""The numbers of equations: their digits, the length and the text of exponents, intervals.

Needs no NumPy unless it is given what only NumPy reads: the search in time series works without.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import torch

Array = Any

# ---- digits --------------------------------------------------------------------------------------

FLOAT64_DIGITS = 15  # decimal digits that float64 keeps
SOME_NUMBERS = 1000  # of many, whose digits are counted
FLOAT64_ROUNDING = 8 * torch.finfo(torch.float64).eps  # of a size: what a sum in float64 loses


def digits_of(values: Any) -> float:
    """Return the relative error to which numbers are rounded, by their dtype."""
    if isinstance(values, torch.Tensor):
        eps = torch.finfo(values.dtype).eps if values.is_floating_point() else 0.0
    else:
        import numpy as np

        dtype = np.asarray(values).dtype
        eps = float(np.finfo(dtype).eps) if dtype.kind == "f" else 0.0
    return max(eps / 2, FLOAT64_ROUNDING)


def last_digits(values: Any) -> Any:
    """Return the size of each number's last digit ``[N]``; 0 if they have all digits of float64.

    All have as many decimals or as many significant digits as that of some numbers with most of
    them.
    """
    import numpy as np

    most, last = 0, 400
    for value in values[:: len(values) // SOME_NUMBERS + 1].tolist():
        _, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
        most, last = max(most, len(digits)), min(last, int(exponent))
        if most >= FLOAT64_DIGITS:
            return np.zeros(len(values))
    first = np.floor(np.log10(np.maximum(np.abs(values), 1e-300)))
    return np.maximum(10.0**last, 10.0 ** (first + 1 - most))


# ---- description lengths -------------------------------------------------------------------------
# The description length of an exponent, a part of the criteria for tables and for series.

ZERO = 1e-12  # size below which an exponent counts as 0
MAX_DENOMINATOR = 64  # of a fraction that is an exponent


def factor_nats(inputs: int, signs: int = 1) -> float:
    """The nats that say which of the inputs a factor is a power of, and of which sign.

    signs: the number of signs that are as likely.
    """
    return math.log(signs * inputs)


@functools.lru_cache(maxsize=4096)
def exponent_nats(exponent: float, inputs: int | None = None) -> float:
    """The nats that describe a simple exponent, 0 for an exponent of 0.

    With `inputs`, the number of inputs, the description also says which of these the exponent
    belongs to.
    """
    if abs(exponent) < ZERO:
        return 0.0
    nats = 0.6 * max(0.0, abs(exponent) - 1)
    if inputs is not None:
        nats = factor_nats(inputs, signs=2) + (0.7 + nats)
    fraction = Fraction(exponent).limit_denominator(MAX_DENOMINATOR)
    return nats + 1.3 * math.log(fraction.denominator)


# ---- text ----------------------------------------------------------------------------------------
# Exponents and terms of equations as text in Python's operators.

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
    fraction = Fraction(float(w)).limit_denominator(MAX_DENOMINATOR)
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


# ---- intervals -----------------------------------------------------------------------------------

MAX_DIGITS = 10  # of an estimate
FAR_END = 100.0  # errors from the value: only the end of an interval of a logarithm is farther


@dataclass(frozen=True)
class Interval:
    """The estimate of a parameter, with its confidence interval.

    Attributes:
        name: name of the parameter.
        value: estimate.
        stderr: standard error.
        low: lower end of the confidence interval.
        high: upper end of the confidence interval.
    """

    name: str
    value: float
    stderr: float
    low: float
    high: float

    @classmethod
    def of(
        cls, name: str, value: float, error: float, t: float, one_sign: bool = False
    ) -> Interval:
        """Make an interval of t standard errors on both sides of an estimate.

        one_sign: whether it is that of the logarithm, so that both ends have the estimate's sign.
        """
        low, high = value - t * error, value + t * error
        if one_sign and value != 0 and math.isfinite(error):
            factor = math.exp(min(t * error / abs(value), 700.0))
            low, high = sorted((value * factor, value / factor))
        return cls(name, value, error, low, high)

    def within(self, low: float, high: float) -> Interval:
        """Return the interval, cut off at the bounds of the parameter."""
        low = min(max(self.low, low), self.value)
        return replace(self, low=low, high=max(min(self.high, high), self.value))

    def __str__(self) -> str:
        if not math.isfinite(self.stderr):
            return f"{self.name} = {self.value:.6g}, without a standard error"
        low, high = (_rounded(end, self._digits(end)) for end in (self.low, self.high))
        return f"{self.name} = {estimate_text(self.value, self.stderr)} ({low} to {high})"

    def _digits(self, end: float) -> int:
        """The digits of an end: two where only the logarithm of the parameter has an error."""
        is_far = abs(end) > abs(self.value) + FAR_END * self.stderr
        return 2 if is_far else _told(end, self.stderr)


def estimate_text(value: float, error: float) -> str:
    """Return ``0.755 ± 0.012``: the digits that the error supports."""
    return f"{_rounded(value, _told(value, error))} ± {_rounded(error, 2)}"


def _told(value: float, error: float) -> int:
    """The significant digits of a value down to the second one of its error, at least two."""
    if value == 0 or not 0 < error < math.inf:
        return MAX_DIGITS
    place = math.floor(math.log10(error)) - 1
    return min(max(math.floor(math.log10(abs(value))) - place + 1, 2), MAX_DIGITS)


def _rounded(value: float, digits: int) -> str:
    """A number with so many significant digits, zeros among them: 12300, 0.0120, 1.2e-20."""
    if digits == MAX_DIGITS or not 1e-5 <= abs(value) < 10**MAX_DIGITS:
        return f"{value:.{digits}g}"
    decimals = digits - 1 - math.floor(math.log10(abs(value)))
    return f"{round(value, decimals):.{max(decimals, 0)}f}"
