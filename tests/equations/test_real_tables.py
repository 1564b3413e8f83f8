"""The equation of a published table or series is the known one, or it is in doubt."""

import re
import warnings

import numpy as np
import pytest
import torch

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from npu_kernels import NAU, NPURegressor, RealNPU, ode
from tests.equations.real_tables import SERIES, TABLES
from tests.support.compare import report_of

DOUBTS = (
    "Not distinguishable|do not determine|hardly determine|any (equation|equations) would fit"
    "|may fit as well"
)
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
    best = model.best_equation_
    assert name not in OUTLIERS or OUTLIERS[name] in model.equations_.outliers
    if table.exponents:
        expected = np.array(table.exponents, dtype=float)
        assert best.target_power == table.power
        assert best.n_terms == len(expected) + BESIDE.get(name, 0)
        assert best.exponents[: len(expected)] == pytest.approx(expected, abs=0.01)
    else:
        assert not best.exact
        doubts = [
            str(warning.message) for warning in caught if "few rows" not in str(warning.message)
        ]
        assert model.equations_.alternatives or doubts


@pytest.mark.parametrize("name", SERIES)
def test_the_equation_of_a_series_is_known_or_in_doubt(name: str) -> None:
    series = SERIES[name]
    t, *u = series.values.T
    model = torch.nn.Sequential(
        RealNPU(len(u), 2 * len(u), num_models=24), NAU(2 * len(u), len(u), num_models=24)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = ode.fit(model, t, np.column_stack(u), names=series.columns.split()[1:])
    if series.terms:
        assert result.diagnostics.good
        values = {interval.name: interval.value for interval in result.confidence_intervals()}
        terms = {name.removeprefix("coefficient of ") for name in values if " in " in name}
        assert {term for term in terms if "exponent" not in term} == set(series.terms)
        if name == "yeast":
            rate, competition = (values[f"coefficient of {term}"] for term in series.terms)
            assert rate == pytest.approx(0.547, abs=0.02)
            assert -rate / competition == pytest.approx(663, abs=5)
    else:
        assert not result.diagnostics.good or re.search(DOUBTS, report_of(result))
