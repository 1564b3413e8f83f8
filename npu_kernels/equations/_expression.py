"""Expressions of columns that a user writes as text, for numpy, torch and sympy.

They are read as Python's operators, and nothing of them is run.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from npu_kernels.equations._numbers import MAX_DENOMINATOR

Array = Any

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
