"""The closed form of the NPU's second derivatives, beside the formula differentiated by torch."""

import itertools

import pytest
import torch
from torch import Tensor

from npu_kernels import NPU, functional, reference, use_backend
from npu_kernels._backends import fast_path
from npu_kernels._operators.second_derivatives import npu_second
from tests.conftest import needs_library
from tests.support.compare import normwise_error

ADDED_EPS = 1e-3
FLOAT64 = torch.float64


def _operands(
    models: int | None, shared: bool, imaginary: bool, gated: bool, positive: bool
) -> list[Tensor | None]:
    """grad_y, x, weight_re, weight_im and gate; an input is 0, a gate outside of [0, 1]."""
    torch.manual_seed(0)
    lead = () if models is None else (models,)
    x = torch.randn(*(() if shared else lead), 7, 4, dtype=FLOAT64)
    x = x.abs() if positive else x
    x.view(-1)[0] = 0
    weight_re, weight_im = torch.randn(2, *lead, 3, 4, dtype=FLOAT64)
    gate = torch.rand(*lead, 4, dtype=FLOAT64)
    gate[..., 1], gate[..., 2] = -0.1, 1.2
    grad_y = torch.randn(*lead, 7, 3, dtype=FLOAT64)
    return [grad_y, x, weight_re, weight_im if imaginary else None, gate if gated else None]


@pytest.mark.parametrize("backend", ["reference", pytest.param("cpu", marks=needs_library)])
@pytest.mark.parametrize("straight_through", [False, True])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("imaginary", [False, True])
@pytest.mark.parametrize(("models", "shared"), [(None, False), (3, False), (3, True)])
def test_closed_form(
    models: int | None, shared: bool, imaginary: bool, gated: bool, positive: bool,
    straight_through: bool, backend: str,
) -> None:  # fmt: skip
    """Every subset of the gradients that come, and each gradient single."""
    operands = _operands(models, shared, imaginary, gated, positive)
    leaves = [None if t is None else t.clone().requires_grad_() for t in operands]
    first = reference.npu_backward(*leaves, None, None, ADDED_EPS, straight_through)  # type: ignore[arg-type,call-arg]
    _, x, weight_re, weight_im, gate = operands
    g = None if gate is None else gate.clamp(0, 1)
    p, q, *_ = reference.exponents(x, weight_re, weight_im, g, ADDED_EPS)  # type: ignore[arg-type]
    saved = p.exp() * q.cos(), p.exp() * q.sin()
    for flags in itertools.product((False, True), repeat=4):
        directions = [
            torch.randn_like(grad) if flag and leaf is not None else None
            for flag, grad, leaf in zip(flags, first, leaves[1:], strict=True)
        ]
        if all(grad is None for grad in directions):
            continue
        terms = [
            (grad * v).sum() for grad, v in zip(first, directions, strict=True) if v is not None
        ]
        sources = [leaf for leaf in leaves if leaf is not None]
        expected = iter(
            torch.autograd.grad(sum(terms), sources, retain_graph=True, materialize_grads=True)  # type: ignore[arg-type]
        )
        context = *saved, ADDED_EPS, straight_through, directions

        def second(
            needed: list[bool], context: tuple[object, ...] = context
        ) -> list[Tensor | None]:
            with use_backend(backend):
                return npu_second(*operands, *context, needed)  # type: ignore[arg-type,call-arg]

        actual = second([True] * 5)
        for n, leaf in enumerate(leaves):
            if leaf is None:
                continue
            wanted_grad, grad = next(expected), actual[n]
            assert grad is not None
            assert grad.shape == wanted_grad.shape
            torch.testing.assert_close(grad, wanted_grad, rtol=1e-10, atol=1e-10)
            single = second([n == index for index in range(5)])
            assert [index for index, of_one in enumerate(single) if of_one is not None] == [n]
            assert torch.equal(single[n], grad)  # type: ignore[arg-type]


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_loss_of_a_derivative(dtype: torch.dtype) -> None:
    """A loss with the layer's slope in it has the formula's gradients, and a third derivative."""
    torch.manual_seed(0)
    layer = NPU(3, 4, init_im="uniform", dtype=dtype)
    x = torch.rand(20, 3, dtype=dtype) - 0.3

    def gradients() -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        y = layer(leaf)
        (slope,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
        loss = (slope.sum(-1) - y.sum(-1)).square().mean()
        second = torch.autograd.grad(loss, [leaf, *layer.parameters()], create_graph=True)
        third = torch.autograd.grad(second[0].square().sum(), list(layer.parameters()))
        original = torch.autograd.grad(gradient_of_slope(), list(layer.parameters()))
        return [*second, *third, *original]

    def gradient_of_slope() -> Tensor:
        leaf = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(layer(leaf).sum(), leaf, create_graph=True)
        return slope.square().sum()

    actual = gradients()
    with use_backend("reference"):
        expected = gradients()
    for a, b in zip(actual, expected, strict=True):
        assert normwise_error(a, b) < 2000 * torch.finfo(dtype).eps


@needs_library
def test_the_closed_form_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Second derivatives take it, but not if they are differentiated again."""
    calls = list[torch.dtype]()
    original = npu_second

    def counted(grad_y: Tensor, *context: object) -> list[Tensor | None]:
        calls.append(grad_y.dtype)
        return original(grad_y, *context)  # type: ignore[arg-type]

    from npu_kernels._operators import autograd

    monkeypatch.setattr(autograd._DERIVATIVES["npu"], "closed_form", counted)
    monkeypatch.setattr(fast_path, "npu", None)  # which has the same in C++
    for create_graph in (False, True):
        x = (torch.rand(5, 3) + 0.5).to(FLOAT64).requires_grad_()
        weight = torch.rand(2, 3).to(FLOAT64).requires_grad_()
        (slope,) = torch.autograd.grad(functional.npu(x, weight).sum(), x, create_graph=True)
        torch.autograd.grad(slope.sum(), weight, create_graph=create_graph)
    assert calls == [FLOAT64]
