"""One sum of products: least squares in y itself, and the criterion that decides.

The criterion is the Bayesian information criterion, ``N log(RSS / N) + K log N`` for K
coefficients, plus twice the length, in nats, of a description of the exponents: to which inputs
they belong, how simple they are, and of a free one how precisely it is known (Laplace's method).
RSS is the sum of squared leave-one-out errors, ``r / (1 - h)`` with the leverage h of the
linearised model (Allen's PRESS), so that a term that helps only a few rows is not worth its cost.
With several groups of rows it is that of errors of equal variance: see `decisive_errors`.
With few rows there is a correction as by Hurvich and Tsai (1989), ``2 q (q + 1) / (N - q - 1)``,
where q counts the coefficients and all exponents other than 0: simple ones were chosen by the data
as well.

All rows of large data are gone through in blocks, and the triangular factors of the blocks'
derivatives are joined.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from npu_kernels.equations._limits import BOUND, ScaledLimits
from npu_kernels.equations._numbers import (
    FLOAT64_ROUNDING,
    ZERO,
    exponent_nats,
    factor_nats,
)
from npu_kernels.equations._problem import EXACT_ERROR, AllRows, Problem
from npu_kernels.equations._rows import FEW_NEIGHBOURS, of_rows, pattern, starts

Array = Any

# ---- linearised problems -------------------------------------------------------------------------
# The steps of least squares: for one set of parameters, and where groups have coefficients.
#
# Where each group of rows has K coefficients of its own and all share F exponents, the matrix of
# the derivatives is an arrow: a block of each group, and the columns of the exponents. The blocks
# are eliminated group by group (modified Gram-Schmidt), for all groups at once. What is left are
# equations of the exponents alone. So the work grows with the rows, not with the groups.

DEPENDENT = 1e-12  # share of a column's length that the columns before it have to leave
UNTOLD = 1e-13  # of a singular value of columns of length 1: rows tell nothing of its direction
UNTOLD_PART = 1e-6  # of a direction of length 1: a parameter that belongs to it
MIN_DAMPING = 1e-22  # of the squares of columns of length 1: what no row tells stays as it is


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
        lengths = np.sqrt((self.groups[..., :K] ** 2).sum(1))
        of_all = (self.groups[..., K:-1] ** 2).sum((0, 1)) + (self.shared[:, :-1] ** 2).sum(0)
        exponents = np.sqrt(of_all)
        return np.where(lengths > 0, lengths, 1.0), np.where(exponents > 0, exponents, 1.0)

    def descent(self) -> Array:
        """Return the direction of the coefficients ``[K, G]`` in which the error falls."""
        K = self.terms
        descent: Array = np.einsum("gjk,gj->kg", self.groups[..., :K], self.groups[..., -1])
        return descent

    def step(self, mu: float, stays: Array | None) -> tuple[Array, Array]:
        """Return the damped steps of coefficients ``[K, G]`` and of exponents ``[F]``.

        stays: the coefficients that do not move.
        """
        K, (lengths, exponents) = self.terms, self.lengths()
        F, damping = len(exponents), math.sqrt(max(mu, MIN_DAMPING))
        rows = self.groups.copy()
        rows[..., :K] /= lengths[:, None]
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
        return (c / lengths).T, change / exponents

    def leverage(self) -> tuple[Array, Array]:
        """Return the leverages of the rows ``[N]``, and the variances of the exponents ``[F]``.

        A variance is that with the later exponents fixed, for errors of variance 1.
        """
        length = self.lengths()[1]
        Q, R = np.linalg.qr(self.remainder)
        size = np.abs(np.diag(R)) / length
        h = (self.orthonormal**2).sum(1) + (Q[:, size > 1e-10] ** 2).sum(1)
        return h, _variances(size, length)

    def covariance(self) -> Array:
        """Return the covariances ``[G, K + F, K + F]``, for errors of variance 1.

        They are those of a group's coefficients and the exponents, infinite where nothing tells
        them.
        """
        K, (lengths, exponents) = self.terms, self.lengths()
        outer, untold = inverted(self.shared[:, :-1] / exponents)
        inner, untold_of_group = inverted(self.groups[..., :K] / lengths[:, None])

        def of_all(columns: Array) -> Array:
            """What a change of the exponents ``[F, n]`` changes in each group ``[G, K + F, n]``."""
            shared = np.broadcast_to(columns, (len(lengths), *columns.shape))
            return np.concatenate(
                [-inner @ (self.groups[..., K:-1] / exponents) @ columns, shared], 1
            )

        rows, directions = of_all(outer), of_all(untold)
        C = rows @ rows.transpose(0, 2, 1)
        C[:, :K, :K] += inner @ inner.transpose(0, 2, 1)
        size = np.concatenate(
            [lengths, np.broadcast_to(exponents, (len(lengths), len(exponents)))], 1
        )
        C = without_untold(C / (size[:, :, None] * size[:, None]), directions)
        exponents_of_group = np.zeros((len(lengths), len(exponents), K))
        return without_untold(C, np.concatenate([untold_of_group, exponents_of_group], 1))


def inverted(R: Array) -> tuple[Array, Array]:
    """Return inverses of matrices ``[..., r, q]`` with columns of length 1, and what they miss.

    The latter are directions ``[..., q, q]`` that R makes 0; others are 0.
    """
    missing = max(R.shape[-1] - R.shape[-2], 0)
    R = np.concatenate([R, np.zeros((*R.shape[:-2], missing, R.shape[-1]))], -2)
    U, values, right = np.linalg.svd(R, full_matrices=False)
    told, right = (values > UNTOLD)[..., None, :], right.swapaxes(-1, -2)
    sizes = np.where(told, values[..., None, :], math.inf)
    return right / sizes @ U.swapaxes(-1, -2), np.where(told, 0.0, right)


def without_untold(C: Array, directions: Array) -> Array:
    """Return covariances ``[..., q, q]``, infinite for what is a part of these directions."""
    untold = (np.abs(directions) > UNTOLD_PART).any(-1)
    return np.where(untold[..., None] | untold[..., None, :], math.inf, C)


# ---- least squares and the criterion -------------------------------------------------------------

Data = Problem | AllRows

UNTOLD_NATS = 6.0  # of a free exponent with an error wider than its range: more than a simple one
SOLVED_ERROR = 1e-14  # of the target's deviation: no step makes smaller errors smaller
OWN_ROW = 1e-3  # of a leverage less than 1: an equation passes through such a row
ROUNDED = 1e-12  # of a leverage less than 1, by rounding
MORE_ROUNDING = 1e4  # of `Problem.exact`'s root: what float64 may lose where terms cancel
LARGEST_ROUNDING = 4.0  # over the root mean square of errors of rounding
SMALLEST_LIMIT = 1e-12  # of the target's deviation: errors below are no outliers


@dataclass(frozen=True)
class Sum:
    """A sum of K products of powers, with the errors of its last fit."""

    u: Array  # [K, m]: exponents of the effective inputs
    parity: Array  # [K, m]: 1 where an exponent is odd, for the sign
    free: Array  # [K, m]: the exponents that are parameters of the fit
    c: Array  # [K]: coefficients; [K, G] of groups
    rss: float = math.inf  # the loss: the sum of squared residuals, or a robust one
    press: float = math.inf  # the same of leave-one-out errors
    cost: float = math.inf  # the criterion

    @cached_property
    def parameters(self) -> int:
        return int(self.c.size) + int(self.free.sum())

    @property
    def is_simple(self) -> bool:
        """Whether all exponents are whole or halves, and none is a parameter."""
        return not self.free.any() and bool((self.u * 2 % 1 == 0).all())

    def take(self, stay: Array) -> Sum:
        """Return the sum of some of its terms, not fitted."""
        return Sum(self.u[stay], self.parity[stay], self.free[stay], self.c[stay])

    def repeats_a_term(self, below: int, mixed: Array) -> bool:
        """Return whether two terms are equal, or one below the line is the 1 of the denominator.

        below: how many terms, the last ones, are in the denominator. mixed: the columns of both
        signs ``[m]``, where a parity makes a difference.
        """
        both = np.column_stack([self.u, self.parity * mixed])
        rows = [*map(tuple, (both.round(6) + 0.0).tolist())]
        above, zero = len(rows) - below, (0.0,) * (2 * self.u.shape[1])
        return len({*rows[:above]}) < above or len({*rows[above:], zero}) <= below

    def has_form_of(self, other: Sum) -> bool:
        """Return whether the two differ in their parameters only."""
        if self.u.shape != other.u.shape or (self.free != other.free).any():
            return False
        return bool((self.u == other.u)[~self.free].all())


@dataclass(frozen=True)
class Rules:
    """Which exponents are simple, and what is minimised."""

    exponents: str = "rational"  # or "integer", or "real": none is simple
    max_denominator: int = 4  # the largest denominator of a fraction
    loss: str = "squared"  # or "huber", or "soft_l1"

    @cached_property
    def denominators(self) -> range:
        return range(1, (self.max_denominator if self.exponents == "rational" else 1) + 1)

    @property
    def are_whole(self) -> bool:
        """Whether all exponents are integers."""
        return self.exponents != "real" and len(self.denominators) == 1


def misfit(problem: Data, rss: float) -> float:
    """Minus twice the logarithm of the likelihood, up to a constant."""
    if problem.noise is not None:
        return rss / problem.noise**2
    N = problem.rows
    return N * math.log(max(rss / N, problem.exact / N, 1e-300))


def freedom(problem: Data, variances: Iterable[float], press: float) -> list[float]:
    """The nats that each free exponent costs, by Laplace's method.

    These are the logarithm of the width 2 `BOUND` over the standard error. variances: of the
    exponents for errors of variance 1.
    """
    if problem.noise is not None:
        noise = problem.noise**2
    else:
        noise = max(press / problem.rows, problem.exact / problem.rows, 1e-300)
    inputs, width = factor_nats(problem.exponents.inputs, signs=2), math.log(2 * BOUND)
    nats = []
    for variance in variances:
        error = math.sqrt(2 * math.pi * max(float(variance) * noise, 1e-300))
        min_nats = 1.0 if math.log(error) < width else UNTOLD_NATS
        nats.append(inputs + max(min_nats, width - math.log(error)))
    return nats


def criterion(problem: Data, candidate: Sum, press: float, variances: Array) -> float:
    """The criterion of a sum with its sum of squared leave-one-out errors.

    variances: of the free exponents for errors of variance 1, each with those before it fixed.
    """
    N, inputs = problem.rows, problem.exponents.inputs
    fixed = candidate.u[~candidate.free]
    described = sum(map(exponent_nats, fixed.tolist(), itertools.repeat(inputs)))
    described += sum(freedom(problem, variances, press))
    chosen = candidate.parameters + int(
        ((np.abs(candidate.u) > ZERO) & ~candidate.free & ~problem.coded).sum()
    )
    correction = 2 * chosen * (chosen + 1) / max(N - chosen - 1, 0.1)
    # What an output power costs, or a function, and a denominator: with one term above, as the
    # power -1.
    above = len(candidate.c) - problem.below
    forms = int(problem.power != 1 or problem.function is not None)
    forms += (problem.below > 0) * min(above, 2)
    of_coefficient = math.log(N)
    if problem.group is not None:  # a group's coefficients are known by its rows
        of_coefficient = float(np.log(np.bincount(problem.group)).sum())
    penalty = len(candidate.c) * of_coefficient + forms * (6.0 + math.log(N))
    return misfit(problem, press) + penalty + 2 * described + correction


# ---- least squares -------------------------------------------------------------------------------


def jacobian(problem: Problem, candidate: Sum, P: Array, root: Array | None = None) -> Array:
    """Derivatives of the weighted prediction for c and the free exponents ``[N, K + free]``.

    Those for c are for the coefficients of the row's group. P: the terms ``[N, K]``. root: factors
    of the rows ``[N]``.
    """
    k, i = np.nonzero(candidate.free)
    K = len(candidate.c)
    J = np.empty((len(P), K + len(k)))
    J[:, :K] = P
    c = of_rows(candidate.c, problem.group)[..., k]
    np.multiply(P[:, k] * c, problem.logs[:, i], out=J[:, K:])
    derivative, p = problem.weight, problem.power
    # A ratio is linear in the coefficients of its numerator.
    above = len(candidate.c) - problem.below
    if problem.function is not None:
        sums = problem.total(P[:, :above], candidate.c[:above])
        derivative = derivative * problem.steepness(problem.function, sums)
    elif problem.factor:
        sums = problem.total(P[:, :above], candidate.c[:above])
        derivative = derivative / (p * np.maximum(sums, 1e-300))
    elif p != 1:
        sums = np.abs(problem.total(P[:, :above], candidate.c[:above]))
        sums = np.maximum(sums, 1e-300)
        derivative = derivative * sums ** (1 / p - 1) / abs(p) * math.copysign(1, p)
    with np.errstate(over="ignore", invalid="ignore"):
        J *= derivative[:, None]
    return J if root is None else J * root[:, None]


def derivatives(
    problem: Data, candidate: Sum, P: Array | None = None, root: Array | None = None
) -> Iterable[tuple[slice, Array]]:
    """`jacobian` block after block. P: the terms, where `Problem.predict` gave them."""
    if isinstance(problem, Problem):
        P = problem.predict(candidate.u, candidate.parity, candidate.c)[2] if P is None else P
        yield slice(0, problem.rows), jacobian(problem, candidate, P, root)
        return
    for rows, part in problem.blocks():
        P = part.predict(candidate.u, candidate.parity, candidate.c)[2]
        yield rows, jacobian(part, candidate, P, None if root is None else root[rows])


def pattern_of(problem: Data, candidate: Sum, X: Array) -> float:
    """Return how alike the weighted residuals of few rows are along a column: see `pattern`.

    X: the columns. It is 0 of many rows, and of groups.
    """
    if problem.group is not None or problem.rows >= FEW_NEIGHBOURS:
        return 0.0
    problem = problem.block if isinstance(problem, AllRows) else problem
    with np.errstate(all="ignore"):  # what is not finite tells nothing
        _, residuals, P = problem.predict(candidate.u, candidate.parity, candidate.c)
        J = jacobian(problem, candidate, P)
        lost = rounding(problem, candidate, slice(None), J)
    if not (np.abs(residuals) > lost).any():  # large terms cancel
        return 0.0
    return pattern(X, residuals, J)


def triangle(J: Array) -> Array:
    """R of J = Q R; not a number where J is not finite."""
    if not np.isfinite(J).all():
        return np.full((J.shape[1],) * 2, np.nan)
    R: Array = np.linalg.qr(J, mode="r")
    return R


def lengths(R: Array) -> Array:
    """The lengths of the columns; 1 for a column of zeros."""
    with np.errstate(over="ignore"):
        length = np.sqrt((R**2).sum(0))
    length = np.where(np.isinf(length), np.hypot.reduce(R), length)  # squares may be no numbers
    return np.where(length > 0, length, 1.0)


def robust_scale(r: Array) -> float:
    """A robust standard deviation of residuals."""
    return 1.4826 * float(np.median(np.abs(r)))


def loss_roots(problem: Data, r: Array, loss: str) -> tuple[float, Array | None]:
    """The loss's value as a sum of squares, and factors of the rows ``[N]``.

    Least squares of the rows times these factors have the loss's gradient; None: all are 1.
    """
    if loss == "squared":
        with np.errstate(over="ignore"):
            return float(r @ r), None
    smallest = SMALLEST_LIMIT * math.sqrt(problem.size / problem.rows)  # most errors may be 0
    limit = max(1.345 * robust_scale(r), smallest, 1e-150)  # whose square is a number
    with np.errstate(over="ignore", invalid="ignore"):
        t = np.abs(r) / limit
        if loss == "huber":
            value = np.where(t <= 1, t * t, 2 * t - 1)
            weight = 1 / np.maximum(t, 1)
        else:
            value, weight = 2 * (np.sqrt(1 + t * t) - 1), 1 / np.sqrt(1 + t * t)
        return float(value.sum()) * limit * limit, np.sqrt(weight) if len(weight) > 1 else None


def refit(problem: Data, candidate: Sum, loss: str = "squared", iterations: int = 20) -> Sum:
    """Levenberg-Marquardt for c and the free exponents in y itself, and the errors of the result.

    The errors are infinite if nothing is finite, if limits refuse the sum, and if it has a term in
    two parts: they are no sums of their own, and two coefficients could leave the bounds of one.
    """
    if isinstance(problem, AllRows) and problem.at_once:
        problem = problem.block
    candidate = _without_held(problem, candidate)
    k, i = np.nonzero(candidate.free)
    held = problem.held[i]
    low, high, limits = problem.low[i], problem.high[i], problem.limits
    candidate = replace(candidate, c=_within(problem, candidate.u, candidate.c))
    _, r, P = problem.predict(candidate.u, candidate.parity, candidate.c)
    rss, root = loss_roots(problem, r, loss)
    mu = 1e-4
    for _ in range(iterations):
        if not math.isfinite(rss) or rss <= SOLVED_ERROR**2 * problem.size:
            break
        equations = _equations(problem, candidate, P, r, root)
        if equations is None:
            break
        better, at_bounds = False, _at_bounds(problem, candidate, equations.descent())
        for _ in range(8):
            step, change = equations.step(mu, at_bounds)
            u, change = candidate.u.copy(), np.clip(change, -1, 1)
            change[held & (u[k, i] == 0)] = 0.0
            u[k, i] = np.clip(u[k, i] + change, low, high)
            trial = replace(candidate, u=u, c=_within(problem, u, candidate.c + step))
            _, r2, P2 = problem.predict(u, candidate.parity, trial.c)
            rss2, root2 = loss_roots(problem, r2, loss)
            if rss2 < rss:
                better = True
                break
            mu *= 10
        if not better:
            break
        gain = (rss - rss2) / rss
        candidate, r, P, rss, root, mu = trial, r2, P2, rss2, root2, mu / 10
        if gain < 1e-10:
            break
    refused = limits is not None and limits.refuses(candidate.u, candidate.c)
    if not math.isfinite(rss) or refused or candidate.repeats_a_term(problem.below, problem.mixed):
        return replace(candidate, rss=math.inf, press=math.inf, cost=math.inf)
    candidate = _without_held(problem, candidate)
    errors, variances = decisive_errors(problem, candidate, r, P, root)
    press = loss_roots(problem, errors, loss)[0]
    cost = criterion(problem, candidate, press, variances) if math.isfinite(press) else math.inf
    return replace(candidate, rss=rss, press=press, cost=cost)


def _bounds(problem: Data, limits: ScaledLimits, u: Array, c: Array) -> tuple[Array, Array]:
    """The bounds of coefficients c, ``[K]`` or ``[K, G]``."""
    low, high = limits.bounds(u, problem.below)
    return (low, high) if c.ndim == 1 else (low[:, None], high[:, None])


def _within(problem: Data, u: Array, c: Array) -> Array:
    """The coefficients within their bounds."""
    if problem.limits is None:
        return c
    return np.clip(c, *_bounds(problem, problem.limits, u, c))


def _at_bounds(problem: Data, candidate: Sum, descent: Array) -> Array | None:
    """The coefficients that stay, as their step would leave their bounds.

    descent: the direction in which the error falls.
    """
    if problem.limits is None:
        return None
    low, high = _bounds(problem, problem.limits, candidate.u, candidate.c)
    stays: Array = ((candidate.c <= low) & (descent <= 0)) | (
        (candidate.c >= high) & (descent >= 0)
    )
    return stays


def _without_held(problem: Data, candidate: Sum) -> Sum:
    """The sum whose exponents of 0 are no parameters where they have to stay: see `Zeros`.

    They are even.
    """
    stays = candidate.free & (candidate.u == 0) & problem.held
    if not stays.any():
        return candidate
    return replace(
        candidate, free=candidate.free & ~stays, parity=np.where(stays, 0.0, candidate.parity)
    )


def _equations(
    problem: Data, candidate: Sum, P: Array | None, r: Array, root: Array | None
) -> Dense | Arrow | None:
    """The equations of the step of least squares, or None where they are not finite."""
    target = r if root is None else r * root
    if problem.group is not None:
        J = _of_block(problem, candidate, P, root)
        finite = np.isfinite(J).all() and np.isfinite(target).all()
        return Arrow.of(J, len(candidate.c), target, problem.group) if finite else None
    factors: list[Array] = []
    for rows, J in derivatives(problem, candidate, P, root):
        A = np.column_stack([J, target[rows]])
        if not np.isfinite(A).all():
            return None
        factors.append(np.linalg.qr(A, mode="r"))
    R = factors[0] if len(factors) == 1 else triangle(np.concatenate(factors))
    q = R.shape[1] - 1
    R, b = R[:q, :q], R[:q, q]
    if not np.isfinite(R).all():
        return None
    length = lengths(R)
    return Dense(R / length, b, length, len(candidate.c))


def _of_block(problem: Data, candidate: Sum, P: Array | None, root: Array | None) -> Array:
    """`jacobian` of rows that are one block."""
    [(_, J)] = derivatives(problem, candidate, P, root)
    return J


def may_err(problem: Data, candidate: Sum) -> bool:
    """Return whether an equation has fewer parameters than there are rows that differ.

    With as many it may pass through all of them. Where all columns have two values, every function
    of them is such an equation, and rows that are there again tell its errors.
    """
    again = problem.coded.all() and problem.rows > problem.different
    return candidate.parameters < problem.different + again


def is_exact(problem: Data, candidate: Sum) -> bool:
    """Return whether the residuals are those of rounding, where there are rows to tell it."""
    is_far = not candidate.rss <= MORE_ROUNDING**2 * problem.exact
    if is_far or not may_err(problem, candidate):
        return False
    if candidate.rss <= problem.exact:
        return True
    with np.errstate(all="ignore"):  # what is not finite is not exact
        r, P = problem.predict(candidate.u, candidate.parity, candidate.c)[1:]
        return are_rounding(problem, candidate, r, P)


def are_rounding(
    problem: Data, candidate: Sum, r: Array, P: Array | None, root: Array | None = None
) -> bool:
    """Return whether the weighted residuals are those of rounding.

    Near a pole, and where large terms cancel, float64 loses more than in other rows.
    """
    squares = float(r @ r)
    if squares <= problem.exact:
        return True
    if not squares <= MORE_ROUNDING**2 * problem.exact:
        return False
    sizes = 1.0 if problem.factor else np.abs(problem.target)
    limit = LARGEST_ROUNDING * EXACT_ERROR * math.sqrt(problem.size / problem.rows)
    limit = limit + problem.digits * problem.weight * sizes
    return all(
        bool((np.abs(r[rows]) <= limit[rows] + rounding(problem, candidate, rows, J)).all())
        for rows, J in derivatives(problem, candidate, P, root)
    )


def rounding(problem: Data, candidate: Sum, rows: slice, J: Array) -> Array:
    """Return what float64 rounds of the weighted terms in some rows. J: their `jacobian`."""
    group = None if problem.group is None else problem.group[rows]
    terms = np.abs(J[:, : len(candidate.c)] * of_rows(candidate.c, group))
    sizes: Array = FLOAT64_ROUNDING * terms.sum(1)
    return sizes


def left_out(
    problem: Data, candidate: Sum, r: Array, P: Array | None = None, root: Array | None = None
) -> tuple[Array, Array]:
    """The weighted leave-one-out errors, to first order, and the variances for `criterion`.

    r: the weighted residuals. The errors are infinite where there are too few rows. An equation
    that passes through a row has no error there; without the row it would be another one, but
    hardly worse than a constant. Rounding is no error that a leverage makes larger.
    """
    told = _leverages(problem, candidate, P, root) if may_err(problem, candidate) else None
    if told is None:
        return np.full(problem.rows, math.inf), np.empty(0)
    h, variances = told
    if are_rounding(problem, candidate, r, P, root):
        return r * min(1.0, math.sqrt(problem.exact / max(float(r @ r), 1e-300))), variances
    errors, passed = r / np.maximum(1 - h, OWN_ROW), h > 1 - OWN_ROW
    if passed.any():
        sizes = np.abs(r[passed]) / np.maximum(1 - h[passed], ROUNDED)
        errors[passed] = np.copysign(np.minimum(sizes, np.abs(problem.rest[passed])), r[passed])
    return errors, variances


def decisive_errors(
    problem: Data, candidate: Sum, r: Array, P: Array | None = None, root: Array | None = None
) -> tuple[Array, Array]:
    """The errors that decide, and the variances: those of `left_out`, unless there are groups.

    Of groups they are ``r / sqrt(1 - h)``, which have the same variance in all rows. A group has
    few rows, and single ones with a leverage near 1 would decide with their leave-one-out errors.
    """
    errors, variances = left_out(problem, candidate, r, P, root)
    if problem.group is None or problem.group[-1] == 0:
        return errors, variances
    with np.errstate(invalid="ignore"):
        return np.sqrt(r * errors), variances


def _leverages(
    problem: Data, candidate: Sum, P: Array | None, root: Array | None
) -> tuple[Array, Array] | None:
    """The leverages ``[N]``, and the variances; None where derivatives are not finite."""
    K = len(candidate.c)
    if problem.group is not None:
        J = _of_block(problem, candidate, P, root)
        if not np.isfinite(J).all():
            return None
        return Arrow.of(J, K, np.zeros(len(J)), problem.group).leverage()
    single = isinstance(problem, Problem)
    parts = list(derivatives(problem, candidate, P, root)) if single else []
    factors = [triangle(J) for _, J in parts or derivatives(problem, candidate, P, root)]
    stacked = np.concatenate(factors)
    if not np.isfinite(stacked).all():
        return None
    inner, R = np.linalg.qr(stacked)
    length = lengths(R)
    size = np.abs(np.diag(R)) / length
    basis, h, begin = inner[:, size > 1e-10], np.empty(problem.rows), 0
    # Blocks are computed again: memory for all J and Q would grow with the rows.
    blocks = parts or derivatives(problem, candidate, P, root)
    for (rows, J), factor in zip(blocks, factors, strict=True):
        Q = np.linalg.qr(J)[0]
        h[rows] = ((Q @ basis[begin : begin + len(factor)]) ** 2).sum(1)
        begin += len(factor)
    # R_jj**2 is the part of a column orthogonal to those before it: one over its variance with the
    # later ones fixed.
    return h, _variances(size[K:], length[K:])


def _variances(size: Array, length: Array) -> Array:
    """``1 / (size * length)**2``, infinite where a share of the length is rounding."""
    with np.errstate(over="ignore", divide="ignore"):
        variances: Array = 1 / (np.where(size > DEPENDENT, size, 0.0) * length) ** 2
    return variances


def _constants(problem: Data, candidate: Sum) -> Array:
    """The coefficients whose bounds are one number: their indices."""
    if problem.limits is None:
        return np.zeros(0, dtype=int)
    limits = problem.limits.of_terms(candidate.u, candidate.parity, problem.below)
    return np.flatnonzero(limits.low == limits.high)


def covariance(problem: Data, candidate: Sum) -> Array:
    """``(J^T J)^-1`` of c and the free exponents: the covariance over the errors' variance.

    Of groups it is ``[G, K + free, K + free]``. It is 0 for coefficients that have one value, and
    infinite for parameters of which the rows tell combinations alone.
    """
    constants = _constants(problem, candidate)
    if problem.group is not None:
        J = _of_block(problem, candidate, None, None)
        J[:, constants] = 0.0
        C = Arrow.of(J, len(candidate.c), np.zeros(len(J)), problem.group).covariance()
    else:
        R = triangle(np.concatenate([triangle(J) for _, J in derivatives(problem, candidate)]))
        if not np.isfinite(R).all():
            return np.full((R.shape[1],) * 2, math.inf)
        R[:, constants] = 0.0
        length = lengths(R)
        inverse, untold = inverted(R / length)
        with np.errstate(over="ignore"):
            C = without_untold(inverse @ inverse.T / np.outer(length, length), untold)
    C[..., constants, :] = C[..., constants] = 0.0
    return C


# ---- simple exponents ----------------------------------------------------------------------------
# Simple exponents of one sum of products, where the criterion falls.

STEP = 0.4  # from an exponent to those that are tried in its place
LOST = 1e-10  # share of a variance that is rounding: the other exponents determine this one


def simple_near(problem: Data, rules: Rules, value: float, i: int, parity: float) -> list[float]:
    """The simple exponents near the value of input i, the nearest of each denominator."""
    if problem.mixed[i]:
        odd = 2 * round((value - parity) / 2) + parity
        if not problem.low[i] <= odd <= problem.high[i]:
            odd -= math.copysign(2, odd)
        values = [float(odd)] + [0.0] * int(parity == 0)
    elif problem.signed[i]:
        values = [float(round(value)), 0.0]
    else:
        values = [round(value * q) / q for q in rules.denominators] + [0.0] * int(abs(value) < 1)
    return [o for o in dict.fromkeys(values) if problem.low[i] <= o <= problem.high[i]]


def simplified(problem: Data, candidate: Sum, rules: Rules) -> Sum:
    """The sum with simple exponents where this lowers the criterion.

    Inputs of both signs always have integer exponents.
    """
    candidate = refit(problem, _fewer_than_rows(problem, candidate), rules.loss)
    forced = problem.signed[None, :] & candidate.free
    if forced.any():
        u = candidate.u.copy()
        for k, i in np.argwhere(forced):
            parity = candidate.parity[k, i]
            u[k, i] = (simple_near(problem, rules, u[k, i], i, parity) or [parity])[0]
        candidate = refit(
            problem, replace(candidate, u=u, free=candidate.free & ~forced), rules.loss
        )
    if rules.exponents == "real" or not math.isfinite(candidate.rss):
        return candidate
    best = candidate
    for q in rules.denominators:  # all exponents together
        u = np.clip(np.round(candidate.u * q) / q, problem.low, problem.high)
        near = candidate.free & (np.abs(u - candidate.u) < 0.3 / q)
        rounded = replace(candidate, u=np.where(near, u, candidate.u), free=candidate.free & ~near)
        rounded = refit(problem, rounded, rules.loss, 8)
        best = rounded if rounded.cost < best.cost else best
    for _ in range(4):
        plan = _plan(problem, best, rules)
        while plan:
            trial = refit(problem, _with(best, plan), rules.loss, 10)
            if trial.cost < best.cost:
                break
            plan = plan[: len(plan) // 2]
        if not plan:
            break
        best = trial
    if rules.exponents == "integer" and best.free.any():
        u = np.clip(np.where(best.free, np.round(best.u), best.u), problem.low, problem.high)
        best = refit(problem, replace(best, u=u, free=np.zeros_like(best.free)), rules.loss)
    return best


def reconsidered(problem: Data, candidate: Sum, rules: Rules) -> Sum:
    """The sum, with other exponents where these rows tell them from the simple ones.

    The rows are more than those that chose the exponents.
    """
    free = candidate.free | ((np.abs(candidate.u) > ZERO) & ~problem.signed)
    free[: problem.fixed] = False
    if rules.exponents == "integer" or (free == candidate.free).all():
        return candidate
    freed = refit(problem, replace(candidate, free=free), rules.loss, 6)
    if not math.isfinite(freed.cost):
        return candidate
    rounded = _with(freed, _plan(problem, freed, rules))
    u, free = rounded.u, rounded.free
    unchanged = (free == candidate.free).all() and (u[~free] == candidate.u[~free]).all()
    rounded = candidate if unchanged else refit(problem, rounded, rules.loss)
    return min((candidate, freed, rounded), key=lambda fitted: fitted.cost)


def neighbours(problem: Data, candidate: Sum, rules: Rules) -> list[Sum]:
    """The sum with one exponent changed to a simple one nearby, for each exponent other than 0.

    Where nothing tells a free exponent, any is as good: the simplest are tried.
    """
    candidates = []
    untold = np.zeros(candidate.u.shape, dtype=bool)
    C = covariance(problem, candidate)
    untold[candidate.free] = np.isinf(
        C.reshape(-1, *C.shape[-2:])[0].diagonal()[len(candidate.c) :]
    )
    for k, i in np.argwhere(np.abs(candidate.u) > ZERO):
        if k < problem.fixed:
            continue
        value, parity = float(candidate.u[k, i]), float(candidate.parity[k, i])
        near = [0.0] if not (problem.mixed[i] and parity) else []
        near = [zero for zero in near if problem.low[i] <= zero <= problem.high[i]]
        for shift in (-STEP, 0.0, STEP):
            near += simple_near(problem, rules, value + shift, i, parity)
        for shift in (-2.0, -1.0, 1.0, 2.0) if untold[k, i] else ():
            near += simple_near(problem, rules, parity + shift, i, parity)
        for exponent in dict.fromkeys(near):
            if exponent != value or candidate.free[k, i]:
                candidates.append(
                    refit(problem, _with(candidate, [(k, i, exponent)]), rules.loss, 8)
                )
    return [neighbour for neighbour in candidates if math.isfinite(neighbour.cost)]


def _with(candidate: Sum, plan: list[tuple[int, int, float]]) -> Sum:
    """The sum with the exponents of a plan, which are no longer free."""
    u, free = candidate.u.copy(), candidate.free.copy()
    for k, i, exponent in plan:
        u[k, i], free[k, i] = exponent, False
    return replace(candidate, u=u, free=free)


def _fewer_than_rows(problem: Data, candidate: Sum) -> Sum:
    """The sum with fewer parameters than different rows: the smallest exponents become 0.

    With as many parameters every error is 0, and none can be estimated.
    """
    limit = max(0, problem.different - candidate.c.size - 1)
    if candidate.free.sum() <= limit:
        return candidate
    order = np.argsort(-np.abs(np.where(candidate.free, candidate.u, 0)), axis=None, kind="stable")
    free = np.zeros_like(candidate.free)
    free.flat[order[:limit]] = True
    free &= candidate.free
    zero = candidate.free & ~free
    nearest = np.clip(0.0, problem.low, problem.high)
    u, parity = np.where(zero, nearest, candidate.u), np.where(zero, 0.0, candidate.parity)
    return replace(candidate, u=u, parity=parity, free=free)


def _plan(problem: Data, candidate: Sum, rules: Rules) -> list[tuple[int, int, float]]:
    """Exponents ``(term, input, value)`` to set, in order, by a quadratic approximation.

    The squared error is approximated around its minimum: setting a parameter that is d from its
    value raises it by ``d**2 / C_jj``, and moves the others by their covariance with it.
    """
    k, i = np.nonzero(candidate.free)
    K, n = len(candidate.c), problem.exponents.inputs
    if not len(k):
        return []
    C = covariance(problem, candidate)[..., K:, K:]
    C = C if C.ndim == 2 else C[0]  # exponents are those of all groups
    untold = np.flatnonzero(np.isinf(np.diag(C)))
    if len(untold):  # any value is as good
        j = int(untold[0])
        parity = float(candidate.parity[k[j], i[j]])
        near = simple_near(problem, rules, float(candidate.u[k[j], i[j]]), int(i[j]), parity)
        return [(int(k[j]), int(i[j]), min(near, key=exponent_nats))] if near else []
    lost = LOST * np.diag(C)
    values, remaining, rss = candidate.u[k, i].copy(), list(range(len(k))), candidate.rss
    plan: list[tuple[int, int, float]] = []
    # Leave-one-out errors are taken to grow in proportion.
    growth = candidate.press / max(candidate.rss, 1e-300)
    while remaining := [j for j in remaining if C[j, j] > lost[j]]:
        best: tuple[float, int, float, float] | None = None
        nats = freedom(problem, [C[j, j] for j in remaining], rss * growth)
        for j, free in zip(remaining, nats, strict=True):
            parity = float(candidate.parity[k[j], i[j]])
            for exponent in simple_near(problem, rules, float(values[j]), int(i[j]), parity):
                error = rss + (values[j] - exponent) ** 2 / max(C[j, j], 1e-300)
                described = 2 * exponent_nats(exponent, n)
                price = misfit(problem, error * growth) - 2 * free + described
                if best is None or price < best[0]:
                    best = (price, j, exponent, error)
        if best is None or best[0] >= misfit(problem, rss * growth):
            break
        _, j, exponent, rss = best
        gain = C[:, j] / max(C[j, j], 1e-300)  # first: products of variances may overflow
        values = values + gain * (exponent - values[j])
        C = C - np.outer(gain, C[j])
        remaining.remove(j)
        plan.append((int(k[j]), int(i[j]), float(exponent)))
    return plan
