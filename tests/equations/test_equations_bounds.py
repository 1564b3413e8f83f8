"""`NPURegressor` where exponents are whole or at a bound, and intervals that end at bounds."""

import numpy as np
import pytest

from tests.support.compare import report_of
from tests.support.equations import approximate, model, noise, terms, uniform


@approximate
@pytest.mark.parametrize("integers", [{"exponents": "integer"}, {"max_denominator": 1}])
@pytest.mark.parametrize(
    "options", [{"target_transforms": ["log"]}, {"required_terms": {"x0**2": 0}}]
)
@pytest.mark.parametrize("max_terms", [2, None])
def test_no_exponent_is_a_fraction(integers, options, max_terms):
    """Where the equation's exponents are fractions, or its product is excluded."""
    X = uniform(2, 60)
    y = 2 * X[:, 0] ** 2
    if "required_terms" not in options:
        y = np.exp(1.3 * np.sqrt(X[:, 0] / X[:, 1]) + 0.2 + 0.01 * noise(60))
    fitted = model(max_terms=max_terms, **integers, **options).fit(X, y)
    for equation in [*fitted.equations_, *fitted.equations_.alternatives]:
        simple = equation.exponents[~equation.free]
        assert (simple % 1 == 0).all(), equation
        assert "integer" not in integers.values() or not equation.free.any()


@approximate
def test_intervals_end_at_bounds():
    """A coefficient that is known has no error, and does not add to those of others."""
    X = uniform(2, 60)
    y = X[:, 0] + 2 * X[:, 1] ** 2 + 0.1 * noise(60)
    options = {"target_powers": (1,), "noise": "additive", "loss": "squared", "max_terms": 2}
    fitted = model(required_terms={"x0": (1, 1), "x1**2": None}, **options).fit(X, y)
    by_name = {interval.name: interval for interval in fitted.confidence_intervals()}
    first, second = by_name["coefficient of x0"], by_name["coefficient of x1**2"]
    assert (first.value, first.stderr, first.low, first.high) == (1, 0, 1, 1)
    reference = model(known_part="x0", required_terms=["x1**2"], **options | {"max_terms": 1}).fit(
        X, y
    )
    assert second.stderr == pytest.approx(reference.confidence_intervals()[0].stderr, rel=0.02)
    labels = np.repeat(["u", "v"], 30)
    grouped = model(required_terms={"x0": (1, 1), "x1**2": None}, **options).fit(
        X, y, groups=labels
    )
    of_term = list(terms(grouped.best_equation_.for_group("u"))).index((1, 0))
    assert (grouped.best_equation_.coef_stderr[:, of_term] == 0).all()
    assert (grouped.best_equation_.coef_stderr[:, 1 - of_term] > 0).all()
    bounded = model(required_terms={"x0": (0, 1), "x1**2": (0, 2.01)}, **options).fit(X, y)
    for interval in bounded.confidence_intervals():
        upper = 1 if interval.name == "coefficient of x0" else 2.01
        assert 0 <= interval.low <= interval.value <= interval.high <= upper
    column = uniform(1, 60)
    power = column[:, 0] ** 0.6 + 0.05 * noise(60)
    free = model(exponents=(0.3, 0.64), **options | {"max_terms": 1}).fit(column, power)
    [exponent] = free.confidence_intervals(0.999)[1:]
    assert exponent.low < exponent.value < exponent.high == 0.64
    signed = model(signs="nonnegative", **options).fit(
        X, X[:, 0] + 0.01 * X[:, 1] + 0.3 * noise(60)
    )
    assert all(interval.low >= 0 for interval in signed.confidence_intervals())


def test_every_form_has_the_exponents_of_bounds():
    """Exponents at bounds are no simple fractions."""
    X = uniform(1, 60) * 1e12
    fitted = model(required_terms=[[0.123457]], max_terms=1, target_powers=(1,)).fit(
        X, 3 * X[:, 0] ** 0.123457
    )
    sympy = pytest.importorskip("sympy")
    values = sympy.lambdify("x0", fitted.sympy())(X[:, 0])
    assert values == pytest.approx(fitted.predict(X), rel=1e-12)


def test_equations_are_compared():
    X = uniform(2, 60)
    equation = model().fit(X, X[:, 0]).best_equation_
    assert equation == equation
    assert equation != model().fit(X, X[:, 1]).best_equation_
    assert len({equation, equation}) == 1


@approximate
def test_coefficients_at_their_bounds_are_named():
    x, e = uniform(1, 80, 1, 3), noise(80)
    y = x[:, 0] + 0.5 + 0.05 * e

    def report(**bounds):
        fitted = model(required_terms={"x0": None, "1": None, **bounds}, max_terms=2)
        return report_of(fitted.fit(x, y))

    for bounds in ((0, 0.5), (None, 0), (1.5, 2)):
        told = report(x0=bounds)
        assert "The coefficient of x0 is at its bound: beyond it the fit would be better." in told
        assert "coefficient of x0: it may be 0" not in told
    assert "bound" not in report(x0=(0, 2))
    assert "do not determine the constant" not in report(**{"1": (0, 0)})


def test_a_large_constant_is_at_no_bound():
    X = uniform(1, 60)
    y = 1e9 + X[:, 0] ** 2 + 0.01 * noise(60)
    fitted = model(max_terms=2).fit(X, y)
    assert fitted.best_equation_.n_terms == 2
    assert "at its bound" not in report_of(fitted)
