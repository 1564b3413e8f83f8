"""`ode.fit`: the search for the equation with the best criterion."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from npu_kernels import ode
from tests.support.time_series import T, equations_of, model, noise, solution

pytest.importorskip("scipy.optimize", reason="scipy is not installed")
pytest.importorskip("scipy.stats")


def hunters(seed: int) -> tuple[Tensor, Tensor]:
    """Lotka and Volterra's law at 40 times with errors of 5 %."""
    t = torch.linspace(0, 12, 40, dtype=torch.float64)
    u = solution([[1, 0], [1, 1], [0, 1]], [[1.3, -0.7, 0], [0, 0.35, -0.9]], [2, 1], t)
    return t, noise(u, 0.05, seed)


def test_no_alternative_is_better_than_the_equation() -> None:
    t = torch.linspace(0, 6, 12, dtype=torch.float64)
    c = noise(solution([[1.5]], [[-0.5]], [1.0], t), 0.05, 11)
    result = ode.fit(model(1, 2, 12), t, c, names=["c"])
    assert all(other.bic > result.bic - 0.1 for other in result.alternatives())


@pytest.mark.parametrize("seed", range(2))
def test_more_starts_end_no_higher(seed: int) -> None:
    t = torch.linspace(0, 6, 12, dtype=torch.float64)
    c = noise(solution([[1.5]], [[-0.5]], [1.0], t), 0.05, seed)
    fewer, twice = (ode.fit(model(1, 2, starts), t, c).bic for starts in (12, 24))
    assert twice <= fewer


def test_intervals_of_an_equation_that_was_searched_contain_the_truth() -> None:
    """`python -m benchmarks.time_series --methods search --seeds 200` has more draws."""
    inside = total = 0
    for seed in range(8):
        t = torch.linspace(0, 6, 25, dtype=torch.float64)
        u = noise(solution([[1], [2]], [[1.5, -0.5]], [0.4], t), 0.02, seed)
        result = ode.fit(model(1, 2, 12), t, u, names=["x"])
        powers = result.weights()[0]
        if sorted(powers.flatten().tolist()) != [1, 2]:
            continue
        true = {"coefficient of x in x'": 1.5, "coefficient of x**2 in x'": -0.5}
        for one in result.confidence_intervals():
            if one.name in true:
                inside += one.low <= true[one.name] <= one.high
                total += 1
    assert total >= 8
    assert inside >= 0.8 * total


@pytest.mark.parametrize("method", ["rk4", "auto"])
@pytest.mark.parametrize(("power", "rate"), [(2, 0.2), (-1, -1.0)])
def test_an_equation_with_a_pole_is_none(power: float, rate: float, method: str) -> None:
    """However small the residuals are of steps that jump over it."""
    equations = equations_of([[power]], [[rate]]).requires_grad_(False)
    u = solution([[1.0]], [[-0.5]], [2.0], T)
    with pytest.raises(RuntimeError, match="no initialisation has a finite trajectory"):
        ode.fit(equations, T, u, u0=[2.0], init="model", simplify=False, method=method)


LORENZ_POWERS = [[0, 1, 0], [1, 0, 0], [1, 0, 1], [0, 0, 1], [1, 1, 0]]
LORENZ_RATES = [[10, -10, 0, 0, 0], [-1, 99.96, -1, 0, 0], [0, 0, 0, -8 / 3, 1]]


def lorenz() -> tuple[Tensor, Tensor]:
    """Lorenz's law, whose neighbouring trajectories part fast."""
    t = torch.linspace(0, 4.7, 70, dtype=torch.float64)
    return t, solution(LORENZ_POWERS, LORENZ_RATES, [10, 20, 30], t)


def test_numbers_that_were_fitted_with_coarse_steps() -> None:
    start = equations_of(LORENZ_POWERS, 1.02 * torch.tensor(LORENZ_RATES), fixed=True)
    equations = ode.fit(start, *lorenz(), init="model", simplify=False)
    assert (equations.weights()[1][0] - torch.tensor(LORENZ_RATES)).abs().max() < 1e-3


def test_the_true_form_where_its_criterion_is_better() -> None:
    t, u = hunters(0)
    result = ode.fit(model(2, 3, 12), t, u, names=["x", "y"])
    powers, rates = (part[0] for part in result.weights())
    assert sorted(powers.tolist()) == [[0, 1], [1, 0], [1, 1]]
    assert int((rates != 0).sum()) == 4


def test_a_coefficient_and_an_exponent_that_only_go_together() -> None:
    t = torch.linspace(0, 13.4, 68, dtype=torch.float64)
    rates = [[1, -1, 0], [0, 0.62, -1.81]]
    u = noise(solution([[1, 0], [1, 1], [0, 1]], rates, [10.8, 1.44], t), 0.05, 10)
    result = ode.fit(model(2, 3, 12), t, u, names=["x", "y"])
    powers, coefficients = result.weights()
    assert sorted(powers[0].tolist()) == [[0, 1], [1, 0], [1, 1]]
    assert int((coefficients != 0).sum()) == 4


