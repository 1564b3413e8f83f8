"""The equation of a published table is the known one, or it is in doubt."""

import warnings

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from npu_kernels import NAU, NPURegressor, RealNPU, ode
from tests.laws.real_tables import TABLES

# Saturn flattens the inner moons' orbits: a small constant stands beside the known term.
BESIDE = {"moons of Saturn": 1}
OUTLIERS = {"hills": 17}  # the row that the book corrects


@pytest.mark.parametrize("name", TABLES)
def test_the_equation_is_known_or_in_doubt(name: str) -> None:
    table = TABLES[name]
    *X, y = table.values.T
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = NPURegressor(random_state=0).fit(np.column_stack(X), y)
    best = model.best_
    assert name not in OUTLIERS or OUTLIERS[name] in model.equations_.wild
    if table.exponents:
        expected = np.array(table.exponents, dtype=float)
        assert best.power == table.power
        assert best.terms == len(expected) + BESIDE.get(name, 0)
        assert best.exponents[: len(expected)] == pytest.approx(expected, abs=0.01)
    else:
        assert not best.exact
        doubts = [
            str(warning.message) for warning in caught if "few rows" not in str(warning.message)
        ]
        assert model.equations_.alternatives or doubts


def test_the_growth_of_yeast_is_logistic() -> None:
    """Carlson 1913: amounts of yeast, an hour apart."""
    amounts = [
        *(9.6, 18.3, 29.0, 47.2, 71.1, 119.1, 174.6, 257.3, 350.7, 441.0, 513.3, 559.7, 594.8),
        *(629.4, 640.8, 651.1, 655.9, 659.6, 661.8),
    ]
    model = torch.nn.Sequential(RealNPU(1, 2, num_models=24), NAU(2, 1, num_models=24))
    result = ode.fit(model, list(range(19)), amounts, names=["N"])
    assert result.verdict.good
    values = {interval.name: interval.value for interval in result.intervals()}
    rate, competition = (values[f"coefficient of {term} in N'"] for term in ("N", "N**2"))
    assert rate == pytest.approx(0.547, abs=0.02)
    assert -rate / competition == pytest.approx(663, abs=5)
