"""NMRU: what the tests of all layers do not ask."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from npu_kernels import NMRU, functional, reference
from npu_kernels.training import project_, regularizer
from tests.conftest import needs_library
from tests.support.kernels import ops
from tests.support.samples import RECORDS, normwise_error

SIGNS = ("product", "separate")
EPS = torch.finfo(torch.float32).eps
SPECIAL = [0.0, -0.0, 1e-45, -1e-40, 1e-38, 1e38, -1e38, 1.0, -1.0, math.inf, -math.inf, math.nan]


def _published(x: Tensor, weight: Tensor, training: bool, sign: str) -> Tensor:
    """The classes of github.com/bmistry4/nalm-division for both signs, step by step."""
    reciprocal = (x + EPS).reciprocal() if training else x.reciprocal()
    both = torch.cat((x, reciprocal), 1)
    clipped = weight.clamp(0, 1)
    if sign == "product":
        return (both[:, None] * clipped + 1 - clipped).prod(-1)
    k = torch.max(-torch.sign(both), torch.zeros_like(both)) * math.pi
    return (both.abs()[:, None] * clipped + 1 - clipped).prod(-1) * torch.cos(k @ weight.T)


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_is_the_published_layer(sign: str, dtype: torch.dtype, backend: str) -> None:
    """Training uses float32's machine epsilon in any dtype; evaluation uses none."""
    x = torch.randn(50, 3, dtype=torch.float64)
    x[:, 0] = torch.linspace(-1, 1, 50, dtype=torch.float64) * 2**-10  # where eps shows
    layer = NMRU(3, 4, sign=sign, dtype=dtype)
    with torch.no_grad():
        layer.weight.mul_(3).sub_(1)  # some lie outside
    for training in (True, False):
        layer.train(training)
        weight = layer.weight.detach().double()
        want = _published(x.to(dtype).double(), weight, training, sign)
        assert normwise_error(layer(x.to(dtype)), want) < (
            1e-12 if dtype == torch.float64 else 2e-5
        )
    other = _published(x, weight, True, sign)
    assert normwise_error(other, _published(x, weight, False, sign)) > 1e-6  # eps does show


def test_starts_as_published_and_says_its_options() -> None:
    layer = NMRU(30, 50)
    assert layer.weight.shape == (50, 60)
    assert 0.25 <= layer.weight.min() < 0.26
    assert 0.74 < layer.weight.max() <= 0.75
    assert repr(NMRU(2, 6)) == "NMRU(in_features=2, out_features=6)"
    assert "clip=False, sign='separate'" in repr(NMRU(2, 6, clip=False, sign="separate"))


@needs_library
def test_raw_operators_check_the_columns() -> None:
    with pytest.raises(RuntimeError, match="weight must have an even last dimension"):
        ops.nmru_forward(torch.rand(3, 2), torch.rand(1, 5), 0.0, True, False)
    with pytest.raises(RuntimeError, match="eps must be finite and at least the least normal"):
        ops.nmru_forward(torch.rand(3, 2), torch.rand(1, 4), -1.0, True, False)


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


@pytest.mark.parametrize("sign", SIGNS)
@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"), [(0, 3, 2), (3, 0, 2), (3, 2, 0), (0, 0, 0)]
)
def test_sizes_of_zero(sign: str, rows: int, inputs: int, outputs: int, backend: str) -> None:
    x, weight = (
        torch.rand(rows, inputs, requires_grad=True),
        torch.rand(outputs, 2 * inputs, requires_grad=True),
    )
    y = functional.nmru(x, weight, sign=sign)
    assert torch.equal(y, torch.ones(rows, outputs))
    y.sum().backward()
    assert x.grad is not None
    assert weight.grad is not None
    assert not x.grad.any()
    assert not weight.grad.any()


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


@needs_library
@pytest.mark.parametrize("sign", SIGNS)
def test_takes_the_fast_path(sign: str) -> None:
    assert "FastPath<npu::NmruLayer>" in NMRU(3, 2, sign=sign)(torch.rand(5, 3)).grad_fn.name()
