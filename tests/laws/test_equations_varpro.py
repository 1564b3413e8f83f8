"""Variable projection by itself: from starts near a law it finds the law, within the bounds,
without help by others."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from npu_kernels._laws.products.problem import Columns, all_rows
from npu_kernels._laws.products.units import Exponents
from npu_kernels._laws.table.varpro import Solver
from tests.support.laws import uniform


def solver_of(y: np.ndarray, X: np.ndarray) -> Solver:
    rows = all_rows(
        Columns.of(X), y, np.ones(len(y)), 1.0, Exponents.unrestricted(X.shape[1]), None
    )
    assert rows is not None
    return Solver(rows.take(np.arange(len(y))))


@pytest.mark.parametrize("iterations", [12, 30])
def test_two_terms_from_near_them(iterations: int) -> None:
    X = uniform(2, 80, seed=2)
    exponents = np.array([[1.5, -1.0], [0.25, 2.0]])
    y = 3.0 * (X ** exponents[0]).prod(1) - 0.7 * (X ** exponents[1]).prod(1)
    solver = solver_of(y, X)
    starts = exponents + 0.2 * np.random.default_rng(0).standard_normal((16, 2, 2))
    solution = solver.run(starts, np.zeros_like(starts), iterations)
    best = int(solution.rss.argmin())
    assert float(solution.rss[best]) < 1e-16 * solver.size
    np.testing.assert_allclose(solution.u[best].numpy(), exponents, atol=1e-6)
    assert int((solution.rss < 1e-12 * solver.size).sum()) >= 12  # nearly all of the starts


def test_bounds() -> None:
    """Steps end at the bounds, and starts outside begin there."""
    X = uniform(1, 60, seed=2)
    X[::6] = 0
    solver = solver_of(1 / (X[:, 0] + 0.02), X)
    assert float(solver.low[0]) == 0.0
    solution = solver.run(np.array([[[-1.0]], [[0.5]], [[0.0]]]), np.zeros((3, 1, 1)), 20)
    assert (solution.u >= 0).all()
