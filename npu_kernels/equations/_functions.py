"""Functions of single inputs as columns in addition to the inputs, and functions of y.

An equation's products are then of inputs and of functions of inputs, as in ``r F sin(t)``. With a
function of y it is an equation for f(y), whose errors are still those of y: residuals are ``y -
g(sum)`` with g the inverse of f.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from npu_kernels._common.display import written_name
from npu_kernels.equations._numbers import (
    ROUNDING,
    argument,
    exponential,
    simple_fraction,
)

Array = Any


INPUT_FUNCTIONS = ("sin", "cos", "log", "exp")
IDENTITY = "identity"  # y itself among the functions of y
LARGEST_ARGUMENT = 700.0  # of exp in float64
OUTSIDE = 0.3  # of y's root mean square: how far outside of a domain errors may bring it
MAX_OF_INVERSE = 1e6  # derivative of an inverse at the end of its domain

# ---- functions of inputs -------------------------------------------------------------------------


def symbolic(sympy: Any, factor: float) -> Any:
    """Return a factor for sympy, exact where it is a simple fraction, of pi too."""
    for unit, pi in ((1.0, 1), (math.pi, sympy.pi)):
        fraction = simple_fraction(factor / unit)
        if fraction is not None:
            return sympy.Rational(fraction.numerator, fraction.denominator) * pi
    return sympy.Float(factor)


@dataclass(frozen=True)
class Column:
    """The column ``function(factor x)`` of an input x."""

    function: str  # one of `INPUT_FUNCTIONS`
    index: int  # of the input
    factor: float

    def values(self, x: Array) -> Array:
        """Return the function's values; 0 where it is 0 but for the rounding of its argument."""
        x = self.factor * x
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            values = getattr(np, self.function)(x)
        if self.function == "exp":
            return values
        size = 1.0 if self.function == "log" else np.maximum(1.0, np.abs(x))
        return np.where(np.abs(values) <= ROUNDING * size, 0.0, values)

    def name(self, variable: str) -> str:
        text = f"{self.function}({argument(variable, self.factor)})"
        return exponential(text, variable, self.factor) if self.function == "exp" else text

    def check(self, name: str, x: Array, origin: Array) -> None:
        """ValueError that names the row of a number which the function does not take.

        origin: the rows' numbers.
        """
        if self.function == "log":
            wrong, rule = x <= 0, "numbers greater than 0"
        elif self.function == "exp":
            wrong = np.abs(self.factor * x) > LARGEST_ARGUMENT
            rule = f"numbers up to {LARGEST_ARGUMENT / self.factor:.6g} (subtract a mean)"
        else:
            return
        if wrong.any():
            first = np.flatnonzero(wrong)[origin[wrong].argmin()]
            raise ValueError(
                f"NPURegressor: functions: {self.function} needs {rule}, got {x[first]:.6g} in row "
                f"{origin[first]} of {name} (the first row is 0). functions={{column: names}} says "
                "which columns have which functions"
            )


@dataclass(frozen=True)
class Functions:
    """The columns of an equation: the inputs, and functions of them."""

    inputs: tuple[str, ...]  # names
    columns: tuple[Column, ...] = ()

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all columns."""
        return (*self.inputs, *(c.name(self.inputs[c.index]) for c in self.columns))

    @cached_property
    def written_names(self) -> tuple[str, ...]:
        """Names of all columns as a formula has them."""
        return Functions(tuple(map(written_name, self.inputs)), self.columns).names

    @property
    def exponential(self) -> list[int]:
        """The indices of the columns that are exponentials, whose exponents are rates."""
        first = len(self.inputs)
        return [i for i, c in enumerate(self.columns, first) if c.function == "exp"]

    def expand(self, X: Array, used: Array | None = None) -> Array:
        """Return all columns ``[N, n + functions]``; 1 for functions that are not used."""
        if not self.columns:
            return X
        parts = [X]
        for i, column in enumerate(self.columns, X.shape[1]):
            absent = used is not None and not used[i]
            values = np.ones(len(X)) if absent else column.values(X[:, column.index])
            parts.append(values[:, None])
        return np.concatenate(parts, 1)

    def symbols(self, sympy: Any, inputs: Sequence[Any]) -> list[Any]:
        """Return all columns as sympy expressions of the inputs' symbols."""
        return [
            *inputs,
            *(
                getattr(sympy, c.function)(symbolic(sympy, c.factor) * inputs[c.index])
                for c in self.columns
            ),
        ]

    def circles(self) -> list[tuple[int, int]]:
        """Return the pairs of columns that are the sine and the cosine of the same."""
        positions = {(c.index, c.function): i for i, c in enumerate(self.columns, len(self.inputs))}
        return [
            (i, positions[index, "cos"])
            for (index, function), i in positions.items()
            if function == "sin" and (index, "cos") in positions
        ]


