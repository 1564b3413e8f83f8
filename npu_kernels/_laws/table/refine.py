"""One sum of products: least squares in y itself, simple exponents, and the criterion that decides.

The criterion is the Bayesian information criterion, ``N log(RSS / N) + K log N`` for K
coefficients, plus twice the length, in nats, of a description of the exponents: to which inputs
they belong, how simple they are, and of a free one how precisely it is known (Laplace's method).
RSS is the sum of squared leave-one-out errors, ``r / (1 - h)`` with the leverage h of the
linearised model (Allen's PRESS), so that a term that helps only a few rows is not worth its cost.
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

from npu_kernels._laws.products.exponent_length import ZERO, exponent_nats, factor_nats
from npu_kernels._laws.products.limits import BOUND
from npu_kernels._laws.products.problem import BLOCK_ROWS, AllRows, Problem

Array = Any
Data = Problem | AllRows

EXACT_ERROR = 1e-9  # relative root mean square error below which data count as exact
SOLVED_ERROR = 1e-14  # the same error, below which no step makes it smaller
STEP = 0.4  # from an exponent to those that are tried in its place
LOST = 1e-10  # share of a variance that is rounding: the other exponents determine this one


@dataclass(frozen=True)
class Sum:
    """A sum of K products of powers, with the errors of its last fit."""

    u: Array  # [K, m]: exponents of the effective inputs
    parity: Array  # [K, m]: 1 where an exponent is odd, for the sign
    free: Array  # [K, m]: the exponents that are parameters of the fit
    c: Array  # [K]: coefficients
    rss: float = math.inf  # the loss: the sum of squared residuals, or a robust one
    press: float = math.inf  # the same of leave-one-out errors
    cost: float = math.inf  # the criterion

    @cached_property
    def parameters(self) -> int:
        return len(self.c) + int(self.free.sum())


@dataclass(frozen=True)
class Rules:
    """Which exponents are simple, and what is minimised."""

    exponents: str = "fractions"  # or "integers", or "real": none is simple
    max_denominator: int = 4  # the greatest denominator of a fraction
    loss: str = "squared"  # or "huber", or "soft_l1"

    @cached_property
    def denominators(self) -> range:
        return range(1, (self.max_denominator if self.exponents == "fractions" else 1) + 1)


def misfit(problem: Data, rss: float) -> float:
    """Minus twice the logarithm of the likelihood, up to a constant."""
    if problem.noise is not None:
        return rss / problem.noise**2
    N = problem.rows
    floor = EXACT_ERROR**2 * problem.size / N
    return N * math.log(max(rss / N, floor, 1e-300))


def freedom(problem: Data, variances: Iterable[float], press: float) -> list[float]:
    """The nats that each free exponent costs, by Laplace's method.

    These are the logarithm of the width 2 `BOUND` over the standard error. variances: of the
    exponents for errors of variance 1.
    """
    if problem.noise is not None:
        noise = problem.noise**2
    else:
        floor = EXACT_ERROR**2 * problem.size / problem.rows
        noise = max(press / problem.rows, floor, 1e-300)
    inputs, width = factor_nats(problem.exponents.inputs, signs=2), math.log(2 * BOUND)
    nats = []
    for variance in variances:
        error = math.sqrt(2 * math.pi * max(float(variance), 1e-300) * noise)
        nats.append(inputs + max(1.0, width - math.log(error)))
    return nats


def criterion(problem: Data, law: Sum, press: float, variances: Array) -> float:
    """The criterion of a sum with its sum of squared leave-one-out errors.

    variances: of the free exponents for errors of variance 1, each with those before it fixed.
    """
    N, inputs = problem.rows, problem.exponents.inputs
    fixed = law.u[~law.free]
    described = sum(map(exponent_nats, fixed.tolist(), itertools.repeat(inputs)))
    described += sum(freedom(problem, variances, press))
    chosen = law.parameters + int((np.abs(fixed) > ZERO).sum())
    correction = 2 * chosen * (chosen + 1) / max(N - chosen - 1, 0.1)
    # What an output power costs, or a function, and a denominator: with one term above, as the
    # power -1.
    above = len(law.c) - problem.below
    forms = int(problem.power != 1 or problem.function is not None)
    forms += (problem.below > 0) * min(above, 2)
    penalty = len(law.c) * math.log(N) + forms * (6.0 + math.log(N))
    return misfit(problem, press) + penalty + 2 * described + correction


# ---- least squares -------------------------------------------------------------------------------


def jacobian(problem: Problem, law: Sum, P: Array, root: Array | None = None) -> Array:
    """Derivatives of the weighted prediction for c and the free exponents ``[N, K + free]``.

    P: the terms ``[N, K]``. root: factors of the rows ``[N]``.
    """
    k, i = np.nonzero(law.free)
    K = len(law.c)
    J = np.empty((len(P), K + len(k)))
    J[:, :K] = P
    np.multiply(P[:, k] * law.c[k], problem.logs[:, i], out=J[:, K:])
    slope, p = problem.weight, problem.power
    above = len(law.c) - problem.below  # a ratio is linear in the coefficients of its numerator
    if problem.function is not None:
        sums = problem.with_addend(P[:, :above] @ law.c[:above])
        slope = slope * problem.steepness(problem.function, sums)
    elif problem.factor:
        sums = problem.with_addend(P[:, :above] @ law.c[:above])
        slope = slope / (p * np.maximum(sums, 1e-300))
    elif p != 1:
        sums = np.abs(problem.with_addend(P[:, :above] @ law.c[:above]))
        sums = np.maximum(sums, 1e-300)
        slope = slope * sums ** (1 / p - 1) / abs(p) * math.copysign(1, p)
    with np.errstate(over="ignore", invalid="ignore"):
        J *= slope[:, None]
    return J if root is None else J * root[:, None]


def derivatives(
    problem: Data, law: Sum, P: Array | None = None, root: Array | None = None
) -> Iterable[tuple[slice, Array]]:
    """`jacobian` block after block. P: the terms, where `Problem.predict` gave them."""
    if isinstance(problem, Problem):
        P = problem.predict(law.u, law.parity, law.c)[2] if P is None else P
        yield slice(0, problem.rows), jacobian(problem, law, P, root)
        return
    for rows, part in problem.blocks():
        P = part.predict(law.u, law.parity, law.c)[2]
        yield rows, jacobian(part, law, P, None if root is None else root[rows])


def triangle(J: Array) -> Array:
    """R of J = Q R; not a number where J is not finite."""
    if not np.isfinite(J).all():
        return np.full((J.shape[1],) * 2, np.nan)
    R: Array = np.linalg.qr(J, mode="r")
    return R


def lengths(R: Array) -> Array:
    """The lengths of the columns; 1 for a column of zeros."""
    length = np.sqrt((R**2).sum(0))
    return np.where(length > 0, length, 1.0)


def robust_scale(r: Array) -> float:
    """A robust standard deviation of residuals."""
    return 1.4826 * float(np.median(np.abs(r)))


def loss_roots(r: Array, loss: str) -> tuple[float, Array | None]:
    """The loss's value as a sum of squares, and factors of the rows ``[N]``.

    Least squares of the rows times these factors have the loss's gradient; None: all are 1.
    """
    if loss == "squared":
        return float(r @ r), None
    limit = 1.345 * robust_scale(r) or 1e-300
    with np.errstate(over="ignore", invalid="ignore"):
        t = np.abs(r) / limit
        if loss == "huber":
            value = np.where(t <= 1, t * t, 2 * t - 1)
            weight = 1 / np.maximum(t, 1)
        else:
            value, weight = 2 * (np.sqrt(1 + t * t) - 1), 1 / np.sqrt(1 + t * t)
        return float(value.sum()) * limit**2, np.sqrt(weight) if len(weight) > 1 else None


def refit(problem: Data, law: Sum, loss: str = "squared", iterations: int = 20) -> Sum:
    """Levenberg-Marquardt for c and the free exponents in y itself, and the errors of the result.

    The cost is infinite if nothing is finite.
    """
    if isinstance(problem, AllRows) and problem.rows <= BLOCK_ROWS:
        problem = problem.block
    K = len(law.c)
    law = _without_held(problem, law)
    k, i = np.nonzero(law.free)
    held = problem.held[i]
    low, high, eye = problem.low[i], problem.high[i], np.eye(K + len(k))
    zeros, limits = np.zeros(len(eye)), problem.limits
    if limits is not None:
        law = replace(law, c=np.clip(law.c, *limits.bounds(law.u, problem.below)))
    _, r, P = problem.predict(law.u, law.parity, law.c)
    rss, root = loss_roots(r, loss)
    mu = 1e-4
    for _ in range(iterations):
        if not math.isfinite(rss) or rss <= SOLVED_ERROR**2 * problem.size:
            break
        equations = _equations(problem, law, P, r, root)
        if equations is None:
            break
        R, b, length = equations
        better, at_bounds = False, _at_bounds(problem, law, R.T @ b)
        for _ in range(8):
            A, rhs = R, b
            if mu > 1e-9:
                A, rhs = np.concatenate([R, math.sqrt(mu) * eye]), np.concatenate([b, zeros])
            if at_bounds is not None:
                A = np.where(at_bounds, 0.0, A)
            step = np.linalg.lstsq(A, rhs, rcond=1e-13)[0] / length
            u = law.u.copy()
            change = np.clip(step[K:], -1, 1)
            change[held & (u[k, i] == 0)] = 0.0
            u[k, i] = np.clip(u[k, i] + change, low, high)
            c = law.c + step[:K]
            if limits is not None:
                c = np.clip(c, *limits.bounds(u, problem.below))
            trial = replace(law, u=u, c=c)
            _, r2, P2 = problem.predict(u, law.parity, trial.c)
            rss2, root2 = (float(r2 @ r2), None) if loss == "squared" else loss_roots(r2, loss)
            if rss2 < rss:
                better = True
                break
            mu *= 10
        if not better:
            break
        gain = (rss - rss2) / rss
        law, r, P, rss, root, mu = trial, r2, P2, rss2, root2, mu / 10
        if gain < 1e-10:
            break
    if not math.isfinite(rss) or (limits is not None and limits.refuses(law.u, law.c)):
        return replace(law, rss=math.inf, press=math.inf, cost=math.inf)
    law = _without_held(problem, law)
    errors, variances = left_out(problem, law, r, P, root)
    press = loss_roots(errors, loss)[0]
    cost = criterion(problem, law, press, variances) if math.isfinite(press) else math.inf
    return replace(law, rss=rss, press=press, cost=cost)


def _at_bounds(problem: Data, law: Sum, descent: Array) -> Array | None:
    """The parameters ``[K + free]`` that stay: coefficients whose step would leave their bounds.

    descent: the direction in which the error falls.
    """
    if problem.limits is None:
        return None
    low, high = problem.limits.bounds(law.u, problem.below)
    stays = np.zeros(len(descent), dtype=bool)
    down = descent[: len(law.c)]
    stays[: len(law.c)] = ((law.c <= low) & (down <= 0)) | ((law.c >= high) & (down >= 0))
    return stays


def _without_held(problem: Data, law: Sum) -> Sum:
    """The sum whose exponents of 0 are no parameters where they have to stay: see `Zeros`.

    They are even.
    """
    stays = law.free & (law.u == 0) & problem.held
    if not stays.any():
        return law
    return replace(law, free=law.free & ~stays, parity=np.where(stays, 0.0, law.parity))


def _equations(
    problem: Data, law: Sum, P: Array | None, r: Array, root: Array | None
) -> tuple[Array, Array, Array] | None:
    """R with columns of length 1, b and these lengths, or None where they are not finite.

    ``R (length * step) = b`` is the step of least squares.
    """
    target = r if root is None else r * root
    if isinstance(problem, Problem) and P is not None:
        parts: Iterable[Any] = [(slice(None), jacobian(problem, law, P, root))]
    else:
        parts = derivatives(problem, law, P, root)
    factors: list[Array] = []
    for rows, J in parts:
        A = np.column_stack([J, target[rows]])
        if not np.isfinite(A).all():
            return None
        factors.append(np.linalg.qr(A, mode="r"))
    R = factors[0] if len(factors) == 1 else triangle(np.concatenate(factors))
    q = R.shape[1] - 1
    R, b = R[:q, :q], R[:q, q]
    if not np.isfinite(R).all():
        return None
    length = np.sqrt((R**2).sum(0))
    length[length == 0] = 1.0
    return R / length, b, length


def left_out(
    problem: Data, law: Sum, r: Array, P: Array | None = None, root: Array | None = None
) -> tuple[Array, Array]:
    """The weighted leave-one-out errors, to first order, and the variances for `criterion`.

    r: the weighted residuals. The errors are infinite where there are too few rows.
    """
    K = len(law.c)
    unknown = np.full(problem.rows, math.inf), np.empty(0)
    if problem.rows <= law.parameters:
        return unknown
    parts: list[tuple[slice, Array]] = []
    if isinstance(problem, Problem) and P is not None:
        parts = [(slice(None), jacobian(problem, law, P, root))]
    factors = []
    for _, J in parts or derivatives(problem, law, P, root):
        factors.append(triangle(J))
    stacked = np.concatenate(factors)
    if not np.isfinite(stacked).all():
        return unknown
    inner, R = np.linalg.qr(stacked)
    length = lengths(R)
    size = np.abs(np.diag(R)) / length
    basis, h, begin = inner[:, size > 1e-10], np.empty(problem.rows), 0
    # Blocks are computed again: memory for all J and Q would grow with the rows.
    blocks = parts or derivatives(problem, law, P, root)
    for (rows, J), factor in zip(blocks, factors, strict=True):
        Q = np.linalg.qr(J)[0]
        h[rows] = ((Q @ basis[begin : begin + len(factor)]) ** 2).sum(1)
        begin += len(factor)
    # R_jj**2 is the part of a column orthogonal to those before it: one over its variance with the
    # later ones fixed.
    with np.errstate(over="ignore", divide="ignore"):
        variances = 1 / (np.maximum(size[K:], 1e-12) * length[K:]) ** 2
    return r / np.maximum(1 - h, 1e-3), variances


def covariance(problem: Data, law: Sum) -> Array:
    """``(J^T J)^-1`` of c and the free exponents: the covariance over the errors' variance."""
    R = triangle(np.concatenate([triangle(J) for _, J in derivatives(problem, law)]))
    length = lengths(R)
    inverse = np.linalg.pinv(R / length, rcond=1e-13)
    return inverse @ inverse.T / np.outer(length, length)


