"""pysindy, a rival: sparse regression of slopes on products (Brunton, Proctor and Kutz 2016).

It is not needed otherwise: ``pip install pysindy``. Its settings are those of `GRID`, in which the
Bayesian information criterion of the trajectory from the first measured state chooses.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

# Degrees of the polynomials; shares of a coefficient's unit below which it is set to 0; slopes.
GRID = (2, 3), (0.01, 0.05, 0.1, 0.5), ("fourth order", "Savitzky-Golay")
WINDOW = 4  # times the median distance of the times: half of the window of Savitzky and Golay
Numbers = tuple[np.ndarray, np.ndarray]


class NoLawError(RuntimeError):
    """No setting gave a law whose trajectory ends at the last time."""


def sparse(
    times: np.ndarray,
    values: np.ndarray,
    path: Callable[[np.ndarray, np.ndarray], np.ndarray | None],
) -> tuple[Numbers, str]:
    """Return exponents and coefficients of the best law of `GRID`, and its text.

    path: from exponents and coefficients to the states at the times, None without a trajectory.
    """
    best: tuple[float, Numbers] = math.inf, (np.zeros((0, 0)), np.zeros((0, 0)))
    for setting in itertools.product(*GRID):
        law = _law(times, values, *setting)
        states = path(*law)
        if states is None:
            continue
        squares = np.maximum(((states - values) ** 2).mean(0), 1e-12 * values.var(0) + 1e-300)
        likelihood = len(values) * float(np.log(squares).sum())
        criterion = likelihood + math.log(values.size) * int((law[1] != 0).sum())
        best = min(best, (criterion, law), key=lambda pair: pair[0])
    if not math.isfinite(best[0]):
        raise NoLawError("pysindy: no law of the grid has a trajectory to the last time")
    return best[1], _text(*best[1])


def _law(
    times: np.ndarray, values: np.ndarray, degree: int, threshold: float, kind: str
) -> Numbers:
    """Return exponents ``[h, D]`` and coefficients ``[D, h]`` of one setting."""
    import pysindy

    half = WINDOW * float(np.median(np.diff(times)))
    slopes: Any = pysindy.FiniteDifference(order=4)
    if kind == "Savitzky-Golay":
        slopes = pysindy.SINDyDerivative(
            kind="savitzky_golay", left=half, right=half, order=3, periodic=False
        )
    model = pysindy.SINDy(
        optimizer=pysindy.STLSQ(threshold=threshold),
        feature_library=pysindy.PolynomialLibrary(degree),
        differentiation_method=slopes,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(values, t=times)
    exponents = np.asarray(model.feature_library.powers_, dtype=float)
    coefficients = np.asarray(model.coefficients())
    used = (coefficients != 0).any(0)
    return exponents[used], coefficients[:, used]


def _text(exponents: np.ndarray, coefficients: np.ndarray) -> str:
    """Return the law in one line."""
    products = [
        "".join(f"*x{i}" + (f"**{w:g}" if w != 1 else "") for i, w in enumerate(row) if w)
        for row in exponents
    ]
    sides = (
        " + ".join(f"{c:.4g}{product}" for c, product in zip(row, products, strict=True) if c)
        for row in coefficients
    )
    return "; ".join(f"x{i}' = {side or 0}" for i, side in enumerate(sides))
