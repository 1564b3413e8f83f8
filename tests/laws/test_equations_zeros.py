"""Zeros mean the same everywhere: a power w > 0 of 0 is 0, in the fit, in `predict`, in sympy and in
the layers; and the errors of every candidate are those of its predictions."""

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from npu_kernels._laws.products.library import Library
from npu_kernels._laws.products.problem import Columns, all_rows
from npu_kernels._laws.products.units import Exponents
from npu_kernels._laws.table import refine
from npu_kernels._laws.table.varpro import Solver
from npu_kernels.equations import NPURegressor
from tests.support.laws import RNG, check, few_rows, noise, terms, uniform


def with_zeros(rows: int = 400, columns: int = 3, share: float = 0.3, seed: int = 0) -> np.ndarray:
    X = uniform(columns, rows, seed=seed)
    X[RNG(seed + 9).random(rows) < share, 1] = 0
    return X


def relative_rms(errors, y, weight=None):
    variance = np.average((y - np.average(y, weights=weight)) ** 2, weights=weight)
    return np.sqrt(np.average(errors**2, weights=weight) / variance)


@few_rows
@pytest.mark.parametrize("seed", range(8))
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
    kind = (None, "relative", 0.1)[seed % 3]
    y = y + 0.03 * generator.standard_normal(rows) * (y if kind == "relative" else 1)
    weight = generator.uniform(0.5, 2, rows) if seed % 2 else np.ones(rows)
    options = {"loss": "huber" if seed == 7 else "squared", "noise": kind, "output_powers": (1,)}
    model = NPURegressor(random_state=0, starts=16, **options).fit(X, y, weight)
    for equation in [*model.equations_, *model.equations_.alternatives]:
        errors = equation.predict(X) - y
        assert equation.rms == pytest.approx(relative_rms(errors, y, weight), rel=1e-6)
        # rows that were not fitted are about as far from the law: zeros would be a multiple
        assert equation.rms / 1.6 < equation.error < max(2.5 * equation.rms, equation.rms + 0.02)


def test_the_error_of_held_out_rows_is_that_of_their_predictions(monkeypatch):
    from npu_kernels._laws.table import output

    X = with_zeros()
    y = 3 * X[:, 0] + 0.4 * X[:, 0] * (X[:, 1] > 0) + 0.05 * noise(400)
    plain, seen = output.held_out, []

    def watched(rows, data, law, held):
        error = plain(rows, data, law, held)
        equation = output.equation_of(rows, data, law, error, len(held), "constant")
        errors = equation.predict(rows.X[held]) - rows.y[held]
        deviations = rows.y[held] - rows.y.mean()
        seen.append((error, np.sqrt(np.mean(errors**2) / np.mean(deviations**2))))
        return error

    monkeypatch.setattr(output, "held_out", watched)
    NPURegressor(random_state=0, starts=16, output_powers=(1,)).fit(X, y)
    assert len(seen) > 1
    for error, predicted in seen:
        assert error == pytest.approx(predicted, rel=1e-9)


def test_laws_of_columns_with_zeros():
    X = with_zeros()
    X[::5, 2] = 0
    y = 2 * X[:, 0] * X[:, 1] ** 2 + X[:, 2] ** 0.5
    check(NPURegressor(random_state=0).fit(X, y), {(1, 2, 0): 2.0, (0, 0, 0.5): 1.0})
    noisy = NPURegressor(random_state=0).fit(X, y + 0.05 * noise(400))
    check(noisy, {(1, 2, 0): 2.0, (0, 0, 0.5): 1.0}, rel=0.02)


def test_one_product_of_columns_with_zeros():
    X = with_zeros()
    y = 5 * X[:, 0] ** 2 * np.sqrt(X[:, 1]) / X[:, 2]
    check(NPURegressor(random_state=0).fit(X, y), {(2, 0.5, -1): 5.0})


def test_a_column_that_is_rarely_zero():
    """The rows of the search have no zero, all rows have some."""
    X = uniform(2, 3000)
    X[7, 1] = X[1234, 1] = 0
    y = 3 * X[:, 0] + 2 * X[:, 0] * X[:, 1] + 0.1 * noise(3000)
    check(NPURegressor(random_state=0).fit(X, y), {(1, 0): 3.0, (1, 1): 2.0}, rel=0.02)


