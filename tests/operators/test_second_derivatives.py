"""The closed form of the NPU's second derivatives, beside the formula differentiated by torch."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from npu_kernels import NPU, functional, reference, use_backend
from tests.conftest import needs_library
from tests.support.compare import assert_equal, normwise_error

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
    leaves = [
        None if t is None else t.requires_grad_()
        for t in _operands(models, shared, imaginary, gated, positive)
    ]
    grad_y, *operands = leaves
    sources = [leaf for leaf in leaves if leaf is not None]
    options = {
        "eps": ADDED_EPS,
        "gate_gradient": "straight_through" if straight_through else "clip",
    }

    def gradients(function: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        return torch.autograd.grad(
            function(*operands, **options), sources[1:], grad_y, create_graph=True
        )

    formula = gradients(reference.npu)
    # under hooks the closed form serves every backend, also the formulas
    with use_backend(backend), saved_tensors_hooks(lambda t: t, lambda t: t):
        first = gradients(functional.npu)
        for count in range(1, len(first) + 1):
            for chosen in itertools.combinations(range(len(first)), count):
                directions = [torch.randn_like(first[n]) for n in chosen]

                def second(
                    outputs: tuple[Tensor, ...],
                    by: list[Tensor],
                    chosen: tuple[int, ...] = chosen,
                    directions: list[Tensor] = directions,
                ) -> tuple[Tensor, ...]:
                    return torch.autograd.grad(
                        [outputs[n] for n in chosen], by, directions,
                        retain_graph=True, materialize_grads=True,
                    )  # fmt: skip

                actual, expected = second(first, sources), second(formula, sources)
                for grad, want in zip(actual, expected, strict=True):
                    torch.testing.assert_close(grad, want, rtol=1e-10, atol=1e-10)
                singles = [second(first, [source])[0] for source in sources]
                assert_equal(singles, actual)


@needs_library
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_loss_of_a_derivative(dtype: torch.dtype) -> None:
    """A loss with the layer's gradient in it has the formula's gradients, and a third derivative."""
    torch.manual_seed(0)
    layer = NPU(3, 4, init_im="uniform", dtype=dtype)
    x = torch.rand(20, 3, dtype=dtype) - 0.3

    def gradients() -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        y = layer(leaf)
        (gradient,) = torch.autograd.grad(y.sum(), leaf, create_graph=True)
        loss = (gradient.sum(-1) - y.sum(-1)).square().mean()
        second = torch.autograd.grad(loss, [leaf, *layer.parameters()], create_graph=True)
        third = torch.autograd.grad(second[0].square().sum(), list(layer.parameters()))
        original = torch.autograd.grad(double_backward(), list(layer.parameters()))
        return [*second, *third, *original]

    def double_backward() -> Tensor:
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(layer(leaf).sum(), leaf, create_graph=True)
        return gradient.square().sum()

    actual = gradients()
    with use_backend("reference"):
        expected = gradients()
    for a, b in zip(actual, expected, strict=True):
        assert normwise_error(a, b) < 2000 * torch.finfo(dtype).eps


@needs_library
def test_the_closed_form_is_taken(backend: str) -> None:
    """Second derivatives under hooks take it, but not if they are differentiated again."""
    x, weight = (torch.rand(n, 3, dtype=FLOAT64).requires_grad_() for n in (5, 2))
    for create_graph in (False, True):
        with (
            saved_tensors_hooks(lambda t: t, lambda t: t),
            torch.profiler.profile(acc_events=True) as profile,
        ):
            (gradient,) = torch.autograd.grad(functional.npu(x, weight).sum(), x, create_graph=True)
            torch.autograd.grad(gradient.sum(), weight, create_graph=create_graph)
        calls = [event.name for event in profile.events()].count("npu_kernels::npu_second")
        assert calls == (backend == "cpu" and not create_graph)
