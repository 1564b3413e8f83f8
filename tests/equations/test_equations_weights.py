"""`NPURegressor`: rows that are equal, weights and known errors, beside plain least squares."""

import pickle

import numpy as np
import pytest

from npu_kernels import NPURegressor
from tests.support.compare import report_of
from tests.support.equations import RNG, noise, uniform

LINE = {
    "required_terms": ["x0", "1"],
    "max_terms": 2,
    "n_init": 4,
    "loss": "squared",
    "random_state": 0,
}
TABLES = ("numbers", "counts", "rounded")
pytestmark = pytest.mark.filterwarnings("ignore::npu_kernels.equations.EquationWarning")


def table(kind: str, seed: int = 0, rows: int = 300):
    """x, y of a line, and the errors' standard deviations. Counts and readings have equal rows."""
    draw = RNG(seed)
    x = draw.uniform(1, 9, rows) if kind == "numbers" else draw.integers(1, 9, rows).astype(float)
    sigma = draw.choice([0.5, 2.0], rows)
    y = 30 + 3 * x + sigma * draw.standard_normal(rows)
    return x[:, None], np.round(y) if kind == "rounded" else y, sigma


def line(fitted):
    """Coefficients of a line, the slope first, and their standard errors."""
    best = fitted.best_equation_
    order = np.argsort(-best.exponents[:, 0])
    return best.coef[order], best.coef_stderr[order]


def least_squares(X, y, root, absolute=False):
    """The same of the rows by their normal equations. root: 1 / standard deviations."""
    A = np.c_[X, np.ones(len(X))] * root[:, None]
    c, rss, *_ = np.linalg.lstsq(A, y * root, rcond=None)
    variance = 1.0 if absolute else float(rss[0]) / (len(y) - 2)
    return c, np.sqrt(np.diag(np.linalg.inv(A.T @ A)) * variance)


def agrees(fitted, expected, rel=1e-6):
    for ours, theirs in zip(line(fitted), expected, strict=True):
        assert ours == pytest.approx(theirs, rel=rel)


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("weighted", [False, True])
def test_errors_are_those_of_least_squares_of_all_rows(kind, weighted):
    X, y, sigma = table(kind)
    weight = 7.0 / sigma**2 if weighted else None
    root = 1 / sigma if weighted else np.ones(len(y))
    fitted = NPURegressor(**LINE, noise="additive").fit(X, y, weight)
    agrees(fitted, least_squares(X, y, root))
    assert fitted.best_equation_.df_resid == 298
    assert fitted.best_equation_.n_held_out == 60
    agrees(fitted.refit(X, y, weight), least_squares(X, y, root))


@pytest.mark.parametrize("kind", TABLES)
@pytest.mark.parametrize("by", ["weights", "array", "both"])
def test_known_errors_are_those_of_absolute_sigma(kind, by):
    """They are the errors of ``curve_fit(sigma=sigma, absolute_sigma=True)``."""
    X, y, sigma = table(kind)
    errors, weight = {
        "weights": (1.0, 1 / sigma**2),
        "array": (sigma, None),
        "both": (3.0, 9 / sigma**2),
    }[by]
    fitted = NPURegressor(**LINE, noise=errors).fit(X, y, weight)
    expected = least_squares(X, y, 1 / sigma, absolute=True)
    agrees(fitted, expected)
    agrees(fitted.refit(X, y, weight), expected)
    [slope, _] = sorted(fitted.confidence_intervals(), key=lambda interval: abs(interval.value))
    assert (slope.high - slope.low) / slope.stderr == pytest.approx(2 * 1.959964, rel=1e-5)


@pytest.mark.parametrize("kind", TABLES)
def test_errors_of_the_other_kinds_count_all_rows(kind):
    X, y, _ = table(kind)
    fitted = NPURegressor(**LINE, noise="proportional").fit(X, y)
    agrees(fitted, least_squares(X, y, 1 / fitted.predict(X)), rel=1e-3)
    fitted = NPURegressor(**LINE, noise="multiplicative").fit(X, y)
    optimize = pytest.importorskip("scipy.optimize")
    equation = optimize.curve_fit(
        lambda x, a, b: np.log(a * x + b), X[:, 0], np.log(y), [3.0, 30.0]
    )
    agrees(fitted, (equation[0], np.sqrt(np.diag(equation[1]))), rel=1e-4)


def test_a_weight_that_is_an_integer_repeats_its_row():
    X, y, _ = table("numbers", rows=60)
    count = RNG(1).integers(0, 4, 60)
    copies = X.repeat(count, 0), y.repeat(count)
    for kind in ("additive", 1.5, "multiplicative"):
        fitted = NPURegressor(**LINE, noise=kind).fit(X, y, count)
        repeated = NPURegressor(**LINE, noise=kind).fit(*copies)
        assert fitted.report() == repeated.report()
        assert fitted.best_equation_.bic == repeated.best_equation_.bic
        agrees(fitted.refit(X, y, count), line(fitted))
        drawn = fitted.bootstrap(X, y, 10, sample_weight=count)
        assert drawn == repeated.bootstrap(*copies, n_resamples=10)
    fitted = NPURegressor(**LINE, noise="additive").fit(X, y, count)
    agrees(fitted, least_squares(*copies, np.ones(count.sum())))
    labels = np.where(X[:, 0] > 5, "a", "b")
    options = {"max_terms": 1, "n_init": 4, "random_state": 0}
    fitted = NPURegressor(**options).fit(X, y, count, groups=labels)
    repeated = NPURegressor(**options).fit(*copies, groups=labels.repeat(count))
    assert fitted.report() == repeated.report()


