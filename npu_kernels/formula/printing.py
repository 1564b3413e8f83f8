"""Formulas as text and as LaTeX, with so many digits, and ``[x < 0]`` for signs."""

from __future__ import annotations

from typing import Any

import sympy
from sympy.printing.latex import LatexPrinter
from sympy.printing.precedence import PRECEDENCE
from sympy.printing.str import StrPrinter

Expression = Any


def rounded(expression: Expression, digits: int | None) -> Expression:
    """The expression with its decimals rounded to so many significant digits; None leaves them."""
    if digits is None:
        return expression
    return expression.xreplace({number: sympy.Float(number, digits) for number in expression.atoms(sympy.Float)})


def condition(step: Expression, less: str, at_least: str) -> tuple[Expression, str]:
    """``(x, relation)`` with which ``Heaviside(+-x, 0 or 1)`` reads as ``[x relation 0]``."""
    x, at_zero = step.args
    flipped = x.could_extract_minus_sign()
    if at_zero == 0:  # 1 where its argument is greater than 0
        return (-x, less) if flipped else (x, ">")
    return (-x, "<=" if at_least == ">=" else r"\leq") if flipped else (x, at_least)


class _Text(StrPrinter):  # type: ignore[misc]
    def _print_Heaviside(self, expr: Expression) -> str:
        x, relation = condition(expr, "<", ">=")
        return f"[{self._print(x)} {relation} 0]"

    def _print_Abs(self, expr: Expression) -> str:
        return f"|{self._print(expr.args[0])}|"

    def _print_Pow(self, expr: Expression, rational: bool = False) -> str:
        base, exponent = expr.as_base_exp()
        if exponent.is_Float and exponent < 0:  # not 1/x**0.5, which is harder to read
            return f"{self.parenthesize(base, PRECEDENCE['Pow'])}**({self._print(exponent)})"
        text: str = super()._print_Pow(expr, rational)
        return text


class _Latex(LatexPrinter):  # type: ignore[misc]
    def _print_Heaviside(self, expr: Expression, exp: str | None = None) -> str:
        x, relation = condition(expr, "<", r"\geq")
        text = rf"\left[{self._print(x)} {relation} 0\right]"
        return text if exp is None else f"{text}^{{{exp}}}"


def text(expression: Expression, digits: int | None = 4) -> str:
    """The expression as Python-like text."""
    result: str = _Text({"full_prec": False}).doprint(rounded(expression, digits))
    return result


def latex(expression: Expression, digits: int | None = 4) -> str:
    """The expression in LaTeX."""
    result: str = _Latex().doprint(rounded(expression, digits))
    return result
