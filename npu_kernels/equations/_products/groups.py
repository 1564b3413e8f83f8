"""Groups of rows, each with coefficients of its own and with the exponents of all.

The rows of a group are beside each other. A batch of groups has as many rows in each: rows of
weight 0 fill the smaller ones.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

Array = Any

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
        real = self.real.reshape(-1, *[1] * (rows.ndim - 1))
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
    """Return the index among the labels for each row; None for a law without groups.

    used: see `read_labels`.
    """
    if labels is None:
        if groups is not None:
            rule = "groups must be None for a law without groups"
            raise ValueError(f"{function}: {rule}, got {type(groups).__name__}")
        return None
    if groups is None:
        rule = "groups must be the labels of the rows, as the law has a group for each"
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
