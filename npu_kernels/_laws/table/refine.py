"""One sum of products at a time: least squares in y itself, simple exponents, and the criterion that decides.

The criterion is the Bayesian information criterion, ``N log(RSS / N) + K log N`` for K coefficients, plus twice the
length, in nats, of a description of the exponents: to which inputs they belong, how simple they are, and of a free one
how precisely it is known (Laplace's method). RSS is the sum of squared leave-one-out errors, ``r / (1 - h)`` with the
leverage h of the linearised model (Allen's PRESS), so that a term that helps only a few rows is not worth its cost.
With few rows there is a correction as by Hurvich and Tsai (1989), ``2 q (q + 1) / (N - q - 1)``, where q counts the
coefficients
and all exponents other than 0: simple ones were chosen by the data as well.

All rows of large data are gone through in blocks, and the triangular factors of the blocks' derivatives are joined.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from npu_kernels._laws.products.description import ZERO, exponent_nats
from npu_kernels._laws.products.problem import BOUND, AllRows, Problem

Array = Any
Data = Problem | AllRows

EXACT = 1e-9  # relative root mean square error below which data count as exact
ROUNDING = 1e-14  # the same error below which no step makes it smaller
LOST = 1e-10  # share of a variance that is rounding: the other exponents determine this one


@dataclass(frozen=True)
class Sum:
    """Exponents ``u [K, m]`` of effective inputs, their parities, which of them are free, coefficients ``c [K]``."""

    u: Array
    parity: Array
    free: Array
    c: Array
    rss: float = math.inf
    press: float = math.inf
    cost: float = math.inf

    @property
    def parameters(self) -> int:
        return len(self.c) + int(self.free.sum())


@dataclass(frozen=True)
class Rules:
    """How exponents may be: "fractions" with denominators up to `most`, "integers", or "real". loss: of residuals."""

    exponents: str = "fractions"
    most: int = 4
    loss: str = "squared"

    @property
    def denominators(self) -> range:
        return range(1, (self.most if self.exponents == "fractions" else 1) + 1)


def misfit(problem: Data, rss: float) -> float:
    """Minus twice the logarithm of the likelihood, up to a constant."""
    if problem.noise is not None:
        return rss / problem.noise**2
    N = problem.rows
    floor = EXACT**2 * problem.size / N
    return N * math.log(max(rss / N, floor, 1e-300))


def penalty(problem: Data, terms: int) -> float:
    """What the coefficients and the output power cost."""
    N = problem.rows
    power = 0.0 if problem.power == 1 else 6.0 + math.log(N)
    return terms * math.log(N) + power


def freedom(problem: Data, variance: float, press: float) -> float:
    """Nats that a free exponent costs: its width of 2 `BOUND` against its standard error, as by Laplace's method.

    variance: of the exponent for errors of variance 1.
    """
    floor = EXACT**2 * problem.size / problem.rows
    noise = (
        problem.noise**2 if problem.noise is not None else max(press / problem.rows, floor, 1e-300)
    )
    error = math.sqrt(2 * math.pi * max(variance, 1e-300) * noise)
    return math.log(2 * problem.exponents.inputs) + max(1.0, math.log(2 * BOUND) - math.log(error))


def criterion(problem: Data, one: Sum, press: float, spread: Array) -> float:
    """The criterion of a sum with this sum of squared leave-one-out errors.

    spread: variances of the free exponents for errors of variance 1, each with those before it fixed.
    """
    fixed = one.u[~one.free]
    described = sum(exponent_nats(float(u), problem.exponents.inputs) for u in fixed)
    described += sum(freedom(problem, float(variance), press) for variance in spread)
    chosen = one.parameters + int((np.abs(fixed) > ZERO).sum())
    few = 2 * chosen * (chosen + 1) / max(problem.rows - chosen - 1, 0.1)
    return misfit(problem, press) + penalty(problem, len(one.c)) + 2 * described + few


# ---- least squares --------------------------------------------------------------------------------------------------


def residual(problem: Data, one: Sum) -> tuple[Array, Array | None]:
    """Weighted residuals ``[N]``, and the terms ``[N, K]`` of a `Problem`."""
    r, P = np.empty(problem.rows), None
    for rows, part in problem.blocks():
        P = part.terms(one.u, one.parity)
        r[rows] = part.weight * (part.target - part.value(P @ one.c))
    return r, P if isinstance(problem, Problem) else None


def jacobian(problem: Problem, one: Sum, P: Array) -> Array:
    """Derivatives of the weighted prediction for c and the free exponents ``[N, K + free]``."""
    k, i = np.nonzero(one.free)
    J = np.concatenate([P, P[:, k] * one.c[k] * problem.logs[:, i]], 1)
    slope = problem.weight
    if problem.power != 1:
        sums = np.maximum(np.abs(P @ one.c), 1e-300)
        slope = (
            slope
            * sums ** (1 / problem.power - 1)
            / abs(problem.power)
            * math.copysign(1, problem.power)
        )
    return J * slope[:, None]


def derivatives(
    problem: Data, one: Sum, P: Array | None = None, root: Array | None = None
) -> Iterator[tuple[slice, Array]]:
    """`jacobian`, each row times its `root` ``[N]``, block after block. P: the terms, where `residual` gives them."""
    for rows, part in problem.blocks():
        J = jacobian(part, one, part.terms(one.u, one.parity) if P is None else P)
        yield rows, J if root is None else J * root[rows, None]


def triangle(J: Array) -> Array:
    """R of J = Q R; not a number where J is not finite."""
    R: Array = (
        np.linalg.qr(J, mode="r") if np.isfinite(J).all() else np.full((J.shape[1],) * 2, np.nan)
    )
    return R


def lengths(R: Array) -> Array:
    """Of the columns; 1 for a column of zeros."""
    length = np.sqrt((R**2).sum(0))
    return np.where(length > 0, length, 1.0)


def robust_scale(r: Array) -> float:
    """A robust standard deviation of residuals."""
    return 1.4826 * float(np.median(np.abs(r)))


def loss_weights(r: Array, loss: str) -> tuple[float, Array]:
    """The loss's value as a sum of squares, and the factors of the rows with which least squares have its gradient."""
    if loss == "squared":
        return float(r @ r), np.ones(1)
    limit = 1.345 * robust_scale(r) or 1e-300
    t = np.abs(r) / limit
    if loss == "huber":
        value = np.where(t <= 1, t * t, 2 * t - 1)
        weight = 1 / np.maximum(t, 1)
    else:
        value, weight = 2 * (np.sqrt(1 + t * t) - 1), 1 / np.sqrt(1 + t * t)
    return float(value.sum()) * limit**2, weight


