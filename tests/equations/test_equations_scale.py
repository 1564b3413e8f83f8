"""`NPURegressor` with many rows: memory, blocks of rows, and exponents that only all rows tell; and
y of any size."""

import tracemalloc

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from benchmarks.equations import criterion
from benchmarks.equations.known_equations import KnownEquation, drawn
from npu_kernels.equations import EquationWarning, NPURegressor
from tests.support.compare import report_of
from tests.support.equations import RNG, noise, standard_errors, uniform

QUICK = {"random_state": 0, "max_terms": 1, "target_powers": (1,), "n_init": 8, "noise": "additive"}


def peak_of(model, X, y):
    """Bytes that a fit takes beside its data."""
    tracemalloc.start()
    try:
        model.fit(X, y)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def peak(rows):
    X = uniform(3, rows)
    y = 2.2 * X[:, 0] ** 1.47 / X[:, 2] + 0.1 * noise(rows)
    return peak_of(NPURegressor(**QUICK), X, y)


def test_many_columns_take_little_memory():
    """A term of many inputs has thousands of neighbours, and pairs of them would take gigabytes."""
    X = uniform(24, 100)
    y = 2 * X[:, 0] * X[:, 1] + X[:, 2] ** 1.37 / X[:, 3] + 0.1 * noise(100)
    model = NPURegressor(random_state=0, max_terms=3, n_init=8, target_powers=(1,), ratios=False)
    assert peak_of(model, X, y) < 200e6
    assert model.best_equation_.n_terms == 2


def test_memory_grows_with_a_few_numbers_for_each_row():
    """Memory for the rows once more and some vectors, not for products and their derivatives."""
    few, more = 60_000, 160_000
    assert peak(more) - peak(few) < 6 * 4 * 8 * (more - few)


@pytest.mark.parametrize("power", [1, -1])
def test_blocks_give_what_all_rows_at_once_do(power):
    """Zeros and both signs are in rows of the last block alone."""
    costs = []
    for rows in (15_000, 45_000):
        X, row = uniform(3, rows), np.arange(rows)
        last = (X[:, 0] > np.quantile(X[:, 0], 0.9)) & (power == 1)
        X[last & (row % 3 == 0), 2] *= -1
        X[last & (row % 7 == 0), 1] = 0
        products = np.column_stack([X[:, 0] ** 1.5, X[:, 1] * X[:, 2] ** 3])
        y = (products @ [1, 0.3]) ** (1 / power) + 0.01 * noise(rows)
        options = {"max_terms": 2, "n_init": 1, "target_powers": (power,), "noise": "additive"}
        model = NPURegressor(random_state=0, required_terms=["x0**(3/2)", "x1*x2**3"], **options)
        best = model.fit(X, y).best_equation_
        assert sorted(best.exponents.tolist()) == [[0, 1, 3], [1.5, 0, 0]]
        products = (X[:, None] ** best.exponents).prod(2)

        def equation(c, products=products):
            return (products @ c) ** (1 / power)

        errors = y - equation(best.coef)
        jacobian = products if power == 1 else -products * equation(best.coef)[:, None] ** 2
        assert np.abs(jacobian.T @ errors).max() < 1e-5 * np.abs(jacobian.T @ y).max()
        assert best.coef_stderr == pytest.approx(standard_errors(equation, best.coef, y), rel=1e-5)
        assert best.nrmse == pytest.approx(np.sqrt(np.mean(errors**2)) / y.std(), rel=1e-9)
        parts = [best.predict(part) for part in np.array_split(X, 9)]
        np.testing.assert_allclose(best.predict(X), np.concatenate(parts), rtol=1e-14)
        leverage = (np.linalg.qr(jacobian)[0] ** 2).sum(1)
        press = np.mean((errors / (1 - leverage)) ** 2) / np.mean(y**2)
        costs.append(best.bic - rows * np.log(press) - (2 + (power < 0)) * np.log(rows))
    assert costs[0] == pytest.approx(costs[1], abs=0.01)
    assert best.predict(np.empty((0, 3))).shape == (0,)


