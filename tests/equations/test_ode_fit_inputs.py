"""`ode.fit` with inputs: known columns as factors of the products."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npu_kernels import NAU, RealNPU, ode
from tests.support.time_series import equations_of, noise, numbers

pytest.importorskip("scipy.optimize", reason="scipy is not installed")

KNOTS = torch.linspace(0, 12, 25, dtype=torch.float64)
T = torch.linspace(0, 10, 25, dtype=torch.float64)


def models(states: int, inputs: int, terms: int, starts: int | None = None) -> nn.Sequential:
    return nn.Sequential(
        RealNPU(states + inputs, terms, num_models=starts), NAU(terms, states, num_models=starts)
    )


def solution(model: nn.Sequential, u0: Tensor, inputs: Any, t: Tensor = T) -> Tensor:
    with torch.no_grad():
        path = ode.rollout(model, u0, t=t, inputs=inputs, rtol=1e-10, atol=1e-12)
    assert isinstance(path, Tensor)
    return path


@pytest.mark.parametrize("simplify", [True, False])
def test_coefficients_stay_beside_inputs(simplify: bool) -> None:
    """``x' = -0.7 x + 1.3 v**2``, of a model whose exponents alone are estimated."""
    dose = KNOTS, 20 + 10 * KNOTS.sin()
    u = solution(equations_of([[1, 0], [0, 2]], [[-0.7, 1.3]]), numbers(500), dose)
    model = equations_of([[1.05, 0], [0, 1.95]], [[-0.7, 1.3]])
    model[1].requires_grad_(False)
    result = ode.fit(model, T, u, inputs=dose, init="model", simplify=simplify)
    torch.testing.assert_close(result.weights()[1][0], model[1].weight, rtol=1e-12, atol=0)
    powers = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    torch.testing.assert_close(result.weights()[0][0], powers, rtol=0, atol=1e-3)


def test_a_forced_decay_is_found() -> None:
    """``x' = -0.7 x + 1.3 v``, where v is switched on and off."""
    true = equations_of([[1, 0], [0, 1]], [[-0.7, 1.3]])
    dose = numbers(0, 1, 1.2, 4, 4.2, 7, 7.2, 12), numbers(1, 1, 0.1, 0.1, 2, 2, 0.1, 0.1)
    u = noise(solution(true, numbers(0.5), dose), 0.01)
    result = ode.fit(models(1, 1, 2, 4), T, u, inputs=dose, names=["x", "v"])
    assert result.names == ("x",)
    assert result.input_names == ("v",)
    (equation,) = str(result.equation).splitlines()
    assert equation.startswith("x' = ")
    weights = {
        tuple(row): weight
        for row, weight in zip(
            result.model[0].weight_re.tolist(), result.model[1].weight[0].tolist(), strict=True
        )
    }
    assert weights.keys() == {(1.0, 0.0), (0.0, 1.0)}
    assert weights[1.0, 0.0] == pytest.approx(-0.7, rel=0.05)
    assert weights[0.0, 1.0] == pytest.approx(1.3, rel=0.05)
    assert result.diagnostics.good
    low, high = next(
        (one.low, one.high)
        for one in result.confidence_intervals()
        if one.name == "coefficient of v in x'"
    )
    assert low < 1.3 < high
    # Predictions: of the series, and of another start under another dose.
    torch.testing.assert_close(
        result.predict(T), solution(true, numbers(0.5), dose), rtol=0.05, atol=0.02
    )
    other = numbers(0, 12), numbers(0, 1)
    torch.testing.assert_close(
        result.predict(T, u0=[2.0], inputs=other),
        solution(true, numbers(2.0), other),
        rtol=0.05,
        atol=0.02,
    )
    assert "v" not in [line for line in result.report().splitlines() if "Not measured" in line]


def test_seasonal_predators_and_prey_are_found() -> None:
    """``x' = x v - 0.6 x y``, ``y' = 0.5 x y - 0.8 y``, with a growth v of the seasons."""
    true = equations_of([[1, 0, 1], [1, 1, 0], [0, 1, 0]], [[1, -0.6, 0], [0, 0.5, -0.8]])
    season = KNOTS, 1.2 + 0.8 * torch.sin(2 * math.pi * KNOTS / 4)
    t = torch.linspace(0, 10, 31, dtype=torch.float64)
    u = solution(true, numbers(2, 1), season, t)
    result = ode.fit(
        models(2, 1, 3, 6), t, u, inputs=season, names=["x", "y", "v"], integer_exponents=True
    )
    assert str(result.equation) == "x' = 1.0*v*x - 0.6*x*y\ny' = 0.5*x*y - 0.8*y"
    torch.testing.assert_close(result.predict(t), u, rtol=1e-4, atol=1e-4)


