"""`NPURegressor` with what is known about an equation: a part, terms, signs, bounds."""

import numpy as np
import pytest

from npu_kernels.equations import EquationWarning
from tests.support.equations import RNG, approximate, check, model, noise, terms, uniform


def fall(X):
    """A height under gravity, ``x0 x1 - 4.9 x1**2 + 2 x2``."""
    return X[:, 0] * X[:, 1] - 4.9 * X[:, 1] ** 2 + 2 * X[:, 2]


def forms_agree(fitted, X):
    """predict, sympy, torch code and the torch module give the same."""
    sympy, torch = pytest.importorskip("sympy"), pytest.importorskip("torch")
    symbols = sympy.symbols("x0:3", positive=True)
    predicted = fitted.predict(X)
    values = sympy.lambdify(symbols, fitted.sympy())(*X.T)
    module = fitted.torch_module()(torch.from_numpy(X)).detach().numpy()[:, 0]
    code = fitted.best_equation_.formula()(torch.from_numpy(X)).numpy()[:, 0]
    limit = 1e-9 * np.abs(predicted).max()
    assert np.abs(values - predicted).max() < limit
    assert np.abs(module - predicted).max() < limit
    assert np.abs(code - predicted).max() < limit


# ---- a part of the equation ----------------------------------------------------------------------


def test_a_known_part_is_added_everywhere():
    X = uniform(3)
    fitted = model(known_part="x0*x1 - 9.8*x1**2/2").fit(X, fall(X) + 1e-3 * noise())
    assert fitted.best_equation_.text() == "y = x0*x1 - 9.8*x1**2/2 + 2*x2"
    assert list(terms(fitted.best_equation_)) == [(0, 0, 1)]
    assert np.abs(fitted.predict(X) - fall(X)).max() < 1e-2
    forms_agree(fitted, X)


def test_a_known_part_has_no_comment():
    with pytest.raises(ValueError, match=r"known_part must be .* which has a comment"):
        model(known_part="x0*x1 # lift").fit(uniform(3), fall(uniform(3)))


@pytest.mark.parametrize(
    ("options", "equation", "text"),
    [
        ({"known_part": "sin(x2)"}, lambda x, y, z: np.sin(z) + 3 * x / (x + y), "3*x0/(x0 + x1)"),
        (
            {"known_part": "tan(x2/3)"},
            lambda x, y, z: np.tan(z / 3) + 3 * x * y,
            "tan(x2/3) + 3*x0*x1",
        ),
        (
            {"known_part": "x0**2", "target_powers": (2,)},
            lambda x, y, z: np.sqrt(x**2 + 3 * y / z),
            "(x0**2 + 3*x1/x2)**(1/2)",
        ),
        (
            {"known_part": "1 - x2", "target_transforms": "log"},
            lambda x, y, z: np.exp(1 - z - x / y),
            "exp(1 - x2 - x0/x1)",
        ),
        (
            {"known_part": "1e300*x0**2", "target_powers": (2,)},
            lambda x, y, z: 1e150 * np.sqrt(x**2 + 3 * y / z),
            "1e+150*((1e300*x0**2)/1e+300 + 3*x1/x2)**(1/2)",
        ),
        (
            {"known_part": "-1e200*x0"},
            lambda x, y, z: 1e200 * (3 * y * z - x),
            "-1e200*x0 + 3e+200*x1",
        ),
        (
            {"known_part": "x0", "noise": "multiplicative"},
            lambda x, y, z: (x + 2 * y**2) * np.exp(0.02 * noise(300)),
            "x0 + 1.995*x1**2",
        ),
    ],
)
def test_known_parts_of_every_kind_of_equation(options, equation, text):
    X = uniform(3)
    fitted = model(**options).fit(X, equation(*X.T))
    assert text in fitted.best_equation_.text()
    forms_agree(fitted, X)


def test_a_known_part_of_negative_y_and_inputs():
    X = uniform(3)
    fitted = model(known_part="-x0*x1").fit(-X, -X[:, 0] * X[:, 1] - 3 * X[:, 2])
    check(fitted, {(0, 0, 1): 3})