def check_functions(functions: Any) -> None:
    """ValueError for an argument `functions` that cannot be."""
    parts = functions.values() if isinstance(functions, Mapping) else [functions]
    for part in () if functions is None else parts:
        some = [part] if isinstance(part, str) else part
        if not isinstance(some, Sequence) or not all(name in INPUT_FUNCTIONS for name in some):
            raise ValueError(
                f"NPURegressor: functions must be of {', '.join(INPUT_FUNCTIONS)}, or a dict of "
                f"these by column, got {functions!r}"
            )


def functions_of(
    functions: Any,
    X: Array,
    origin: Array,
    names: tuple[str, ...],
    factors: Sequence[float | None],
) -> Functions:
    """Return the columns that the argument `functions` means, checked for the rows X.

    origin: the rows' numbers. factors: of the inputs to numbers without units, or radians; None
    where there is a dimension.
    """
    if functions is None:
        return Functions(names)
    if isinstance(functions, Mapping):
        chosen = {str(name): [f] if isinstance(f, str) else f for name, f in functions.items()}
        for name in chosen:
            if name not in names:
                rule = f"functions must name columns of {', '.join(names)}"
                raise ValueError(f"NPURegressor: {rule}, got {name!r}")
            if factors[names.index(name)] is None:
                raise ValueError(
                    f"NPURegressor: functions: a function takes numbers without a dimension, or "
                    f"angles, and {name} has a dimension"
                )
    else:
        of_all = [functions] if isinstance(functions, str) else functions
        chosen = {name: of_all for name, f in zip(names, factors, strict=True) if f is not None}
    columns = list[Column]()
    for index, name in enumerate(names):
        for function in dict.fromkeys(chosen.get(name, ())):
            factor = float(factors[index] or 1.0)
            if function == "exp":
                factor /= 10.0 ** _decade(factor * X[:, index])
            columns.append(Column(function, index, factor))
            columns[-1].check(name, X[:, index], origin)
    return Functions(names, tuple(columns))


def _decade(x: Array) -> int:
    """The power of ten that brings the standard deviation of numbers near 1."""
    deviation = float(x.std())
    return round(math.log10(deviation)) if 0 < deviation < math.inf else 0


# ---- functions of y ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Kind:
    """A function f of y and its inverse g."""

    value: Callable[[Array], Array]  # f(y)
    inverse: Callable[[Array], Array]  # g(t)
    derivative: Callable[[Array], Array]  # g'(t)
    domain: tuple[float, float]  # of y
    image: tuple[float, float]  # of f: g takes numbers outside of it for its ends
    text: str  # g


def _root_of_circle(t: Array) -> Array:
    return 1 / np.sqrt(np.maximum(1 - t * t, MAX_OF_INVERSE**-2))


_INF, _HALF = math.inf, math.pi / 2
_ALL, _UNIT, _POSITIVE = (-_INF, _INF), (-1.0, 1.0), (1e-300, _INF)
_KINDS = {
    "log": _Kind(np.log, np.exp, np.exp, (0.0, _INF), _ALL, "exp({})"),
    "exp": _Kind(
        np.exp, np.log, np.reciprocal, (-LARGEST_ARGUMENT, LARGEST_ARGUMENT), _POSITIVE, "log({})"
    ),
    "sin": _Kind(np.sin, np.arcsin, _root_of_circle, (-_HALF, _HALF), _UNIT, "arcsin({})"),
    "cos": _Kind(
        np.cos, np.arccos, lambda t: -_root_of_circle(t), (0.0, math.pi), _UNIT, "arccos({})"
    ),
    "tan": _Kind(np.tan, np.arctan, lambda t: 1 / (1 + t * t), (-_HALF, _HALF), _ALL, "arctan({})"),
    "logit": _Kind(
        lambda y: np.log(y / (1 - y)),
        lambda t: 1 / (1 + np.exp(-t)),
        lambda t: 0.25 / np.cosh(t / 2) ** 2,
        (0.0, 1.0),
        _ALL,
        "1/(1 + exp(-({})))",
    ),
    "log(1+1/y)": _Kind(
        lambda y: np.log1p(1 / y),
        lambda t: 1 / np.expm1(t),
        lambda t: -0.25 / np.sinh(t / 2) ** 2,
        (0.0, _INF),
        _POSITIVE,
        "1/(exp({}) - 1)",
    ),
}
OUTPUT_FUNCTIONS = tuple(_KINDS)
OF_NUMBERS_INSIDE = ("log", "logit", "log(1+1/y)")  # the ends of the domain are no part of it


