"""`NPURegressor` finds the laws of everyday tables by one call without hints, whatever their units."""

from __future__ import annotations

import csv
import math
import pickle
import signal
import warnings

import numpy as np
import pytest
import torch

from tests.examples import ROOT

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.utils.estimator_checks import check_estimator

from npu_kernels.equations import EquationWarning, NPURegressor

RNG = np.random.default_rng
few_rows = pytest.mark.filterwarnings("ignore:NPURegressor. .* rows are:npu_kernels.equations.EquationWarning")


def uniform(columns: int, rows: int = 300, low: float = 0.5, high: float = 3.0, seed: int = 0) -> np.ndarray:
    return RNG(seed).uniform(low, high, (rows, columns))


def noise(rows: int = 300, seed: int = 1) -> np.ndarray:
    return RNG(seed).standard_normal(rows)


def terms(equation) -> dict[tuple[float, ...], float]:
    """A coefficient for each row of exponents."""
    return {tuple(w.tolist()): float(c) for w, c in zip(equation.exponents, equation.coef, strict=True)}


def check(model, expected, rel=1e-9, power=1.0):
    found = terms(model.best_)
    assert found == pytest.approx(expected, rel=rel)
    assert model.best_.power == power


# ---- everyday cases -------------------------------------------------------------------------------------------------


def force(X):
    return 70 * X[:, 0] * X[:, 1] / X[:, 2] ** 2


def test_force_law_with_a_constant_of_70():
    X = uniform(3)
    check(NPURegressor(random_state=0).fit(X, force(X)), {(1, 1, -2): 70.0})


@pytest.mark.parametrize("exponent", [-30, -6, 2, 30])
def test_units_do_not_matter(exponent):
    X, scale = uniform(3), 10.0**exponent
    sums = 3.7 * X[:, 0] ** 2 / X[:, 1] - 12.5 * X[:, 2]
    model = NPURegressor(random_state=0).fit(X * [scale, 1, 1], sums * scale)
    check(model, {(2, -1, 0): 3.7 / scale, (0, 0, 1): -12.5 * scale})
    np.testing.assert_allclose(model.predict(X * [scale, 1, 1]), sums * scale, rtol=1e-6)


def test_ideal_gas_in_si():
    r = RNG(0)
    n, T, V = r.uniform(0.5, 2, 300), r.uniform(250, 350, 300), r.uniform(0.01, 0.05, 300)
    check(NPURegressor(random_state=0).fit(np.c_[n, T, V], 8.314 * n * T / V), {(1, 1, -1): 8.314})


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


def test_drag():
    X = uniform(4)
    check(NPURegressor(random_state=0).fit(X, 0.5 * X[:, 0] * X[:, 1] ** 2 * X[:, 2] * X[:, 3]), {(1, 2, 1, 1): 0.5})


@few_rows
def test_kepler_from_ten_rows():
    lines = (ROOT / "benchmarks" / "demo" / "kepler.csv").read_text().splitlines()
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    numbers = [(float(row["axis_au"]), float(row["period_days"])) for row in rows]
    X, y = np.array(numbers)[:10, :1], np.array(numbers)[:10, 1]
    check(NPURegressor(random_state=0).fit(X, y), {(1.5,): 365.25}, rel=2e-3)


def test_sum_of_two_terms():
    X = uniform(3)
    y = 3.7 * X[:, 0] ** 2 / X[:, 1] - 12.5 * X[:, 2]
    check(NPURegressor(random_state=0).fit(X, y), {(2, -1, 0): 3.7, (0, 0, 1): -12.5})


@pytest.mark.parametrize("kind", ["constant", "relative"])
def test_sum_of_two_terms_with_noise_of_three_per_cent(kind):
    X = uniform(3)
    y = 3.7 * X[:, 0] ** 2 / X[:, 1] - 12.5 * X[:, 2]
    error = y * noise() if kind == "relative" else np.std(y) * noise()
    model = NPURegressor(random_state=0).fit(X, y + 0.03 * error)
    check(model, {(2, -1, 0): 3.7, (0, 0, 1): -12.5}, rel=0.01)
    assert model.equations_.noise == kind


