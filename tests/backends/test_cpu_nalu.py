"""NALUs with a model dimension on the CPU: the gradient by hand, and numbers that do not depend on
the other models."""

import pytest
import torch
from torch import Tensor

from npu_kernels import NALU, functional, reference, use_backend
from npu_kernels._operators import cpu_nalu
from npu_kernels._testing.samples import RECORDS, normwise_error
from tests.conftest import needs_library
from tests.support.compare import assert_equal, assert_near

pytestmark = needs_library
RECORD = RECORDS["nalu"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("without", [(), ("gate_bias",)])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("out_features", [1, 4])
def test_is_the_formula(
    dtype: torch.dtype, without: tuple[str, ...], shared: bool, out_features: int
) -> None:
    sample = RECORD.sample(
        7, 5, out_features, num_models=3, shared=shared, without=without, dtype=dtype
    ).requires_grad()
    y, expected = sample.call(functional.nalu), sample.call(reference.nalu)
    bound = 20 * torch.finfo(dtype).eps
    assert y.grad_fn.name() == "NaluBackward"
    assert normwise_error(y, expected) < bound
    upstream = torch.randn_like(y)
    exact_grads = torch.autograd.grad(expected, sample.leaves(), upstream)
    for leaf, want in zip(sample.leaves(), exact_grads, strict=True):
        (single_grad,) = torch.autograd.grad(y, leaf, upstream, retain_graph=True)
        assert single_grad.dtype == dtype
        assert normwise_error(single_grad, want) < bound
    assert_near(torch.autograd.grad(y, sample.leaves(), upstream), exact_grads, bound)


def test_huge_products_beside_an_open_gate() -> None:
    """Where g is 1, y is a, however large the product m is."""
    weight, gate = torch.full((2, 1, 2), 9.0), torch.full((2, 1, 2), 40.0)
    y = functional.nalu(torch.tensor([[1e12, 1e12]]), weight, weight, gate.clone())
    assert torch.equal(y, reference.nalu(torch.tensor([[1e12, 1e12]]), weight, weight, gate))
    assert normwise_error(y, torch.full_like(y, 2e12)) < 1e-3  # m is 1e24


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [(7, 5, 3), (50, 6, 1), (13, 33, 7), (60, 100, 100)])
def test_other_models_change_no_bit(dtype: torch.dtype, sizes: tuple[int, int, int]) -> None:
    batch, inputs, outs = sizes
    together = NALU(inputs, outs, num_models=5, bias=True, dtype=dtype)
    single = NALU(inputs, outs, num_models=1, bias=True, dtype=dtype)
    single.load_state_dict({name: value[3:4] for name, value in together.state_dict().items()})
    x = torch.randn(5, batch, inputs, dtype=dtype)

    def step(layer: NALU, x: Tensor) -> list[Tensor]:
        x = x.clone().requires_grad_()
        y = layer(x)
        return [y, *torch.autograd.grad(y.square().sum(), [x, *layer.parameters()])]

    same_products = batched_products_round_alike(batch, inputs, outs, dtype)
    for of_all, of_single in zip(step(together, x), step(single, x[3:4]), strict=True):
        if same_products:
            assert torch.equal(of_all[3:4], of_single)
        else:
            assert normwise_error(of_all[3:4], of_single) < 20 * torch.finfo(dtype).eps


def batched_products_round_alike(batch: int, inputs: int, outs: int, dtype: torch.dtype) -> bool:
    """Whether torch's products of five models and of one have the same bits here."""
    x, weight = (
        torch.randn(5, batch, inputs, dtype=dtype),
        torch.randn(5, outs, inputs, dtype=dtype),
    )
    grad = torch.randn(5, batch, outs, dtype=dtype)
    products = [(x, weight.mT), (grad, weight), (grad.mT, x)]
    return all(
        torch.equal(torch.bmm(a, b)[3:4], torch.bmm(a[3:4].clone(), b[3:4].clone()))
        for a, b in products
    )


def test_sigmoid_rounds_the_same_everywhere() -> None:
    x = torch.randn(1003, dtype=torch.float64)
    torch.testing.assert_close(cpu_nalu.sigmoid(x), x.sigmoid())
    assert torch.equal(cpu_nalu.sigmoid(x)[5:905], cpu_nalu.sigmoid(x[5:905]))


def test_where_the_formula_computes() -> None:
    layer, x = NALU(3, 2, num_models=4), torch.rand(6, 3)
    assert "Nalu" not in NALU(3, 2)(x).grad_fn.name()
    with use_backend("reference"):
        assert "Nalu" not in layer(x).grad_fn.name()
    transformed = torch.func.grad(lambda x: layer(x).sum())(x)
    (expected,) = torch.autograd.grad(layer(x.requires_grad_()).sum(), x)
    assert normwise_error(transformed, expected) < 1e-5


def test_a_backward_under_autocast_is_in_float32() -> None:
    layer = NALU(20, 30, num_models=3, bias=True)
    y, parameters = layer(torch.rand(40, 20)), list(layer.parameters())
    expected = torch.autograd.grad(y.sum(), parameters, retain_graph=True)
    with torch.autocast("cpu", torch.bfloat16):
        grads = torch.autograd.grad(y.sum(), parameters)
    assert_equal(grads, expected)
