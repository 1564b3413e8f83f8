"""The layers' formulas as sympy expressions.

A power unit with real exponents is a product of powers and one cosine, which has the signs of the inputs:

    y_o = prod_i (g_i (|x_i| + eps) + 1 - g_i)^w_oi  cos(pi sum_i w_oi g_i [x_i < 0])

`[x < 0]`, 1 or 0, is sympy's ``Heaviside(-x, 0)``. Where the phase ``w g`` of an input is a whole number, it is taken
out of the cosine as a sign: with an open gate, and without eps, ``|x|^w cos(pi w [x < 0])`` is ``x^w`` then. With
imaginary exponents v, the product is multiplied by ``exp(-pi sum v g [x < 0])``, and ``sum v log r`` adds to the angle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
from torch import Tensor

from npu_kernels.formula.fractions import as_fraction
from npu_kernels.formula.models import POWER_UNITS, epsilon, value
from npu_kernels.layers import NAC, NALU, NAU, NMRU, NMU, iNALU

Expression = Any  # sympy's classes have no types that mypy could check


def negative(x: Expression) -> Expression:
    """``[x < 0]``: 1 where x is negative, else 0."""
    if x.is_extended_nonnegative:
        return sympy.Integer(0)
    if x.is_extended_negative:
        return sympy.Integer(1)
    return sympy.Heaviside(-x, 0)


def absolute(x: Expression) -> Expression:
    """``|x|``. For what may not be real, such as a quotient, sympy's rule would give a very long expression."""
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
        max_denominator: a weight that is the nearest number of its dtype to a fraction with at most this denominator is
            written as the fraction.
    """

    def __init__(self, model: int | None, *, eps: bool, max_denominator: int) -> None:
        self.model, self.eps, self.max_denominator = model, eps, max_denominator

    def numbers(self, tensor: Tensor, dtype: torch.dtype) -> Any:
        """A tensor's values as nested lists of sympy numbers, computed in float64 from parameters of a dtype."""
        p, q = as_fraction(tensor, self.max_denominator)
        exact = tensor.to(dtype) == (p / q).to(dtype)

        def convert(values: Any, tops: Any, bottoms: Any, fractions: Any) -> Any:
            if isinstance(values, list):
                return [convert(*parts) for parts in zip(values, tops, bottoms, fractions, strict=True)]
            return sympy.Rational(int(tops), int(bottoms)) if fractions else sympy.Float(values)

        if not bool(tensor.isfinite().all()):
            raise ValueError("read: the parameters must be finite, got inf or nan")
        return convert(tensor.tolist(), p.tolist(), q.tolist(), exact.tolist())

    def parameter(self, layer: Any, name: str, change: Callable[..., Tensor] | None = None, *others: str) -> Any:
        """A parameter's sympy numbers, or a function's of several parameters; None where the layer has none."""
        found = [value(layer, key, self.model) for key in (name, *others)]
        if any(tensor is None for tensor in found):
            return None
        tensors = [tensor.double() for tensor in found if tensor is not None]
        dtype = getattr(layer, name).dtype
        return self.numbers(change(*tensors) if change else tensors[0], dtype)

    def layer(self, layer: Any, x: Sequence[Expression]) -> list[Expression]:
        """The layer's outputs for these inputs."""
        if isinstance(layer, POWER_UNITS):
            return self.powers(layer, x)
        if isinstance(layer, NMU):
            return _factors(self.parameter(layer, "weight", _clip_if(layer.clip, 0, 1)), x)
        if isinstance(layer, NMRU):
            return self.reciprocals(layer, x)
        if isinstance(layer, NALU):
            return self.nalu(layer, x)
        if isinstance(layer, iNALU):
            return self.inalu(layer, x)
        if isinstance(layer, NAC):
            return _dot(self.parameter(layer, "weight", _nac, "mask"), x)
        if isinstance(layer, NAU):
            return _dot(self.parameter(layer, "weight", _clip_if(layer.clip, -1, 1)), x)
        bias = self.parameter(layer, "bias")  # a Linear
        return [y + (bias[o] if bias else 0) for o, y in enumerate(_dot(self.parameter(layer, "weight"), x))]

    def powers(self, layer: Any, x: Sequence[Expression]) -> list[Expression]:
        """NPU, RealNPU and NaiveNPU."""
        weight_re, weight_im = self.parameter(layer, "weight_re"), self.parameter(layer, "weight_im")
        gate = self.parameter(layer, "gate", lambda g: g.clamp(0, 1)) or [sympy.Integer(1)] * len(x)
        eps = sympy.Float(epsilon(layer)) if self.eps else sympy.Integer(0)
        zeros = [sympy.Integer(0)] * len(x)
        return [_product(x, row, weight_im[o] if weight_im else zeros, gate, eps) for o, row in enumerate(weight_re)]

    def reciprocals(self, layer: Any, x: Sequence[Expression]) -> list[Expression]:
        """NMRU: a product over the inputs and their reciprocals, with the signs in the factors or in a cosine."""
        weight, clipped = self.parameter(layer, "weight"), self.parameter(layer, "weight", _clip_if(layer.clip, 0, 1))
        # In evaluation mode the layer has no eps.
        eps = sympy.Float(layer.eps) if self.eps and layer.training else sympy.Integer(0)
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
            result.append(sympy.Mul(*factors, *_cosine(sympy.Integer(0), phases)))
        return result

    def nalu(self, layer: Any, x: Sequence[Expression]) -> list[Expression]:
        weight = self.parameter(layer, "weight", _nac, "mask")
        bias = self.parameter(layer, "gate_bias")
        eps = sympy.Float(layer.eps) if self.eps else 0
        bases = [absolute(e) + eps for e in x]
        result = []
        for o, (a, z) in enumerate(zip(_dot(weight, x), _dot(self.parameter(layer, "gate_weight"), x), strict=True)):
            g = sigmoid(z + (bias[o] if bias else 0))
            result.append(g * a + (1 - g) * sympy.Mul(*(r**w for r, w in zip(bases, weight[o], strict=True))))
        return result

    def inalu(self, layer: Any, x: Sequence[Expression]) -> list[Expression]:
        weight = self.parameter(layer, "weight_mul", _nac, "mask_mul")
        sums = _dot(self.parameter(layer, "weight_add", _nac, "mask_add"), x)
        gates = _dot(self.parameter(layer, "gate_weight"), x)
        bases = [_bounded(sympy.Max, absolute(e), sympy.Float(layer.eps)) if self.eps else absolute(e) for e in x]
        result = []
        for row, a, z in zip(weight, sums, gates, strict=True):
            product = sympy.Mul(*(r**w for r, w in zip(bases, row, strict=True)))
            product = _bounded(sympy.Min, product, sympy.exp(sympy.Float(layer.omega)))
            signs = sympy.Mul(*(sympy.sign(e) * abs(w) + (1 - abs(w)) for e, w in zip(x, row, strict=True)))
            g = sigmoid(z)
            result.append(g * a + (1 - g) * product * signs)
        return result