@pytest.mark.parametrize("seed", [3, 21, 32])
def test_the_search_is_for_the_rest_of_a_known_part(seed):
    draw = RNG(seed)
    X = draw.uniform(0.5, 3, (80, 2))
    exponents = draw.choice([-2, -1, -0.5, 0.5, 1, 2], (2, 2))
    rest = (X[:, None] ** exponents).prod(2) @ draw.choice([-3, -1, 2, 5], 2)
    options = {"max_terms": 2, "n_init": 2, "target_powers": (1,), "noise": "additive"}
    best = model(known_part="50*x0", **options).fit(X, 50 * X[:, 0] + rest).best_equation_
    assert sorted(best.exponents.tolist()) == sorted(exponents.tolist())


def test_a_known_part_with_names_of_columns():
    pandas = pytest.importorskip("pandas")
    X = uniform(2)
    table = pandas.DataFrame({"v": X[:, 0], "time (s)": X[:, 1]})
    fitted = model(known_part="v * `time (s)`").fit(table, X[:, 0] * X[:, 1] + 2 * X[:, 1] ** 2)
    check(fitted, {(0, 2): 2})


def test_a_known_part_survives_resampling_and_pickles():
    import pickle

    X = uniform(3)
    y = fall(X) + 0.05 * noise()
    fitted = model(known_part="x0*x1").fit(X, y)
    other_model = pickle.loads(pickle.dumps(fitted))
    assert np.array_equal(other_model.predict(X), fitted.predict(X))
    for interval in fitted.bootstrap(X, y, n_resamples=20):
        assert interval.low <= interval.value <= interval.high


def test_blanks_around_a_known_part_are_left_out():
    X = uniform(2)
    fitted = model(known_part=" x0\n", max_terms=1).fit(X, X[:, 0] + 3 * X[:, 1])
    assert fitted.best_equation_.text() == "y = x0 + 3*x1"


# ---- terms ---------------------------------------------------------------------------------------


def test_terms_that_the_equation_has():
    X = uniform(3)
    y = fall(X) + 0.05 * noise()
    rows = [[1, 1, 0], [0, 0, 0]]
    fitted = model(required_terms=rows).fit(X, y)
    assert [tuple(row) for row in fitted.best_equation_.exponents[:2].tolist()] == [
        (1, 1, 0),
        (0, 0, 0),
    ]
    assert {e.n_terms for e in fitted.equations_} >= {2, 4}
    for equation in fitted.equations_:
        assert {(1, 1, 0), (0, 0, 0)} <= terms(equation).keys()
    other_model = model(required_terms=["x0*x1", "1"]).fit(X, y)
    assert other_model.best_equation_.text() == fitted.best_equation_.text()


@approximate
def test_terms_and_coefficients_have_bounds():
    X = uniform(3)
    y = fall(X) + 0.05 * noise()
    bounds = {"x0*x1": (1.0, 1.0), "x2": (None, 1.5)}
    actual = terms(model(required_terms=bounds).fit(X, y).best_equation_)
    assert actual[1, 1, 0] == pytest.approx(1.0, rel=1e-12)
    assert actual[0, 0, 1] == pytest.approx(1.5, rel=1e-12)


@approximate
def test_bounds_of_coefficients_hold_for_negative_columns_and_y():
    X = uniform(2)
    fitted = model(required_terms={"x0": (2.5, 4)}).fit(
        -X, -2 * X[:, 0] - X[:, 1] ** 2 + 0.01 * noise()
    )
    assert terms(fitted.best_equation_)[1, 0] == pytest.approx(2.5, rel=1e-12)


@approximate
def test_the_other_coefficients_suit_one_at_its_bound():
    X = uniform(2)
    X[:, 1] += 2 * X[:, 0]
    y = 2 * X[:, 0] + X[:, 1] + 0.1 * noise()
    options = {"max_terms": 2, "noise": "additive", "loss": "squared"}
    fitted = model(required_terms={"x0": (2.5, 4), "x1": None}, **options).fit(X, y)
    rest = y - 2.5 * X[:, 0]
    check(fitted, {(1, 0): 2.5, (0, 1): rest @ X[:, 1] / (X[:, 1] @ X[:, 1])})


