"""The fully connected layer of the experiments, for K models.

No number of a model depends on the others, as in the package's layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels._operators.cpu_nalu import product, sigmoid


class _Sigmoid(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = sigmoid(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (y,) = ctx.saved_tensors
        return dy * y * (1 - y)


class _Product(torch.autograd.Function):
    """``x W'``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor]:
        x, weight = ctx.saved_tensors
        grad_x = torch.bmm(dy, weight) if ctx.needs_input_grad[0] else None
        return grad_x, torch.bmm(dy.mT, x)


class Dense(nn.Module):
    """A fully connected layer, through a logistic sigmoid except for the last one."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        num_models: int,
        dtype: torch.dtype,
        last: bool,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_models, out_features, in_features, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(num_models, out_features, dtype=dtype))
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        y = _Product.apply(x, self.weight) + self.bias.unsqueeze(1)
        if self.last:
            return y
        result: Tensor = _Sigmoid.apply(y)
        return result