def test_inputs_of_each_series_and_a_known_form() -> None:
    """Two series with doses and times of their own; numbers of an equation of known form."""
    true = equations_of([[1, 0], [0, 1]], [[-0.7, 1.3]])
    doses = [(KNOTS[::3], torch.sin(KNOTS[::3])), (numbers(0, 5, 12), numbers(1, 0, 2))]
    times = [T[::2], T[:15] ** 1.2]
    u = [solution(true, numbers(1), dose, t) for dose, t in zip(doses, times, strict=True)]
    guess = equations_of([[1, 0], [0, 1]], [[-0.3, 0.6]], fixed=True)
    result = ode.fit(guess, times, u, inputs=doses, init="model", names=["x"])
    torch.testing.assert_close(
        result.model[1].weight.detach(), true[1].weight.detach(), rtol=1e-4, atol=0
    )
    assert result.input_names == ("v0",)
    torch.testing.assert_close(result.predict(times[1], series=1), u[1], rtol=1e-4, atol=1e-5)
    stiff = ode.fit(guess, times, u, inputs=doses, init="model", names=["x"], method="kvaerno5")
    torch.testing.assert_close(stiff.predict(times[1], series=1), u[1], rtol=1e-4, atol=1e-5)


def test_inputs_beside_one_rate_in_two_equations() -> None:
    """Contacts change with the season: one rate takes from S what it gives to I."""
    season = KNOTS[::4], 1 + 0.5 * torch.sin(KNOTS[::4])
    true = equations_of([[1, 1, 1], [0, 1, 0]], [[-0.9, 0], [0.9, -0.3]])
    t = T[::2]
    u = solution(true, numbers(1, 0.1), season, t)
    guess = equations_of([[1, 1, 1], [0, 1, 0]], [[-0.6, 0], [0.6, -0.5]], fixed=True)
    result = ode.fit(
        guess, t, u, inputs=season, names=["S", "I", "season"], init="model", simplify=False,
        stoichiometry=[[-1, 0], [1, -1]],
    )  # fmt: skip
    values = {one.name: one.value for one in result.estimates[:2]}
    assert values == {
        "coefficient of S*I*season in S -> I": pytest.approx(0.9, rel=1e-4),
        "coefficient of I in I ->": pytest.approx(0.3, rel=1e-4),
    }


def test_an_equation_without_inputs_takes_none() -> None:
    t, model = torch.linspace(0, 4, 20, dtype=torch.float64), models(1, 0, 1)
    result = ode.fit(model, t, 1 / (1 + 0.5 * t))
    with pytest.raises(
        ValueError, match="predict: inputs must be None for equations without inputs"
    ):
        result.predict(t, inputs=(KNOTS, KNOTS))


EDGES = (3.0, 5.25, 8.0)


def switched(t: Tensor, low: float, high: float) -> Tensor:
    """An input that is high from 3 to 5.25, and from 8 on."""
    return torch.where((torch.bucketize(t, numbers(*EDGES), right=True) % 2).bool(), high, low)


def answer(t: Tensor, low: float, high: float) -> Tensor:
    """The solution of ``x' = -0.8 x + 2 v`` from 0.4, piece by piece."""
    x = torch.full_like(t, 0.4)
    begin, first, value = 0.0, 0.4, low
    for end in (*EDGES, 10.0):
        rest = 2 * value / 0.8
        x = torch.where(t > begin, rest + (first - rest) * torch.exp(-0.8 * (t - begin)), x)
        first = rest + (first - rest) * math.exp(-0.8 * (end - begin))
        begin, value = end, low + high - value
    return x


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (1.0, 3.0)])
@pytest.mark.filterwarnings("ignore::npu_kernels.ode.PoorFitWarning")
def test_an_input_that_is_switched_between_samples(low: float, high: float) -> None:
    t = torch.linspace(0, 10, 41, dtype=torch.float64)
    x = noise(answer(t, low, high).unsqueeze(1), 0.003)
    sampled = t, switched(t, low, high)
    result = ode.fit(models(1, 1, 2, 8), t, x, inputs=sampled, names=["x", "v"])
    said = (
        "v jumps between two samples (first from t = 2.75 to 3), where it is interpolated linearly"
    )
    assert said in str(result.diagnostics)
    assert not result.left_out.any()
    around = torch.stack([numbers(*EDGES) - 1e-4, numbers(*EDGES) + 1e-4], 1).flatten()
    times = torch.cat([t[~torch.isin(t, numbers(*EDGES))], around]).sort().values
    exact = ode.fit(
        models(1, 1, 2, 8), t, x, inputs=(times, switched(times, low, high)), names=["x", "v"]
    )
    assert "jumps" not in str(exact.diagnostics)
    assert exact.diagnostics.good
    for equations in (result, exact):  # v has two values, so all of its powers are one
        assert set(equations.weights()[0][0, :, 1].tolist()) <= {0.0, 1.0}
    powers, weights = (part[0] for part in exact.weights())
    rates = dict(zip(map(tuple, powers.tolist()), weights[0].tolist(), strict=True))
    assert rates == pytest.approx({(1.0, 0.0): -0.8, (0.0, 1.0): 2.0}, rel=0.03)
