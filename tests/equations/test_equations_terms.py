"""The terms of an equation differ, and each of them is needed; those that it must have keep bounds."""

import warnings

import numpy as np
import pytest

from npu_kernels.equations import EquationWarning, NPURegressor


def root_of_a_sum(seed, rows):
    """Data of ``-6 + x0**(1/2) + 0.4 x0``, whose terms are nearly those of other powers."""
    draw = np.random.default_rng(seed)
    X = draw.uniform(0.2, 5, (rows, 1))
    return X, -6 + X[:, 0] ** 0.5 + 0.4 * X[:, 0] + 1e-3 * draw.standard_normal(rows)


@pytest.mark.parametrize(
    ("seed", "rows", "options"),
    [
        (15, 60, {"exponents": (0, 2), "loss": "squared", "noise": "additive"}),
        (4, 80, {"n_init": 16}),
        (8, 80, {}),
    ],
    ids=["a constant twice", "a denominator of constants", "a root above and below"],
)
def test_an_equation_found_with_one_term_more_loses_it(seed, rows, options):
    X, y = root_of_a_sum(seed, rows)
    table = NPURegressor(random_state=0, **options).fit(X, y).equations_
    best = table[table.best_index]
    assert best.n_denominator_terms == 0
    for equation in [*table, *table.alternatives]:  # none has a term twice, the 1 below included
        above, below = np.split(
            equation.exponents[:, 0].round(6), [equation.n_terms - equation.n_denominator_terms]
        )
        assert len(set(above)) == len(above)
        assert len({0.0, *below}) == len(below) + 1
    assert sorted(best.exponents[:, 0].tolist()) == [0, 0.5, 1]
    refitted = NPURegressor(random_state=0, **options).fit(X, y).refit(X, y).best_equation_
    assert np.isfinite(refitted.coef_stderr).all()


@pytest.mark.parametrize("sign", [1, -1])
def test_a_bound_is_not_left_by_a_term_like_its_own(sign):
    draw = np.random.default_rng(0)
    X = draw.uniform(0.5, 3, (60, 2))
    y = 2 * X[:, 0] / X[:, 1] + 0.01 * draw.standard_normal(60)
    for options in ({}, {"max_terms": 6, "n_init": 4}):
        model = NPURegressor(random_state=0, required_terms={"x0": (1, 1)}, **options)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", EquationWarning)  # no equation fits well
            best = model.fit(sign * X, y).best_equation_
        like = np.abs(best.exponents - [1, 0]).max(1) < 0.1
        assert best.coef[like] == pytest.approx([1.0], rel=1e-12)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_refit_and_bootstrap_keep_each_bound_to_its_term(order):
    draw = np.random.default_rng(0)
    X = draw.uniform(0.5, 3, (100, 2))
    y = 2 * X[:, 0] - 10 * X[:, 1] + 0.01 * draw.standard_normal(100)
    bounds = [("x0", (1, 2.5)), ("x1", None)]
    terms = dict(bounds[k] for k in order)
    model = NPURegressor(random_state=0, required_terms=terms, max_terms=2).fit(X, y)
    refitted = model.refit(X, y).best_equation_
    assert refitted.text(6) == model.best_equation_.text(6)
    for interval, sure in zip(
        model.bootstrap(X, y, n_resamples=10), model.confidence_intervals(), strict=True
    ):
        assert interval.low - sure.stderr < sure.value < interval.high + sure.stderr
    groups = np.arange(100) % 2
    model = NPURegressor(random_state=0, required_terms=terms, max_terms=2).fit(X, y, groups=groups)
    assert np.allclose(
        model.refit(X, y, groups=groups).best_equation_.coef, model.best_equation_.coef, rtol=1e-6
    )


def test_exponents_stay_where_all_rows_would_move_them_to_an_excluded_product():
    draw = np.random.default_rng(4)
    X = 10 ** draw.uniform(-0.7, 0.7, (70, 1))
    y = 4.3 * X[:, 0] - 0.12 / X[:, 0] + 0.09 * draw.standard_normal(70)
    model = NPURegressor(random_state=0, n_init=4, max_terms=1, required_terms={"x0": 0, "1": 0})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EquationWarning)  # no equation fits well
        best = model.fit(X, y).best_equation_
    assert (np.abs(best.exponents[:, 0] - 1) >= 0.1).all()
    assert best.nrmse < 0.3
