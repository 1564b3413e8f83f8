"""`NPURegressor` finds the equations of everyday tables by one call without hints, whatever their
units."""

import math

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="scikit-learn is not installed")


from npu_kernels.equations import EquationWarning, NPURegressor
from tests.support.equations import RNG, approximate, check, few_rows, noise, uniform

# ---- everyday cases ------------------------------------------------------------------------------


@pytest.mark.parametrize("exponent", [-30, -6, 2, 30])
def test_units_do_not_matter(exponent):
    X, scale = uniform(3), 10.0**exponent
    sums = 3.7 * X[:, 0] ** 2 / X[:, 1] - 12.5 * X[:, 2]
    model = NPURegressor(random_state=0).fit(X * [scale, 1, 1], sums * scale)
    check(model, {(2, -1, 0): 3.7 / scale, (0, 0, 1): -12.5 * scale})
    np.testing.assert_allclose(model.predict(X * [scale, 1, 1]), sums * scale, rtol=1e-6)


def test_kepler_in_si():
    r, G = RNG(0), 6.674e-11
    a, M = r.uniform(5e10, 5e12, 200), r.uniform(1e30, 4e30, 200)
    model = NPURegressor(random_state=0).fit(np.c_[a, M], 2 * np.pi * np.sqrt(a**3 / (G * M)))
    check(model, {(1.5, -0.5): 2 * np.pi / math.sqrt(G)})


def test_coulomb_in_si_with_charges_of_both_signs():
    r = RNG(0)
    q, d = r.uniform(-5e-9, 5e-9, (400, 2)), r.uniform(0.01, 0.2, 400)
    model = NPURegressor(random_state=0).fit(np.c_[q, d], 8.99e9 * q[:, 0] * q[:, 1] / d**2)
    check(model, {(1, 1, -2): 8.99e9})


@pytest.mark.parametrize("kind", ["additive", "proportional"])
def test_sum_of_two_terms_with_noise_of_three_per_cent(kind):
    X = uniform(3)
    y = 3.7 * X[:, 0] ** 2 / X[:, 1] - 12.5 * X[:, 2]
    error = y * noise() if kind == "proportional" else np.std(y) * noise()
    model = NPURegressor(random_state=0).fit(X, y + 0.03 * error)
    check(model, {(2, -1, 0): 3.7, (0, 0, 1): -12.5}, rel=0.01)
    assert model.equations_.noise == kind


def test_powers_that_are_no_fractions_with_noise():
    X = uniform(2)
    y = 2.2 * X[:, 0] ** 1.47 * X[:, 1] ** -0.31 * (1 + 0.02 * noise())
    model = NPURegressor(random_state=0).fit(X, y)
    assert model.best_equation_.n_terms == 1
    for interval, true in zip(model.confidence_intervals(0.999), (2.2, 1.47, -0.31), strict=True):
        assert interval.low < true < interval.high
        assert interval.stderr < 0.01


def test_unused_columns_with_noise_of_five_per_cent():
    X = uniform(8)
    y = 0.7 * X[:, 0] * X[:, 1] / X[:, 2] ** 2 * (1 + 0.05 * noise())
    check(NPURegressor(random_state=0).fit(X, y), {(1, 1, -2, 0, 0, 0, 0, 0): 0.7}, rel=0.02)


@few_rows
def test_ten_rows_with_noise_of_one_per_cent():
    X = uniform(2, 10)
    y = 3 * X[:, 0] / X[:, 1] * (1 + 0.01 * noise(10))
    check(NPURegressor(random_state=0).fit(X, y), {(1, -1): 3.0}, rel=0.02)


def test_integers_with_zeros():
    X = RNG(0).integers(0, 6, (300, 3)).astype(float)
    model = NPURegressor(random_state=0).fit(X, 3 * X[:, 0] * X[:, 1] + 2 * X[:, 2] ** 2)
    check(model, {(1, 1, 0): 3.0, (0, 0, 2): 2.0})
    assert model.predict(np.zeros((1, 3)))[0] == 0


