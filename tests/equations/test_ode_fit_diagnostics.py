"""`ode.fit`: the verdict on the equation, and series that nothing can be said of."""

from __future__ import annotations

import datetime
import math
import warnings

import numpy
import pytest
import torch
from torch import Tensor, nn

from npu_kernels import NAU, RealNPU, ode
from tests.support.compare import report_of
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

pytest.importorskip("scipy.optimize", reason="scipy is not installed")
pytest.importorskip("scipy.stats")


def waves(t: Tensor) -> Tensor:
    """A state that no equation of itself alone has: it goes up and down."""
    return 2 + torch.sin(1.5 * t)


def test_an_equation_that_fits_gets_no_warning() -> None:
    u = noise(predators(T), 0.05)
    result = ode.fit(known(), T, u, init="model", simplify=False)
    verdict = result.diagnostics
    assert verdict.good
    assert not verdict.notes
    assert str(verdict) == "The equations explain the series as well as a smooth curve does."
    assert "Diagnostics: The equations explain the series" in report_of(result)
    errors = 0.05 * predators(T).square().mean(0).sqrt()
    torch.testing.assert_close(verdict.errors, errors, rtol=0.5, atol=0)
    assert bool((verdict.ratio < 1.6).all())
    assert bool((verdict.autocorrelation.abs() < 0.5).all())


def test_an_equation_that_does_not_fit_says_so() -> None:
    u = noise(waves(T).unsqueeze(1), 0.01)
    with pytest.warns(ode.PoorFitWarning) as caught:
        result = ode.fit(model(1, 1, 4), T, u, names=["c"])
    (said,) = [str(warning.message) for warning in caught]
    assert said.startswith(
        "ode.fit: the equations do not explain the series. The residuals of c are "
    )
    assert "times as large as the residuals of a smooth curve" in said
    assert "more terms than 1" in said
    assert "more random initialisations than 4 (num_models)" in said
    assert not result.diagnostics.good
    assert float(result.diagnostics.ratio) > 5
    assert float(result.diagnostics.unexplained) > 0.5
    report = report_of(result)
    assert f"Diagnostics: {result.diagnostics}" in report
    assert "Residual standard deviations" not in report


@pytest.mark.parametrize("seed", range(2))
def test_errors_in_proportion_leave_every_value(seed: int) -> None:
    """The largest values have the largest errors. A slip is far from the equation nevertheless."""
    t = torch.linspace(0, 10, 40, dtype=torch.float64)
    draw = torch.Generator().manual_seed(seed)
    factors = 1 + 0.02 * torch.randn(40, generator=draw, dtype=torch.float64)
    u = 3 * (-0.4 * t).exp() * factors
    assert not ode.fit(model(1, 1, 2), t, u).left_out.any()
    u[5] *= 3
    with pytest.warns(UserWarning, match="A value of x0 is more than 8 times as far"):
        result = ode.fit(model(1, 1, 2), t, u)
    assert result.left_out.flatten().nonzero().flatten().tolist() == [5]


def test_errors_that_are_not_what_they_are_taken_for_are_said() -> None:
    t = torch.linspace(0, 8, 120, dtype=torch.float64)
    draw = torch.Generator().manual_seed(0)
    e = torch.randn(120, generator=draw, dtype=torch.float64)
    curve = 3 * (-0.4 * t).exp()
    options = {"init": "model", "simplify": False}
    start = equations_of([[1.0]], [[-0.4]], fixed=True)
    grown = ode.fit(start, t, curve * (1 + 0.02 * e), **options)
    assert "x0 are" in str(grown.diagnostics)
    assert "is large: sigma='proportional'" in str(grown.diagnostics)
    for sigma, factor in ((0.05, 1), (0.5, 0.1), (0.0333, 1.5)):
        notes = ode.fit(start, t, curve + 0.05 * e, sigma=sigma, **options).diagnostics.notes
        if factor == 1:
            assert notes == ()
        else:
            (note,) = notes
            assert "times as large as sigma." in note
            assert float(note.split(" are ")[1].split(" times")[0]) == pytest.approx(
                factor, rel=0.2
            )
    equal = ode.fit(start, t, curve + 0.05 * e, **options)
    assert equal.diagnostics.notes == ()