@approximate
def test_terms_that_the_equation_has_not():
    X = uniform(2)
    y = 3 + 2 * X[:, 0] + 0.05 * noise()
    assert set(terms(model().fit(X, y).best_equation_)) == {(0, 0), (1, 0)}
    actual = model(required_terms={"1": 0}, max_terms=2).fit(X, y)
    for equation in actual.equations_:
        assert np.abs(equation.exponents).max(1).min() > 0.1


@approximate
@pytest.mark.parametrize(
    ("options", "groups"),
    [
        ({}, ["u", "v"] * 150),
        ({"signs": "nonnegative"}, None),
        ({"max_terms": 1}, ["u", "v"] * 150),
        ({"required_terms": {"x0/x1": 0, "x0": None}}, None),
    ],
)
def test_an_equation_without_its_best_term(options, groups):
    """Exponents that move end at the product that is excluded."""
    X = uniform(2)
    y = 2 * X[:, 0] / X[:, 1] + 0.01 * noise()
    fitted = model(**{"required_terms": {"x0/x1": 0}, **options}).fit(X, y, groups=groups)
    for equation in fitted.equations_:
        assert np.abs(equation.exponents - [1, -1]).max(1).min() > 0.1
    limit = 1.0 if options.get("max_terms") == 1 else 0.1
    assert fitted.best_equation_.holdout_nrmse < limit


@approximate
def test_a_term_that_units_exclude_may_be_excluded():
    pytest.importorskip("pint")
    X = uniform(2)
    options = {"X_units": ["m", "s"], "y_units": "m/s", "required_terms": {"1": 0}}
    y = 2 * X[:, 0] / X[:, 1]
    check(model(**options).fit(X, y), {(1, -1): 2})
    for max_terms in (4, None):
        with pytest.raises(ValueError, match="could be fitted to y"):
            model(**options | {"required_terms": {"x0/x1": 0}, "max_terms": max_terms}).fit(X, y)


@approximate
def test_a_known_part_has_the_dimension_of_y():
    pytest.importorskip("pint")
    X = uniform(2)
    y = X[:, 0] * X[:, 1] * 3
    units = {"X_units": ["m/s", "s"], "y_units": "m"}
    for part in (
        "x0*x1",
        "9.81*x1**2/2",
        "x0**2*x1/x0",
        "x0*sqrt(x1)*sqrt(x1)",
        "sin(x1/x1)*x0*x1",
    ):
        assert (
            model(known_part=part, **units)
            .fit(X, y)
            .best_equation_.text()
            .startswith(f"y = {part}")
        )
    squared = model(known_part="x0**2*x1**2", target_powers=(2,), **units).fit(X, y)
    check(squared, {(2, 2): 8}, power=2)
    with pytest.raises(
        ValueError, match=r"known_part must have the dimension of y, \[length\]\*\*1, got 'x1'"
    ):
        model(known_part="x1", **units).fit(X, y)
    for part in ("x0 + x1", "x0*x1 + sin(x1)", "x0*2**x1", "x0**x1"):
        with pytest.raises(ValueError, match="known_part must have terms in one unit, and"):
            model(known_part=part, **units).fit(X, y)


