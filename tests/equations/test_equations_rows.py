"""Rows beside each other: residuals that are no noise, and what the search does about them; and
predictions far outside of the y of a fit, on rows like its."""

import re
import warnings
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from npu_kernels.equations import EquationWarning, NPURegressor
from tests.support.equations import RNG, noise, terms, uniform

LINE = {
    "random_state": 0,
    "required_terms": ["x0"],
    "max_terms": 1,
    "n_init": 1,
    "noise": "additive",
}


def likeness(X, y):
    """The correlation of residuals beside each other that the notes of a line say, or 0."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", EquationWarning)
        notes = NPURegressor(loss="squared", **LINE).fit(X, y).equations_.notes
    correlations = re.findall(r"\(correlation (\S+)\)", " ".join(notes))
    return float(correlations[0]) if correlations else 0.0


def test_noise_is_alike_by_chance_only():
    for seed in range(6):
        X = uniform(3, 60 + 80 * seed, seed=seed)
        e = noise(len(X), seed)
        for errors in (e, e * X[:, 0] ** 3, e**3):
            assert likeness(X, X[:, 0] + errors) == 0


def test_what_an_equation_misses_is_alike_and_less_so_with_noise():
    X = uniform(2, 400)
    missed = np.sin(2 * X[:, 0]) * X[:, 1]
    y = X[:, 0] + missed
    exact = likeness(X, y)
    assert 0.7 < exact < 1
    sizes = np.column_stack([X[:, 0], np.exp(10 * X[:, 1])])
    assert likeness(sizes, y) == exact  # whatever the sizes
    assert exact > likeness(X, y + 0.3 * noise(400)) > 0
    assert likeness(X, y + 20 * noise(400)) == 0
    assert likeness(X[:5], y[:5]) == 0


def impedance(seed):
    """Sizes over many decades, of which the largest rows decide alone."""
    generator = RNG(seed)
    ranges = ((1, 1e3), (1e-4, 1e-1), (1e-8, 1e-5), (1e2, 1e5))
    X = np.exp(np.stack([generator.uniform(*np.log(limits), 1000) for limits in ranges], 1))
    R, L, C, w = X.T
    return X, np.sqrt(R**2 + (w * L - 1 / (w * C)) ** 2)


@pytest.mark.parametrize("seed", [1, 2])
def test_the_search_goes_on_where_residuals_are_no_noise(seed):
    X, y = impedance(seed)
    model = NPURegressor(random_state=0, target_powers=(2.0,)).fit(X, y)
    expected = {(2, 0, 0, 0): 1, (0, 2, 0, 2): 1, (0, 0, -2, -2): 1, (0, 1, -1, 0): -2}
    assert terms(model.best_equation_) == pytest.approx(expected, rel=1e-9)
    assert model.best_equation_.exact


def test_predictions_on_rows_that_are_like_those_of_a_fit():
    X = uniform(2, 300)
    X = X[np.abs(X[:, 0] - X[:, 1]) < 1]  # two corners are empty
    rows = np.array([[1.0, 1.3], [0.6, 2.9], [1.5, 9.0]])

    def surprising(factor, rows):
        """What is said where an equation is so many times the one of the fit."""
        model = NPURegressor(**LINE).fit(X, X[:, 0])
        table = model.equations_
        table[table.best_index] = replace(
            table[table.best_index], scaled=factor * table[table.best_index].scaled
        )
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            model.predict(rows)
        return " ".join(str(warning.message) for warning in said)

    for factor in (10, -10):
        assert "1 predictions are far outside of the y of fit" in surprising(factor, rows)
        assert "within its range: rows 0 (" in surprising(factor, rows)
    assert surprising(2, rows) == ""
    assert int(re.findall(r"\d+", surprising(-30, X))[0]) > 0.9 * len(X)


def test_predictions_far_outside_are_said():
    X = uniform(2, 100)
    model = NPURegressor(random_state=0, target_powers=(1,)).fit(X, X[:, 0] * X[:, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.predict(X)
        model.predict(10 * X)
    table = model.equations_
    table[table.best_index] = replace(
        table[table.best_index], scaled=-3 * table[table.best_index].scaled
    )
    with pytest.warns(EquationWarning, match="far outside of the y of fit, .* rows 0, 1, 2, 3, "):
        model.predict(X[X.prod(1) > 3])