@pytest.mark.parametrize("samples", [2, 3])
def test_too_few_values_get_no_other_advice(samples: int) -> None:
    t = torch.linspace(0, 4, samples, dtype=torch.float64)
    with pytest.warns(
        ode.PoorFitWarning, match="any equations would fit. More measurements"
    ) as caught:
        ode.fit(model(1, 1, 2), t, 2 * (-0.5 * t).exp())
    assert "more terms than" not in str(caught[0].message)


@pytest.mark.parametrize("column", [0, 1])
def test_a_value_that_is_far_from_the_equation_is_left_out(column: int) -> None:
    """As if it were nan: the equation, its numbers and their intervals are those of the others."""
    u = noise(predators(T), 0.02)
    missing = u.clone()
    u[10, column] += 2
    missing[10, column] = math.nan
    with pytest.warns(UserWarning, match=f"A value of x{column} is more than 8 times") as caught:
        result = ode.fit(known(), 1970 + T, u, init="model", simplify=False)
    assert [warning.category for warning in caught] == [UserWarning]
    right = ode.fit(known(), 1970 + T, missing, init="model", simplify=False)
    assert result.confidence_intervals() == right.confidence_intervals()
    assert result.df_resid == right.df_resid
    assert result.left_out.nonzero().tolist() == [[0, 10, column]]
    told = str(result.diagnostics)
    assert "as far from the equations as most values (t = 1972.5: " in told
    assert told.endswith("), and ignored.")
    value, fitted = told.partition("1972.5: ")[2].partition(")")[0].split(", fitted ")
    assert float(value) == pytest.approx(float(u[10, column]), rel=1e-5)
    assert float(fitted) == pytest.approx(float(right.predict(1970 + T)[10, column]), rel=1e-3)
    assert f"Diagnostics: {told}" in report_of(result)
    assert " 49 measurements in 1 series" in report_of(result)


@pytest.mark.parametrize(
    "wild", [{15: 10.0}, {2: 10.0}, {20: -1.0}, {12: 0.1, 31: 5.0}, {14: 0.0, 15: 0.0}]
)
@pytest.mark.filterwarnings("ignore:ode.fit. .* as far from the equations as most")
def test_wild_values_do_not_decide_the_equation(wild: dict[int, float]) -> None:
    t = torch.linspace(0, 12, 40, dtype=torch.float64)
    u = noise(predators(t), 0.02)
    for row, factor in wild.items():
        u[row, 0] *= factor
    result = ode.fit(model(2, 3, 8), t, u, names=["x", "y"])
    assert sorted(result.left_out[0, :, 0].nonzero().squeeze(1).tolist()) == sorted(wild)
    weights, powers = result.weights()[1][0], result.weights()[0][0].tolist()
    rates = {
        (d, *row): float(weights[d, k])
        for k, row in enumerate(powers)
        for d in (0, 1)
        if weights[d, k]
    }
    true = {(0, 1, 0): 1.2, (0, 1, 1): -0.6, (1, 1, 1): 0.5, (1, 0, 1): -0.8}
    assert rates == pytest.approx(true, rel=0.05)
    assert result.diagnostics.good


@pytest.mark.parametrize(("low", "high"), [(0, 3), (0.5, 9)])
def test_samples_at_the_limit_of_a_sensor_are_named(low: float, high: float) -> None:
    t = torch.linspace(0, 10, 31, dtype=torch.float64)
    u = noise(5 * torch.exp(-0.4 * t), 0.01).clamp(low, high)
    count = int(((u == low) | (u == high)).sum())
    said = f"{count} values of x0 are {low or high:g}, and none is beyond"
    with pytest.warns(ode.PoorFitWarning, match=said):
        result = ode.fit(equations_of([[1]], [[-0.4]]), t, u, init="model")
    assert not result.diagnostics.good


