"""`NPURegressor` with many rows: memory, blocks of rows, and exponents that only all rows tell; and
y of any size."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from npu_kernels._laws.products import problem
from npu_kernels._laws.products.problem import Columns, all_rows
from npu_kernels._laws.products.units import Exponents
from npu_kernels._laws.table import refine, rounding
from npu_kernels._laws.table.estimates import sizes
from npu_kernels._laws.table.output import merged
from npu_kernels.equations import NPURegressor
from tests.support.laws import RNG, noise, uniform

QUICK = {"random_state": 0, "max_terms": 1, "output_powers": (1,), "starts": 8, "noise": "constant"}


def peak(rows):
    """Bytes that a fit takes beside its data."""
    X = uniform(3, rows)
    y = 2.2 * X[:, 0] ** 1.47 / X[:, 2] + 0.1 * noise(rows)
    tracemalloc.start()
    try:
        NPURegressor(**QUICK).fit(X, y)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_grows_with_a_few_numbers_for_each_row():
    """Memory for the rows once more and some vectors, not for products and their derivatives."""
    few, more = 60_000, 160_000
    assert peak(more) - peak(few) < 6 * 4 * 8 * (more - few)


@pytest.mark.parametrize(("power", "loss"), [(1.0, "squared"), (1.0, "huber"), (-1.0, "squared")])
def test_blocks_give_what_all_rows_at_once_do(power, loss, monkeypatch):
    monkeypatch.setattr(problem, "BLOCK_ROWS", 103)
    X = uniform(3, 1000)
    if power == 1:
        X[::3, 2] *= -1
        X[::7, 1] = 0
    y = (X[:, 0] ** 1.5 + 0.3 * X[:, 1] * X[:, 2] ** 2) ** (1 / power) + 0.01 * noise(1000)
    weight = RNG(3).uniform(0.5, 2, 1000)
    rows = all_rows(Columns.of(X), y, weight, power, Exponents.unrestricted(3), None)
    at_once = rows.take(slice(None))
    assert len(list(rows.blocks())) == 10
    u = np.array([[1.4, 0, 0], [0, 1.1, 2]])
    start = refine.Sum(u, np.zeros((2, 3)), (u != 0) & ~rows.signed, np.ones(2))
    undivided, in_blocks = refine.refit(at_once, start, loss), refine.refit(rows, start, loss)
    assert undivided.rss < refine.refit(at_once, start, loss, 0).rss
    for name in ("u", "c", "rss", "press", "cost"):
        assert getattr(in_blocks, name) == pytest.approx(getattr(undivided, name), rel=1e-7)
    assert refine.covariance(rows, undivided) == pytest.approx(
        refine.covariance(at_once, undivided), rel=1e-7
    )
    everything = rows.choose(np.arange(1000))
    assert refine.refit(everything, start, loss).rss == in_blocks.rss


def test_zeros_and_signs_of_columns_over_blocks(monkeypatch):
    monkeypatch.setattr(problem, "BLOCK_ROWS", 4)
    X = np.array([[1.0, 2.0, 0.0]] * 9)
    X[8] = [-4.0, 2.0, 0.0]
    columns = Columns.of(X)
    assert columns.negative.tolist() == [True, False, False]
    assert columns.zero.tolist() == [False, False, True]
    assert columns.log_mean == pytest.approx([np.log(4) / 9, np.log(2), 0])


def test_exponents_that_only_all_rows_tell_from_fractions():
    """3000 rows take 1.493 for 3/2, a standard error of 0.003 away; of all rows it is 0.0005."""
    rows = 120_000
    X = uniform(1, rows)
    y = 2.2 * X[:, 0] ** 1.493 + 0.5 * noise(rows)
    few, all_ = NPURegressor(**QUICK).fit(X[:3000], y[:3000]), NPURegressor(**QUICK).fit(X, y)
    assert few.exponents_ == [[1.5]]
    assert all_.exponents_[0, 0] == pytest.approx(1.493, abs=0.003)
    assert 0 < all_.exponents_std_[0, 0] < 0.002
    y = 2.2 * X[:, 0] ** 1.5 + 0.5 * noise(rows)
    assert NPURegressor(**QUICK).fit(X, y).exponents_ == [[1.5]]


@pytest.mark.parametrize("power", [1.47, 1.5])
def test_only_exponents_that_are_no_fractions_become_free_again(power):
    X = uniform(2, 1000)
    y = 2.2 * X[:, 0] ** power * X[:, 1] ** 2 + 0.05 * noise(1000)
    rows = all_rows(Columns.of(X), y, np.ones(1000), 1.0, Exponents.unrestricted(2), None)
    fixed = np.zeros((1, 2), dtype=bool)
    simple = refine.refit(
        rows, refine.Sum(np.array([[1.5, 2.0]]), np.zeros((1, 2)), fixed, np.ones(1))
    )
    refined = rounding.reconsidered(rows, simple, refine.Rules())
    if power == 1.5:
        assert refined is simple
        return
    assert refined.free.tolist() == [[True, False]]
    assert refined.u[0].tolist() == [pytest.approx(1.47, abs=0.003), 2]
    assert refined.cost < simple.cost


def test_equal_rows_become_one_with_their_weights():
    X = np.array([[1.0, 5], [0, 7], [1, 5], [1, 5], [0, 6], [1, 4]])
    y = np.array([[2.0], [3], [2], [9], [1], [1]])
    rows, values, total, origin, first, _ = merged(X, y, np.array([1.0, 2, 4, 8, 16, 0]))
    assert rows.tolist() == [[0, 6], [0, 7], [1, 5], [1, 5]]
    assert values.tolist() == [[1], [3], [2], [9]]
    assert total.tolist() == [16, 2, 5, 8]
    assert origin.tolist() == [4, 1, 0, 3]
    assert first.tolist() == [0, 1, 0, 3, 4, -1]


def test_predictions_of_blocks(monkeypatch):
    X = uniform(3)
    model = NPURegressor(**QUICK).fit(X, X[:, 0] * X[:, 1])
    at_once = model.predict(X)
    monkeypatch.setattr(problem, "BLOCK_ROWS", 70)
    assert model.predict(X) == pytest.approx(at_once, rel=1e-14)
    assert replace(model.best_).predict(np.empty((0, 3))).shape == (0,)


@pytest.mark.filterwarnings("ignore:NPURegressor", "error::RuntimeWarning")
@pytest.mark.parametrize("noise", [None, "relative", "factor"])
def test_numbers_near_the_end_of_float64(noise):
    X = uniform(2, 60)
    fitted = NPURegressor(random_state=0, noise=noise).fit(X, 1e-320 * X[:, 0])
    assert fitted.best_.predict(X) == pytest.approx(1e-320 * X[:, 0], rel=1e-3)
    y = np.where(np.arange(60) == 0, 1e-320, X[:, 0])
    assert NPURegressor(random_state=0, noise=noise, starts=8).fit(X, y).best_.terms


@pytest.mark.parametrize("exponent", [-300, -170, 155, 300])
@pytest.mark.parametrize("power", [1, 2, -1])
def test_any_size_of_y(exponent, power):
    """Squares of such y are no numbers of float64; nor are the constants of their powers."""
    sympy = pytest.importorskip("sympy", reason="sympy is not installed")
    X = uniform(2)
    y = 10.0**exponent * (X[:, 0] ** 2 + 4 * X[:, 1] ** 2) ** (1 / power)
    model = NPURegressor(random_state=0, output_powers=(power,), noise="constant").fit(X, y)
    best = model.best_
    assert best.exact
    assert best.rms < 1e-14
    assert sorted(map(tuple, best.exponents.tolist())) == [(0, 2), (2, 0)]
    np.testing.assert_allclose(model.predict(X), y, rtol=1e-12)
    written = eval(best.text(17).split(" = ")[1], {"x0": X[:, 0], "x1": X[:, 1]})
    np.testing.assert_allclose(written, y, rtol=1e-12)
    module = best.torch_module()(torch.from_numpy(X)).detach().numpy()[:, 0]
    np.testing.assert_allclose(module, y, rtol=1e-12)
    function = sympy.lambdify(sympy.symbols("x0 x1", positive=True), model.sympy())
    np.testing.assert_allclose(function(*X.T), y, rtol=1e-12)
    assert len(model.bootstrap(X, y, draws=10)) == 2


def test_relative_errors_of_outputs_over_hundreds_of_decades():
    """Weights are the inverses of the sizes, and their squares are numbers."""
    size = sizes(10.0 ** -np.arange(0.0, 300.0))
    assert np.isfinite(1 / size**2).all()
    assert np.mean(size**2) == pytest.approx(1)
    assert (np.diff(size) <= 0).all()


@pytest.mark.filterwarnings("ignore::npu_kernels.equations.EquationWarning")
def test_powers_of_outputs_beyond_all_numbers_are_not_tried():
    """1 / y**2 overflows, and so do all weighted products."""
    X = RNG(0).uniform(1, 600, (100, 1))
    model = NPURegressor(random_state=0).fit(X, 10.0 ** -RNG(0).uniform(1, 300, 100))
    assert np.isfinite(model.predict(X)).all()
