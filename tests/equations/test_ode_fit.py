"""`ode.fit`: from time series to their equation."""

import math
import re
from typing import Any

import pytest
import torch

from benchmarks.time_series.__main__ import CASES
from npu_kernels import ode
from tests.support.compare import report_of
from tests.support.examples import ROOT
from tests.support.modes import MODES
from tests.support.time_series import (
    T,
    equations_of,
    known,
    model,
    noise,
    numbers,
    predators,
    solution,
)

scipy = pytest.importorskip("scipy", reason="scipy is not installed")
pytest.importorskip("scipy.optimize")
pytest.importorskip("scipy.stats")

LINES = (ROOT / "examples" / "hare_lynx.csv").read_text().splitlines()[3:]
PELTS = torch.tensor(
    [[float(cell) for cell in line.split(",")[1:]] for line in LINES], dtype=torch.float64
)


# ---- equations -----------------------------------------------------------------------------------


def test_an_equation_is_found_among_several_starts() -> None:
    result = ode.fit(model(2, 3, 8), T, predators(T), names=["x", "y"])
    assert str(result.equation) == "x' = -0.6*x*y + 1.2*x\ny' = 0.5*x*y - 0.8*y"
    torch.testing.assert_close(result.u0, numbers(2, 1).unsqueeze(0), rtol=1e-5, atol=0)
    assert result.complete
    assert result.nrmse < 1e-5
    assert result.unidentified == ()
    assert len(result.latex()) == len(result.sympy()) == 2
    later = torch.linspace(0, 12, 7, dtype=torch.float64)
    torch.testing.assert_close(result.predict(later), predators(later), rtol=1e-4, atol=1e-4)
    ours = ode.rollout(result.model, numbers(2, 1), steps=1200, dt=0.01, method="rk4")
    torch.testing.assert_close(ours[::200], predators(later), rtol=1e-4, atol=1e-4)


def test_a_rate_law_of_fractional_order() -> None:
    """c' = -80 c**1.5: coefficients have no bound, a rounded exponent keeps its interval."""
    t = torch.linspace(0, 2, 30, dtype=torch.float64) ** 2
    c = solution([[1.5]], [[-80.0]], [0.01], t)
    result = ode.fit(model(1, 1, 8), t, noise(c, 0.01), names=["c"])
    exponent = next(
        estimate for estimate in result.estimates if estimate.name == "exponent of c in term 1"
    )
    assert exponent.taken == 1.5
    assert exponent.stderr > 0
    interval = next(
        estimate for estimate in result.confidence_intervals() if estimate.name == exponent.name
    )
    assert interval.low < 1.5 < interval.high
    assert result.model[1].weight.item() == pytest.approx(-80, rel=0.05)
    assert "taken as 3/2" in report_of(result)


def test_irregular_and_missing_samples_of_several_series() -> None:
    generator = torch.Generator().manual_seed(1)
    times = [
        torch.rand(n, generator=generator, dtype=torch.float64).mul(6).sort().values
        for n in (22, 15)
    ]
    for t in times:
        t[0] = 0.0
    tables = [predators(times[0]), predators(times[1], (1.0, 2.5))]
    tables[0][3, 0] = tables[0][7, 1] = tables[1][5] = math.nan
    order = torch.randperm(22, generator=generator)
    result = ode.fit(known((1.0, -0.5, 0.4, -1.0)), [times[0][order], times[1]], [tables[0][order], tables[1]],
                    init="model", names=["x", "y"])  # fmt: skip
    assert str(result.equation) == "x' = -0.6*x*y + 1.2*x\ny' = 0.5*x*y - 0.8*y"
    torch.testing.assert_close(
        result.u0, torch.tensor([[2, 1], [1, 2.5]]).double(), rtol=1e-4, atol=0
    )
    assert "initial y of series 1" in result.stderr
    second_series = predators(times[1], (1.0, 2.5))
    torch.testing.assert_close(
        result.predict(times[1], series=1), second_series, rtol=1e-4, atol=1e-4
    )