def test_other_weights_say_how_precise_a_row_is():
    """Their sizes do not matter unless the noise is a number; the rows stay as many."""
    X, y, sigma = table("numbers", rows=60)
    first, second = (
        NPURegressor(**LINE, noise="additive").fit(X, y, size / sigma**2) for size in (1.0, 1e6)
    )
    assert second.best_equation_.coef_stderr == pytest.approx(
        first.best_equation_.coef_stderr, rel=1e-9
    )
    assert first.best_equation_.df_resid == second.best_equation_.df_resid == 58
    double = NPURegressor(**LINE, noise=1.0).fit(X, y, np.full(60, 4.0))
    single = NPURegressor(**LINE, noise=0.5).fit(X, y)
    assert double.best_equation_.coef_stderr == pytest.approx(
        single.best_equation_.coef_stderr, rel=1e-9
    )
    assert double.best_equation_.bic == pytest.approx(single.best_equation_.bic, rel=1e-9)


def test_a_reading_that_occurs_often_tells_as_much_as_one_that_does_not():
    """Adding what no reading shows to x changes nothing: not the errors, nor the criterion."""
    X, y, _ = table("rounded")
    apart = X + 1e-9 * noise(300)[:, None]
    for kind in ("additive", 1.5):
        first, second = (
            NPURegressor(**LINE, noise=kind).fit(part, y).best_equation_ for part in (X, apart)
        )
        assert second.coef_stderr == pytest.approx(first.coef_stderr, rel=1e-5)
        assert second.bic == pytest.approx(first.bic, abs=1e-3)


def test_known_errors_choose_the_equation():
    """Rows whose errors are large say little of it."""
    x = RNG(0).uniform(1, 5, (80, 1))
    sigma = np.where(x[:, 0] > 3, 0.5, 0.1)
    y = 2 * x[:, 0] ** 2 + 0.6 * x[:, 0] + sigma * noise(80, 3)
    options = {"random_state": 0, "n_init": 16, "ratios": False}
    weighted = NPURegressor(**options, noise=1.0).fit(x, y, 1 / sigma**2)
    fitted = NPURegressor(**options, noise=sigma).fit(x, y)
    assert sorted(fitted.best_equation_.exponents[:, 0]) == [1, 2]
    assert fitted.best_equation_.coef == pytest.approx(weighted.best_equation_.coef, rel=1e-9)
    assert fitted.equations_.noise == "known"


def test_errors_of_several_outputs():
    X, y, sigma = table("numbers")
    both = np.column_stack([y, y[::-1]])
    sigmas = np.column_stack([sigma, 2 * sigma[::-1]])
    fitted = NPURegressor(**LINE, noise=sigmas).fit(X, both)
    shared = NPURegressor(**LINE, noise=sigma).fit(X, both)
    for model, errors in ((fitted, sigmas), (shared, np.c_[sigma, sigma])):
        for o, of_both in enumerate(model.best_equation_):
            single = NPURegressor(**LINE, noise=errors[:, o]).fit(X, both[:, o]).best_equation_
            assert of_both.coef_stderr == pytest.approx(single.coef_stderr, rel=1e-9)


def test_refit_takes_the_errors_of_its_own_rows():
    X, y, sigma = table("numbers")
    fitted = NPURegressor(**LINE, noise=sigma).fit(X, y)
    with pytest.raises(ValueError, match=r"refit: noise must have a number for each row, \[200\]"):
        fitted.refit(X[:200], y[:200])
    other = fitted.set_params(noise=sigma[:200]).refit(X[:200], y[:200])
    agrees(other, least_squares(X[:200], y[:200], 1 / sigma[:200], absolute=True))


def test_the_order_of_equal_rows_does_not_matter():
    X, y, sigma = table("rounded")
    order = RNG(1).permutation(300)
    options = {"random_state": 0, "n_init": 4, "max_terms": 2, "noise": "additive"}
    first = NPURegressor(**options).fit(X, y, 1 / sigma)
    second = NPURegressor(**options).fit(X[order], y[order], 1 / sigma[order])
    assert second.report() == first.report()


def test_copies_of_few_rows_are_not_exact():
    """As many parameters as different rows pass through all of them."""
    for seed in range(3):
        X, y = uniform(3, 6, seed=seed).repeat(5, 0), noise(6, 20 + seed).repeat(5)
        options = {"random_state": 0, "n_init": 8, "target_powers": (1,)}
        fitted = NPURegressor(**options).fit(X, y)
        assert not any(equation.exact for equation in fitted.equations_)
        assert all(equation.n_parameters < 6 for equation in fitted.equations_)


def test_the_report_says_that_errors_follow_the_weights():
    X = uniform(2, 60)
    y = 2 * X[:, 0] ** 2 / X[:, 1] + 0.1 * noise(60)
    fitted = NPURegressor(random_state=0).fit(X, y, sample_weight=X[:, 0])
    assert "Error model: additive, equal for all rows, but for sample_weight." in report_of(fitted)
    assert pickle.loads(pickle.dumps(fitted)).report() == fitted.report()
    for equal in (None, np.full(60, 2.0), np.full(60, 2)):
        report = report_of(NPURegressor(random_state=0).fit(X, y, sample_weight=equal))
        assert "Error model: additive, equal for all rows." in report
