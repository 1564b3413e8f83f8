"""Simple exponents of one sum of products, where the criterion falls."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from npu_kernels.equations._products.exponent_length import ZERO, exponent_nats
from npu_kernels.equations._table import refine
from npu_kernels.equations._table.refine import Data, Rules, Sum

Array = Any

STEP = 0.4  # from an exponent to those that are tried in its place
LOST = 1e-10  # share of a variance that is rounding: the other exponents determine this one


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
    law = refine.refit(problem, _fewer_than_rows(problem, law), rules.loss)
    forced = problem.signed[None, :] & law.free
    if forced.any():
        u = law.u.copy()
        for k, i in np.argwhere(forced):
            parity = law.parity[k, i]
            u[k, i] = (options(problem, rules, u[k, i], i, parity) or [parity])[0]
        law = refine.refit(problem, replace(law, u=u, free=law.free & ~forced), rules.loss)
    if rules.exponents == "real" or not math.isfinite(law.rss):
        return law
    best = law
    for q in rules.denominators:  # all exponents together
        u = np.clip(np.round(law.u * q) / q, problem.low, problem.high)
        near = law.free & (np.abs(u - law.u) < 0.3 / q)
        rounded = replace(law, u=np.where(near, u, law.u), free=law.free & ~near)
        rounded = refine.refit(problem, rounded, rules.loss, 8)
        best = rounded if rounded.cost < best.cost else best
    for _ in range(4):
        plan = _plan(problem, best, rules)
        while plan:
            trial = refine.refit(problem, _with(best, plan), rules.loss, 10)
            if trial.cost < best.cost:
                break
            plan = plan[: len(plan) // 2]
        if not plan:
            break
        best = trial
    if rules.exponents == "integers" and best.free.any():
        u = np.clip(np.where(best.free, np.round(best.u), best.u), problem.low, problem.high)
        best = refine.refit(problem, replace(best, u=u, free=np.zeros_like(best.free)), rules.loss)
    return best


def reconsidered(problem: Data, law: Sum, rules: Rules) -> Sum:
    """The sum, with other exponents where these rows tell them from the simple ones.

    The rows are more than those that chose the exponents.
    """
    free = law.free | ((np.abs(law.u) > ZERO) & ~problem.signed)
    free[: problem.fixed] = False
    if rules.exponents == "integers" or (free == law.free).all():
        return law
    freed = refine.refit(problem, replace(law, free=free), rules.loss, 6)
    if not math.isfinite(freed.cost):
        return law
    rounded = _with(freed, _plan(problem, freed, rules))
    u, free = rounded.u, rounded.free
    unchanged = (free == law.free).all() and (u[~free] == law.u[~free]).all()
    rounded = law if unchanged else refine.refit(problem, rounded, rules.loss)
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
                laws.append(refine.refit(problem, _with(law, [(k, i, exponent)]), rules.loss, 8))
    return [neighbour for neighbour in laws if math.isfinite(neighbour.cost)]


def _with(law: Sum, plan: list[tuple[int, int, float]]) -> Sum:
    """The sum with the exponents of a plan, which are no longer free."""
    u, free = law.u.copy(), law.free.copy()
    for k, i, exponent in plan:
        u[k, i], free[k, i] = exponent, False
    return replace(law, u=u, free=free)


def _fewer_than_rows(problem: Data, law: Sum) -> Sum:
    """The sum with fewer parameters than different rows: the smallest exponents become 0.

    With as many parameters every error is 0, and none can be estimated.
    """
    limit = max(0, problem.different - law.c.size - 1)
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
    C = refine.covariance(problem, law)[..., K:, K:]
    C = C if C.ndim == 2 else C[0]  # exponents are those of all groups
    lost = LOST * np.diag(C)
    values, remaining, rss = law.u[k, i].copy(), list(range(len(k))), law.rss
    plan: list[tuple[int, int, float]] = []
    growth = law.press / max(law.rss, 1e-300)  # leave-one-out errors, taken to grow in proportion
    while remaining := [j for j in remaining if C[j, j] > lost[j]]:
        best: tuple[float, int, float, float] | None = None
        nats = refine.freedom(problem, [C[j, j] for j in remaining], rss * growth)
        for j, free in zip(remaining, nats, strict=True):
            parity = float(law.parity[k[j], i[j]])
            for exponent in options(problem, rules, float(values[j]), int(i[j]), parity):
                error = rss + (values[j] - exponent) ** 2 / max(C[j, j], 1e-300)
                described = 2 * exponent_nats(exponent, n)
                price = refine.misfit(problem, error * growth) - 2 * free + described
                if best is None or price < best[0]:
                    best = (price, j, exponent, error)
        if best is None or best[0] >= refine.misfit(problem, rss * growth):
            break
        _, j, exponent, rss = best
        values = values + C[:, j] / max(C[j, j], 1e-300) * (exponent - values[j])
        C = C - np.outer(C[:, j], C[j]) / max(C[j, j], 1e-300)
        remaining.remove(j)
        plan.append((int(k[j]), int(i[j]), float(exponent)))
    return plan