def test_an_unobserved_state_and_what_the_data_cannot_tell() -> None:
    """Prey alone: the predators have no unit, so their start and x' y's coefficient go together."""
    u = predators(T)[:, :1]
    result = ode.fit(
        known((1.0, -0.5, 0.4, -1.0)), T, u, observed=[0], names=["x", "y"], u0=[math.nan, 1.0],
        init="model",
    )  # fmt: skip
    assert str(result.equation) == "x' = -0.6*x*y + 1.2*x\ny' = 0.5*x*y - 0.8*y"
    assert result.unidentified == ()
    assert "Not measured: y." in report_of(result)
    free = ode.fit(
        known((1.0, -0.5, 0.4, -1.0)), T, u, observed=[0], names=["x", "y"], init="model",
        simplify=False,
    )  # fmt: skip
    (said,) = free.unidentified
    assert "initial y" in said
    assert "coefficient of x*y in x'" in said
    assert "coefficient of y in y'" not in said
    assert free.stderr["initial y"] == math.inf
    assert math.isfinite(free.stderr["coefficient of y in y'"])
    assert "The data do not determine these parameters separately" in report_of(free)


def test_standard_errors_are_the_spread_of_the_estimates() -> None:
    u, estimates, errors = predators(T), [], []
    for seed in range(10):
        result = ode.fit(
            known(), T, noise(u, 0.03, seed), init="model", simplify=False, names=["x", "y"]
        )
        estimates.append([estimate.value for estimate in result.estimates])
        errors.append([estimate.stderr for estimate in result.estimates])
    spread, error = torch.tensor(estimates).std(0), torch.tensor(errors).square().mean(0).sqrt()
    assert 0.75 < float((spread / error).log().mean().exp()) < 1.33


def test_intervals_of_a_linear_equation_are_those_of_its_standard_errors() -> None:
    """u' = c: the states are linear in c and the first state."""
    generator = torch.Generator().manual_seed(3)
    u = 2 + 0.5 * T + 0.1 * torch.randn(25, generator=generator, dtype=torch.float64)
    result = ode.fit(equations_of([[0]], [[0.4]]), T, u, init="model", simplify=False)
    (c, first), (low, high) = result.estimates, (scipy.stats.t.ppf(p, 23) for p in (0.05, 0.95))
    for estimate, interval in zip((c, first), result.confidence_intervals(0.9), strict=True):
        assert interval.low == pytest.approx(estimate.value + low * estimate.stderr, rel=2e-3)
        assert interval.high == pytest.approx(estimate.value + high * estimate.stderr, rel=2e-3)


def test_intervals_where_the_trajectory_is_curved() -> None:
    """u' = -k u**w, whose solution is known: the profiles of k and w by other means."""
    t, sigma = T / 3, 0.4
    u = noise((numbers(10.0) ** -0.5 + 0.5 * 0.3 * t) ** -2, 0.05)

    def rise(k: float, w: float) -> float:
        base = 10.0 ** (1 - w) - (1 - w) * k * t
        return float((((base.clamp(min=1e-9) ** (1 / (1 - w)) - u) / sigma)[1:].square()).sum())

    def profile(k: float | None, w: float | None) -> float:
        def of(y: float) -> float:
            return rise(math.exp(y) if k is None else k, y if w is None else w)

        bounds = (-6.0, 2.0) if k is None else (0.1, 0.999) if low_w else (1.001, 4.0)
        return float(
            scipy.optimize.minimize_scalar(
                of, bounds=bounds, method="bounded", options={"xatol": 1e-9}
            ).fun
        )

    equations, low_w = equations_of([[1.4]], [[-0.4]]), False
    weights = torch.full((25, 1), sigma, dtype=torch.float64)
    weights[0] = 1e9  # known
    result = ode.fit(
        equations, t, u, u0=[10.0], sigma=weights, init="model", simplify=False, names=["u"]
    )
    k, w = result.confidence_intervals()
    best = rise(-k.value, w.value)
    for end in (-k.low, -k.high):
        assert profile(end, None) - best == pytest.approx(3.8415, rel=0.05)
    for end in (w.low, w.high):
        assert profile(None, end) - best == pytest.approx(3.8415, rel=0.05)
    assert k.value - k.low > 1.3 * (k.high - k.value)  # which no multiple of the standard error has


