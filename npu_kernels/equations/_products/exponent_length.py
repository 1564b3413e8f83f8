"""The description length of an exponent, a part of the criteria for tables and for series."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

ZERO = 1e-12  # size below which an exponent counts as 0
MOST_DENOMINATOR = 64  # of a fraction that is an exponent


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
    fraction = Fraction(exponent).limit_denominator(MOST_DENOMINATOR)
    return nats + 1.3 * math.log(fraction.denominator)
