"""NMRU: what the tests of all layers do not ask."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from npu_kernels import NMRU, functional, reference
from npu_kernels.training import project_, regularizer
from tests.conftest import needs_library
from tests.support.samples import RECORDS

SIGNS = ("product", "separate")
EPS = torch.finfo(torch.float32).eps
SPECIAL = [0.0, -0.0, 1e-45, -1e-40, 1e-38, 1e38, -1e38, 1.0, -1.0, math.inf, -math.inf, math.nan]


def test_regularised_and_projected_like_the_nmu() -> None:
    layer = NMRU(2, 1, num_models=3, clip=False)
    with torch.no_grad():
        layer.weight.mul_(8).sub_(4)
    torch.testing.assert_close(regularizer(layer), regularizer(layer.weight, num_models=3))
    project_(layer, weight_bound=1.0)
    assert layer.weight.min() == 0
    assert layer.weight.max() == 1


@pytest.mark.parametrize(
    ("sign", "clip", "eps"), list(itertools.product(SIGNS, (True, False), (0.0, 0.25)))
)
def test_derivatives(sign: str, clip: bool, eps: float, backend: str) -> None:
    """First, in batches, and second, on every way; one factor is 0."""
    sample = RECORDS["nmru"].sample(
        2, 2, 1, num_models=2, options={"sign": sign, "clip": clip, "eps": eps}
    )
    x, weight = sample.leaves()
    x[:, 0, 0], weight[:, 0, 0] = -1.0, 0.5  # w x + 1 - w = 0, where signs are not separate
    leaves = [x.requires_grad_(), weight.requires_grad_()]

    def call(*operands: Tensor) -> Tensor:
        return functional.nmru(*operands, **sample.options)

    assert torch.autograd.gradcheck(call, leaves, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(call, leaves)


@needs_library
@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("eps", [0.0, EPS])
def test_special_inputs(sign: str, dtype: torch.dtype, eps: float, backend: str) -> None:
    """Value and gradients of each row are the formula's; zeros have infinite reciprocals."""
    special = torch.tensor(SPECIAL, dtype=dtype)
    rows = torch.stack([special, torch.full_like(special, 0.7)], 1)
    weight = torch.tensor([[0.5, 0.25, 0.75, 1.0], [0.0, 0.5, 1.0, -0.25]], dtype=dtype)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    for row in rows:
        x, w = row[None].clone().requires_grad_(), weight.clone().requires_grad_()
        y = functional.nmru(x, w, eps=eps, sign=sign)
        want = reference.nmru(row[None], weight, eps=eps, sign=sign)
        torch.testing.assert_close(y, want, rtol=tolerance, atol=0, equal_nan=True)
        expected = reference.nmru_backward(
            torch.ones_like(want), row[None], weight, eps, True, sign == "separate"
        )
        y.sum().backward()
        if backend != "reference":  # torch's own derivative of a product divides by the factors
            for grad, exact in zip((x.grad, w.grad), expected, strict=True):
                torch.testing.assert_close(
                    grad, exact, rtol=10 * tolerance, atol=tolerance, equal_nan=True
                )


@needs_library
@pytest.mark.parametrize("weight", [0.3, -0.7, 1.0])
def test_phase_of_many_terms(isa: str, weight: float) -> None:
    """The error of a sum of equal weights does not grow: whole periods are left out."""
    x = torch.full((5, 250), -1.0, requires_grad=True)
    w = torch.full((3, 500), weight, requires_grad=True)
    y = functional.nmru(x, w, sign="separate", clip=True)
    actuals = [y.detach(), *torch.autograd.grad(y.sum(), (x, w))]
    x64, w64 = (t.detach().double() for t in (x, w))
    want = reference.nmru(x64, w64, sign="separate")
    exact = reference.nmru_backward(torch.ones_like(want), x64, w64, 0.0, True, True)
    # The cosine is 1 or -1, where a wrong phase shows least; the weights' gradients are sums of 5
    # pi times the sine.
    for actual, expected, error in zip(actuals, (want, *exact), (1e-6, 1e-6, 2e-3), strict=True):
        assert (actual - expected).abs().max() <= error
