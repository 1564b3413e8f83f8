"""Functions of inputs and of y: equations with them in every form, identities, units, and bad values."""

import contextlib
import pickle

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
pytest.importorskip("pandas", reason="pandas is not installed")

import pandas

from npu_kernels.equations import EquationWarning, NPURegressor, fit_many
from tests.support.compare import report_of
from tests.support.equations import RNG, few_rows, noise, standard_errors, uniform

ROWS = 300


def table(rows: int = ROWS, seed: int = 0):
    generator = RNG(seed)
    columns = {"r": (1, 5), "F": (1, 5), "t": (0, 6)}
    return pandas.DataFrame({k: generator.uniform(*v, rows) for k, v in columns.items()})


def with_noise(y, share: float = 0.01, seed: int = 1):
    return y + share * np.sqrt(np.mean(y**2)) * RNG(seed).standard_normal(len(y))


def model(functions=None, target_transforms=None, **options):
    return NPURegressor(
        random_state=0, functions=functions, target_transforms=target_transforms, **options
    )


ANGLE = {"t": ("sin", "cos")}
X = table()

EQUATIONS = {
    "sine": (X.r * X.F * np.sin(X.t) + 3 * X.r * np.cos(X.t), ANGLE, None,
             "y = r*F*sin(t) + 3*r*cos(t)"),
    "square": (np.sqrt(X.r**2 + 9 - X.F * np.sin(X.t) ** 2), ANGLE, None,
               "y = (r**2 + 9 - F*sin(t)**2)**(1/2)"),
    "decay": (3 * X.r * np.exp(-X.F / 2) + 1, "exp", None, "y = 3*r*exp(-F/2) + 1"),
    "logarithm": (X.r * np.log(X.F), {"F": "log"}, None, "y = r*log(F)"),
    "of a product": (np.exp(1 - 0.5 * X.F * X.r), None, "log", "y = exp(-0.5*r*F + 1)"),
    "refraction": (np.arcsin(X.r / 5 * np.sin(X.t)), ANGLE, ["sin"], "y = arcsin(0.2*r*sin(t))"),
    "angle": (np.arccos(X.F / 5 * np.cos(X.t)), ANGLE, ["cos"], "y = arccos(0.2*F*cos(t))"),
    "phase": (np.arctan(X.F / X.r - X.t), None, ("identity", "tan"), "y = arctan(-t + F/r)"),
    "sum": (np.log(X.r * X.t + X.F), None, ["exp"], "y = log(r*t + F)"),
    "dose": (1 / (1 + np.exp(2 - X.F / X.r)), None, "logit", "y = 1/(1 + exp(-(-2 + F/r)))"),
    "bosons": (1 / (np.exp(0.7 * X.F / X.r) - 1), None, "auto", "y = 1/(exp(0.7*F/r) - 1)"),
}  # fmt: skip


@pytest.mark.parametrize("name", EQUATIONS)
def test_equations_are_exact_in_every_form(name):
    y, functions, of_y, text = EQUATIONS[name]
    fitted = model(functions, of_y).fit(X, y)
    best = fitted.best_equation_
    assert str(best) == text
    assert best.exact
    values = torch.from_numpy(X.to_numpy().copy())
    np.testing.assert_allclose(fitted.predict(X), y, rtol=1e-9)
    module = fitted.torch_module()
    np.testing.assert_allclose(module(values).detach().numpy()[:, 0], y, rtol=1e-9)
    np.testing.assert_allclose(best.formula()(values).numpy()[:, 0], y, rtol=1e-9)
    sympy = pytest.importorskip("sympy", reason="sympy is not installed")
    expression = fitted.sympy()
    point = {s: float(X[s.name][0]) for s in expression.free_symbols}
    assert float(expression.subs(point)) == pytest.approx(y[0], rel=1e-9)
    assert sympy.latex(expression)[:3] != ""
    assert best.n_terms == len(fitted.confidence_intervals())
    copy = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(copy.predict(X), fitted.predict(X))
    assert str(copy.equations_) == str(fitted.equations_)
    assert copy.report() == fitted.report()


