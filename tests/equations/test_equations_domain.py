"""Predictions of `NPURegressor` outside of the domain of an equation: those of the formula in NumPy."""

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from npu_kernels.equations import EquationWarning, NPURegressor
from tests.support.equations import uniform

EQUATIONS = {
    "2 sqrt(x)": lambda x: 2 * x**0.5,
    "x**2.5": lambda x: x**2.5,
    "x**1.3": lambda x: x**1.3,
    "sqrt(3 x + 1)": lambda x: (3 * x + 1) ** 0.5,
    "sqrt(4 - x)": lambda x: (4 - x) ** 0.5,
    "-sqrt(4 - x)": lambda x: -((4 - x) ** 0.5),
    "(x + 2)**2": lambda x: (x + 2) ** 2,
    "1/sqrt(x + 2)": lambda x: (x + 2) ** -0.5,
    "1/(x + 2)": lambda x: 1 / (x + 2),
    "x**3": lambda x: x**3,
    "1/x": lambda x: 1 / x,
    "root of a ratio": lambda x: ((1 + 2 * x) / (3 + x)) ** 0.5,
}


@pytest.mark.filterwarnings("ignore:NPURegressor. .* predictions are")
@pytest.mark.parametrize("equation", EQUATIONS.values(), ids=EQUATIONS)
def test_a_root_of_a_negative_number_is_none(equation):
    X = uniform(1, 60, low=1)
    fitted = NPURegressor(random_state=0).fit(X, equation(X[:, 0]))
    x = np.array([-4.0, -1.0, -0.3, 1.0, 10.0, 1e4])
    with np.errstate(invalid="ignore"):
        expected = equation(x)
    module = fitted.torch_module()(torch.from_numpy(x)[:, None]).detach().numpy()[:, 0]
    for values in (fitted.predict(x[:, None]), fitted.best_equation_.predict(x[:, None]), module):
        np.testing.assert_allclose(values, expected, rtol=1e-7)


OF_TWO = {
    "root of a ratio": lambda a, b: ((a**2 + 2 * a**2 * b) / (1 + b)) ** 0.5,
    "root of a sum": lambda a, b: (a**2 + 2 * a**2 * b) ** 0.5,
    "root below a line": lambda a, b: (a**2 + 2 * a**2 * b) ** -0.5,
    "ratio": lambda a, b: (a + 2 * b) / (1 + a * b),
    "reciprocal": lambda a, b: 1 / (a + 2 * b**2),
    "square": lambda a, b: (a + 2 * b) ** 2,
    "fraction": lambda a, b: a**1.5 + 2 * b,
}


@pytest.mark.filterwarnings("ignore:NPURegressor. .* predictions are")
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("equation", OF_TWO.values(), ids=OF_TWO)
def test_sympy_and_its_function_agree_at_inputs_of_any_sign(equation):
    sympy = pytest.importorskip("sympy", reason="SymPy is not installed")
    X = uniform(2, 80, low=1)
    fitted = NPURegressor(random_state=0).fit(X, equation(*X.T))
    symbols = fitted.best_equation_.formula().symbols
    function = sympy.lambdify(symbols, fitted.sympy(), "numpy")
    points = np.array([[-2, 1.5], [2, -1.5], [1.3, -0.7], [-1.5, -2.5], [-0.5, 0.7], [2.0, 2.0]])
    expected = equation(*points.T)
    for values in (fitted.predict(points), function(*points.T)):
        np.testing.assert_allclose(values, expected, rtol=1e-7)


def test_a_warning_counts_the_roots():
    X = uniform(1, 60, low=1)
    fitted = NPURegressor(random_state=0).fit(X, 2 * X[:, 0] ** 0.5)
    with pytest.warns(EquationWarning, match="1 predictions are infinite or undefined"):
        assert np.isnan(fitted.predict([[-4.0], [4.0]])).tolist() == [True, False]


def test_groups_and_several_columns_have_roots_too():
    X, group = uniform(2, 60, low=1), np.arange(60) % 2
    fitted = NPURegressor(random_state=0).fit(
        X, np.sqrt((1 + group) * X[:, 0] / X[:, 1]), groups=group
    )
    with pytest.warns(EquationWarning, match="1 predictions"):
        values = fitted.predict([[-4.0, 1.0], [4.0, 1.0]], groups=[1, 1])
    np.testing.assert_allclose(values, [np.nan, np.sqrt(8)], rtol=1e-9)
