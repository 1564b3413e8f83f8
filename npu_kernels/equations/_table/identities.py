"""Laws that are the same function: by sin**2 + cos**2 = 1, or by a function of y.

``a - a cos(t)**2`` is ``a sin(t)**2``, and ``exp(log(a) + log(b))`` is ``a b``. Only the shortest
of equal laws stays.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npu_kernels.equations._products.functions import Functions
from npu_kernels.equations._products.problem import AllRows
from npu_kernels.equations._table import refine
from npu_kernels.equations._table.refine import Sum
from npu_kernels.equations._table.rows import spread

Array = Any
# All rows, a law that was fitted without those held out, and one fitted to all rows: of the same
# form, or of one near it that all rows chose.
Fit = tuple[AllRows, Sum, Sum]

HIGHEST = 6  # even power that is written with the other function
EQUAL = 1e-9  # of the largest y: the difference of laws that are the same
COMPARED_ROWS = 300


def resolved(fits: list[Fit], functions: Functions, held: Array, loss: str) -> list[Fit]:
    """Return the fits, each also written with the other function of a circle, without equal ones.

    held: indices of rows held out.
    """
    if not functions.columns and all(data.function is None for data, _, _ in fits):
        return fits
    written = list[Fit]()
    for pair in functions.circles():
        for columns in (pair, pair[::-1]):
            for data, law, _ in fits:
                training = data.choose(np.setdiff1d(np.arange(data.rows), held))
                for other in _rewritten(data, law, *columns):
                    other = refine.refit(training, other, loss)
                    if math.isfinite(other.cost):
                        written.append((data, other, refine.refit(data, other, loss)))
    return _distinct(fits + [fit for fit in written if math.isfinite(fit[2].cost)])


def _rewritten(data: AllRows, law: Sum, column: int, other: int) -> list[Sum]:
    """The sum with ``1 - other**2`` for the square of a column, and that without each term.

    There are none with more terms.
    """
    free = data.exponents.free
    if not np.isin((column, other), free).all() or data.fixed:
        return []
    i, j = (int(np.flatnonzero(free == index)[0]) for index in (column, other))
    half = np.where(law.free[:, i] | (law.u[:, i] > HIGHEST), 0.0, law.u[:, i] / 2)
    if not ((half > 0) & (half % 1 == 0)).any():
        return []
    sizes = np.exp(2 * data.columns.log_mean[[column, other]])  # squares of the columns' scales
    terms = dict[Any, tuple[Array, Array, Array, float]]()
    for k, c in enumerate(law.c):
        m = int(half[k]) if half[k] > 0 and half[k] % 1 == 0 else 0
        for power in range(m + 1):
            w, factor = law.u[k].copy(), math.comb(m, power) * (-sizes[1]) ** power / sizes[0] ** m
            w[i] -= 2 * m
            w[j] += 2 * power
            key = tuple((np.concatenate([w, law.parity[k]]).round(9) + 0.0).tolist())
            before = terms[key][3] if key in terms else 0.0
            terms[key] = w, law.parity[k], law.free[k] & (w != 0), before + c * factor
    if len(terms) > len(law.c) + 1:
        return []
    u, parity, fitted, c = (np.stack(part) for part in zip(*terms.values(), strict=True))
    written = Sum(u, parity, fitted, c)
    index = np.arange(len(c)) if len(c) > 1 else np.empty(0, dtype=int)
    shorter = [written.take(index != k) for k in index]
    return [candidate for candidate in (written, *shorter) if len(candidate.c) <= len(law.c)]


def _distinct(fits: list[Fit]) -> list[Fit]:
    """The shortest of equal laws, or that whose functions come first."""

    def length(fit: Fit) -> Any:
        data, _, law = fit
        columns = data.exponents.free[np.flatnonzero((law.u != 0).any(0))].tolist()
        return len(law.c), law.parameters, data.function is not None, round(law.cost, 4), columns

    stay, values = list[Fit](), list[Array]()
    for fit in sorted(fits, key=length):
        data, _, law = fit
        some = data.take(spread(data.rows, COMPARED_ROWS))
        y = data.sign * data.unit * some.predict(law.u, law.parity, law.c)[0]
        limit = EQUAL * np.abs(y).max()
        if not any(np.abs(y - other).max() <= limit for other in values):
            stay.append(fit)
            values.append(y)
    return stay
