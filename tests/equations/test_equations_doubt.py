"""`NPURegressor` where the rows say less than an equation: exponents that are no simple numbers, a
column of hardly any width, residuals that are alike in few of many rows."""

import math
import re

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from npu_kernels import NPURegressor
from tests.equations.real_tables import TABLES
from tests.support.compare import report_of
from tests.support.equations import RNG, noise, uniform

QUICK = {"random_state": 0, "target_powers": (1,), "ratios": False, "n_init": 16}
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
        fitted = NPURegressor(noise="proportional", **ONE).fit(X, y)
        value, error = free_power(X, y, fitted.predict(X))
        told = re.search(r"exponent of x0 in term 1 = 3/4; free: (\S+) ± (\S+)", report_of(fitted))
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
    for seed in range(3):
        X, y = allometry(exponent, 0.05, seed)
        fitted = NPURegressor(noise="proportional", **ONE).fit(X, y)
        value, error = free_power(X, y, fitted.predict(X))
        equation = fitted.exponents_[0, 0]
        assert equation == pytest.approx(value, rel=1e-3) or abs(equation - value) < 2.02 * error


def test_a_fraction_that_is_nearly_met_stands_though_rows_exclude_it():
    """An exponent that is 3/4 to four digits is so by chance hardly ever."""
    told = 0
    for seed in range(5):
        X, y = allometry(0.75006, 1e-4, seed)
        fitted = NPURegressor(noise="proportional", **ONE).fit(X, y)
        value, error = free_power(X, y, fitted.predict(X))
        apart = abs(value - 0.75) / error
        if 2.1 < apart < 3.3:
            told += 1
            assert fitted.exponents_[0, 0] == 0.75
            away = re.search(r"= 3/4; free: \S+ ± \S+, (\S+) errors away", report_of(fitted))
            assert float(away[1]) == pytest.approx(apart, abs=0.1)
    assert told >= 1


def test_an_exact_fraction_has_no_doubt():
    X, y = allometry(0.75, 0.0, 0)
    fitted = NPURegressor(**ONE).fit(X, y)
    assert fitted.best_equation_.exact
    assert "free:" not in report_of(fitted)
    assert fitted.equations_.alternatives == []


def test_an_integer_stands_beside_its_free_exponent():
    X = uniform(2, 80) * [1, -1]
    y = X[:, 0] ** 3 / X[:, 1] ** 2 + 0.01 * noise(80)
    fitted = NPURegressor(**QUICK).fit(X, y)
    assert fitted.exponents_.tolist() == [[3, -2]]
    optimize = pytest.importorskip("scipy.optimize", reason="SciPy is not installed")
    value, C = optimize.curve_fit(lambda x, c, w: c * x[0] ** w / x[1] ** 2, X.T, y, [1.0, 3.0])
    told = re.search(r"exponent of x0 in term 1 = 3; free: (\S+) ± (\S+)", report_of(fitted))
    assert float(told[1]) == pytest.approx(value[1], rel=1e-5)
    assert float(told[2]) == pytest.approx(np.sqrt(C[1, 1]), rel=0.06)  # two digits
    assert "exponent of x1" not in report_of(fitted)  # a column of negative numbers


def test_the_equation_with_free_exponents_is_named_beside_fractions():
    """Its intervals hold the truth as often as they say, those given the fractions do not."""
    listed, told, of_fractions = 0, 0, 0
    for seed in range(40):
        draw = RNG(seed)
        X = draw.uniform(0.5, 3, (40, 2))
        y = 3 * X[:, 0] ** 1.3 / X[:, 1] ** 0.7 * np.exp(0.05 * draw.standard_normal(40))
        fitted = NPURegressor(**ONE).fit(X, y)
        equations = [fitted.best_equation_, *fitted.equations_.alternatives]
        free = [equation for equation in equations if equation.free.all()]
        listed += len(free) == 1
        for equation in free:
            coefficient = equation.confidence_intervals()[0]
            told += coefficient.low <= 3 <= coefficient.high
        coefficient = fitted.confidence_intervals()[0]
        of_fractions += coefficient.low <= 3 <= coefficient.high
    assert listed == 40
    assert told >= 35
    assert of_fractions < told


