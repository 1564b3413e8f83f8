"""What the checks share: models, inputs, comparisons."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from npu_kernels import NAU, NMU, NPU, iNALU
from npu_kernels._operators import ops
from npu_kernels._testing.samples import RECORDS, normwise_error
from npu_kernels.certify._checks import Column

ROUNDING = 1e-11  # of float64
FUSED = tuple(ops.LAYERS)


def equal(actual: Tensor, expected: Tensor, tolerance: float, title: str) -> float:
    """Raise AssertionError unless the relative error is at most the tolerance; returns it."""
    error = normwise_error(actual.cpu(), expected.cpu())
    if not error <= tolerance:
        limit = f"at most {tolerance:.2g} allowed"
        raise AssertionError(f"{title}: relative error {error:.2g}, {limit}")
    return error


def require(condition: bool, message: str) -> None:
    """Raise AssertionError unless the condition holds."""
    if not condition:
        raise AssertionError(message)


def leaves_of(name: str, column: Column, rows: int = 3, **options: Any) -> list[Tensor]:
    """A sample away from the places without a derivative."""
    sample = RECORDS[name].sample(rows, 3, 2, device=column.device, **options).requires_grad()
    with torch.no_grad():
        sample.x.add_(0.25 * sample.x.sign())
        for tensor in sample.leaves()[1:]:
            for clip in (0, 1):
                near = (tensor - clip).abs() < 0.05
                tensor.add_(0.1 * near * (tensor - clip).sign())
    return sample.leaves()


def model_of(column: Column, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    """A small model of four layers, the same at every call."""
    torch.manual_seed(0)
    options: Any = {"dtype": dtype, "device": column.device}
    first, second = NPU(3, 6, init_im=0.3, **options), NAU(6, 4, **options)
    return nn.Sequential(first, second, NMU(4, 3, **options), iNALU(3, 2, **options))


def inputs(column: Column, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random rows, the same at every call."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(column.device, dtype)


def step(function: Callable[[Tensor], Tensor], model: nn.Module, x: Tensor) -> list[Tensor]:
    """The loss of a training step, and its gradients for x and all parameters."""
    x = x.detach().clone().requires_grad_()
    loss = function(x).square().mean()
    return [loss.detach(), *torch.autograd.grad(loss, [x, *model.parameters()])]
