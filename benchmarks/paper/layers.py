"""The fully connected layer of the experiments, for K models.

No number of a model depends on the others, as in the package's layers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

_VECTORS = 64  # elements: whole vectors of any processor, also where its loops take several at once


def sigmoid(x: Tensor) -> Tensor:
    """`torch.sigmoid` with the same rounding of an element wherever it lies, not differentiable.

    Torch computes the elements after the last whole vector by another formula.
    """
    size = x.numel()
    if size % _VECTORS == 0 and x.is_contiguous():
        return x.sigmoid()
    padded = x.new_zeros(-(-size // _VECTORS) * _VECTORS)
    padded[:size].view(x.shape).copy_(x)
    return padded.sigmoid_()[:size].view(x.shape)


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
    """``x W'`` of ``[K, B, I]`` and ``[K, O, I]``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        # One output is summed in the order that rounds the same for one model as for many.
        return torch.bmm(weight, x.mT).mT if weight.shape[1] == 1 else torch.bmm(x, weight.mT)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor]:
        x, weight = ctx.saved_tensors
        grad_x = torch.bmm(dy, weight) if ctx.needs_input_grad[0] else None
        return grad_x, torch.bmm(dy.mT, x)


class Dense(nn.Module):
    """A fully connected layer, through a logistic sigmoid except for the last one."""

    def __init__(self, i: int, o: int, num_models: int, dtype: torch.dtype, last: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_models, o, i, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(num_models, o, dtype=dtype))
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = _Product.apply(x, self.weight) + self.bias.unsqueeze(1)
        return y if self.last else _Sigmoid.apply(y)