def test_four_terms():
    X = uniform(5)
    y = 3 * X[:, 0] * X[:, 1] + 2 * X[:, 2] ** 2 - X[:, 3] / X[:, 0] + 1.5 * X[:, 4]
    expected_terms = {
        (1, 1, 0, 0, 0): 3.0,
        (0, 0, 2, 0, 0): 2.0,
        (-1, 0, 0, 1, 0): -1.0,
        (0, 0, 0, 0, 1): 1.5,
    }
    check(NPURegressor(random_state=0).fit(X, y), expected_terms, rel=1e-7)


@pytest.mark.parametrize("powers", [(3, 1, 0), (3, -2, 0), (2, 2, 2)])
def test_high_powers_of_inputs_of_both_signs(powers):
    X = uniform(3, low=-2, high=2)
    check(
        NPURegressor(random_state=0).fit(X, np.prod(X ** np.array(powers, float), 1)), {powers: 1.0}
    )


def test_real_exponents_are_whole_for_inputs_of_both_signs():
    """Noise would move the exponent, but a negative number has no power that is not whole."""
    X = np.c_[uniform(1, 200, low=-2, high=2), uniform(1, 200, seed=2)]
    options = {
        "random_state": 0, "exponents": "real", "max_terms": 1, "n_init": 8, "target_powers": (1,),
    }  # fmt: skip
    for power in (1, 2):
        y = X[:, 0] ** power * X[:, 1] ** 1.47 + 0.1 * noise(200)
        model = NPURegressor(**options).fit(X, y)
        assert model.exponents_[0, 0] == power
        assert model.exponents_[0, 1] == pytest.approx(1.47, abs=0.05)
        assert model.best_equation_.free.tolist() == [[False, True]]


def test_one_power_is_not_written_as_two():
    """The exponents of two terms would not be determined, and each counts fully then."""
    x = uniform(1, 80, 0.5, 4)
    y = 3 * x[:, 0] ** 0.77 + 0.02 * noise(80)
    model = NPURegressor(
        random_state=0, exponents="real", target_powers=(1,), max_terms=2, noise="additive"
    ).fit(x, y)
    assert model.best_equation_.n_terms == 1
    assert model.exponents_[0, 0] == pytest.approx(0.77, abs=0.01)


def test_negative_y_of_an_output_power():
    X = uniform(2)
    y = -np.sqrt(X[:, 0] ** 2 + 4 * X[:, 1] ** 2)
    model = NPURegressor(random_state=0).fit(X, y)
    check(model, {(2, 0): 1.0, (0, 2): 4.0}, power=2.0)
    np.testing.assert_allclose(model.predict(X), y, rtol=1e-9)
    np.testing.assert_allclose(
        model.torch_module()(torch.from_numpy(X)).detach().numpy()[:, 0], y, rtol=1e-9
    )
    assert model.best_equation_.text() == "y = -(4*x1**2 + x0**2)**(1/2)"


@pytest.mark.parametrize("sign", [1, -1])
def test_output_power_of_a_y_that_errors_make_cross_zero(sign):
    X = uniform(3, 1000, low=1, high=5)  # some of y are smaller than the errors
    y = sign * np.sqrt(X[:, 0] ** 2 + X[:, 1] ** 2) / X[:, 2] ** 4
    y = y + 0.01 * np.sqrt(np.mean(y**2)) * noise(1000)
    assert 20 < (sign * y < 0).sum() < 200
    check(
        NPURegressor(random_state=0).fit(X, y),
        {(2, 0, -8): 1.0, (0, 2, -8): 1.0},
        rel=0.05,
        power=2.0,
    )


def test_reciprocal_of_a_y_of_both_signs():
    X = uniform(3, low=1)
    X[::2, 1] += 3  # x0 - x1 has both signs and no zero
    X[1::2, 0] += 3
    y = X[:, 2] / (X[:, 0] - X[:, 1])
    model = NPURegressor(random_state=0).fit(X, y)
    check(model, {(1, 0, -1): 1.0, (0, 1, -1): -1.0}, power=-1.0)
    np.testing.assert_allclose(model.predict(X), y, rtol=1e-9)
    check(NPURegressor(random_state=0).fit(X, -y), {(1, 0, -1): -1.0, (0, 1, -1): 1.0}, power=-1.0)
    noisy = NPURegressor(random_state=0).fit(X, y + 0.01 * np.sqrt(np.mean(y**2)) * noise())
    check(noisy, {(1, 0, -1): 1.0, (0, 1, -1): -1.0}, rel=0.05, power=-1.0)