def refit(problem: Data, one: Sum, loss: str = "squared", iterations: int = 20) -> Sum:
    """Levenberg-Marquardt for c and the free exponents in y itself. cost is set; infinite if nothing is finite."""
    K = len(one.c)
    k, i = np.nonzero(one.free)
    r, P = residual(problem, one)
    rss, down = loss_weights(r, loss)
    mu = 1e-4
    for _ in range(iterations):
        if not math.isfinite(rss) or rss <= ROUNDING**2 * problem.size:
            break
        R, b = _equations(problem, one, P, r, down)
        if not np.isfinite(R).all():
            break
        length = lengths(R)
        better = False
        for _ in range(8):
            step = _damped(R / length, b, mu) / length
            u = one.u.copy()
            u[k, i] = np.clip(u[k, i] + np.clip(step[K:], -1, 1), problem.low[i], problem.high[i])
            tried = replace(one, u=u, c=one.c + step[:K])
            r2, P2 = residual(problem, tried)
            rss2, down2 = loss_weights(r2, loss)
            if rss2 < rss:
                better = True
                break
            mu *= 10
        if not better:
            break
        gain = (rss - rss2) / rss
        one, r, P, rss, down, mu = tried, r2, P2, rss2, down2, mu / 10
        if gain < 1e-10:
            break
    if not math.isfinite(rss):
        return replace(one, rss=rss, press=rss, cost=rss)
    press, spread = leave_one_out(problem, one, r, P, down, loss)
    cost = criterion(problem, one, press, spread) if math.isfinite(press) else math.inf
    return replace(one, rss=rss, press=press, cost=cost)


