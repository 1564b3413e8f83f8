"""The estimate of a parameter with its confidence interval."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Interval:
    """The estimate of a parameter.

    Attributes:
        name: which parameter it is.
        value: the estimate.
        error: its standard error.
        low: the lower end of the confidence interval.
        high: the upper end.
    """

    name: str
    value: float
    error: float
    low: float
    high: float

    @classmethod
    def of(
        cls, name: str, value: float, error: float, t: float, one_sign: bool = False
    ) -> Interval:
        """Make an interval of t standard errors on both sides of an estimate.

        one_sign: of the standard errors of its logarithm.
        """
        low, high = value - t * error, value + t * error
        if one_sign and value != 0 and math.isfinite(error):
            factor = math.exp(min(t * error / abs(value), 700.0))
            low, high = sorted((value * factor, value / factor))
        return cls(name, value, error, low, high)

    def within(self, low: float, high: float) -> Interval:
        """Return the interval that ends where a bound of the parameter is."""
        low = min(max(self.low, low), self.value)
        return replace(self, low=low, high=max(min(self.high, high), self.value))

    def __str__(self) -> str:
        if not math.isfinite(self.error):
            return f"{self.name} = {self.value:.6g}, without a standard error"
        return (
            f"{self.name} = {self.value:.6g} ± {self.error:.2g} ({self.low:.6g} to {self.high:.6g})"
        )