@approximate
def test_the_units_of_a_known_part_match():
    """Its numbers are those of the columns: mm beside m and degrees are no lengths and radians."""
    pytest.importorskip("pint")
    h, g, m = RNG(0).uniform(0.5, 3, (3, 80))
    X, y = np.stack([1000 * h, g, m], 1), np.sqrt(h**2 + g**2) + 0.5 * m
    units = {"X_units": ["mm", "m", "m"], "y_units": "m"}
    with pytest.raises(ValueError, match=r"known_part must have terms in one unit.*convert a col"):
        model(known_part="sqrt(x0**2 + x1**2)", **units).fit(X, y)
    with pytest.raises(ValueError, match=r"must have the unit of y, 'm', got 'x0', whose.* 0.001 "):
        model(known_part="x0", **units).fit(X, y)
    check(model(known_part="sqrt((0.001*x0)**2 + x1**2)", **units).fit(X, y), {(0, 0, 1): 0.5})
    X[:, 0] /= 1000
    units["X_units"][0] = "m"
    check(model(known_part="sqrt(x0**2 + x1**2)", **units).fit(X, y), {(0, 0, 1): 0.5})
    X, y = np.stack([np.degrees(h), g, m], 1), g * np.sin(h) + 0.5 * m
    units = {"X_units": ["deg", "m", "m"], "y_units": "m"}
    with pytest.raises(ValueError, match="functions of numbers without one, or of radians"):
        model(known_part="x1*sin(x0)", **units).fit(X, y)
    check(model(known_part="x1*sin(pi*x0/180.0)", **units).fit(X, y), {(0, 0, 1): 0.5})
    X, y = np.stack([3.6 * h, 3600 * g, m], 1), 3.6 * h * g + 0.5 * m  # km/h, s, km
    with pytest.raises(ValueError, match=r"unit is 0.000277778 of it"):
        model(known_part="x0*x1", X_units=["km/h", "s", "km"], y_units="km").fit(X, y)
    X[:, 1] /= 3600
    known = model(known_part="x0*x1", X_units=["km/h", "hour", "km"], y_units="km").fit(X, y)
    check(known, {(0, 0, 1): 0.5})


def test_terms_have_functions_of_columns():
    X = RNG(0).uniform(0, 6, (200, 2))
    y = X[:, 0] * np.cos(X[:, 1]) + 0.5 * X[:, 0] + 0.01 * noise(200)
    fitted = model(functions={"x1": ["sin", "cos"]}, required_terms=["x0*cos(x1)"]).fit(X, y)
    assert fitted.best_equation_.text().startswith("y = 1*x0*cos(x1) + 0.5") or "x0*cos(x1)" in str(
        fitted
    )
    assert fitted.best_equation_.n_terms == 2


def test_terms_have_the_dimension_of_y():
    pytest.importorskip("pint")
    X = uniform(2)
    units = {"X_units": ["m", "s"], "y_units": "m/s"}
    check(model(required_terms=["x0/x1"], **units).fit(X, 3 * X[:, 0] / X[:, 1]), {(1, -1): 3})


@pytest.mark.parametrize("max_terms", [4, None])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"required_terms": ["x1**(1/2)"]},
            "integer exponents .* negative in some rows, got 0.5 for x1",
        ),
        (
            {"required_terms": {"1/x0": None}},
            "no negative .* columns that are 0 in some rows, got -1 for x0",
        ),
        ({"exponents": (-2, -1)}, r"at least 0 .* 0 in some rows, got \(-2, -1\) for x0"),
    ],
)
def test_limits_that_the_columns_exclude(options, message, max_terms):
    X = uniform(2)
    X[:5, 0], X[:, 1] = 0.0, X[:, 1] - 1
    with pytest.raises(ValueError, match=message):
        model(max_terms=max_terms, **options).fit(X, 2 + X[:, 0] - X[:, 1])
    others = {"required_terms": ["x0**(1/2)", "1/x1"]}
    model(**others).fit(X, 2 * X[:, 0] ** 0.5 - 1 / X[:, 1])


# ---- signs and exponents -------------------------------------------------------------------------


@approximate
@pytest.mark.parametrize("sign", [1, -1])
def test_coefficients_are_positive(sign):
    """Columns that are negative in all rows, and y, have no say in it."""
    X = uniform(2)
    y = X[:, 0] ** 2 - 0.3 * X[:, 1] + 0.02 * noise()
    assert terms(model(max_terms=2).fit(X, y).best_equation_)[0, 1] < 0
    for equation in (
        model(signs="nonnegative", ratios=False, max_terms=2).fit(sign * X, y).equations_
    ):
        assert (equation.coef > 0).all()
    negative = model(signs="nonnegative", max_terms=2).fit(sign * X, -3 * X[:, 0] - X[:, 1])
    if sign < 0:
        check(negative, {(1, 0): 3, (0, 1): 1})


