"""Neural Power Unit, a layer: calls of anything with the operators' names and signatures, and their float32 error."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from npu_kernels import ops, reference
from npu_kernels.testing import Sample, fill_uninitialized_with_nan, rms_error

EPS = torch.finfo(torch.float32).eps  # in float64 too: there the formula in float64 is the exact result


def forward(sample: Sample, kernels: Any) -> tuple[Tensor, ...]:
    """``(y, s)``, or ``(y,)`` of the NMU."""
    if "weight" in sample.tensors:
        return (kernels.nmu_forward(sample.x, *sample.tensors.values()),)
    return kernels.npu_forward(sample.x, *sample.tensors.values(), EPS, True)


def backward(sample: Sample, kernels: Any, grad_y: Tensor, needs: int, straight_through: bool = False) -> Any:
    """The gradients, from the kernels' own forward."""
    tensors = sample.tensors.values()
    if "weight" in sample.tensors:
        return kernels.nmu_backward(grad_y, sample.x, *tensors, needs)
    y, s = forward(sample, kernels)
    return kernels.npu_backward(grad_y, sample.x, *tensors, y, s, EPS, straight_through, needs)


def outputs(sample: Sample, kernels: Any, grad_y: Tensor) -> list[Tensor]:
    """All of both. What is not written is nan."""
    straight = sample.options.get("gate_gradient") == "straight_through"
    with fill_uninitialized_with_nan():
        return [*forward(sample, kernels), *backward(sample, kernels, grad_y, 15, straight)]


def errors(sample: Sample, kernels: Any = ops) -> list[tuple[float, float]]:
    """(kernel's error, eager error) of every output of a float32 sample against the formula in float64."""
    # Away from 0, where 1 / r makes the gradient of one x outweigh all others.
    sample = Sample(sample.name, sample.x + 0.25 * sample.x.sign(), sample.tensors, sample.options)
    exact = sample.map(Tensor.double)
    exact_forward = forward(exact, reference)
    # The size that rounding is relative to: exp(P) for y and s. Upstream gradients undo it, lest one row be all.
    is_npu = len(exact_forward) == 2
    scale = torch.hypot(*exact_forward) if is_npu else exact_forward[0].abs().clamp(min=1e-3)
    grad_y = (torch.randn_like(scale) / scale).expand_as(exact_forward[0]).float()
    kernel, eager = outputs(sample, kernels, grad_y), outputs(sample, reference, grad_y)
    found = []
    for i, (a, e, x) in enumerate(zip(kernel, eager, outputs(exact, reference, grad_y.double()), strict=True)):
        assert a.dtype == torch.float32
        assert a.is_contiguous()
        at = scale if is_npu and i < 2 else None
        found.append((rms_error(a, x, at), rms_error(e, x, at)))
    return found
