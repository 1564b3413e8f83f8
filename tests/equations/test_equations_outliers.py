"""Wild values in a table: they are named with their rows, and the equation is that of the others."""

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from benchmarks.equations.__main__ import measure
from benchmarks.equations.known_equations import equations_of
from npu_kernels.equations import EquationWarning, NPURegressor
from tests.support.compare import report_of
from tests.support.equations import RNG, approximate, check, few_rows, noise, terms, uniform

QUICK = {"random_state": 0, "target_powers": (1,)}


def table(rows=120, size=0.01):
    X = uniform(3, rows)
    y = 3.7 * X[:, 0] ** 2 / X[:, 1] + 12.5 * X[:, 2]
    return X, y * (1 + size * noise(rows))


EQUATION = {(2, -1, 0): 3.7, (0, 0, 1): 12.5}


@pytest.mark.parametrize(("slip", "size"), [(10, 0.0), (0.1, 0.01), (-1, 0.05)])
def test_a_wild_value_is_named_and_left_out(slip, size):
    X, y = table(size=size)
    true, y[17] = y[17], slip * y[17]
    with pytest.warns(
        EquationWarning, match="1 row is far from the equation of all other rows"
    ) as said:
        model = NPURegressor(**QUICK).fit(X, y)
    check(model, EQUATION, rel=max(size, 1e-9))
    assert model.equations_.outliers == (17,)
    [note] = model.equations_.notes
    assert str(said[0].message) == f"NPURegressor: {note}"
    number, equation = note.split("(row 17: ")[1].split(";")[0].split(" for ")
    assert float(number) == pytest.approx(y[17], rel=1e-5)
    assert float(equation) == pytest.approx(true, rel=max(4 * size, 1e-4))
    assert "the first row is 0), and left out. With it: y = " in note
    assert note in report_of(model)
    rest = np.arange(len(y)) != 17
    errors = model.predict(X[rest]) - y[rest]
    rms = np.sqrt(np.mean(errors**2)) / np.std(y[rest])
    assert model.best_equation_.nrmse == pytest.approx(rms, rel=1e-6, abs=1e-12)
    for plain, drawn in zip(
        model.confidence_intervals(), model.bootstrap(X, y, n_resamples=20), strict=True
    ):
        assert drawn.stderr < 4 * plain.stderr + 1e-9


def test_the_squared_loss_keeps_the_row_and_says_the_equation_without_it():
    X, y = table()
    y[17] *= 10
    with pytest.warns(EquationWarning):
        model = NPURegressor(loss="squared", **QUICK).fit(X, y)
    assert model.equations_.outliers == (17,)
    note = next(note for note in model.equations_.notes if "far from" in note)
    without = NPURegressor(**QUICK).fit(np.delete(X, 17, 0), np.delete(y, 17))
    assert note.endswith(f". Without it: {without.best_equation_}.")
    assert terms(model.best_equation_) != pytest.approx(EQUATION, rel=0.05)


def test_all_of_equal_wild_rows_are_named_and_left_out():
    X, y = table()
    y[17] *= 10
    X, y = np.vstack([X, X[17]]), np.append(y, y[17])
    with pytest.warns(EquationWarning, match=r"2 rows are far .*\(row 17: .*; row 120: .* them: y"):
        model = NPURegressor(**QUICK).fit(X, y)
    assert model.equations_.outliers == (17, 120)
    check(model, EQUATION, rel=0.01)
    for plain, drawn in zip(
        model.confidence_intervals(), model.bootstrap(X, y, n_resamples=20), strict=True
    ):
        assert drawn.stderr < 4 * plain.stderr


def test_several_wild_values_of_weighted_rows_in_their_order():
    X, y = table(300)
    weight = RNG(3).uniform(0.5, 2, 300)
    weight[5] = 0  # a row that is not fitted has a number nevertheless
    for row in (250, 40):
        y[row] *= -3
    with pytest.warns(EquationWarning, match=r"2 rows are far .*\(row 40: .*; row 250: .* them: y"):
        model = NPURegressor(**QUICK).fit(X, y, weight)
    assert model.equations_.outliers == (40, 250)
    check(model, EQUATION, rel=0.01)


