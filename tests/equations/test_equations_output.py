"""What `NPURegressor` gives for an equation: its forms, errors, intervals and pictures; and the rules of
units."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="scikit-learn is not installed")


from npu_kernels.equations import EquationWarning, NPURegressor
from tests.support.compare import report_of
from tests.support.equations import (
    approximate,
    check,
    few_rows,
    fitted_to_noise,
    noise,
    terms,
    uniform,
)


@pytest.fixture(scope="module")
def noisy():
    return fitted_to_noise()


# ---- what comes out ------------------------------------------------------------------------------


def test_equation_in_every_form(noisy):
    sympy = pytest.importorskip("sympy", reason="sympy is not installed")
    X, _, model = noisy
    prediction = model.predict(X)
    function = sympy.lambdify(sympy.symbols("x0 x1 x2", positive=True), model.sympy())
    np.testing.assert_allclose(function(*X.T), prediction, rtol=1e-9)
    x = torch.from_numpy(X)
    np.testing.assert_allclose(
        model.torch_module()(x).detach().numpy()[:, 0], prediction, rtol=1e-9
    )
    np.testing.assert_allclose(
        model.best_equation_.formula()(x).numpy()[:, 0], prediction, rtol=1e-9
    )
    assert model.latex().startswith("y = ")
    assert model.sympy(0) != model.sympy()
    with pytest.raises(ValueError, match="index must be one of"):
        model.sympy(9)


@pytest.mark.parametrize("seed", range(2))
def test_coefficients_in_sympy_are_without_the_rounding_of_units(seed):
    pytest.importorskip("sympy", reason="sympy is not installed")
    x = np.exp(np.random.default_rng(seed).uniform(-5, 5, (40, 2))) * [1e-6, 1e4]
    model = NPURegressor(required_terms=["x0**3/x1"], max_terms=1, random_state=0)
    model.fit(x, 3 * x[:, 0] ** 3 / x[:, 1])
    assert str(model.sympy()) == "3.0*x0**3/x1"


def test_names_of_several_letters_are_upright_in_latex():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("sympy", reason="sympy is not installed")
    X = pandas.DataFrame(uniform(2, 60), columns=["mass", "v"])
    y = (X.mass * X.v**2).rename("energy")
    model = NPURegressor(random_state=0, target_powers=(1,)).fit(X, y)
    assert model.latex() == r"\mathrm{energy} = 1.0\,\mathrm{mass}\,v^{2}"
    assert r"\mathrm{energy} &= 1.0\,\mathrm{mass}\,v^{2}" in model.best_equation_._repr_latex_()


def test_candidates_as_a_frame_and_an_equation_in_a_shell(noisy):
    pytest.importorskip("pandas", reason="pandas is not installed")
    _, _, model = noisy
    table = model.equations_
    frame = table.to_frame()
    assert list(frame.columns) == [
        "n_terms", "n_parameters", "nrmse", "holdout_nrmse", "bic", "exact", "best", "formula",
    ]  # fmt: skip
    assert frame["bic"].tolist() == [equation.bic for equation in table]
    assert frame["best"].tolist() == [equation is model.best_equation_ for equation in table]
    assert frame["formula"][table.best_index] == model.best_equation_.text()
    assert repr(model.best_equation_) == (
        f"Equation('{model.best_equation_.text()}', holdout_nrmse={model.best_equation_.holdout_nrmse:.2g})"
    )


def test_table_and_report(noisy):
    _, _, model = noisy
    table = str(model.equations_)
    assert table.splitlines()[0].split() == [
        "terms",
        "parameters",
        "error",
        "BIC",
        "exact",
        "formula",
    ]
    assert [e.n_terms for e in model.equations_] == list(range(1, len(model.equations_) + 1))
    assert model.best_equation_ is model.equations_[model.equations_.best_index]
    assert model.best_equation_.bic == min(e.bic for e in model.equations_)
    report = report_of(model)
    assert report.startswith(str(model.best_equation_))
    assert "On 60 held-out rows" in report
    assert all(str(interval) in report for interval in model.confidence_intervals())
    assert "explains less than half" not in report
    assert "Not distinguishable" not in report
    assert "do not determine" not in report


def test_digits_are_those_of_every_decimal():
    X = uniform(2)
    y = 2 * X[:, 0] ** 0.537 * np.exp(0.731 * X[:, 1]) * (1 + 0.001 * noise())
    best = (
        NPURegressor(random_state=0, n_init=8, max_terms=1, functions="exp")
        .fit(X, y)
        .best_equation_
    )
    written = eval(best.text(17).split(" = ")[1], {"x0": X[:, 0], "x1": X[:, 1], "exp": np.exp})
    assert best.free.any()
    np.testing.assert_allclose(written, best.predict(X), rtol=1e-14)
    for digits in (-1, 0, 1.5, "a", True):
        with pytest.raises(ValueError, match=f"digits must be .* at least 1, got {digits!r}"):
            best.text(digits)


def test_held_out_error_is_that_of_fresh_rows(noisy):
    _, y, model = noisy
    X = uniform(3, 4000, seed=5)
    equation = 3.7 * X[:, 0] ** 2 / X[:, 1] - 12.5 * X[:, 2]
    fresh = np.sqrt(np.mean((equation + 0.2 * noise(4000, 6) - model.predict(X)) ** 2)) / y.std()
    assert model.best_equation_.holdout_nrmse == pytest.approx(fresh, rel=0.25)


def test_held_out_rows_of_pure_noise_are_predicted_worse_than_by_the_mean():
    """The search would fit them too if it saw them: then the errors are .6 to 1."""
    for seed in range(2):
        X, y = uniform(3, 60, seed=seed), noise(60, 20 + seed)
        model = NPURegressor(random_state=0, n_init=16, target_powers=(1,)).fit(X, y)
        assert all(e.n_held_out == 12 and e.holdout_nrmse > 1 for e in model.equations_)
        assert "The equation explains less than half of the variance of y" in report_of(model)


def test_a_report_names_parameters_that_may_be_0(noisy):
    model = copy.deepcopy(noisy[2])
    table = model.equations_
    equation = table[table.best_index]
    errors = np.array([2.0, 0.1]) * np.abs(equation.coef)
    table[table.best_index] = dataclasses.replace(equation, coef_stderr=errors)
    names = [
        one.name
        for one in table[table.best_index].confidence_intervals()
        if one.stderr > abs(one.value)
    ]
    assert len(names) == 1
    assert f"The data do not determine the {names[0]}: it may be 0." in report_of(model)
    assert report_of(model).count("do not determine") == 1
    table[table.best_index] = dataclasses.replace(table[table.best_index], exact=True)
    assert "do not determine" not in report_of(model)


@few_rows
def test_a_report_names_equations_that_the_data_hardly_tell_from_the_best():
    generator = np.random.default_rng(23)
    X = np.exp(generator.uniform(-0.6, 0.6, (30, 3)))
    equation = X[:, 2] ** 2 - X[:, 1] ** 2 / np.sqrt(X[:, 0])
    model = NPURegressor(random_state=0, target_powers=(1,), max_terms=2)
    model.fit(X, equation + 0.2 * equation.std() * generator.standard_normal(30))
    table = model.equations_
    best, alternatives = table[table.best_index], table.alternatives
    differences = [equation.bic - best.bic for equation in alternatives]
    assert differences == sorted(differences)
    assert differences[0] > 0
    with_free = [
        equation for equation in alternatives if equation.bic - best.bic >= 6
    ]  # in place of fractions
    assert len(with_free) <= 1
    assert all(equation.free[equation.exponents != 0].all() for equation in with_free)
    assert (
        len({str(sorted(equation.exponents.tolist())) for equation in [best, *alternatives]})
        == len(alternatives) + 1
    )
    assert len(alternatives) > 3
    assert all(equation.n_terms == best.n_terms for equation in alternatives[:3])
    text = report_of(model)
    assert all(equation.text() in text for equation in alternatives[:3])
    assert text.count("Not distinguishable from") == sum(diff < 6 for diff in differences[:3])
    assert text.count("With free exponents") == sum(diff >= 6 for diff in differences[:3])
    assert f"And {len(alternatives) - 3} more" in text
    copied = pickle.loads(pickle.dumps(table))
    assert [str(equation) for equation in copied.alternatives] == [
        str(equation) for equation in alternatives
    ]


def test_all_rows_choose_among_the_sums_beside_the_best():
    """The search sees 48 of 60 rows, to which other exponents often fit a little better."""
    right = 0
    for seed in range(2):
        generator = np.random.default_rng(seed)
        X = np.exp(generator.uniform(-0.6, 0.6, (60, 3)))
        equation = X[:, 2] ** 2 - X[:, 1] ** 2 / np.sqrt(X[:, 0])
        for _ in range(6):
            y = equation + 0.2 * equation.std() * generator.standard_normal(60)
            model = NPURegressor(random_state=0, target_powers=(1,), max_terms=2).fit(X, y)
            right += set(terms(model.best_equation_)) == {(0, 0, 2), (-0.5, 2, 0)}
    assert right >= 7  # 3 with the best sum of the search alone


@approximate
def test_each_error_is_at_least_that_of_its_form_on_the_rows_held_out():
    """Forms that only all rows led to count too, with the parameters of the other rows."""
    generator = np.random.default_rng(5)
    X = np.exp(generator.uniform(-0.6, 0.6, (60, 3)))
    equation = X[:, 2] ** 2 - X[:, 1] ** 2 / np.sqrt(X[:, 0])
    y = equation + 0.5 * equation.std() * generator.standard_normal(60)
    options = {"random_state": 0, "target_powers": (1,), "noise": "additive"}
    model = NPURegressor(max_terms=2, ratios=False, loss="squared", **options).fit(X, y)
    table = model.equations_
    # A row far away makes the error large where it is held out: the same places for all tables.
    line = NPURegressor(max_terms=1, required_terms=["x0"], n_init=1, loss="huber", **options)
    errors = np.zeros(60)
    for row in range(60):
        errors[row] = line.fit(X, X[:, 0] + 100.0 * np.eye(60)[row]).best_equation_.holdout_nrmse
    held = errors > (errors.max() + errors.min()) / 2
    assert held.sum() == 12
    equations = [equation for equation in [*table, *table.alternatives] if not equation.free.any()]
    assert len(equations) > 2
    for equation in equations:
        products = (X[:, None] ** equation.exponents).prod(2)
        c = np.linalg.lstsq(products[~held], y[~held], rcond=None)[0]
        misses = y[held] - products[held] @ c
        expected = np.sqrt(np.mean(misses**2) / np.mean((y[held] - y.mean()) ** 2))
        assert equation.n_held_out == 12
        assert equation.holdout_nrmse > 0.999 * expected


def test_bootstrap_agrees_with_the_jacobian():
    X = uniform(2)
    y = 2.2 * X[:, 0] ** 1.47 * X[:, 1] ** -0.31 + 0.1 * noise()
    model = NPURegressor(random_state=0, target_powers=(1,), max_terms=1).fit(X, y)
    plain, drawn = model.confidence_intervals(), model.bootstrap(X, y, n_resamples=100)
    assert [i.name for i in plain] == [i.name for i in drawn]
    for a, b in zip(plain, drawn, strict=True):
        assert b.stderr == pytest.approx(a.stderr, rel=0.35)
        assert b.low < a.value < b.high


def test_data_that_a_fitted_model_refuses(noisy):
    X, y, model = noisy
    for call in (model.bootstrap, model.refit):
        for weight in (np.zeros(300), -np.ones(300), np.append(-1, np.ones(299))):
            rule = "sample_weight must be at least 0 and not all 0, got|Sample weights must contain at least one"
            with pytest.raises(ValueError, match=rule):
                call(X, y, sample_weight=weight)
    for call in (model.bootstrap, model.refit, model.plot):
        with pytest.raises(ValueError, match=f"{call.__name__}: y must have 1 columns, got 2"):
            call(X, np.column_stack([y, y]))


@few_rows
def test_coverage_of_the_intervals():
    """95 % intervals of a constant and an exponent contain the truth in 90 to 98 % of 200 draws."""
    hits, X = np.zeros(2), uniform(1, 39)
    for seed in range(200):
        y = 2.2 * X[:, 0] ** 1.47 + 0.1 * noise(39, 100 + seed)
        model = NPURegressor(
            random_state=0, max_terms=1, target_powers=(1,), n_init=4, noise="additive",
            exponents="real",
        )  # fmt: skip
        intervals = model.fit(X, y).confidence_intervals()
        hits += [i.low <= true <= i.high for i, true in zip(intervals, (2.2, 1.47), strict=True)]
    assert (hits >= 180).all()
    assert (hits <= 196).all()


def test_plot(noisy, tmp_path):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    X, y, model = noisy
    assert len(model.plot(X, y).axes) == 3
    model.plot().savefig(tmp_path / "plot.png")
    with pytest.raises(ValueError, match="X and y must be given together"):
        model.plot(X)


# ---- units ---------------------------------------------------------------------------------------


def test_units_restrict_the_exponents():
    pytest.importorskip("pint", reason="pint is not installed")
    X = uniform(3, 60)
    y = 0.5 * X[:, 0] * X[:, 1] ** 2 + 9.81 * X[:, 0] * X[:, 2] + 0.5 * noise(60)
    g = np.full((60, 1), 9.81)
    options = {
        "random_state": 0,
        "target_powers": (1,),
        "X_units": ["kg", "m/s", "m", "m/s**2"],
        "y_units": "J",
    }
    model = NPURegressor(**options).fit(np.c_[X, g], y)
    for w in model.exponents_:
        assert (w[0], w[1] + w[2] + w[3], w[1] + 2 * w[3]) == pytest.approx((1, 2, 2), abs=1e-12)
    check(model, {(1, 2, 0, 0): 0.5, (1, 0, 1, 1): 1.0}, rel=0.1)


def test_units_of_an_output_power_and_of_signs():
    pytest.importorskip("pint", reason="pint is not installed")
    X = uniform(2, 200, low=-2, high=2)
    y = np.sqrt(X[:, 0] ** 2 + X[:, 1] ** 2)
    model = NPURegressor(random_state=0, X_units={"x0": "cm", "x1": "cm"}, y_units="cm").fit(X, y)
    check(model, {(2, 0): 1.0, (0, 2): 1.0}, power=2.0)


def test_units_may_leave_the_constant_only():
    pytest.importorskip("pint", reason="pint is not installed")
    X = uniform(3, 60)
    y = 0.4 * X[:, 0] * X[:, 1] ** 2 * X[:, 2] * (1 + 0.02 * noise(60))
    model = NPURegressor(random_state=0, X_units=["kg/m^3", "m/s", "m^2"], y_units="N").fit(X, y)
    check(model, {(1, 2, 1): 0.4}, rel=0.01)


def test_units_of_differences_of_temperatures():
    pytest.importorskip("pint", reason="pint is not installed")
    X = uniform(2, 60)
    units = {"X_units": ["delta_degC", "W/delta_degC"], "y_units": "W"}
    model = NPURegressor(random_state=0, **units).fit(X, 0.3 * X[:, 0] * X[:, 1])
    check(model, {(1, 1): 0.3})


def test_units_of_tables_that_pint_reads_otherwise():
    """Air of b m**2 * m/s flows through a duct, a of it is moist: pint has %RH as an inductance."""
    pytest.importorskip("pint")
    X = uniform(3)
    flow = X[:, 0] * X[:, 1] * X[:, 2] / 100
    for moist in ("%RH", "RH", "pH"):
        units = {"X_units": [moist, "m**2", "m/s"], "y_units": "cfm"}
        equation = NPURegressor(random_state=0, **units).fit(X, flow).best_equation_
        assert terms(equation).keys() == {(1, 1, 1)}


def test_numbers_without_a_unit():
    pytest.importorskip("pint", reason="pint is not installed")
    X = uniform(2, 60)
    model = NPURegressor(X_units=["m", "-"], y_units="m**2", random_state=0, max_terms=1)
    check(model.fit(X, 3 * X[:, 0] ** 2 / X[:, 1]), {(2, -1): 3.0})


@pytest.mark.parametrize("max_terms", [4, None])
@pytest.mark.parametrize(("size", "coefficient"), [(1e-200, "1.000e+399"), (1e200, "1.000e-401")])
def test_coefficients_that_float64_cannot_hold(size, coefficient, max_terms):
    """The text has them, and what would compute with them raises one error."""
    pytest.importorskip("sympy")
    X = uniform(2)
    y = 10 * X[:, 0] * X[:, 1]
    model = NPURegressor(max_terms, random_state=0)
    with pytest.warns(EquationWarning, match="float64 cannot represent the coefficients"):
        model.fit(X * size, y)
    assert str(model.best_equation_) == f"y = 100*({coefficient}*x0*x1)"
    assert np.allclose(model.predict(X * size), y, rtol=1e-9)
    for write in (model.sympy, model.latex, model.torch_module, model.best_equation_.formula):
        with pytest.raises(OverflowError, match="coefficients must be numbers that float64 can"):
            write()
    assert model.best_equation_._repr_latex_() is None
    assert "float64 cannot represent" in report_of(model)


def test_terms_with_the_coefficient_0_are_not_printed():
    X = uniform(2)
    y = 2 * X[:, 0] * X[:, 1] + X[:, 0]
    for max_terms in (4, None):
        model = NPURegressor(max_terms, known_part="2*x0*x1 + x0", random_state=0).fit(X, y)
        assert model.best_equation_.text() == "y = 2*x0*x1 + x0"
        assert (model.coef_ == 0).all()
        assert (
            NPURegressor(max_terms, random_state=0).fit(X, 0 * y).best_equation_.text() == "y = 0"
        )
    model = NPURegressor(required_terms={"x1": (0, 0)}, random_state=0).fit(X, y)
    assert model.best_equation_.text() == "y = 2*x0*x1 + x0"
