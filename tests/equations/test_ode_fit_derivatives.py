"""The derivatives of the trajectories of `ode.fit`: its standard errors are those of SciPy's."""

from __future__ import annotations

from typing import Any

import numpy
import pytest

from npu_kernels import ode
from tests.support.time_series import equations_of

scipy = pytest.importorskip("scipy", reason="scipy is not installed")
pytest.importorskip("scipy.integrate")
pytest.importorskip("scipy.optimize")

POWERS, RATES = [[1.0, 0], [1, 1], [0, 1]], [[1.2, -0.6, 0], [0, 0.5, -0.8]]
STARTS = [[2.0, 1.0], [1.0, 2.5]]
GRID, IRREGULAR = numpy.linspace(0, 4, 17), numpy.linspace(0, 2, 17) ** 2
TIMES = {
    "irregular": [IRREGULAR],
    "few": [GRID[::4]],
    "with gaps, in any order": [GRID[[0, 1, 2, 5, 6, 16, 15, 14, 13, 12, 11]]],
    "repeated": [IRREGULAR.round(1)[[0, 5, 5, 16, 10, 10, 10, 12]]],
    "two series": [IRREGULAR, GRID[:12]],
}
DOSE = numpy.array([0, 1.5, 3, 6]), numpy.array([1, 2, 0.5, 1])


def states(powers: Any, rates: Any, u0: Any, t: Any, dose: Any = None) -> Any:
    """The states ``[M, D]`` at times by SciPy; dose: times and values of an input."""

    def rhs(time: float, u: Any) -> Any:
        factors = u if dose is None else numpy.append(u, numpy.interp(time, *dose))
        return rates @ numpy.prod(factors**powers, 1)

    largest = numpy.inf if dose is None else 0.05
    distinct, index = numpy.unique(t, return_inverse=True)
    solved = scipy.integrate.solve_ivp(
        rhs, (0, distinct[-1]), u0, t_eval=distinct, rtol=1e-10, atol=1e-12, max_step=largest
    )
    return solved.y.T[index]


def standard_errors(residuals: Any, x: Any) -> Any:
    """Those of least squares whose errors have the size 1, by central differences."""
    columns = [
        (residuals(x + step) - residuals(x - step)) / (2 * step.sum())
        for step in numpy.diag(1e-5 * numpy.abs(x).clip(0.1))
    ]
    jacobian = numpy.stack(columns, 1)
    return numpy.sqrt(numpy.diag(numpy.linalg.inv(jacobian.T @ jacobian)))


@pytest.mark.parametrize("method", ["rk4", "kvaerno5"])
@pytest.mark.parametrize(
    "case", ["plain", "proportional", "exponents", "reactions", "input", *TIMES]
)
def test_standard_errors_are_those_of_scipy(case: str, method: str) -> None:
    powers, matrix, rates = numpy.array(POWERS), numpy.eye(2), numpy.array(RATES)
    times, dose, options = TIMES.get(case, [GRID]), None, {}
    if case == "proportional":
        options["sigma"] = "proportional"
    elif case == "reactions":  # one rate takes from x what it gives to y
        matrix, rates = numpy.array([[-1, 0], [1, -1]]), numpy.array([[0, 0.5, 0], [0, 0, 0.8]])
        options["stoichiometry"] = matrix
    elif case == "input":
        powers, dose = numpy.hstack([powers, [[1], [0], [0]]]), DOSE
        options["inputs"] = DOSE
    starts = numpy.array(STARTS[: len(times)])
    random = numpy.random.default_rng(0)
    tables = [
        states(powers, matrix @ rates, *pair, dose) for pair in zip(starts, times, strict=True)
    ]
    tables = [u * (1 + 0.01 * random.standard_normal(u.shape)) for u in tables]
    tables[0][3, 1] = numpy.nan  # is missing
    model = equations_of(powers, matrix @ rates, fixed=case != "exponents")
    result = ode.fit(model, times, tables, init="model", simplify=False, method=method, **options)
    free_rates = rates != 0
    free_powers = (powers != 0) & (case == "exponents")
    split = numpy.cumsum([free_rates.sum(), free_powers.sum()])

    def residuals(x: Any) -> Any:
        coefficients, exponents = numpy.zeros(rates.shape), powers.copy()
        coefficients[free_rates], exponents[free_powers], first = numpy.split(x, split)
        parts = []
        for u, t, u0 in zip(tables, times, first.reshape(-1, 2), strict=True):
            path = states(exponents, matrix @ coefficients, u0, t, dose)
            off = numpy.log(path / u) if case == "proportional" else path - u
            parts.append((off / result.sigma.numpy())[~numpy.isnan(u)])
        return numpy.concatenate(parts)

    estimates = numpy.array([(one.value, one.stderr) for one in result.estimates])
    expected = standard_errors(residuals, estimates[:, 0])
    assert estimates[:, 1] == pytest.approx(expected, rel=1e-3)
