"""Errors that are factors of y, as in allometry and hydrology: least squares of logarithms, by
themselves where they are likelier than equal errors and errors in proportion to y."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from benchmarks.equations.known_equations import drawn
from npu_kernels.equations import NPURegressor
from tests.support.compare import report_of
from tests.support.equations import RNG, few_rows, noise, standard_errors, terms, uniform
from tests.support.moments import at_call, calls_of

QUICK = {"random_state": 0, "target_powers": (1,), "n_init": 16}


def animals(seed, spread, rows=100):
    generator = RNG(seed)
    x = np.exp(generator.uniform(-4, 8, (rows, 1)))
    return x, 10 * x[:, 0] ** 0.75 * np.exp(spread * generator.standard_normal(rows))


@pytest.mark.parametrize("spread", [0.3, 0.8])
def test_factors_give_the_exponents_of_logarithms(spread):
    for seed in range(2):
        x, y = animals(seed, spread)
        model = NPURegressor(exponents="real", max_terms=2, **QUICK).fit(x, y)
        slope, constant = np.polyfit(np.log(x[:, 0]), np.log(y), 1)
        assert model.equations_.noise == "multiplicative"
        assert model.exponents_.tolist() == [[pytest.approx(slope, abs=1e-7)]]
        assert model.coef_.tolist() == [pytest.approx(np.exp(constant), rel=1e-6)]
        logs = np.log(y / model.predict(x))
        assert model.best_equation_.weighted_nrmse == pytest.approx(
            np.sqrt(np.mean(logs**2)), rel=1e-6
        )
        typical = np.exp(model.best_equation_.weighted_nrmse)
        assert (
            f"Error model: multiplicative, a factor of about {typical:.3g} up or down."
            in report_of(model)
        )


@few_rows
@pytest.mark.parametrize("rows", [15, 30])
def test_the_error_of_rows_left_out_is_that_of_y(rows):
    """The form is fixed, so that the equation without a row is a mean of logarithms."""
    x, y = animals(1, 0.4, rows)
    options = {"noise": "multiplicative", "required_terms": ["x0**(3/4)"], "max_terms": 1}
    model = NPURegressor(**options, **QUICK).fit(x, y)
    logs = np.log(y) - 0.75 * np.log(x[:, 0])
    without = np.array([np.delete(logs, row).mean() for row in range(rows)])
    errors = y - np.exp(without) * x[:, 0] ** 0.75
    expected = np.sqrt(np.sum(errors**2) / np.sum((y - y.mean()) ** 2))
    assert model.best_equation_.holdout_nrmse == pytest.approx(expected, rel=0.02)


def test_standard_errors_and_bootstrap_of_factors():
    x, y = animals(0, 0.5, 400)
    model = NPURegressor(exponents="real", max_terms=1, **QUICK).fit(x, y)
    A = np.column_stack([np.log(x[:, 0]), np.ones(400)])
    rss = np.linalg.lstsq(A, np.log(y), rcond=None)[1][0]
    error = np.sqrt(np.linalg.inv(A.T @ A)[0, 0] * rss / 398)
    assert model.exponents_stderr_[0, 0] == pytest.approx(error, rel=1e-6)
    drawn = model.bootstrap(x, y, n_resamples=60)[1]
    assert drawn.stderr == pytest.approx(error, rel=0.4)
    assert drawn.low < 0.75 < drawn.high


def test_a_sum_with_factors():
    X = np.exp(3 * RNG(0).uniform(-0.5, 0.5, (400, 3)))
    y = (3 * X[:, 0] ** 2 + 5 / X[:, 1] ** 2) * np.exp(0.3 * noise(400))
    model = NPURegressor(**QUICK).fit(X, -y)
    assert model.equations_.noise == "multiplicative"
    expected = {(2, 0, 0): -3, (0, -2, 0): -5}
    assert terms(model.best_equation_) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("kind", ["additive", "proportional", "small"])
def test_other_errors_are_no_factors(kind):
    X, e = uniform(2), noise()
    y = 3 * X[:, 0] ** 2 / X[:, 1]
    y = {"additive": y + 0.4 * e, "proportional": y * (1 + 0.2 * e), "small": y * np.exp(0.05 * e)}[
        kind
    ]
    model = NPURegressor(max_terms=2, **QUICK).fit(X, 1e3 * y)
    assert model.equations_.noise == {"small": "proportional"}.get(kind, kind)


@few_rows
def test_errors_are_in_proportion_to_the_equation_itself():
    """Weights by another equation's prediction suit a third one, which predicts other sizes."""
    draw = RNG([94, 9])
    draw.choice(5)
    equation = drawn(7094)
    X = equation.draw(30, draw)
    y = equation.measured(X, 0.05, draw)
    model = NPURegressor(random_state=0, target_powers=(1,), ratios=False).fit(X, y)
    assert model.equations_.noise == "additive"