def test_errors_are_those_of_y_and_not_of_its_function():
    """Rows with a small y say little of log y: unweighted logarithms would be far off."""
    x = np.linspace(0.1, 4, 300)
    y = 5 * np.exp(-1.5 * x) + 0.02 * RNG(0).standard_normal(300)
    assert (y < 0).any()
    best = model(target_transforms="log", noise="additive").fit(x[:, None], y).best_equation_
    assert best.n_terms == 2
    np.testing.assert_allclose(sorted(best.coef), [-1.5, np.log(5)], atol=0.02)
    assert best.weighted_nrmse * np.sqrt(np.mean(y**2)) == pytest.approx(0.02, rel=0.15)


def test_standard_errors_are_those_of_repeated_fits():
    x = np.linspace(0.1, 2, 100)
    fits = [
        model(target_transforms="log", noise="additive", max_terms=2, n_init=8, loss="squared")
        .fit(x[:, None], 5 * np.exp(-1.5 * x) + 0.05 * RNG(seed).standard_normal(100))
        .best_equation_
        for seed in range(30)
    ]
    fits = [best for best in fits if best.n_terms == 2 and best.exponents.max() == 1]
    assert len(fits) > 20
    estimates = [float(best.coef[best.exponents[:, 0] == 1][0]) for best in fits]
    errors = [float(best.coef_stderr[best.exponents[:, 0] == 1][0]) for best in fits]
    assert np.std(estimates) == pytest.approx(np.mean(errors), rel=0.4)
    y = 5 * np.exp(-1.5 * x) + 0.05 * RNG(0).standard_normal(100)
    fitted = model(target_transforms="log", noise="additive", n_init=8).fit(x[:, None], y)
    resampled = fitted.bootstrap(x[:, None], y, n_resamples=60)
    for interval, linear in zip(resampled, fitted.confidence_intervals(), strict=True):
        assert interval.value == linear.value
        assert interval.stderr == pytest.approx(linear.stderr, rel=0.6)


@pytest.mark.parametrize("kind", ["proportional", "multiplicative"])
def test_other_kinds_of_errors(kind):
    generator = RNG(3)
    spread = 0.05 if kind == "proportional" else 0.3
    error = generator.standard_normal(ROWS)
    factor = 1 + spread * error if kind == "proportional" else np.exp(spread * error)
    y = np.exp(0.6 * X.F - X.t) * factor
    best = model(target_transforms="log", noise=kind, n_init=16).fit(X, y).best_equation_
    assert {tuple(w) for w in best.exponents} >= {(0, 1, 0), (0, 0, 1)}
    assert np.mean(np.log(best.predict(X)) - (0.6 * X.F - X.t)) == pytest.approx(0, abs=0.05)
    fitted = model(target_transforms="log", n_init=16).fit(X, y)
    assert fitted.equations_.noise == kind


# ---- identities ----------------------------------------------------------------------------------


@few_rows
def test_a_rough_line_of_few_rows_ends_no_search():
    """A logistic curve at nine points, whose residuals from a line show no pattern yet."""
    x = np.linspace(5, 80, 9)
    y = 72 / (1 + np.exp(2.6 - 0.067 * x)) + RNG(4).standard_normal(9)
    fitted = model(["exp"], target_powers=(1, -1)).fit(x[:, None], y)
    found = fitted.best_equation_, *fitted.equations_.alternatives
    assert -1 in [equation.target_power for equation in found]


@few_rows
@pytest.mark.parametrize("scale", [1, 1000])
def test_the_rate_of_an_exponential_has_no_narrow_bound(scale):
    x = np.linspace(0, 1.2, 60)
    y = 10 + 5.3 * np.exp(-8.2 * x) + 0.02 * noise(60)
    fitted = model(["exp"], max_terms=2, target_powers=(1,)).fit(scale * x[:, None], y)
    best = fitted.best_equation_
    assert best.n_terms == 2
    np.testing.assert_allclose(
        best.predict(np.array([[scale * 0.5]])), 10 + 5.3 * np.exp(-4.1), rtol=1e-3
    )


