"""`NPURegressor` where the rows say less than a law: exponents that are no simple numbers, a
column of hardly any width, residuals that are alike in few of many rows."""

import re

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from npu_kernels import NPURegressor
from tests.support.laws import RNG, noise, uniform

QUICK = {"random_state": 0, "output_powers": (1,), "ratios": False, "starts": 16}
ONE = {**QUICK, "max_terms": 1}
pytestmark = pytest.mark.filterwarnings("ignore::npu_kernels.equations.EquationWarning")


def allometry(exponent, size, seed, rows=60):
    draw = RNG(seed)
    x = np.exp(draw.uniform(0, 2, rows))
    return x[:, None], 2 * x**exponent * (1 + size * draw.standard_normal(rows))


def free_power(X, y, predicted):
    """The exponent of a power with errors in proportion to a prediction, and its error."""
    optimize = pytest.importorskip("scipy.optimize", reason="SciPy is not installed")
    found, C = optimize.curve_fit(
        lambda x, c, w: c * x**w, X[:, 0], y, [2.0, 0.5], sigma=predicted, maxfev=10_000
    )
    return found[1], np.sqrt(C[1, 1])


def test_a_fraction_stands_beside_its_free_exponent():
    stood = 0
    for seed in range(20):
        X, y = allometry(0.75, 0.05, seed)
        fitted = NPURegressor(noise="relative", **ONE).fit(X, y)
        value, error = free_power(X, y, fitted.predict(X))
        told = re.search(r"exponent of x0 in term 1 = 3/4; free: (\S+) ± (\S+)", fitted.report())
        if fitted.exponents_[0, 0] == 0.75:
            stood += 1
            assert float(told[1]) == pytest.approx(value, rel=1e-3)
            assert float(told[2]) == pytest.approx(error, rel=0.06)  # two digits
            assert abs(value - 0.75) < 2.02 * error
        else:
            assert told is None
            assert abs(value - 0.75) > 1.98 * error
            assert fitted.exponents_[0, 0] == pytest.approx(value, rel=1e-3)
    assert stood >= 15


@pytest.mark.parametrize("exponent", [0.71, 0.87, -0.87])
def test_a_fraction_that_the_rows_exclude_does_not_stand(exponent):
    for seed in range(6):
        X, y = allometry(exponent, 0.05, seed)
        fitted = NPURegressor(noise="relative", **ONE).fit(X, y)
        value, error = free_power(X, y, fitted.predict(X))
        law = fitted.exponents_[0, 0]
        assert law == pytest.approx(value, rel=1e-3) or abs(law - value) < 2.02 * error


def test_a_fraction_that_is_nearly_met_stands_though_rows_exclude_it():
    """An exponent that is 3/4 to four digits is so by chance hardly ever."""
    told = 0
    for seed in range(5):
        X, y = allometry(0.75006, 1e-4, seed)
        fitted = NPURegressor(noise="relative", **ONE).fit(X, y)
        value, error = free_power(X, y, fitted.predict(X))
        apart = abs(value - 0.75) / error
        if 2.1 < apart < 3.3:
            told += 1
            assert fitted.exponents_[0, 0] == 0.75
            away = re.search(r"= 3/4; free: \S+ ± \S+, (\S+) errors away", fitted.report())
            assert float(away[1]) == pytest.approx(apart, abs=0.1)
    assert told >= 1


def test_an_exact_fraction_has_no_doubt():
    X, y = allometry(0.75, 0.0, 0)
    fitted = NPURegressor(**ONE).fit(X, y)
    assert fitted.best_.exact
    assert "free:" not in fitted.report()
    assert fitted.equations_.alternatives == []


def test_whole_exponents_stand():
    X = uniform(2, 80) * [1, -1]
    fitted = NPURegressor(**QUICK).fit(X, X[:, 0] / X[:, 1] ** 2 + 0.01 * noise(80))
    assert "free:" not in fitted.report()


