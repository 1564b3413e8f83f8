"""Exponents and terms of laws as text in Python's operators."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from npu_kernels._laws.products.functions import Exponential

Array = Any


def exponent_text(w: float) -> str:
    """``3``, ``(3/2)``, ``(-1)``, ``1.47``."""
    fraction = Fraction(float(w)).limit_denominator(64)
    if abs(float(fraction) - w) > 1e-12:
        return f"{w:.6g}" if w > 0 else f"({w:.6g})"
    return str(fraction) if fraction.denominator == 1 and w > 0 else f"({fraction})"


def _power(name: str, w: float) -> str:
    return name if abs(w - 1) < 1e-12 else f"{name}**{exponent_text(w)}"


def term_text(c: float, row: Array, names: tuple[str, ...], digits: int) -> str:
    """One term: ``0.7003*M*m/r**2``."""
    pairs = [(name, w) for name, w in zip(names, row, strict=True) if w != 0]
    above = [_power(n, w) for n, w in pairs if w > 0 and not isinstance(n, Exponential)]
    above += [name.power(w) for name, w in pairs if isinstance(name, Exponential)]
    below = [_power(n, -w) for n, w in pairs if w < 0 and not isinstance(n, Exponential)]
    number = f"{c:.{digits}g}"
    top = "*".join(above)
    if top:
        top = {"1": top, "-1": f"-{top}"}.get(number, f"{number}*{top}")
    top = top or number
    if not below:
        return top
    return f"{top}/{below[0] if len(below) == 1 else '(' + '*'.join(below) + ')'}"