def test_factors_that_are_said():
    x, y = animals(1, 0.05)
    model = NPURegressor(noise="multiplicative", max_terms=1, **QUICK).fit(x, y)
    assert model.equations_.noise == "multiplicative"


@pytest.mark.parametrize("power", [1, 2, -1])
@pytest.mark.parametrize("kind", ["multiplicative", "additive"])
def test_standard_errors_of_powers_of_y(power, kind):
    X = uniform(2, 80)
    y = (X[:, 0] ** 2 + 3 * X[:, 1]) ** (1 / power)
    y = y * np.exp(0.1 * noise(80)) if kind == "multiplicative" else y + 0.02 * noise(80)
    options = {"exponents": "real", "max_terms": 2, "n_init": 8, "loss": "squared"}
    model = NPURegressor(
        random_state=0, target_powers=(power,), noise=kind, ratios=False, **options
    )
    best = model.fit(X, y).best_equation_
    assert best.free.sum() == 2

    def equation(parameters):
        u = best.exponents.copy()
        u[best.free] = parameters[2:]
        values = ((X[:, None] ** u).prod(2) @ parameters[:2]) ** (1 / power)
        return np.log(values) if kind == "multiplicative" else values

    parameters = np.append(best.coef, best.exponents[best.free])
    expected = standard_errors(equation, parameters, np.log(y) if kind == "multiplicative" else y)
    errors = np.append(best.coef_stderr, best.exponents_stderr[best.free])
    np.testing.assert_allclose(errors, expected, rtol=1e-4)


# ---- errors in proportion ------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"loss": "huber"}, {"max_terms": None}])
def test_relative_errors_do_not_make_coefficients_smaller(options):
    """Weights by y itself would: 1.85 for 2 here, with an interval of 0.05."""
    draw = np.random.default_rng(0)
    X = draw.uniform(0.5, 3, (400, 2))
    y = 2 * X[:, 0] / X[:, 1] * (1 + 0.2 * draw.standard_normal(400))
    options = {"max_terms": 1, "n_init": 4, "ratios": False, **options}
    model = NPURegressor(random_state=0, noise="proportional", **options).fit(X, y)
    refitted = model.refit(X, y)
    for first, second in zip(
        model.confidence_intervals(), refitted.confidence_intervals(), strict=True
    ):
        assert abs(first.value - second.value) < 0.2 * first.stderr
    prediction, equation = model.predict(X), 2 * X[:, 0] / X[:, 1]
    assert abs(np.mean(prediction / equation) - 1) < 0.03
    for interval in model.bootstrap(X, y, n_resamples=20):
        assert interval.low - interval.stderr < interval.value < interval.high + interval.stderr


def test_a_fit_of_relative_errors_is_that_of_its_refit():
    """The weights of the last fit are those of the equation that was found, not of the one before."""
    draw = np.random.default_rng(1)
    X = draw.uniform(0.5, 3, (200, 2))
    y = (2 * X[:, 0] + 3 / X[:, 1]) * (1 + 0.4 * draw.standard_normal(200))
    options = {"exponents": "integer", "max_terms": 2, "ratios": False, "noise": "proportional"}
    model = NPURegressor(**{**QUICK, "n_init": 4}, **options).fit(X, y)
    for first, second in zip(
        model.confidence_intervals(), model.refit(X, y).confidence_intervals(), strict=True
    ):
        assert abs(first.value - second.value) < 0.2 * first.stderr


@pytest.mark.parametrize("share", [0.4, 0.5, 0.6, 0.8, 0.95])
def test_ctrl_c_in_the_search_for_relative_errors_or_later_leaves_the_first_equation(share):
    draw = np.random.default_rng(0)
    X = draw.uniform(0.5, 3, (60, 2))
    y = 2 * X[:, 0] / X[:, 1] * (1 + 0.01 * draw.standard_normal(60))
    model = NPURegressor(
        random_state=0, max_terms=1, noise="proportional", target_powers=(1,), ratios=False
    )
    calls = calls_of(lambda: model.fit(X, y))
    with pytest.warns(UserWarning, match="interrupted"), at_call(share * calls):
        model.fit(X, y)
    assert not model.equations_.complete
    assert model.best_equation_.exponents.tolist() == [[1, -1]]
