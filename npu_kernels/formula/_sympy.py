"""The layers' formulas as sympy expressions.

A power unit with real exponents is a product of powers and one cosine, which has the signs of the
inputs:

    y_o = prod_i (g_i (|x_i| + eps) + 1 - g_i)^w_oi  cos(pi sum_i w_oi g_i [x_i < 0])

`[x < 0]`, 1 or 0, is sympy's ``Heaviside(-x, 0)``. Where the phase ``w g`` of an input is a whole
number, a sign outside the cosine replaces it: with an open gate, and without eps,
``|x|^w cos(pi w [x < 0])`` is ``x^w`` then. With imaginary exponents v, the product is multiplied
by ``exp(-pi sum v g [x < 0])``, and ``sum v log r`` adds to the angle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import sympy
import torch
from sympy.printing.latex import LatexPrinter
from sympy.printing.precedence import PRECEDENCE
from sympy.printing.str import StrPrinter
from torch import Tensor

from npu_kernels._common.display import latex_name, written_name
from npu_kernels.formula._code import Expression, comparison
from npu_kernels.formula._models import FRACTION_LIMIT, POWER_UNITS, as_fraction, epsilon, value
from npu_kernels.layers import NAC, NALU, NAU, NMRU, NMU, iNALU
from npu_kernels.reference import nac_weight

Change = Callable[..., Tensor] | None  # a function of one or several parameters
ZERO, ONE = sympy.Integer(0), sympy.Integer(1)


def negative(x: Expression) -> Expression:
    """Return ``[x < 0]``: 1 where x is negative, else 0."""
    if x.is_extended_nonnegative:
        return ZERO
    if x.is_extended_negative:
        return ONE
    return sympy.Heaviside(-x, 0)


def absolute(x: Expression) -> Expression:
    """Return ``|x|``; unevaluated for sums that may not be real, which sympy would expand."""
    if x.is_extended_nonnegative:
        return x
    return sympy.Abs(x) if x.is_extended_real or not x.is_Add else sympy.Abs(x, evaluate=False)


def sigmoid(x: Expression) -> Expression:
    return 1 / (1 + sympy.exp(-x))


class Builder:
    """Builds the expressions of one model's outputs.

    Args:
        model: index of the model, None for layers of a single one.
        eps: whether the units' eps stays in the expressions.
        max_denominator: a weight that is the nearest number of its dtype to a fraction with at most
            this denominator is written as the fraction.
    """

    def __init__(self, model: int | None, *, eps: bool, max_denominator: int) -> None:
        self.model, self.eps, self.max_denominator = model, eps, max_denominator

    def numbers(self, tensor: Tensor, dtype: torch.dtype) -> Any:
        """Return nested lists of sympy numbers; the tensor follows from parameters of `dtype`."""
        p, q = as_fraction(tensor, self.max_denominator)
        is_exact = (tensor.to(dtype) == (p / q).to(dtype)) & (tensor.abs() < FRACTION_LIMIT)

        if not bool(tensor.isfinite().all()):
            raise ValueError("extract: the parameters must be finite, got inf or nan")
        values, above, below, exact = (part.flatten().tolist() for part in (tensor, p, q, is_exact))
        numbers = [
            sympy.Rational(int(p), int(q)) if is_whole else sympy.Float(value)
            for value, p, q, is_whole in zip(values, above, below, exact, strict=True)
        ]
        width = tensor.shape[-1]
        rows = [numbers[k * width : (k + 1) * width] for k in range(len(tensor))]
        return numbers if tensor.dim() == 1 else rows

    def parameter(self, layer: Any, *names: str, change: Change = None) -> Any:
        """Return the sympy numbers of parameters after a change; None where the layer lacks one."""
        tensors = [value(layer, name, self.model) for name in names]
        doubles = [tensor.double() for tensor in tensors if tensor is not None]
        if len(doubles) < len(names):
            return None
        dtype = getattr(layer, names[0]).dtype
        return self.numbers(change(*doubles) if change else doubles[0], dtype)

    def layer(self, layer: Any, x: Sequence[Expression]) -> list[Expression]:
        """Return the layer's outputs for the inputs x."""
        if isinstance(layer, POWER_UNITS):
            return self.powers(layer, x)
        if isinstance(layer, NMU):
            return _factors(self.parameter(layer, "weight", change=_clip_if(layer.clip, 0, 1)), x)
        if isinstance(layer, NMRU):
            return self.reciprocals(layer, x)
        if isinstance(layer, NALU):
            return self.nalu(layer, x)
        if isinstance(layer, iNALU):
            return self.inalu(layer, x)
        if isinstance(layer, NAC):
            return _dot(self.parameter(layer, "weight", "mask", change=nac_weight), x)
        if isinstance(layer, NAU):
            return _dot(self.parameter(layer, "weight", change=_clip_if(layer.clip, -1, 1)), x)
        bias = self.parameter(layer, "bias")  # a Linear
        sums = _dot(self.parameter(layer, "weight"), x)
        return [y + (bias[o] if bias else 0) for o, y in enumerate(sums)]

    def powers(self, layer: Any, x: Sequence[Expression]) -> list[Expression]:
        """Return the outputs of an NPU, RealNPU or NaiveNPU."""
        weight_re = self.parameter(layer, "weight_re")
        weight_im = self.parameter(layer, "weight_im") or [[ZERO] * len(x)] * len(weight_re)
        gate = self.parameter(layer, "gate", change=lambda g: g.clamp(0, 1)) or [ONE] * len(x)
        eps = sympy.Float(epsilon(layer)) if self.eps else ZERO
        rows = zip(weight_re, weight_im, strict=True)
        return [_product(zip(x, re, im, gate, strict=True), eps) for re, im in rows]

    def reciprocals(self, layer: Any, x: Sequence[Expression]) -> list[Expression]:
        """Return an NMRU's outputs; the signs are in the factors or, if separate, in a cosine."""
        weight = self.parameter(layer, "weight")
        clipped = self.parameter(layer, "weight", change=_clip_if(layer.clip, 0, 1))
        # In evaluation mode the layer has no eps.
        eps = sympy.Float(layer.eps) if self.eps and layer.training else ZERO
        divisors = [e + eps for e in x]
        both = [*x, *(1 / e for e in divisors)]
        if layer.sign == "product":
            return _factors(clipped, both)
        sizes = [*(absolute(e) for e in x), *(1 / absolute(e) for e in divisors)]
        negatives = [negative(e) for e in (*x, *divisors)]
        result = []
        for ms, ws in zip(clipped, weight, strict=True):
            factors: list[Expression] = []
            phases: dict[Expression, Expression] = {}
            for e, size, n, m, w in zip(both, sizes, negatives, ms, ws, strict=True):
                if m == 1 and w.is_Integer and w % 2:
                    factors.append(e)  # |e| cos(a + pi w n) = e cos(a)
                else:
                    factors.append(m * size + (1 - m))
                    phases[n] = phases.get(n, 0) + w
            factors += _cosine(ZERO, phases)
            result.append(sympy.Mul(*factors))
        return result

    def nalu(self, layer: Any, x: Sequence[Expression]) -> list[Expression]:
        weight = self.parameter(layer, "weight", "mask", change=nac_weight)
        bias = self.parameter(layer, "gate_bias")
        eps = sympy.Float(layer.eps) if self.eps else 0
        bases = [absolute(e) + eps for e in x]
        gates = _dot(self.parameter(layer, "gate_weight"), x)
        result = []
        for o, (row, a, z) in enumerate(zip(weight, _dot(weight, x), gates, strict=True)):
            g = sigmoid(z + (bias[o] if bias else 0))
            result.append(g * a + (1 - g) * _powers(bases, row))
        return result

    def inalu(self, layer: Any, x: Sequence[Expression]) -> list[Expression]:
        weight = self.parameter(layer, "weight_mul", "mask_mul", change=nac_weight)
        sums = _dot(self.parameter(layer, "weight_add", "mask_add", change=nac_weight), x)
        gates = _dot(self.parameter(layer, "gate_weight"), x)
        bases = [absolute(e) for e in x]
        if self.eps:
            bases = [_bounded(sympy.Max, e, sympy.Float(layer.eps)) for e in bases]
        limit, signs = sympy.exp(sympy.Float(layer.omega)), [sympy.sign(e) for e in x]
        result = []
        for row, a, z in zip(weight, sums, gates, strict=True):
            product = _bounded(sympy.Min, _powers(bases, row), limit)
            g = sigmoid(z)
            (sign,) = _factors([[abs(w) for w in row]], signs)
            result.append(g * a + (1 - g) * product * sign)
        return result


