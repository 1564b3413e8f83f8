"""`NPURegressor` where columns tell little apart: levels of designs, and columns that are alike."""

import itertools
import warnings

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from npu_kernels import NPURegressor
from npu_kernels.equations import EquationWarning
from tests.support.laws import RNG

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
        told = [words for words in warned if "two values: nothing tells the exponents" in words]
        assert len(told) == len(warned) == 1


def test_exclusive_or_is_found():
    X = design((0.0, 1.0), 2, 10)
    y = (X[:, 0] != X[:, 1]).astype(float)
    assert fitted(X, y)[0].predict(X) == pytest.approx(y, abs=1e-12)


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
    assert not any("/" in text or "**" in text for text in texts)  # the same law once more


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
    assert "nothing tells the two apart" in words
    assert str(model.best_equation_) == "y = 2*x0**2"