@pytest.mark.parametrize("digits", [2, 3, 16])
def test_an_equilibrium_is_no_limit_of_a_sensor(digits: int) -> None:
    """Rounded values, and those of float64, are equal where the state no longer changes."""
    t = torch.linspace(0, 60, 61, dtype=torch.float64)
    u = torch.round(1 / (1 + 9 * torch.exp(-0.7 * t)), decimals=digits)
    assert len(u.unique()) < 59
    result = ode.fit(equations_of([[1], [2]], [[0.7, -0.7]]), t, u, init="model")
    assert "sensor" not in str(result.diagnostics)


def test_a_small_r2_is_said() -> None:
    """Errors as large as the curve's own variation."""
    t = torch.linspace(0, 4, 81, dtype=torch.float64)
    u = noise(3 * torch.exp(-0.4 * t), 0.3)
    result = ode.fit(equations_of([[1]], [[-0.4]]), t, u, init="model")
    assert result.diagnostics.good
    assert "R2 = 0." in str(result.diagnostics)


@pytest.mark.filterwarnings("ignore:ode.fit. .* as far from the equations as most")
def test_a_code_for_a_missing_value_does_not_change_what_a_state_is() -> None:
    """-999 is no sign that an amount may be below 0, whose exponents would be whole numbers."""
    t = torch.linspace(0, 8, 30, dtype=torch.float64)
    u = noise((2 - 0.2 * t).square().unsqueeze(1), 0.005)  # u' = -0.4 u**0.5
    u[[7, 21]] = -999
    result = ode.fit(model(1, 2, 8), t, u)
    assert result.left_out[0, :, 0].nonzero().squeeze(1).tolist() == [7, 21]
    assert result.weights()[0][0].tolist() == [[0.5]]
    assert float(result.weights()[1]) == pytest.approx(-0.4, rel=0.02)


@pytest.mark.parametrize("number", range(4))
def test_a_series_without_wild_values_loses_none(number: int) -> None:
    """Spikes, few samples, no errors, errors that are large: all values count."""
    t = torch.linspace(0, 12, [25, 40, 30, 60][number], dtype=torch.float64)
    u = noise(predators(t, (4.0, 0.3)), [0.0, 0.01, 0.05, 0.1][number], number)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = ode.fit(model(2, 3, 8), t, u)
    assert not result.left_out.any()


@pytest.mark.parametrize(("first", "end", "good"), [(0.968, 10.0, False), (0.96, 6.0, True)])
def test_an_equation_that_fits_from_a_start_that_was_not_measured(
    first: float, end: float, good: bool
) -> None:
    """Near an unstable state a small change of the first one hides what the equation misses."""
    t = torch.linspace(0, end, 60, dtype=torch.float64)
    u = solution([[2], [1], [0]], [[1, -1, 0.03]], [first], t)
    equations = equations_of([[2], [1]], [[1, -1]], fixed=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ode.PoorFitWarning)
        verdict = ode.fit(equations, t, u, init="model", simplify=False).diagnostics
    assert verdict.good == good
    assert ("With the smooth curve's initial values they miss 4" in str(verdict)) != good
    assert float(verdict.unexplained) < 0.02


def test_first_states_that_hide_what_an_equation_misses_are_held() -> None:
    t = torch.linspace(0, 10, 60, dtype=torch.float64)
    u = solution([[2], [1], [0]], [[1, -1, 0.03]], [0.968], t)
    said = "The initial values are from a smooth curve"
    with warnings.catch_warnings():
        warnings.simplefilter("error", ode.PoorFitWarning)
        result = ode.fit(model(1, 2, 4), t, u, required_terms=[[2], [1]])
    torch.testing.assert_close(result.u0, u[:1], rtol=1e-5, atol=0)
    assert [interval.name for interval in result.confidence_intervals()] == list(result.stderr)
    assert result.df_resid == 58
    assert said in report_of(result)
    assert float(result.diagnostics.unexplained) < 0.02
    free = ode.fit(model(1, 3, 4), t, u, required_terms=[[2], [1], [0]])
    assert free.df_resid == 56
    assert said not in report_of(free)


@pytest.mark.parametrize("u", [waves(T), noise(waves(T), 0.01), -waves(T) * waves(T)])
@pytest.mark.filterwarnings("ignore::npu_kernels.ode.PoorFitWarning")
def test_first_states_are_fitted_where_held_ones_gain_nothing(u: Tensor) -> None:
    """The equation misses as much of the series from those of a smooth curve."""
    assert "The initial values are from" not in report_of(ode.fit(model(1, 1, 4), T, u))