@approximate
@few_rows
@pytest.mark.filterwarnings("ignore:NPURegressor. Residuals of rows that follow one another")
def test_rows_that_are_not_wild_stay():
    """Heavy tails, few rows, errors that are factors, another equation for a part of the rows."""
    for seed in range(2):
        X, y = table(100)
        generator = RNG(seed)
        tails = generator.standard_t(3, 100)
        assert NPURegressor(**QUICK).fit(X, y + tails).equations_.outliers == ()
        shifted = y * np.where(np.arange(100) < 30, 3, 1)
        assert NPURegressor(max_terms=1, **QUICK).fit(X, shifted).equations_.outliers == ()
        factors = np.prod(X, 1) * np.exp(0.8 * generator.standard_normal(100))
        assert NPURegressor(max_terms=1, **QUICK).fit(X, factors).equations_.outliers == ()
        assert (
            NPURegressor(max_terms=1, **QUICK).fit(X[:12], shifted[:12]).equations_.outliers == ()
        )


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
    with pytest.warns(EquationWarning, match="far from the equation of all other rows"):
        model = NPURegressor(**QUICK).fit(X, y)
    check(model, {(1, 2, 0): 0.25, (0, 0, 1): 1.0}, rel=0.02)
    assert {*rows.tolist(), near} == set(model.equations_.outliers)


def test_a_few_slips_among_many_rows():
    X = uniform(2, 25_000)
    y = 2 * X[:, 0] * np.sqrt(X[:, 1]) + 0.05 * noise(len(X))
    rows = RNG(2).choice(len(X), 5, replace=False)
    y[rows] *= 10
    with pytest.warns(EquationWarning, match="far from the equation of all other rows"):
        fitted = NPURegressor(**QUICK).fit(X, y)
    assert set(rows.tolist()) == set(fitted.equations_.outliers)
    true, (constant,) = X[:, 0] * np.sqrt(X[:, 1]), fitted.best_equation_.coef
    true, y = np.delete(true, rows), np.delete(y, rows)
    assert constant == pytest.approx(true @ y / (true @ true), rel=1e-6)


def test_wild_rows_that_make_the_noise_seem_to_be_in_proportion():
    """y has three decades: with ten wild rows the equation of all rows is far from many others."""
    (equation,) = (equation for equation in equations_of(0) if equation.name == "III.19.51 wild")
    assert measure(equation, 0.01, 0, "NPURegressor", 1000)["found"]