def test_a_fraction_that_is_well_known_has_no_such_equation():
    X, y = allometry(0.5, 1e-4, 0)
    fitted = NPURegressor(**ONE).fit(X, y)
    assert fitted.exponents_.tolist() == [[0.5]]
    assert fitted.equations_.alternatives == []


def test_free_exponents_in_place_of_several_fractions_raise_the_criterion_little():
    """The rows exclude one fraction after the other, each at a cost below 6."""
    draw = RNG([13, 9])
    draw.choice(5)
    ranges = [(0.5, 3), (1, 5), (0.5, 3), (0.5, 3)]
    X = np.column_stack([draw.uniform(low, high, 60) for low, high in ranges])
    y = -1.4471532 * X[:, 0] ** 0.75 * X[:, 1] ** 1.5 / X[:, 2] ** 0.5 - 5.866348 * X[:, 3]
    y += 0.01 * np.sqrt(np.mean(y**2)) * draw.standard_normal(60)
    options = {**QUICK, "max_terms": 2, "noise": "additive"}
    best = NPURegressor(**options).fit(X, y).best_equation_
    given = ["x0**(3/4)*x1**(3/2)*x2**(-1/2)", "x3"]
    of_fractions = NPURegressor(required_terms=given, **options).fit(X, y).best_equation_
    assert best.bic < of_fractions.bic + 6


@pytest.mark.parametrize("seed", [2, 3, 8])
def test_the_single_power_is_named_beside_a_sum(seed):
    """Its criterion is that of the power alone, less than 6 higher."""
    X, y = allometry(-0.87, 0.1, seed)
    fitted = NPURegressor(random_state=0, ratios=False).fit(X, y)
    powers = [
        equation
        for equation in fitted.equations_.alternatives
        if equation.n_terms == 1 and equation.free.any()
    ]
    assert fitted.best_equation_.n_terms == 2
    assert len(powers) == 1
    value, error = free_power(X, y, fitted.predict(X))
    assert powers[0].exponents[0, 0] == pytest.approx(value, abs=0.1 * error)
    assert 0 < powers[0].bic - fitted.best_equation_.bic < 6


def test_a_refit_tells_the_free_exponent_too():
    X, y = allometry(0.75, 0.02, 1)
    fitted = NPURegressor(noise="proportional", **ONE).fit(X, y)
    assert fitted.exponents_[0, 0] == 0.75
    other, z = allometry(0.87, 0.02, 2)
    refitted = fitted.refit(other, z)
    value, error = free_power(other, z, refitted.predict(other))
    told = re.search(r"= 3/4; free: (\S+) ± ", report_of(refitted))
    assert float(told[1]) == pytest.approx(value, abs=0.3 * error)


# ---- a column of hardly any width ----------------------------------------------------------------


@pytest.mark.parametrize("origin", [1.7e9, 1.7e12])
def test_a_line_in_time_stamps(origin):
    t = np.linspace(origin, origin + 2e4, 24)
    fitted = NPURegressor(random_state=0).fit(t[:, None], 0.002 * (t - t[0]) + 5)
    assert sorted(fitted.exponents_[:, 0]) == [0, 1]
    assert fitted.best_equation_.text().startswith("y = 0.002*x0 - 3.4e+0")
    [note] = fitted.equations_.notes
    assert note.startswith("The values of x0 differ by 1.2e-0")
    assert f"Subtract a reference value, such as x0 - {origin:.6g}" in note


def test_a_column_without_width_is_named_where_the_equation_is_a_constant():
    x = 2.0**53 + 6 * np.arange(60)
    fitted = NPURegressor(random_state=0).fit(x[:, None], x - 2.0**53)
    assert "The values of x0 differ by 3.9e-14 of their size" in " ".join(fitted.equations_.notes)