@pytest.mark.parametrize("seed", [2, 3, 8])
def test_the_single_power_is_named_beside_a_sum(seed):
    """Its criterion is that of the power alone, less than 6 higher."""
    X, y = allometry(-0.87, 0.1, seed)
    fitted = NPURegressor(random_state=0, ratios=False).fit(X, y)
    powers = [law for law in fitted.equations_.alternatives if law.terms == 1 and law.free.any()]
    assert fitted.best_.terms == 2
    assert len(powers) == 1
    value, error = free_power(X, y, fitted.predict(X))
    assert powers[0].exponents[0, 0] == pytest.approx(value, abs=0.1 * error)
    assert 0 < powers[0].bic - fitted.best_.bic < 6


def test_a_refit_tells_the_free_exponent_too():
    X, y = allometry(0.75, 0.02, 1)
    fitted = NPURegressor(noise="relative", **ONE).fit(X, y)
    assert fitted.exponents_[0, 0] == 0.75
    other, z = allometry(0.87, 0.02, 2)
    refitted = fitted.refit(other, z)
    value, error = free_power(other, z, refitted.predict(other))
    told = re.search(r"= 3/4; free: (\S+) ± ", refitted.report())
    assert float(told[1]) == pytest.approx(value, abs=0.3 * error)


# ---- a column of hardly any width ----------------------------------------------------------------


@pytest.mark.parametrize("origin", [1.7e9, 1.7e12])
def test_a_line_in_time_stamps(origin):
    t = np.linspace(origin, origin + 2e4, 24)
    fitted = NPURegressor(random_state=0).fit(t[:, None], 0.002 * (t - t[0]) + 5)
    assert sorted(fitted.exponents_[:, 0]) == [0, 1]
    assert fitted.best_.text().startswith("y = 0.002*x0 - 3.4e+0")
    [note] = fitted.equations_.notes
    assert note.startswith("The values of x0 differ by 1.2e-0")
    assert f"Subtract an origin, such as x0 - {origin:.6g}" in note


def test_a_line_in_years():
    lines = 0
    for seed in range(6):
        t = np.arange(1960.0, 2021)
        y = 2 * (t - 1960) + 3 * noise(61, seed) + 100
        fitted = NPURegressor(**QUICK).fit(t[:, None], y)
        lines += sorted(fitted.exponents_[:, 0]) == [0, 1]
        assert "Subtract an origin, such as x0 - 1960, " in fitted.report()
        assert np.abs(fitted.predict(t[:, None]) - np.polyval(np.polyfit(t, y, 1), t)).max() < 3
    assert lines >= 5


def test_a_line_beside_another_column():
    a, t = uniform(2, 100, low=1, high=3).T
    t = 290 + 5 * t
    y = (3 * a**2 + 0.5 * a * (t - 290)) * (1 + 0.01 * noise(100))
    fitted = NPURegressor(**QUICK).fit(np.c_[t, a], y)
    rows = sorted(map(tuple, fitted.exponents_.tolist()))
    assert rows == [(0, 1), (0, 2), (1, 1)]
    wide = NPURegressor(**QUICK).fit(np.c_[t - 290, a], y)
    assert wide.equations_.notes == ()


# ---- residuals and terms that are no law ---------------------------------------------------------


def test_neighbours_are_looked_for_among_all_rows():
    """Each of 400 sites has an error of its own in 4 rows: of 200 evenly apart no 2 are of one."""
    X = uniform(4, 400).repeat(4, axis=0)
    X[:, 3] *= np.tile([1.0, 1.01, 1.02, 1.03], 400)
    y = X[:, 0] * X[:, 1] + noise(400).repeat(4) + 0.3 * noise(1600, 3)
    fitted = NPURegressor(**ONE).fit(X, y)
    assert "the residuals of rows beside each other are alike" in fitted.report()


def test_terms_that_stand_for_a_logarithm():
    X = uniform(1, 200, low=1, high=100)
    y = 3 + np.log(X[:, 0]) / 10 + 0.001 * noise(200)
    fitted = NPURegressor(**ONE).fit(X, y)
    assert abs(fitted.exponents_[0, 0]) < 0.1
    assert "near 0: the term stands for a logarithm or another function." in fitted.report()