# ---- simple exponents ----------------------------------------------------------------------------


def options(problem: Data, rules: Rules, value: float, i: int, parity: float) -> list[float]:
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


def simplified(problem: Data, law: Sum, rules: Rules) -> Sum:
    """The sum with simple exponents where this lowers the criterion.

    Inputs of both signs always have whole exponents.
    """
    law = refit(problem, _fewer_than_rows(problem, law), rules.loss)
    forced = problem.signed[None, :] & law.free
    if forced.any():
        u = law.u.copy()
        for k, i in np.argwhere(forced):
            u[k, i] = (options(problem, rules, u[k, i], i, law.parity[k, i]) or law.parity[k, [i]])[
                0
            ]
        law = refit(problem, replace(law, u=u, free=law.free & ~forced), rules.loss)
    if rules.exponents == "real" or not math.isfinite(law.rss):
        return law
    best = law
    for q in rules.denominators:  # all exponents together
        u = np.clip(np.round(law.u * q) / q, problem.low, problem.high)
        near = law.free & (np.abs(u - law.u) < 0.3 / q)
        rounded = replace(law, u=np.where(near, u, law.u), free=law.free & ~near)
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
    if rules.exponents == "integers" and best.free.any():
        u = np.clip(np.where(best.free, np.round(best.u), best.u), problem.low, problem.high)
        best = refit(problem, replace(best, u=u, free=np.zeros_like(best.free)), rules.loss)
    return best