def test_the_variation_of_states_whose_errors_are_in_proportion() -> None:
    """What an equation of constants misses is all of it: the values over their own sizes are nearly 1."""
    t = torch.linspace(0, 4, 60, dtype=torch.float64)
    u = torch.stack([2.0 + torch.sin(1.5 * t), torch.sin(1.5 * t), 3 + 1e-16 * t], 1)
    equations = equations_of([[0, 0, 0]], [[0], [0], [0]])
    with pytest.warns(ode.PoorFitWarning, match=r"R2 = 0\.00"):
        result = ode.fit(equations, t, u, sigma="proportional", init="model", simplify=False)
    assert result.nrmse == pytest.approx(math.sqrt(59 / 60), rel=1e-6)
    assert not result.diagnostics.unexplained[:2].isnan().any()


def test_known_errors_are_those_that_count() -> None:
    u = noise(waves(T).unsqueeze(1), 0.01)
    with pytest.warns(ode.PoorFitWarning, match="times as large as sigma"):
        ode.fit(model(1, 1, 4), T, u, sigma=0.02)
    with pytest.warns(ode.PoorFitWarning, match="less than half") as caught:
        result = ode.fit(model(1, 1, 4), T, u, sigma=1.0)
    assert "as large as sigma" not in str(caught[0].message)
    assert result.diagnostics.errors.tolist() == [1.0]


def test_a_constant_equation_is_named() -> None:
    """It explains nothing of the variation, which may be errors."""
    u = noise(torch.ones(25, 1, dtype=torch.float64), 0.1)
    with pytest.warns(ode.PoorFitWarning):
        result = ode.fit(model(1, 1, 4), T, u, names=["c"])
    assert str(result.equation) == "c' = 0"
    said = "The equations explain less than half of the series' variation (R2 = 0.00). "
    assert str(result.diagnostics) == said + "The equations hold c constant."
    exact = ode.fit(model(1, 1, 4), T, torch.ones(25), names=["c"])
    assert exact.diagnostics.good


# Theophylline in blood after a dose (R's `Theoph`, subjects 7 and 11): hours, mg/l.
THEOPHYLLINE = {
    7: (
        [0.0, 0.25, 0.5, 1.02, 2.02, 3.48, 5.0, 6.98, 9.0, 12.05, 24.22],
        [0.15, 0.85, 2.35, 5.02, 6.58, 7.09, 6.66, 5.25, 4.39, 3.53, 1.15],
    ),
    11: (
        [0.0, 0.25, 0.5, 0.98, 1.98, 3.6, 5.02, 7.03, 9.03, 12.12, 24.08],
        [0.0, 4.86, 7.24, 8.0, 6.81, 5.87, 5.22, 4.45, 3.62, 2.69, 0.86],
    ),
}


def risen_and_fallen(number: int) -> tuple[list[float], list[float]]:
    """A series of `THEOPHYLLINE`, or one that is drawn at the times of the first."""
    if number in THEOPHYLLINE:
        return THEOPHYLLINE[number]
    t, random = numpy.array(THEOPHYLLINE[7][0]), numpy.random.default_rng(number)
    into, out = 10 ** random.uniform(-0.3, 0.7), 10 ** random.uniform(-1.3, -0.9)
    size = random.uniform(6, 12) * into / (into - out)
    c = size * (numpy.exp(-out * t) - numpy.exp(-into * t)) + random.normal(0, 0.25, len(t))
    return list(t), list(c.clip(0).round(2))


@pytest.mark.parametrize("terms", [2, 3])
@pytest.mark.parametrize("number", [7, 20, 23])
def test_few_samples_that_rise_and_fall(number: int, terms: int) -> None:
    """No equation of one state does: its own steps must solve it, and it is no good one."""
    t, c = risen_and_fallen(number)
    with pytest.warns(ode.PoorFitWarning):
        result = ode.fit(model(1, terms, 12), t, c, names=["c"])
    assert not result.diagnostics.good
    measured = torch.tensor(c).double()
    off = result.predict(numbers(*t))[:, 0] - measured
    assert float(off.square().mean().sqrt() / measured.std()) == pytest.approx(result.nrmse)
    exact = ode.rollout(result.model, result.u0[0], t=t, method="kvaerno5", rtol=1e-8)
    errors = 0.3 * float(off.square().mean().sqrt())  # thrice what the steps may have
    torch.testing.assert_close(result.predict(numbers(*t)), exact.detach(), rtol=0, atol=errors)


