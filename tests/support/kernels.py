"""Calls of anything with the operators' names and signatures, and their float32 error."""

from typing import Any

import torch
from torch import Tensor

from npu_kernels import reference
from tests.support.compare import assert_near
from tests.support.samples import Sample, fill_uninitialized_with_nan, rms_error

NPU, NMU, INALU = "npu", "nmu", "inalu"
OMEGA = 20.0
KEEP = {NPU: (True,), "nalu": (True,), INALU: (True,)}  # the forward's request for what is saved
ops: Any = torch.ops.npu_kernels  # the registered operators, which programs and graphs name
ALL = 63  # gradients
# In float64 too: there the formula in float64 is the exact result.
EPS = torch.finfo(torch.float32).eps


def layer(sample: Sample) -> str:
    """The name of its operators, with which the sample's begins."""
    return sample.name.partition("-")[0]


def options(sample: Sample) -> tuple[Any, ...]:
    """The names of both operators."""
    name, values = layer(sample), sample.options
    if name == "nmru":
        return values.get("eps", 0.0), values.get("clip", True), values.get("sign") == "separate"
    return {NMU: (), INALU: (EPS, OMEGA)}.get(name, (EPS,))


def count(sample: Sample) -> int:
    """The number of gradients of its backward operator."""
    return 1 + len(sample.tensors)


def forward(sample: Sample, kernels: Any) -> tuple[Tensor, ...]:
    """The output and what is saved: s of the NPU; h, a, t of the NALU, and flags of the iNALU."""
    name = layer(sample)
    outputs = getattr(kernels, f"{name}_forward")(
        sample.x, *sample.tensors.values(), *options(sample), *KEEP.get(name, ())
    )
    return (outputs,) if isinstance(outputs, Tensor) else outputs


def backward(
    sample: Sample, kernels: Any, grad_y: Tensor, needs: int, straight_through: bool = False,
    results: Any = None,
) -> Any:  # fmt: skip
    """The gradients, from `results` of the kernels' forward, or from a forward made here."""
    name = layer(sample)
    y, *saved = forward(sample, kernels) if results is None else results
    if name == NPU:
        saved = [y, *saved]
    more = (straight_through,) if name == NPU else ()
    return getattr(kernels, f"{name}_backward")(
        grad_y, sample.x, *sample.tensors.values(), *saved, *options(sample), *more, needs
    )


def outputs(sample: Sample, kernels: Any, grad_y: Tensor) -> list[Tensor]:
    """All of both. What is not written is nan."""
    straight = sample.options.get("gate_gradient") == "straight_through"
    with fill_uninitialized_with_nan():
        return [*forward(sample, kernels), *backward(sample, kernels, grad_y, ALL, straight)]


def assert_parity(sample: Sample, kernels: Any = ops, bound: float = 5e-14) -> None:
    """Assert that outputs, and gradients for a drawn upstream gradient, are the formula's."""
    grad_y = torch.randn_like(forward(sample, reference)[0])
    actuals, expected = (outputs(sample, of, grad_y) for of in (kernels, reference))
    assert_near(actuals, expected, bound, sample.name)


def errors(sample: Sample, kernels: Any = ops) -> list[tuple[float, float]]:
    """Pairs (kernel's error, eager error) of each float32 output, against float64."""
    # Away from 0, where 1 / r makes the gradient of one x outweigh all others.
    sample = Sample(sample.name, sample.x + 0.25 * sample.x.sign(), sample.tensors, sample.options)
    exact = sample.map(Tensor.double)
    exact_forward = forward(exact, reference)
    # The size that rounding is relative to: exp(P) for y and s. Upstream gradients undo it, lest
    # one row be all.
    is_npu = layer(sample) == NPU
    scale = torch.hypot(*exact_forward) if is_npu else exact_forward[0].abs().clamp(min=1e-3)
    grad_y = (torch.randn_like(scale) / scale).expand_as(exact_forward[0]).float()
    kernel, eager = outputs(sample, kernels, grad_y), outputs(sample, reference, grad_y)
    pairs = []
    for i, (a, e, x) in enumerate(
        zip(kernel, eager, outputs(exact, reference, grad_y.double()), strict=True)
    ):
        assert a.dtype == (torch.int32 if e.dtype == torch.int32 else torch.float32)
        assert a.is_contiguous()
        scale_of_part = scale if is_npu and i < 2 else None
        pairs.append((rms_error(a, x, scale_of_part), rms_error(e, x, scale_of_part)))
    return pairs


def with_zero_factors(sample: Sample) -> Sample:
    """Set some x, and two factors of an iNALU (1 - 2/2 and 1 - 1), to 0 in place."""
    sample.x[..., 0, 1] = 0
    sample.x[..., 1, :3] = sample.x.new_tensor([0.0, -1.0, 1.0])
    sample.x[..., 2, :2] = -1
    sample.x[..., 3, :2] = 1
    if layer(sample) == INALU:
        weight, mask = sample.tensors["weight_mul"], sample.tensors["mask_mul"]
        assert weight is not None
        assert mask is not None
        weight[..., 0, :2], mask[..., 0, :2] = 50, weight.new_tensor([50.0, 0.0])
        weight[..., 1, :2], mask[..., 1, :2] = -50, 0
    return sample
