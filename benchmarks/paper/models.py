"""Stacks of layers for K models at once, and their starts.

A start is drawn model by model from the model's own stream, parameter by parameter in their order;
a constant start draws nothing. So an NPU starts where the RealNPU of its seed does, and the models
of one seed share their first layer's start. No number of a model depends on the others, as in the
package's layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import npu_kernels
from benchmarks.paper.streams import stream
from npu_kernels import NMU

# The authors' code neither clips the NAU nor leaves the bias out of the NALU's gate.
OPTIONS = {"NAU": {"clip": False}, "NALU": {"bias": True}}


def _layer(name: str, i: int, o: int, models: int, dtype: torch.dtype) -> nn.Module:
    if name in ("Dense", "Linear"):
        return Dense(i, o, models, dtype, last=name == "Linear")
    unit: Any = getattr(npu_kernels, name)
    return unit(i, o, num_models=models, dtype=dtype, **OPTIONS.get(name, {}))


def build(
    stack: Sequence[tuple[str, int, int]], num_models: int, dtype: torch.dtype
) -> nn.Sequential:
    """The layers (name, in_features, out_features) of K models, one after the other."""
    return nn.Sequential(*(_layer(*layer, num_models, dtype) for layer in stack))


Start = tuple[float, float]  # a uniform distribution's ends; equal ends: a constant


def default_start(layer: nn.Module, name: str, parameter: Tensor) -> Start:
    """The paper's: Glorot, imaginary parts 0, gates 1/2; NMU, NALU's bias as in the code."""
    if name == "weight_im" or (name == "bias" and isinstance(layer, Dense)):
        return 0.0, 0.0
    if name == "gate":
        return 0.5, 0.5
    if isinstance(layer, NMU):
        return 0.0, 1.0
    fan = 1 + parameter.shape[1] if name == "gate_bias" else parameter.shape[1] + parameter.shape[2]
    return -math.sqrt(6 / fan), math.sqrt(6 / fan)


@torch.no_grad()
def start_(
    model: nn.Sequential, seeds: Sequence[int], purpose: str,
    start: Callable[[nn.Module, str, Tensor], Start] = default_start,
) -> None:  # fmt: skip
    """Fill the parameters of model k from the stream (purpose, seeds[k])."""
    for k, seed in enumerate(seeds):
        generator = stream(purpose, seed)
        for layer in model:
            for name, parameter in layer.named_parameters():
                low, high = start(layer, name, parameter)
                if low == high:
                    parameter[k] = low
                else:
                    draws = torch.rand(parameter.shape[1:], generator=generator)
                    parameter[k] = draws * (high - low) + low


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