@pytest.mark.parametrize(("equation", "text"), [
    (lambda r, t: r * np.sin(t) ** 2, "y = r*sin(t)**2"),
    (lambda r, t: r * np.cos(t) ** 2, "y = r*cos(t)**2"),
    (lambda r, t: r * (3 + 2 * np.cos(t) ** 2), "y = 5*r - 2*r*sin(t)**2"),
    (lambda r, t: r * np.sin(t) ** 4 + 1, "y = r*sin(t)**4 + 1"),
])  # fmt: skip
def test_the_shortest_of_equal_equations(equation, text):
    y = equation(X.r, X.t)
    fitted = model(ANGLE).fit(X, y)
    assert str(fitted.best_equation_) == text
    noisy = model(ANGLE, n_init=32).fit(X, with_noise(y))
    assert [tuple(w) for w in noisy.best_equation_.exponents] == [
        tuple(w) for w in fitted.best_equation_.exponents
    ]
    values = [e.predict(X) for e in [*noisy.equations_, *noisy.equations_.alternatives]]
    for k, first in enumerate(values):
        assert all(np.abs(first - other).max() > 1e-9 for other in values[:k])


def test_the_first_function_decides_between_equations_of_one_length():
    y = X.r * (3 + 2 * np.cos(X.t) ** 2)
    assert "cos" in str(model({"t": ("cos", "sin")}).fit(X, y).best_equation_)


def test_a_product_is_no_sum_of_logarithms():
    fitted = model(("log",), ("identity", "log")).fit(X + 1, (X.r + 1) * (X.F + 1))
    assert str(fitted.best_equation_) == "y = r*F"
    assert len(fitted.equations_) == 1


# ---- what functions mean -------------------------------------------------------------------------


def test_units_choose_the_columns_and_degrees_are_converted():
    pytest.importorskip("pint", reason="pint is not installed")
    degrees = X.assign(t=np.degrees(X.t))
    units = {"r": "m", "F": "N", "t": "deg"}
    y = X.r * X.F * np.sin(X.t)
    fitted = model(("sin", "cos"), X_units=units, y_units="N m").fit(degrees, y)
    assert fitted.best_equation_.names == ("r", "F", "t", "sin(pi*t/180)", "cos(pi*t/180)")
    assert str(fitted.best_equation_) == "y = r*F*sin(pi*t/180)"
    assert str(fitted.sympy()) == "1.0*F*r*sin(pi*t/180)"
    with pytest.raises(ValueError, match="and r has a dimension"):
        model({"r": "sin"}, X_units=units, y_units="N m").fit(degrees, y)
    with pytest.raises(ValueError, match=r"log takes numbers without a dimension, .*y has"):
        model(None, "log", X_units=units, y_units="N m").fit(degrees, y)
    only = model(None, "auto", X_units=units, y_units="N m", max_terms=1).fit(degrees, X.r * X.F)
    assert str(only.best_equation_) == "y = r*F"
    angle = np.degrees(np.arcsin(X.r / 5 * np.sin(X.t)))
    of_angle = model(("sin",), "sin", X_units={"r": "", "F": "N", "t": "deg"}, y_units="deg").fit(
        degrees, angle
    )
    assert str(of_angle.best_equation_) == "y = 180*arcsin(0.2*r*sin(pi*t/180))/pi"
    np.testing.assert_allclose(of_angle.predict(degrees), angle, rtol=1e-9)
    values = torch.from_numpy(degrees.to_numpy().copy())
    np.testing.assert_allclose(of_angle.best_equation_.formula()(values)[:, 0], angle, rtol=1e-9)
    np.testing.assert_allclose(of_angle.torch_module()(values).detach()[:, 0], angle, rtol=1e-9)


@pytest.mark.parametrize(("factor", "text"), [
    (1.0, "x0"), (-1.0, "-x0"), (0.5, "x0/2"), (-1.5, "-3*x0/2"), (0.13, "0.13*x0"),
    (0.37, "0.37*x0"), (0.1234567, "0.123457*x0"), (2.0, "2*x0"),
])  # fmt: skip
def test_arguments_as_text(factor, text):
    x = uniform(1, 60)
    equation = (
        model({"x0": "exp"}, max_terms=1, n_init=4).fit(x, np.exp(factor * x[:, 0])).best_equation_
    )
    assert str(equation) == f"y = exp({text})"