@dataclass(frozen=True)
class OutputFunction:
    """A function f of ``factor y``, for which an equation is the sum.

    Attributes:
        name: of f.
        factor: of y to a number without units, or radians.
    """

    name: str
    factor: float = 1.0

    @property
    def _kind(self) -> _Kind:
        return _KINDS[self.name]

    def inside(self, y: Array) -> Array:
        """Return where y is in the domain."""
        (low, high), y = self._kind.domain, self.factor * y
        inside: Array = (y > low) & (y < high)
        return inside if self.name in OF_NUMBERS_INSIDE else inside | (y == low) | (y == high)

    def margin(self, y: Array) -> Array:
        """Return the distances from the ends of the domain, 0 outside."""
        low, high = self._kind.domain
        distance = np.minimum(self.factor * y - low, high - self.factor * y) / self.factor
        return np.maximum(distance, 0.0)

    def _nearest(self, y: Array) -> Array:
        """Return the numbers of the domain, which is that of factor times y."""
        low, high = self._kind.domain
        return np.clip(self.factor * y, low, high)

    def outside(self, y: Array) -> int | None:
        """Return the row of a y that errors do not bring out of the domain; None if there is none.

        Half of the rows, and those far outside, are no errors.
        """
        distance = np.abs(self.factor * y - self._nearest(y))
        largest = float(np.abs(y).max()) or 1.0
        size = self.factor * largest * math.sqrt(np.mean((y / largest) ** 2))
        inside = self.inside(y)
        if distance.max() > OUTSIDE * size or inside.sum() < len(y) / 2:
            return int(np.where(inside, -1.0, distance).argmax())
        return None

    @property
    def rule(self) -> str:
        """The domain in words."""
        low, high = (f"{bound / self.factor:.6g}" for bound in self._kind.domain)
        if self._kind.domain[1] == math.inf:
            return f"a y greater than {low}"
        return f"a y between {low} and {high}"

    def value(self, y: Array) -> Array:
        """Return f(y), of the nearest number of the domain, with 0 for what is infinite there."""
        with np.errstate(all="ignore"):
            values = self._kind.value(self._nearest(y))
        return np.where(np.isfinite(values), values, 0.0)

    @property
    def image(self) -> tuple[float, float]:
        """The values of the function."""
        return self._kind.image

    def beyond(self, t: Array) -> Array:
        """Return where a sum is no value of the function."""
        low, high = self.image
        return (t < low - 1e-9) | (t > high + 1e-9)

    def inverse(self, t: Array) -> Array:
        """Return y; for a sum that is no value of the function that of the nearest value."""
        low, high = self.image
        with np.errstate(all="ignore"):
            return self._kind.inverse(np.clip(t, low, high)) / self.factor

    def derivative(self, t: Array) -> Array:
        """Return the derivative of the inverse."""
        low, high = self.image
        with np.errstate(all="ignore"):
            return self._kind.derivative(np.clip(t, low, high)) / self.factor

    def text(self, total: str) -> str:
        """Return y as text. total: f(y)."""
        body = self._kind.text.format(total)
        angle = simple_fraction(self.factor / math.pi)
        if angle is not None:
            top = f"{angle.denominator}*" if angle.denominator > 1 else ""
            below = f"({angle.numerator}*pi)" if angle.numerator > 1 else "pi"
            return f"{top}{body}/{below}"
        return body if self.factor == 1 else argument(body, 1 / self.factor)

    def symbolic(self, sympy: Any, total: Any) -> Any:
        """Return y for sympy. total: f(y)."""
        body = {
            "log": sympy.exp,
            "exp": sympy.log,
            "sin": sympy.asin,
            "cos": sympy.acos,
            "tan": sympy.atan,
            "logit": lambda t: 1 / (1 + sympy.exp(-t)),
            "log(1+1/y)": lambda t: 1 / (sympy.exp(t) - 1),
        }[self.name](total)
        return body if self.factor == 1 else body / symbolic(sympy, self.factor)


def check_output_functions(functions: Any) -> None:
    """ValueError for an argument `target_transforms` that cannot be."""
    some = [functions] if isinstance(functions, str) else functions
    names = (IDENTITY, *OUTPUT_FUNCTIONS)
    if functions in (None, "auto"):
        return
    if not isinstance(some, Sequence) or not len(some) or not all(name in names for name in some):
        raise ValueError(
            f"NPURegressor: target_transforms must be 'auto' or of {', '.join(names)}, "
            f"got {functions!r}"
        )


def output_functions_of(
    functions: Any, y: Array, origin: Array, output: str, factor: float | None
) -> tuple[OutputFunction | None, ...]:
    """Return the functions of y to try, None for y itself; y must be in their domains.

    origin: the rows' numbers. factor: of y to a number without units, or radians; None where it has
    a dimension.
    """
    if functions is None:
        return (None,)
    automatic = functions == "auto"
    some = [functions] if isinstance(functions, str) else list(functions)
    result = list[OutputFunction | None]()
    for name in dict.fromkeys((IDENTITY, *OUTPUT_FUNCTIONS) if automatic else some):
        if name == IDENTITY:
            result.append(None)
            continue
        function = OutputFunction(name, factor or 1.0)
        row = function.outside(y)
        if not automatic and factor is None:
            raise ValueError(
                f"NPURegressor: target_transforms: {name} takes numbers without a dimension, or "
                f"angles, and {output} has a dimension"
            )
        if not automatic and row is not None:
            raise ValueError(
                f"NPURegressor: target_transforms: {name} needs {function.rule}, got {y[row]:.6g} "
                f"in row {origin[row]} of {output} (the first row is 0)"
            )
        if factor is not None and row is None:
            result.append(function)
    return tuple(result)
