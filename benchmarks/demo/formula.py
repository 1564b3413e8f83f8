"""A model ``NPU -> NAU`` as text: sums of products of powers, honest about gates that are neither 0 nor 1.

    f_o = sum_h c_oh prod_i r_i^w_hi        r_i = g_i |x_i| + 1 - g_i

A product is multiplied by cos(pi sum_i w_hi g_i) over the inputs that are negative; where none is, the factor is 1.
eps, the layer's 1e-7 on every |x|, is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from npu_kernels import NAU, NPU


@dataclass(frozen=True)
class Formula:
    """One model's numbers, rounded as they are printed; what is printed is what `evaluate` computes."""

    inputs: tuple[str, ...]
    gates: Tensor  # [I]
    exponents: Tensor  # [H, I]
    coefficients: Tensor  # [O, H]
    digits: int
    threshold: float
    dropped: int  # coefficients below the threshold

    def base(self, i: int) -> str:
        """The text of r_i."""
        g, name = self.gates[i].item(), self.inputs[i]
        if g == 1:
            return name
        return f"({g:.{self.digits}f}*{name} + {1 - g:.{self.digits}f})"

    def product(self, h: int) -> str:
        """The text of a hidden unit's product, for inputs that are not negative."""
        factors = []
        for i, w in enumerate(self.exponents[h].tolist()):
            if w != 0 and self.gates[i] != 0:  # a closed gate makes r = 1
                factors.append(self.base(i) + ("" if w == 1 else f"^{w:.{self.digits}f}"))
        return "*".join(factors)

    def text(self, output: int) -> str:
        """One output, for inputs that are not negative. With "**" for "^" it is Python."""
        terms: list[str] = []
        for h, c in enumerate(self.coefficients[output].tolist()):
            if c == 0:
                continue
            product = self.product(h)
            sign = "- " if c < 0 else "+ " if terms else ""
            terms.append(f"{sign}{abs(c):.{self.digits}f}" + (f"*{product}" if product else ""))
        return " ".join(terms) or "0"

    def evaluate(self, x: Tensor) -> Tensor:
        """``x [B, I]`` to ``[B, O]`` in float64, for inputs of any sign."""
        x = x.double()
        r = self.gates * x.abs() + 1 - self.gates  # [B, I]
        products = (r.log() @ self.exponents.T).exp()  # [B, H]
        phase = math.pi * ((x < 0).double() * self.gates) @ self.exponents.T
        return (products * phase.cos()) @ self.coefficients.T


def formula(
    power: NPU, scale: NAU, model: int, inputs: tuple[str, ...], *, digits: int = 4, threshold: float = 5e-3
) -> Formula:
    """The formula of one model of a batch of models.

    Numbers are rounded to `digits` decimals, coefficients below `threshold` dropped.
    Raises ValueError when the model has imaginary exponents: it is no product of powers then.
    """
    if power.weight_im is not None and bool((power.weight_im[model] != 0).any()):
        raise ValueError("formula: the imaginary weights are not 0, so the model is no sum of products of real powers")
    if power.gate is None:
        raise ValueError("formula: the power unit must have a gate")
    with torch.no_grad():
        coefficients = scale.weight[model].double()
        if scale.clip:
            coefficients = coefficients.clamp(-1, 1)
        small = coefficients.abs() < threshold
        return Formula(
            inputs=inputs,
            gates=power.gate[model].double().clamp(0, 1).round(decimals=digits),
            exponents=power.weight_re[model].double().round(decimals=digits),
            coefficients=coefficients.masked_fill(small, 0).round(decimals=digits),
            digits=digits,
            threshold=threshold,
            dropped=int(small.sum()),
        )