def _clip_if(clip: bool, low: float, high: float) -> Callable[..., Tensor] | None:
    return (lambda weight: weight.clamp(low, high)) if clip else None


def _bounded(kind: Any, e: Expression, bound: Expression) -> Expression:
    """sympy's Max or Min. They would first factor a formula, which takes seconds for one of several layers."""
    return kind(e, bound, evaluate=bool(e.is_number))


def _nac(weight: Tensor, mask: Tensor) -> Tensor:
    return weight.tanh() * mask.sigmoid()


def _dot(weight: Sequence[Sequence[Expression]], x: Sequence[Expression]) -> list[Expression]:
    return [sympy.Add(*(w * e for w, e in zip(row, x, strict=True))) for row in weight]


def _factors(weight: Sequence[Sequence[Expression]], x: Sequence[Expression]) -> list[Expression]:
    return [sympy.Mul(*(m * e + (1 - m) for m, e in zip(row, x, strict=True))) for row in weight]


def _product(
    x: Sequence[Expression],
    weight_re: Sequence[Expression],
    weight_im: Sequence[Expression],
    gate: Sequence[Expression],
    eps: Expression,
) -> Expression:
    """One output of a power unit."""
    factors: list[Expression] = []
    growth: Expression = sympy.Integer(0)
    angle: Expression = sympy.Integer(0)  # sum of v log r
    phases: dict[Expression, Expression] = {}  # [x < 0] -> sum of w g
    for e, w, v, g in zip(x, weight_re, weight_im, gate, strict=True):
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
    return sympy.Mul(*factors, *_cosine(angle, phases)) * sympy.exp(sympy.pi * growth)


def _cosine(angle: Expression, phases: dict[Expression, Expression]) -> list[Expression]:
    """The factors of ``cos(angle + pi sum p n)`` for the phases n -> p, n being 0 or 1; whole ones are signs."""
    factors: list[Expression] = []
    phase: Expression = sympy.Integer(0)
    for n, p in phases.items():
        if n == 0 or p == 0:
            continue
        if p.is_Integer:  # cos(a + pi p n) = (-1)^(p n) cos(a)
            if p % 2:
                factors.append(1 - 2 * n)
        else:
            phase += p * n
    if angle == 0 and phase != 0 and phase.is_Mul and (2 * phase.args[0]).is_Integer and len(phase.args) == 2:
        factors.append(sympy.Heaviside(-phase.args[1].args[0], 1))  # cos of 0 or of an odd multiple of pi / 2
    else:
        factors.append(sympy.cos(angle + sympy.pi * phase))
    return factors
