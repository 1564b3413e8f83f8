"""Rows of a table: their groups, and what neighbouring rows tell."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from dataclasses import astuple, dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch

Array = Any

BLOCK_ROWS = 20_000  # rows in memory at once, where all rows are gone through


def blocks(rows: int) -> Iterator[slice]:
    """Slices of at most `BLOCK_ROWS` that cover all rows."""
    for begin in range(0, rows, BLOCK_ROWS):
        yield slice(begin, min(begin + BLOCK_ROWS, rows))


def first_of_equal(X: Array, y: Array, group: Array | None) -> Array:
    """Return which rows differ from those before them, of rows that are `ordered`."""
    new = np.ones(len(X), dtype=bool)
    for rows in blocks(len(X) - 1):
        after = slice(rows.start + 1, rows.stop + 1)
        new[after] = (X[rows] != X[after]).any(1) | (y[rows] != y[after]).any(1)
        if group is not None:
            new[after] |= group[rows] != group[after]
    return new


# ---- groups --------------------------------------------------------------------------------------
# Groups of rows, each with coefficients of its own and with the exponents of all.
#
# The rows of a group are neighbours. A batch of groups has as many rows in each: rows of
# weight 0 fill the smaller ones.

NAMED_LABELS = 10  # labels in a message


@dataclass(frozen=True)
class Layout:
    """Rows in groups of the same length ``[G, n]``, one group after the other."""

    count: int  # G
    index: Array  # [G n]: the rows; those that fill a group are its first row
    real: Array  # [G n]: False for rows that fill a group

    @classmethod
    def of(cls, group: Array) -> Layout:
        """Return the layout of sorted numbers of groups ``[N]``, of which each occurs."""
        begin, sizes = starts(group), np.bincount(group)
        offset = np.arange(sizes.max())
        real = offset < sizes[:, None]
        index = begin[:, None] + np.where(real, offset, 0)
        return cls(len(begin), index.ravel(), real.ravel())

    def filled(self, rows: Array) -> Array:
        """Return rows ``[G n, ...]`` of rows ``[N, ...]``, 0 where they fill a group."""
        real = self.real.reshape((-1, *[1] * (rows.ndim - 1)))
        return np.where(real, rows[self.index], 0.0)


def starts(group: Array) -> Array:
    """Return the first row of each group, of sorted numbers ``[N]`` of which each occurs."""
    return np.searchsorted(group, np.arange(group[-1] + 1))


def constant(X: Array, group: Array | None) -> Array:
    """Return which columns of X ``[N, n]`` are constant, or constant in each group ``[n]``."""
    if group is None:
        return (X[:1] == X).all(0)
    first = np.unique(group, return_index=True)[1]
    return (X[first][group] == X).all(0)


def of_rows(c: Array, group: Array | None) -> Array:
    """Return the coefficients of the rows ``[N, K]`` from ``[K, G]``; without groups c itself."""
    return c if group is None else c.T[group]


def summed(products: Array, c: Array, group: Array | None) -> Array:
    """Return sums of terms ``[N]``: products ``[N, K]``, c ``[K]`` or ``[K, G]``."""
    if group is None:
        return products @ c
    return (products * c.T[group]).sum(1)


def ranks(group: Array, order: Array) -> Array:
    """Return for rows in an order how many of their group are before each."""
    of_order = group[order]
    by_group = np.argsort(of_order, kind="stable")
    rank = np.empty(len(order), dtype=int)
    rank[by_group] = np.arange(len(order)) - starts(of_order[by_group])[of_order[by_group]]
    return rank


def balanced(group: Array, order: Array) -> Array:
    """Return an order of rows in which the first ones are as many of every group.

    order: of the rows, which stays within a group.
    """
    return order[np.argsort(ranks(group, order), kind="stable")]


# ---- labels, of an argument `groups` -------------------------------------------------------------


def separated(function: str, X: Any, groups: Any) -> tuple[Any, Any]:
    """Return a table without the column that `groups` names, if it does, and the labels."""
    if not isinstance(groups, str):
        return X, groups
    names = list(getattr(X, "columns", ()))
    if groups not in names:
        rule = "groups must be labels, or the name of a column of X"
        raise ValueError(f"{function}: {rule}, got {groups!r}")
    inputs = [name for name in names if name != groups]
    if not inputs:
        rule = "X must have other columns than that of groups"
        raise ValueError(f"{function}: {rule}, got only {groups!r}")
    return X[inputs], X[groups]


def read_labels(
    function: str, groups: Any, rows: int, used: Array | None = None
) -> tuple[tuple[Any, ...], Array]:
    """Return the sorted labels of an argument `groups`, and their index for each row.

    used: a mask of the rows; None: all. The index of the others, whose labels do not matter, is -1.
    """
    used = np.ones(rows, dtype=bool) if used is None else used
    column, index = _column(function, groups, rows, used), np.full(rows, -1)
    try:
        labels, of_used = np.unique(column[used], return_inverse=True)
    except TypeError:
        rule = "groups must be labels of one type, numbers or text"
        raise ValueError(f"{function}: {rule}, got several") from None
    index[used] = of_used.ravel()
    return tuple(labels.tolist()), index


def indices(
    function: str, labels: tuple[Any, ...] | None, groups: Any, rows: int, used: Array | None = None
) -> Array | None:
    """Return the index among the labels for each row; None for an equation without groups.

    used: see `read_labels`.
    """
    if labels is None:
        if groups is not None:
            rule = "groups must be None for an equation without groups"
            raise ValueError(f"{function}: {rule}, got {type(groups).__name__}")
        return None
    if groups is None:
        rule = "groups must be the labels of the rows, for an equation with groups"
        raise ValueError(f"{function}: {rule}, got None")
    number = {label: index for index, label in enumerate(labels)}
    used = np.ones(rows, dtype=bool) if used is None else used
    index = np.full(rows, -1)
    column = _column(function, groups, rows, used)[used].tolist()
    unknown = next((label for label in column if label not in number), None)
    if unknown is not None:
        shown = ", ".join(map(repr, labels[:NAMED_LABELS])) + ", ..." * (len(labels) > NAMED_LABELS)
        raise ValueError(f"{function}: groups must be labels of fit, {shown}, got {unknown!r}")
    index[used] = [number[label] for label in column]
    return index


def as_labels(groups: Any) -> Array:
    """Return labels as an array, those of a list as they are: NumPy would make text of numbers."""
    if isinstance(groups, torch.Tensor):
        return groups.detach().cpu().numpy()
    if not isinstance(groups, (list, tuple)):
        return np.asarray(groups)
    labels = np.empty(len(groups), dtype=object)
    for i, label in enumerate(groups):
        labels[i] = label.item() if isinstance(label, (np.generic, torch.Tensor)) else label
    return labels


def _column(function: str, groups: Any, rows: int, used: Array) -> Array:
    """The labels of all rows, checked for those that are used."""
    column = as_labels(groups)
    if column.shape != (rows,):
        rule = f"groups must have one label for each of {rows} rows"
        raise ValueError(f"{function}: {rule}, got shape {column.shape}")
    for i, label in enumerate(column.tolist()):
        if used[i] and _is_missing(label):
            rule = f"groups must have no missing label, got one in row {i}"
            raise ValueError(f"{function}: {rule} (the first row is 0)")
        if not isinstance(label, Hashable):
            rule = "groups must be labels, numbers or text"
            raise ValueError(f"{function}: {rule}, got {label!r} in row {i} (the first row is 0)")
    return column


def _is_missing(label: Any) -> bool:
    """Whether it is None, nan, or pandas' NA, which is neither equal to itself nor different."""
    try:
        return label is None or bool(label != label)
    except TypeError:
        return True


