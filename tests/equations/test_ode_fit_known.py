"""`ode.fit` with what is known about an equation: bounds, signs, given terms, tied coefficients."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from npu_kernels import ode
from tests.support.time_series import T, equations_of, known, model, noise, numbers, solution

scipy = pytest.importorskip("scipy", reason="scipy is not installed")
pytest.importorskip("scipy.integrate")
pytest.importorskip("scipy.optimize")
pytest.importorskip("scipy.stats")

# Boys in bed in a boarding school of 763 from 22 January 1978 on, day by day: "Influenza in a
# boarding school", British Medical Journal 1 (1978), page 587, as the R package `outbreaks` has it.
IN_BED = (3, 8, 26, 76, 225, 298, 258, 233, 189, 128, 68, 29, 14, 4)
SIR = [[-1, 0], [1, -1], [0, 1]]  # infection and recovery, of S, I and R


def epidemic(seed: int = 0) -> tuple[Tensor, Tensor]:
    """S' = -1.5 S I, I' = 1.5 S I - 0.5 I, R' = 0.5 I, with errors of 1 %."""
    t = torch.linspace(0, 20, 30, dtype=torch.float64)
    rates = [[-1.5, 0], [1.5, -0.5], [0, 0.5]]
    return t, noise(solution([[1, 1, 0], [0, 1, 0]], rates, [0.99, 0.01, 0], t), 0.01, seed)


def test_influenza_in_a_boarding_school() -> None:
    """S' = -b S I, I' = b S I - g I: one b. SciPy's least squares of this equation give the same."""
    result = ode.fit(
        equations_of([[1, 1], [0, 1]], [[-0.002, 0.0], [0.002, -0.5]], fixed=True),
        range(14),
        torch.tensor(IN_BED, dtype=torch.float64).unsqueeze(1),
        observed=[1],
        u0=[762.0, math.nan],
        stoichiometry=[[-1, 0], [1, -1]],
        signs="nonnegative",
        names=["S", "I"],
        init="model",
        simplify=False,
    )
    infection, recovery, first = result.estimates
    assert infection.name == "coefficient of S*I in S -> I"
    assert recovery.name == "coefficient of I in I ->"

    def residuals(x: Any) -> Any:
        def rhs(_: float, u: Any) -> list[float]:
            return [-x[0] * u[0] * u[1], x[0] * u[0] * u[1] - x[1] * u[1]]

        solved = scipy.integrate.solve_ivp(
            rhs, (0, 13), [762.0, x[2]], t_eval=range(14), rtol=1e-9, atol=1e-9
        )
        return solved.y[1] - IN_BED

    best = scipy.optimize.least_squares(residuals, [0.002, 0.5, 2.0], x_scale=[1e-3, 0.1, 1])
    values = [infection.value, recovery.value, first.value]
    assert values == pytest.approx(best.x.tolist(), rel=2e-3)
    assert 763 * infection.value == pytest.approx(1.79, rel=0.03)
    assert recovery.value == pytest.approx(0.456, rel=0.02)
    (_, coefficients) = result.weights()
    assert float(coefficients[0, 0, 0]) == -float(coefficients[0, 1, 0])
    assert result.df_resid == 11
    low, high = ((estimate.low, estimate.high) for estimate in result.confidence_intervals()[:2])
    assert low[0] < infection.value < low[1]
    assert high[0] < recovery.value < high[1]


def test_rates_of_reactions_are_found() -> None:
    t, u = epidemic()
    result = ode.fit(
        model(3, 2, 8), t, u, stoichiometry=SIR, signs="nonnegative", names=["S", "I", "R"]
    )
    powers, coefficients = (part[0] for part in result.weights())
    order = [0, 1] if powers[0, 0] == 1 else [1, 0]
    assert powers[order].tolist() == [[1, 1, 0], [0, 1, 0]]
    rates = coefficients[:, order]
    torch.testing.assert_close(rates[0, 0], -rates[1, 0], rtol=1e-12, atol=0)
    torch.testing.assert_close(rates[1, 1], -rates[2, 1], rtol=1e-12, atol=0)
    assert float(rates[1, 0]) == pytest.approx(1.5, rel=0.03)
    assert float(rates[2, 1]) == pytest.approx(0.5, rel=0.03)
    assert "coefficient of I in I -> R" in result.stderr