def test_power_that_is_no_fraction():
    X = uniform(2)
    model = NPURegressor(random_state=0).fit(X, 2.2 * X[:, 0] ** 1.47)
    np.testing.assert_allclose(model.exponents_, [[1.47, 0]], atol=1e-9)
    assert model.best_.free.tolist() == [[True, False]]


def test_powers_that_are_no_fractions_with_noise():
    X = uniform(2)
    y = 2.2 * X[:, 0] ** 1.47 * X[:, 1] ** -0.31 * (1 + 0.02 * noise())
    model = NPURegressor(random_state=0).fit(X, y)
    assert model.best_.terms == 1
    for interval, true in zip(model.intervals(0.999), (2.2, 1.47, -0.31), strict=True):
        assert interval.low < true < interval.high
        assert interval.error < 0.01


def test_unused_columns_with_noise_of_five_per_cent():
    X = uniform(8)
    y = 0.7 * X[:, 0] * X[:, 1] / X[:, 2] ** 2 * (1 + 0.05 * noise())
    check(NPURegressor(random_state=0).fit(X, y), {(1, 1, -2, 0, 0, 0, 0, 0): 0.7}, rel=0.02)


@few_rows
def test_ten_rows_with_noise_of_one_per_cent():
    X = uniform(2, 10)
    y = 3 * X[:, 0] / X[:, 1] * (1 + 0.01 * noise(10))
    check(NPURegressor(random_state=0).fit(X, y), {(1, -1): 3.0}, rel=0.02)


def test_a_root_and_an_offset():
    X = uniform(2)
    check(NPURegressor(random_state=0).fit(X, 3 * np.sqrt(X[:, 0]) + 2), {(0.5, 0): 3.0, (0, 0): 2.0})


def test_lens_equation():
    X = uniform(2)
    y = 1 / X[:, 0] + 1 / X[:, 1]
    check(NPURegressor(random_state=0).fit(X, y), {(-1, 0): 1.0, (0, -1): 1.0})
    check(NPURegressor(random_state=0).fit(X, 1 / y), {(-1, 0): 1.0, (0, -1): 1.0}, power=-1.0)


def test_integers_with_zeros():
    X = RNG(0).integers(0, 6, (300, 3)).astype(float)
    model = NPURegressor(random_state=0).fit(X, 3 * X[:, 0] * X[:, 1] + 2 * X[:, 2] ** 2)
    check(model, {(1, 1, 0): 3.0, (0, 0, 2): 2.0})
    assert model.predict(np.zeros((1, 3)))[0] == 0


def test_four_terms():
    X = uniform(5)
    y = 3 * X[:, 0] * X[:, 1] + 2 * X[:, 2] ** 2 - X[:, 3] / X[:, 0] + 1.5 * X[:, 4]
    wanted = {(1, 1, 0, 0, 0): 3.0, (0, 0, 2, 0, 0): 2.0, (-1, 0, 0, 1, 0): -1.0, (0, 0, 0, 0, 1): 1.5}
    check(NPURegressor(random_state=0).fit(X, y), wanted, rel=1e-7)


@pytest.mark.parametrize("powers", [(3, 1, 0), (3, -2, 0), (2, 2, 2)])
def test_high_powers_of_inputs_of_both_signs(powers):
    X = uniform(3, low=-2, high=2)
    check(NPURegressor(random_state=0).fit(X, np.prod(X ** np.array(powers, float), 1)), {powers: 1.0})


def test_sum_of_squares_of_inputs_of_both_signs():
    X = uniform(3, low=-2, high=2)
    check(NPURegressor(random_state=0).fit(X, X[:, 0] ** 2 + X[:, 1] ** 2), {(2, 0, 0): 1.0, (0, 2, 0): 1.0})


