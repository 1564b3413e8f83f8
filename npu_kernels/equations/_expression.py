"""Expressions and functions of columns: for numpy, torch and sympy."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from npu_kernels._common.display import written_name
from npu_kernels.equations._numbers import (
    MAX_DENOMINATOR,
    ROUNDING,
    argument,
    exponential,
    simple_fraction,
)

Array = Any

# ---- expressions ---------------------------------------------------------------------------------
# Expressions of columns that a user writes as text, for numpy, torch and sympy.
#
# They are read as Python's operators, and nothing of them is run.

Operator = Callable[[Any, Any], Any]
Dimension = dict[str, Fraction]  # the powers of base dimensions, none of them 0

SIZE = "size"  # like a base dimension: the logarithm of a unit over the base unit
SAME_SIZE = 1e-6  # difference of these logarithms by rounding
CONVERT = (
    "The numbers of the columns are used as they are: convert a column, or write the factor of a "
    "conversion with a decimal point, such as 0.001 or 180.0"
)
FUNCTIONS = ("sin", "cos", "tan", "exp", "log", "sqrt")
COLUMN = "__"  # before a column's number in the tree
LARGEST_POWER = 700.0  # of e that is in float64
QUOTED = re.compile("`([^`]*)`")
OPERATORS: dict[type, Operator] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}


def _columns(node: ast.AST) -> list[str]:
    """The columns in a part of a checked tree; pi is a number."""
    names = [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]
    return [name for name in names if name.startswith(COLUMN)]


def _value(node: Any, columns: Sequence[Any], library: Any, number: Callable[[Any], Any]) -> Any:
    """The value of a part of a checked tree, see `Expression.evaluate`."""

    def of(part: Any) -> Any:
        return _value(part, columns, library, number)

    if isinstance(node, ast.Name):
        return library.pi if node.id == "pi" else columns[int(node.id[len(COLUMN) :])]
    if isinstance(node, ast.BinOp):
        return OPERATORS[type(node.op)](of(node.left), of(node.right))
    if isinstance(node, ast.UnaryOp):
        return -of(node.operand) if isinstance(node.op, ast.USub) else of(node.operand)
    if isinstance(node, ast.Call):
        return getattr(library, node.func.id)(of(node.args[0]))  # type: ignore[attr-defined]
    return number(node.value)


def _number(node: ast.expr) -> float:
    """The value of a part without columns."""
    return float(_value(node, (), math, float))


def equal_dimensions(first: Dimension, second: Dimension) -> bool:
    """Return whether two dimensions are equal; sizes of units are equal up to rounding."""
    return all(abs(float(first.get(b, 0) - second.get(b, 0))) < SAME_SIZE for b in first | second)


@dataclass(frozen=True)
class Expression:
    """An expression such as ``speed*t - 9.81*t**2/2`` in the names of columns.

    Attributes:
        text: as it was written.
        names: of the columns that may occur.
        argument: that has the text, for messages.
    """

    text: str
    names: tuple[str, ...]
    argument: str

    @cached_property
    def tree(self) -> ast.expr:
        """The expression's syntax tree, with columns by their numbers; ValueError if it is none."""
        numbers = {name: f"{COLUMN}{i}" for i, name in enumerate(self.names)}

        def of_column(match: re.Match[str]) -> str:
            if match[1] not in numbers:
                self._refuse(f"has {match[1]!r}, which is not a column")
            return numbers[match[1]]

        text = QUOTED.sub(of_column, self.text.strip())
        if "#" in text:  # Python would read no further
            self._refuse("has a comment")
        try:
            tree = ast.parse(text, mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError):  # a null byte, deep nesting
            self._refuse("cannot be read")
        try:
            self._check(tree, {**numbers, **{number: number for number in numbers.values()}})
        except RecursionError:
            self._refuse("cannot be read")
        return tree

    def _check(self, node: ast.AST, numbers: dict[str, str]) -> None:
        """ValueError for what is no part of an expression; names of columns become numbers."""
        if isinstance(node, ast.Name):
            if node.id not in numbers and node.id != "pi":
                self._refuse(f"has {node.id!r}, which is not a column")
            node.id = numbers.get(node.id, node.id)
        elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
            self._check(node.left, numbers)
            self._check(node.right, numbers)
            if isinstance(node.op, ast.Pow) and not _columns(node):
                self._check_power(node)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            self._check(node.operand, numbers)
        elif isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
            if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
                self._refuse(f"has another function than {', '.join(FUNCTIONS)}")
            self._check(node.args[0], numbers)
        elif not isinstance(node, ast.Constant) or type(node.value) not in (int, float):
            self._refuse("cannot be read")

    def _check_power(self, node: ast.BinOp) -> None:
        """ValueError for a power of numbers that float64 cannot hold: sympy's would be endless."""
        try:
            base, exponent = _number(node.left), _number(node.right)
            size = abs(exponent * math.log(abs(base))) if base else 0.0
            fits = size < LARGEST_POWER and math.isfinite(base**exponent)
        except (ArithmeticError, TypeError, ValueError):  # 0**-1, (-1)**0.5
            fits = False
        if not fits:
            self._refuse(f"has the number {ast.unparse(node)}, which float64 cannot hold")

    def _refuse(self, reason: str) -> Any:
        rule = (
            f"{self.argument} must be of numbers, + - * / **, {', '.join(FUNCTIONS)} and the "
            f"columns {', '.join(self.names)} (in backquotes if a name is not an identifier)"
        )
        raise ValueError(f"{rule}, got {self.text!r}, which {reason}")

    def evaluate(self, columns: Sequence[Any], library: Any, number: Callable[[Any], Any]) -> Any:
        """Return the value for the columns.

        library: that has the functions. number: makes a number of the library.
        """
        return _value(self.tree, columns, library, number)

    def values(self, X: Array) -> Array:
        """Return the values for rows X ``[N]``."""
        with np.errstate(all="ignore"):
            values = self.evaluate(X.T, np, np.float64)
        return np.broadcast_to(np.asarray(values, dtype=np.float64), len(X))

    def dimension(self, columns: Sequence[Dimension]) -> Dimension | None:
        """Return the dimension for those of the columns; None for one that numbers may change.

        Integers have no dimension, others may have any: 9.81 may be an acceleration. Raises
        ValueError for sums of different dimensions and for functions of one. The size of a unit,
        `SIZE`, counts as a dimension.
        """

        def scaled(dimension: Dimension, factor: Fraction) -> Dimension:
            return {base: factor * power for base, power in dimension.items() if factor * power}

        def of(node: Any) -> Dimension | None:
            if isinstance(node, ast.Name):
                return {} if node.id == "pi" else columns[int(node.id[len(COLUMN) :])]
            if isinstance(node, ast.Constant):
                return {} if isinstance(node.value, int) else None
            if isinstance(node, ast.UnaryOp):
                return of(node.operand)
            if isinstance(node, ast.Call):
                argument = of(node.args[0])
                if node.func.id == "sqrt":  # type: ignore[attr-defined]
                    return None if argument is None else scaled(argument, Fraction(1, 2))
                return {} if not argument else self._refuse_dimensions()
            first, second = of(node.left), of(node.right)
            if isinstance(node.op, ast.Pow):
                if second or (first and _columns(node.right)):
                    self._refuse_dimensions()
                if not first:
                    return first
                power = Fraction(_number(node.right)).limit_denominator(MAX_DENOMINATOR)
                return scaled(first, power)
            if isinstance(node.op, (ast.Add, ast.Sub)):
                if first is not None and second is not None and not equal_dimensions(first, second):
                    self._refuse_dimensions()
                return second if first is None else first
            if first is None or second is None:
                return None
            sign = Fraction(1 if isinstance(node.op, ast.Mult) else -1)
            powers = {
                base: first.get(base, 0) + sign * second.get(base, 0) for base in first | second
            }
            return {base: power for base, power in powers.items() if abs(power) > SAME_SIZE}

        return of(self.tree)

    def _refuse_dimensions(self) -> Any:
        rule = "must have terms in one unit, and functions of numbers without one, or of radians"
        raise ValueError(f"{self.argument} {rule}, got {self.text!r} with these units. {CONVERT}")

    def product(self, functions: Sequence[tuple[str, int, int, float]] = ()) -> Array:
        """Return the exponents of a product of powers of the columns ``[n + functions]``.

        functions: of columns, each with its column's number, its number among the exponents, and
        the factor of its argument. ValueError if the expression is no such product.
        """
        count = len(self.names) + len(functions)
        units = np.eye(count)

        def refuse() -> Any:
            rule = (
                f"{self.argument} must be products of powers of the columns "
                f"{', '.join(self.names)}, without other factors than 1 and with fractions in "
                "parentheses, as in 'x0*x1**(1/2)'"
            )
            raise ValueError(f"{rule}, got {self.text!r}, which is not a product of powers")

        def exponents(node: Any) -> Array:
            if isinstance(node, ast.Name) and node.id != "pi":
                return units[int(node.id[len(COLUMN) :])]
            if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div)):
                sign = 1.0 if isinstance(node.op, ast.Mult) else -1.0
                return exponents(node.left) + sign * exponents(node.right)
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
                return exponents(node.left) * constant(node.right)
            if isinstance(node, ast.Call) and isinstance(node.args[0], ast.Name):
                for function, column, index, factor in functions:
                    if (node.func.id, node.args[0].id) == (function, f"{COLUMN}{column}"):  # type: ignore[attr-defined]
                        return units[index] / (factor if function == "exp" else 1.0)
            if isinstance(node, ast.Constant) and node.value == 1:
                return np.zeros(count)
            return refuse()

        def constant(node: ast.expr) -> float:
            if _columns(node):
                refuse()
            return _number(node)

        return exponents(self.tree)


# ---- functions -----------------------------------------------------------------------------------
# Functions of single inputs as columns in addition to the inputs, and functions of y.
#
# An equation's products are then of inputs and of functions of inputs, as in ``r F sin(t)``. With a
# function of y it is an equation for f(y), whose errors are still those of y: residuals are ``y -
# g(sum)`` with g the inverse of f.

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
