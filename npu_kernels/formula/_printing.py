"""Formulas as text and as LaTeX, with rounded decimals, and ``[x < 0]`` for signs."""

from __future__ import annotations

import sympy
from sympy.printing.latex import LatexPrinter
from sympy.printing.precedence import PRECEDENCE
from sympy.printing.str import StrPrinter

from npu_kernels._common.display import latex_name, written_name
from npu_kernels.formula._code import Expression, comparison


def rounded(expression: Expression, digits: int | None) -> Expression:
    """Return the expression with decimals of so many significant digits; None leaves them."""
    if digits is None:
        return expression
    decimals = expression.atoms(sympy.Float)
    return expression.xreplace({number: sympy.Float(number, digits) for number in decimals})


class _Text(StrPrinter):  # type: ignore[misc]
    def _print_Symbol(self, expr: Expression) -> str:
        return written_name(expr.name)

    def _print_Heaviside(self, expr: Expression) -> str:
        x, relation = comparison(expr)
        return f"[{self._print(x)} {relation} 0]"

    def _print_Abs(self, expr: Expression) -> str:
        return f"|{self._print(expr.args[0])}|"

    def _print_Pow(self, expr: Expression, rational: bool = False) -> str:
        base, exponent = expr.as_base_exp()
        if exponent.is_Float and exponent < 0:  # not 1/x**0.5, which is harder to read
            return f"{self.parenthesize(base, PRECEDENCE['Pow'])}**({self._print(exponent)})"
        return str(super()._print_Pow(expr, rational))


class _Latex(LatexPrinter):  # type: ignore[misc]
    def _print_Symbol(self, expr: Expression, style: str = "plain") -> str:
        return latex_name(expr.name)

    def _print_Heaviside(self, expr: Expression, exp: str | None = None) -> str:
        x, relation = comparison(expr)
        relation = {"<=": r"\leq", ">=": r"\geq"}.get(relation, relation)
        text = rf"\left[{self._print(x)} {relation} 0\right]"
        return text if exp is None else f"{text}^{{{exp}}}"


def written(expression: Expression, digits: int | None = 4) -> str:
    """Return the expression as Python-like text."""
    return str(_Text({"full_prec": False}).doprint(rounded(expression, digits)))


def latex(expression: Expression, digits: int | None = 4) -> str:
    """Return the expression in LaTeX."""
    # Upright names beside each other would read as one: a thin space is between factors.
    is_upright = any("mathrm" in latex_name(str(symbol)) for symbol in expression.free_symbols)
    printer = _Latex({"mul_symbol": r"\,"} if is_upright else {})
    return str(printer.doprint(rounded(expression, digits)))
