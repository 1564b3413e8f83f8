"""Zeros mean the same everywhere: a power w > 0 of 0 is 0, in the fit, in `predict`, in sympy and in
the layers; and the errors of every candidate are those of its predictions."""

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from npu_kernels.equations import NPURegressor
from tests.support.equations import RNG, check, few_rows, noise, standard_errors, terms, uniform


def with_zeros(rows: int = 400, columns: int = 3, share: float = 0.3, seed: int = 0) -> np.ndarray:
    X = uniform(columns, rows, seed=seed)
    X[RNG(seed + 9).random(rows) < share, 1] = 0
    return X


def relative_rms(errors, y, weight=None):
    variance = np.average((y - np.average(y, weights=weight)) ** 2, weights=weight)
    return np.sqrt(np.average(errors**2, weights=weight) / variance)


@pytest.mark.filterwarnings("ignore:NPURegressor. The residuals are .* as large as noise")
@few_rows
@pytest.mark.parametrize("seed", [1, 6])
def test_errors_of_every_candidate_are_those_of_its_predictions(seed):
    """Tables of every kind: a step at 0, counts, weights, errors in proportion to y, a robust loss."""
    generator, rows = RNG(seed), (30, 120, 400)[seed % 3]
    X = with_zeros(rows, share=(0.1, 0.6)[seed % 2], seed=seed)
    y = (
        2 * X[:, 0] * np.where(X[:, 1] > 0, 1.2, 1.0),
        3 * X[:, 0] + 0.4 * X[:, 0] * (X[:, 1] > 0) + 0.1 * X[:, 0] * X[:, 1],
        2 * X[:, 0] * X[:, 1] ** 2 + X[:, 2],
        np.exp(X[:, 0]) + np.sqrt(X[:, 1]) - X[:, 2],
    )[seed % 4]
    kind = (None, "proportional", 0.1)[seed % 3]
    y = y + 0.03 * generator.standard_normal(rows) * (y if kind == "proportional" else 1)
    weight = generator.uniform(0.5, 2, rows) if seed % 2 else np.ones(rows)
    options = {"loss": "huber" if seed == 7 else "squared", "noise": kind, "target_powers": (1,)}
    model = NPURegressor(random_state=0, n_init=16, **options).fit(X, y, weight)
    for equation in [*model.equations_, *model.equations_.alternatives]:
        errors = equation.predict(X) - y
        assert equation.nrmse == pytest.approx(relative_rms(errors, y, weight), rel=1e-6)
        # rows that were not fitted are about as far from the equation: zeros would be a multiple
        assert (
            equation.nrmse / 1.6
            < equation.holdout_nrmse
            < max(2.5 * equation.nrmse, equation.nrmse + 0.02)
        )


def test_equations_of_columns_with_zeros():
    X = with_zeros()
    X[::5, 2] = 0
    y = 2 * X[:, 0] * X[:, 1] ** 2 + X[:, 2] ** 0.5
    check(NPURegressor(random_state=0).fit(X, y), {(1, 2, 0): 2.0, (0, 0, 0.5): 1.0})
    noisy = NPURegressor(random_state=0).fit(X, y + 0.05 * noise(400))
    check(noisy, {(1, 2, 0): 2.0, (0, 0, 0.5): 1.0}, rel=0.02)


def test_a_column_that_is_rarely_zero():
    """The rows of the search have no zero, all rows have some."""
    X = uniform(2, 3000)
    X[7, 1] = X[1234, 1] = 0
    y = 3 * X[:, 0] + 2 * X[:, 0] * X[:, 1] + 0.1 * noise(3000)
    check(NPURegressor(random_state=0).fit(X, y), {(1, 0): 3.0, (1, 1): 2.0}, rel=0.02)


def test_every_form_of_a_small_power_of_zero():
    sympy = pytest.importorskip("sympy", reason="sympy is not installed")
    X = with_zeros()
    model = NPURegressor(random_state=0, target_powers=(1,), max_terms=1).fit(X, X[:, 0] * X[:, 1])
    for small in (0.0026, 0.5):
        exponents = np.array([[1.0, small, 0.0]])
        free = np.array([[False, True, False]])
        coef = model.best_equation_.scale * np.exp(-exponents @ model.best_equation_.log_mean)
        scaled = np.ones(1)
        equation = replace(
            model.best_equation_, exponents=exponents, free=free, coef=coef, scaled=scaled
        )
        prediction = equation.predict(X)
        assert (prediction[X[:, 1] == 0] == 0).all()
        assert (prediction[X[:, 1] > 0] > 0).all()
        module = equation.torch_module()
        inputs = torch.from_numpy(X).requires_grad_()
        result = module(inputs)[:, 0]
        np.testing.assert_allclose(result.detach().numpy(), prediction, rtol=1e-9)
        result.sum().backward()
        assert np.isfinite(inputs.grad.numpy()).all()
        formula = equation.formula()(torch.from_numpy(X))[:, 0]
        np.testing.assert_allclose(formula.numpy(), prediction, rtol=1e-9)
        function = sympy.lambdify(sympy.symbols("x0 x1 x2", positive=True), equation.sympy())
        np.testing.assert_allclose(function(*X.T), prediction, rtol=1e-9)
    copy = torch.nn.Sequential(*module)
    assert copy.state_dict().keys() == module.state_dict().keys()


def test_an_exponent_of_0_of_a_column_with_zeros_stays():
    """Any step from it loses the rows with zeros at once; it is no parameter. The derivative for
    another one is 0 in these rows."""
    X = with_zeros(80)
    y = X[:, 0] ** 1.37 + 2 * X[:, 0] ** 0.7 * X[:, 1] ** 1.63 * X[:, 2] ** 0.41 + 0.02 * noise(80)
    options = {"exponents": "real", "max_terms": 2, "n_init": 8, "target_powers": (1,)}
    model = NPURegressor(random_state=0, noise="additive", loss="squared", **options)
    best = model.fit(X, y).best_equation_
    assert best.n_terms == 2
    first = int(np.abs(best.exponents[:, 1]).argmin())
    assert best.exponents[first, 1] == 0
    assert not best.free[first, 1]
    assert best.exponents[1 - first] == pytest.approx([0.7, 1.63, 0.41], abs=0.05)

    def equation(parameters):
        u = best.exponents.copy()
        u[best.free] = parameters[2:]
        return (X[:, None] ** u).prod(2) @ parameters[:2]

    expected = standard_errors(equation, [*best.coef, *best.exponents[best.free]], y)
    errors = [*best.coef_stderr, *best.exponents_stderr[best.free]]
    np.testing.assert_allclose(errors, expected, rtol=1e-4)


def test_a_dependent_exponent_of_a_column_with_zeros_is_not_negative():
    """Units make the exponents of some columns follow from the others'."""
    pytest.importorskip("pint", reason="pint is not installed")
    X = uniform(3, 200)
    X[::4, :] = 0
    X[::4, 0] = uniform(1, 50, seed=3)[:, 0]
    y = 2 * X[:, 0] + 3 * X[:, 1] * X[:, 2]
    units = {"X_units": ["m", "m/s", "s"], "y_units": "m"}
    model = NPURegressor(random_state=0, **units).fit(X, y)
    check(model, {(1, 0, 0): 2.0, (0, 1, 1): 3.0})
    assert np.isfinite(model.predict(X)).all()
    assert all(w >= 0 for row in terms(model.best_equation_) for w in row)