def _equations(
    problem: Data, one: Sum, P: Array | None, r: Array, down: Array
) -> tuple[Array, Array]:
    """R and b with which ``R step = b`` is the step of least squares."""
    root = _root(down)
    target = r if root is None else r * root
    parts = [
        triangle(np.column_stack([J, target[rows]]))
        for rows, J in derivatives(problem, one, P, root)
    ]
    R, q = parts[0] if len(parts) == 1 else triangle(np.concatenate(parts)), one.parameters
    return R[:q, :q], R[:q, q]


def _root(down: Array) -> Array | None:
    """Factors of the rows, None if all are 1."""
    return np.sqrt(down) if len(down) > 1 else None


def leave_one_out(
    problem: Data, one: Sum, r: Array, P: Array | None, down: Array, loss: str
) -> tuple[float, Array]:
    """The sum of squared leave-one-out errors, to first order (with a robust loss, of the loss of these errors), and
    the variances of the free exponents that `criterion` takes."""
    root, K = _root(down), len(one.c)
    if problem.rows <= one.parameters:
        return math.inf, np.empty(0)
    parts = [triangle(J) for _, J in derivatives(problem, one, P, root)]
    if not all(np.isfinite(R).all() for R in parts):
        return math.inf, np.empty(0)
    inner, R = np.linalg.qr(np.concatenate(parts))
    length = lengths(R)
    size = np.abs(np.diag(R)) / length
    known, h, at = inner[:, size > 1e-10], np.empty(problem.rows), 0
    for (rows, J), part in zip(derivatives(problem, one, P, root), parts, strict=True):
        Q = np.linalg.qr(J)[0]  # the same R again: memory for all Q would grow with the rows
        h[rows] = ((Q @ known[at : at + len(part)]) ** 2).sum(1)
        at += len(part)
    # R_jj**2 is the part of a column orthogonal to those before it: one over its variance with the later ones fixed.
    spread = 1 / (np.maximum(size[K:], 1e-12) * length[K:]) ** 2
    return loss_weights(r / np.maximum(1 - h, 1e-3), loss)[0], spread


def _damped(R: Array, b: Array, mu: float) -> Array:
    n = R.shape[1]
    A = np.concatenate([R, math.sqrt(mu) * np.eye(n)]) if mu > 1e-9 else R
    rhs = np.concatenate([b, np.zeros(n)]) if mu > 1e-9 else b
    found: Array = np.linalg.lstsq(A, rhs, rcond=1e-13)[0]
    return found


def covariance(problem: Data, one: Sum) -> Array:
    """``(J^T J)^-1`` of c and the free exponents: the covariance divided by the errors' variance."""
    R = triangle(np.concatenate([triangle(J) for _, J in derivatives(problem, one)]))
    length = lengths(R)
    inverse = np.linalg.pinv(R / length, rcond=1e-13)
    return inverse @ inverse.T / np.outer(length, length)


# ---- simple exponents -----------------------------------------------------------------------------------------------


def options(problem: Data, rules: Rules, value: float, i: int, parity: float) -> list[float]:
    """The simple exponents near a value, the nearest of each denominator."""
    if problem.mixed[i]:
        whole = 2 * round((value - parity) / 2) + parity
        found = [float(whole)] + ([0.0] if parity == 0 else [])
    elif problem.signed[i]:
        found = [float(round(value)), 0.0]
    else:
        found = [round(value * q) / q for q in rules.denominators] + (
            [0.0] if abs(value) < 1 else []
        )
    return [o for o in dict.fromkeys(found) if problem.low[i] <= o <= problem.high[i]]