def test_ends_that_are_not_reached() -> None:
    """Noise alone: the coefficient may be 0, and the exponent anything."""
    # with some others an end is a fit that rounding decides
    generator = torch.Generator().manual_seed(9)
    u = 1 + 0.2 * torch.randn(25, generator=generator, dtype=torch.float64)
    with pytest.warns(ode.PoorFitWarning, match=r"less than half of .* \(R2 = 0\.05\)"):
        result = ode.fit(
            equations_of([[0.5]], [[0.1]]), T, u, init="model", simplify=False, names=["u"]
        )
    coefficient, exponent, _ = result.confidence_intervals()
    assert (exponent.low, exponent.high) == (-6, 6)  # the bounds of the search
    assert coefficient.low == 0 < coefficient.value < coefficient.high < math.inf


@pytest.mark.parametrize("unit", [1e-15, 1e-30])
def test_small_units(unit: float) -> None:
    """The layer's |u| + eps is as small beside the states as in the fit, and so is atol."""
    u = noise(predators(T), 0.02)
    plain, small = (
        ode.fit(known(), T, size * u, init="model", simplify=False, names=["x", "y"])
        for size in (1.0, unit)
    )
    assert small.nrmse == pytest.approx(plain.nrmse, rel=1e-6)
    later = numbers(*T.tolist(), float(T[-1]) + 3, -1)
    torch.testing.assert_close(small.predict(later) / unit, plain.predict(later))
    path = ode.rollout(small.model, small.u0[0], t=T).detach()
    torch.testing.assert_close(path / unit, plain.predict(T), rtol=1e-4, atol=1e-4)
    path = ode.rollout(small.model, small.u0[0], t=T, method="kvaerno5").detach()
    torch.testing.assert_close(path / unit, plain.predict(T), rtol=1e-4, atol=1e-4)


def test_amounts_do_not_begin_below_0() -> None:
    line = equations_of([[0]], [[0.4]])
    result = ode.fit(line, T, 0.1 + 0.5 * T, sigma=1.0, init="model", simplify=False)
    _, first = result.confidence_intervals()
    assert first.low == 0
    assert first.high == pytest.approx(first.value + 1.95996 * first.stderr, rel=2e-3)


def test_hares_and_lynxes() -> None:
    """Pelts in thousands, 1900 to 1920; Carpenter (2018) estimates 0.55, 0.028, 0.024 and 0.80."""
    start = known((0.5, -0.02, 0.02, -0.8))
    result = ode.fit(
        start, torch.arange(1900, 1921), PELTS, sigma="proportional", init="model",
        names=["hare", "lynx"],
    )  # fmt: skip
    values = [estimate.value for estimate in result.estimates[:4]]
    assert values == pytest.approx([0.55, -0.028, 0.024, -0.80], rel=0.05)
    assert [estimate.stderr for estimate in result.estimates[:4]] == pytest.approx(
        [0.065, 0.004, 0.004, 0.09], rel=0.2
    )
    torch.testing.assert_close(result.sigma, numbers(0.25, 0.25), rtol=0.1, atol=0)


@pytest.mark.filterwarnings("ignore::npu_kernels.ode.PoorFitWarning")
def test_few_values_below_0_are_those_of_errors_or_of_both_signs() -> None:
    """The exponents of states of both signs are whole numbers, and not estimated."""
    t = torch.linspace(0, 10, 200, dtype=torch.float64)
    amounts = torch.stack([(-t).exp(), noise((-t).exp() + 1, 0.02) - 1, t - 0.2, t], 1)
    amounts[0, 3] = -1e-12
    assert (amounts[:, 1:3] < 0).any(0).all()
    assert (amounts > -0.1 * amounts.amax(0)).all()
    amounts[50, 3] = math.nan
    order = torch.randperm(200, generator=torch.Generator().manual_seed(0))
    settings = {"init": "model", "simplify": False}
    rates = torch.diag(numbers(-1, -1, 0.1, 0.1))
    result = ode.fit(equations_of(1.4 * torch.eye(4), rates), t[order], amounts[order], **settings)
    free = [f"exponent of x{n} in term {n + 1}" in result.stderr for n in range(4)]
    assert free == [True, True, False, True]
    two = ode.fit(equations_of([[1.4]], [[-1.0]]), t[:2], [0.5, -0.01], **settings)
    assert "exponent of x0 in term 1" in two.stderr


