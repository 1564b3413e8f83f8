"""What rows and residuals say against what a fit takes for granted of them.

The levels are strict: none of these sentences is to be met in tables that are as they should be.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from npu_kernels.equations._equation import Equation
from npu_kernels.equations._rows import MANY_TIMES, first_of_equal, times_as_large
from npu_kernels.equations._table.estimates import Rows, sizes

Array = Any

UNLIKELY = 1e-6  # probability of a sum of squares, on either side
MIN_COPIED = 10  # different rows, of which it is no chance that each is there several times
MIN_IN_CLUMP, CLUMP_SHARE = 6, 0.05  # rows of each of two clumps of residuals
ROUNDING = 1e-9
CLUMP_GAP = 1.5  # over the width of the wider one
# Rows, of which each is compared with so many next ones; the sum of these correlations in its own
# standard deviations; correlation of y with the rows' order, from which they are sorted.
MIN_FOLLOWING, FOLLOWING, FOLLOWING_DEVIATIONS, SORTED = 20, 3, 4.5, 0.7
FEW_VALUES = 10  # different ones, at most: 0 or 9 is an ordinary one, and residuals have clumps


def doubts(rows: Rows, equation: Equation) -> list[str]:
    """Return sentences on rows and residuals of an equation that is not exact."""
    errors, factors, is_like = _residuals(rows, equation)
    sentences = [
        copied(rows),
        _unlike_noise(rows, equation, errors),
        _growing(rows, errors, is_like),
        _following(rows, errors),
        _of_groups(rows, errors, equation),
        _clumps(rows, errors) or _clumps(rows, factors),
    ]
    return [sentence for sentence in sentences if sentence]


def two_populations(rows: Rows, equation: Equation) -> str:
    """Return a sentence on residuals that are in two clumps, or nothing."""
    errors, factors, _ = _residuals(rows, equation)
    return _clumps(rows, errors) or _clumps(rows, factors)


def _residuals(rows: Rows, equation: Equation) -> tuple[Array, Array, Array]:
    """Residuals as the errors are taken, logarithms of y over the equation, which rows are alike.

    The others are too near 0 for errors in proportion to y.
    """
    prediction = equation._predicted(rows.X, rows.group)
    off, is_like = rows.y - prediction, np.ones(len(prediction), dtype=bool)
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = np.log(rows.y / prediction)
    if equation.noise == "multiplicative":
        off = factors
    elif equation.noise == "proportional":
        size = sizes(prediction)
        off = off / size
        is_like = size * np.abs(prediction).max() <= size.max() * np.abs(prediction) * (
            1 + ROUNDING
        )
    return rows.root * off, factors, is_like


def _once(rows: Rows) -> Array:
    """Return the first of each row that counts several times by its weight: indices."""
    return np.sort(np.unique(rows.origin, return_index=True)[1])


def copied(rows: Rows) -> str:
    """Return a sentence if every row is there as often, or a multiple of it, or nothing.

    The table may be pasted several times, or its integer weights are no counts: two measurements
    hardly have the same digits.
    """
    once = _once(rows)
    repeats = np.bincount(rows.origin)[rows.origin[once]]
    if repeats.min() > 1 and len(once) >= MIN_COPIED and len(np.unique(rows.y[once])) == len(once):
        return (
            "Each row counts several times, since all of sample_weight are integers above 1. If "
            "they are weights and not counts, pass floats: repeated rows make standard errors too "
            "small and equations too long."
        )
    group = None if rows.group is None else rows.group[once]
    new = first_of_equal(rows.X[once], rows.y[once, None], group)
    counts = np.bincount(new.cumsum())[1:]
    times = int(np.gcd.reduce(counts))
    if times < 2 or len(counts) < MIN_COPIED:
        return ""
    return (
        f"Each row occurs {times} times: if these are copies, drop them. Copies make standard "
        "errors too small and equations too long."
    )


def _unlike_noise(rows: Rows, equation: Equation, errors: Array) -> str:
    """Residuals are larger or smaller than known errors, by a chi-square test."""
    if rows.deviation is None:
        return ""
    from scipy.special import chdtr, chdtrc

    different = len(_once(rows))
    degrees = different - (len(errors) - equation.df_resid)
    if degrees < 1:
        return ""
    squares = different * float(np.mean((errors / rows.deviation) ** 2))
    if min(chdtr(degrees, squares), chdtrc(degrees, squares)) >= UNLIKELY:
        return ""
    ratio = math.sqrt(squares / degrees)
    return (
        f"The residuals are {ratio:.3g} times as large as noise (chi-square over degrees of "
        f"freedom {ratio**2:.3g}), and standard errors are computed from noise: check its unit, "
        "and that it is a standard deviation."
    )


def _growing(rows: Rows, errors: Array, is_like: Array) -> str:
    """Errors that are taken to be alike are many times as large for other values of a column.

    is_like: rows that are not too near 0 for errors in proportion to y.
    """
    size = np.abs(errors)
    is_like = is_like & (size > ROUNDING * size.max())  # a product of 0 has no error
    for name, column in zip(rows.functions.inputs, rows.X[is_like].T, strict=True):
        times = times_as_large(column, size[is_like])
        if max(times, 1 / times) > MANY_TIMES:
            where = "large" if times > 1 else "small"
            return (
                f"Errors are {max(times, 1 / times):.2g} times as large where {name} is {where}, "
                "contrary to the error model: standard errors may be wrong. Give noise for each "
                "row, or use the intervals of bootstrap."
            )
    return ""


def _of_groups(rows: Rows, errors: Array, equation: Equation) -> str:
    """The errors of one group are much larger or smaller than those of all others, by an F-test."""
    if rows.group is None or rows.deviation is not None or equation.labels is None:
        return ""
    from scipy.special import fdtrc

    group, count = rows.group, len(equation.labels)
    errors = errors / (np.abs(errors).max() or 1.0)  # squares of large ones would overflow
    parameters = (len(errors) - equation.df_resid) / count
    degrees = np.maximum(np.bincount(group, minlength=count) - parameters, 0.0)
    squares = np.bincount(group, errors**2, count)
    for k in np.argsort(-squares / np.maximum(degrees, 1)).tolist():
        inside, outside = degrees[k], degrees.sum() - degrees[k]
        if min(inside, outside) < 2 or not (squares[k] > 0 and squares.sum() > squares[k]):
            continue
        ratio = squares[k] / inside / ((squares.sum() - squares[k]) / outside)
        chance = min(fdtrc(inside, outside, ratio), fdtrc(outside, inside, 1 / ratio))
        if chance * 2 * count < UNLIKELY:
            return (
                f"Errors are {math.sqrt(ratio):.2g} times as large in group {equation.labels[k]} "
                "as in the others, contrary to the error model: standard errors may be wrong. Give "
                "noise for each row, or use the intervals of bootstrap."
            )
    return ""


def _following(rows: Rows, errors: Array) -> str:
    """Residuals of rows that follow one another are alike: of a drift, or of one subject.

    Ranks of the residuals are compared with those of the next rows. In a table that is sorted by y
    they are alike by the order alone.
    """
    once = _once(rows)
    group = None if rows.group is None else rows.group[once]
    once = once[first_of_equal(rows.X[once], rows.y[once, None], group)]
    once = once[np.argsort(rows.origin[once])]
    if len(once) < MIN_FOLLOWING or not np.isfinite(errors).all():
        return ""
    ranks, of_y = (np.argsort(np.argsort(part[once])) for part in (errors, rows.y))
    ranks, numbers = ranks - ranks.mean(), np.arange(len(once))
    if abs(np.corrcoef(of_y, numbers)[0, 1]) > SORTED:
        return ""
    alike = [float(ranks[k:] @ ranks[:-k] / (ranks @ ranks)) for k in range(1, FOLLOWING + 1)]
    if sum(alike) * math.sqrt(len(once) / FOLLOWING) < FOLLOWING_DEVIATIONS:
        return ""
    return (
        f"Residuals of rows that follow one another are alike (autocorrelation {alike[0]:.2f}), as "
        "those of a drift or of several rows of one subject: standard errors are too small."
    )


def _clumps(rows: Rows, errors: Array) -> str:
    """Residuals are in two clumps that are farther from each other than each is wide."""
    some = np.sort(errors[_once(rows)])
    min_size = max(MIN_IN_CLUMP, math.ceil(CLUMP_SHARE * len(some)))
    is_few = len(some) < 2 * min_size or not np.isfinite(some[[0, -1]]).all()
    if is_few or len(np.unique(rows.y)) <= FEW_VALUES:
        return ""
    first = min_size + int(
        np.diff(some)[min_size - 1 : len(some) - min_size].argmax()
    )  # of the upper one
    gap = some[first] - some[first - 1]
    if gap <= CLUMP_GAP * max(some[first - 1] - some[0], some[-1] - some[first]):
        return ""
    return (
        f"The residuals form two clusters, of {first} and {len(some) - first} rows: there are two "
        "populations, which groups= distinguishes, or a column is missing."
    )