def reconsidered(problem: Data, law: Sum, rules: Rules) -> Sum:
    """The sum, with other exponents where these rows tell them from the simple ones.

    The rows are more than those that chose the exponents.
    """
    free = law.free | ((np.abs(law.u) > ZERO) & ~problem.signed)
    free[: problem.fixed] = False
    if rules.exponents == "integers" or (free == law.free).all():
        return law
    freed = refit(problem, replace(law, free=free), rules.loss, 6)
    if not math.isfinite(freed.cost):
        return law
    rounded = _with(freed, _plan(problem, freed, rules))
    u, free = rounded.u, rounded.free
    unchanged = (free == law.free).all() and (u[~free] == law.u[~free]).all()
    rounded = law if unchanged else refit(problem, rounded, rules.loss)
    return min((law, freed, rounded), key=lambda candidate: candidate.cost)


def neighbours(problem: Data, law: Sum, rules: Rules) -> list[Sum]:
    """The sum with one exponent changed to a simple one nearby, for each exponent other than 0."""
    laws = []
    for k, i in np.argwhere(np.abs(law.u) > ZERO):
        if k < problem.fixed:
            continue
        value, parity = float(law.u[k, i]), float(law.parity[k, i])
        near = [0.0] if not (problem.mixed[i] and parity) else []
        near = [zero for zero in near if problem.low[i] <= zero <= problem.high[i]]
        for shift in (-STEP, 0.0, STEP):
            near += options(problem, rules, value + shift, i, parity)
        for exponent in dict.fromkeys(near):
            if exponent != value or law.free[k, i]:
                laws.append(refit(problem, _with(law, [(k, i, exponent)]), rules.loss, 8))
    return [neighbour for neighbour in laws if math.isfinite(neighbour.cost)]