def test_exponents_that_only_all_rows_tell_from_fractions():
    """3000 rows take 1.493 for 3/2, a standard error of 0.003 away; of all rows it is 0.0005."""
    rows = 120_000
    X = uniform(1, rows)
    y = 2.2 * X[:, 0] ** 1.493 + 0.5 * noise(rows)
    few, all_ = NPURegressor(**QUICK).fit(X[:3000], y[:3000]), NPURegressor(**QUICK).fit(X, y)
    assert few.exponents_ == [[1.5]]
    assert all_.exponents_[0, 0] == pytest.approx(1.493, abs=0.003)
    assert 0 < all_.exponents_stderr_[0, 0] < 0.002
    y = 2.2 * X[:, 0] ** 1.5 + 0.5 * noise(rows)
    assert NPURegressor(**QUICK).fit(X, y).exponents_ == [[1.5]]


@pytest.mark.filterwarnings("ignore:NPURegressor", "error::RuntimeWarning")
@pytest.mark.parametrize("noise", [None, "proportional", "multiplicative"])
def test_numbers_near_the_end_of_float64(noise):
    X = uniform(2, 60)
    fitted = NPURegressor(random_state=0, noise=noise).fit(X, 1e-320 * X[:, 0])
    assert fitted.best_equation_.predict(X) == pytest.approx(1e-320 * X[:, 0], rel=1e-3)
    y = np.where(np.arange(60) == 0, 1e-320, X[:, 0])
    assert NPURegressor(random_state=0, noise=noise, n_init=8).fit(X, y).best_equation_.n_terms


@pytest.mark.parametrize("exponent", [-300, -170, 155, 300])
@pytest.mark.parametrize("power", [1, 2, -1])
def test_any_size_of_y(exponent, power):
    """Squares of such y are no numbers of float64; nor are the constants of their powers."""
    sympy = pytest.importorskip("sympy", reason="sympy is not installed")
    X = uniform(2)
    y = 10.0**exponent * (X[:, 0] ** 2 + 4 * X[:, 1] ** 2) ** (1 / power)
    model = NPURegressor(random_state=0, target_powers=(power,), noise="additive").fit(X, y)
    best = model.best_equation_
    assert best.exact
    assert best.nrmse < 1e-14
    assert sorted(map(tuple, best.exponents.tolist())) == [(0, 2), (2, 0)]
    np.testing.assert_allclose(model.predict(X), y, rtol=1e-12)
    written = eval(best.text(17).split(" = ")[1], {"x0": X[:, 0], "x1": X[:, 1]})
    np.testing.assert_allclose(written, y, rtol=1e-12)
    module = best.torch_module()(torch.from_numpy(X)).detach().numpy()[:, 0]
    np.testing.assert_allclose(module, y, rtol=1e-12)
    function = sympy.lambdify(sympy.symbols("x0 x1", positive=True), model.sympy())
    np.testing.assert_allclose(function(*X.T), y, rtol=1e-12)
    assert len(model.bootstrap(X, y, n_resamples=10)) == 2


def test_relative_errors_of_outputs_over_hundreds_of_decades():
    """Weights are the inverses of the sizes, and their squares are numbers."""
    X, factors = 10.0 ** -np.arange(0, 300.0)[:, None], 1 + 0.01 * noise(300)
    options = {"required_terms": ["x0"], "max_terms": 1, "n_init": 1, "loss": "squared"}
    model = NPURegressor(random_state=0, noise="proportional", **options).fit(
        X, 3 * X[:, 0] * factors
    )
    assert model.coef_ == pytest.approx([3], rel=0.01)


@pytest.mark.filterwarnings("ignore::npu_kernels.equations.EquationWarning")
def test_powers_of_outputs_beyond_all_numbers_are_not_tried():
    """1 / y**2 overflows, and so do all weighted products."""
    X = RNG(0).uniform(1, 600, (100, 1))
    model = NPURegressor(random_state=0).fit(X, 10.0 ** -RNG(0).uniform(1, 300, 100))
    assert np.isfinite(model.predict(X)).all()


# ---- what is exact -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1e3, -1e8, 9192631770.0, 1.7e12])
def test_an_equation_beside_a_large_constant(size):
    """All digits of y count: a constant alone explains nothing of it."""
    X = uniform(2, 60)
    y = size + 0.8 * X[:, 0] ** 2 / X[:, 1]
    model = NPURegressor(random_state=0, n_init=8).fit(X, y)
    assert model.best_equation_.exact
    assert model.best_equation_.exponents.tolist() == [[0, 0], [2, -1]]
    assert model.best_equation_.coef[1] == pytest.approx(0.8, abs=1e-14 * abs(size))
    assert model.score(X, y) == pytest.approx(1, abs=1e-6)
    assert not any(equation.exact for equation in model.equations_ if equation.n_terms == 1)