def test_residuals_that_follow_one_another() -> None:
    """A drift of the instrument, too slow for the equation and too rough for a smooth curve."""
    generator = torch.Generator().manual_seed(1)
    t = torch.linspace(0, 6, 120, dtype=torch.float64)
    steps = torch.randn(120, generator=generator, dtype=torch.float64)
    drift = torch.zeros(120, dtype=torch.float64)
    for n in range(1, 120):
        drift[n] = 0.9 * drift[n - 1] + steps[n]
    u = solution([[1.0]], [[-0.5]], [2.0], t) + 0.06 * drift.unsqueeze(1)
    equations = equations_of([[1]], [[-0.4]], fixed=True)
    with pytest.warns(ode.PoorFitWarning):
        result = ode.fit(equations, t, u, init="model", simplify=False)
    assert float(result.diagnostics.autocorrelation) > 0.5


def test_no_degrees_of_freedom() -> None:
    equations = equations_of([[1]], [[-0.4]])
    with pytest.warns(ode.PoorFitWarning, match="no more measurements than parameters"):
        result = ode.fit(equations, [0.0, 1.0, 2.0], [1.0, 0.7, 0.4], init="model", simplify=False)
    assert result.df_resid == 0
    fewer = ode.fit(equations, [0.0, 1, 2, 3], [1.0, 0.7, 0.4, 0.3], init="model", simplify=False)
    assert "Degrees of freedom: 1." in str(fewer.diagnostics)


def test_exact_is_relative_to_the_variation() -> None:
    """0.55 to 0.53: a constant slope misses 1e-5 of the size, but not of the variation."""
    t = torch.linspace(0, 1, 20, dtype=torch.float64)
    result = ode.fit(model(1, 2, 8), t, 0.53 + 0.02 * (-2 * t).exp(), names=["c"])
    torch.testing.assert_close(
        result.predict([1.0]).item(), 0.53 + 0.02 * 0.1353353, rtol=0, atol=3e-7
    )
    assert result.nrmse < 3e-5


def test_a_column_of_zeros_has_no_part_in_the_equation() -> None:
    c = noise(solution([[1.5]], [[-0.5]], [2.0], T[:15]), 0.02, 1)
    result = ode.fit(model(2, 3, 2), T[:15], torch.cat([c, 0 * c], 1), names=["c", "zero"])
    powers, coefficients = (part[0] for part in result.weights())
    assert not powers[:, 1].any()
    assert not coefficients[1].any()
    assert "zero: constant in the series" in str(result.diagnostics)


DATES = numpy.datetime64("2020-01-01") + numpy.arange(25).astype("timedelta64[D]")
DAY = datetime.datetime(2020, 1, 1)


@pytest.mark.parametrize(
    ("t", "said"),
    [
        (DATES, 'got dates; in days they are (t - t[0]) / numpy.timedelta64(1, "D")'),
        (DATES - DATES[0], 'got distances in time; in days they are t / numpy.timedelta64(1, "D")'),
        (
            [DAY + datetime.timedelta(hours=n) for n in range(25)],
            "in days they are [(x - t[0]) / datetime.timedelta(days=1) for x in t]",
        ),
        (
            [datetime.timedelta(hours=n) for n in range(25)],
            "got distances in time; in days they are [x / datetime.timedelta(days=1) for x in t]",
        ),
    ],
)
def test_dates_are_refused_with_the_line_to_write(t: object, said: str) -> None:
    with pytest.raises(TypeError) as caught:
        ode.fit(known(), t, predators(T), init="model")
    assert said in str(caught.value)
    line = str(caught.value).partition("they are ")[2]
    days = eval(line, {"t": t, "numpy": numpy, "datetime": datetime})
    result = ode.fit(known(), days, predators(T), init="model", simplify=False)
    with pytest.raises(TypeError, match="predict: t must be numbers, got d"):
        result.predict(t)


