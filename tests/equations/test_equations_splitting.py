"""Two simple products in place of terms whose exponents are not simple."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from npu_kernels.equations import NPURegressor
from tests.support.equations import RNG, noise, terms, uniform


@pytest.mark.parametrize(
    ("coefficients", "equation"),
    [
        ([1.3, 0.5, -0.33], [(-1.0, 0.0), (-0.5, 0.0), (1.0, 2.0)]),
        ([2.2, -0.8, -0.33], [(0.5, 0.0), (2.0, -2.0), (1.0, -1.0)]),
    ],
)
def test_two_terms_that_one_term_is_near_to(coefficients, equation) -> None:
    X = uniform(2, low=0.5, high=4.0)
    y = np.exp(np.log(X) @ np.array(equation).T) @ np.array(coefficients)
    y += 0.01 * np.sqrt(np.mean(y**2)) * noise()
    settings = {"random_state": 0, "target_powers": (1,), "ratios": False, "max_terms": 3}
    assert set(terms(NPURegressor(**settings).fit(X, y).best_equation_)) == set(equation)
    model = NPURegressor(**settings, max_denominator=1, n_init=8).fit(X, y)
    assert not (model.exponents_ % 1 == 0.5).any()


def test_two_products_in_place_of_a_term_that_is_not_simple() -> None:
    """The search with few starts alone finds ``x0**2*x1**1.955`` and ``x1**(1/3)``."""
    draw = RNG(1)
    X = draw.uniform(0.5, 3, (80, 2))
    equation = np.sort(draw.choice([-1, -0.5, 0, 0.5, 1, 2], (3, 2)), 0)
    y = (X[:, None] ** equation).prod(2) @ np.array([2.5, -0.8, -0.33])
    y += 0.01 * y.std() * draw.standard_normal(80)
    options = {"target_powers": (1,), "ratios": False, "max_terms": 3, "noise": "additive"}
    best = NPURegressor(random_state=0, n_init=2, **options).fit(X, y).best_equation_
    assert set(terms(best)) == {tuple(row) for row in equation.tolist()}