@approximate
@pytest.mark.filterwarnings("ignore:NPURegressor. Two terms nearly cancel")
def test_exponents_have_bounds():
    X = uniform(2)
    y = X[:, 0] ** 2 / X[:, 1] + 0.01 * noise()
    for equation in model(exponents=(0, [1, 3]), max_terms=2).fit(X, y).equations_:
        assert (equation.exponents >= 0).all()
        assert (equation.exponents <= [1, 3]).all()
    narrow = model(exponents=([0.3, -6], [0.4, 6]), max_terms=1).fit(X, y).best_equation_
    assert ((narrow.exponents[:, 0] >= 0.3) & (narrow.exponents[:, 0] <= 0.4)).all()


@approximate
@pytest.mark.filterwarnings("ignore:NPURegressor. Errors are .* as large where x1 is large")
def test_exponents_of_some_columns_are_whole():
    X = uniform(2)
    y = X[:, 0] ** 1.5 * X[:, 1] ** 1.5 + 0.01 * noise()
    options = {"target_powers": (1,), "ratios": False, "max_terms": 2}
    fitted = model(integer_exponents=["x0"], **options).fit(X, y)
    assert (fitted.best_equation_.exponents[:, 0] % 1 == 0).all()
    assert (fitted.best_equation_.exponents[:, 1] % 1 != 0).any()
    integer = model(integer_exponents=True, **options).fit(X, y)
    assert (integer.best_equation_.exponents % 1 == 0).all()


@pytest.mark.parametrize(
    "options",
    [{}, {"signs": "nonnegative"}, {"integer_exponents": True}, {"required_terms": ["x0**4"]}],
)
@approximate
def test_exponents_of_a_power_of_y_have_the_same_room(options):
    X = uniform(2)
    square = X[:, 0] ** 8 + X[:, 1] ** 12
    equation = {(8, 0): 1, (0, 12): 1}
    if "required_terms" in options:
        square, equation = square + X[:, 0] ** 4, {**equation, (4, 0): 1}
    fitted = model(target_powers=(2,), max_terms=3, n_init=8, **options).fit(X, np.sqrt(square))
    check(fitted, equation, power=2)
    if not options:
        with pytest.warns(EquationWarning, match="exponent 12 of x0 is at the bound"):
            beyond = model(target_powers=(2,), max_terms=1, n_init=8).fit(X, X[:, 0] ** 7)
        assert beyond.best_equation_.exponents[0, 0] == 12


def test_bounds_of_exponents_may_be_wide():
    X = uniform(2)
    options = {"exponents": (0, 9), "target_powers": (1,), "max_terms": 2}
    check(model(**options).fit(X, 3 * X[:, 0] ** 8), {(8, 0): 3})
    fitted = model(**options, required_terms=["x0**8"]).fit(X, X[:, 0] ** 8 + X[:, 1])
    check(fitted, {(8, 0): 1, (0, 1): 1})


def test_no_terms_are_no_limit():
    X = uniform(2)
    for terms_of_equation in ([], {}):
        fitted = model(required_terms=terms_of_equation, max_terms=1).fit(X, 2 * X[:, 0])
        check(fitted, {(1, 0): 2})


def test_expressions_are_those_of_python():
    pandas = pytest.importorskip("pandas")
    X = RNG(0).uniform(0.5, 2, (60, 2))
    a, b = X.T
    text = "-a**2*b/3 + sqrt(exp(b)) - log(a)*pi/(a + 1e2*-b) + cos(2)**-(1/2*4) + +1"
    expected = -(a**2) * b / 3 + np.sqrt(np.exp(b)) - np.log(a) * np.pi / (a - 100 * b)
    expected += np.cos(2) ** -2 + 1
    fitted = model(known_part=text, max_terms=1).fit(
        pandas.DataFrame(X, columns=["a", "b"]), expected + a
    )
    assert fitted.best_equation_.exact
    check(fitted, {(1, 0): 1}, rel=1e-9)