def _clip_if(clip: bool, low: float, high: float) -> Change:
    return (lambda weight: weight.clamp(low, high)) if clip else None


def _bounded(kind: Any, e: Expression, bound: Expression) -> Expression:
    """Return sympy's Max or Min, which would first factor a formula: seconds for several layers.

    What is infinite or undefined stays so: sympy raises an error of its own for it.
    """
    if e in (sympy.zoo, sympy.nan):
        return e
    return kind(e, bound, evaluate=bool(e.is_number))


def _dot(weight: Sequence[Sequence[Expression]], x: Sequence[Expression]) -> list[Expression]:
    return [sympy.Add(*(w * e for w, e in zip(row, x, strict=True))) for row in weight]


def _factors(weight: Sequence[Sequence[Expression]], x: Sequence[Expression]) -> list[Expression]:
    return [sympy.Mul(*(m * e + (1 - m) for m, e in zip(row, x, strict=True))) for row in weight]


def _powers(bases: Sequence[Expression], exponents: Sequence[Expression]) -> Expression:
    return sympy.Mul(*(r**w for r, w in zip(bases, exponents, strict=True)))


def _product(inputs: Iterable[tuple[Expression, ...]], eps: Expression) -> Expression:
    """Return one output of a power unit; of each input x, its two exponents, and its gate."""
    factors: list[Expression] = []
    growth: Expression = ZERO
    angle: Expression = ZERO  # sum of v log r
    phases: dict[Expression, Expression] = {}  # [x < 0] -> sum of w g
    for e, w, v, g in inputs:
        if g == 0 or (w == 0 and v == 0):
            continue
        r = g * (absolute(e) + eps) + (1 - g)
        if g == 1 and eps == 0 and w.is_Integer:
            factors.append(e**w)
        else:
            factors.append(r**w)
            n = negative(e)
            phases[n] = phases.get(n, 0) + w * g
        if v != 0:
            growth -= v * g * negative(e)
            angle += v * sympy.log(r)
    factors += _cosine(angle, phases)
    return sympy.Mul(*factors) * sympy.exp(sympy.pi * growth)


