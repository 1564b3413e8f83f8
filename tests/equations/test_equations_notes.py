"""What `NPURegressor` says where its equation is an approximation: in `report()`, as a warning, and in
`equations_.notes`."""

import pickle
import warnings

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from npu_kernels.equations import EquationWarning, NPURegressor
from tests.support.compare import report_of
from tests.support.equations import RNG, check, noise, uniform

QUICK = {"random_state": 0, "target_powers": (1,)}


def noted(model):
    """The notes of a model, each of which its report and a warning say."""
    notes = model.equations_.notes
    assert all(note in report_of(model) for note in notes)
    assert pickle.loads(pickle.dumps(model.equations_)).notes == notes
    return notes


# ---- approximations ------------------------------------------------------------------------------


def test_an_approximation_is_said():
    X = uniform(2, 400, low=1, high=5)
    y = X[:, 1] * np.exp(X[:, 0] / 2)
    with pytest.warns(
        EquationWarning, match="NPURegressor: The equation is an approximation only"
    ) as said:
        model = NPURegressor(**QUICK).fit(X, y)
    assert not model.best_equation_.exact
    [note] = noted(model)
    assert str(said[0].message) == f"NPURegressor: {note}"
    assert said[0].filename == __file__


def test_what_an_equation_with_too_few_terms_misses_is_said():
    X = uniform(3)
    y = 3 * X[:, 0] ** 2 + X[:, 1] - 4 / X[:, 2] + 0.01 * noise()
    with pytest.warns(EquationWarning, match=r"more terms \(max_terms\) are missing"):
        NPURegressor(max_terms=1, **QUICK).fit(X, y)
    assert noted(NPURegressor(max_terms=3, **QUICK).fit(X, y)) == ()


@pytest.mark.filterwarnings("ignore:NPURegressor. The errors of y have heavy tails")
@pytest.mark.parametrize("kind", ["additive", "proportional", "cubed"])
def test_an_equation_with_noise_is_no_approximation(kind):
    X, e = uniform(3, 300), noise(300, 50)
    y = 3 * X[:, 0] ** 2 / X[:, 1]
    y = y + 0.05 * {"additive": e, "proportional": e * y, "cubed": e**3}[kind]
    notes = noted(NPURegressor(max_terms=2, **QUICK).fit(X, y))
    assert ["heavy tails" in note for note in notes] == [True] * (kind == "cubed")


# ---- terms that nearly cancel --------------------------------------------------------------------


def polynomial(rows, seed, size=0.01):
    x = RNG(seed).uniform(0.1, 3, (rows, 1))
    y = 2.55 * x[:, 0] - 4.85 * x[:, 0] ** 2 - 0.77 * x[:, 0] ** 0.5
    return x, y + size * np.sqrt(np.mean(y**2)) * noise(rows, 30 + seed)


@pytest.mark.parametrize("seed", range(2))
def test_near_powers_that_cancel_give_way_to_fractions(seed):
    """The search alone gives -482.1*x0**1.76283 + 479*x0**1.75845 and the like."""
    X, y = polynomial(1000, seed)
    model = NPURegressor(**QUICK).fit(X, y)
    best = model.best_equation_
    assert np.abs(best.coef).max() < 20
    assert best.nrmse * y.std() == pytest.approx(0.01 * np.sqrt(np.mean(y**2)), rel=0.15)
    assert noted(model) == ()


def test_powers_that_stand_for_a_logarithm_are_said():
    X = uniform(4, 500, low=1, high=5)
    y = X[:, 3] * np.log(X[:, 0] / X[:, 1]) * X[:, 2]
    y = y + 0.01 * np.std(y) * noise(500)
    with pytest.warns(EquationWarning, match=r"Two terms nearly cancel: .*x2\*x3.* and "):
        model = NPURegressor(**QUICK).fit(X, y)
    assert "a logarithm" in noted(model)[0]


def test_pairs_that_do_not_cancel():
    """They have one sign, or are equal on these rows only."""
    X = uniform(2, 80, low=0.5, high=2)
    like = np.column_stack([X[:, 0], X[:, 0] * np.exp(1e-3 * noise(80))])
    for inputs, products, c in ((X, ("x0", "x0*x1**(1/4)"), 2), (like, ("x0", "x1"), -2)):
        equation = np.column_stack(
            [eval(text, dict(zip(("x0", "x1"), inputs.T, strict=True))) for text in products]
        )
        y = equation @ [2, c] + 1e-4 * noise(80, 5)
        options = {"required_terms": products, "max_terms": 2, "n_init": 1, "noise": "additive"}
        model = NPURegressor(**QUICK, **options).fit(inputs, y)
        assert not model.best_equation_.exact
        assert noted(model) == ()


# ---- scaled columns ------------------------------------------------------------------------------


