"""Notes of what makes an equation doubtful: its parameters, its terms, its residuals."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from npu_kernels.equations._equation import EXCLUDED, Equation
from npu_kernels.equations._limits import BOUND
from npu_kernels.equations._numbers import FLOAT64_ROUNDING
from npu_kernels.equations._problem import EXACT_ERROR, AllRows
from npu_kernels.equations._rows import (
    FEW_NEIGHBOURS,
    NARROW,
    alike,
    have_two_values,
    spread,
    widths,
)
from npu_kernels.equations._table import refine
from npu_kernels.equations._table.doubts import doubts
from npu_kernels.equations._table.estimates import (
    Rows,
    covariance,
    exponent_errors,
    started,
    untold,
)
from npu_kernels.equations._table.forms import cancelling_pair
from npu_kernels.equations._table.refine import Sum
from npu_kernels.equations._table.search import SEARCH_ROWS

Array = Any

NO_WIDTH = 1e-9  # of a column over its size, for which an equation may be a constant
MANY_PARAMETERS = 7  # of an equation of one column, which is just a curve
APPROXIMATION = 0.3  # the same, from which an equation misses something
SHARES = np.arange(1, 8) / 8  # of a gap between values, where a denominator may be 0
NAMES_OF_NUMBERS = ("id", "idx", "index", "no", "nr", "obs", "row", "rowid", "rowname", "rownames")
SIMPLE = 3  # the largest exponent that does not count as a fitted parameter
FLAT = 0.1  # size of a term's exponents below which it stands for a logarithm


def notes_of(rows: Rows, equation: Equation) -> tuple[str, ...]:
    """Return doubts about the equation, as text."""
    X = rows.functions.expand(rows.X)
    notes = [*beyond_notes(equation), *_narrow_notes(rows, equation, X), *_level_notes(equation, X)]
    untold_notes = _untold_notes(rows, equation, X)
    notes += [*_single_notes(rows, equation, X), *untold_notes]
    if equation.exact:
        return tuple(notes)
    notes += _flat_notes(equation)
    some = spread(len(rows.y), SEARCH_ROWS)
    near = None
    if equation.n_terms > 1 and not equation.n_denominator_terms:
        of_group = equation.scaled if rows.group is None else equation.scaled[rows.group[some]]
        terms = equation._products(X[some]) * of_group
        near = cancelling_pair(terms, equation.exponents)
    if near is not None:
        first, second = (equation._term(k, 4) for k in near)
        notes.append(
            f"Two terms nearly cancel: {first} and {second}. They stand for another function, such "
            "as a logarithm, or for other powers: their exponents have no meaning."
        )
    notes += _pole_notes(rows, equation)
    residuals = rows.y - equation._predicted(rows.X, rows.group)
    used = (equation.exponents != 0).any(0)
    if used.sum() == 1 and equation.n_parameters >= MANY_PARAMETERS and not untold_notes:
        notes.append(
            f"{equation.n_parameters} parameters describe one column: any smooth curve can be "
            "fitted so, and the equation may have no meaning outside of the data."
        )
    likeness = max(alike(X[:, used], residuals), alike(rows.X, residuals))
    if len(rows.y) < FEW_NEIGHBOURS or np.abs(equation.exponents).max(initial=0.0) >= BOUND:
        data, candidate = started(equation, rows, "fit")
        likeness = max(likeness, refine.pattern_of(data, candidate, rows.X))
        notes += _bound_notes(data, candidate, equation.names)
    if likeness > APPROXIMATION:
        notes.append(
            "The equation is an approximation only: residuals of neighbouring rows are correlated "
            f"(correlation {likeness:.2f}). Another function, a column or more terms (max_terms) "
            "are missing."
        )
    return (*notes, *doubts(rows, equation))


def _pole_notes(rows: Rows, equation: Equation) -> list[str]:
    """A note of a denominator that is 0 within the ranges of the inputs, but between the rows.

    The denominator is that of a ratio, or the sum itself for a negative power of y of one sign.
    """
    is_ratio, has_one_sign = equation.n_denominator_terms > 0, np.ptp(np.sign(rows.y)) == 0
    if not is_ratio and not (equation.target_power < 0 and has_one_sign and rows.group is None):
        return []

    def below(X: Array) -> Array:
        if is_ratio:
            return equation._divisors(equation._products(equation._columns(X)))
        return equation._sums(X, None)

    if not (below(_between(rows.X)) * np.sign(below(rows.X[:1])) <= 0).any():
        return []
    return [
        "The denominator is 0 for some inputs within their ranges, where the equation is infinite. "
        "All rows are on one side of these inputs."
    ]


def _between(X: Array) -> Array:
    """Return points ``[M, n]`` within the ranges of columns, where these have gaps too."""
    generator, columns = np.random.default_rng(0), list[Array]()
    for column in X.T:
        values = np.sort(column)
        widths_of_gaps = np.diff(values)
        widest = np.argsort(-widths_of_gaps, kind="stable")[:SEARCH_ROWS]
        inside = values[widest, None] + widths_of_gaps[widest, None] * SHARES
        values = np.concatenate([column[spread(len(column), SEARCH_ROWS)], inside.ravel()])
        columns.append(generator.permutation(values))
    return np.column_stack(columns)


def _untold_notes(rows: Rows, equation: Equation, X: Array) -> list[str]:
    """Notes of parameters that nothing tells, and of a form that nothing tests. X: all columns."""
    notes = list[str]()
    if np.isinf(equation.coef_stderr).any() or np.isinf(equation.exponents_stderr).any():
        notes += untold(*started(equation, rows, "fit"))
    if notes or equation.df_resid <= 0:
        return notes
    used = np.flatnonzero((equation.exponents != 0).any(0))
    several = used[~have_two_values(X[:, used])]
    if _levels(rows, X[:, used], equation.n_parameters) and len(several):
        notes.append(
            "The columns of the equation have no more different rows than the equation has "
            f"parameters, {equation.n_parameters}: it passes through the mean of y in each, as any "
            "equation with so many parameters would. Nothing tests its form."
        )
        return notes
    for i in several.tolist():
        terms = dict[Any, int]()  # parameters of terms that differ in this column alone
        for row, free in zip(equation.exponents.round(9).tolist(), equation.free, strict=True):
            is_simple = row[i] % 1 == 0 and abs(row[i]) <= SIMPLE  # others were fitted as well
            row[i] = 0.0
            terms[tuple(row)] = terms.get(tuple(row), 0) + 1 + int(free[i] or not is_simple)
        count = max(terms.values())
        if equation.n_denominator_terms == 0 and count > 1 and _levels(rows, X[:, [i]], count):
            notes.append(
                f"{equation.names[i]} has no more values than the equation has parameters for it, "
                f"{count}: any function of it would fit equally well. Nothing tests its exponents."
            )
    return notes


def _levels(rows: Rows, X: Array, count: int) -> bool:
    """Whether these columns have at most so many different rows, those of groups together."""
    X = X if rows.group is None else np.column_stack([X, rows.group])
    some = len(np.unique(X[spread(len(X), SEARCH_ROWS)], axis=0))
    return some <= count and len(np.unique(X, axis=0)) <= count


def _narrow_notes(rows: Rows, equation: Equation, X: Array) -> list[str]:
    """Notes of columns of hardly any width, whose exponents no units tell.

    Where an equation is exact, rows tell the powers of narrower columns, as far as its terms do not
    cancel. X: all columns of the equation.
    """
    if len(rows.exponents.free) < rows.exponents.inputs:
        return []
    shares, used = widths(X), (equation.exponents != 0).any(0)
    deviation, terms = (rows.y / equation.scale).std(), float(np.abs(equation.scaled).max())
    lost = max(EXACT_ERROR, FLOAT64_ROUNDING * terms / (deviation or math.inf))
    limit = math.sqrt(lost) if equation.exact else NARROW
    limits = np.where(used, limit, 0.0 if used.any() else NO_WIDTH)
    return [
        f"The values of {name} differ by {shares[i]:.2g} of their size: every power of them is "
        "nearly linear, so their exponents are arbitrary. Subtract a reference value, such as "
        f"{name} - {X[:, i].min():.6g}, unless the equation is known to have {name} itself."
        for i, name in enumerate(equation.names)
        if shares[i] < limits[i]
    ]


def _bound_notes(data: AllRows, candidate: Sum, names: tuple[str, ...]) -> list[str]:
    """Notes of exponents at the end of those that are tried, which the rows exclude."""
    notes = list[str]()
    if data.limits is not None or data.below or ((data.matrix != 0).sum(0) > 1).any():
        return notes
    unbounded = np.full_like(data.high, math.inf)
    wide = replace(data, low=-unbounded, high=unbounded)
    bound = np.minimum(-data.low, data.high)
    for k, i in np.argwhere((np.abs(candidate.u) >= bound) & (bound >= BOUND)).tolist():
        free = candidate.free.copy()
        free[k, i] = True
        other = refine.refit(wide, replace(candidate, free=free))
        j = data.exponents.free[i]
        error = exponent_errors(wide, other, covariance(wide, other))[k, j]
        if math.isfinite(other.cost) and abs(other.u[k, i]) > bound[i] + EXCLUDED * error:
            notes.append(
                f"The exponent {candidate.u[k, i]:g} of {names[j]} is at the bound of the search, "
                "and the rows exclude it: as a free number it is "
                f"{other.u[k, i]:.4g} ± {error:.2g}."
            )
    return notes


def _level_notes(equation: Equation, X: Array) -> list[str]:
    """A note of columns of two values, where no exponent is distinguishable. X: all columns."""
    if (
        equation.n_denominator_terms
        or equation.target_power != 1
        or equation.target_transform is not None
    ):
        return []
    terms = {tuple(row) for row in equation.exponents.round(9).tolist()}

    def is_line(i: int) -> bool:
        without = [(*row[:i], 0.0, *row[i + 1 :]) for row in terms if row[i] == 1]
        beside = (X[:, i] == 0).any() or terms.issuperset(without)
        return bool(without and beside and all(row[i] in (0, 1) for row in terms))

    named = [equation.names[i] for i in np.flatnonzero(have_two_values(X)).tolist() if is_line(i)]
    if not named:
        return []
    columns = f"{', '.join(named)} {'has' if len(named) == 1 else 'have'}"
    return [
        f"{columns} two values, which determine no exponent: it is taken as 1. Between the two "
        "values the equation is a guess, a line."
    ]


def _single_notes(rows: Rows, equation: Equation, X: Array) -> list[str]:
    """Notes of columns that one row tells, and of those that number the rows. X: all columns."""
    notes = list[str]()
    for i in np.flatnonzero((equation.exponents != 0).any(0)).tolist():
        name, order = equation.names[i], np.argsort(X[:, i], kind="stable")
        values = X[order, i]
        is_last = len(values) > 2 and values[0] == values[-2]
        is_first = len(values) > 2 and values[1] == values[-1]
        if is_last != is_first:
            row = order[-1 if is_last else 0]
            notes.append(
                f"{name} is {values[1]:.6g} in all rows but one (row {rows.origin[row]}: "
                f"{X[row, i]:.6g}; the first row is 0): that row alone decides how the "
                f"equation depends on {name}."
            )
        counted = X[:, i] - rows.origin
        if name.lower() in NAMES_OF_NUMBERS and np.ptp(counted) == 0:
            notes.append(
                f"{name} numbers the rows: the order of the table is an input of the equation. "
                "Leave the column out, unless that order means something."
            )
    return notes


def _flat_notes(equation: Equation) -> list[str]:
    """Notes of terms whose exponents are all near 0."""
    size = np.abs(equation.exponents).max(1, initial=0.0)
    return [
        f"The exponents of {equation._term(k, 4)} are near 0: the term stands for a logarithm or "
        "another function."
        for k in np.flatnonzero((size > 0) & (size < FLAT)).tolist()
    ]


def beyond_notes(equation: Equation) -> tuple[str, ...]:
    """Return a note on coefficients that float64 cannot represent."""
    if not equation.beyond_float64.any():
        return ()
    return (
        "float64 cannot represent the coefficients for the sizes of these columns: sympy, latex "
        "and torch_module raise errors. Divide the columns by their sizes.",
    )