def test_dates_of_a_table() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    t = pandas.Series(pandas.date_range("2020-01-01", periods=25), index=range(3, 28))
    with pytest.raises(TypeError) as caught:
        ode.fit(known(), t, predators(T), init="model")
    line = str(caught.value).partition("they are ")[2]
    assert eval(line, {"t": t, "numpy": numpy}).tolist() == list(range(25))


def test_masked_values_are_missing() -> None:
    u = predators(T).numpy()
    mask = numpy.arange(u.size).reshape(u.shape) % 5 == 0
    wrong = numpy.ma.masked_array(numpy.where(mask, 3 * u, u), mask=mask)
    masked = ode.fit(known(), T, wrong, init="model", simplify=False)
    missing = ode.fit(known(), T, numpy.where(mask, numpy.nan, u), init="model", simplify=False)
    assert str(masked.equation) == str(missing.equation)
    with pytest.raises(ValueError, match="t must be finite, got nan"):
        ode.fit(known(), numpy.ma.masked_array(T.numpy(), mask=mask[:, 0]), u, init="model")


def test_rows_of_other_labels() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    u = pandas.DataFrame(predators(T).numpy(), columns=["prey", "predator"])
    t = pandas.Series(T.numpy())
    said = r"t must have the row labels \(index\) of u, got labels in another order; t.loc"
    with pytest.raises(ValueError, match=said):
        ode.fit(known(), t[::-1], u, init="model")
    with pytest.raises(ValueError, match=r"t must have the row labels .* got labels that differ"):
        ode.fit(known(), [t, t.set_axis(t.index + 1)], [u, u], init="model")
    said = "sigma must have the row labels"
    with pytest.raises(ValueError, match=said):
        ode.fit(known(), t, u, sigma=u[::-1].abs(), init="model")
    driven = (t, 1 + t[::-1])
    with pytest.raises(ValueError, match="inputs' values must have the row labels"):
        ode.fit(known(), t, u, inputs=driven, init="model")


def test_dates_that_are_text() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    day = pandas.Series(pandas.date_range("2014-05-23", periods=25), index=range(3, 28))
    text = day.dt.strftime("%d-%b-%y")
    table = pandas.DataFrame({"day": text, "x": 1.0})
    for t, u in ((text, predators(T)), (text.to_numpy(), predators(T)), (T, table)):
        with pytest.raises(TypeError) as caught:
            ode.fit(known(), t, u, init="model")
        said, _, line = str(caught.value).partition("they are ")
        assert "must be numbers, got dates as text, such as '23-May-14'" in said
        assert "fit: u['day'] must" in said or u is not table
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pandas does not know the format of such dates
            days = eval(line, {"t": t, "u": u, "pandas": pandas})
        assert list(days) == list(range(25))
    with pytest.raises(TypeError, match="could not convert string to float: 'none'"):
        ode.fit(known(), text.where(day < day.iloc[5], "none").iloc[::-1], predators(T))


def test_weights_of_a_new_layer_are_no_equation() -> None:
    with pytest.warns(UserWarning, match="this model is untrained .its gates are 0.5"):
        ode.fit(model(1, 1), T, numbers(*[1.0] * 25) + 0.01 * T, init="model", simplify=False)


@pytest.mark.parametrize("power", [1.0, 1.5])
@pytest.mark.parametrize("errors", ["small around 0", "all of one size"])
def test_powers_of_a_state_that_is_below_zero(power: float, errors: str) -> None:
    """Its errors grow with it, so its values around 0 are well known, and two of them are below."""
    generator = torch.Generator().manual_seed(0)
    t = torch.linspace(0, 10, 151, dtype=torch.float64)
    scatter = torch.randn(151, generator=generator, dtype=torch.float64)
    true = 0.9 * t - 0.1
    u = true + scatter * (0.02 * true if errors == "small around 0" else 0.05)
    equations = equations_of([[0], [power]], [[0.9, 0.001]], fixed=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ode.PoorFitWarning)
        result = ode.fit(equations, t, u, names=["x"], init="model", simplify=False)
    assert float(result.u0) >= 0  # of an amount
    is_told = "x has values below 0" in str(result.diagnostics)
    assert is_told == (power == 1.5 and errors == "small around 0")
    assert is_told == (not result.diagnostics.good)


