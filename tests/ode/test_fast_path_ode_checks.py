"""The time loop: what the fast path refuses, and what it gives a graph."""

from typing import Any

import pytest
import torch

from npu_kernels._operators import fast_path
from tests.conftest import needs_library
from tests.support.plain import B, D, H, K, Wrapped, changed, plain_ode

pytestmark = needs_library
ODE_CASES: list[tuple[int, Any]] = [
    (0, None), (0, 1.0), (0, torch.ones(B, D).half()), (0, torch.ones(B, D).double()),
    (0, torch.ones(B, D).as_subclass(Wrapped)), (0, torch.ones(B, D + 1)), (0, torch.ones(2, B, D)),
    (0, torch.ones(0, D)), (0, torch.ones(())), (1, None), (1, torch.ones(D)),
    (1, torch.ones(1, 1, H, D)), (1, torch.ones(0, D)), (2, torch.ones(H, D + 1)),
    (2, torch.ones(D, H)), (2, torch.ones(1, H, D)), (2, torch.ones(H, D).double()),
    (3, torch.ones(D - 1)), (3, torch.ones(1, D)), (3, torch.ones(D).double()), (4, None),
    (4, torch.ones(H, D)), (4, torch.ones(D, H - 1)), (4, torch.ones(D, H).double()), (5, [1.0]),
    (5, (1,)), (5, None), (6, 0), (6, -1), (6, 2.0), (6, True), (6, 2**64), (6, 2**64 + 2), (7, 1),
    (7, 0.0), (7, float("inf")), (7, float("nan")), (8, 0.0), (8, 1), (8, 1e39), (9, "none"),
    (9, None), (10, 1), (10, None), (11, "some"), (11, None), (12, 0), (12, None),
]  # fmt: skip


@pytest.mark.parametrize(("index", "value"), ODE_CASES)
def test_the_time_loop_refuses(index: int, value: Any) -> None:
    arguments = plain_ode()
    assert fast_path.ode(*arguments) is not NotImplemented
    assert fast_path.ode(*changed(arguments, index, value)) is NotImplemented


@pytest.mark.parametrize(("index", "value"), [
    (0, torch.ones(K - 1, D)), (0, torch.ones(1, D)), (0, torch.ones(K - 1, B, D)),
    (0, torch.ones(1, K, B, D)), (2, torch.ones(H, D)), (3, torch.ones(D)),
    (3, torch.ones(K - 1, D)), (4, torch.ones(K - 1, D, H)),
])  # fmt: skip
def test_the_time_loop_of_an_ensemble_refuses(index: int, value: Any) -> None:
    arguments = plain_ode(K)
    assert fast_path.ode(*arguments) is not NotImplemented
    assert fast_path.ode(*changed(arguments, 0, torch.ones(1, B, D))) is not NotImplemented
    assert fast_path.ode(*changed(arguments, index, value)) is NotImplemented


def test_the_time_loop_refuses_another_number_of_arguments() -> None:
    arguments = plain_ode()
    for wrong in ([], arguments[:1], arguments[:-1], [*arguments, None]):
        assert fast_path.ode(*wrong) is NotImplemented


@pytest.mark.parametrize("which", range(5))
def test_the_time_loop_has_a_graph_whatever_needs_a_gradient(which: int) -> None:
    arguments = plain_ode()
    arguments[which].requires_grad_()
    trajectory, _, _ = fast_path.ode(*arguments)
    (grad,) = torch.autograd.grad(trajectory.sum(), [arguments[which]])
    assert grad.shape == arguments[which].shape
    with torch.no_grad():
        assert fast_path.ode(*arguments)[0].grad_fn is None


@pytest.mark.parametrize("row", [(0, 0), (K - 1, B - 1)])
def test_every_trajectory_is_asked_whether_it_is_finite(row: tuple[int, int]) -> None:
    arguments = plain_ode(K)
    assert fast_path.ode(*arguments)[2] is True
    arguments[0][row][D - 1] = torch.nan
    assert fast_path.ode(*arguments)[2] is False