# ---- neighbouring rows ----------------------------------------------------------------------
# Neighbouring rows: whether residuals are noise, and whether a row is like those of a fit.

ROWS = 200  # that are compared with others
MIN_TESTED_ROWS = 10  # rows from which residuals tell anything
LIKE = 0.95  # share of the rows of a fit that are like the others
REMARKABLE = 0.5  # of the range of y: how far outside of it a prediction is remarkable
EQUAL_POINTS = 1e-12  # squared distance of equal points, by rounding
NARROW = 0.05  # width of a column over its size below which its powers are nearly lines
CHANCE = 4.0  # standard deviations of a correlation from which it is none of chance
FEW_NEIGHBOURS = 100  # rows below which neighbours alone tell little
RARE = 5e-4  # probability of a pattern by chance, below which it is none of chance
RARE_OF_ALL = 0.1  # share of it for curves with a constant, which are tried as well
CURVES = 3  # polynomials that a smooth curve has in addition to the equation
GROWING = 5.0  # standard deviations of a rank correlation from which errors follow a column
MANY_TIMES = 4.0  # as large: from there on, errors are not alike
OWN_PART = 0.1  # of a polynomial that the equation's own terms leave, from which it is one of these


def spread(rows: int, most: int) -> Array:
    """Return the indices of at most so many rows, evenly apart."""
    return np.linspace(0, rows - 1, min(rows, most)).astype(int)