def test_exponentials_of_any_scale():
    for size in (1e-6, 1.0, 1e6):
        x = size * X.F
        y = 3 * X.r * np.exp(-0.37 * X.F)
        fitted = model({"x": "exp"}).fit(pandas.DataFrame({"r": X.r, "x": x}), y)
        assert fitted.best_equation_.exact
        np.testing.assert_allclose(fitted.predict(pandas.DataFrame({"r": X.r, "x": x})), y)
    assert str(fitted.best_equation_).startswith("y = 3*r*exp(-3.7e-07*x)")


def test_zeros_of_functions_are_zeros():
    angles = X.assign(t=np.where(np.arange(ROWS) % 3, X.t, np.pi))
    y = 2 * X.r * np.sin(angles.t) + X.F
    fitted = model(ANGLE).fit(angles, y)
    assert str(fitted.best_equation_) == "y = 2*r*sin(t) + F"
    values = torch.from_numpy(angles.to_numpy().copy())
    np.testing.assert_allclose(
        fitted.torch_module()(values).detach()[:, 0], fitted.predict(angles), rtol=1e-12
    )
    zeros = X[:3].assign(t=[np.pi, 0.0, 2 * np.pi])
    sine = model(ANGLE, n_init=8).fit(X, X.r * np.sin(X.t))
    assert sine.predict(zeros).tolist() == [0, 0, 0]
    cosine = model(ANGLE, n_init=8).fit(X, X.r * np.cos(X.t))
    assert (cosine.predict(X[:1].assign(t=np.pi / 2)) == 0).all()
    logarithm = model({"F": "log"}, n_init=8).fit(X, X.r * np.log(X.F))
    assert (logarithm.predict(X[:1].assign(F=1 + 2**-52)) == 0).all()


def test_constant_columns_have_no_functions():
    constant = X.assign(zero=0.0, seven=7.0)
    with pytest.warns(EquationWarning, match="constant columns .*: zero, seven"):
        fitted = model({"t": "sin", "zero": ["cos", "sin"], "seven": "log"}).fit(
            constant, X.r * np.sin(X.t)
        )
    assert str(fitted.best_equation_) == "y = r*sin(t)"


INVERSES = {
    "log": np.exp, "exp": np.log, "sin": np.arcsin, "cos": np.arccos, "tan": np.arctan,
    "logit": lambda t: 1 / (1 + np.exp(-t)), "log(1+1/y)": lambda t: 1 / np.expm1(t),
}  # fmt: skip


@pytest.mark.parametrize("name", INVERSES)
@pytest.mark.parametrize("unit", ["", "deg"])
def test_inverses_and_derivatives(name, unit):
    """Predictions have the inverses of functions of y, standard errors their derivatives."""
    pytest.importorskip("pint", reason="pint is not installed")
    x, size = uniform(1, 60), 180 / np.pi if unit else 1.0

    def equation(c):
        return size * INVERSES[name](c[0] * x[:, 0])

    y = equation([0.3]) + 0.003 * size * noise(60)
    options = {"required_terms": ["x0"], "max_terms": 1, "noise": "additive", "loss": "squared"}
    fitted = model(None, name, X_units=[""], y_units=unit, **options).fit(x, y)
    np.testing.assert_allclose(fitted.predict(x), equation(fitted.coef_), rtol=1e-12)
    expected = standard_errors(equation, fitted.coef_, y)
    assert fitted.coef_stderr_ == pytest.approx(expected, rel=1e-5)
    assert abs(fitted.coef_[0] - 0.3) < 4 * expected[0]


def test_errors_may_leave_the_domain_of_a_function():
    x = np.sort(uniform(1, 60), 0)
    y, options = (
        np.exp(x[:, 0] - 2) + 0.1 * np.abs(noise(60)),
        {"n_init": 4, "max_terms": 2, "noise": "additive"},
    )
    for rows, value, outside in ((1, -0.05, False), (1, -1.0, True), (31, -1e-3, True)):
        bad = np.where(np.arange(60) < rows, value, y)
        refused = pytest.raises(ValueError, match=f"log needs a y greater than 0, got {value:g} in")
        with refused if outside else contextlib.nullcontext():
            assert np.isfinite(model(None, "log", **options).fit(x, bad).predict(x)).all()
    angles = np.arcsin(x[:, 0] / 3.1) + 0.05 * noise(60)
    angles[angles.argmax()] = 1.6
    assert model(None, "sin", **options).fit(x, angles).best_equation_.target_transform is not None


