"""Starts for the search: which products of powers with simple exponents explain the target, or what is left of it.

A library of some thousand products with exponents from a lattice is compared with the target at once. Every pair of
them is scored by its own least squares, from the products' Gram matrix.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from npu_kernels._laws.products.problem import Problem

Array = Any

SINGLE = (-3.0, -2.0, -1.5, -1.0, -0.5, 0.5, 1.0, 1.5, 2.0, 3.0)
PAIRED = (-2.0, -1.0, -0.5, 0.5, 1.0, 2.0)
MANY = (-2.0, -1.0, -1.0, 1.0, 1.0, 2.0)
SIZE = 1500


def lattice(problem: Problem, generator: Any) -> Array:
    """Exponents ``[M, m]``: none, of one input, of two, and drawn ones of more; whole where an input has both signs."""
    m = problem.inputs
    found = [np.zeros((1, m))]
    for i in range(m):
        rows = np.zeros((len(SINGLE), m))
        rows[:, i] = SINGLE
        found.append(rows)
    pairs = list(itertools.combinations(range(m), 2))
    if len(pairs) * len(PAIRED) ** 2 > SIZE:
        keep = generator.permutation(len(pairs))[: max(1, SIZE // len(PAIRED) ** 2)]
        pairs = [pairs[k] for k in sorted(keep)]
    values = np.array(list(itertools.product(PAIRED, repeat=2)))
    for i, j in pairs:
        rows = np.zeros((len(values), m))
        rows[:, i], rows[:, j] = values.T
        found.append(rows)
    if m > 2:
        drawn = generator.choice(MANY, size=(SIZE // 2, m))
        active = generator.integers(3, min(m, 6) + 1, size=(SIZE // 2, 1))
        rank = generator.random((SIZE // 2, m)).argsort(1).argsort(1)
        found.append(np.where(rank < active, drawn, 0.0))
    u = np.concatenate(found)
    fractional = (u[:, problem.signed] % 1 != 0).any(1)
    outside = ((u < problem.low) | (u > problem.high)).any(1)
    u = u[~(fractional | outside)]
    return np.unique(u, axis=0) if m else u[:1]


class Library:
    """The products ``[N, M]`` on some rows, weighted and of length 1, and their Gram matrix."""

    def __init__(self, problem: Problem, generator: Any) -> None:
        self.u = lattice(problem, generator)
        self.parity = np.where(problem.signed, np.abs(self.u) % 2, 0.0)
        z, weight = problem.linear()
        exponent = np.clip(problem.logs @ self.u.T, -300, 300)
        A = np.exp(exponent) * problem.signs(self.parity) * weight[:, None]
        size = np.sqrt((A**2).sum(0))
        good = np.isfinite(size) & (size > 0)
        self.u, self.parity = self.u[good], self.parity[good]
        self.A = A[:, good] / size[good]
        self.factors = A[:, good] / np.where(weight == 0, 1.0, weight)[:, None]
        self.low, self.high = problem.low, problem.high
        self.target = z * weight

    def best(self, residual: Array, present: Array, count: int) -> list[int]:
        """The products that would lower the squared error most beside terms ``[N, K]`` that stay, the best first."""
        gain = (residual @ self.A) ** 2
        left = np.ones(len(self.u))
        if present.shape[1]:
            Q, _ = np.linalg.qr(present)
            left = 1.0 - ((Q.T @ self.A) ** 2).sum(0)
        score = np.where(left > 1e-9, gain / np.maximum(left, 1e-9), 0.0)
        return [int(k) for k in np.argsort(-score, kind="stable")[:count]]

    def near(
        self, residual: Array, present: Array, u: Array, parity: Array, count: int
    ) -> list[tuple[Array, Array]]:
        """Exponents and parities of the best products of one of these terms ``[N, K]`` and a factor of two inputs."""
        found: list[tuple[float, Array, Array]] = []
        Q, _ = np.linalg.qr(present)
        few = (self.u != 0).sum(1) <= 2
        for k in range(len(u)):
            A = present[:, k : k + 1] * self.factors[:, few]
            size = np.sqrt((A**2).sum(0))
            A = A / np.maximum(size, 1e-300)
            left = 1.0 - ((Q.T @ A) ** 2).sum(0)
            score = np.where(
                (left > 1e-9) & np.isfinite(size), (residual @ A) ** 2 / np.maximum(left, 1e-9), 0.0
            )
            for j in np.argsort(-score, kind="stable")[:count]:
                at = np.flatnonzero(few)[j]
                v = np.clip(u[k] + self.u[at], self.low, self.high)
                found.append((float(score[j]), v, (parity[k] + self.parity[at]) % 2))
        found.sort(key=lambda one: -one[0])
        return [(v, b) for _, v, b in found[:count]]

    def pairs(self, count: int, most: int = 4) -> list[tuple[int, int]]:
        """The pairs of products with the least squared error, the best first; each product in at most `most`."""
        # Accepted pairs share few products; 900 candidates make 400,000 pairs.
        some = np.arange(len(self.u))
        if len(some) > 900:
            some = np.sort(np.argsort(-np.abs(self.target @ self.A), kind="stable")[:900])
        A = self.A[:, some]
        b, gram = self.target @ A, A.T @ A
        i, j = np.triu_indices(len(some), 1)
        g = gram[i, j]
        left = 1 - g * g
        gain = np.where(
            left > 1e-9, (b[i] ** 2 + b[j] ** 2 - 2 * g * b[i] * b[j]) / np.maximum(left, 1e-9), 0.0
        )
        top = min(len(gain), 60 * count)
        order = np.argpartition(-gain, top - 1)[:top] if top else np.empty(0, dtype=int)
        order = order[np.argsort(-gain[order], kind="stable")]
        used = np.zeros(len(some), dtype=int)
        found = []
        for k in order:
            if used[i[k]] < most and used[j[k]] < most:
                used[i[k]] += 1
                used[j[k]] += 1
                found.append((int(some[i[k]]), int(some[j[k]])))
                if len(found) == count:
                    break
        return found
