"""Zeros, infinities, NaN and extreme products in the Triton kernels are those of the formulas."""

import math
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from npu_kernels import functional, reference, use_backend
from tests.support.compare import assert_near
from tests.support.kernels import forward
from tests.support.samples import (
    RECORDS,
    normwise_error,
)

SPECIAL = (0.0, -0.0, 1e-45, -1e-40, 1e-38, 1e38, -1e38, 1.0, -1.0, math.inf, -math.inf, math.nan)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gate", [None, 0.0, 0.5])
@pytest.mark.parametrize("imaginary", [False, True])
def test_special_input(
    dtype: torch.dtype, gate: float | None, imaginary: bool, route: str, device: str
) -> None:
    """Value and gradients of a row with one special input are the formula's."""

    def tensor(values: list[list[float]]) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    x = tensor([[value, 0.7, -1.3] for value in SPECIAL])
    weight_re = tensor([[0.5, 0.25, -0.5], [-0.3, 0.5, 0.75]])
    weight_im = tensor([[0.125, -0.3, 0.2], [0.2, 0.1, -0.25]]) if imaginary else None
    gates = None if gate is None else torch.full((3,), gate, dtype=dtype, device=device)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    # Every row a model of its own, so that one bad row does not spoil the others' gradients.
    n = len(SPECIAL)
    tensors = [
        t if t is None else t.expand(n, *t.shape).clone().requires_grad_()
        for t in (weight_re, weight_im, gates)
    ]
    leaves = [x.unsqueeze(1).requires_grad_(), *(t for t in tensors if t is not None)]
    with use_backend("triton"):
        actual = functional.npu(leaves[0], *tensors)
        grads = torch.autograd.grad(actual.sum(), leaves)
    expected = reference.npu(leaves[0], *tensors)
    exact_grads = torch.autograd.grad(expected.sum(), leaves)
    for row, value in enumerate(SPECIAL):
        assert normwise_error(actual[row], expected[row]) < tolerance, value
        for grad, want in zip(grads, exact_grads, strict=True):
            in_row = grad[row]
            # the formula's nan of 0 * inf may be inf, see functional.npu
            if expected[row].isinf().any():
                in_row = torch.where(want[row].isnan() & in_row.isinf(), want[row], in_row)
            assert normwise_error(in_row, want[row]) < tolerance, value


@pytest.mark.parametrize("passes", [6, 3, 1])
def test_infinite_input_in_split_products(passes: int, device: str, kernels: Any) -> None:
    """The forward is the formula's, where planes of an infinity would sum to nan."""
    from npu_kernels._triton import tuning

    x = torch.rand(len(SPECIAL), 20, device=device) + 0.5
    x[:, 3] = torch.tensor(SPECIAL)
    weight_re, weight_im = torch.rand(2, 17, 20, device=device) / 8 + 0.03125
    weight_re[1] *= -1
    config = {
        "BLOCK_B": 16, "BLOCK_O": 16, "BLOCK_I": 16, "PASSES": passes, "num_warps": 4,
        "num_stages": 2,
    }  # fmt: skip
    with tuning.use_config("npu_forward", config):
        for w_im in (None, weight_im):
            y, s = kernels.npu_forward(x, weight_re, w_im, None, 1e-7, True)
            want_y, want_s = reference.npu_forward(x, weight_re, w_im, None, 1e-7, True)
            tolerance = {6: 1e-5, 3: 1e-2, 1: math.inf}[passes]
            for row in range(len(SPECIAL)):
                for actual, want in ((y, want_y), (s, want_s)):
                    error = normwise_error(actual[row], want[row])
                    assert error < tolerance or (passes == 1 and error < 10), (SPECIAL[row], error)


@pytest.mark.parametrize("name", ["nalu", "inalu"])
@pytest.mark.parametrize("passes", [0, 6])
def test_special_input_of_the_nalus(name: str, passes: int, device: str, kernels: Any) -> None:
    """Rows with one special input give what the formula gives, also in split products."""
    from npu_kernels._triton import tuning

    sample = RECORDS[name].sample(len(SPECIAL), 5, 3, dtype=torch.float32, device=device)
    sample.x[:, 1] = torch.tensor(SPECIAL)
    config = {
        "BLOCK_B": 16, "BLOCK_O": 16, "BLOCK_I": 16, "PASSES": passes, "num_warps": 4,
        "num_stages": 1,
    }  # fmt: skip
    with tuning.use_config("nalu_forward", config):
        output = forward(sample, kernels)[0]
    want = forward(sample, reference)[0]
    for row, value in enumerate(SPECIAL):
        assert normwise_error(output[row], want[row]) < 1e-5, value