@pytest.mark.parametrize(
    ("sums", "changes", "reactions"),
    [
        ([[1, 1, 1]], [-0.5, 0.2, 0.3], {"x0 -> x1", "x0 -> x2", "x1 -> x2"}),
        ([[1, 0, 0.5], [0, 1, 0.5]], [-0.2, -0.2, 0.4], {"x0 + x1 -> 2 x2"}),
        ([[0, 0, 1]], [-0.5, -0.2, 0], {"x0 ->", "x1 ->"}),
    ],
)
def test_flows_of_as_few_states_as_possible(sums: Any, changes: Any, reactions: Any) -> None:
    rates = numbers(*changes).unsqueeze(1)
    u = solution([[1, 0, 0]], rates.tolist(), [2, 3, 1], T)
    equations = equations_of([[1, 0, 0]], rates, fixed=True)
    result = ode.fit(equations, T, u, conserved=sums, init="model", simplify=False)
    terms = [f"coefficient of x0 in {reaction}" for reaction in reactions]
    assert {name for name in result.stderr if "initial" not in name} == set(terms)
    torch.testing.assert_close(result.weights()[1][0], rates, rtol=1e-4, atol=1e-9)


@pytest.mark.filterwarnings("ignore::npu_kernels.ode.PoorFitWarning")  # within narrow bounds
def test_exponents_stay_within_their_bounds() -> None:
    """An exponent of 8: without bounds of the user's it is 6 at most."""
    c = noise(solution([[8.0]], [[-0.5]], [1.0], T), 0.003)
    for bounds, greatest in ((None, 6.0), ((0.0, 2.0), 2.0), ((-1.0, 9.0), 9.0)):
        result = ode.fit(model(1, 1, 4), T, c, exponents=bounds, names=["c"])
        exponent = float(result.weights()[0])
        assert exponent == pytest.approx(min(greatest, 8.0), rel=0.05)
        assert exponent <= greatest


@pytest.mark.parametrize("terms", [[[1, 0.5]], ["x0*x1**(1/2)"], [[0, 2]]])
def test_an_equation_keeps_the_terms_that_are_given(terms: list[Any]) -> None:
    """Where the series hardly tell a term from others, and where they have none like it."""
    t = torch.linspace(0, 8, 8, dtype=torch.float64)
    u = noise(solution([[1.0, 0.5]], [[-0.3], [-0.3]], [1.0, 0.7], t), 0.03)
    for simplify in (True, False):
        result = ode.fit(
            model(2, 2, 3), t, u, required_terms=terms, sigma=0.02,
            u0=[1.0, 0.7], simplify=simplify,
        )  # fmt: skip
        exponents, coefficients = (weights[0] for weights in result.weights())
        term = [0.0, 2.0] if terms == [[0, 2]] else [1.0, 0.5]
        assert term in exponents.tolist()
        assert coefficients[:, exponents.tolist().index(term)].any()


def test_terms_of_a_series_that_is_still() -> None:
    """No equation has a term."""
    result = ode.fit(
        model(1, 1, 2), T, torch.full((len(T), 1), 2.0), required_terms=[[1]], names=["x"]
    )
    assert str(result.equation) == "x' = 0"


def test_coefficients_keep_the_models_signs() -> None:
    """Growth that becomes faster, c' = 0.3 c + 0.05 c**2, and a model whose growth becomes slower."""
    c = noise(solution([[1.0], [2.0]], [[0.3, 0.05]], [1.0], T / 2), 0.01)
    equations = equations_of([[1], [2]], [[0.5, -0.1]], fixed=True)
    options: dict[str, Any] = {"init": "model", "simplify": False, "sigma": 1.0}
    unsigned, signed = (
        ode.fit(equations, T / 2, c, signs=rule, **options).weights()[1].flatten().tolist()
        for rule in ("any", "model")
    )
    assert unsigned == pytest.approx([0.3, 0.05], rel=0.3)
    assert signed == [pytest.approx(0.4, abs=0.1)]  # the other one ends at 0
    slower = solution([[1.0], [2.0]], [[0.5, -0.1]], [1.0], T / 2)
    equations = equations_of([[1], [2]], [[0.3, 0.05]], fixed=True)
    for rule in ("nonnegative", "model"):
        result = ode.fit(equations, T / 2, slower, signs=rule, **options)
        assert result.weights()[1].flatten().tolist() == [pytest.approx(0.4, abs=0.1)]