def ranks_among(column: Array, of: Array) -> Array:
    """Return the shares of numbers of a sorted array that are below those of a column."""
    return (np.searchsorted(of, column) + np.searchsorted(of, column, "right")) / (2 * len(of))


def distances(points: Array, targets: Array) -> Array:
    """Return the squared distances ``[N, M]`` of points from targets."""
    squares: Array = (points**2).sum(1)[:, None] + (targets**2).sum(1) - 2 * points @ targets.T
    return squares


def nearest(points: Array, of: Array) -> tuple[Array, Array]:
    """Return the points' nearest ones of others, which are not equal: squared distances, indices.

    A row that occurs twice has the same error twice.
    """
    smallest, index = np.full(len(points), np.inf), np.zeros(len(points), dtype=int)
    for part in blocks(len(of)):
        squares = distances(points, of[part])
        squares = np.where(squares > EQUAL_POINTS, squares, np.inf)
        nearer = squares.min(1) < smallest
        index[nearer] = part.start + squares.argmin(1)[nearer]
        smallest = np.minimum(smallest, squares.min(1))
    return smallest, index


def places(X: Array) -> Array:
    """Return each row's place among all, from 0 to 1 in each column ``[N, n]``."""
    return np.column_stack([ranks_among(column, np.sort(column)) for column in X.T])


def clustered(X: Array, chosen: Array) -> float:
    """Return how much more often a chosen row is the nearest of a chosen one than chance has it.

    It is 1 if it always is, and 0 if it may be chance. Some of the chosen rows tell.
    """
    rows, share = np.flatnonzero(chosen), float(chosen.mean())
    if len(X) < MIN_TESTED_ROWS or not X.shape[1] or not 0 < share < 1:
        return 0.0
    some, points = rows[spread(len(rows), ROWS)], places(X)
    excess = float(chosen[nearest(points[some], points)[1]].mean()) - share
    chance = math.sqrt(1.5 * share * (1 - share) / len(some))  # many are the nearest of each other
    return excess / (1 - share) if excess > CHANCE * chance else 0.0


def alike(X: Array, residuals: Array) -> float:
    """Return the correlation of residuals with those of the nearest rows, 0 if it may be chance.

    Of pure noise it is 0. Ranks are compared, so that single rows do not decide. Some rows tell,
    and their nearest ones are looked for among all.
    """
    if len(X) < MIN_TESTED_ROWS or not X.shape[1]:
        return 0.0
    some, points = spread(len(X), ROWS), places(X)
    size = ranks_among(residuals, np.sort(residuals)) - 0.5
    beside = size[nearest(points[some], points)[1]]
    size = size[some]
    variance = float(np.sqrt((size @ size) * (beside @ beside)))
    correlation = float(size @ beside) / variance if variance > 0 else 0.0
    chance = 1 / np.sqrt(len(some) / 1.5)  # many rows are the nearest of each other
    return correlation if correlation > CHANCE * chance else 0.0


