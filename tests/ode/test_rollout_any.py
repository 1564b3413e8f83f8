"""`ode.rollout_any`: times, and a gradient that a method does not give."""

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npu_kernels import ode

pytest.importorskip("torchdiffeq")

T = torch.tensor([0.0, 0.3, 1.0, 2.5], dtype=torch.float64)


class Decay(nn.Module):
    """``u' = -a u``."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.tensor(0.7, dtype=torch.float64))

    def forward(self, u: Tensor) -> Tensor:
        return -self.a * u


@pytest.mark.parametrize("method", [None, "kvaerno5"])
@pytest.mark.parametrize("begin", [0.0, 1.0, 3.0])
def test_times(method: str | None, begin: float) -> None:
    """At irregular times from any first one on, rising or falling, with gradients of all."""
    model, u0 = Decay(), torch.tensor([[2.0], [0.5]], dtype=torch.float64, requires_grad=True)
    sign = -1 if begin == 3 else 1
    t = (begin + sign * T).requires_grad_()
    path = ode.rollout_any(model, u0, t=t, method=method, rtol=1e-8, atol=1e-10)
    exact = u0.unsqueeze(-2) * (-model.a * (t - t[0])).exp().unsqueeze(-1)
    torch.testing.assert_close(path, exact, rtol=1e-6, atol=1e-8)
    leaves = [u0, model.a, t]
    ours = torch.autograd.grad(path.square().sum(), leaves)
    for gradient, true in zip(ours, torch.autograd.grad(exact.square().sum(), leaves), strict=True):
        torch.testing.assert_close(gradient, true, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("method", ["dopri5", "rk4_38", "kvaerno5"])
def test_times_that_need_more_digits_than_states(method: str) -> None:
    t = 1e6 + torch.tensor([0.0, 0.01, 0.02], dtype=torch.float64)
    path = ode.rollout_any(lambda u: -u, torch.ones(1), t=t, method=method)
    assert path.dtype == torch.float32
    torch.testing.assert_close(path[:, 0].double(), (t[0] - t).exp(), rtol=0, atol=1e-6)


def test_a_fixed_step_goes_from_each_time_to_the_next() -> None:
    path = ode.rollout_any(Decay(), torch.ones(1).double(), t=T, method="euler").detach()
    torch.testing.assert_close(path[1:, 0], (1 - 0.7 * T.diff()).cumprod(0))


def test_a_lost_gradient_is_named() -> None:
    """Of u0, of a module, of what a function refers to; nothing is said where none is asked for."""
    lost: dict[str, Any] = {"t": T, "method": "scipy_solver", "options": {"solver": "LSODA"}}
    u0, model = torch.ones(1).double(), Decay()
    said = "rollout_any: method 'scipy_solver' gives a trajectory without a gradient; take"
    with pytest.warns(UserWarning, match=said):
        path = ode.rollout_any(model, u0, **lost)
    assert not path.requires_grad
    with pytest.warns(UserWarning, match=said):
        ode.rollout_any(lambda u: -model.a * u, u0, **lost)
    with pytest.warns(UserWarning, match=said):
        ode.rollout_any(lambda u: -u, u0.clone().requires_grad_(), **lost)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ode.rollout_any(lambda u: -u, u0, **lost)
        ode.rollout_any(lambda u: -u, u0, t=T)
        with torch.no_grad():
            ode.rollout_any(model, u0, **lost)