def test_negative_y_of_an_output_power():
    X = uniform(2)
    y = -np.sqrt(X[:, 0] ** 2 + 4 * X[:, 1] ** 2)
    model = NPURegressor(random_state=0).fit(X, y)
    check(model, {(2, 0): 1.0, (0, 2): 4.0}, power=2.0)
    np.testing.assert_allclose(model.predict(X), y, rtol=1e-9)
    np.testing.assert_allclose(model.torch_module()(torch.from_numpy(X)).detach().numpy()[:, 0], y, rtol=1e-9)
    assert model.best_.text() == "y = -(4*x1**2 + x0**2)**(1/2)"


def test_robust_losses_resist_outliers():
    X = uniform(2)
    y = 5 * X[:, 0] ** 2 / X[:, 1] * (1 + 0.01 * noise())
    y[::15] *= 8
    for loss in ("huber", "soft_l1"):
        model = NPURegressor(random_state=0, loss=loss, output_powers=(1,), max_terms=1).fit(X, y)
        check(model, {(2, -1): 5.0}, rel=0.01)
    plain = NPURegressor(random_state=0, output_powers=(1,), max_terms=1).fit(X, y)
    assert abs(plain.predict([[1.0, 1.0]])[0] - 5) > 0.5


# ---- what comes out -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def noisy():
    X = uniform(3)
    y = 3.7 * X[:, 0] ** 2 / X[:, 1] - 12.5 * X[:, 2] + 0.2 * noise()
    return X, y, NPURegressor(random_state=0, output_powers=(1,)).fit(X, y)


def test_equation_in_every_form(noisy):
    sympy = pytest.importorskip("sympy", reason="sympy is not installed")
    X, _, model = noisy
    prediction = model.predict(X)
    function = sympy.lambdify(sympy.symbols("x0 x1 x2", positive=True), model.sympy())
    np.testing.assert_allclose(function(*X.T), prediction, rtol=1e-9)
    x = torch.from_numpy(X)
    np.testing.assert_allclose(model.torch_module()(x).detach().numpy()[:, 0], prediction, rtol=1e-9)
    np.testing.assert_allclose(model.best_.formula()(x).numpy()[:, 0], prediction, rtol=1e-9)
    assert model.latex().startswith("y = ")
    assert model.sympy(0) != model.sympy()
    with pytest.raises(ValueError, match="index must be one of"):
        model.sympy(9)


def test_table_and_report(noisy):
    _, _, model = noisy
    table = str(model.equations_)
    assert table.splitlines()[0].split() == ["terms", "parameters", "error", "BIC", "exact", "formula"]
    assert [e.terms for e in model.equations_] == list(range(1, len(model.equations_) + 1))
    assert model.best_ is model.equations_[model.equations_.best]
    assert model.best_.bic == min(e.bic for e in model.equations_)
    report = model.report()
    assert report.startswith(str(model.best_))
    assert "Error of 60 rows that were not fitted" in report
    assert all(str(interval) in report for interval in model.intervals())


def test_held_out_error_is_that_of_fresh_rows(noisy):
    _, y, model = noisy
    X = uniform(3, 4000, seed=5)
    law = 3.7 * X[:, 0] ** 2 / X[:, 1] - 12.5 * X[:, 2]
    fresh = np.sqrt(np.mean((law + 0.2 * noise(4000, 6) - model.predict(X)) ** 2) / np.mean(y**2))
    assert model.best_.error == pytest.approx(fresh, rel=0.25)


@few_rows
def test_pure_noise_of_ten_rows_looks_bad():
    for seed in range(3):
        X, y = uniform(3, 10, seed=seed), noise(10, 20 + seed)
        model = NPURegressor(random_state=0, starts=8, output_powers=(1,)).fit(X, y)
        assert model.best_.error > 0.4


