"""Rows beside each other: residuals that are no noise, and what the search does about them; and
predictions far outside of the y of a fit, on rows like its."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from npu_kernels._laws.table.rows import Seen, alike
from npu_kernels.equations import EquationWarning, NPURegressor
from tests.support.laws import RNG, noise, terms, uniform


def test_noise_is_alike_by_chance_only():
    for seed in range(50):
        X = uniform(3, 60 + 20 * seed, seed=seed)
        e = noise(len(X), seed)
        assert alike(X, e) == alike(X, e * X[:, 0] ** 3) == alike(X, e**3) == 0


def test_what_a_law_misses_is_alike_and_less_so_with_noise():
    X = uniform(2, 400)
    missed = np.sin(2 * X[:, 0]) * X[:, 1]
    assert 0.7 < alike(X, missed) < 1
    assert alike(np.exp(10 * X), missed) == alike(X, missed)  # whatever the sizes
    assert alike(X, missed) > alike(X, missed + noise(400)) > 0
    assert alike(X, missed + 20 * noise(400)) == 0
    assert alike(X, np.zeros(400)) == alike(X[:, :0], missed) == alike(X[:5], missed[:5]) == 0


def impedance(seed):
    """Sizes over many decades, of which the largest rows decide alone."""
    generator = RNG(seed)
    ranges = ((1, 1e3), (1e-4, 1e-1), (1e-8, 1e-5), (1e2, 1e5))
    X = np.exp(np.stack([generator.uniform(*np.log(limits), 1000) for limits in ranges], 1))
    R, L, C, w = X.T
    return X, np.sqrt(R**2 + (w * L - 1 / (w * C)) ** 2)


@pytest.mark.parametrize("seed", range(1, 6))
def test_the_search_goes_on_where_residuals_are_no_noise(seed):
    X, y = impedance(seed)
    model = NPURegressor(random_state=0, output_powers=(2.0,)).fit(X, y)
    expected = {(2, 0, 0, 0): 1, (0, 2, 0, 2): 1, (0, 0, -2, -2): 1, (0, 1, -1, 0): -2}
    assert terms(model.best_) == pytest.approx(expected, rel=1e-9)
    assert model.best_.exact


def test_the_search_goes_on_with_every_output_power():
    X, y = impedance(1)
    model = NPURegressor(random_state=0).fit(X, y)
    assert model.best_.exact
    assert model.best_.power == 2


def test_rows_that_are_like_those_of_a_fit():
    X = uniform(2, 300)
    X = X[np.abs(X[:, 0] - X[:, 1]) < 1]  # two corners are empty
    seen = Seen.of(X, X[:, :1])
    rows = np.array([[1.0, 1.3], [0.6, 2.9], [1.5, 9.0], [1.5, 1.0]])
    y = np.array([[10.0], [10.0], [10.0], [3.1]])
    assert seen.surprising(rows, y).tolist() == [True, False, False, False]
    assert seen.surprising(rows, -y).tolist() == [True, False, False, True]
    assert seen.surprising(rows, np.full((4, 1), np.inf)).tolist() == [False] * 4
    assert seen.surprising(X, np.full((len(X), 1), 10.0)).mean() > 0.9
    assert not Seen.of(X[:5], X[:5, :1]).surprising(rows, y).any()


def test_predictions_far_outside_are_said():
    X = uniform(2, 100)
    model = NPURegressor(random_state=0, output_powers=(1,)).fit(X, X[:, 0] * X[:, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(X)
        model.predict(10 * X)
    table = model.equations_
    table[table.best] = replace(table[table.best], scaled=-3 * table[table.best].scaled)
    with pytest.warns(EquationWarning, match="far outside of the y of fit, .* rows 0, 1, 2, 3, "):
        model.predict(X[X.prod(1) > 3])