def _with(law: Sum, plan: list[tuple[int, int, float]]) -> Sum:
    """The sum with the exponents of a plan, which are no longer free."""
    u, free = law.u.copy(), law.free.copy()
    for k, i, exponent in plan:
        u[k, i], free[k, i] = exponent, False
    return replace(law, u=u, free=free)


def _fewer_than_rows(problem: Data, law: Sum) -> Sum:
    """The sum with fewer parameters than rows: the smallest exponents become 0.

    With as many parameters every error is 0, and none can be estimated.
    """
    limit = max(0, problem.rows - len(law.c) - 1)
    if law.free.sum() <= limit:
        return law
    order = np.argsort(-np.abs(np.where(law.free, law.u, 0)), axis=None, kind="stable")
    free = np.zeros_like(law.free)
    free.flat[order[:limit]] = True
    free &= law.free
    zero = law.free & ~free
    nearest = np.clip(0.0, problem.low, problem.high)
    u, parity = np.where(zero, nearest, law.u), np.where(zero, 0.0, law.parity)
    return replace(law, u=u, parity=parity, free=free)


def _plan(problem: Data, law: Sum, rules: Rules) -> list[tuple[int, int, float]]:
    """Exponents ``(term, input, value)`` to set, in order, by a quadratic approximation.

    The squared error is approximated around its minimum: setting a parameter that is d from its
    value raises it by ``d**2 / C_jj``, and moves the others by their covariance with it.
    """
    k, i = np.nonzero(law.free)
    K, n = len(law.c), problem.exponents.inputs
    if not len(k):
        return []
    C = covariance(problem, law)[K:, K:]
    lost = LOST * np.diag(C)
    values, remaining, rss = law.u[k, i].copy(), list(range(len(k))), law.rss
    plan: list[tuple[int, int, float]] = []
    growth = law.press / max(law.rss, 1e-300)  # leave-one-out errors, taken to grow in proportion
    while remaining := [j for j in remaining if C[j, j] > lost[j]]:
        best: tuple[float, int, float, float] | None = None
        nats = freedom(problem, [C[j, j] for j in remaining], rss * growth)
        for j, free in zip(remaining, nats, strict=True):
            parity = float(law.parity[k[j], i[j]])
            for exponent in options(problem, rules, float(values[j]), int(i[j]), parity):
                error = rss + (values[j] - exponent) ** 2 / max(C[j, j], 1e-300)
                described = 2 * exponent_nats(exponent, n)
                price = misfit(problem, error * growth) - 2 * free + described
                if best is None or price < best[0]:
                    best = (price, j, exponent, error)
        if best is None or best[0] >= misfit(problem, rss * growth):
            break
        _, j, exponent, rss = best
        values = values + C[:, j] / max(C[j, j], 1e-300) * (exponent - values[j])
        C = C - np.outer(C[:, j], C[j]) / max(C[j, j], 1e-300)
        remaining.remove(j)
        plan.append((int(k[j]), int(i[j]), float(exponent)))
    return plan