def test_standard_errors_are_those_of_linear_regression(noisy):
    X, y, model = noisy
    A = np.c_[X[:, 0] ** 2 / X[:, 1], X[:, 2]]
    c, rss, *_ = np.linalg.lstsq(A, y, rcond=None)
    error = np.sqrt(np.diag(np.linalg.inv(A.T @ A)) * rss[0] / (len(y) - 2))
    found = terms(model.best_)
    assert [found[2, -1, 0], found[0, 0, 1]] == pytest.approx(c.tolist(), rel=1e-9)
    order = [tuple(w) for w in model.exponents_.tolist()].index((2, -1, 0))
    assert model.coef_std_[[order, 1 - order]] == pytest.approx(error, rel=1e-6)
    assert not model.exponents_std_.any()


def test_bootstrap_agrees_with_the_jacobian():
    X = uniform(2)
    y = 2.2 * X[:, 0] ** 1.47 * X[:, 1] ** -0.31 + 0.1 * noise()
    model = NPURegressor(random_state=0, output_powers=(1,), max_terms=1).fit(X, y)
    plain, drawn = model.intervals(), model.bootstrap(X, y, draws=100)
    assert [i.name for i in plain] == [i.name for i in drawn]
    for a, b in zip(plain, drawn, strict=True):
        assert b.error == pytest.approx(a.error, rel=0.35)
        assert b.low < a.value < b.high


@few_rows
def test_coverage_of_the_intervals():
    """95 % intervals of a constant and an exponent contain the truth in 90 to 98 % of 200 draws."""
    hits, X = np.zeros(2), uniform(1, 39)
    for seed in range(200):
        y = 2.2 * X[:, 0] ** 1.47 + 0.1 * noise(39, 100 + seed)
        model = NPURegressor(
            random_state=0, max_terms=1, output_powers=(1,), starts=4, noise="constant", exponents="real"
        )
        intervals = model.fit(X, y).intervals()
        hits += [i.low <= true <= i.high for i, true in zip(intervals, (2.2, 1.47), strict=True)]
    assert (hits >= 180).all()
    assert (hits <= 196).all()


def test_known_noise_sets_the_errors(noisy):
    X, y, model = noisy
    known = NPURegressor(random_state=0, output_powers=(1,), noise=0.4).fit(X, y)
    assert known.coef_std_ == pytest.approx(2 * model.coef_std_, rel=0.15)