def test_every_form_of_a_small_power_of_zero():
    sympy = pytest.importorskip("sympy", reason="sympy is not installed")
    X = with_zeros()
    model = NPURegressor(random_state=0, output_powers=(1,), max_terms=1).fit(X, X[:, 0] * X[:, 1])
    for small in (0.0026, 0.5):
        exponents = np.array([[1.0, small, 0.0]])
        free = np.array([[False, True, False]])
        coef = model.best_.scale * np.exp(-exponents @ model.best_.log_mean)
        scaled = np.ones(1)
        equation = replace(model.best_, exponents=exponents, free=free, coef=coef, scaled=scaled)
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


def problem_with_zeros():
    X = with_zeros(60)
    y = X[:, 0] + 2 * X[:, 0] * X[:, 1] ** 1.5
    rows = all_rows(Columns.of(X), y, np.ones(60), 1.0, Exponents.unrestricted(3), None)
    assert rows is not None
    return X, y, rows.take(slice(None))


def test_products_of_the_fit_the_library_and_the_solver():
    X, _, problem = problem_with_zeros()
    u = np.array([[1.0, 0.0026, 0.0], [1.0, 0.0, 1.0], [0.0, 1e-14, 0.0], [0.0, -0.5, 0.0]])
    parity = np.zeros_like(u)
    products = problem.predict(u, parity, np.ones(4))[2]
    zero = X[:, 1] == 0
    assert (products[zero, 0] == 0).all()
    assert (products[zero, 1] > 0).all()
    assert (products[zero, 2] == 1).all()  # an exponent of rounding
    assert np.isinf(products[zero, 3]).all()
    assert np.isfinite(products[~zero]).all()
    terms = Solver(problem).terms(torch.from_numpy(u)[None], torch.zeros(1, 4, 3))[0]
    np.testing.assert_allclose(terms.numpy().T, products)
    library = Library(problem, RNG(0))
    positive = library.u[:, 1] > 0
    assert positive.any()
    assert (library.A[zero][:, positive] == 0).all()
    assert (library.u[:, 1] >= 0).all()


def test_derivatives_at_zeros_are_those_of_differences():
    _, _, problem = problem_with_zeros()
    u, c = np.array([[1.0, 0.0, 0.0], [1.0, 1.5, 0.3]]), np.array([0.3, 0.7])
    law = refine.Sum(u, np.zeros_like(u), np.array([[True, False, True], [True] * 3]), c)
    J = refine.jacobian(problem, law, problem.predict(u, law.parity, c)[2])
    assert np.isfinite(J).all()
    for column, (k, i) in enumerate(zip(*np.nonzero(law.free), strict=True)):
        step = np.zeros_like(u)
        step[k, i] = 1e-6
        change = [problem.predict(u + s * step, law.parity, c)[0] for s in (1, -1)]
        np.testing.assert_allclose(J[:, 2 + column], (change[0] - change[1]) / 2e-6, atol=1e-7)


def test_an_exponent_of_0_of_a_column_with_zeros_stays():
    """Any step from it loses the rows with zeros at once; it is no parameter."""
    _, _, problem = problem_with_zeros()
    u = np.array([[0.9, 0.0, 0.1], [1.1, 1.4, 0.1]])
    start = refine.Sum(u, np.zeros_like(u), np.ones_like(u, dtype=bool), np.ones(2))
    law = refine.refit(problem, start)
    np.testing.assert_allclose(law.u, [[1, 0, 0], [1, 1.5, 0]], atol=1e-7)
    assert law.free.tolist() == [[True, False, True], [True] * 3]
    points = Solver(problem).run(u[None], np.zeros_like(u)[None], 30)
    np.testing.assert_allclose(points.u[0].numpy(), law.u, atol=1e-6)


def test_a_dependent_exponent_of_a_column_with_zeros_is_not_negative():
    """Units make the exponents of some columns follow from the others'."""
    pytest.importorskip("pint", reason="pint is not installed")
    X = uniform(3, 200)
    X[::4, :] = 0
    X[::4, 0] = uniform(1, 50, seed=3)[:, 0]
    y = 2 * X[:, 0] + 3 * X[:, 1] * X[:, 2]
    units = {"units": ["m", "m/s", "s"], "y_units": "m"}
    model = NPURegressor(random_state=0, **units).fit(X, y)
    check(model, {(1, 0, 0): 2.0, (0, 1, 1): 3.0})
    assert np.isfinite(model.predict(X)).all()
    assert all(w >= 0 for row in terms(model.best_) for w in row)
