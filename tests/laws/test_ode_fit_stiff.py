"""`ode.fit` of stiff laws: implicit steps where explicit ones do not follow a trajectory."""

import math
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npu_kernels import NAU, RealNPU, ode
from npu_kernels._laws.series.data import read
from npu_kernels._laws.series.job import Job
from npu_kernels._laws.series.known import read_known
from npu_kernels._laws.series.laws import Law
from npu_kernels._laws.series.search import NoLawError, Search
from npu_kernels._laws.series.sensitivity import FIXED, IMPLICIT, Shape, Stretches, Trajectories
from tests.support.time_series import T, known, noise, numbers, predators

pytest.importorskip("scipy.optimize", reason="scipy is not installed")


def law(exponents: list[list[float]], coefficients: list[list[float]]) -> nn.Sequential:
    """Return a law of known exponents."""
    terms, states = len(exponents), len(exponents[0])
    model = nn.Sequential(RealNPU(states, terms), NAU(terms, states, clip=False)).double()
    with torch.no_grad():
        model[0].weight_re.copy_(torch.tensor(exponents))  # type: ignore[operator]
        model[0].gate.fill_(1)  # type: ignore[operator]
        model[1].weight.copy_(torch.tensor(coefficients))  # type: ignore[operator]
    model[0].requires_grad_(False)
    return model


def robertson() -> tuple[nn.Sequential, Tensor, Tensor]:
    """Return Robertson's reaction, first states and times."""
    model = law(
        [[1, 0, 0], [0, 1, 1], [0, 2, 0]], [[-0.04, 1e4, 0], [0.04, -1e4, -3e7], [0, 0, 3e7]]
    )
    return model, numbers(1, 0, 0), torch.cat([numbers(0), torch.logspace(-2, 3, 15).double()])


def oregonator() -> tuple[nn.Sequential, Tensor, Tensor]:
    """Return the Oregonator of Field and Noyes in Tyson's scaling, first states and times."""
    eps, small, q = 0.04, 4e-4, 8e-4
    model = law(
        [[0, 1, 0], [1, 1, 0], [1, 0, 0], [2, 0, 0], [0, 0, 1]],
        [
            [q / eps, -1 / eps, 1 / eps, -1 / eps, 0],
            [-q / small, -1 / small, 0, 0, 1 / small],
            [0, 0, 1, 0, -1],
        ],
    )
    return model, numbers(0.5, 0.5, 0.2), torch.linspace(0, 4, 25).double()


@pytest.mark.parametrize("system", [robertson, oregonator])
def test_a_stiff_law_is_fitted_from_the_exact_one(system) -> None:  # type: ignore[no-untyped-def]
    model, u0, t = system()
    u = ode.rollout(model, u0, t=t, method="kvaerno5", rtol=1e-10, atol=1e-14).detach()
    result = ode.fit(model, t, u, u0=u0, start="model", simplify=False)
    assert result.method == "kvaerno5"
    assert result.score < 1e-5
    weight = model[1].weight.detach()
    torch.testing.assert_close(result.model[1].weight, weight, rtol=2e-3, atol=0)
    between = (t[1:] + t[:-1]) / 2
    at = numbers(0, *between.tolist())
    true = ode.rollout(model, u0, t=at, method="kvaerno5", rtol=1e-10, atol=1e-14).detach()
    off = (result.predict(between) - true[1:]).abs() / u.abs().amax(0)
    assert float(off.max()) < 1e-4
    assert "implicit steps" in result.report()


def test_stiff_laws_by_explicit_steps() -> None:
    """Many steps solve a law that is not very stiff; a trajectory that none solves is no law."""
    model, u0, t = oregonator()
    u = ode.rollout(model, u0, t=t, method="kvaerno5", rtol=1e-10, atol=1e-14).detach()
    options: dict[str, Any] = {"start": "model", "simplify": False, "method": "rk4"}
    assert ode.fit(model, t, u, u0=u0, **options).score < 1e-5
    model, u0, t = robertson()
    u = ode.rollout(model, u0, t=t, method="kvaerno5", rtol=1e-10, atol=1e-14).detach()
    with pytest.raises(RuntimeError, match="no start has a finite trajectory"):
        ode.fit(model, t, u, u0=u0, **options)


