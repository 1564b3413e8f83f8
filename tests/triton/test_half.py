"""float16 and bfloat16: read and written by the kernels, which compute in float32; nothing is cast
before or after."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from npu_kernels import use_backend
from npu_kernels.interop import reference_layers
from tests.support.compare import assert_near
from tests.support.samples import RECORDS, Sample, normwise_error

pytest.importorskip("triton")
LAYERS = ("npu", "nmu", "nmru", "nalu", "inalu")
HALVES = (torch.float16, torch.bfloat16)


class Counted(TorchDispatchMode):
    """Count the runs of each operator of torch's."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.calls[function.name()] += 1
        return function(*args, **(kwargs or {}))


def step(sample: Sample, autocast: bool = False) -> tuple[list[Tensor], Counter[str]]:
    """y and all gradients, and what ran."""
    leaves = sample.requires_grad()
    device = leaves.x.device.type
    with use_backend("triton"), Counted() as counted:
        with torch.autocast(device, torch.bfloat16, enabled=autocast):
            y = leaves.call(RECORDS[sample.name.partition("-")[0]].function)
        grads = torch.autograd.grad(y, leaves.leaves(), torch.ones_like(y))
    return [y.detach(), *grads], counted.calls


def casts(calls: Counter[str]) -> int:
    return calls["aten::_to_copy"] + calls["aten::to.dtype"] + calls["aten::copy_"]


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", LAYERS)
def test_no_casts(name: str, dtype: torch.dtype, device: str) -> None:
    sample = RECORDS[name].sample(5, 3, 2, dtype=dtype, device=device)
    results, calls = step(sample)
    assert casts(calls) == 0, calls
    assert calls[f"npu_kernels::{name}_forward"] == calls[f"npu_kernels::{name}_backward"] == 1
    assert {tensor.dtype for tensor in results} == {dtype}
    exact = sample.map(Tensor.double).requires_grad()
    y = exact.call(RECORDS[name].reference)
    exact_results = [y.detach(), *torch.autograd.grad(y, exact.leaves(), torch.ones_like(y))]
    assert_near(results, exact_results, 4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("sizes", [(5, 3, 2), (3, 17, 2)])
def test_gate_of_minus_zero(sizes: tuple[int, int, int], dtype: torch.dtype, device: str) -> None:
    """It lies within the clip, whose ends let the gradient through."""
    sample = RECORDS["npu"].sample(*sizes, dtype=dtype, device=device)
    sample.tensors["gate"] = torch.full_like(sample.tensors["gate"], -0.0)
    actual = step(sample)[0][-1]
    exact = sample.map(Tensor.double).requires_grad()
    y = exact.call(RECORDS["npu"].reference)
    (want,) = torch.autograd.grad(y, [exact.leaves()[-1]], torch.ones_like(y))
    assert (want != 0).any()
    assert normwise_error(actual, want) < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("half", ["x", "weights"])
@pytest.mark.parametrize("sizes", [(5, 3, 2), (3, 17, 2)])
@pytest.mark.parametrize("name", ["npu", "nmu", "inalu"])
def test_autocast_mixes_dtypes_without_casts(
    name: str, sizes: tuple[int, int, int], half: str, device: str
) -> None:
    """An autocast layer's output is bfloat16, parameters are float32: the result is float32."""
    plain = RECORDS[name].sample(*sizes, dtype=torch.float32, device=device)
    rounded = plain.map(lambda t: t.bfloat16())
    sample = (
        Sample(plain.name, rounded.x, plain.tensors, plain.options)
        if half == "x"
        else Sample(plain.name, plain.x, rounded.tensors, plain.options)
    )
    results, calls = step(sample, autocast=True)
    assert casts(calls) == 0, calls
    assert results[0].dtype is torch.float32
    assert [grad.dtype for grad in results[1:]] == [leaf.dtype for leaf in sample.leaves()]
    float_results, _ = step(sample.map(Tensor.float))
    assert torch.equal(results[0], float_results[0])
    for actual, want in zip(results[1:], float_results[1:], strict=True):
        assert normwise_error(actual, want) < (
            2 * torch.finfo(actual.dtype).eps if actual.dtype is torch.bfloat16 else 1e-6
        )


def test_autocast_of_a_whole_half_model_is_float32(device: str) -> None:
    sample = RECORDS["npu"].sample(5, 3, 2, dtype=torch.bfloat16, device=device)
    results, _ = step(sample, autocast=True)
    assert results[0].dtype is torch.float32
    assert torch.equal(results[0], step(sample.map(Tensor.float))[0][0])


@pytest.mark.parametrize("name", ["npu", "nmu"])
def test_second_derivatives_are_computed_in_float32(name: str, device: str) -> None:
    sample = RECORDS[name].sample(5, 3, 2, dtype=torch.bfloat16, device=device)

    def second(sample: Sample) -> tuple[Tensor, ...]:
        leaves = sample.requires_grad()
        with use_backend("triton"):
            y = leaves.call(RECORDS[name].function)
        grads = torch.autograd.grad(y.float().sum(), leaves.leaves(), create_graph=True)
        return torch.autograd.grad(sum(g.float().square().sum() for g in grads), leaves.leaves())

    for actual, want in zip(second(sample), second(sample.map(Tensor.float)), strict=True):
        assert actual.dtype is torch.bfloat16
        assert normwise_error(actual, want) < 8 * torch.finfo(torch.bfloat16).eps


def test_eager_layers_still_compute_in_float32(device: str) -> None:
    layer = reference_layers.NPU(3, 2, dtype=torch.bfloat16, device=device)
    x = torch.rand(5, 3, device=device).sub(0.5).bfloat16()
    with use_backend("triton"):
        y = layer(x)
        assert torch.equal(y, layer.float()(x.float()).bfloat16())