@pytest.mark.parametrize(
    ("rates", "options", "said"),
    [
        ([[-0.4]], {}, "with a coefficient below 0, got 'nonnegative' and -0.4"),
        ([[-0.4], [0.4]], {"stoichiometry": [[1], [-1]]}, "with a rate below 0, got 'nonnegative'"),
    ],
)
def test_a_models_negative_coefficients_are_none_of_positive_signs(
    rates: Any, options: dict[str, Any], said: str
) -> None:
    equations = equations_of([[1.0] * len(rates)], rates)
    u = torch.stack([1 / (1 + 0.5 * T)] * len(rates), 1)
    with pytest.raises(ValueError, match=r"^ode\.fit: signs must be 'any' or 'model'") as caught:
        ode.fit(equations, T, u, init="model", signs="nonnegative", **options)
    assert said in str(caught.value)


def test_flows_of_both_directions_have_positive_rates_of_a_model() -> None:
    """x0' = -0.4 x0 + 0.1 x1, x1' = 0.4 x0 - 0.1 x1."""
    powers, rates = [[1, 0], [0, 1]], [[-0.4, 0.1], [0.4, -0.1]]
    u = solution(powers, rates, [2, 1], T)
    result = ode.fit(
        equations_of(powers, rates, fixed=True), T, u, conserved=[[1, 1]], signs="nonnegative",
        init="model", simplify=False,
    )  # fmt: skip
    values = {estimate.name: estimate.value for estimate in result.estimates[:2]}
    assert values == {
        "coefficient of x0 in x0 -> x1": pytest.approx(0.4, rel=1e-4),
        "coefficient of x1 in x1 -> x0": pytest.approx(0.1, rel=1e-4),
    }


# ---- coefficients that stay ----------------------------------------------------------------------


@pytest.mark.parametrize("simplify", [True, False])
@pytest.mark.parametrize(
    ("size", "options"), [(1.0, {}), (5.0, {}), (0.2, {}), (5.0, {"stoichiometry": [[-2.0]]})]
)
def test_coefficients_that_stay(size: float, options: dict[str, Any], simplify: bool) -> None:
    """u' = -0.5 u**2 of any size: its exponent is estimated beside a coefficient that stays."""
    u = size / (1 + 0.5 * T)
    equations = equations_of([[1.6]], [[-0.5 / size]])
    equations[1].requires_grad_(False)
    result = ode.fit(equations, T, u, init="model", simplify=simplify, **options)
    assert result.weights()[0].item() == pytest.approx(2.0, abs=1e-4)
    assert result.weights()[1].item() == pytest.approx(-0.5 / size, rel=1e-12)
    assert [estimate.name for estimate in result.estimates] == [
        "exponent of x0 in term 1",
        "initial x0",
    ]
    exponent, _ = result.confidence_intervals()
    assert exponent.low <= 2.0 <= exponent.high


@pytest.mark.filterwarnings("ignore::npu_kernels.ode.PoorFitWarning")  # -0.4 is not the equation's
@pytest.mark.parametrize("simplify", [True, False])
@pytest.mark.parametrize("size", [1.0, 5.0])
def test_wrong_coefficients_stay_too(size: float, simplify: bool) -> None:
    equations = equations_of([[2.0]], [[-0.4]])
    equations[1].requires_grad_(False)
    result = ode.fit(equations, T, size / (1 + 0.5 * T), init="model", simplify=simplify)
    assert result.weights()[1].item() == pytest.approx(-0.4, rel=1e-12)
    assert result.diagnostics.good is False


@pytest.mark.filterwarnings("ignore::npu_kernels.ode.PoorFitWarning")
@pytest.mark.parametrize("simplify", [True, False])
def test_coefficients_of_whole_exponents_stay(simplify: bool) -> None:
    """States of both signs, whose exponents do not move: only the first states are estimated."""
    equations = equations_of([[0.0, 1.0], [1.0, 0.0]], [[1.1, 0.0], [0.0, -0.9]])
    equations[1].requires_grad_(False)
    result = ode.fit(equations, T, 3 * CIRCLE, init="model", simplify=simplify)
    torch.testing.assert_close(result.weights()[1][0], equations[1].weight, rtol=1e-12, atol=0)
    assert [estimate.name for estimate in result.estimates] == ["initial x0", "initial x1"]


@pytest.mark.filterwarnings("ignore::npu_kernels.ode.PoorFitWarning")
def test_each_state_has_its_own_bounds() -> None:
    """Of the exponents that explain the series, 1.5 and 1.5, one is beyond them."""
    u = solution([[0, 1.5], [1.5, 0]], [[0, -0.5], [-0.5, 0]], [1, 2], T)
    equations = equations_of([[0, 1], [1, 0]], [[0, -0.4], [-0.4, 0]])
    result = ode.fit(equations, T, u, exponents=(-1, [1.2, 3]), init="model", simplify=False)
    powers = result.weights()[0][0].tolist()
    assert powers == [[0, pytest.approx(1.5, abs=1e-3)], [1.2, 0]]
    second, first = (
        one for one in result.confidence_intervals() if one.name.startswith("exponent")
    )
    assert first.high == 1.2
    assert second.low < 1.5 < second.high


