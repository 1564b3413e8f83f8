"""Zeros, subnormals, huge values, inf, nan, and the smallest shapes."""

import math

import pytest
import torch
from torch import Tensor

from npu_kernels import functional, reference
from tests.conftest import needs_library
from tests.support.samples import RECORDS, normwise_error

SPECIAL = [
    0.0, -0.0, 1e-45, -1e-45, 1e-40, -1e-40, 1e-38, -1e-38, 1e38, -1e38, 1.0, -1.0, math.inf,
    -math.inf, math.nan,
]  # fmt: skip


def _same(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Element by element: nan with nan, inf with its inf, finite values relative to themselves."""
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=0, equal_nan=True)


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gate", [None, 0.0, 0.5, 1.0])
@pytest.mark.parametrize("imaginary", [False, True])
def test_special_input(dtype: torch.dtype, gate: float | None, imaginary: bool) -> None:
    """Value and gradients of a row with one special input are the formula's."""
    for value in SPECIAL:
        _check_special_input(dtype, gate, imaginary, value)


def _check_special_input(
    dtype: torch.dtype, gate: float | None, imaginary: bool, value: float
) -> None:
    x = torch.tensor([[value, 0.7, -1.3]], dtype=dtype)
    weight_re = torch.tensor([[0.5, 0.25, -0.5], [-0.3, 0.5, 0.75]], dtype=dtype)
    weight_im = (
        torch.tensor([[0.125, -0.3, 0.2], [0.2, 0.1, -0.25]], dtype=dtype) if imaginary else None
    )
    gates = None if gate is None else torch.full((3,), gate, dtype=dtype)
    tensors = [t if t is None else t.requires_grad_() for t in (x, weight_re, weight_im, gates)]
    leaves = [t for t in tensors if t is not None]
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    actual, expected = functional.npu(*tensors), reference.npu(*tensors)
    assert normwise_error(actual, expected) < tolerance, value
    grads = torch.autograd.grad(actual.sum(), leaves)
    for grad, want in zip(grads, torch.autograd.grad(expected.sum(), leaves), strict=True):
        if expected.isinf().any():  # the formula's nan of 0 * inf may be inf, see functional.npu
            grad = torch.where(want.isnan() & grad.isinf(), want, grad)
        assert normwise_error(grad, want) < tolerance, value


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_special_inputs_in_every_lane(dtype: torch.dtype) -> None:
    """A special value in one row leaves the others alone, wherever it stands in a vector."""
    for in_features in (1, 7, 16, 17, 33):
        weight = torch.randn(19, in_features, dtype=dtype) / in_features
        x = torch.randn(23, in_features, dtype=dtype)
        clean = functional.npu(x, weight, weight.flip(0))
        for row in range(23):
            spoiled = x.clone()
            spoiled[row, row % in_features] = SPECIAL[row % len(SPECIAL)]
            y = functional.npu(spoiled, weight, weight.flip(0))
            other_rows = torch.arange(23) != row
            assert torch.equal(y[other_rows], clean[other_rows])
            _same(
                y,
                reference.npu(spoiled, weight, weight.flip(0)),
                1e-3 if dtype == torch.float32 else 1e-11,
            )


def test_minus_zero_is_not_negative(backend: str) -> None:
    zeros = torch.tensor([[0.0], [-0.0]])
    weight = torch.tensor([[0.5]])
    y = functional.npu(zeros, weight, weight)
    assert torch.equal(y[0], y[1])
    assert y[0] > 0 or y[0] < 0


def test_zero_has_no_sign_gradient(backend: str) -> None:
    """The derivative of |x| at 0 is 0, torch's."""
    x = torch.zeros(1, 2, requires_grad=True)
    functional.npu(x, torch.ones(1, 2)).sum().backward()
    assert torch.equal(x.grad, torch.zeros(1, 2))


@pytest.mark.parametrize(("inputs", "outs"), [(3, 2), (20, 1), (40, 10), (130, 10)])
@pytest.mark.parametrize("row", [0, 100, 299])
def test_one_negative_row(inputs: int, outs: int, row: int, backend: str) -> None:
    """Kernels leave out the phases of blocks of rows without a negative input."""
    x = torch.rand(300, inputs, dtype=torch.float64) + 0.5
    x[row, :2] *= -1
    operands = [x, *(0.1 * torch.randn(2, outs, inputs, dtype=torch.float64))]
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.float64, 1e-11)):
        for imaginary in (True, False):
            used = [t.to(dtype).requires_grad_() for t in operands[: 2 + imaginary]]
            exact = [t.detach().double().requires_grad_() for t in used]
            y, expected = functional.npu(*used), reference.npu(*exact)
            upstream = torch.randn_like(expected)
            grads = torch.autograd.grad(y, used, upstream.to(dtype))
            exact_grads = torch.autograd.grad(expected, exact, upstream)
            for got, want in zip((y, *grads), (expected, *exact_grads), strict=True):
                assert normwise_error(got, want) < tolerance