def test_extreme_products(device: str, kernels: Any) -> None:
    """exp saturates to inf and 0, and subnormal results are rounded, not flushed."""
    x = torch.full((1, 1), 2.0, device=device)
    exponents = torch.tensor(
        [127.5, 128.0, 200.0, 1e4, -126.0, -140.0, -149.0, -151.0, -1e4], device=device
    )[:, None]
    y, _ = kernels.npu_forward(x, exponents, None, None, 1e-30, False)
    want = torch.pow(2.0, exponents.double()).float().T
    finite = want.isfinite()
    assert torch.equal(y.isfinite(), finite)
    torch.testing.assert_close(y[finite], want[finite], rtol=2e-5, atol=3e-45)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_nmu_special_factors(dtype: torch.dtype, device: str, kernels: Any) -> None:
    """Zero factors, and products that overflow or underflow while those of the others do not."""
    tiny, huge = (1e-30, 1e30) if dtype == torch.float32 else (1e-200, 1e200)
    rows = [
        [0.0, 2.0, 3.0, 0.5], [0.0, 0.0, 3.0, 0.5], [tiny, tiny, 2.0, huge],
        [huge, huge, 2.0, tiny], [-0.0, tiny, tiny, tiny], [1e-45, huge, 2.0, 3.0],
        [1.0, 1.0, 1.0, 1.0],
    ]  # fmt: skip
    x = torch.tensor(rows, dtype=dtype, device=device)
    weight = torch.ones(1, 4, dtype=dtype, device=device)
    grad_y = torch.ones(len(rows), 1, dtype=dtype, device=device)
    # torch multiplies in another order on a GPU, where other partial products overflow.
    want = reference.nmu_forward(x.cpu(), weight.cpu())
    assert torch.equal(kernels.nmu_forward(x, weight).cpu(), want)
    grad_x = kernels.nmu_backward(grad_y, x, weight, 1)[0]
    eps, smallest = torch.finfo(dtype).eps, torch.finfo(dtype).smallest_normal
    for row, factors in enumerate(x.tolist()):
        for i, value in enumerate(grad_x[row].tolist()):
            other_factors = math.prod(Fraction(f) for j, f in enumerate(factors) if j != i)
            if other_factors > Fraction(torch.finfo(dtype).max):
                assert value == math.inf
            else:
                assert math.isclose(
                    value, float(other_factors), rel_tol=8 * eps, abs_tol=eps * smallest
                ), (row, i)


@pytest.mark.parametrize("separate", [False, True])
def test_nmru_zero_factors_and_signs(separate: bool, device: str, kernels: Any) -> None:
    """Factors of 0, of inputs and reciprocals; a reciprocal of the other sign."""
    eps = 0.25
    rows = [
        [-1.0, 2, 3], [-1.25, 2, 3], [-1.0, -1.25, 3], [-0.1, 2, 3], [-0.1, -1, -2], [0.0, 2, 3],
    ]  # fmt: skip
    # 1/2 of -1, or of the reciprocal of -1.25, and 1/2 of 1 are 0; so is all of 0.
    columns = [[0.5] * 6, [0.25, 0.5, 1.0, 0.5, 0.75, 0.1], [1.0, 0.0, 0.5, 0.0, 1.0, 0.25]]
    x, weight = (
        torch.tensor(values, dtype=torch.float64, device=device) for values in (rows, columns)
    )
    grad_y = torch.rand(6, 3, dtype=torch.float64, device=device) + 0.5
    actuals, expected = (
        (
            of.nmru_forward(x, weight, eps, True, separate),
            *of.nmru_backward(grad_y, x, weight, eps, True, separate, 3),
        )
        for of in (kernels, reference)
    )
    assert_near(actuals, expected, 5e-14)
    assert (expected[0] == 0).any()


def test_nmu_infinite_factor(device: str, kernels: Any) -> None:
    """Gradients that an infinite factor enters are not finite; the other rows are right."""
    x = torch.tensor([[math.inf, 2.0, 3.0], [1.0, 2.0, 3.0], [1.0, math.nan, 3.0]], device=device)
    grad_x, _ = kernels.nmu_backward(
        torch.ones(3, 1, device=device), x, torch.ones(1, 3, device=device), 1
    )
    assert grad_x.isfinite().tolist() == [[False] * 3, [True] * 3, [False] * 3]
    assert grad_x[1].tolist() == [6.0, 3.0, 2.0]