@pytest.mark.parametrize("powers", [(1, -2), (2, 1), (-1, 3)])
def test_columns_that_are_negative_in_all_rows(powers):
    X = uniform(2) * [-1e-19, 1]
    y = 3.7 * np.prod(X ** np.array(powers, float), 1)
    y = y * (1 + 0.02 * noise())
    model = NPURegressor(random_state=0).fit(X, y)
    check(model, {powers: 3.7}, rel=0.02)
    np.testing.assert_allclose(model.predict(X), y, rtol=0.1)
    [interval] = model.bootstrap(X, y, n_resamples=20)
    assert abs(interval.value - 3.7) < 3 * interval.stderr


def test_sums_with_columns_that_are_negative_in_all_rows():
    X = uniform(3) * [-1, 1, -1]
    expected = {(1, 1, 0): 2.0, (0, 2, 1): -0.5, (-1, 0, 2): 1.5}
    y = sum(c * np.prod(X ** np.array(w, float), 1) for w, c in expected.items())
    check(NPURegressor(random_state=0).fit(X, y), expected)


@few_rows
@pytest.mark.filterwarnings("ignore:NPURegressor. The residuals are .* as large as noise")
def test_output_powers_need_a_y_whose_other_sign_errors_explain():
    X, y = uniform(1, 50, low=1, high=5), np.linspace(-0.1, 2, 50)
    for power in (2, -2):
        options = {"random_state": 0, "target_powers": (power,), "max_terms": 1, "n_init": 4}
        for noise_of_y in (None, 0.01):
            with pytest.raises(ValueError, match="other than 1 need a y of one sign without zeros"):
                NPURegressor(noise=noise_of_y, **options).fit(X, y)
        assert np.isfinite(NPURegressor(noise=0.05, **options).fit(X, y).predict(X)).all()
        with pytest.raises(ValueError, match="other than 1 need a y of one sign without zeros"):
            NPURegressor(**options).fit(X, np.maximum(y, 0))
        product = X[:, 0] ** (6 / power)
        crossed = 2 * product + 0.02 * noise(50)
        assert (crossed < 0).any() == (power < 0)
        model = NPURegressor(noise=0.02, required_terms=["x0**6"], **options).fit(X, crossed)
        expected = (crossed @ product / (product @ product)) ** power
        check(model, {(6,): expected}, rel=1e-6, power=power)


@approximate
@pytest.mark.filterwarnings("ignore:NPURegressor. The residuals form two clusters")
def test_robust_losses_resist_outliers():
    X = uniform(2)
    y = 5 * X[:, 0] ** 2 / X[:, 1] * (1 + 0.01 * noise())
    y[::15] *= 8
    for loss in ("huber", "soft_l1"):
        model = NPURegressor(random_state=0, loss=loss, target_powers=(1,), max_terms=1).fit(X, y)
        check(model, {(2, -1): 5.0}, rel=0.01)
    plain = NPURegressor(random_state=0, loss="squared", target_powers=(1,), max_terms=1)
    with pytest.warns(EquationWarning, match="20 rows are far from the equation of all other rows"):
        plain.fit(X, y)
    assert abs(plain.predict([[1.0, 1.0]])[0] - 5) > 0.5
    assert plain.equations_.outliers == tuple(range(0, 300, 15))


@pytest.mark.parametrize("loss", ["huber", "soft_l1"])
def test_rows_without_an_error_make_no_equation_exact(loss):
    """Both terms are 0 in most rows."""
    X = RNG(0).uniform(1, 3, (100, 2))
    X[:60, 0] = 0
    y = (3 * X[:, 0] + 2 * X[:, 0] ** 2 * X[:, 1]) * (1 + 0.01 * noise(100))
    model = NPURegressor(random_state=0, loss=loss, target_powers=(1,), ratios=False).fit(X, y)
    check(model, {(1, 0): 3.0, (2, 1): 2.0}, rel=0.05)
    assert not model.best_equation_.exact