def test_an_equation_beside_large_constants_of_groups_and_a_large_known_part():
    X, index = uniform(2, 90), np.arange(90) % 3
    options = {"random_state": 0, "n_init": 8}
    model = NPURegressor(**options).fit(X, 1e9 * (1 + index) + (1 + index) * X[:, 0], groups=index)
    assert model.best_equation_.exact
    assert model.best_equation_.exponents.tolist() == [[0, 0], [1, 0]]
    model = NPURegressor(known_part="1e9*x0", **options).fit(X, 1e9 * X[:, 0] + 0.5 * X[:, 1] ** 2)
    assert model.best_equation_.exact
    assert model.best_equation_.exponents.tolist() == [[0, 2]]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_residuals_of_the_rounding_of_y_are_exact(dtype):
    X = uniform(2, 60)
    y = torch.from_numpy(2 * X[:, 0] ** 2 / X[:, 1] + 3 * X[:, 1]).to(getattr(torch, dtype))
    model = NPURegressor(random_state=0, n_init=8).fit(X, y)
    assert model.best_equation_.exact
    assert sorted(model.best_equation_.exponents.tolist()) == [[0, 1], [2, -1]]
    assert not NPURegressor(random_state=0, n_init=8).fit(X, y.double()).best_equation_.exact


@pytest.mark.parametrize(
    ("equation", "terms"),
    [
        (lambda x: np.sqrt(3 * x + 1), {(1.0, 3.0), (0.0, 1.0)}),
        (lambda x: np.sqrt(2 * x + 5), {(1.0, 2.0), (0.0, 5.0)}),
        (lambda x: np.sqrt(x + 1).astype(np.float32), {(1.0, 1.0), (0.0, 1.0)}),
    ],
)
def test_the_shortest_exact_equation_is_found_in_a_narrow_range(equation, terms):
    """A ratio of seven parameters is as near as 4e-10, free powers reach all digits of float32."""
    X = uniform(1, 60, low=1)
    best = NPURegressor(random_state=0).fit(X, equation(X[:, 0])).best_equation_
    assert best.exact
    assert best.target_power == 2
    assert best.n_denominator_terms == 0
    pairs = zip(best.exponents[:, 0], best.coef, strict=True)
    assert {(w, round(float(c), 5)) for w, c in pairs} == terms


def test_the_shortest_of_equal_equations_stays():
    X = uniform(1, 60, low=1)
    fitted = NPURegressor(random_state=0).fit(X, (X[:, 0] + 2) ** 2)
    assert fitted.best_equation_.text() == "y = (x0 + 2)**2"
    assert not fitted.equations_.alternatives


@pytest.mark.filterwarnings("ignore:NPURegressor")
@pytest.mark.parametrize("function", [lambda x: np.exp(-x / 2), np.log1p])
def test_a_function_of_another_kind_is_not_exact(function):
    X = uniform(1, 60, low=1)
    fitted = NPURegressor(random_state=0).fit(X, function(X[:, 0]))
    assert not fitted.best_equation_.exact
    assert any("approximation" in note for note in fitted.equations_.notes)


def test_a_constant_explains_nothing():
    X, e = uniform(2, 60), noise(60)
    options = {"random_state": 0, "n_init": 8, "max_terms": 2, "target_powers": (1,)}
    model = NPURegressor(**options).fit(X, 100 + e)
    assert not model.best_equation_.exponents.any()
    assert model.best_equation_.nrmse == pytest.approx(1)
    assert "(R2 0)" in report_of(model)
    assert "The equation explains less than half of the variance of y." in report_of(model)
    constant = NPURegressor(**options).fit(X, np.full(60, 5.0) + 1e-15 * e)
    assert constant.best_equation_.exact
    assert "explains less than half" not in report_of(constant)