@pytest.mark.parametrize(
    ("size", "dtype"),
    [(1e7, "float64"), (1e11, "float64"), (1.7e12, "float64"), (1e13, "float64"), (300, "float32")],
)
def test_a_series_beside_a_large_constant_changes(size: float, dtype: str) -> None:
    """All digits of the measurements count, and no more."""
    u = (size + 100 * T).to(getattr(torch, dtype))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = ode.fit(model(1, 1, 4), T, u)
    assert result.nrmse < 1e-3
    assert result.confidence_intervals()[0].value == pytest.approx(100, rel=3e-3)


def growth(t: Tensor, start: float) -> Tensor:
    """A solution of u' = u - 0.2 u**2."""
    return (5 / (1 + (5 / start - 1) * torch.exp(-t))).unsqueeze(1)


@pytest.mark.parametrize(("seed", "with_input"), [(0, False), (2, True)])
def test_two_series_that_were_appended_are_named(seed: int, with_input: bool) -> None:
    draw = torch.Generator().manual_seed(seed)
    times = [
        6 * torch.rand(25, generator=draw, dtype=torch.float64).sort().values for _ in range(2)
    ]
    u = [noise(growth(t, start), 0.01, seed) for t, start in zip(times, (0.5, 1.5), strict=True)]
    extra = {"inputs": (torch.tensor([0.0, 6.1]), torch.tensor([1.0, 1.1]))} if with_input else {}
    said = "begin again at row 25 (the first row is 0)"
    t, inputs = torch.cat(times), 1 + with_input
    models = nn.Sequential(RealNPU(inputs, 2, num_models=4), NAU(2, 1, num_models=4))
    with pytest.warns(ode.PoorFitWarning, match="pass several series as lists") as caught:
        ode.fit(models, t, torch.cat(u), **extra)
    assert said in str(caught[0].message)
    if not with_input:
        result = ode.fit(models, times, u)
        assert result.diagnostics.good
        assert "begin again" not in str(result.diagnostics)


def test_times_that_begin_again_in_one_trajectory_are_only_noted() -> None:
    t = torch.cat([torch.linspace(0, 6, 20), torch.linspace(0.1, 5.9, 20)]).double()
    u = noise(growth(t, 0.5), 0.01)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    form = equations_of([[1.0], [2.0]], [[1.0, -0.2]])
    for rows in (slice(None), torch.arange(39, -1, -1)):
        result = ode.fit(form, t[rows], u[rows], init="model", simplify=False)
        assert result.diagnostics.good
        assert "The times begin again at row 20" in str(result.diagnostics)
    for rows in (order, t.argsort(), t.argsort(descending=True)):
        result = ode.fit(form, t[rows], u[rows], init="model", simplify=False)
        assert "begin again" not in str(result.diagnostics)


def test_exponents_outside_of_their_intervals_are_named() -> None:
    draw = numpy.random.default_rng(1)
    t = numpy.sort(numpy.r_[0, draw.uniform(0, 40, 23), 40])
    u = solution([[0], [4]], [[2, -2e-10]], [900.0], torch.tensor(t))
    u = u + 0.01 * u.std(0, correction=0) * torch.from_numpy(draw.standard_normal(u.shape))
    result = ode.fit(model(1, 2, 12), t, u, seed=1)
    told = report_of(result)
    pairs = zip(result.estimates, result.confidence_intervals(), strict=True)
    taken = [(estimate, interval) for estimate, interval in pairs if estimate.taken is not None]
    outside = [e.name for e, i in taken if not i.low <= e.taken <= i.high]
    assert ("Taken outside of its interval: " in told) == bool(outside)
    assert all(name in told for name in outside)
    others = [other.model[0].weight_re for other in result.alternatives()]
    assert any(bool((powers == 0).all(1).any()) for powers in others)  # the constant
