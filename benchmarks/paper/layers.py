"""Layers of K models as these experiments need them: formulas and parameters of the package's, another way to compute.

    NALU     the gradient by hand, in two thirds of the time: in float64, it takes as long as all others together
    Dense    a fully connected layer
A step of the NALU takes 0.73 to 0.91 of the package's time, on an Intel Sapphire Rapids with two virtual cores,
interleaved, at 20 to 225 models.

All take their sigmoids from `sigmoid`, so that a model's numbers do not depend on the other models in the batch.

NALU's tanh * sigmoid is computed once, tanh as 2 sigmoid(2 w) - 1, the logarithm of inputs that all models share once:

    W = tanh(w) sigmoid(m)    a = x W'    p = log(|x| + eps) W'    g = sigmoid(x G' + b)    y = exp(p) + g (a - exp(p))
    da = dy g    dp = (dy - da) exp(p)    dz = dy (a - exp(p)) g (1 - g)
    dW = da' x + dp' log(|x| + eps)    dw = dW sigmoid(m) (1 - tanh(w)^2)    dm = dW W (1 - sigmoid(m))
    dG = dz' x    db = sum dz    dx = da W + dz G + (dp W) sign(x) / (|x| + eps)

All take ``x [K, B, I]`` to ``[K, B, O]`` and have first derivatives only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import npu_kernels


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


VECTORS = 64  # elements: whole vectors of any machine, also where its loops take several at once


def sigmoid(x: Tensor) -> Tensor:
    """torch.sigmoid, of which each element has the same rounding wherever it lies.

    Torch computes the elements after the last whole vector by another formula.
    """
    size = x.numel()
    if size % VECTORS == 0 and x.is_contiguous():
        return x.sigmoid()
    padded = x.new_zeros(-(-size // VECTORS) * VECTORS)
    padded[:size].view(x.shape).copy_(x)
    return padded.sigmoid_()[:size].view(x.shape)


def product(x: Tensor, weight: Tensor) -> Tensor:
    """``x W'``; for one output, in the order that rounds the same for one model as for many."""
    return torch.bmm(weight, x.mT).mT if weight.shape[1] == 1 else torch.bmm(x, weight.mT)


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

    def __init__(self, in_features: int, out_features: int, *, num_models: int, dtype: torch.dtype, last: bool) -> None:
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


class _Nalu(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, mask: Tensor, gate_weight: Tensor, gate_bias: Tensor | None, eps: float
    ) -> Tensor:
        shared = x.stride(0) == 0  # expanded: all models get the same rows
        log = (x[:1] if shared else x).abs().add_(eps).log_().expand_as(x)
        tanh, mask = sigmoid(2 * weight).mul_(2).sub_(1), sigmoid(mask)
        w = tanh * mask
        m = product(log, w).exp_()
        difference = product(x, w).sub_(m)
        g = product(x, gate_weight)
        if gate_bias is not None:
            g.add_(gate_bias.unsqueeze(1))
        g = sigmoid(g)
        ctx.save_for_backward(x, log, gate_weight, tanh, mask, w, m, difference, g)
        ctx.eps, ctx.bias = eps, gate_bias is not None
        return torch.addcmul(m, g, difference)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, log, gate_weight, tanh, mask, w, m, difference, g = ctx.saved_tensors
        da = dy * g
        dp = (dy - da).mul_(m)
        dz = (dy * difference).mul_(g)
        dz.addcmul_(dz, g, value=-1)
        dw = torch.baddbmm(torch.bmm(da.mT, x), dp.mT, log)
        grad_weight = torch.addcmul(mask, mask, tanh.square(), value=-1).mul_(dw)
        grad_mask = dw.mul_(w)
        grad_mask.addcmul_(grad_mask, mask, value=-1)
        grad_x = None
        if ctx.needs_input_grad[0]:
            grad_x = torch.bmm(dp, w).mul_(x.sign()).div_(x.abs().add_(ctx.eps))
            grad_x.baddbmm_(da, w).baddbmm_(dz, gate_weight)
        grad_bias = dz.sum(1) if ctx.bias else None
        return grad_x, grad_weight, grad_mask, torch.bmm(dz.mT, x), grad_bias, None


class NALU(npu_kernels.NALU):
    """The package's NALU."""

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = _Nalu.apply(x, self.weight, self.mask, self.gate_weight, self.gate_bias, self.eps)
        return result