def test_plot(noisy, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    X, y, model = noisy
    assert len(model.plot(X, y).axes) == 3
    model.plot().savefig(tmp_path / "plot.png")
    with pytest.raises(ValueError, match="X and y must be given together"):
        model.plot(X)


# ---- units ----------------------------------------------------------------------------------------------------------


def test_units_restrict_the_exponents():
    pytest.importorskip("pint", reason="pint is not installed")
    X = uniform(3, 60)
    y = 0.5 * X[:, 0] * X[:, 1] ** 2 + 9.81 * X[:, 0] * X[:, 2] + 0.5 * noise(60)
    g = np.full((60, 1), 9.81)
    options = {"random_state": 0, "output_powers": (1,), "units": ["kg", "m/s", "m", "m/s**2"], "y_units": "J"}
    model = NPURegressor(**options).fit(np.c_[X, g], y)
    for w in model.exponents_:
        assert (w[0], w[1] + w[2] + w[3], w[1] + 2 * w[3]) == pytest.approx((1, 2, 2), abs=1e-12)
    check(model, {(1, 2, 0, 0): 0.5, (1, 0, 1, 1): 1.0}, rel=0.1)


def test_units_of_an_output_power_and_of_signs():
    pytest.importorskip("pint", reason="pint is not installed")
    X = uniform(2, 200, low=-2, high=2)
    y = np.sqrt(X[:, 0] ** 2 + X[:, 1] ** 2)
    model = NPURegressor(random_state=0, units={"x0": "cm", "x1": "cm"}, y_units="cm").fit(X, y)
    check(model, {(2, 0): 1.0, (0, 2): 1.0}, power=2.0)


def test_units_may_leave_the_constant_only():
    pytest.importorskip("pint", reason="pint is not installed")
    X = uniform(3, 60)
    y = 0.4 * X[:, 0] * X[:, 1] ** 2 * X[:, 2] * (1 + 0.02 * noise(60))
    model = NPURegressor(random_state=0, units=["kg/m^3", "m/s", "m^2"], y_units="N").fit(X, y)
    check(model, {(1, 2, 1): 0.4}, rel=0.01)


def test_units_that_cannot_be_met_are_refused():
    pytest.importorskip("pint", reason="pint is not installed")
    X = uniform(3, 60)
    options = {"units": ["mol", "K", "m**3"], "random_state": 0}
    with pytest.raises(ValueError, match=r"cannot be met by powers of x0, x1, x2: no input contains .*mass"):
        NPURegressor(y_units="Pa", **options).fit(X, X[:, 0])
    with pytest.raises(ValueError, match="no combination of exponents"):
        NPURegressor(units=["kg*m", "kg*m", "m*kg"], y_units="kg", random_state=0).fit(X, X[:, 0])
    with pytest.raises(ValueError, match="which is no unit"):
        NPURegressor(units=["mol", "K", "furlongish"], y_units="Pa").fit(X, X[:, 0])
    with pytest.raises(ValueError, match="units must be given with y_units"):
        NPURegressor(y_units="Pa").fit(X, X[:, 0])
    with pytest.raises(ValueError, match="units must have 3 entries"):
        NPURegressor(units=["m"], y_units="Pa").fit(X, X[:, 0])


# ---- scikit-learn ---------------------------------------------------------------------------------------------------


def test_check_estimator():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = check_estimator(NPURegressor(1, (1,), starts=4, noise="constant"), on_skip=None)
    assert len(found) > 40
    assert {r["check_name"] for r in found if r["status"] != "passed"} <= {"check_array_api_input"}


@few_rows
def test_pipeline_grid_and_pickle():
    X = uniform(2, 60)
    y = X[:, 0] ** 2 + X[:, 1]
    quick = {"random_state": 0, "starts": 16, "output_powers": (1,)}
    grid = GridSearchCV(NPURegressor(**quick), {"max_terms": [1, 2]}, cv=2).fit(X, y)
    assert grid.best_params_ == {"max_terms": 2}
    assert (cross_val_score(NPURegressor(**quick), X, y, cv=2) > 0.999999).all()
    model = make_pipeline(FunctionTransformer(np.square), NPURegressor(**quick)).fit(X, y)
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict(X), model.predict(X))
    assert str(copy[-1].equations_) == str(model[-1].equations_)


def test_frames_give_names():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    X = pandas.DataFrame(uniform(2, 60), columns=["mass", "speed"])
    y = (X.mass * X.speed**2 / 2).rename("energy")
    assert str(NPURegressor(random_state=0).fit(X, y).best_) == "energy = 0.5*mass*speed**2"


def test_two_outputs_at_once():
    X = uniform(2, 60)
    y = np.c_[X[:, 0] * X[:, 1], X[:, 0] - 2 * X[:, 1]]
    model = NPURegressor(random_state=0, n_jobs=1).fit(X, y)
    assert [terms(e) for e in model.best_] == [
        pytest.approx({(1, 1): 1.0}),
        pytest.approx({(1, 0): 1.0, (0, 1): -2.0}),
    ]
    np.testing.assert_allclose(model.predict(X), y, rtol=1e-9)
    assert len(model.coef_) == len(model.latex()) == len(model.intervals()) == 2


def test_same_seed_same_numbers_whatever_the_order_of_rows(noisy):
    X, y, model = noisy
    order = RNG(3).permutation(len(y))
    again = NPURegressor(random_state=0, output_powers=(1,)).fit(X[order], y[order])
    np.testing.assert_array_equal(again.coef_, model.coef_)


def test_weights_are_repetitions():
    X = uniform(2, 50)
    y = X[:, 0] / X[:, 1] + 0.1 * noise(50)
    weight = RNG(0).integers(0, 4, 50)
    quick = {"random_state": 0, "starts": 8, "max_terms": 2, "output_powers": (1,)}
    one = NPURegressor(**quick).fit(X, y, weight)
    two = NPURegressor(**quick).fit(X.repeat(weight, 0), y.repeat(weight))
    np.testing.assert_array_equal(one.coef_, two.coef_)


