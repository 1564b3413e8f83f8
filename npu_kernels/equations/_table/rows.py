"""Rows beside each other: whether residuals are noise, and whether a row is like those of a fit."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from npu_kernels.equations._products.problem import blocks

Array = Any

ROWS = 200  # that are compared with others
FEWEST = 10  # rows from which residuals tell anything
LIKE = 0.95  # share of the rows of a fit that are like the others
REMARKABLE = 0.5  # of the range of y: how far outside of it a prediction is remarkable
EQUAL_POINTS = 1e-12  # squared distance of equal points, by rounding
NARROW = 0.05  # width of a column over its size below which its powers are nearly lines
CHANCE = 4.0  # standard deviations of a correlation from which it is none of chance


def spread(rows: int, most: int) -> Array:
    """Return the indices of at most so many rows, evenly apart."""
    return np.linspace(0, rows - 1, min(rows, most)).astype(int)


def ranks(column: Array, of: Array) -> Array:
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


def alike(X: Array, residuals: Array) -> float:
    """Return the correlation of residuals with those of the nearest rows, 0 if it may be chance.

    Of pure noise it is 0. Ranks are compared, so that single rows do not decide. Some rows tell,
    and their nearest ones are looked for among all.
    """
    if len(X) < FEWEST or not X.shape[1]:
        return 0.0
    some = spread(len(X), ROWS)
    points = np.column_stack([ranks(column, np.sort(column)) for column in X.T])
    size = ranks(residuals, np.sort(residuals)) - 0.5
    beside = size[nearest(points[some], points)[1]]
    size = size[some]
    variance = float(np.sqrt((size @ size) * (beside @ beside)))
    correlation = float(size @ beside) / variance if variance > 0 else 0.0
    chance = 1 / np.sqrt(len(some) / 1.5)  # many rows are the nearest of each other
    return correlation if correlation > CHANCE * chance else 0.0


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
        if not far.any() or len(self.X) < FEWEST:
            return np.zeros_like(far)
        columns = [np.sort(column) for column in self.X.T]
        seen, new = (
            np.column_stack([ranks(x, of) for x, of in zip(part.T, columns, strict=True)])
            for part in (self.X, X[far])
        )
        limit = np.quantile(nearest(seen, seen)[0], LIKE)
        within = ((new > 0) & (new < 1)).all(1)
        far[far] = within & (distances(new, seen).min(1) <= limit)
        return far