@pytest.mark.parametrize(("rows", "signs"), [(60, [1]), (2500, [-1, 1])])
def test_heavy_tails_of_an_eighth_of_the_rows(rows, signs):
    """Kepler's third law with the errors of a catalogue, of one sign or of both."""
    generator = RNG(2 if rows == 60 else 1)
    axis, mass = (np.exp(s * generator.standard_normal(rows)) for s in (1.2, 0.35))
    errors = 0.0035 * generator.standard_normal(rows)
    tails = generator.permutation(rows)[: rows // 8]
    errors[tails] += (0.02 + generator.exponential(0.3, rows // 8)) * generator.choice(
        signs, rows // 8
    )
    y = 365.25 * axis**1.5 / mass**0.5 * np.exp(errors)
    with pytest.warns(EquationWarning, match="The errors of y have heavy tails: .* [0-9]+ more;"):
        model = NPURegressor(**QUICK).fit(np.column_stack([axis, mass]), y)
    assert terms(model.best_equation_) == pytest.approx({(1.5, -0.5): 365.25}, rel=0.003)
    [interval] = model.confidence_intervals()
    assert abs(interval.value - 365.25) < 3 * interval.stderr
    assert len(set(tails.tolist()) - set(model.equations_.outliers)) <= 0.1 * rows / 8
    assert len(model.equations_.outliers) <= 0.15 * rows


@few_rows
def test_wild_rows_that_hide_the_equation():
    """A single term is likelier with these rows; the robust loss finds the sum of two."""
    generator = RNG(1)
    X, y = table(60, 0.02)
    tails = generator.permutation(60)[:6]
    y[tails] *= np.exp(generator.choice([-1, 1], 6) * generator.uniform(1, 2.3, 6))
    with pytest.warns(EquationWarning, match="heavy tails: 6 rows are far"):
        model = NPURegressor(**QUICK).fit(X, y)
    check(model, EQUATION, rel=0.05)
    assert set(model.equations_.outliers) == set(tails.tolist())
    loss = NPURegressor(loss="squared", **QUICK)
    with pytest.warns(EquationWarning, match="heavy tails"):
        assert str(model.best_equation_) in loss.fit(X, y).equations_.notes[-1]


@approximate
@pytest.mark.parametrize(
    ("column", "value", "rows"),
    [
        (0, -999, [20]),
        (0, 1e30, [20]),
        (2, -1, [7, 20, 41]),
        ("y", 0, [7, 20, 41]),
    ],
)
def test_values_that_stand_for_missing_ones(column, value, rows):
    X, y = table(60)
    (y if column == "y" else X[:, column])[rows] = value
    with pytest.warns(EquationWarning, match="from the equation of all other rows") as said:
        model = NPURegressor(**QUICK).fit(X, y)
    check(model, EQUATION, rel=0.03)
    assert model.equations_.outliers == tuple(rows)
    written = f"{value:.6g} for " if column == "y" else f"x{column} is {value:.6g}"
    assert all(f"row {row}: {written}" in str(said[0].message) for row in rows)


@pytest.mark.parametrize(
    ("column", "value", "count"),
    [(1, -999, 14), (0, 1e30, 30), ("y", 0, 18)],
)
def test_a_code_may_be_in_most_rows(column, value, count):
    X, y = table(60)
    y, X = 3.7 * X[:, 0] ** 2 / X[:, 1] * (1 + 0.01 * noise(60)), X[:, :2]
    rows = np.sort(RNG(2).permutation(60)[:count])
    (y if column == "y" else X[:, column])[rows] = value
    name = "y" if column == "y" else f"x{column}"
    with pytest.warns(
        EquationWarning, match=f"{name} is {value:.6g} in {count} of 60 rows".replace("+", ".")
    ):
        model = NPURegressor(**QUICK).fit(X, y)
    check(model, {(2, -1): 3.7}, rel=0.01)
    assert model.equations_.outliers == tuple(rows.tolist())


@pytest.mark.parametrize("end", ["saturated", "limit", "half the limit", "steps", "both"])
def test_readings_at_the_end_of_a_scale(end):
    x = uniform(1, 150, 0.1)
    y = 2 * x[:, 0] ** 2 * (1 + 0.01 * noise(150))
    low, high = np.quantile(y, [0.2, 0.8])
    tenth = np.sort(y)[14]
    clipped, ends = {
        "saturated": (np.minimum(y, high), [high]),
        "limit": (np.maximum(y, low), [low]),
        "half the limit": (np.where(y < low, low / 2, y), [low / 2]),
        "steps": (np.minimum(np.round(y, 1), 12), [12]),
        "both": (np.clip(y, tenth, high), [tenth, high]),
    }[end]
    tied = np.isin(clipped, ends)
    counts = [rf"in {(clipped == value).sum()} of 150 rows, " for value in ends]
    with pytest.warns(EquationWarning, match=rf"y is .*{'.*'.join(counts)}"):
        model = NPURegressor(random_state=0).fit(x, clipped)
    check(model, {(2,): 2}, rel=0.01)
    assert model.equations_.outliers == tuple(np.flatnonzero(tied).tolist())


@few_rows
def test_four_readings_at_a_limit():
    draw = RNG(0)
    X = draw.uniform(1, 5, (100, 2))
    y = np.maximum(2 * X[:, 0] * X[:, 1] * (1 + 0.02 * draw.standard_normal(100)), 6)
    with pytest.warns(EquationWarning, match="4 rows are far from the equation of all other rows"):
        model = NPURegressor(random_state=0).fit(X, y)
    assert model.equations_.outliers == tuple(np.flatnonzero(y == 6).tolist())
    check(model, {(1, 1): 2}, rel=0.01)


@few_rows
@approximate
def test_honest_ties_are_no_end_of_a_scale():
    """Counts, rounded readings, a dose of 0, and rows that count several times."""
    x = uniform(1, 120, 0.1)
    dose = np.where(np.arange(120) < 40, 0, x[:, 0])
    tables = {
        "counts": (x, RNG(0).poisson(x[:, 0] ** 2)),
        "zeros": (dose[:, None], 3 * dose**1.5 + 0.01 * np.where(dose > 0, noise(120), 0)),
        "rounded": (x, np.round(2 * x[:, 0] + 0.1 * noise(120), 1)),
    }
    for name, (X, y) in tables.items():
        model = NPURegressor(**QUICK).fit(X, y)
        assert model.equations_.outliers == (), name
    y, often = 2 * x[:, 0] + 0.1 * noise(120), np.ones(120, int)
    often[y.argmax()] = 9
    assert NPURegressor(**QUICK).fit(x, y, sample_weight=often).equations_.outliers == ()


@approximate
@pytest.mark.filterwarnings("ignore:.*has two values")
@pytest.mark.parametrize("size", [0.0, 0.02])
def test_values_of_an_equation_are_not_taken_for_missing_ones(size):
    """Zeros, many decades, heavy tails of an input, counts, dummy columns, two levels."""
    generator = RNG(4)
    other = generator.uniform(1, 5, 60)
    columns = {
        "zeros": np.where(np.arange(60) < 3, 0, other[::-1]),
        "decades": 10 ** generator.uniform(-4, 4, 60),
        "lognormal": np.exp(2 * generator.standard_normal(60)),
        "counts": generator.poisson(0.3, 60).astype(float),
        "dummy": (np.arange(60) < 57).astype(float),
        "levels": np.where(np.arange(60) < 6, 1000, 1) * generator.uniform(0.8, 1.2, 60),
    }
    for name, column in columns.items():
        y = 2 * column * other * (1 + size * noise(60))
        model = NPURegressor(**QUICK).fit(np.column_stack([column, other]), y)
        assert model.equations_.outliers == (), name
        assert terms(model.best_equation_) == pytest.approx({(1, 1): 2.0}, rel=0.02), name


def test_readings_just_below_0_of_a_root():
    """Two rows exclude the equation's power of y: it is tried without them."""
    x = uniform(1, 60, 1, 5)[:, 0]
    y = np.sqrt(x - 1) * (1 + 0.01 * noise(60))
    lowest = np.argsort(x)[:2]
    y[lowest] = -0.001
    with pytest.warns(EquationWarning, match="2 rows are far from the equation of all other rows"):
        model = NPURegressor(random_state=0, target_powers=(1, 2)).fit(x[:, None], y)
    assert model.best_equation_.target_power == 2
    assert terms(model.best_equation_) == pytest.approx({(1,): 1.0, (0,): -1.0}, rel=0.01)
    assert set(model.equations_.outliers) == set(lowest.tolist())


@few_rows
def test_a_slip_among_few_rows():
    """A line and one row that is not on it, as in Anscombe's third set."""
    x = 4 + 10 * uniform(1, 8)
    y = 4 + 0.3454 * x[:, 0] + 0.004 * noise(8)
    y[3] += 4
    with pytest.warns(EquationWarning, match="1 row is far from the equation of all other rows"):
        model = NPURegressor(random_state=0).fit(x, y)
    assert model.equations_.outliers == (3,)
    check(model, {(1,): 0.3454, (0,): 4}, rel=0.02)


@few_rows
def test_an_error_of_rounding_is_no_slip():
    """y has nine digits, so most errors are far smaller than that of the largest y."""
    X = np.round(uniform(2, 14, 1, 9), 2)
    y = np.array([float(f"{value:.9g}") for value in 3 * X[:, 0] ** 2 / X[:, 1]])
    X[4, 0] *= 3
    with pytest.warns(EquationWarning, match="1 row is far from the equation of all other rows"):
        model = NPURegressor(random_state=0).fit(X, y)
    assert model.equations_.outliers == (4,)
    check(model, {(2, -1): 3}, rel=1e-6)


@few_rows
@pytest.mark.parametrize(
    ("rows", "factor", "seed", "size"),
    [(8, 1.3, 101, 0), (10, 1.3, 100, 0), (14, 0.5, 100, 0), (10, 2, 3, 1e-3), (10, 1.3, 1, 1e-2)],
)
def test_a_slip_moves_no_equation_of_a_small_table(rows, factor, seed, size):
    draw = RNG(seed)
    X = np.round(draw.uniform(1, 9, (rows, 2)), 2)
    y = 3 * X[:, 0] ** 2 / X[:, 1] * (1 + size * draw.standard_normal(rows))
    y[4] *= factor
    every_row_twice = [np.full(rows, 2)] * (size == 0)
    for weight in (None, *every_row_twice):
        with pytest.warns(EquationWarning, match="1 row is far from the equation of all other"):
            model = NPURegressor(random_state=0).fit(X, y, sample_weight=weight)
        assert model.equations_.outliers == (4,)
        check(model, {(2, -1): 3}, rel=0.01)


def equation_of_groups(seed, size):
    """A table of three groups, its equation, and y with errors of this size."""
    generator = RNG(seed)
    label = generator.choice(3, 90)
    x, z = np.exp(generator.uniform(-1, 2, 90)), np.exp(generator.uniform(0, 1.5, 90))
    y = np.array([1, 3, -2])[label] * x**0.5 + np.array([0.5, 1, 2])[label] / z
    return np.column_stack([x, z]), label, y, y + size * np.std(y) * generator.standard_normal(90)


@pytest.mark.parametrize(("seed", "size"), [(0, 0.05), (1, 0.01), (2, 0.0)])
def test_a_slip_in_a_group(seed, size):
    """It moves the coefficients of its group alone, or has a term that follows it."""
    X, label, equation, y = equation_of_groups(seed, size)
    row = int(RNG(seed).integers(90))
    true = y[row]
    y[row] += [-1, 1][seed % 2] * RNG(seed).uniform(2, 6) * np.std(equation)
    with pytest.warns(EquationWarning, match=f"1 row is far from .* .row {row}: {y[row]:.6g} for "):
        model = NPURegressor(**QUICK).fit(X, y, groups=label)
    assert model.equations_.outliers == (row,)
    y[row] = true
    assert np.std(model.predict(X, groups=label) - equation) <= 1e-9 + max(size, 1e-9) * np.std(
        equation
    )


@approximate
@pytest.mark.parametrize("errors", ["equal", "in proportion"])
def test_groups_without_a_slip_lose_no_row(errors):
    for seed in range(2):
        X, label, equation, _ = equation_of_groups(seed, 0.0)
        scatter = 0.1 * RNG(seed + 9).standard_normal(90)
        y = equation + scatter * (np.std(equation) if errors == "equal" else np.abs(equation))
        assert NPURegressor(**QUICK).fit(X, y, groups=label).equations_.outliers == ()


def test_one_code_is_left_out_of_all_rows_that_have_it():
    """The equation with the code comes near one of these rows, whose y is near 0."""
    generator = RNG(1)
    X = np.exp(generator.normal(size=(120, 2)) * [1, 1.5])
    X[[20, 80], 1] = 1, 500
    root = np.sqrt(X[:, 0])
    y = (1 + 0.015 * generator.normal(size=120)) / (2 * root * X[:, 1] + 2e-4 * root * X[:, 1] ** 4)
    X[[20, 80], 0] = -999
    with pytest.warns(EquationWarning, match="row 20: x0 is -999; row 80: x0 is -999"):
        model = NPURegressor(random_state=0, target_powers=(-1,)).fit(X, y)
    assert model.equations_.outliers == (20, 80)
    check(model, {(0.5, 1): 2, (0.5, 4): 2e-4}, rel=0.05, power=-1)


def test_terms_that_follow_a_code_are_no_exact_equation():
    generator = RNG(332)
    X = np.exp(generator.uniform(-1.5, 2, (144, 3)))
    y = 1.6 * X[:, 0] / X[:, 1]
    X[[92, 109, 115], 0] = 9999
    with pytest.warns(EquationWarning, match="3 rows are far from the equation of all other rows"):
        model = NPURegressor(random_state=0).fit(X, y)
    assert model.equations_.outliers == (92, 109, 115)
    check(model, {(1, -1, 0): 1.6})
    assert model.best_equation_.exact


@pytest.mark.filterwarnings("ignore:NPURegressor")
@pytest.mark.parametrize("options", [{"loss": "huber"}, {"loss": "soft_l1"}, {"max_terms": None}])
def test_codes_are_named_with_a_robust_loss_and_without_an_equation(options):
    X = uniform(2, 80, 1, 3)
    y = 3 * X[:, 0] * X[:, 1] ** 2 * (1 + 0.01 * noise(80))
    coded, missing = X.copy(), y.copy()
    coded[:8, 0], missing[:6] = -999, 9999
    plain = NPURegressor(**QUICK | options)
    assert plain.fit(X, y).equations_.outliers == ()
    score = plain.score(X[8:], y[8:])
    for data, count, name in (((coded, y), 8, "x0 is -999"), ((X, missing), 6, "y is 9999")):
        model = NPURegressor(**QUICK | options).fit(*data)
        assert model.equations_.outliers == tuple(range(count))
        [note] = [note for note in model.equations_.notes if "far from the equation" in note]
        assert note.startswith(f"{name} in {count} of 80 rows, ")
        assert not any("clusters" in note for note in model.equations_.notes)
        if "max_terms" in options:
            assert "left out" in note
            assert model.score(X[8:], y[8:]) == pytest.approx(score, abs=0.01)


@pytest.mark.parametrize("slip", [3, 100])
def test_a_slip_in_an_input_bends_no_equation(slip):
    """The row has a leverage near 1 for one more term."""
    generator = RNG(201)
    x = generator.uniform(1, 9, 60)
    y = 2 * x + 3 + 0.2 * generator.standard_normal(60)
    x[5] *= slip
    value = f".* x0 is {x[5]:.6g}" if slip > 3 else ""  # 3 times beyond all others
    with pytest.warns(EquationWarning, match=f"row 5: {value}"):
        model = NPURegressor(random_state=0).fit(x[:, None], y)
    assert model.equations_.outliers == (5,)
    slope, constant = np.polyfit(np.delete(x, 5), np.delete(y, 5), 1)
    assert terms(model.best_equation_) == pytest.approx({(1,): slope, (0,): constant}, rel=1e-6)


def test_a_right_row_far_from_all_others_keeps_its_term():
    generator = RNG(300)
    x = np.append(generator.uniform(1, 9, 39), 40.0)
    y = x + 1e-4 * x**4 + 0.05 * generator.standard_normal(40)
    model = NPURegressor(random_state=0).fit(x[:, None], y)
    assert model.equations_.outliers == ()
    check(model, {(1,): 1.0, (4,): 1e-4}, rel=0.02)
    required = NPURegressor(random_state=0, required_terms=["x0", "x0**4"], max_terms=2)
    check(required.fit(x[:, None], y), {(1,): 1.0, (4,): 1e-4}, rel=0.02)
    assert required.equations_.outliers == ()


# Body in kg and brain in g of 28 animals (Rousseeuw and Leroy 1987; `Animals` in R's MASS). Row 15
# is the lightest of three dinosaurs.
BODY = (
    *(1.35, 465, 36.33, 27.66, 1.04, 11700, 2547, 187.1, 521, 10, 3.3, 529, 207, 62),
    *(6654, 9400, 6.8, 35, 0.12, 0.023, 2.5, 55.5, 100, 52.16, 0.28, 87000, 0.122, 192),
)
BRAIN = (
    *(8.1, 423, 119.5, 115, 5.5, 50, 4603, 419, 655, 115, 25.6, 680, 406, 1320),
    *(5712, 70, 179, 56, 1, 0.4, 12.1, 175, 157, 440, 1.9, 154.5, 3, 180),
)


@few_rows
def test_a_term_that_rests_on_one_row_is_named_with_it():
    """The row has most of the term's sum of squares."""
    X, y = np.array(BODY)[:, None], np.array(BRAIN)
    with pytest.warns(EquationWarning, match=r"rests on row 15 alone \(the first row is 0\)"):
        model = NPURegressor(random_state=0).fit(X, y)
    others = np.setdiff1d(np.arange(28), (15, *model.equations_.outliers))
    (power,) = {float(e) for e in model.best_equation_.exponents[:, 0]} - {0.75}
    sizes = X[:, 0] ** power
    assert sizes[15] ** 2 > 0.8 * (sizes[15] ** 2 + sizes[others] @ sizes[others])