def test_whole_powers_up_to_the_fifth_of_one_state() -> None:
    """A series of system 16 of ODEBench, whose free exponents would fit nearly as well."""
    t = torch.linspace(0, 10, 150, dtype=torch.float64)
    u = solution([[1], [3], [5]], [[0.1, 0.04, -0.001]], [0.94], t)
    result = ode.fit(model(1, 3, 12), t, u)
    exponents, _ = result.weights()
    assert sorted(exponents.flatten().tolist()) == [1, 3, 5]


COMPETITION = [[1, 0], [2, 0], [1, 1], [0, 1], [0, 2]], [[3, -1, -2, 0, 0], [0, 0, -1, 2, -1]]


def competition() -> tuple[Tensor, Tensor]:
    """System 26 of ODEBench, which falls much within the first of its distances in time."""
    t = torch.linspace(0, 10, 150, dtype=torch.float64)
    return t, solution(*COMPETITION, [5, 4.3], t)


def test_an_equation_that_only_sets_along_a_trajectory_show() -> None:
    """The smoothing spline is too rough where the states fall: all of its sets are wrong."""
    result = ode.fit(model(2, 6, 12), *competition())
    powers, rates = (part[0] for part in result.weights())
    assert sorted(powers.tolist()) == sorted(COMPETITION[0])
    assert int((rates != 0).sum()) == 6


@pytest.mark.parametrize("seed", [2, 6])
def test_populations_that_compete_in_pairs(seed: int) -> None:
    """Sets of products of degree 2 at most are tried wherever the search goes on."""
    numpy = pytest.importorskip("numpy")
    powers = [
        [1, 0, 0],
        [2, 0, 0],
        [1, 0, 1],
        [0, 1, 0],
        [0, 2, 0],
        [0, 1, 1],
        [0, 0, 1],
        [0, 0, 2],
    ]
    rates = [[1, -1, -1, 0, 0, 0, 0, 0], [0, 0, 0, 1, -1, 0.1, 0, 0], [0, 0, 0, 0, 0, 0, 1, -1]]
    draw, t = numpy.random.default_rng(seed), torch.linspace(0, 8, 25, dtype=torch.float64)
    series = []
    for _ in range(3):
        u = solution(powers, rates, draw.dirichlet(numpy.ones(3)).tolist(), t)
        series.append(u + 0.01 * torch.from_numpy(draw.standard_normal(u.shape)))
    true = ode.fit(
        equations_of(powers, rates, fixed=True), [t] * 3, series, init="model", simplify=False
    )
    assert ode.fit(model(3, 8, 4), [t] * 3, series).bic < true.bic + 6


def test_an_exact_equation_has_no_term_too_many() -> None:
    t = torch.linspace(0, 6, 40, dtype=torch.float64)
    result = ode.fit(model(1, 3, 24), t, solution([[1], [2]], [[1.0, -0.4]], [0.3], t))
    powers, rates = (part.flatten().tolist() for part in result.weights())
    assert dict(zip(powers, rates, strict=True)) == {
        1: pytest.approx(1.0, rel=1e-4), 2: pytest.approx(-0.4, rel=1e-4)
    }  # fmt: skip


def test_states_of_one_sign_in_each_series_have_negative_powers() -> None:
    """They do not pass zero, where such powers have a pole: u' = 0.5 / u."""
    u = (1 + T).sqrt()
    assert str(ode.fit(model(1, 1, 4), [T, T], [u, -u]).equation) == "x0' = 0.5/x0"


def test_the_equation_of_a_search_is_one_that_an_exchange_of_products_leads_to() -> None:
    """The starts and the sets along their best equation's trajectory miss the better equation."""
    t = torch.linspace(0, 9.93, 149, dtype=torch.float64)[::2]
    powers, rates = [[1, 0], [2, 0], [1, 1], [0, 1]], [[1.4, -0.2, -0.8, 0], [0, 0, 0.6, -0.7]]
    u = noise(solution(powers, rates, [2, 0.5], t), 0.05, 7)
    result = ode.fit(model(2, 6, 12), t, u)
    assert sorted(result.weights()[0][0].tolist()) == sorted(powers)
    assert int((result.weights()[1] != 0).sum()) == 5


# ---- the criterion -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("products", "price"),
    [
        ([[1]], 0),
        ([[1], [2]], 1.2),
        ([[3]], 2.4),
        ([[-1]], 2 * math.log(5)),
        ([[1 / 2]], 2 * math.log(5) + 2.6 * math.log(2)),
        ([[1 / 3]], 2 * math.log(5) + 2.6 * math.log(3)),
        ([[3 / 2]], 2 * math.log(5) + 2.6 * math.log(2) + 0.6),
        ([[1, 0]], 2 * math.log(2)),
        ([[1, 1]], 4 * math.log(2)),
    ],
)
def test_the_price_of_the_products_description(products: list[list[float]], price: float) -> None:
    """The criterion of an equation without a free number and without residuals."""
    rates = [[-0.1] * len(products)] + [[0.0] * len(products)] * (len(products[0]) - 1)
    start = [1.5, 0.5][: len(products[0])]
    u, equations = (
        solution(products, rates, start, T),
        equations_of(products, rates).requires_grad_(False),
    )
    result = ode.fit(equations, T, u, u0=start, sigma=1.0, init="model", simplify=False)
    assert result.bic == pytest.approx(price, abs=1e-9)
