"""Trajectories with an estimate of their error, and what is said of those that grow as no solution
does."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npu_kernels import NAU, RealNPU, ode, use_backend
from tests.ode.test_ode import away_from_zero, make
from tests.support.compare import assert_equal
from tests.support.time_series import equations_of

TIMES = torch.arange(11, dtype=torch.float64) * 0.1


def linear(
    *rates: float, models: int | None = None, dtype: torch.dtype = torch.float64
) -> nn.Sequential:
    """``u_d' = rates[d] u_d``."""
    d = len(rates)
    options: dict[str, Any] = {"num_models": models, "dtype": dtype}
    model = nn.Sequential(RealNPU(d, d, **options), NAU(d, d, clip=False, **options))
    with torch.no_grad():
        model[0].weight_re.copy_(torch.eye(d))
        model[0].gate.fill_(1)
        model[1].weight.copy_(torch.diag(torch.tensor(rates)))
    return model


@pytest.mark.parametrize("method", ode.METHODS)
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_the_estimate_is_near_the_true_error(method: str, backend: str) -> None:
    with use_backend(backend):
        path, error = ode.rollout(
            linear(-2.0, 1.0),
            torch.ones(2).double(),
            steps=10,
            dt=0.1,
            method=method,
            return_error=True,
        )
    true = (path - torch.stack([torch.exp(-2 * TIMES), torch.exp(TIMES)], -1)).abs()
    assert not error.requires_grad
    assert error[0].tolist() == [0, 0]
    assert ((error[1:] / true[1:] > 0.8) & (error[1:] / true[1:] < 1.3)).all()


@pytest.mark.parametrize(
    ("models", "starts"), [(None, (3,)), (None, (2, 3)), (2, (2, 3)), (2, (2, 4, 3))]
)
def test_it_changes_nothing_else(models: int | None, starts: tuple[int, ...]) -> None:
    """Trajectory and gradients have the same bits; `derivatives` come before the estimate."""
    model, u0 = make(models=models), away_from_zero(*starts)
    options: dict[str, Any] = {"steps": 5, "dt": 0.02, "method": "rk4", "return_derivatives": True}
    plain = ode.rollout(model, u0, **options)
    results = ode.rollout(model, u0, return_error=True, **options)
    assert len(results) == 3
    assert results[2].shape == results[0].shape

    def gradients(outputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return torch.autograd.grad([t.sum() for t in outputs[:2]], list(model.parameters()))

    assert_equal((*results[:2], *gradients(results)), (*plain, *gradients(plain)))


@pytest.mark.parametrize(
    ("method", "largest"), [("euler", "0.002"), ("midpoint", "0.002"), ("rk4", "0.0028")]
)
def test_a_stiff_model_is_named(method: str, largest: str) -> None:
    model = linear(-1.0, -1.0, models=3)
    with torch.no_grad():
        model[1].weight[1, 0, 0] = -1000
    u0, options = torch.ones(3, 2).double(), {"dt": 0.01, "method": method, "return_error": True}
    message = (
        rf"^rollout: model 1 grows as no solution does: at step \d+ its estimated error is .* the model is stiff "
        rf"\(an eigenvalue of its Jacobian there is -1e\+03\), and {method} needs steps of at most {largest}, got 0.01"
    )
    for steps in (10, 400):  # finite to the end, and not
        with pytest.raises(ode.InaccurateError, match=message) as caught:
            ode.rollout(model, u0, steps=steps, **options)  # type: ignore[arg-type]
        assert caught.value.first.shape == (3,)
        assert caught.value.first[[0, 2]].tolist() == [-1, -1]
        path, error = ode.rollout(model, u0, steps=steps, nonfinite="keep", **options)  # type: ignore[arg-type]
        assert (error[[0, 2]] < 0.01).all()
        assert not (error[1, -1, 0] < path[1, -1, 0].abs() / 2)
    ode.rollout(model, u0, steps=1000, dt=0.001, method=method, return_error=True)


def test_backwards_in_time_growth_is_damped() -> None:
    with pytest.raises(
        ode.InaccurateError, match=r"an eigenvalue of its Jacobian there is 500\), and rk4 needs"
    ):
        ode.rollout(
            linear(500.0),
            torch.ones(1).double(),
            steps=100,
            dt=-0.02,
            method="rk4",
            return_error=True,
        )


def test_steps_over_a_pole_are_not_called_stiff() -> None:
    """u' = u^2 from 1 has no solution beyond t = 1."""
    model = equations_of([[2.0]], [[1.0]])
    with pytest.raises(
        ode.InaccurateError, match=r"^rollout: the trajectory grows .* nonfinite="
    ) as caught:
        ode.rollout(
            model, torch.ones(1).double(), steps=12, dt=0.1, method="rk4", return_error=True
        )
    assert "stiff" not in str(caught.value)


def test_a_state_of_zeros_is_accurate() -> None:
    path, error = ode.rollout(
        linear(-1.0), torch.zeros(1).double(), steps=3, dt=0.1, return_error=True
    )
    assert error.max() < 1e-15
    assert path.shape == error.shape
