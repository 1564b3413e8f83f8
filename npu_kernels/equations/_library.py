"""Starts for the search: the simple products of powers that explain a target or its residuals.

A library of some thousand products with exponents from a lattice is compared with the target at
once. Every pair of products is scored by its least squares, from the products' Gram matrix.
"""

from __future__ import annotations

import itertools
import math
import operator
from typing import Any

import numpy as np

from npu_kernels.equations._numbers import exponent_nats
from npu_kernels.equations._problem import Problem
from npu_kernels.equations._rows import Layout

Array = Any

# Exponents of products of one input, of two, and (drawn) of more.
SINGLE = (-3.0, -2.0, -1.5, -1.0, -0.5, 0.5, 1.0, 1.5, 2.0, 3.0)
PAIRED = (-2.0, -1.0, -0.5, 0.5, 1.0, 2.0)
SEVERAL = (-2.0, -1.0, -1.0, 1.0, 1.0, 2.0)
STEPS = (-1.0, -0.5, 0.5, 1.0)  # from a term's exponents to those of products near it
MIN_LENGTH = 1e-4  # of the part of a product outside of the other terms; the whole has 1
PRODUCTS = 1500  # of two inputs; half as many of more


def lattice(problem: Problem, generator: Any, integers: bool = False) -> Array:
    """Return exponents ``[M, m]`` of no input, of one, of two, and drawn ones of more.

    They are whole where an input has both signs, and with `integers` everywhere.
    """
    m = problem.inputs
    parts = [np.zeros((1, m))]
    for i in range(m):
        rows = np.zeros((len(SINGLE), m))
        rows[:, i] = SINGLE
        parts.append(rows)
    pairs = list(itertools.combinations(range(m), 2))
    if len(pairs) * len(PAIRED) ** 2 > PRODUCTS:
        chosen = generator.permutation(len(pairs))[: max(1, PRODUCTS // len(PAIRED) ** 2)]
        pairs = [pairs[k] for k in sorted(chosen)]
    values = np.array(list(itertools.product(PAIRED, repeat=2)))
    for i, j in pairs:
        rows = np.zeros((len(values), m))
        rows[:, i], rows[:, j] = values.T
        parts.append(rows)
    if m > 2:
        drawn = generator.choice(SEVERAL, size=(PRODUCTS // 2, m))
        active = generator.integers(3, min(m, 6) + 1, size=(PRODUCTS // 2, 1))
        rank = generator.random((PRODUCTS // 2, m)).argsort(1).argsort(1)
        parts.append(np.where(rank < active, drawn, 0.0))
    u = np.concatenate(parts)
    fractional = (u[:, problem.signed | integers] % 1 != 0).any(1)
    outside = ((u < problem.low) | (u > problem.high)).any(1)
    if (fractional | outside).all():  # bounds between the exponents of the lattice
        return np.unique(np.clip(u[~fractional], problem.low, problem.high), axis=0)
    u = u[~(fractional | outside)]
    return np.unique(u, axis=0) if m else u[:1]


class Library:
    """The products ``[N, M]`` on some rows, weighted and of length 1.

    u: their exponents; None: those of the lattice. With groups each product has length 1 in each of
    them, and the N rows are those of a `Layout`.
    """

    def __init__(
        self, problem: Problem, generator: Any, u: Array = None, integers: bool = False
    ) -> None:
        self.u = lattice(problem, generator, integers) if u is None else u
        self.parity = np.where(problem.signed, np.abs(self.u) % 2, 0.0)
        self.problem, self.integers = problem, integers
        self.layout = None if problem.group is None else Layout.of(problem.group)
        self.groups = 1 if self.layout is None else self.layout.count
        z, weight = problem.linear()
        weight, self.target = self._laid(weight), self._laid(z * weight)
        with np.errstate(over="ignore", invalid="ignore"):
            A = self._laid(problem.products(self.u, self.parity)) * weight[:, None]
            size = np.sqrt((self._split(A) ** 2).sum(1))  # [G, M]
        good = np.isfinite(size).all(0) & (size > 0).any(0)
        if problem.limits is not None and u is None:
            good &= ~problem.limits.excludes(self.u)
        self.u, self.parity = self.u[good], self.parity[good]
        self.size = size[:, good]  # lengths of the products [G, M]
        length = np.where(self.size > 0, self.size, 1.0)
        self.A = (self._split(A[:, good]) / length[:, None]).reshape(len(A), -1)
        self.factors = A[:, good] / np.where(weight == 0, 1.0, weight)[:, None]
        self.low, self.high = problem.low, problem.high
        self.weight = weight
        inputs = problem.exponents.inputs
        described = (sum(exponent_nats(w, inputs) for w in row) for row in self.u.tolist())
        self.nats = 2 * np.fromiter(described, float, len(self.u))  # as the criterion has them

    def with_neighbours(self, u: Array) -> Library:
        """Return the library with products a step from those with exponents u ``[K, m]`` as well.

        A step changes one or two exponents by 1/2 or 1; of many inputs, one.
        """
        m, whole = self.u.shape[1], self.problem.signed | self.integers
        steps = np.vstack([np.zeros((1, m)), *(part * np.eye(m) for part in STEPS)])
        if len(u) * len(steps) ** 2 <= 4 * PRODUCTS:  # with each pair of inputs twice
            steps = np.unique((steps[:, None] + steps).reshape(len(steps) ** 2, m), axis=0)
        near = np.where(whole, np.round(u), np.round(2 * u) / 2)
        near = (near[:, None] + steps).reshape(len(near) * len(steps), m)
        inside = ((self.low <= near) & (near <= self.high) & ~(whole & (near % 1 != 0))).all(1)
        near = near[inside]
        if self.problem.limits is not None:
            near = near[~self.problem.limits.excludes(near)]
        u = np.unique(np.vstack([self.u, near]), axis=0)
        return Library(self.problem, None, u, self.integers)

    def price(self, squares: Array, nats: Array) -> Array:
        """Return the part of the criterion that differs between sums of as many products.

        squares: that they leave of the target.
        """
        problem = self.problem
        if problem.noise is not None:
            return squares / problem.noise**2 + nats
        return problem.rows * np.log(np.maximum(squares, problem.exact or 1e-300)) + nats

    def price_of(self, A: Array, u: Array, chosen: tuple[int, ...] = ()) -> float:
        """Return the criterion, to first order, of terms with exponents u and some products.

        A: columns ``[N, k]`` of the terms, as `tangents` has them.
        """
        products, inputs = list(chosen), self.problem.exponents.inputs
        rest = self.remainder(np.column_stack([A, self.A[:, products]]))
        described = sum(exponent_nats(w, inputs) for w in u.ravel().tolist())
        nats = 2 * described + self.nats[products].sum()
        nats += (len(u) + len(products)) * math.log(self.problem.rows)
        return float(self.price(rest @ rest, nats))

    def _laid(self, rows: Array) -> Array:
        """Rows in the order of the library."""
        return rows if self.layout is None else self.layout.filled(rows)

    def _split(self, rows: Array) -> Array:
        """Rows ``[N, k]`` by group ``[G, n, k]``."""
        return rows.reshape(self.groups, len(rows) // self.groups, rows.shape[1])

    def terms(self, u: Array, parity: Array) -> Array:
        """Return the weighted products ``[N, K]`` of a sum with these exponents."""
        return self._laid(self.problem.products(u, parity)) * self.weight[:, None]

    def tangents(self, u: Array, parity: Array, free: Array) -> Array:
        """Return the products of `terms`, and their derivatives for the free exponents ``[K, m]``.

        Those of inputs of both signs are none.
        """
        A = self.terms(u, parity)
        k, i = np.nonzero(free & ~self.problem.signed)
        return np.column_stack([A, A[:, k] * self._laid(self.problem.logs)[:, i]])

    def coefficients(self, A: Array) -> Array:
        """Return the coefficients of columns ``[N, K]``: ``[K]``, or ``[K, G]`` with groups."""
        parts = zip(self._split(A), self._split(self.target[:, None]), strict=True)
        c = [np.linalg.lstsq(part, target[:, 0], rcond=1e-12)[0] for part, target in parts]
        return c[0] if self.layout is None else np.stack(c, 1)

    def solved(self, chosen: list[int]) -> Array:
        """Return the coefficients of a sum of some of the products, as `coefficients` has them."""
        c, length = self.coefficients(self.A[:, chosen]), self.size[:, chosen]
        return c / (length[0] if self.layout is None else np.where(length > 0, length, 1.0).T)

    def remainder(self, A: Array) -> Array:
        """Return what columns ``[N, K]`` leave of the target ``[N]``."""
        c = self.coefficients(A)
        if self.layout is None:
            return self.target - A @ c
        return self.target - (self._split(A) @ c.T[:, :, None]).ravel()

    def best(self, residual: Array, present: Array, count: int) -> list[int]:
        """Return the products that lower the criterion most, the best first.

        present: the terms ``[N, K]`` that stay.
        """
        A, r = self._split(self.A), self._split(residual[:, None])
        gain = (r.transpose(0, 2, 1) @ A)[:, 0] ** 2
        rest = np.ones(gain.shape)
        if present.shape[1]:
            rest = _outside(np.linalg.qr(self._split(present))[0], A)
        score = np.where(rest > 1e-9, gain / np.maximum(rest, 1e-9), 0.0).sum(0)
        price = self.price(float(residual @ residual) - score, self.nats)
        order: list[int] = np.argsort(price, kind="stable")[:count].tolist()
        return order

    def single(self, count: int) -> list[tuple[int, ...]]:
        """Return the products that explain most of the target, the best first."""
        return [(k,) for k in self.best(self.target, np.empty((len(self.target), 0)), count)]

    def sets(self, count: int, beam: int, u: Array, parity: Array) -> list[tuple[int, ...]]:
        """Return sets of so many products, chosen one after the other, the best first.

        u, parity: of the other terms.
        """
        present = self.terms(u, parity)

        def columns(chosen: tuple[int, ...]) -> Array:
            return np.column_stack([present, self.A[:, list(chosen)]])

        def error(chosen: tuple[int, ...]) -> float:
            squares = (self.remainder(columns(chosen)) ** 2).sum()
            return float(self.price(squares, self.nats[list(chosen)].sum()))

        sets: list[tuple[int, ...]] = [()]
        for _ in range(count):
            longer = set[tuple[int, ...]]()
            for chosen in sets:
                A = columns(chosen)
                following = self.best(self.remainder(A), A, beam)
                longer |= {tuple(sorted((*chosen, k))) for k in following}
            sets = sorted(longer, key=lambda chosen: (error(chosen), chosen))[:beam]
        return sets

    def near(
        self, residual: Array, present: Array, u: Array, parity: Array, count: int
    ) -> list[tuple[Array, Array]]:
        """Return exponents and parities of the best products of a term and a factor of two inputs.

        present: the terms ``[N, K]``, with exponents u and parities ``[K, m]``.
        """
        pairs: list[tuple[float, Array, Array]] = []
        Q, r = np.linalg.qr(self._split(present))[0], self._split(residual[:, None])
        factors = np.flatnonzero((self.u != 0).sum(1) <= 2)
        for k in range(len(u)):
            A = self._split(present[:, k : k + 1] * self.factors[:, factors])
            size = np.sqrt((A**2).sum(1))
            A = A / np.maximum(size, 1e-300)[:, None]
            rest = _outside(Q, A)
            gain = (r.transpose(0, 2, 1) @ A)[:, 0] ** 2 / np.maximum(rest, 1e-9)
            score = np.where((rest > 1e-9) & np.isfinite(size), gain, 0.0).sum(0)
            for j in np.argsort(-score, kind="stable")[:count]:
                factor = factors[j]
                v = np.clip(u[k] + self.u[factor], self.low, self.high)
                pairs.append((float(score[j]), v, (parity[k] + self.parity[factor]) % 2))
        pairs.sort(key=operator.itemgetter(0), reverse=True)
        return [(v, b) for _, v, b in pairs[:count]]

    def pairs(
        self, count: int, present: Array = None, repeats: int = 4, near: Array = None
    ) -> list[tuple[int, ...]]:
        """Return the pairs of products with the lowest criterion, the best first.

        present: the other terms ``[N, K]``. Each product is in at most `repeats` pairs. near:
        exponents ``[K, m]`` of terms in whose place they are: products near these may explain
        little alone.
        """
        # Accepted pairs share few products; 900 candidates make 400,000 pairs.
        A, target = self._split(self.A), self._split(self.target[:, None])
        if present is not None:  # only what is outside of them counts
            Q = np.linalg.qr(self._split(present))[0]
            target = target - Q @ (Q.transpose(0, 2, 1) @ target)
            A = A - Q @ (Q.transpose(0, 2, 1) @ A)
            length = np.sqrt((A**2).sum(1, keepdims=True))
            A = np.where(length > MIN_LENGTH, A / np.maximum(length, MIN_LENGTH), 0.0)
        b = (target.transpose(0, 2, 1) @ A)[:, 0]
        some, most = np.arange(len(self.u)), 900 if near is None else 300
        most = max(100, round(most / math.sqrt(self.groups)))
        if len(some) > most:
            explained = (b**2).sum(0)
            some = np.argsort(-explained, kind="stable")[:most]
            if near is not None:
                close = np.flatnonzero((np.abs(self.u[:, None] - near).max(2) <= 1).any(1))
                close = close[np.argsort(-explained[close], kind="stable")[: 2 * most]]
                some = np.concatenate([some, close])
            some = np.unique(some)
        i, j = np.triu_indices(len(some), 1)
        gain = np.zeros(len(i))
        for of_group, products in zip(b[:, some], A[:, :, some], strict=True):
            gain += _gains_of_pairs(of_group, products.T @ products, i, j)
        nats = self.nats[some]
        price = self.price(float((target**2).sum()) - gain, nats[i] + nats[j])
        top = min(len(gain), 60 * count)
        order = np.argpartition(price, top - 1)[:top] if top else np.empty(0, dtype=int)
        order = order[np.argsort(price[order], kind="stable")]
        used = np.zeros(len(some), dtype=int)
        pairs = list[tuple[int, ...]]()
        for k in order:
            if used[i[k]] < repeats and used[j[k]] < repeats:
                used[i[k]] += 1
                used[j[k]] += 1
                pairs.append((int(some[i[k]]), int(some[j[k]])))
                if len(pairs) == count:
                    break
        return pairs


def _outside(Q: Array, A: Array) -> Array:
    """The shares ``[G, M]`` of columns of length 1 outside of the span of orthonormal ones."""
    shares: Array = 1.0 - ((Q.transpose(0, 2, 1) @ A) ** 2).sum(1)
    return shares


def _gains_of_pairs(b: Array, gram: Array, i: Array, j: Array) -> Array:
    """The squares that pairs of columns explain. b: their products with the target."""
    g = gram[i, j]
    rest = 1 - g * g
    gain = (b[i] ** 2 + b[j] ** 2 - 2 * g * b[i] * b[j]) / np.maximum(rest, 1e-9)
    return np.where(rest > 1e-9, gain, 0.0)
