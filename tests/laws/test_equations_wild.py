"""A wild value in a table: it is named with its row, and the law is that of the other rows."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from benchmarks.equations.__main__ import measure
from benchmarks.equations.srsd import laws_of
from npu_kernels._laws.table import wild
from npu_kernels.equations import EquationWarning, NPURegressor
from tests.support.laws import RNG, approximate, check, few_rows, noise, terms, uniform

QUICK = {"random_state": 0, "output_powers": (1,)}


def table(rows=120, size=0.01):
    X = uniform(3, rows)
    y = 3.7 * X[:, 0] ** 2 / X[:, 1] + 12.5 * X[:, 2]
    return X, y * (1 + size * noise(rows))


LAW = {(2, -1, 0): 3.7, (0, 0, 1): 12.5}


@pytest.mark.parametrize(
    ("slip", "size"), [(10, 0.0), (0.1, 0.0), (-1, 0.0), (10, 0.01), (0.1, 0.01), (-1, 0.05)]
)
def test_a_wild_value_is_named_and_left_out(slip, size):
    X, y = table(size=size)
    true, y[17] = y[17], slip * y[17]
    with pytest.warns(EquationWarning, match="1 row is far from the law of all others") as said:
        model = NPURegressor(**QUICK).fit(X, y)
    check(model, LAW, rel=max(size, 1e-9))
    assert model.equations_.wild == (17,)
    [note] = model.equations_.notes
    assert str(said[0].message) == f"NPURegressor: {note}"
    number, law = note.split("(row 17: ")[1].split(";")[0].split(" for ")
    assert float(number) == pytest.approx(y[17], rel=1e-5)
    assert float(law) == pytest.approx(true, rel=max(4 * size, 1e-4))
    assert "the first row is 0), and left out. With it: y = " in note
    assert note in model.report()
    rest = np.arange(len(y)) != 17
    errors = model.predict(X[rest]) - y[rest]
    rms = np.sqrt(np.mean(errors**2)) / np.std(y[rest])
    assert model.best_.rms == pytest.approx(rms, rel=1e-6, abs=1e-12)
    for plain, drawn in zip(model.intervals(), model.bootstrap(X, y, draws=20), strict=True):
        assert drawn.error < 4 * plain.error + 1e-9


def test_the_squared_loss_keeps_the_row_and_says_the_law_without_it():
    X, y = table()
    y[17] *= 10
    with pytest.warns(EquationWarning):
        model = NPURegressor(loss="squared", **QUICK).fit(X, y)
    assert model.equations_.wild == (17,)
    note = next(note for note in model.equations_.notes if "far from" in note)
    without = NPURegressor(**QUICK).fit(np.delete(X, 17, 0), np.delete(y, 17))
    assert note.endswith(f". Without it: {without.best_}.")
    assert terms(model.best_) != pytest.approx(LAW, rel=0.05)


def test_all_of_equal_wild_rows_are_named_and_left_out():
    X, y = table()
    y[17] *= 10
    X, y = np.vstack([X, X[17]]), np.append(y, y[17])
    with pytest.warns(EquationWarning, match=r"2 rows are far .*\(row 17: .*; row 120: .* them: y"):
        model = NPURegressor(**QUICK).fit(X, y)
    assert model.equations_.wild == (17, 120)
    check(model, LAW, rel=0.01)
    for plain, drawn in zip(model.intervals(), model.bootstrap(X, y, draws=20), strict=True):
        assert drawn.error < 4 * plain.error


def test_several_wild_values_of_weighted_rows_in_their_order():
    X, y = table(300)
    weight = RNG(3).uniform(0.5, 2, 300)
    weight[5] = 0  # a row that is not fitted has a number nevertheless
    for row in (250, 40):
        y[row] *= -3
    with pytest.warns(EquationWarning, match=r"2 rows are far .*\(row 40: .*; row 250: .* them: y"):
        model = NPURegressor(**QUICK).fit(X, y, weight)
    assert model.equations_.wild == (40, 250)
    check(model, LAW, rel=0.01)


@approximate
@few_rows
def test_rows_that_are_not_wild_stay():
    """Heavy tails, few rows, errors that are factors, another law for a part of the rows."""
    for seed in range(3):
        X, y = table(100)
        generator = RNG(seed)
        tails = generator.standard_t(3, 100)
        assert NPURegressor(**QUICK).fit(X, y + tails).equations_.wild == ()
        shifted = y * np.where(np.arange(100) < 10, 3, 1)
        assert NPURegressor(max_terms=1, **QUICK).fit(X, shifted).equations_.wild == ()
        factors = np.prod(X, 1) * np.exp(0.8 * generator.standard_normal(100))
        assert NPURegressor(max_terms=1, **QUICK).fit(X, factors).equations_.wild == ()
        assert NPURegressor(max_terms=1, **QUICK).fit(X[:12], shifted[:12]).equations_.wild == ()


def slipped(y, seed=0):
    """Make a hundredth of y ten times too large or small; return these rows."""
    rows = RNG(seed).permutation(len(y))[: len(y) // 100]
    y[rows] *= 10.0 ** RNG(seed + 1).choice([-1, 1], len(rows))
    return rows


def test_one_of_many_wild_rows_may_be_hardly_wild():
    """The least of their errors is only a little larger than those of the noise."""
    X = uniform(3, 1000)
    y = 0.25 * X[:, 0] * X[:, 1] ** 2 + X[:, 2]
    y = y + 0.01 * np.sqrt(np.mean(y**2)) * noise(1000)
    near, rows = 5, slipped(y)
    assert near not in rows
    y[near] += 0.09 * np.sqrt(np.mean(y**2))
    with pytest.warns(EquationWarning, match="far from the law of all others"):
        model = NPURegressor(**QUICK).fit(X, y)
    check(model, {(1, 2, 0): 0.25, (0, 0, 1): 1.0}, rel=0.02)
    assert {*rows.tolist(), near} == set(model.equations_.wild)


def test_wild_rows_that_make_the_noise_seem_to_be_in_proportion():
    """y has three decades: with ten wild rows the law of all rows is far from many others."""
    (law,) = (law for law in laws_of(0) if law.name == "III.19.51 wild")
    assert measure(law, 0.01, 0, "NPURegressor", 1000)["found"]


@pytest.mark.parametrize("share", [0.4, 0.6])
def test_the_largest_errors_are_suspected_if_they_hold_most_of_the_squares(share):
    """More rows than can be wild are far from the law."""
    errors = np.abs(RNG(0).standard_normal(1000))
    errors[:100] += 20
    largest = RNG(1).permutation(100)[:30]
    others = np.sum(np.delete(errors, largest) ** 2)
    errors[largest] = np.sqrt(share / (1 - share) * others / 30)
    assert wild._suspects(errors).sum() == (30 if share > 0.5 else 0)
    assert wild._suspects(errors)[largest].all() == (share > 0.5)
