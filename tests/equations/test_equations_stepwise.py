"""`NPURegressor(max_terms=None)`: tables without an equation."""

import numpy as np
import pytest

from npu_kernels.equations import NPURegressor
from tests.support.equations import RNG, approximate, check, noise, terms, uniform


def model(**options):
    return NPURegressor(max_terms=None, random_state=0, **options)


def curved(X):
    return np.exp(-X[:, 0]) + np.sin(2 * X[:, 1]) + 0.5 * X[:, 0] * X[:, 2]


@approximate
def test_held_out_errors_say_how_many_terms():
    X, other = uniform(3), uniform(3, seed=9)
    y = curved(X) + 0.05 * noise()
    fitted = model().fit(X, y)
    best, table = fitted.best_equation_, fitted.equations_
    assert 3 < best.n_terms <= 10
    assert [equation.n_terms for equation in table] == list(range(1, len(table) + 1))
    assert best.holdout_nrmse == min(equation.holdout_nrmse for equation in table)
    assert best.n_held_out == len(X)
    error = fitted.predict(other) - curved(other)
    size = np.sqrt(np.mean(curved(other) ** 2))
    assert np.sqrt(np.mean(error**2)) / size < best.holdout_nrmse < 0.1
    assert fitted.score(other, curved(other)) > NPURegressor(
        1, random_state=0, ratios=False, target_powers=(1,), loss="squared"
    ).fit(X, y).score(other, curved(other))


def test_noise_takes_no_terms():
    X = uniform(6)
    equations = [model().fit(X, 5 + noise(seed=seed)).best_equation_ for seed in range(8)]
    assert np.mean([equation.n_terms for equation in equations]) <= 2
    assert [equation.holdout_nrmse for equation in equations] == pytest.approx([1] * 8, abs=0.05)


def test_inputs_of_both_signs_and_zeros():
    X = RNG(0).uniform(-1, 1, (200, 2))
    X[:20, 1] = 0
    y = 1 + X[:, 0] ** 2 - 2 * X[:, 0] * X[:, 1]
    fitted = model().fit(X, y + 0.01 * noise(200))
    assert np.isfinite(fitted.predict(X)).all()
    check(fitted, {(0, 0): 1, (2, 0): 1, (1, 1): -2}, rel=0.02)


def test_products_of_inputs_of_both_signs():
    X = np.column_stack([RNG(0).uniform(-1, 1, 100), uniform(1, 100)[:, 0]])
    y = np.exp(X[:, 0]) * X[:, 1] ** 1.3 + np.sin(3 * X[:, 1])
    u = np.concatenate([equation.exponents for equation in model().fit(X, y).equations_])
    assert set(u[:, 0]) == {0, 1, 2}
    positive = set(u[:, 1])
    assert positive <= {0, 1, 2, 0.5, -1, -0.5}
    assert not positive.isdisjoint({0.5, -0.5})


def test_what_is_known_holds():
    X = uniform(3)
    y = curved(X) + 0.05 * noise()
    fitted = model(known_part="sin(2*x1)", required_terms=["x0*x2"]).fit(X, y)
    assert all(equation.exponents[0].tolist() == [1, 0, 1] for equation in fitted.equations_)
    assert fitted.best_equation_.text().startswith("y = sin(2*x1) + 0.")
    without = model(required_terms={"1": 0}).fit(X, y)
    assert all((0, 0, 0) not in terms(equation) for equation in without.equations_)
    assert [equation.n_terms for equation in without.equations_] == list(range(1, 11))


@pytest.mark.parametrize("sign", [1, -1])
def test_positive_sums_are_found(sign):
    """A term to begin with leaves the sum again where its coefficient becomes 0."""
    X = sign * uniform(1)
    equation = X[:, 0] + sign * 2 * X[:, 0] ** 2
    fitted = (
        model(signs="nonnegative").fit(X, sign * equation) if sign > 0 else model().fit(X, equation)
    )
    check(fitted, {(1,): 1, (2,): 2 * sign}, rel=1e-9)
    for seed in range(3):
        X = 10 ** RNG(seed).uniform(-0.5, 0.7, (90, 2))
        best = model(signs="nonnegative").fit(X, X[:, 0] * X[:, 1] ** 2).best_equation_
        assert (1, 1) in terms(best)
        assert best.nrmse < 0.4
        assert (best.coef > 0).all()


def test_bounds_of_coefficients_hold():
    X = uniform(2)
    bounds = {"x0": (None, -1), "x1": (0, 0.5)}
    y = 4 * X[:, 0] * X[:, 1] - 0.5 * X[:, 0] + X[:, 1] + 0.01 * noise()
    for equation in model(required_terms=bounds, signs="nonnegative").fit(X, y).equations_:
        actual = terms(equation)
        assert actual[1, 0] <= -1
        assert 0 <= actual[0, 1] <= 0.5
        assert all(c > 0 for w, c in actual.items() if w not in ((1, 0), (0, 1)))


def test_whole_exponents():
    X = uniform(2)
    y = 5 * np.sqrt(X[:, 0]) + X[:, 1]
    for equation in model(exponents="integer").fit(X, y).equations_:
        assert (equation.exponents % 1 == 0).all()


@pytest.mark.parametrize("options", [{}, {"signs": "nonnegative"}, {"exponents": (0, 2)}])
def test_an_exact_sum_is_the_last(options):
    """It has no terms of rounding, and its coefficients can be fitted to other data."""
    X = uniform(2)
    fitted = model(**options).fit(X, 2 * X[:, 0] * X[:, 1] + X[:, 0])
    check(fitted, {(1, 1): 2, (1, 0): 1})
    assert fitted.equations_[-1] is fitted.best_equation_
    other = fitted.refit(X, 3 * X[:, 0] * X[:, 1] + X[:, 0])
    check(other, {(1, 1): 3, (1, 0): 1})


def test_many_inputs():
    """Products of two are those of the best single inputs."""
    X = uniform(20, 400)
    y = X[:, 3] * X[:, 11] + X[:, 7] + 0.05 * noise(400)
    expected = np.zeros((2, 20))
    expected[0, [3, 11]] = expected[1, 7] = 1
    actual = terms(model().fit(X, y).best_equation_)
    assert {tuple(w) for w in expected.tolist()} <= actual.keys()


def test_the_kind_of_errors_counts():
    X = 10 ** uniform(1, low=-1, high=3)
    y = 2 * X[:, 0] * np.exp(0.1 * noise())
    fitted = model(noise="multiplicative").fit(X, y)
    assert fitted.equations_.noise == "multiplicative"
    assert np.abs(np.log(fitted.predict(X) / (2 * X[:, 0]))).max() < 0.1
    with pytest.raises(ValueError, match="noise='multiplicative' needs a y of one sign"):
        model(noise="multiplicative").fit(X, y - 10)


def test_terms_are_exchanged():
    """The best single column is none of the best two."""
    X = uniform(3, 60)
    y = X[:, 0] + X[:, 1] + 0.01 * noise(60)
    X[:, 2] = y + 0.1 * noise(60, 2)
    single, pair = model(required_terms={"1": 0}).fit(X, y).equations_[:2]
    assert single.exponents.tolist() == [[0, 0, 1]]
    assert sorted(pair.exponents.tolist()) == [[0, 1, 0], [1, 0, 0]]