def test_as_many_parameters_as_rows_are_not_exact():
    X = uniform(1, 60)
    fitted = NPURegressor(random_state=0, n_init=8).fit(X, 3 * X[:, 0])
    assert fitted.best_equation_.exact
    other = fitted.refit(X[:1], 5 * X[:1, 0])
    assert not other.best_equation_.exact
    report = report_of(other)
    assert "There are no more rows than parameters: any equation of this form would fit." in report
    assert "coefficient of x0 = 5, without a standard error" in report
    assert "inf" not in report
    with pytest.warns(EquationWarning, match="Nothing tests its form"):  # one row, nine times
        assert not fitted.refit(X[[0] * 9], 5 * X[[0] * 9, 0]).best_equation_.exact


# ---- a straight line over a constant -------------------------------------------------------------


@pytest.mark.parametrize("size", [10, 1e4])
@pytest.mark.parametrize("seed", [1, 2])
def test_a_line_over_a_constant_is_found_where_its_criterion_is_lower(size, seed):
    """Other powers fit nearly as well, and some of them by chance better."""
    draw = RNG(seed)
    X = draw.uniform(1, 5, (200, 3))
    y = size + 0.3 * X[:, 0] + draw.standard_normal(200)
    options = {"random_state": 0, "noise": "additive", "target_powers": (1,), "ratios": False}
    model = NPURegressor(n_init=8, max_terms=2, **options).fit(X, y)
    line = NPURegressor(required_terms=["1", "x0"], max_terms=2, **options).fit(X, y).best_equation_
    assert model.best_equation_.bic < line.bic + 0.01
    near = [model.best_equation_, *model.equations_.alternatives]
    assert any(equation.bic == pytest.approx(line.bic, abs=0.01) for equation in near) == (
        line.bic < model.best_equation_.bic + 6
    )


@pytest.mark.parametrize(
    ("seed", "rows", "size"),
    [(7054, 100, 0.05), (7169, 300, 0.01), (7209, 200, 0.01), (7354, 100, 0.05)],
)
def test_simple_products_in_place_of_terms_that_are_not_simple(seed, rows, size):
    """No equation of other exponents, or for another power of y, stays where the true form is better."""
    draw = RNG([seed - 7000, 9])
    draw.choice(5)
    equation = drawn(seed)
    X = equation.draw(rows, draw)
    y = equation.measured(X, size, draw)
    options = {"noise": "additive", "target_powers": (1, 2), "ratios": False}
    best = NPURegressor(random_state=0, **options).fit(X, y).best_equation_
    assert best.bic < criterion.of_equation(equation, X, y) + 0.01


@pytest.mark.parametrize(
    ("large", "small", "coefficient", "rows", "seed"),
    [
        ((3, 3), (1, 0), -0.2, 300, 2),
        ((3, 2), (1, 1), 0.1, 200, 1),
        ((3, 2), (1, 1), 0.1, 200, 2),
    ],
)
def test_a_small_term_is_found_where_the_criterion_is_lower_with_it(
    large, small, coefficient, rows, seed
):
    """The coefficient is several times its standard error; errors are 1 % of y's size."""
    draw = RNG(seed)
    X = draw.uniform(0.3, 3, (rows, 2))
    products = (X[:, None] ** [large, small]).prod(2)
    y = products @ [1.0, coefficient]
    y += 0.01 * np.sqrt(np.mean(y**2)) * draw.standard_normal(rows)
    texts = [f"x0^{p} x1^{q}" for p, q in (large, small)]
    equation = KnownEquation(
        "", "", tuple(zip([1.0, coefficient], texts, strict=True)), columns=("x0", "x1")
    )
    options = {"noise": "additive", "target_powers": (1,), "ratios": False}
    best = NPURegressor(random_state=0, **options).fit(X, y).best_equation_
    assert best.bic < criterion.of_equation(equation, X, y) + 0.01


# ---- single products -----------------------------------------------------------------------------


def test_a_single_product_is_not_written_as_a_power_of_one():
    draw = RNG(0)
    x = draw.uniform(1, 5, 4000)
    y = 3 * x**0.75 * np.exp(0.6 * draw.standard_normal(4000))
    options = {"n_init": 8, "max_terms": 2, "target_powers": (1, -2), "noise": "multiplicative"}
    model = NPURegressor(random_state=0, ratios=False, **options).fit(x[:, None], y)
    assert all(equation.target_power == 1 for equation in model.equations_ if equation.n_terms == 1)
    assert "Predictions are medians, means are 1.2 times as large" in report_of(model)
