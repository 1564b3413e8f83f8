"""Inputs of formulas, and what a model gives for them in float64."""

import copy

import torch
from torch import Tensor, nn

from npu_kernels import (
    NPU,
    NaiveNPU,
    RealNPU,
    use_backend,
)


def inputs(
    count: int, width: int, generator: torch.Generator, zeros: bool, dtype: torch.dtype
) -> Tensor:
    """Inputs of both signs, between 0.2 and 3, with zeros of both signs on request."""
    x = 0.2 + 2.8 * torch.rand(count, width, generator=generator, dtype=torch.float64)
    x = x * (torch.randint(2, x.shape, generator=generator) * 2 - 1)
    if zeros:
        x = torch.where(torch.rand(x.shape, generator=generator) < 0.2, x * 0, x)
    return x.to(dtype)


def in_float64(module: nn.Module, x: Tensor) -> Tensor:
    """The model by the eager formulas in float64, with the eps that it has in its own dtype."""
    oracle = copy.deepcopy(module).double()
    for layer in oracle.modules():
        if isinstance(layer, (NPU, RealNPU, NaiveNPU)) and layer.eps is None:
            layer.eps = torch.finfo(x.dtype).eps
    with torch.no_grad(), use_backend("reference"):
        result: Tensor = oracle(x.double())
    return result