def test_columns_of_a_scaler_are_said():
    X = uniform(2, 60)
    y = X[:, 0] ** 2 * X[:, 1]
    with pytest.warns(EquationWarning) as said:
        model = make_pipeline(StandardScaler(), NPURegressor(max_terms=2, **QUICK)).fit(X, y)
    assert str(said[0].message).startswith("NPURegressor: x0, x1: mean 0 and standard deviation 1")
    assert "leave the scaler out" in noted(model[-1])[0]
    scaled = np.c_[X[:, 0], (X[:, 1] - X[:, 1].mean()) / X[:, 1].std(ddof=1)]
    with pytest.warns(EquationWarning) as said:
        NPURegressor(max_terms=1, **QUICK).fit(scaled, (y - y.mean()) / y.std())
    assert str(said[0].message).startswith("NPURegressor: x1, y: mean 0 and standard deviation 1")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        centred = np.c_[X[:, 0], X[:, 1] - X[:, 1].mean()]
        check(NPURegressor(**QUICK).fit(centred, X[:, 0] * centred[:, 1]), {(1, 1): 1.0})


# ---- rows and residuals --------------------------------------------------------------------------


def said(X, y, **options):
    """A model and its notes."""
    weight = options.pop("sample_weight", None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = NPURegressor(**{**QUICK, "n_init": 16, **options}).fit(X, y, sample_weight=weight)
    return model, noted(model)


def test_residuals_unlike_the_given_noise():
    X, e = uniform(2, 60), noise(60)
    y = 2 * X[:, 0] ** 2 / X[:, 1] + 0.1 * e
    for factor in (0.01, 0.1, 10):
        model, notes = said(X, y, noise=0.1 * factor)
        degrees = 60 - model.best_equation_.n_parameters
        ratio = np.sqrt(np.sum((y - model.predict(X)) ** 2) / degrees) / (0.1 * factor)
        [note] = notes
        assert note.startswith(f"The residuals are {ratio:.3g} times as large as noise ")
        assert f"freedom {ratio**2:.3g})" in note
    for right in (0.1, np.full(60, 0.1)):
        assert said(X, y, noise=right)[1] == ()
        assert said(X, y, noise=right, sample_weight=np.full(60, 9.0))[1] != ()
        [note] = said(X, y, noise=right, sample_weight=np.full(60, 3))[1]
        assert "pass floats" in note


def test_rows_that_are_copies():
    X, e = uniform(1, 40), noise(40)
    y = 2 * X[:, 0] ** 1.5 + 0.2 * e
    assert said(X, y)[1] == ()
    for times in (2, 3):
        order = RNG(times).permutation(40 * times)
        _, notes = said(np.tile(X, (times, 1))[order], np.tile(y, times)[order])
        assert notes[-1].startswith(f"Each row occurs {times} times")
    repeated = np.r_[np.arange(40), np.arange(39)]
    assert said(X[repeated], y[repeated])[1] == ()
    levels = np.repeat(np.arange(1.0, 6), 12)
    assert said(levels[:, None], RNG(0).poisson(3 * levels))[1] == ()


@pytest.mark.filterwarnings("ignore::npu_kernels.equations.EquationWarning")
@pytest.mark.parametrize("weight", [2, "several"])
def test_integer_weights_that_repeat_every_measurement_are_doubted(weight):
    draw = RNG(1)
    X = draw.uniform(1, 3, (30, 1))
    y = 3 * X[:, 0] ** 2 + 0.1 * draw.standard_normal(30)
    counts = draw.integers(2, 5, 30) if weight == "several" else np.full(30, weight)
    model = NPURegressor(random_state=0, n_init=4, max_terms=1)
    notes = model.fit(X, y, counts).equations_.notes
    assert any("pass floats" in note for note in notes)
    for told in (counts.astype(float), np.where(np.arange(30) < 1, 1, counts)):
        notes = model.fit(X, y, told).equations_.notes
        assert not any("pass floats" in note for note in notes)
    of_counts = model.fit(X, np.round(y), counts).equations_.notes  # a table of frequencies
    assert not any("pass floats" in note for note in of_counts)


def test_errors_that_grow_with_a_column():
    for seed in range(3):
        X, e = uniform(2, 150, 0.1, 3, seed=seed), noise(150, seed + 9)
        equation = 2 * X[:, 0] + 3 * X[:, 1]
        [note] = said(X, equation + 0.1 * X[:, 1] ** 3 * e, max_terms=2, ratios=False)[1]
        assert note.startswith("Errors are ")
        assert "times as large where x1 is large" in note
        known = said(X, equation + 0.1 * X[:, 1] ** 3 * e, noise=0.1 * X[:, 1] ** 3, max_terms=2)
        assert known[1] == ()
        assert said(X, equation + 0.1 * e, max_terms=2, ratios=False)[1] == ()
        assert said(X, RNG(seed).poisson(20 * equation), max_terms=2, ratios=False)[1] == ()


def test_rows_that_follow_one_another():
    """A drift, and blocks of rows of one subject; not in another order, nor sorted by y."""
    X, e, factor = uniform(1, 100, 0.5, 3), noise(100), noise(10, 5)
    drift = np.zeros(100)
    for i in range(1, 100):
        drift[i] = 0.9 * drift[i - 1] + 0.4 * e[i]
    equation = 2 * X[:, 0] ** 2 + 3
    blocks = equation * (1 + 0.1 * np.repeat(factor, 10) + 0.05 * e)
    for y in (equation + drift, blocks):
        _, notes = said(X, y)
        assert any("rows that follow one another are alike" in note for note in notes)
        order = RNG(2).permutation(100)
        assert said(X[order], y[order])[1] == ()
        if y is not blocks:
            order = y.argsort()
            assert said(X[order], y[order])[1] == ()


def test_many_parameters_of_one_column():
    x = uniform(1, 80, 0.2, 3)
    y = np.where(x < 1.5, x, 3 * x - 3)[:, 0] + 0.01 * noise(80)
    for powers in (4, 7):
        given = ["1", *(f"x0**{k}" for k in range(1, powers))]
        _, notes = said(x, y, required_terms=given, max_terms=powers, ratios=False)
        many = [note for note in notes if "parameters describe one column" in note]
        assert len(many) == (powers == 7)


def test_residuals_in_two_clumps():
    x, e = uniform(1, 60, 1, 3), noise(60)
    other = np.isin(np.arange(60), RNG(1).permutation(60)[:18])
    _, notes = said(x, np.where(other, 7, 2) * x[:, 0] ** 2 * (1 + 0.01 * e))
    assert any(
        "two clusters, of 42 and 18 rows: there are two populations" in note for note in notes
    )
    for count, loss in ((12, "auto"), (8, "auto"), (12, "squared")):  # few enough to be left out
        other = np.isin(np.arange(60), RNG(1).permutation(60)[:count])
        _, notes = said(x, np.where(other, 7, 2) * x[:, 0] ** 2 * (1 + 0.01 * e), loss=loss)
        [note] = [note for note in notes if "far from the equation" in note]
        assert note.startswith(f"The residuals form two clusters, of {60 - count} and {count} rows")
        assert "heavy tails" not in note
    spread = np.where(other, 10 ** RNG(3).uniform(0.3, 1, 60), 1)
    _, notes = said(x, spread * 2 * x[:, 0] ** 2 * (1 + 0.01 * e))
    assert not any("clusters" in note for note in notes)
    equation = 2 * x[:, 0] ** 2
    for errors in (e, RNG(2).uniform(-1.7, 1.7, 60), RNG(2).standard_t(2, 60), np.exp(e) - 1.6):
        assert not any("clusters" in note for note in said(x, equation + 0.3 * errors)[1])
    _, notes = said(x, (equation > 6).astype(float), max_terms=1)
    assert not any("clusters" in note for note in notes)


def test_one_row_alone_tells_a_column():
    """Anscombe's fourth table."""
    y = [6.58, 5.76, 7.71, 8.84, 8.47, 7.04, 5.25, 12.5, 5.56, 7.91, 6.89]
    x = np.full((11, 1), 8.0)
    x[7] = 19
    _, notes = said(x, np.array(y))
    assert any("x0 is 8 in all rows but one (row 7: 19;" in note for note in notes)
    x[6] = 19
    assert not any("all rows but one" in note for note in said(x, np.array(y))[1])


def test_a_column_that_numbers_the_rows():
    pandas = pytest.importorskip("pandas")
    count = np.arange(1.0, 31)
    y = 3 * count * (1 + 0.05 * RNG(0).standard_normal(30))
    for name, is_said in (("rownames", True), ("hours", False)):
        _, notes = said(pandas.DataFrame({name: count}), y)
        assert any("numbers the rows" in note for note in notes) == is_said


def test_exponents_of_a_column_of_few_values_are_parameters():
    """Labels 1, 2, 3 with slopes of their own: two powers pass through all of them."""
    draw = RNG(1)
    labels, x = draw.integers(1, 4, 40), draw.uniform(1, 5, 40)
    y = np.array([5, 1, 9])[labels - 1] * x + 0.05 * draw.standard_normal(40)
    notes = said(np.column_stack([labels, x]), y, ratios=False)[1]
    assert any(note.startswith("x0 has no more values than the equation has") for note in notes)
    square = 2 * labels**2 * x + 0.05 * draw.standard_normal(40)  # tested by the third value
    assert said(np.column_stack([labels, x]), square)[1] == ()


@pytest.mark.filterwarnings("ignore::npu_kernels.equations.EquationWarning")
def test_a_score_without_a_finite_prediction_names_the_row():
    X = uniform(2, 40)
    model = NPURegressor(random_state=0, n_init=4).fit(X, 2 * X[:, 0] ** 1.5 / X[:, 1])
    X[7, 0] = -999
    with pytest.raises(ValueError, match=r"score: X must have .* got nan for row 7"):
        model.score(X, X[:, 1])