# ---- a model's own exponents and signs -----------------------------------------------------------


@pytest.mark.filterwarnings("ignore::npu_kernels.ode.PoorFitWarning")  # the equation has a root
def test_a_models_whole_exponents_stay_whole() -> None:
    c = solution([[1.5]], [[-0.5]], [1.0], T)
    result = ode.fit(
        equations_of([[2.0]], [[-0.5]]), T, c, init="model", integer_exponents=True, simplify=False
    )
    assert result.weights()[0].tolist() == [[[2.0]]]


CIRCLE = torch.stack([torch.cos(T), -torch.sin(T)], 1)  # x' = y, y' = -x


def test_states_of_both_signs_have_whole_exponents_from_a_model_too() -> None:
    equations = equations_of([[0.0, 1.1], [0.9, 0.0]], [[0.9, 0.0], [0.0, -1.1]])
    result = ode.fit(equations, T, CIRCLE, init="model", simplify=False)
    assert result.weights()[0][0].tolist() == [[0.0, 1.0], [1.0, 0.0]]
    torch.testing.assert_close(
        result.weights()[1][0], numbers(1, 0, 0, -1).view(2, 2), rtol=1e-4, atol=1e-4
    )
    equations[0].requires_grad_(False)  # they stay, whole or not
    with pytest.warns(ode.PoorFitWarning, match="x1 has values below 0 .* not defined there"):
        result = ode.fit(equations, T, CIRCLE, init="model", simplify=False)
    assert result.weights()[0][0].tolist() == [[0.0, 1.1], [0.9, 0.0]]


@pytest.mark.filterwarnings("ignore::npu_kernels.ode.PoorFitWarning")
def test_an_exponent_behind_a_closed_gate_is_none() -> None:
    equations = equations_of([[1.0, 7.0]], [[-0.5], [0.0]], gate=[1.0, 0.0], fixed=True)
    result = ode.fit(equations, T, CIRCLE + 2, init="model", simplify=False)
    assert result.weights()[0][0].tolist() == [[1.0, 0.0]]
    equations[0].gate.data.fill_(1.0)
    with pytest.raises(ValueError, match="exponents must be bounds that the model's own exponents"):
        ode.fit(equations, T, CIRCLE + 2, init="model", simplify=False)


def test_starts_must_agree_in_the_signs_that_are_kept() -> None:
    equations = equations_of([[[1.0], [2.0]]] * 2, [[[0.5, -0.1]], [[0.4, 0.1]]])
    with pytest.raises(
        ValueError,
        match=r"^ode\.fit: signs must be 'any' or 'nonnegative' for a model whose starts have "
        r"coefficients of different signs, got 'model'$",
    ):
        ode.fit(equations, T, T + 1, init="model", signs="model")
    with torch.no_grad():
        equations[1].weight[:, 0] = torch.tensor([[0.0, -0.1], [0.4, -0.2]])  # 0 has no sign
    u = solution([[1], [2]], [[0.3, -0.05]], [1], T)
    equations[0].requires_grad_(False)
    result = ode.fit(equations, T, u, init="model", signs="model", simplify=False)
    assert result.weights()[1].flatten().tolist() == pytest.approx([0.3, -0.05], rel=1e-4)


@pytest.mark.filterwarnings("ignore::npu_kernels.ode.PoorFitWarning")
def test_numbers_that_are_freed() -> None:
    """Not exponents that must be whole, nor any if no exponent is to be free."""
    u = solution([[0.4, 1.0]], [[-0.3], [0.0]], [2, 1], T)
    for fixed in (False, True):
        equations = equations_of([[0.4, 1.0]], [[-0.3], [0.0]], fixed=fixed)
        for simplify in (False, True):
            result = ode.fit(
                equations, T, noise(u, 0.01), u0=[2, 1], integer_exponents=["x1"], init="model",
                simplify=simplify,
            )  # fmt: skip
            exponents = [name for name in result.stderr if name.startswith("exponent")]
            assert exponents == ([] if fixed else ["exponent of x0 in term 1"])


def other(weights: Tensor) -> nn.Sequential:
    equations = known()
    with torch.no_grad():
        equations[1].weight.copy_(weights)
    return equations