def test_a_line_in_years():
    lines = 0
    for seed in range(6):
        t = np.arange(1960.0, 2021)
        y = 2 * (t - 1960) + 3 * noise(61, seed) + 100
        fitted = NPURegressor(**QUICK).fit(t[:, None], y)
        lines += sorted(fitted.exponents_[:, 0]) == [0, 1]
        assert "Subtract a reference value, such as x0 - 1960, " in report_of(fitted)
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


# ---- residuals and terms that are not an equation ------------------------------------------------


def test_neighbours_are_looked_for_among_all_rows():
    """Each of 400 sites has an error of its own in 4 rows: of 200 evenly apart no 2 are of one."""
    X = uniform(4, 400).repeat(4, axis=0)
    X[:, 3] *= np.tile([1.0, 1.01, 1.02, 1.03], 400)
    y = X[:, 0] * X[:, 1] + noise(400).repeat(4) + 0.3 * noise(1600, 3)
    fitted = NPURegressor(**ONE).fit(X, y)
    assert "residuals of neighbouring rows are correlated" in report_of(fitted)


def test_terms_that_stand_for_a_logarithm():
    X = uniform(1, 200, low=1, high=100)
    y = 3 + np.log(X[:, 0]) / 10 + 0.001 * noise(200)
    fitted = NPURegressor(**ONE).fit(X, y)
    assert abs(fitted.exponents_[0, 0]) < 0.1
    assert "near 0: the term stands for a logarithm or another function." in report_of(fitted)


# ---- few rows: smooth residuals, and exponents at the end of those that are tried ----------------


def vogel(rows):
    """The viscosity of water by Vogel's equation, rounded to three decimals."""
    T = np.linspace(273.15, 373.15, rows)
    return T[:, None], np.round(0.02939 * np.exp(507.88 / (T - 149.3)), 3)


@pytest.mark.parametrize("rows", [8, 12, 18])
def test_the_search_goes_on_where_a_power_leaves_a_curve(rows):
    X, y = vogel(rows)
    T = X[:, 0] / 300
    A = np.column_stack([np.ones(rows), T, T**-1.5]) * y[:, None]  # 1 / y, errors in proportion
    nearby = A @ np.linalg.lstsq(A, np.ones(rows), rcond=None)[0] - 1
    model = NPURegressor(random_state=0).fit(X, y)
    errors = model.predict(X) / y - 1
    assert errors @ errors < 1.5 * nearby @ nearby  # a power alone has errors of 7 %
    assert "approximation" not in report_of(model)


@pytest.mark.parametrize("exponent", [8, -8])
def test_an_exponent_that_the_rows_have_beyond_the_last_one(exponent):
    x = np.linspace(1, 3, 30)
    y = 2 * x**exponent * (1 + 0.02 * RNG(0).standard_normal(30))
    told = report_of(NPURegressor(noise="proportional", **ONE).fit(x[:, None], y))
    words = re.search(
        r"exponent (\S+) of x0 is at the bound .* a free number it is (\S+) ± (\S+)\.", told
    )
    value, error = free_power(x[:, None], y, x**exponent)
    assert float(words[1]) == math.copysign(6, exponent)
    assert abs(float(words[2]) - value) < 4 * error


def test_the_last_exponent_is_named_only_where_the_rows_exclude_it():
    x = np.linspace(1, 3, 30)
    y = 2 / x**6 * (1 + 0.02 * RNG(0).standard_normal(30))
    model = NPURegressor(random_state=0).fit(x[:, None], y)
    assert str(model.best_equation_).endswith("/x0**6")
    assert "at the bound of the search" not in report_of(model)


def misfits():
    late = [0.76, 1.22, 1.04, 0.77, 1.28, 1.44, 1.44, 1.28, 0.93, 0.70, 0.91]
    sigmoid = np.array([0.0] * 5 + [0.27] + [0.0] * 10 + late)
    x = np.linspace(-3, 3, 22)
    curves = {
        "step": (np.arange(27.0), sigmoid),
        "logistic": (x, 1 / (1 + np.exp(-2 * x)).round(3)),
    }
    return curves | {"platinum": TABLES["platinum"].values.T}