def pattern(X: Array, residuals: Array, derivatives: Array) -> float:
    """Return how alike the residuals of few rows are along a column, 0 if it may be chance.

    Neighbours tell little of few rows. It is the correlation with a smooth curve, or that of the
    signs of neighbours.

    derivatives: of the residuals for the equation's parameters ``[N, q]``.
    """
    if not np.isfinite(np.column_stack([derivatives, residuals])).all():
        return 0.0
    size = np.linalg.norm(derivatives, axis=0)
    tangents = np.linalg.qr(derivatives / np.where(size > 0, size, 1.0))[0]
    rest, rare = residuals - tangents @ (tangents.T @ residuals), RARE / max(1, X.shape[1])
    parts = (
        (
            _runs(x, residuals, rare),
            _curve(x, rest, tangents, rare, 1),
            _curve(x, rest, tangents, RARE_OF_ALL * rare, 0),
        )
        for x in X.T
    )
    return max(map(max, parts), default=0.0)


def times_as_large(column: Array, size: Array) -> float:
    """Return how large errors are in the third with the largest column, over the smallest one.

    Medians are compared. It is 1 where the correlation of ranks may be chance.
    """
    of_size, rank = (ranks_among(part, np.sort(part)) - 0.5 for part in (size, column))
    length = math.sqrt(float(of_size @ of_size) * float(rank @ rank))
    correlation = float(of_size @ rank) / length if length else 0.0
    if abs(correlation) * math.sqrt(len(size)) < GROWING:
        return 1.0
    low, high = np.median(size[rank <= -1 / 6]), np.median(size[rank >= 1 / 6])
    return float(np.clip(high, 1e-99, 1e99) / np.clip(low, 1e-99, 1e99))


def _curve(column: Array, residuals: Array, tangents: Array, rare: float, first: int) -> float:
    """The correlation of residuals with a smooth curve; 0 where its probability is not rare.

    The curve is the sum of a few polynomials of the ranks that are no part of the equation, and F
    of least squares says whether it may be chance. tangents: an orthonormal basis of its
    derivatives. first: the lowest degree of the polynomials, 0 or 1. With 0 an equation with a
    constant has the same curves as one without, which takes more rows.
    """
    from scipy.special import fdtrc

    rows, parameters = tangents.shape
    order, basis = 2 * ranks_among(column, np.sort(column)) - 1, tangents
    limit = parameters + CURVES
    degree = min(parameters + CURVES + 2, len(np.unique(column)) - 1)
    for k, polynomial in enumerate(np.polynomial.legendre.legvander(order, degree).T[first:]):
        own = polynomial / np.linalg.norm(polynomial)
        for _ in range(2):  # the second time for the rounding of the first
            own = own - basis @ (basis.T @ own)
        if (length := float(np.linalg.norm(own))) > OWN_PART:
            basis = np.column_stack([basis, own / length])
            limit += k + first == 0
        if basis.shape[1] == limit:
            break
    terms, degrees = basis.shape[1] - parameters, rows - basis.shape[1]
    squares = float(residuals @ residuals)
    explained = float(((basis[:, parameters:].T @ residuals) ** 2).sum())
    if not terms or degrees < (1 if first else 2 * terms) or not explained > 0:
        return 0.0
    ratio = explained / terms / (max(squares - explained, 1e-300) / degrees)
    return math.sqrt(explained / squares) if fdtrc(terms, degrees, ratio) < rare else 0.0


def _runs(column: Array, residuals: Array, rare: float) -> float:
    """The correlation of the signs of neighbours; 0 where its probability is not rare.

    Few runs of equal signs are rare by chance (Wald and Wolfowitz, 1940). Rows of one value of the
    column count once.
    """
    index = np.unique(column, return_inverse=True)[1]
    above = np.bincount(index, residuals) > 0
    first, second = int(above.sum()), int((~above).sum())
    if not first or not second:
        return 0.0
    runs, ways = 1 + int((above[1:] != above[:-1]).sum()), 0
    for count in range(2, runs + 1):
        longer, shorter = (count - 1) // 2, (count - 2) // 2
        ways += math.comb(first - 1, longer) * math.comb(second - 1, shorter)
        ways += math.comb(first - 1, shorter) * math.comb(second - 1, longer)
    rarer = ways < rare * math.comb(first + second, first)
    return 1 - 2 * (runs - 1) / (first + second - 1) if rarer else 0.0


