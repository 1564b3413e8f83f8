"""`NPURegressor` where columns tell little apart: levels of designs, and columns that are alike."""

import itertools
import warnings

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from npu_kernels import NPURegressor
from npu_kernels.equations import EquationWarning
from tests.support.compare import report_of
from tests.support.equations import RNG

LEVELS = {"0 and 1": (0.0, 1.0), "-1 and 1": (-1.0, 1.0)}


def fitted(X, y, **options):
    """The estimator, and what it warned of but for the number of rows."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = NPURegressor(random_state=0, **options).fit(X, y)
    assert all(issubclass(warning.category, EquationWarning) for warning in caught)
    return model, [str(w.message) for w in caught if "rows are too few" not in str(w.message)]


def design(levels, factors, times):
    return np.array(list(itertools.product(levels, repeat=factors)) * times)


def interactions(X):
    """The terms of two factors."""
    return np.column_stack([np.ones(len(X)), X[:, 0], X[:, 1], X[:, 0] * X[:, 1]])


@pytest.mark.parametrize("levels", LEVELS.values(), ids=LEVELS)
def test_interactions_of_two_levels_are_found(levels):
    for seed in range(10):
        draw = RNG(seed)
        factors, times = draw.integers([2, 2], [4, 7]).tolist()
        X, c = design(levels, factors, times), draw.uniform(-5, 5, 4).round(1)
        model, warned = fitted(X, interactions(X) @ c)
        between = draw.uniform(*levels, (20, factors))
        between[0] = np.mean(levels)  # the centre of the design
        assert model.best_equation_.exact
        assert model.predict(between) == pytest.approx(interactions(between) @ c, abs=1e-9)
        assert {name for interval in model.confidence_intervals() for name in interval.name.split()[:1]} <= {
            "coefficient", "constant"
        }  # fmt: skip
        told = [words for words in warned if "two values, which determine no exponent" in words]
        assert len(told) == len(warned) == 1


@pytest.mark.parametrize("levels", [(0.0, 1.0), (-1.0, 1.0), (10.0, 20.0)], ids=str)
def test_errors_of_effects_are_those_of_least_squares(levels):
    X = design(levels, 2, 5)
    y = 5 + 2 * X[:, 0] - 3 * X[:, 1] + 0.1 * RNG(2).standard_normal(20)
    model, warned = fitted(X, y, max_terms=3)
    A = np.column_stack([np.ones(20), X])
    c, squares = np.linalg.lstsq(A, y, rcond=None)[:2]
    errors = np.sqrt(np.diag(np.linalg.inv(A.T @ A)) * squares / 17)
    order = np.array([0 if not row.any() else 1 + row.argmax() for row in model.exponents_])
    assert (model.exponents_.sum(1) <= 1).all()
    assert model.coef_ == pytest.approx(c[order], rel=1e-9)
    assert model.coef_stderr_ == pytest.approx(errors[order], rel=1e-6)
    assert any("x0, x1 have two values" in words for words in warned)
    texts = [other.text() for other in model.equations_.alternatives]
    assert not any("/" in text or "**" in text for text in texts)  # the same equation once more


def test_a_product_tells_the_exponent_of_two_positive_values():
    X = np.column_stack([RNG(0).uniform(1, 3, 40), np.tile([1.0, 2.0], 20)])
    model, warned = fitted(X, 3 * X[:, 0] ** 2 / X[:, 1])
    assert model.exponents_.tolist() == [[2, -1]]
    assert not warned


def test_a_dummy_beside_a_measured_column():
    draw = RNG(3)
    X = np.column_stack([draw.uniform(1, 5, 60), draw.integers(0, 2, 60)])
    model, _ = fitted(X, 2 * X[:, 0] + 3 * X[:, 1] + 0.05 * draw.standard_normal(60))
    assert model.exponents_.tolist() == [[1, 0], [0, 1]]
    assert model.coef_ == pytest.approx([2, 3], abs=0.05)


@pytest.mark.parametrize("factor", [1.0, 100.0, -1.0])
def test_columns_that_nothing_tells_apart_are_named(factor):
    x = RNG(0).uniform(1, 3, 30)
    model, warned = fitted(np.column_stack([x, x**2 + 1, factor * x]), 2 * x**2)
    [words] = warned
    assert words.startswith(f"NPURegressor: x2 is {'' if factor == 1 else f'{factor:g}*'}x0 in")
    assert "the two are not distinguishable" in words
    assert str(model.best_equation_) == "y = 2*x0**2"


# ---- columns of few values -----------------------------------------------------------------------


VALUES = np.array([5.0, 1.0, 9.0, 2.0])


def levels_of(count, rows, seed=0):
    """A column with the values 1, 2, ..., and a function of it that is no power."""
    level = RNG(seed).integers(1, count + 1, rows)
    return level.astype(float), VALUES[level - 1]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("count", [3, 4])
def test_the_form_of_a_function_of_few_values_is_no_equation(count, dtype):
    """Any exponents, as many as values, give the same residuals."""
    level, value = levels_of(count, 150)
    x = RNG(1).uniform(1, 3, 150)
    y = (value * x * (1 + 0.01 * RNG(2).standard_normal(150))).astype(dtype)
    model, warned = fitted(np.column_stack([level, x]), y)
    best, is_told = model.best_equation_, model.best_equation_.n_parameters == count
    assert best.n_parameters >= count
    assert np.isfinite(best.coef_stderr).all() == is_told
    words = "x0 has no more values than" if is_told else "The rows do not determine"
    assert any(text.startswith(f"NPURegressor: {words}") for text in warned)


@pytest.mark.parametrize("groups", [1, 3])
def test_as_many_parameters_as_different_rows_test_no_form(groups):
    level, value = levels_of(4, 120)
    group = np.arange(120) % groups
    y = np.where(group == 1, level, value) + 0.01 * RNG(1).standard_normal(120)
    told = {"groups": group} if groups > 1 else {}
    with pytest.warns(EquationWarning, match="Nothing tests its form"):
        model = NPURegressor(random_state=0, max_terms=4).fit(level[:, None], y, **told)
    assert model.best_equation_.n_parameters <= 4 * groups


def test_what_no_row_tells_has_no_standard_error():
    """Terms of three levels take up every function of them: only the other term is told."""
    draw = RNG(0)
    level, z = draw.integers(1, 4, 150), draw.uniform(1, 3, 150)
    x = draw.uniform(1, 6, 150)
    options = {"random_state": 0, "required_terms": ["1", "x1**2", "x0"], "max_terms": 4}
    smooth = 4 * z**2 + 1 + 2 * x + x**2.63 + 0.01 * draw.standard_normal(150)
    equation = NPURegressor(**options, target_powers=[1]).fit(np.column_stack([x, z]), smooth)
    assert equation.best_equation_.n_parameters == 5
    y = 4 * z**2 + np.array([5.0, 1.0, 9.0])[level - 1] + 0.1 * draw.standard_normal(150)
    with pytest.warns(EquationWarning, match="do not determine 4 of the 5 parameters"):
        other = equation.refit(np.column_stack([level, z]), y)
    A = np.column_stack([z**2, *(level == k for k in (1, 2, 3))])
    c, squares = np.linalg.lstsq(A, y, rcond=None)[:2]
    error = np.sqrt(np.linalg.inv(A.T @ A)[0, 0] * squares[0] / (150 - 5))
    is_told = equation.best_equation_.exponents[:, 1] == 2
    assert other.coef_[is_told] == pytest.approx(c[:1], rel=1e-6)
    assert other.coef_stderr_[is_told] == pytest.approx([error], rel=1e-3)
    assert np.isinf(other.coef_stderr_[~is_told]).all()
    assert "without a standard error" in report_of(other)


# ---- columns that are products of others ---------------------------------------------------------


def pipes():
    draw = RNG(0)
    d, v = draw.uniform(0.1, 0.5, 100), draw.uniform(1, 3, 100)
    return d, v, np.pi * d**2 / 4


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("groups", [1, 2])
def test_the_shortest_product_of_columns_is_the_equation(dtype, groups):
    d, v, area = pipes()
    group = np.arange(100) % groups
    told = {"groups": group} if groups > 1 else {}
    X = np.column_stack([d, area, v])
    with pytest.warns(EquationWarning, match=r"x1 is 0.785398\*x0\*\*2 in all rows"):
        model = NPURegressor(random_state=0).fit(X, ((1 + group) * area * v).astype(dtype), **told)
    best = model.best_equation_
    assert best.exact
    assert best.exponents.tolist() == [[0, 1, 1]]
    assert best.coef.ravel() == pytest.approx(np.arange(1, groups + 1), rel=1e-6)


@pytest.mark.parametrize(
    ("equation", "exponents"),
    [
        (lambda a, b, c: 5 * a, [[1, 0, 0]]),
        (lambda a, b, c: c, [[0, 0, 1]]),
        (lambda a, b, c: 5 * a + 2 * b, [[0, 1, 0], [1, 0, 0]]),
        (lambda a, b, c: np.sqrt(5 * a + 2 * b), [[0, 1, 0], [1, 0, 0]]),
        (lambda a, b, c: 1 / (1 + 2 * c), [[0, 0, 0], [0, 0, 1]]),
    ],
)
@pytest.mark.filterwarnings("ignore:NPURegressor. x2 is x0.x1 in all rows")
def test_products_of_columns_are_no_detour(equation, exponents):
    a, b, _ = pipes()
    model = NPURegressor(random_state=0).fit(np.column_stack([a, b, a * b]), equation(a, b, a * b))
    assert model.best_equation_.exact
    assert sorted(model.best_equation_.exponents.tolist()) == exponents


@pytest.mark.filterwarnings("error")
def test_a_column_near_a_product_is_none():
    a, b, _ = pipes()
    c = a * b * (1 + 1e-6 * RNG(1).standard_normal(100))
    model = NPURegressor(random_state=0).fit(np.column_stack([a, b, c]), 5 * a * b)
    assert model.best_equation_.exponents.tolist() == [[1, 1, 0]]
