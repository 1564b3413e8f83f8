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

from npu_kernels.checks import check_tensor

Expression = Any

_CALLS = {"Abs": "torch.abs", "exp": "torch.exp", "log": "torch.log", "cos": "torch.cos", "sign": "torch.sign"}


@dataclass(frozen=True)
class TorchFunction:
    """A formula as plain torch code: ``x [..., I]`` to ``[..., O]``, in x's dtype, differentiable.

    It needs neither sympy nor this package's layers, and pickles. ``str()`` is its source, a function of the single
    variables that can be copied elsewhere.

    source: that text. names: of the variables, in the order of x's columns.
    """

    source: str
    names: tuple[str, ...]
    _compiled: Callable[..., tuple[Any, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        space: dict[str, Any] = {"torch": torch}
        exec(self.source, space)
        object.__setattr__(self, "_compiled", space["formula"])

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.source, self.names)

    def __call__(self, x: Tensor) -> Tensor:
        if isinstance(x, Tensor):
            check_tensor("formula", "x", x)
        if not isinstance(x, Tensor) or x.dim() == 0 or x.shape[-1] != len(self.names) or not x.is_floating_point():
            got = f"{x.dtype}, shape {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise ValueError(
                f"formula: x must be a floating-point tensor with last dimension {len(self.names)} "
                f"({', '.join(self.names)}), got {got}"
            )
        columns = x.unbind(-1)
        like = torch.zeros_like(columns[0])  # an output may be constant
        return torch.stack([like + y for y in self._compiled(*columns)], -1)

    def __str__(self) -> str:
        return self.source


def identifiers(names: Sequence[str]) -> list[str]:
    """Names that are valid in Python code and all different there. Python treats a ligature as its letters (NFKC)."""
    taken = {"torch", "formula", "__debug__"}
    result = []
    for name in names:
        plain = "".join(c if f"x{c}".isidentifier() else "_" for c in unicodedata.normalize("NFKC", name))
        if not plain.isidentifier() or keyword.iskeyword(plain):
            plain = f"x_{plain}"
        while plain in taken:
            plain += "_"
        taken.add(plain)
        result.append(plain)
    return result


class _Writer:
    """Writes an expression as torch code. `names` maps symbols to code."""

    def __init__(self, names: dict[Expression, str], first: str) -> None:
        self.names, self.first = names, first  # first: a variable, for its dtype

    def write(self, e: Expression) -> str:
        """Code that can be an operand of any operator."""
        if e.is_Symbol:
            return self.names[e]
        if e.is_number:  # no variables: a constant, with all of float64's digits
            return repr(int(e)) if e.is_Integer else f"{float(e)!r}"
        if e.is_Add:
            return f"({self.total(e)})"
        if e.is_Mul:
            return self.product(e)
        if e.is_Pow:
            return self.power(e)
        name = type(e).__name__
        if name == "Heaviside":
            x, at_zero = e.args
            flipped = x.could_extract_minus_sign()
            relation = (">", "<") if at_zero == 0 else (">=", "<=")
            inner = self.bare(-x if flipped else x)
            return f"({inner} {relation[flipped]} 0).to({self.first}.dtype)"
        if name in ("Min", "Max"):
            return self.extremum(e)
        if name == "exp":
            return f"torch.exp({self.bare(e.args[0])})"
        if name in _CALLS:
            return f"{_CALLS[name]}({self.bare(e.args[0])})"
        raise NotImplementedError(f"no torch code for {name}: {e}")

    def bare(self, e: Expression) -> str:
        """Code that needs no brackets: it is in brackets or on a separate line."""
        return self.total(e) if e.is_Add else self.write(e)

    def total(self, e: Expression) -> str:
        terms = [self.write(term) for term in sorted(e.args, key=lambda term: term.is_number)]
        result = terms[0]
        for term in terms[1:]:
            result += f" - {term[1:]}" if term.startswith("-") else f" + {term}"
        return result

    def product(self, e: Expression) -> str:
        number, rest = e.as_coeff_Mul()
        above, below = [], []
        for factor in rest.args if rest.is_Mul else (rest,):
            base, exponent = factor.as_base_exp()
            if factor.is_Pow and exponent == -1 and not self.sigmoid(factor):
                below.append(self.write(base))
            else:
                above.append(self.write(factor))
        sign = "-" if number.is_negative else ""
        if abs(number) != 1:
            above.insert(0, self.write(abs(number)))
        result = " * ".join(above) or "1"
        if below:
            result += " / " + (below[0] if len(below) == 1 else f"({' * '.join(below)})")
        return f"{sign}{result}"

    def power(self, e: Expression) -> str:
        base, exponent = e.as_base_exp()
        inner = self.sigmoid(e)
        if inner is not None:
            return f"torch.sigmoid({self.bare(inner)})"
        if exponent == -1:
            return f"(1 / {self.write(base)})"
        if exponent == 0.5:
            return f"torch.sqrt({self.bare(base)})"
        text = self.write(base)
        if base.is_Mul or base.is_Pow or base.is_number:
            text = f"({text})"
        return f"{text} ** {self.write(exponent) if exponent.is_nonnegative else f'({self.write(exponent)})'}"

    def sigmoid(self, e: Expression) -> Expression | None:
        """z where the expression is ``1 / (1 + c exp(-z'))``, whose gradient is nan where the exponential overflows."""
        if e.is_Pow and e.exp == -1 and e.base.is_Add and len(e.base.args) == 2:
            one, other = sorted(e.base.args, key=lambda part: not part.is_number)
            scale, power = other.as_coeff_Mul()
            if one == 1 and scale > 0 and type(power).__name__ == "exp":
                return -power.args[0] - math.log(scale)
        return None

    def extremum(self, e: Expression) -> str:
        """`clamp` takes one number and any tensor; maximum and minimum take two tensors."""
        tensor, limit = sorted(e.args, key=lambda part: part.is_number)
        name = "max" if type(e).__name__ == "Min" else "min"
        return f"torch.clamp({self.bare(tensor)}, {name}={self.write(limit)})"


def torch_function(symbols: Sequence[Expression], outputs: Sequence[Expression]) -> TorchFunction:
    """The outputs as a function of the symbols; what several of them share is computed once."""
    import sympy

    names = [str(symbol) for symbol in symbols]
    plain = identifiers(names)
    code = dict(zip(symbols, plain, strict=True))
    fresh = (sympy.Symbol(name) for n in range(10**6) if (name := f"t{n}") not in plain)
    shared, results = sympy.cse(list(outputs), symbols=fresh, order="none")
    writer = _Writer(code, plain[0])
    lines = [f"def formula({', '.join(plain)}):"]
    for symbol, expression in shared:
        lines.append(f"    {symbol} = {writer.bare(expression)}")
        code[symbol] = str(symbol)
    returned = ",\n        ".join(writer.bare(expression) for expression in results)
    lines.append(f"    return (\n        {returned},\n    )")
    return TorchFunction("\n".join(lines) + "\n", tuple(names))


def with_head(function: TorchFunction, head: str) -> TorchFunction:
    """The function with a text as comments at its beginning."""
    first, rest = function.source.split("\n", 1)
    return TorchFunction("\n".join([first, *(f"    # {line}" for line in head.splitlines()), rest]), function.names)