def test_exponents_beside_fractions_keep_the_intervals_of_free_numbers() -> None:
    case = CASES["fsir"]
    t, u = case.series(0.01, 6)
    settings = {"u0": case.u0, "names": case.names, "init": "model"}
    result = ode.fit(case.model("form"), t, u, **settings)
    free = ode.fit(case.model("form"), t, u, simplify=False, **settings)
    powers = result.weights()[0][0]
    assert float(powers[0, 0]) == 0.5
    assert float(powers[0, 1]) == pytest.approx(0.4949, abs=2e-3)  # is no fraction
    fractions = {estimate.name: estimate.taken for estimate in result.estimates}
    assert fractions["exponent of I in term 1"] == float(powers[0, 1])
    assert "taken as 0.49" in report_of(result)
    ours, theirs = (
        {estimate.name: estimate for estimate in equations.confidence_intervals()}
        for equations in (result, free)
    )
    for name in (name for name in ours if name.startswith("exponent")):
        assert ours[name].low == pytest.approx(theirs[name].low, rel=0.02)
        assert ours[name].high == pytest.approx(theirs[name].high, rel=0.02)
        assert ours[name].stderr == pytest.approx(theirs[name].stderr, rel=0.05)


def test_alternatives_are_the_equations_that_the_data_hardly_tell() -> None:
    """c' = -0.5 c**1.5: few rough data allow other forms, many clear ones none."""
    t = torch.linspace(0, 6, 12, dtype=torch.float64)
    c = solution([[1.5]], [[-0.5]], [1.0], t)
    result = ode.fit(model(1, 2, 8), t, noise(c, 0.05, 2), names=["c"])
    alternatives = result.alternatives()
    assert alternatives
    assert "Not distinguishable from" in report_of(result)
    assert [other.bic for other in alternatives] == sorted(other.bic for other in alternatives)
    forms = [sorted(map(bool, other.weights()[0].flatten())) for other in (result, *alternatives)]
    assert all(forms.count(form) == 1 for form in forms)
    assert alternatives[-1].bic < result.bic + 2 * math.log(20)
    for other in alternatives[:2]:
        refitted = ode.fit(
            other.model, t, noise(c, 0.05, 2), names=["c"], init="model", simplify=False
        )
        # as likely, but for the price of its free numbers
        assert refitted.bic < other.bic + math.log(12) * 4
        assert refitted.nrmse == pytest.approx(other.nrmse, rel=0.15)
        assert other.confidence_intervals()[0].low < other.confidence_intervals()[0].high
    exact = ode.fit(model(1, 2, 8), T, solution([[1.5]], [[-0.5]], [1.0], T), names=["c"])
    assert not exact.alternatives()
    assert "Not distinguishable" not in report_of(exact)


@pytest.mark.parametrize("seed", [0, 2, 7])
def test_a_report_counts_the_alternatives(seed: int) -> None:
    """Logistic growth, whose report and list had other numbers of forms."""
    t = torch.linspace(0, 14, 25, dtype=torch.float64)
    result = ode.fit(model(1, 3, 16), t, noise(10 / (1 + 19 * torch.exp(-0.8 * t)), 0.02, seed))
    said = re.search(r"Not distinguishable from (\w+) other forms?", report_of(result))
    count = 0 if said is None else int(said[1].replace("one", "1"))
    assert count == len(result.alternatives())


def test_alternatives_of_a_known_form_keep_its_exponents() -> None:
    """Coefficients alone may go."""
    result = ode.fit(
        known(), T[:8], noise(predators(T), 0.2, 3)[:8], init="model", names=["x", "y"]
    )
    alternatives = result.alternatives()
    assert alternatives
    for other in alternatives:
        assert all(set(row) <= {0.0, 1.0} for row in other.weights()[0][0].tolist())


def test_errors_that_are_given_or_relative() -> None:
    u = predators(T)
    generator = torch.Generator().manual_seed(2)
    factors = torch.randn(u.shape, generator=generator, dtype=torch.float64).mul(0.05)
    settings = {"init": "model", "simplify": False, "names": ["x", "y"]}
    relative = ode.fit(known(), T, u * factors.exp(), sigma="proportional", **settings)
    torch.testing.assert_close(relative.sigma, numbers(0.05, 0.05), rtol=0.4, atol=0)
    with_sigma = ode.fit(known(), T, noise(u, 0.03), sigma=[0.1, 0.2], **settings)
    twice = ode.fit(known(), T, noise(u, 0.03), sigma=numbers(0.2, 0.4).expand(25, 2), **settings)
    assert with_sigma.sigma is None
    name = "coefficient of x in x'"
    assert twice.stderr[name] == pytest.approx(2 * with_sigma.stderr[name], rel=1e-3)