def simplified(problem: Data, one: Sum, rules: Rules) -> Sum:
    """The sum with simple exponents where this lowers the criterion, and always whole ones for inputs of both signs."""
    one = refit(problem, _fewer_than_rows(problem, one), rules.loss)
    forced = problem.signed[None, :] & one.free
    if forced.any():
        u = one.u.copy()
        for k, i in np.argwhere(forced):
            u[k, i] = (options(problem, rules, u[k, i], i, one.parity[k, i]) or [0.0])[0]
        one = refit(problem, replace(one, u=u, free=one.free & ~forced), rules.loss)
    if rules.exponents == "real" or not math.isfinite(one.rss):
        return one
    rounds = [one]
    for q in rules.denominators:  # all together
        u = np.clip(np.round(one.u * q) / q, problem.low, problem.high)
        near = one.free & (np.abs(u - one.u) < 0.3 / q)
        rounds.append(
            refit(
                problem,
                replace(one, u=np.where(near, u, one.u), free=one.free & ~near),
                rules.loss,
                8,
            )
        )
    best = min(rounds, key=lambda s: s.cost)
    for _ in range(4):
        plan = _plan(problem, best, rules)
        while plan:
            u, free = best.u.copy(), best.free.copy()
            for k, i, o in plan:
                u[k, i], free[k, i] = o, False
            tried = refit(problem, replace(best, u=u, free=free), rules.loss, 10)
            if tried.cost < best.cost:
                break
            plan = plan[: len(plan) // 2]
        if not plan:
            break
        best = tried
    if rules.exponents == "integers" and best.free.any():
        u = np.clip(np.where(best.free, np.round(best.u), best.u), problem.low, problem.high)
        best = refit(problem, replace(best, u=u, free=np.zeros_like(best.free)), rules.loss)
    return best


def reconsidered(problem: Data, one: Sum, rules: Rules) -> Sum:
    """The sum, with other exponents where these rows, more than those that chose them, tell them from simple ones."""
    free = one.free | ((np.abs(one.u) > ZERO) & ~problem.signed)
    if rules.exponents == "integers" or (free == one.free).all():
        return one
    freed = refit(problem, replace(one, free=free), rules.loss, 6)
    if not math.isfinite(freed.cost):
        return one
    u, free = freed.u.copy(), freed.free.copy()
    for k, i, o in _plan(problem, freed, rules):
        u[k, i], free[k, i] = o, False
    same = (free == one.free).all() and (u[~free] == one.u[~free]).all()
    rounded = one if same else refit(problem, replace(freed, u=u, free=free), rules.loss)
    return min((one, freed, rounded), key=lambda s: s.cost)


def _fewer_than_rows(problem: Data, one: Sum) -> Sum:
    """With as many parameters as rows every error is 0, and none can be estimated: the smallest exponents become 0."""
    most = max(0, problem.rows - len(one.c) - 1)
    if one.free.sum() <= most:
        return one
    free = np.zeros_like(one.free)
    free.flat[
        np.argsort(-np.abs(np.where(one.free, one.u, 0)), axis=None, kind="stable")[:most]
    ] = True
    free &= one.free
    return replace(one, u=np.where(one.free & ~free, 0.0, one.u), free=free)


def _plan(problem: Data, one: Sum, rules: Rules) -> list[tuple[int, int, float]]:
    """Exponents to set, in order, by the quadratic approximation of the squared error around its minimum.

    Setting a parameter that is d from its value raises the squared error by ``d**2 / C_jj``, and moves the others by
    their covariance with it.
    """
    k, i = np.nonzero(one.free)
    K, n = len(one.c), problem.exponents.inputs
    if not len(k):
        return []
    C = covariance(problem, one)[K:, K:]
    least = LOST * np.diag(C)
    values, left, rss = one.u[k, i].copy(), list(range(len(k))), one.rss
    found: list[tuple[int, int, float]] = []
    larger = one.press / max(one.rss, 1e-300)  # leave-one-out errors, taken to grow in proportion
    while left := [j for j in left if C[j, j] > least[j]]:
        best: tuple[float, int, float, float] | None = None
        for j in left:
            known = 2 * freedom(problem, float(C[j, j]), rss * larger)
            for o in options(
                problem, rules, float(values[j]), int(i[j]), float(one.parity[k[j], i[j]])
            ):
                more = rss + (values[j] - o) ** 2 / max(C[j, j], 1e-300)
                price = misfit(problem, more * larger) - known + 2 * exponent_nats(o, n)
                if best is None or price < best[0]:
                    best = (price, j, o, more)
        if best is None or best[0] >= misfit(problem, rss * larger):
            break
        _, j, o, rss = best
        values = values + C[:, j] / max(C[j, j], 1e-300) * (o - values[j])
        C = C - np.outer(C[:, j], C[j]) / max(C[j, j], 1e-300)
        left.remove(j)
        found.append((int(k[j]), int(i[j]), float(o)))
    return found