def have_two_values(X: Array) -> Array:
    """Return which columns have two values ``[n]``."""
    low, high = X.min(0), X.max(0)
    two = low < high
    for rows in blocks(len(X)):
        two = two & ((X[rows] == low) | (X[rows] == high)).all(0)
    return two


def widths(X: Array) -> Array:
    """Return the widths of columns over their sizes ``[n]``; infinite of constant ones."""
    low, high = X.min(0), X.max(0)
    size = np.maximum(np.abs(low), np.abs(high))
    size = np.where(size > 0, size, 1.0)  # a difference of large numbers may be none
    return np.where(high > low, high / size - low / size, np.inf)


@dataclass(frozen=True)
class Seen:
    """Some rows of a fit, and the range of y."""

    X: Array  # [M, n]
    y: Array  # [M, O]
    low: Array  # [O]
    high: Array  # [O]

    @classmethod
    def of(cls, X: Array, y: Array) -> Seen:
        """Return what is kept of the rows of a fit."""
        some = spread(len(X), ROWS)
        return cls(X[some], y[some], y.min(0), y.max(0))

    def are_of(self, X: Array, y: Array) -> bool:
        """Return whether these rows may be all rows of the fit."""
        pairs = zip(astuple(self), astuple(Seen.of(X, y)), strict=True)
        return all(np.array_equal(ours, theirs) for ours, theirs in pairs)

    def surprising(self, X: Array, y: Array) -> Array:
        """Return a mask of the rows of X like the fit's, with a y far outside of its range."""
        with np.errstate(over="ignore", invalid="ignore"):
            room = REMARKABLE * (self.high - self.low)
            outside = (y < self.low - room) | (y > self.high + room)
        far: Array = (outside & np.isfinite(y)).any(1)
        if not far.any() or len(self.X) < MIN_TESTED_ROWS:
            return np.zeros_like(far)
        columns = [np.sort(column) for column in self.X.T]
        seen, new = (
            np.column_stack([ranks_among(x, of) for x, of in zip(part.T, columns, strict=True)])
            for part in (self.X, X[far])
        )
        limit = np.quantile(nearest(seen, seen)[0], LIKE)
        within = ((new > 0) & (new < 1)).all(1)
        far[far] = within & (distances(new, seen).min(1) <= limit)
        return far


# ---- columns that are products of others ---------------------------------------------------------

SAME_LOGS = 1e-9  # of the deviation of a column's logarithms: what products of others leave of it
MAX_ROWS_OF_PRODUCTS = 300  # that tell which columns are products
MAX_PLAIN_POWER, MAX_ROOT = 6, 4  # exponents of these products, and their denominators


def products_of_columns(logs: Array) -> list[Array]:
    """Return exponents ``[n]`` of products of columns that are the same number in every row.

    Each is -1 for the last column that it has, which is a product of columns before it. logs:
    logarithms of the columns ``[N, n]``; columns of zeros are no product.
    """
    logs = logs[spread(len(logs), MAX_ROWS_OF_PRODUCTS)]
    logs = logs - logs.mean(0)
    size, products = np.sqrt((logs**2).sum(0)), list[Array]()
    independent = list[int]()
    for i in np.flatnonzero(size > 0).tolist():
        if len(independent) > len(logs) - 3:
            break
        if independent:
            before = logs[:, independent]
            powers = np.linalg.lstsq(before, logs[:, i], rcond=None)[0]
            simple = np.array(
                [float(Fraction(w).limit_denominator(MAX_ROOT)) for w in powers.tolist()]
            )
            rest = logs[:, i] - before @ simple
            if (
                np.abs(simple).max() <= MAX_PLAIN_POWER
                and rest @ rest <= (SAME_LOGS * size[i]) ** 2
            ):
                direction = np.zeros(logs.shape[1])
                direction[independent], direction[i] = simple, -1.0
                products.append(direction)
                continue
        independent.append(i)
    return products