def test_errors_in_proportion_to_states_of_both_signs() -> None:
    t = torch.linspace(0, 6, 80, dtype=torch.float64)
    powers, rates = [[0.0, 1], [1, 0]], [[1.0, 0], [0, -2]]
    u, generator = solution(powers, rates, [1, 0], t), torch.Generator().manual_seed(0)
    u = u * (1 + 0.05 * torch.randn(u.shape, generator=generator, dtype=torch.float64))
    equations = equations_of(powers, rates, fixed=True)
    relative, same = (
        ode.fit(equations, t, u, sigma=sigma, init="model", simplify=False)
        for sigma in ("proportional", None)
    )
    torch.testing.assert_close(relative.sigma, numbers(0.05, 0.05), rtol=0.3, atol=0)
    assert relative.diagnostics.good
    torch.testing.assert_close(relative.diagnostics.errors, numbers(0.05, 0.05), rtol=0.5, atol=0)
    name = "coefficient of x1 in x0'"
    assert relative.stderr[name] < 0.97 * same.stderr[name]
    assert " of the value" in report_of(relative)


def test_tables_and_the_picture() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    table = pandas.DataFrame(
        {"year": T.numpy(), "prey": predators(T)[:, 0], "hunters": predators(T)[:, 1]}
    )
    result = ode.fit(
        known(), table["year"], table[["prey", "hunters"]], init="model", simplify=False
    )
    assert result.names == ("prey", "hunters")
    later = result.predict([1.0, 0.0], u0=[2.0, 1.0])
    assert later.shape == (2, 2)
    assert later[1].tolist() == [2.0, 1.0]
    assert later[0] == pytest.approx(predators(numbers(1.0, 1.5))[0].numpy(), rel=1e-4)
    torch.testing.assert_close(result.predict(numbers(-0.5), u0=None)[0], ode.rollout(
        result.model, result.u0[0], steps=100, dt=-0.005, method="rk4")[-1], rtol=1e-5, atol=1e-6)  # fmt: skip
    assert [axis.get_title() for axis in result.plot().axes] == ["prey", "hunters"]


def test_blind_directions_have_infinite_errors() -> None:
    """Two terms with the same exponents: only the sum of their coefficients is known."""
    equations, u = (
        equations_of([[1], [1]], [[-0.2, -0.3]], fixed=True),
        solution([[1.0]], [[-0.5]], [2.0], T),
    )
    result = ode.fit(equations, T, u, u0=[2.0], init="model", simplify=False)
    assert [estimate.stderr for estimate in result.estimates] == [math.inf, math.inf]
    name = "coefficient of x0 in x0'"
    assert result.unidentified == (f"these parameters separately: {name}, {name}",)


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [0.0, 2.0])
def test_series_that_do_not_change(value: float) -> None:
    result = ode.fit(model(2, 2, 2), T, torch.full((25, 2), value))
    assert str(result.equation) == "x0' = 0\nx1' = 0"
    assert not result.confidence_intervals()
    assert (result.predict(T) == value).all()


@pytest.mark.parametrize("mode", MODES)
def test_the_modes_of_the_caller_do_not_matter(mode: Any) -> None:
    start, u = known(), noise(predators(T), 0.02)
    u[3:6, 0] = math.nan  # counts of numbers that float16 cannot divide
    expected = ode.fit(start, T, u, init="model")
    with mode():
        result = ode.fit(start, T, u, init="model")
    assert str(result) == str(expected)
    pairs = zip(result.model.parameters(), expected.model.parameters(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    assert result.stderr == expected.stderr


def test_the_model_is_not_changed() -> None:
    start = model(1, 1, 4)
    before = [parameter.clone() for parameter in start.parameters()]
    result = ode.fit(start, T, solution([[1.0]], [[-0.5]], [2.0], T))
    assert str(result.equation) == "x0' = -0.5*x0"
    assert all(torch.equal(*pair) for pair in zip(before, start.parameters(), strict=True))