# ---- bad data, bad parameters ---------------------------------------------------------------------------------------


def test_data_that_cannot_be_used():
    X = uniform(2, 60)
    y = X[:, 0] * X[:, 1]
    with pytest.raises(ValueError, match="NaN"):
        NPURegressor().fit(np.where(X > 2.9, np.nan, X), y)
    with pytest.raises(ValueError, match="sample_weight must be at least 0"):
        NPURegressor().fit(X, y, -np.ones(60))
    with pytest.raises(ValueError, match="output_powers other than 1 need a y of one sign"):
        NPURegressor(output_powers=(2,)).fit(X, y - 1)


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("max_terms", 0, "max_terms must be an integer of at least 1, got 0"),
        ("starts", 2.5, "starts must be an integer"),
        ("exponents", "reals", "exponents must be one of fractions, integers, real, got 'reals'"),
        ("loss", "l1", "loss must be one of squared"),
        ("noise", -1, "noise must be None, 'constant', 'relative' or a number greater than 0, got -1"),
        ("output_powers", (0,), "output_powers must be 'auto' or numbers other than 0"),
    ],
)
def test_bad_parameters_are_named(name, value, rule):
    with pytest.raises(ValueError, match=rule):
        NPURegressor(**{name: value}).fit(uniform(2, 60), uniform(2, 60)[:, 0])


def test_constant_columns_are_left_out():
    X = np.c_[uniform(2, 60), np.full(60, 7.0)]
    with pytest.warns(EquationWarning, match="constant columns tell nothing and are left out: x2"):
        model = NPURegressor(random_state=0).fit(X, X[:, 0] / X[:, 1])
    check(model, {(1, -1, 0): 1.0})


def test_few_rows_are_said():
    X = uniform(3, 4)
    with pytest.warns(EquationWarning, match="4 rows are not more than the 4 parameters"):
        NPURegressor(random_state=0, starts=8).fit(X, X[:, 0])
    X = uniform(1, 20)
    with pytest.warns(EquationWarning, match="20 rows are too few to hold some out"):
        NPURegressor(random_state=0, starts=8).fit(X, X[:, 0])


def test_zero_with_a_negative_exponent():
    X = uniform(2, 60)
    model = NPURegressor(random_state=0).fit(X, X[:, 0] / X[:, 1])
    with pytest.warns(EquationWarning, match="1 predictions are infinite"):
        assert np.isinf(model.predict(np.array([[1.0, 0.0], [1.0, 1.0]]))[0])
    X[0, 1] = 0
    y = X[:, 0] + X[:, 1] ** 2
    assert (NPURegressor(random_state=0).fit(X, y).exponents_[:, 1] >= 0).all()


def test_constant_and_zero_targets():
    X = uniform(2, 60)
    assert NPURegressor(random_state=0).fit(X, np.full(60, 3.0)).predict(X) == pytest.approx(np.full(60, 3.0))
    assert (NPURegressor(random_state=0).fit(X, np.zeros(60)).predict(X) == 0).all()


@pytest.mark.parametrize("call", [3, 4])
def test_interrupt_gives_what_was_found(call, monkeypatch, capsys, request):
    """In the first search, and when the search for errors in proportion to y has begun."""
    from npu_kernels.equations import search

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a process in the background ignores it
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    X = uniform(3, 100)
    y = X[:, 0] * X[:, 1] + X[:, 2] + 0.1 * noise(100)
    plain, calls = search._fitted, []

    def stopping(*arguments):
        calls.append(1)
        if len(calls) == call:
            signal.raise_signal(signal.SIGINT)
        return plain(*arguments)

    monkeypatch.setattr(search, "_fitted", stopping)
    model = NPURegressor(random_state=0).fit(X, y)
    assert not model.equations_.complete
    assert model.best_.terms == 2
    assert len(calls) == call
    assert "interrupted" in capsys.readouterr().err
    assert "interrupted" in model.report()
