"""Formulas as the source of a plain torch function."""

from __future__ import annotations

import keyword
import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from npu_kernels._common.checks import check_tensor

Expression = Any  # sympy's classes have no types that mypy could check

# sympy's names; torch has the same in lower case
_FUNCTIONS = ("Abs", "exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sign")


@dataclass(frozen=True)
class TorchFunction:
    """A formula as plain torch code: ``x [..., I]`` to ``[..., O]``, in x's dtype, differentiable.

    A call needs neither sympy nor this package's layers. The object pickles, and ``str()`` of it is
    `source`.

    Attributes:
        source: source code of a Python function with one argument for each variable; it can be
            copied elsewhere.
        names: names of the variables, in the order of the columns of x.
    """

    source: str
    names: tuple[str, ...]
    _compiled: Callable[..., tuple[Any, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        namespace: dict[str, Any] = {"torch": torch}
        exec(self.source, namespace)
        object.__setattr__(self, "_compiled", namespace["formula"])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.source, self.names)

    def __call__(self, x: Tensor) -> Tensor:
        is_tensor, count = isinstance(x, Tensor), len(self.names)
        if is_tensor:
            check_tensor("formula", "x", x)
        if not is_tensor or not x.dim() or x.shape[-1] != count or not x.is_floating_point():
            got = f"{x.dtype}, shape {tuple(x.shape)}" if is_tensor else type(x).__name__
            raise ValueError(
                f"formula: x must be a floating-point tensor with last dimension {count} "
                f"({', '.join(self.names)}), got {got}"
            )
        columns = x.unbind(-1)
        zeros = torch.zeros_like(columns[0])  # an output may be constant
        return torch.stack([zeros + y for y in self._compiled(*columns)], -1)

    def __str__(self) -> str:
        return self.source


def identifiers(names: Sequence[str]) -> list[str]:
    """Return a valid Python identifier for each name, all different."""
    reserved = {"torch", "formula", "__debug__"}
    result: list[str] = []
    for name in names:
        letters = unicodedata.normalize("NFKC", name)  # Python treats a ligature as its letters
        identifier = "".join(c if f"x{c}".isidentifier() else "_" for c in letters)
        if not identifier.isidentifier() or keyword.iskeyword(identifier):
            identifier = f"x_{identifier}"
        while identifier in reserved or identifier in result:
            identifier += "_"
        result.append(identifier)
    return result


def comparison(step: Expression) -> tuple[Expression, str]:
    """Return ``(x, relation)``: ``x relation 0`` holds where ``Heaviside(+-x, 0 or 1)`` is 1."""
    x, at_zero = step.args
    if x.could_extract_minus_sign():
        return -x, "<" if at_zero == 0 else "<="
    return x, ">" if at_zero == 0 else ">="


def _sigmoid_argument(e: Expression) -> Expression | None:
    """Return z where the expression is ``sigmoid(z)``, written ``1 / (1 + c exp(z'))``; else None.

    The gradient of the quotient is nan where the exponential overflows, the sigmoid's is not.
    """
    if e.is_Pow and e.exp == -1 and e.base.is_Add and len(e.base.args) == 2:
        constant, term = sorted(e.base.args, key=lambda part: not part.is_number)
        scale, power = term.as_coeff_Mul()
        if constant == 1 and scale > 0 and type(power).__name__ == "exp":
            return -power.args[0] - math.log(scale)
    return None


class _Writer:
    """Writes an expression as torch code. `names` maps symbols to code."""

    def __init__(self, names: dict[Expression, str], variable: str) -> None:
        self.names, self.variable = names, variable  # variable: one that has the dtype of all

    def write(self, e: Expression) -> str:
        """Return code that can be an operand of any operator."""
        if e.is_Symbol:
            return self.names[e]
        if e.is_number:  # no variables: a constant, with all of float64's digits
            return repr(int(e) if e.is_Integer else float(e))
        if e.is_Add:
            return f"({self.total(e)})"
        if e.is_Mul:
            return self.product(e)
        if e.is_Pow:
            return self.power(e)
        name = type(e).__name__
        if name == "Heaviside":
            x, relation = comparison(e)
            return f"({self.bare(x)} {relation} 0).to({self.variable}.dtype)"
        if name in ("Min", "Max"):
            return self.extremum(e)
        if name in _FUNCTIONS:
            return f"torch.{name.lower()}({self.bare(e.args[0])})"
        if name == "Indexed":
            rule = "the equation must be of one group, see for_group(label)"
            raise ValueError(f"formula: {rule}, got the coefficient {e}")
        raise NotImplementedError(f"no torch code for {name}: {e}")

    def bare(self, e: Expression) -> str:
        """Return code for an expression that stands in brackets or on a separate line."""
        return self.total(e) if e.is_Add else self.write(e)

    def total(self, e: Expression) -> str:
        terms = [self.write(term) for term in sorted(e.args, key=lambda term: term.is_number)]
        result = terms[0]
        for term in terms[1:]:
            result += f" - {term[1:]}" if term.startswith("-") else f" + {term}"
        return result

    def product(self, e: Expression) -> str:
        number, rest = e.as_coeff_Mul()
        numerators, denominators = [], []
        for factor in rest.args if rest.is_Mul else (rest,):
            base, exponent = factor.as_base_exp()
            if factor.is_Pow and exponent == -1 and not _sigmoid_argument(factor):
                denominators.append(self.write(base))
            else:
                numerators.append(self.write(factor))
        sign = "-" if number.is_negative else ""
        if abs(number) != 1:
            numerators.insert(0, self.write(abs(number)))
        result = " * ".join(numerators) or "1"
        if denominators:
            divisor = " * ".join(denominators)
            result += f" / {divisor}" if len(denominators) == 1 else f" / ({divisor})"
        return f"{sign}{result}"

    def power(self, e: Expression) -> str:
        base, exponent = e.as_base_exp()
        argument = _sigmoid_argument(e)
        if argument is not None:
            return f"torch.sigmoid({self.bare(argument)})"
        if exponent == -1:
            return f"(1 / {self.write(base)})"
        if exponent == 0.5:
            return f"torch.sqrt({self.bare(base)})"
        text, exponent_text = self.write(base), self.write(exponent)
        if base.is_Mul or base.is_Pow or base.is_number:
            text = f"({text})"
        return f"{text} ** {exponent_text if exponent.is_nonnegative else f'({exponent_text})'}"

    def extremum(self, e: Expression) -> str:
        """Return a call of `clamp`, which takes a number; maximum and minimum take two tensors."""
        tensor, limit = sorted(e.args, key=lambda part: part.is_number)
        name = "max" if type(e).__name__ == "Min" else "min"
        return f"torch.clamp({self.bare(tensor)}, {name}={self.write(limit)})"


def torch_function(symbols: Sequence[Expression], outputs: Sequence[Expression]) -> TorchFunction:
    """Return the outputs as a function of the symbols; common subexpressions are computed once."""
    import sympy

    names = [str(symbol) for symbol in symbols]
    arguments = identifiers(names)
    code = dict(zip(symbols, arguments, strict=True))
    fresh = (sympy.Symbol(name) for n in range(10**6) if (name := f"t{n}") not in arguments)
    shared, results = sympy.cse(list(outputs), symbols=fresh, order="none")
    writer = _Writer(code, arguments[0])
    lines = [f"def formula({', '.join(arguments)}):"]
    numbers: dict[Expression, Expression] = {}  # shared ones, which torch's functions do not take
    for symbol, shared_expression in shared:
        expression = shared_expression.xreplace(numbers)
        if expression.is_number:
            numbers[symbol] = expression
        else:
            lines.append(f"    {symbol} = {writer.bare(expression)}")
            code[symbol] = str(symbol)
    returned = ",\n        ".join(writer.bare(e.xreplace(numbers)) for e in results)
    lines.append(f"    return (\n        {returned},\n    )")
    return TorchFunction("\n".join(lines) + "\n", tuple(names))


def with_comment(function: TorchFunction, text: str) -> TorchFunction:
    """Return the function with a text as comments at its beginning."""
    signature, body = function.source.split("\n", 1)
    comments = (f"    # {line}" for line in text.splitlines())
    return TorchFunction("\n".join([signature, *comments, body]), function.names)
