"""Rows beside each other: whether residuals are noise."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any

ROWS = 300  # that are compared with each other
FEWEST = 10  # rows from which residuals tell anything
CHANCE = 4.0  # standard deviations of a correlation from which it is none of chance


def ranks(column: Array, of: Array) -> Array:
    """Return the shares of numbers of a sorted array that are below those of a column."""
    return (np.searchsorted(of, column) + np.searchsorted(of, column, "right")) / (2 * len(of))


def nearest(points: Array) -> Array:
    """Return the index of the nearest other point of each."""
    distance = (points**2).sum(1)[:, None] + (points**2).sum(1) - 2 * points @ points.T
    np.fill_diagonal(distance, np.inf)
    index: Array = distance.argmin(1)
    return index


def alike(X: Array, residuals: Array) -> float:
    """Return the correlation of the residuals of rows beside each other, 0 if it may be chance.

    Of pure noise it is 0. Ranks are compared, so that single rows do not decide.
    """
    if len(X) < FEWEST or not X.shape[1]:
        return 0.0
    some = np.linspace(0, len(X) - 1, min(len(X), ROWS)).astype(int)
    X, residuals = X[some], residuals[some]
    points = np.column_stack([ranks(column, np.sort(column)) for column in X.T])
    size = ranks(residuals, np.sort(residuals)) - 0.5
    index = nearest(points)
    variance = float(size @ size)
    correlation = float(size @ size[index]) / variance if variance > 0 else 0.0
    chance = 1 / np.sqrt(len(some) / 1.5)  # many rows are the nearest of each other
    return correlation if correlation > CHANCE * chance else 0.0
