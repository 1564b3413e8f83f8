"""The layers of a law: its products of powers, and functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from npu_kernels.equations._products.expression import Expression
from npu_kernels.equations._products.functions import Column, OutputFunction
from npu_kernels.equations._products.text import ROUNDING
from npu_kernels.layers import RealNPU


class Products(RealNPU):
    """A `RealNPU` whose products are 0 where an input with a positive exponent is 0.

    Without it ``eps**w`` would stand there, which is far from 0 if w is near 0.
    """

    def forward(self, x: Tensor) -> Tensor:
        zeros = (x == 0).to(x.dtype) @ (self.weight_re > 0).to(x.dtype).mT
        return torch.where(zeros > 0, 0.0, super().forward(x))


def product(kind: type[RealNPU], *exponents: float) -> RealNPU:
    """Return a layer that is one product with these exponents."""
    layer = kind(len(exponents), 1, eps=1e-300, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_re.copy_(torch.tensor([exponents]))
        layer.gate.fill_(1.0)  # type: ignore[union-attr]
    return layer


class WithPart(nn.Sequential):
    """Layers to whose value an expression of the inputs, over a divisor, is added."""

    def __init__(self, part: Expression, divisor: float, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self.part, self.divisor = part, divisor

    def forward(self, x: Tensor) -> Tensor:
        columns = x[..., : len(self.part.names)].unbind(-1)

        def number(value: float) -> Tensor:
            return torch.tensor(value, dtype=x.dtype, device=x.device)

        part: Tensor = self.part.evaluate(columns, torch, number)
        total = x
        for layer in self:
            total = layer(total)
        return total + (part / self.divisor).unsqueeze(-1)

    def extra_repr(self) -> str:
        return self.part.text


class FunctionColumns(nn.Module):
    """Functions of single inputs beside all inputs, as `Column` has them."""

    def __init__(self, columns: Sequence[Column]) -> None:
        super().__init__()
        self.columns = tuple(columns)

    def forward(self, x: Tensor) -> Tensor:
        parts = [x]
        for column in self.columns:
            argument = column.factor * x[..., column.index]
            values = getattr(torch, column.function)(argument)
            if column.function != "exp":
                size = 1.0 if column.function == "log" else argument.abs().clamp(min=1.0)
                values = torch.where(values.abs() <= ROUNDING * size, 0.0, values)
            parts.append(values.unsqueeze(-1))
        return torch.cat(parts, -1)

    def extra_repr(self) -> str:
        return ", ".join(column.name(f"x[{column.index}]") for column in self.columns)


INVERSES: dict[str, Callable[[Tensor], Tensor]] = {
    "log": torch.exp,
    "exp": torch.log,
    "sin": torch.arcsin,
    "cos": torch.arccos,
    "tan": torch.arctan,
    "logit": torch.sigmoid,
    "log(1+1/y)": lambda t: 1 / torch.expm1(t),
}


class FunctionOfOutput(nn.Module):
    """The inverse of a function of y: from the sum of a law's terms to y."""

    def __init__(self, function: OutputFunction) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        low, high = self.function.image
        return INVERSES[self.function.name](x.clamp(low, high)) / self.function.factor

    def extra_repr(self) -> str:
        return self.function.text("x")
