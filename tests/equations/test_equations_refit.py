"""`NPURegressor.refit` and `bootstrap`: the form of an equation kept, its parameters estimated again."""

import numpy as np
import pytest

from npu_kernels.equations import EquationWarning
from tests.support.equations import RNG, approximate, model, noise, terms, uniform


def test_refit_keeps_the_form():
    X, other = uniform(3), uniform(3, seed=5)
    fitted = model(ratios=False).fit(X, 3 * X[:, 0] ** 0.37 / X[:, 1] + 0.001 * noise())
    before = fitted.best_equation_.text()
    y = -200 * other[:, 0] ** 0.55 / other[:, 1] + 0.1 * noise(seed=3)
    other_model = fitted.refit(other, y)
    assert fitted.best_equation_.text() == before
    assert other_model.best_equation_.coef[0] == pytest.approx(-200, rel=0.01)
    assert other_model.best_equation_.exponents[0].tolist() == pytest.approx(
        [0.55, -1, 0], abs=0.01
    )
    assert len(other_model.equations_) == 1
    assert other_model.best_equation_.holdout_nrmse == pytest.approx(0.1 / y.std(), rel=0.3)
    assert np.abs(other_model.predict(other) - y).max() < 1
    assert (
        other_model.confidence_intervals()[0].low
        < -200
        < other_model.confidence_intervals()[0].high
    )


@pytest.mark.filterwarnings("ignore:NPURegressor. The residuals are .* as large as noise")
@pytest.mark.filterwarnings("ignore:NPURegressor. Errors are .* as large where x0 is large")
@pytest.mark.parametrize(
    "options", [{"noise": "proportional"}, {"noise": "multiplicative"}, {"noise": 0.5}]
)
def test_refit_keeps_the_kind_of_errors(options):
    X = uniform(2)
    y = 5 * X[:, 0] ** 2 * np.exp(0.1 * noise())
    fitted = model(**options).fit(X, y)
    other_model = fitted.refit(X, 1000 * y)
    assert other_model.equations_.noise == fitted.equations_.noise
    assert list(terms(other_model.best_equation_)) == [(2, 0)]
    assert other_model.best_equation_.coef[0] == pytest.approx(
        1000 * fitted.best_equation_.coef[0], rel=0.02
    )


@pytest.mark.parametrize("seed", range(2))
def test_proportional_errors_are_those_of_the_equation(seed):
    """A refit to the same table, whose weights have converged, changes nothing."""
    X = uniform(2, 80, seed=seed)
    y = (2 * X[:, 0] ** 2 + X[:, 1]) * (1 + 0.1 * noise(80, seed + 3))
    fitted = model(noise="proportional").fit(X, y)
    first, second = fitted.best_equation_, fitted.refit(X, y).best_equation_
    assert first.coef == pytest.approx(second.coef, rel=1e-5)
    assert first.coef_stderr == pytest.approx(second.coef_stderr, rel=1e-3)
    assert first.bic == pytest.approx(second.bic, abs=0.02)


@approximate
def test_refit_takes_a_y_of_the_other_sign_for_an_error():
    """Errors have any size, as in `fit`, whose first sum has larger ones than the equation."""
    X = uniform(1)
    y = (1 + X[:, 0]) ** -2 + 1e-4 * noise()
    fitted = model(target_powers=(-0.5,)).fit(X, y)
    y[X[:, 0].argmax()] = -0.05
    for factor in (1, -1):
        refitted_model = fitted.refit(X, factor * y)
        other = refitted_model.best_equation_
        assert other.target_power == -0.5
        assert other.coef == pytest.approx(fitted.best_equation_.coef, rel=0.05)
        assert other.predict(X) == pytest.approx(factor * fitted.predict(X), rel=0.05)
        assert len(refitted_model.bootstrap(X, factor * y, n_resamples=10)) == 2


@approximate
def test_refit_of_limits_and_a_known_part():
    X = uniform(2)
    options = {"known_part": "x0", "required_terms": {"x1": (0, 1)}}
    fitted = model(**options).fit(X, X[:, 0] + 0.5 * X[:, 1] + 0.01 * noise())
    other_model = fitted.refit(X, X[:, 0] + 5 * X[:, 1])
    assert other_model.best_equation_.text().startswith("y = x0 + x1")


def test_refit_of_several_outputs_and_weights():
    X = uniform(2)
    y = np.column_stack([2 * X[:, 0], 3 * X[:, 1]])
    fitted = model().fit(X, y)
    weight = np.append(np.zeros(10), np.ones(290))
    y[:10] = 1e3
    other_model = fitted.refit(X, 2 * y, weight)
    assert [e.text() for e in other_model.best_equation_] == ["y0 = 4*x0", "y1 = 6*x1"]
    with pytest.raises(ValueError, match="y must have 2 columns, got 1"):
        fitted.refit(X, y[:, 0])


@approximate
@pytest.mark.parametrize("options", [{}, {"max_terms": None}])
def test_a_refit_may_make_coefficients_0(options):
    X = uniform(2)
    products = X[:, 0] * X[:, 1]
    fitted = model(signs="nonnegative", **options).fit(X, 3 * products + X[:, 1])
    for y in (4.5 * products - 0.5 * X[:, 1], 4.5 * products):
        other = fitted.refit(X, y)
        actual = terms(other.best_equation_)
        assert actual[0, 1] == pytest.approx(0, abs=1e-12)
        assert other.best_equation_.text().endswith("*x0*x1")
        assert np.isfinite(other.predict(X)).all()
        assert len(other.bootstrap(X, y, n_resamples=10)) == 2


@pytest.mark.filterwarnings("error")
def test_a_refit_to_rows_that_tell_nothing():
    X = uniform(2)
    fitted = model().fit(X, 3 * X[:, 0] * X[:, 1] + X[:, 1])
    for rows, y in ((X * 0, X[:, 0]), (X[:1], X[:1, 0]), (X * 0 + X[0], X[:, 0])):
        with pytest.warns(EquationWarning, match="do not determine 2 of the 2 parameters"):
            other = fitted.refit(rows, y)
        assert (other.coef_stderr_ == np.inf).all()
        assert (other.coef_ != 0).all()
    power = model(exponents="real").fit(X, X[:, 0] ** 1.234)
    with pytest.warns(EquationWarning, match="do not determine 2 of the 3"):
        other = power.refit(X * 0 + 1, X[:, 0])
    assert (other.exponents_stderr_[other.best_equation_.free] == np.inf).all()
    assert power.refit(X, 2 * X[:, 0] ** 1.5).coef_ == pytest.approx([2])


@pytest.mark.filterwarnings("ignore:NPURegressor. 1 row is far")
def test_a_bootstrap_leaves_out_the_wild_rows_in_any_order():
    X = uniform(2, 60)
    y = 2 * X[:, 0] / X[:, 1] * (1 + 0.01 * noise(60))
    y[7] *= 40
    fitted = model(max_terms=1).fit(X, y)
    assert fitted.equations_.outliers == (7,)
    order = RNG(3).permutation(60)
    drawn = fitted.bootstrap(X, y, n_resamples=20)
    assert drawn[0].stderr < 0.01
    assert fitted.bootstrap(X[order], y[order], n_resamples=20) == drawn
    for other in ((X, 3 * y), (X[:1], y[:1]), (X[:-1], y[:-1]), (X[order], y)):
        with pytest.raises(ValueError, match="bootstrap: X and y must be the data of fit, got oth"):
            fitted.bootstrap(*other, n_resamples=20)