def test_predict_says_where_the_sum_is_no_sine():
    y, functions, of_y, _ = EQUATIONS["refraction"]
    fitted = model(functions, of_y).fit(X, y)
    new = X.assign(r=[20.0, *X.r[1:]], t=[1.5, *X.t[1:]])
    with pytest.warns(EquationWarning, match="1 predictions of y are .*value of sin.*: rows 0 "):
        assert fitted.predict(new)[0] == pytest.approx(np.pi / 2)


def test_predict_says_where_an_input_has_no_logarithm():
    fitted = model("log").fit(X.assign(t=X.t + 1), X.r * np.log(X.F))
    new = X.assign(t=-1.0, F=[-1.0, *X.F[1:]])
    with pytest.warns(EquationWarning, match="1 predictions are .*an input has no logarithm"):
        values = fitted.predict(new)
    np.testing.assert_allclose(values[1:], (X.r * np.log(X.F))[1:], rtol=1e-9)
    assert np.isnan(values[0])


# ---- arguments -----------------------------------------------------------------------------------


def test_rows_without_weight_may_have_any_values():
    bad = X.assign(F=np.where(np.arange(ROWS) == 7, -1.0, X.F))
    weight = np.where(np.arange(ROWS) == 7, 0.0, 1.0)
    fitted = model({"F": "log"}).fit(bad, X.r * np.log(X.F), weight)
    assert str(fitted.best_equation_) == "y = r*log(F)"


@few_rows
def test_many_tables_and_checkpoints(tmp_path):
    few = table(60)
    tables = {"a": (few, few.r * np.sin(few.t)), "b": (few, few.F * np.cos(few.t))}
    outcomes = fit_many(tables, model(ANGLE), checkpoint=tmp_path / "equations")
    assert str(outcomes) == "a: y = r*sin(t)\nb: y = F*cos(t)"
    noisy = with_noise(few.r * np.sin(few.t))
    file = tmp_path / "equation.pt"
    first = model(ANGLE, "auto", max_terms=2, n_init=8).fit(few, noisy, checkpoint=file)
    repeated = model(ANGLE, "auto", max_terms=2, n_init=8).fit(few, noisy, checkpoint=file)
    np.testing.assert_array_equal(first.predict(few), repeated.predict(few))
    with pytest.raises(ValueError, match="functions"):
        model({"t": "sin"}, "auto", max_terms=2, n_init=8).fit(few, noisy, checkpoint=file)


@few_rows
def test_negative_inputs_with_zeros_have_the_signs_of_predictions():
    """An exponent that had to be 0 was odd in the fit: few rows, inputs of both signs with zeros."""
    for seed in range(4):
        generator = RNG(seed)
        inputs = np.c_[generator.uniform(-3, 3, (25, 3)), generator.uniform(0.5, 3, (25, 2))]
        inputs[generator.random((25, 5)) < 0.1] = 0
        y = generator.standard_normal(25)
        options = {"n_init": 16, "target_powers": (1,), "loss": "squared"}
        fitted = NPURegressor(random_state=0, **options).fit(inputs, y)
        for equation in fitted.equations_:
            rms = np.sqrt(np.mean((equation.predict(inputs) - y) ** 2)) / np.std(y)
            assert equation.nrmse == pytest.approx(rms, rel=1e-9)


def test_names_that_are_no_words_stand_in_backquotes() -> None:
    """An equation can be given back as a known part, and pandas computes it."""
    X = pandas.DataFrame(uniform(2, 60), columns=["T (K)", "lambda"])
    y = np.sin(X["T (K)"]) / X["lambda"] + 2 * X["T (K)"]
    settings = {"random_state": 0, "max_terms": 2, "n_init": 4, "target_powers": (1,)}
    model_with_sine = NPURegressor(**settings, functions={"T (K)": "sin"}).fit(X, y)
    right_side = model_with_sine.best_equation_.text().split(" = ")[1]
    assert right_side == "2*`T (K)` + sin(`T (K)`)/`lambda`"
    np.testing.assert_allclose(X.eval(right_side), y, rtol=1e-6)
    known = NPURegressor(**settings, known_part=right_side).fit(X, y + 3 * X["lambda"])
    assert "3*`lambda`" in known.best_equation_.text()
    assert "coefficient of `lambda`" in report_of(known)