@pytest.mark.parametrize("method", ["auto", "rk4"])
@pytest.mark.parametrize("w", [20.0, 80.0])
def test_oscillations_between_the_samples(w: float, method: str) -> None:
    """Several cycles between two samples: as many steps as they need, and intervals of the truth."""
    t = torch.arange(12, dtype=torch.float64)
    fall, turn = torch.exp(-0.05 * t), w * t
    u = torch.stack([turn.cos(), -0.05 * turn.cos() - w * turn.sin()], 1) * fall.unsqueeze(1)
    u = noise(u, 1e-3)
    model = law([[1, 0], [0, 1]], [[0, 1], [-(w**2) - 0.0025, -0.1]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = ode.fit(
            model, t, u, names=["x", "v"], start="model", simplify=False, method=method
        )
    assert result.score < 2e-3
    torch.testing.assert_close(result.predict(t), u, rtol=0, atol=4e-3 * w)
    intervals = {interval.name: interval for interval in result.intervals(0.999)}
    for name, truth in (
        ("coefficient of v in x'", 1.0),
        ("coefficient of x in v'", -(w**2) - 0.0025),
        ("coefficient of v in v'", -0.1),
    ):
        assert intervals[name].low < truth < intervals[name].high


def test_explicit_steps_stay_where_they_follow_the_law() -> None:
    """Nothing changes for a law that is not stiff, and implicit steps give it too."""
    guess, u = known((1.0, -0.5, 0.4, -1.0)), predators(T)
    results = {
        method: ode.fit(guess, T, u, start="model", names=["x", "y"], method=method)
        for method in ("auto", "rk4", "kvaerno5")
    }
    assert [result.method for result in results.values()] == ["rk4", "rk4", "kvaerno5"]
    assert torch.equal(results["auto"].law.x, results["rk4"].law.x)
    for result in results.values():
        assert str(result.equation) == "x' = -0.6*x*y + 1.2*x\ny' = 0.5*x*y - 0.8*y"
    implicit = results["kvaerno5"].predict(T, u0=[1.0, 2.5])
    torch.testing.assert_close(implicit, predators(T, (1.0, 2.5)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("times", [[0.0, 0.3, 1.0, 1.0, 3.0], [0.0, 0.5, 1.0, 1.5, 2.0]])
def test_jacobians_of_implicit_steps(times: list[float]) -> None:
    """Times of one series, of two, at equal distances, and one that is repeated."""
    generator = torch.Generator().manual_seed(0)
    t, u = numbers(*times), torch.rand(5, 2, generator=generator, dtype=torch.float64) + 0.5
    for series in ([t], [t, t[:4] + 1]):
        tables = [u[: len(part)] for part in series]
        data = read(series, tables, "fit", None, None, None, 2).scaled()
        shape = Shape(3, 2, len(series))
        x = 0.5 * torch.rand(2, shape.size, generator=generator, dtype=torch.float64) + 0.2
        for problem, explicit in (
            (Trajectories(data, shape, 32, method=IMPLICIT), Trajectories(data, shape, 64)),
            (
                Stretches(data, shape, 32, data.values + 1, method=IMPLICIT),
                Stretches(data, shape, 64, data.values + 1),
            ),
        ):
            r, jacobian = problem.jacobian(x)
            torch.testing.assert_close(r, problem.residual(x))
            r_explicit, of_explicit = explicit.jacobian(x)
            torch.testing.assert_close(r, r_explicit, rtol=1e-6, atol=1e-7)
            torch.testing.assert_close(jacobian, of_explicit, rtol=1e-6, atol=1e-6)


def test_a_method_that_is_none() -> None:
    for method in ("euler", None):
        with pytest.raises(ValueError, match=r"fit: method must be 'auto', .* got"):
            ode.fit(known((1.0, -0.5, 0.4, -1.0)), T, predators(T), method=method)  # type: ignore[arg-type]


def test_laws_that_finer_steps_make_infinite(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them is a result, and a law that was there before stays."""
    u = noise(1 / (1 + 0.5 * T), 0.01).unsqueeze(1)
    data = read(T, u, "fit", None, None, None, 1).scaled()
    rules = read_known(None, False, None, None, None, "any", data.names, 2, True)
    search = Search(data, rules, 2, 4, 0, Job("test", 1, {}), FIXED)
    x, free = search.drawn()
    problem = search.problem(FIXED)

    residual = Trajectories.residual

    def of_coarse_steps(of: Trajectories, x: Tensor) -> Tensor:
        return residual(of, x) * (1 if of.steps == problem.steps else math.inf)

    monkeypatch.setattr(Trajectories, "residual", of_coarse_steps)
    assert search.leading(problem, x, free) == []
    with pytest.raises(NoLawError, match="no start has a finite trajectory through the series"):
        search.best(x, free, 4, loosen=True, both=False)
    numbers_of_law = numbers(2, 0, -3 * float(data.size), 0)
    law = Law(problem, torch.cat([numbers_of_law, data.values[0, 0]]), free[0]).refitted()
    assert math.isfinite(law.criterion())
    assert search.improved((law, law), 4, True, {})[0] is law
