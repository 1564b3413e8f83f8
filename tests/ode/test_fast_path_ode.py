"""The time loop: the fast path to the fused loop, beside the operators."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npu_kernels import ode
from tests.conftest import needs_library
from tests.ode.test_ode import LAYERS, D, make, starts
from tests.support.machine import without_fast_path

pytestmark = needs_library
SHAPES = [
    (None, (D,)), (None, (4, D)), (3, (D,)), (3, (3, D)), (3, (3, 4, D)), (3, (1, 4, D)),
    (2, (2, 9, D)),
]  # fmt: skip


def outcome(model: nn.Module, u0: Tensor, **options: Any) -> list[Tensor]:
    """What a rollout returns, and the gradients of all of it."""
    leaves = [u0.detach().clone().requires_grad_(), *model.parameters()]
    output = ode.rollout(model, leaves[0], steps=6, dt=0.05, **options)
    results = output if isinstance(output, tuple) else (output,)
    weights = [torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape) for y in results]
    return [*(y.detach() for y in results), *torch.autograd.grad(results, leaves, weights)]


def taken(model: nn.Module, u0: Tensor, **options: Any) -> bool:
    """Whether a call that records its derivative took the fast path."""
    trajectory = ode.rollout(model, u0, steps=2, dt=0.05, **options)
    assert isinstance(trajectory, Tensor)
    return trajectory.grad_fn is not None and "RolloutFastPath" in trajectory.grad_fn.name()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layer", list(LAYERS))
@pytest.mark.parametrize(("models", "shape"), SHAPES)
@pytest.mark.parametrize("method", ["euler", "rk4"])
def test_same_bits_as_the_operators(
    layer: str,
    models: int | None,
    shape: tuple[int, ...],
    method: str,
    dtype: torch.dtype,
) -> None:
    model, u0 = make(layer, models, dtype), starts(*shape, dtype=dtype)
    assert taken(model, u0, method=method)
    option_sets = [
        {"memory": memory, "return_derivatives": d}
        for memory in ("full", "checkpointed")
        for d in (False, True)
    ]
    actuals = [outcome(model, u0, method=method, **options) for options in option_sets]
    with torch.no_grad():
        inference = ode.rollout(model, u0, steps=6, dt=0.05, method=method)
    with without_fast_path():
        expected = [outcome(model, u0, method=method, **options) for options in option_sets]
    for actual, want in zip(actuals, expected, strict=True):
        assert all(
            torch.equal(a, b) and a.shape == b.shape for a, b in zip(actual, want, strict=True)
        )
    assert torch.equal(inference, expected[0][0])


def test_whole_numbers_are_numbers() -> None:
    """dt and eps may be integers, steps another integral type: the general way takes them."""
    numpy = pytest.importorskip("numpy")
    model, u0 = make(), starts(D)
    expected = ode.rollout(model, u0, steps=2, dt=1.0)
    assert torch.equal(ode.rollout(model, u0, steps=numpy.int64(2), dt=1), expected)
