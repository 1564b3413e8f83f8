"""The steps of least squares: for one set of parameters, and where groups have coefficients.

Where each group of rows has K coefficients of its own and all share F exponents, the matrix of the
derivatives is an arrow: a block of each group, and the columns of the exponents. The blocks are
eliminated group by group (modified Gram-Schmidt), for all groups at once. What is left are
equations of the exponents alone. So the work grows with the rows, not with the groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from npu_kernels.equations._products.groups import starts

Array = Any

DEPENDENT = 1e-12  # share of a column's length that the columns before it have to leave
LEAST_DAMPING = 1e-22  # of the squares of columns of length 1: what no row tells stays as it is


@dataclass(frozen=True)
class Dense:
    """``R (length * step) = b`` for K coefficients and the exponents; R has columns of length 1."""

    R: Array  # [q, q]
    b: Array  # [q]
    length: Array  # [q]
    terms: int  # K

    def descent(self) -> Array:
        """Return the direction of the coefficients ``[K]`` in which the error falls."""
        descent: Array = (self.R.T @ self.b)[: self.terms]
        return descent

    def step(self, mu: float, stays: Array | None) -> tuple[Array, Array]:
        """Return the damped steps of coefficients ``[K]`` and of exponents ``[F]``.

        stays: the coefficients that do not move.
        """
        A, rhs, q = self.R, self.b, self.R.shape[1]
        if mu > 1e-9:
            A = np.concatenate([A, math.sqrt(mu) * np.eye(q)])
            rhs = np.concatenate([rhs, np.zeros(q)])
        if stays is not None:
            A = np.where(np.append(stays, np.zeros(q - self.terms, dtype=bool)), 0.0, A)
        step = np.linalg.lstsq(A, rhs, rcond=1e-13)[0] / self.length
        return step[: self.terms], step[self.terms :]


def lengths_of_groups(A: Array, first: Array) -> Array:
    """Return the lengths of the columns in each group. first: the groups' first rows."""
    with np.errstate(over="ignore"):
        lengths: Array = np.sqrt(np.add.reduceat(A**2, first))
    return lengths


@dataclass(frozen=True)
class Arrow:
    """``R (step) = b``: the rows of each group's coefficients, and those of the exponents alone."""

    groups: Array  # [G, K, K + F + 1]: of coefficients, exponents and b
    shared: Array  # [at most F + 1, F + 1]: of exponents and b
    orthonormal: Array  # [N, K]: the columns of the coefficients
    remainder: Array  # [N, F]: what these leave of the columns of the exponents

    @classmethod
    def of(cls, J: Array, terms: int, target: Array, group: Array) -> Arrow:
        """Return the equations of derivatives ``[N, K + F]``.

        terms: K, the columns of the coefficients, which are those of the row's group. group: its
        number, sorted.
        """
        A, first = np.column_stack([J, target]), starts(group)
        rows = np.zeros((len(first), terms, A.shape[1]))
        size = lengths_of_groups(A[:, :terms], first)
        for k in range(terms):
            length = lengths_of_groups(A[:, k], first)
            length[length <= DEPENDENT * size[:, k]] = 0.0
            rows[:, k, k] = length
            A[:, k] /= np.where(length > 0, length, math.inf)[group]
            after = A[:, k + 1 :]
            rows[:, k, k + 1 :] = np.add.reduceat(A[:, k, None] * after, first)
            after -= A[:, k, None] * rows[:, k, k + 1 :][group]
        shared = np.linalg.qr(A[:, terms:], mode="r")
        return cls(rows, shared, A[:, :terms], A[:, terms:-1])

    @property
    def terms(self) -> int:
        return int(self.groups.shape[1])

    def lengths(self) -> tuple[Array, Array]:
        """Return the lengths of the columns ``[G, K]`` and ``[F]``; 1 for a column of zeros."""
        K = self.terms
        own = np.sqrt((self.groups[..., :K] ** 2).sum(1))
        of_all = (self.groups[..., K:-1] ** 2).sum((0, 1)) + (self.shared[:, :-1] ** 2).sum(0)
        exponents = np.sqrt(of_all)
        return np.where(own > 0, own, 1.0), np.where(exponents > 0, exponents, 1.0)

    def descent(self) -> Array:
        """Return the direction of the coefficients ``[K, G]`` in which the error falls."""
        K = self.terms
        descent: Array = np.einsum("gjk,gj->kg", self.groups[..., :K], self.groups[..., -1])
        return descent

    def step(self, mu: float, stays: Array | None) -> tuple[Array, Array]:
        """Return the damped steps of coefficients ``[K, G]`` and of exponents ``[F]``.

        stays: the coefficients that do not move.
        """
        K, (own, exponents) = self.terms, self.lengths()
        F, damping = len(exponents), math.sqrt(max(mu, LEAST_DAMPING))
        rows = self.groups.copy()
        rows[..., :K] /= own[:, None]
        rows[..., K:-1] /= exponents
        added = np.zeros_like(rows)
        added[:, np.arange(K), np.arange(K)] = damping
        if stays is not None:
            rows[..., :K] = np.where(stays.T[:, None], 0.0, rows[..., :K])
            added[:, np.arange(K), np.arange(K)] = np.where(stays.T, 1.0, damping)
        R: Array = np.linalg.qr(np.concatenate([rows, added], 1), mode="r")
        shared = self.shared / np.append(exponents, 1.0)
        parts = R[:, K:, K:].reshape(-1, F + 1), shared, damping * np.eye(F, F + 1)
        below = np.concatenate(parts)
        change = np.linalg.lstsq(below[:, :-1], below[:, -1], rcond=1e-13)[0] if F else np.zeros(0)
        b = R[:, :K, -1] - R[:, :K, K:-1] @ change
        c = np.linalg.solve(R[:, :K, :K], b[..., None])[..., 0]
        return (c / own).T, change / exponents

    def leverage(self) -> tuple[Array, Array]:
        """Return the leverages of the rows ``[N]``, and the variances of the exponents ``[F]``.

        A variance is that with the later exponents fixed, for errors of variance 1.
        """
        length = self.lengths()[1]
        Q, R = np.linalg.qr(self.remainder)
        size = np.abs(np.diag(R)) / length
        h = (self.orthonormal**2).sum(1) + (Q[:, size > 1e-10] ** 2).sum(1)
        with np.errstate(over="ignore", divide="ignore"):
            return h, 1 / (np.maximum(size, 1e-12) * length) ** 2

    def covariance(self) -> Array:
        """Return the covariances ``[G, K + F, K + F]``, for errors of variance 1.

        They are those of a group's coefficients and the exponents.
        """
        K, (own, exponents) = self.terms, self.lengths()
        outer = np.linalg.pinv(self.shared[:, :-1] / exponents, rcond=1e-13)
        R = self.groups[..., :K] / own[:, None]
        inner = np.linalg.pinv(R, rcond=1e-13)
        cross = -inner @ (self.groups[..., K:-1] / exponents) @ outer
        rows = np.concatenate([cross, np.broadcast_to(outer, (len(own), *outer.shape))], 1)
        C = rows @ rows.transpose(0, 2, 1)
        C[:, :K, :K] += inner @ inner.transpose(0, 2, 1)
        size = np.concatenate([own, np.broadcast_to(exponents, (len(own), len(exponents)))], 1)
        return C / (size[:, :, None] * size[:, None])