def test_overflow_and_underflow(backend: str) -> None:
    x = torch.tensor([[1e20], [1e-20]])
    weight = torch.tensor([[3.0], [-3.0], [1.0]])
    y = functional.npu(x, weight, eps=1e-30)
    _same(y, torch.tensor([[math.inf, 0.0, 1e20], [0.0, math.inf, 1e-20]]), 1e-4)


@pytest.mark.parametrize("power", [1, 2, 3, 7, 40, 101])
def test_signs_of_whole_powers(power: int, backend: str) -> None:
    """(-1) ** n in float32: the phase pi n is accurate enough for the sign and the size."""
    y = functional.npu(torch.tensor([[-1.0]]), torch.tensor([[float(power)]]))
    assert y.item() == pytest.approx((-1.0) ** power, rel=2e-4)


@pytest.mark.parametrize("name", list(RECORDS))
def test_one_of_everything(name: str, backend: str) -> None:
    record = RECORDS[name]
    for num_models in (None, 1):
        sample = record.sample(1, 1, 1, num_models=num_models).requires_grad()
        y = sample.call(record.function)
        assert normwise_error(y, sample.call(record.reference)) < 1e-14
        y.sum().backward()
        assert all(leaf.grad is not None and leaf.grad.isfinite().all() for leaf in sample.leaves())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nmu_zero_factors(dtype: torch.dtype, backend: str) -> None:
    """None, one and two zero factors in a product: the gradient is the product of the others."""
    x = torch.tensor(
        [[2.0, 3.0, 4.0], [0.0, 3.0, 4.0], [0.0, 0.0, 4.0]], dtype=dtype, requires_grad=True
    )
    weight = torch.ones(1, 3, dtype=dtype, requires_grad=True)
    functional.nmu(x, weight).sum().backward()
    expected = torch.tensor([[12.0, 8.0, 6.0], [12.0, 0.0, 0.0], [0.0, 0.0, 0.0]], dtype=dtype)
    _same(x.grad, expected, 1e-6)
    # d weight_i = sum over rows of (x_i - 1) prod of the others
    _same(weight.grad, torch.tensor([[12.0 - 12, 16.0, 18.0]], dtype=dtype), 1e-6)


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nmu_special_inputs(dtype: torch.dtype) -> None:
    special = torch.tensor(SPECIAL, dtype=dtype)
    x = torch.stack([special, torch.full_like(special, 0.7), torch.full_like(special, -1.3)], 1)
    weight = torch.tensor([[0.5, 0.25, 1.0], [0.0, 0.5, 0.75], [1.0, 0.0, 0.0]], dtype=dtype)
    _same(functional.nmu(x, weight), reference.nmu(x, weight), 1e-5)


def test_huge_products_beside_an_open_gate_of_nalu(backend: str) -> None:
    """Where g is 1, y is a, however large the product m is."""
    weight, gate = torch.full((2, 1, 2), 9.0), torch.full((2, 1, 2), 40.0)
    y = functional.nalu(torch.tensor([[1e12, 1e12]]), weight, weight, gate)  # m is 1e24
    _same(y, torch.full_like(y, 2e12), 1e-3)


@needs_library
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("side", [1.0, -1.0])
def test_inalu_derivatives_of_a_gate_that_rounds_to_one(side: float, fused: bool) -> None:
    """What a sigmoid lacks to 1 is taken from the other side: it does not cancel."""
    x, big, mul = torch.full((1, 2), 2.0), torch.full((1, 2), 20.0), torch.zeros(1, 2)
    gate = torch.full((1, 2), 10 * side)  # its sigmoid is that of 40 or -40
    weights = big, big, mul, big, gate  # a = 4, m s = 1
    if fused:
        leaves = [weight.clone().requires_grad_() for weight in weights]
        grads = torch.autograd.grad(functional.inalu(x, *leaves).sum(), leaves)
    else:
        saved, options = (None,) * 4, (1e-7, 20.0)
        grads = reference.inalu_backward(torch.ones(1, 1), x, *weights, *saved, *options)[1:]
    rest = 1 / (1 + math.exp(40 * side))
    _same(grads[2], torch.full((1, 2), rest * math.log(2)), 1e-4)
    _same(grads[4], torch.full((1, 2), 2 * (4 - 1) * math.exp(-40)), 1e-4)
