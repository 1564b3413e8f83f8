"""`ode.fit` of stiff equations: implicit steps where explicit ones do not follow a trajectory."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from npu_kernels import ode
from tests.support.compare import report_of
from tests.support.time_series import T, equations_of, known, model, noise, numbers, predators

linalg = pytest.importorskip("scipy.linalg", reason="scipy is not installed")
pytest.importorskip("scipy.optimize", reason="scipy is not installed")


def robertson() -> tuple[nn.Sequential, Tensor, Tensor]:
    """Return Robertson's reaction, first states and times."""
    rates = [[-0.04, 1e4, 0], [0.04, -1e4, -3e7], [0, 0, 3e7]]
    model = equations_of([[1, 0, 0], [0, 1, 1], [0, 2, 0]], rates, fixed=True)
    return model, numbers(1, 0, 0), torch.cat([numbers(0), torch.logspace(-2, 3, 15).double()])


def oregonator() -> tuple[nn.Sequential, Tensor, Tensor]:
    """Return the Oregonator of Field and Noyes in Tyson's scaling, first states and times."""
    eps, small, q = 0.04, 4e-4, 8e-4
    model = equations_of(
        [[0, 1, 0], [1, 1, 0], [1, 0, 0], [2, 0, 0], [0, 0, 1]],
        [
            [q / eps, -1 / eps, 1 / eps, -1 / eps, 0],
            [-q / small, -1 / small, 0, 0, 1 / small],
            [0, 0, 1, 0, -1],
        ],
        fixed=True,
    )
    return model, numbers(0.5, 0.5, 0.2), torch.linspace(0, 4, 25).double()


@pytest.mark.parametrize("system", [robertson, oregonator])
def test_a_stiff_equation_is_fitted_from_the_exact_one(system) -> None:  # type: ignore[no-untyped-def]
    model, u0, t = system()
    u = ode.rollout(model, u0, t=t, method="kvaerno5", rtol=1e-10, atol=1e-14).detach()
    result = ode.fit(model, t, u, u0=u0, init="model", simplify=False)
    assert result.method == "kvaerno5"
    assert result.nrmse < 1e-5
    weight = model[1].weight.detach()
    torch.testing.assert_close(result.model[1].weight, weight, rtol=2e-3, atol=0)
    between = (t[1:] + t[:-1]) / 2
    at = numbers(0, *between.tolist())
    true = ode.rollout(model, u0, t=at, method="kvaerno5", rtol=1e-10, atol=1e-14).detach()
    off = (result.predict(between) - true[1:]).abs() / u.abs().amax(0)
    assert float(off.max()) < 1e-4
    assert "implicit steps" in report_of(result)


def test_stiff_equations_by_explicit_steps() -> None:
    """Many steps solve an equation that is not very stiff; a trajectory that none solves has no equation."""
    model, u0, t = oregonator()
    u = ode.rollout(model, u0, t=t, method="kvaerno5", rtol=1e-10, atol=1e-14).detach()
    options: dict[str, Any] = {"init": "model", "simplify": False, "method": "rk4"}
    assert ode.fit(model, t, u, u0=u0, **options).nrmse < 1e-5
    model, u0, t = robertson()
    u = ode.rollout(model, u0, t=t, method="kvaerno5", rtol=1e-10, atol=1e-14).detach()
    with pytest.raises(RuntimeError, match="no initialisation has a finite trajectory"):
        ode.fit(model, t, u, u0=u0, **options)


@pytest.mark.parametrize("method", ["auto", "rk4"])
@pytest.mark.parametrize("w", [20.0, 80.0])
def test_oscillations_between_the_samples(w: float, method: str) -> None:
    """Several cycles between two samples: as many steps as they need, and intervals of the truth."""
    t = torch.arange(12, dtype=torch.float64)
    fall, turn = torch.exp(-0.05 * t), w * t
    u = torch.stack([turn.cos(), -0.05 * turn.cos() - w * turn.sin()], 1) * fall.unsqueeze(1)
    u = noise(u, 1e-3)
    model = equations_of([[1, 0], [0, 1]], [[0, 1], [-(w**2) - 0.0025, -0.1]], fixed=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = ode.fit(model, t, u, names=["x", "v"], init="model", simplify=False, method=method)
    assert result.nrmse < 2e-3
    torch.testing.assert_close(result.predict(t), u, rtol=0, atol=4e-3 * w)
    intervals = {interval.name: interval for interval in result.confidence_intervals(0.999)}
    for name, truth in (
        ("coefficient of v in x'", 1.0),
        ("coefficient of x in v'", -(w**2) - 0.0025),
        ("coefficient of v in v'", -0.1),
    ):
        assert intervals[name].low < truth < intervals[name].high


def test_explicit_steps_stay_where_they_follow_the_equation() -> None:
    """Nothing changes for an equation that is not stiff, and implicit steps give it too."""
    guess, u = known((1.0, -0.5, 0.4, -1.0)), predators(T)
    results = {
        method: ode.fit(guess, T, u, init="model", names=["x", "y"], method=method)
        for method in ("auto", "rk4", "kvaerno5")
    }
    assert [result.method for result in results.values()] == ["rk4", "rk4", "kvaerno5"]
    assert results["auto"].estimates == results["rk4"].estimates
    for result in results.values():
        assert str(result.equation) == "x' = -0.6*x*y + 1.2*x\ny' = 0.5*x*y - 0.8*y"
    implicit = results["kvaerno5"].predict(T, u0=[1.0, 2.5])
    torch.testing.assert_close(implicit, predators(T, (1.0, 2.5)), rtol=1e-5, atol=1e-5)


def relaxation(rate: float, gain: float, decay: float, t: Any, share: float, seed: int) -> Any:
    """Return x' = -rate x + gain y, y' = -decay y, from (0, 1): exact, and with errors of a share.

    The states are those of the matrix exponential.
    """
    matrix = np.array([[-rate, gain], [0, -decay]])
    u = np.array([linalg.expm(matrix * time) @ [0, 1] for time in t])
    errors = np.random.default_rng(seed).standard_normal(u.shape)
    return matrix, u + share * np.sqrt((u**2).mean(0)) * errors


@pytest.mark.parametrize("seed", [1, 2, 6])
def test_a_stiff_linear_equation_is_found(seed: int) -> None:
    """While y is nearly 1, products with powers of it are as good; later they are not as stiff."""
    t = np.r_[np.linspace(0, 0.05, 12), np.linspace(0.1, 6, 20)]
    matrix, u = relaxation(200, 200, 0.5, t, 0.01, seed)
    searched = ode.fit(model(2, 4, 16), t, u)
    true = ode.fit(equations_of(np.eye(2), matrix), t, u, init="model")
    assert searched.bic < true.bic + 1
    later = np.linspace(0, 6, 30)
    right = np.array([linalg.expm(matrix * time) @ [0, 0.1] for time in later])
    predicted = searched.predict(later, u0=[0, 0.1])
    assert (np.abs(predicted - right) < 0.1 * right.max(0)).all()


def test_explicit_steps_do_not_bound_a_rate() -> None:
    """Runge and Kutta's steps diverge for rates above 2.785 of their number in a time unit."""
    t = np.r_[np.linspace(0, 0.02, 10), np.linspace(0.3, 6, 20)]
    matrix, u = relaxation(290, 160, 0.3, t, 0.02, 5)
    searched = ode.fit(model(2, 4, 16), t, u)
    true = ode.fit(equations_of(np.eye(2), matrix), t, u, init="model")
    assert searched.bic < true.bic + 1
    rate = float(searched.model[1].weight.detach().min())
    assert rate == pytest.approx(-290, rel=0.1)
