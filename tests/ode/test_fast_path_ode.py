"""The time loop: the fast path to the fused loop, beside the operators."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npu_kernels import ode, use_backend
from tests.conftest import needs_library
from tests.ode.test_ode import LAYERS, D, make, starts
from tests.support.compare import assert_equal
from tests.support.machine import without_fast_path

pytestmark = needs_library
H = 4
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


def test_strided_operands() -> None:
    model, u0 = make(models=3), starts(D, 4, 3).permute(2, 1, 0)
    for parameter in model.parameters():
        parameter.data = (
            parameter.data.mT.contiguous().mT if parameter.dim() > 2 else parameter.data
        )
    actuals = outcome(model, u0)
    assert taken(model, u0)
    with without_fast_path():
        assert_equal(actuals, outcome(model, u0))


def test_gradients_of_a_part_of_the_results() -> None:
    """Gradients of the derivatives alone, of nothing, and for some of the parameters only."""
    model, u0 = make(models=2), starts(2, D)
    _, slopes = ode.rollout(model, u0, steps=3, dt=0.1, return_derivatives=True)
    (grad,) = torch.autograd.grad(slopes.sum(), [model[0].weight_re], retain_graph=True)
    with use_backend("reference"):
        _, expected = ode.rollout(model, u0, steps=3, dt=0.1, return_derivatives=True)
        (want,) = torch.autograd.grad(expected.sum(), [model[0].weight_re])
    torch.testing.assert_close(grad, want)
    for subset in range(1, 16):
        for bit, parameter in enumerate(model.parameters()):
            parameter.requires_grad_(bool(subset >> bit & 1))
            parameter.grad = None
        ode.rollout(model, u0, steps=3, dt=0.1).sum().backward()
        assert [p.grad is not None for p in model.parameters()] == [
            bool(subset >> bit & 1) for bit in range(4)
        ]


def test_second_derivatives() -> None:
    model, u0 = (
        make("RealNPU", d=2, h=2),
        torch.tensor([0.7, 1.2], dtype=torch.float64, requires_grad=True),
    )
    assert taken(model, u0)
    assert torch.autograd.gradgradcheck(
        lambda u: ode.rollout(model, u, steps=3, dt=0.1, nonfinite="keep"), (u0,)
    )


def test_divergence_is_reported() -> None:
    model = make("RealNPU", models=3, clip=False)
    with torch.no_grad():
        model[1].weight[1] = 1e200
        model[0].weight_re[1] = 3.0
        model[0].gate[1] = 1.0
    u0 = starts(3, D).abs() + 0.5
    assert taken(model, u0, nonfinite="keep")
    with pytest.raises(ode.NonFiniteError, match="rollout: model 1 is not finite from step"):
        ode.rollout(model, u0, steps=5, dt=0.1)
    trajectory = ode.rollout(model, u0, steps=5, dt=0.1, nonfinite="keep")
    assert [bool(k.isfinite().all()) for k in trajectory] == [True, False, True]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"u0": torch.zeros(D + 1)}, ValueError, "u0 must have shape"),
        ({"u0": torch.zeros(D, dtype=torch.float64)}, TypeError, "must have one dtype"),
        ({"weight": torch.zeros(H, D)}, ValueError, r"weight must have shape \(3, 4\)"),
        ({"gate": torch.zeros(D + 1)}, ValueError, "gate must have shape"),
        ({"steps": 0}, ValueError, "steps must be an integer of at least 1"),
        ({"steps": True}, ValueError, "steps must be an integer of at least 1"),
        ({"dt": float("nan")}, ValueError, "dt must be finite and other than 0"),
        ({"eps": -1.0}, ValueError, "eps must be"),
        ({"gate_gradient": "none"}, ValueError, "gate_gradient must be one of"),
        ({"memory": "some"}, ValueError, "memory must be one of"),
    ],
)
def test_errors_are_the_general_ways(
    change: dict[str, Any], error: type[Exception], message: str
) -> None:
    weights = {
        "weight_re": torch.zeros(H, D),
        "weight_im": None,
        "gate": torch.ones(D),
        "weight": torch.zeros(D, H),
    }
    options: dict[str, Any] = {"u0": torch.ones(D), **weights, "steps": 2, "dt": 0.1, **change}
    with pytest.raises(error, match=message):
        ode.integrate(**options)


def test_whole_numbers_are_numbers() -> None:
    """dt and eps may be integers, steps another integral type: the general way takes them."""
    numpy = pytest.importorskip("numpy")
    model, u0 = make(), starts(D)
    expected = ode.rollout(model, u0, steps=2, dt=1.0)
    assert torch.equal(ode.rollout(model, u0, steps=numpy.int64(2), dt=1), expected)


def test_not_where_something_watches() -> None:
    model, u0 = make(), starts(D)
    assert taken(model, u0)
    with use_backend("reference"):
        assert not taken(model, u0)
    with torch.autograd.set_detect_anomaly(True):
        assert not taken(model, u0)
    values = torch.func.vmap(lambda u: ode.rollout(model, u, steps=2, dt=0.05, nonfinite="keep"))(
        starts(4, D)
    )
    assert values.shape == (4, 3, D)