@pytest.mark.parametrize("name", ["step", "logistic", "platinum"])
def test_a_smooth_misfit_of_few_rows_is_an_approximation(name):
    x, y = misfits()[name]
    model = NPURegressor(3, random_state=0, target_powers=(1,), ratios=False).fit(x[:, None], y)
    assert "The equation is an approximation" in report_of(model)


def clean(seed):
    """A drawn table of 8 to 40 rows, and one or two products with errors."""
    draw = RNG(seed)
    inputs = int(draw.integers(1, 4))
    X = np.exp(draw.uniform(0, draw.uniform(1, 3), (int(draw.integers(8, 41)), inputs)))
    w = draw.choice([-2, -1, -0.5, 0.5, 1, 2], (2, inputs)) * (np.arange(inputs) < 2)
    y = np.prod(X[:, None] ** w[: 1 + seed % 2], axis=2) @ draw.uniform(0.5, 2, 1 + seed % 2)
    return X, y * (1 + draw.choice([0.01, 0.03]) * draw.standard_normal(len(X)))


def test_few_rows_with_noise_are_no_approximation():
    told = [report_of(NPURegressor(**QUICK, max_terms=2).fit(*clean(seed))) for seed in range(30)]
    assert sum("approximation" in words for words in told) == 0
    assert not any("at the bound of the search" in words for words in told)


# ---- errors --------------------------------------------------------------------------------------


def test_a_line_is_not_lost_for_small_rows():
    x, y = TABLES["Norris"].values.T
    slope, constant = np.polyfit(x, y, 1)
    assert (slope, constant) == pytest.approx((1.00211682, -0.262323), rel=1e-6)  # NIST
    model = NPURegressor(random_state=0).fit(x[:, None], y)
    equations = [model.best_equation_, *model.equations_.alternatives]
    lines = [equation for equation in equations if equation.exponents.ravel().tolist() == [1, 0]]
    assert any(equation.coef == pytest.approx([slope, constant], rel=1e-6) for equation in lines)


def test_the_size_below_which_errors_are_equal_is_said():
    draw = RNG(1)
    x = np.exp(draw.uniform(0, 5, 60))
    y = 3 * x**2 * (1 + 0.03 * draw.standard_normal(60))
    model = NPURegressor(noise="proportional", **ONE).fit(x[:, None], y)
    below = re.search(
        r"proportional to y.*\(where y is below (\S+), as at (\S+)\)", report_of(model)
    )
    floor = 0.1 * np.median(model.predict(x[:, None]))
    assert float(below[1]) == float(below[2]) == pytest.approx(floor, rel=0.01)
    narrow = x > 20
    told = report_of(NPURegressor(noise="proportional", **ONE).fit(x[narrow, None], y[narrow]))
    assert "where y is below" not in told


# ---- one rule for equations with and without a constant ------------------------------------------


def test_no_alternative_is_printed_twice():
    """Odd and even powers of negative columns are the same but for the sign."""
    for seed in (0, 3):
        draw = RNG([seed, 3])
        (a, b), X = draw.uniform(0.5, 2, 2), -draw.uniform(0.5, 3, (60, 2))
        y = a * X[:, 0] * X[:, 1] ** 2 - b / X[:, 0]
        y += 0.01 * y.std() * draw.standard_normal(60)
        model = NPURegressor(random_state=0, target_powers=(1,), ratios=False).fit(X, y)
        texts = [str(each) for each in (model.best_equation_, *model.equations_.alternatives)]
        assert len(texts) == len(set(texts))


@pytest.mark.parametrize("options", [{}, {"required_terms": ["x0", "1"], "max_terms": 2}])
def test_a_given_constant_changes_no_doubt(options):
    """The residuals with the constant, which is nearly 0, and without it are the same."""
    x, y = TABLES["Norris"].values.T
    fitted = NPURegressor(random_state=0, noise="additive", **options).fit(x[:, None], y)
    assert fitted.best_equation_.n_terms == (2 if options else 1)
    assert any("The equation is an approximation" in note for note in fitted.equations_.notes)