def _cosine(angle: Expression, phases: dict[Expression, Expression]) -> list[Expression]:
    """Return the factors of ``cos(angle + pi sum p n)`` for the phases n -> p, each n 0 or 1."""
    factors: list[Expression] = []
    phase: Expression = ZERO
    for n, p in phases.items():
        if n == 0 or p == 0:
            continue
        if p.is_Integer:  # cos(a + pi p n) = (-1)^(p n) cos(a)
            if p % 2:
                factors.append(1 - 2 * n)
        else:
            phase += p * n
    single = phase.is_Mul and len(phase.args) == 2  # p n
    if angle == 0 and single and (2 * phase.args[0]).is_Integer:
        # The cosine of 0 or of an odd multiple of pi / 2: 1 - n.
        factors.append(sympy.Heaviside(-phase.args[1].args[0], 1))
    else:
        factors.append(sympy.cos(angle + sympy.pi * phase))
    return factors


# ---- printing ------------------------------------------------------------------------------------
#
# Formulas as text and as LaTeX, with rounded decimals, and ``[x < 0]`` for signs.


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
    # Neighbouring upright names would read as one: a thin space is between factors.
    is_upright = any("mathrm" in latex_name(str(symbol)) for symbol in expression.free_symbols)
    printer = _Latex({"mul_symbol": r"\,"} if is_upright else {})
    return str(printer.doprint(rounded(expression, digits)))
