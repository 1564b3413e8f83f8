"""Data and comparisons of the tests of `NPURegressor`; skips where scikit-learn is not
installed."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")


from npu_kernels.equations import NPURegressor

RNG = np.random.default_rng
few_rows = pytest.mark.filterwarnings(
    "ignore:NPURegressor. .* rows are:npu_kernels.equations.EquationWarning"
)
approximate = pytest.mark.filterwarnings(
    "ignore:NPURegressor. The equation is an approximation:npu_kernels.equations.EquationWarning"
)


def uniform(
    columns: int, rows: int = 300, low: float = 0.5, high: float = 3.0, seed: int = 0
) -> np.ndarray:
    return RNG(seed).uniform(low, high, (rows, columns))


def noise(rows: int = 300, seed: int = 1) -> np.ndarray:
    return RNG(seed).standard_normal(rows)


def terms(equation) -> dict[tuple[float, ...], float]:
    """A coefficient for each row of exponents."""
    return {
        tuple(w.tolist()): float(c) for w, c in zip(equation.exponents, equation.coef, strict=True)
    }


def check(model, expected, rel=1e-9, power=1.0):
    actual = terms(model.best_equation_)
    assert actual == pytest.approx(expected, rel=rel)
    assert model.best_equation_.target_power == power


def model(**options) -> NPURegressor:
    """An estimator with a short search."""
    return NPURegressor(random_state=0, **{"n_init": 16, **options})


def standard_errors(equation, parameters, y) -> np.ndarray:
    """Return the standard errors of least squares ``y = equation(parameters)``, by finite differences."""
    p = np.asarray(parameters, float)
    steps = 1e-5 * np.diag(np.maximum(np.abs(p), 1e-2))
    J = np.stack([(equation(p + s) - equation(p - s)) / (2 * s.sum()) for s in steps], 1)
    variance = np.sum((y - equation(p)) ** 2) / (len(y) - len(p))
    return np.sqrt(np.diag(np.linalg.inv(J.T @ J)) * variance)


def force(X):
    return 70 * X[:, 0] * X[:, 1] / X[:, 2] ** 2


def fitted_to_noise():
    """Inputs, a noisy sum of two terms, and the model that was fitted to them."""
    X = uniform(3)
    y = 3.7 * X[:, 0] ** 2 / X[:, 1] - 12.5 * X[:, 2] + 0.2 * noise()
    return X, y, NPURegressor(random_state=0, target_powers=(1,)).fit(X, y)
