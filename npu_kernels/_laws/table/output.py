"""From the rows of one output to its equations: noise, search, the last fit to all rows, standard errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from npu_kernels._common.checks import is_number
from npu_kernels._laws.products.problem import AllRows, Columns, Problem, all_rows, blocks
from npu_kernels._laws.products.units import Exponents
from npu_kernels._laws.table import refine
from npu_kernels._laws.table.equation import Equation
from npu_kernels._laws.table.refine import Rules, Sum
from npu_kernels._laws.table.search import MORE_ROWS, POWERS, Found, Settings, is_exact, search
from npu_kernels._laws.table.work import Steps

Array = Any

FEW = 40  # rows below which none are held out
HELD_OUT = 0.2
MOST_HELD_OUT = 5000
NEAR = 20.0  # difference of the criteria on the rows of the search up to which all rows decide
CLOSE = 1.1  # ratio of squared errors: see `_reconsidered`
NOISE_FLOOR = 0.1  # of the median of |y|: below it, errors in proportion to y grow no smaller


@dataclass(frozen=True)
class Rows:
    """The data of one output: X ``[N, n]``, y ``[N]``, weights ``[N]``, and what is known beside them."""

    X: Array
    y: Array
    weight: Array
    names: tuple[str, ...]
    output: str
    exponents: Exponents
    noise: float | str | None


@dataclass(frozen=True)
class Laws:
    """The equations of one output, the fewest terms first, which one is best, the kind of noise, completeness."""

    equations: list[Equation]
    best: int
    noise: str
    complete: bool


def merged(X: Array, y: Array, weight: Array) -> tuple[Array, Array, Array]:
    """Rows without weight left out, and equal rows as one with the sum of their weights, in a fixed order.

    The result depends on which measurements there are, not on the order in which they came.
    """
    if not (weight > 0).all():
        keep = weight > 0
        X, y, weight = X[keep], y[keep], weight[keep]
    order = np.argsort(X[:, 0], kind="stable")
    if (np.diff(X[order, 0]) == 0).any():
        order = np.lexsort([*y.T[::-1], *X.T[::-1]])  # the last key is the first to decide
    X, y, weight = X[order], y[order], weight[order]
    new = np.ones(len(X), dtype=bool)
    for rows in blocks(len(X) - 1):
        one, two = rows, slice(rows.start + 1, rows.stop + 1)
        new[two] = (X[one] != X[two]).any(1) | (y[one] != y[two]).any(1)
    if new.all():
        return X, y, weight
    return X[new], y[new], np.bincount(np.cumsum(new) - 1, weights=weight)


def laws(rows: Rows, settings: Settings, powers: tuple[float, ...] | None) -> Laws:
    """The equations of one output. powers: None for all, as far as needed."""
    columns = Columns.of(rows.X)
    if not rows.y.any():
        rows = replace(rows, noise=None)
    root = np.sqrt(rows.weight / rows.weight.mean())
    known = float(rows.noise) if is_number(rows.noise) else None
    order = np.random.default_rng([settings.seed, 1]).permutation(len(rows.y))
    held = min(MOST_HELD_OUT, int(HELD_OUT * len(order))) if len(order) >= FEW else 0
    training = np.sort(order[held:])

    def whole(weight: Array, error: float = 0.0) -> Callable[[float], AllRows | None]:
        return lambda power: all_rows(columns, rows.y, weight, power, rows.exponents, known, error)

    some = POWERS if powers is None else powers
    noise = "known" if known is not None else "constant"
    if rows.noise == "relative":
        root, noise = root / sizes(rows.y), "relative"
    found = search(whole(root), training, settings, some[:1], Found())
    if rows.noise is None and found.complete and not found.exact():
        size = _predicted(found, whole(root))
        if size is not None:
            other, first = Found(), found
            try:
                other = search(whole(root / size), training, settings, some[:1], other)
            except KeyboardInterrupt:
                other.complete = False
            if _likelier(other, found):
                root, noise, found = root / size, "relative", other
            found.complete = first.complete and other.complete
    if found.complete:
        found = search(whole(root, _error(found)), training, settings, some[1:], found)
    if not found.sums:
        raise ValueError(
            f"NPURegressor: no sum of products of powers could be fitted to {rows.output}; output_powers other than 1 "
            "need a y of one sign without zeros, -1 one without zeros"
        )
    if not found.complete:  # what comes now is no part of the whole fit
        settings = replace(settings, steps=Steps())
    return _finished(rows, columns, root, known, found, np.sort(order[:held]), noise, settings)


def sizes(y: Array) -> Array:
    """``|y|``, raised near 0, with mean square 1."""
    size = np.maximum(np.abs(y), NOISE_FLOOR * np.median(np.abs(y)) or 1.0)
    return size / np.sqrt(np.mean(size**2))


def _error(found: Found) -> float:
    """The standard deviation of the errors of ``weight * y`` by the best sum."""
    best = found.best()
    return 0.0 if best is None else best[0].scale * math.sqrt(best[1].rss / best[0].rows)


def _predicted(found: Found, whole: Callable[[float], AllRows | None]) -> Array | None:
    """The sizes of the predictions of y by the best sum."""
    best = found.best()
    rows = None if best is None else whole(best[0].power)
    if best is None or rows is None:
        return None
    one = best[1]
    return sizes(
        np.concatenate([p.value(p.terms(one.u, one.parity) @ one.c) for _, p in rows.blocks()])
    )


def _likelier(other: Found, found: Found) -> bool:
    """Whether errors in proportion to y are likelier than equal ones: the criteria, brought to one unit of y."""
    one, two = found.best(), other.best()
    if one is None or two is None:
        return False
    (a, equal), (b, proportional) = one, two
    change = 2 * float(np.log(a.weight / b.weight).sum()) + 2 * a.rows * math.log(b.scale / a.scale)
    return proportional.cost + change < equal.cost - 2


def _finished(
    rows: Rows, columns: Columns, root: Array, noise: float | None, found: Found, held: Array, kind: str,
    settings: Settings,
) -> Laws:  # fmt: skip
    """The best sum of each number of terms, fitted to all rows."""
    fits = []
    for terms in sorted({terms for _, terms in found.sums}):
        same = [pair for (_, count), pair in found.sums.items() if count == terms]
        least = min(one.cost for _, one in same)
        tried: list[tuple[AllRows, Sum, Sum]] = []
        for training, one in same:
            if (
                one.cost > least + NEAR
            ):  # the rows that were held out may decide between powers that are near
                continue
            whole = all_rows(columns, rows.y, root, training.power, rows.exponents, noise, math.inf)
            assert whole is not None
            [fitted] = settings.steps.sums(
                whole.inputs, partial(_refitted, whole, one, settings.rules), 1
            )
            tried.append((whole, one, fitted if math.isfinite(fitted.rss) else one))
        fits.append(min(tried, key=lambda fit: fit[2].cost))
    if len(rows.y) > MORE_ROWS / (1 - HELD_OUT):
        fits = _reconsidered(fits, settings)
    equations = []
    for whole, one, fitted in fits:
        error = _held_out(whole, one, held) if len(held) else _relative(whole, fitted.press)
        equations.append(_equation(rows, columns, whole, fitted, error, len(held), kind))
    costs = [equation.bic for equation in equations]
    return Laws(equations, int(np.argmin(costs)), kind, found.complete)


def _reconsidered(
    fits: list[tuple[AllRows, Sum, Sum]], settings: Settings
) -> list[tuple[AllRows, Sum, Sum]]:
    """More rows than the search had may tell exponents from its fractions: in the best sum, and in those with fewer
    terms whose errors are nearly as small. Other ones cannot become the best: fractions cost the search only little.
    """
    whole, _, best = min(fits, key=lambda fit: fit[2].cost)
    if is_exact(whole, best):
        return fits
    found = []
    for whole, one, fitted in fits:
        if len(fitted.c) <= len(best.c) and fitted.press < CLOSE * best.press:
            [fitted] = settings.steps.sums(
                whole.inputs, partial(_other_exponents, whole, fitted, settings.rules), 1
            )
        found.append((whole, one, fitted))
    return found


def _refitted(whole: AllRows, one: Sum, rules: Rules) -> list[Sum]:
    return [refine.refit(whole, one, rules.loss)]


def _other_exponents(whole: AllRows, one: Sum, rules: Rules) -> list[Sum]:
    return [refine.reconsidered(whole, one, rules)]


def _relative(whole: Problem | AllRows, squares: float) -> float:
    return math.sqrt(squares / whole.size) if whole.size > 0 else math.sqrt(squares)


def _held_out(whole: AllRows, one: Sum, held: Array) -> float:
    rows = whole.take(held)
    r, _ = refine.residual(rows, one)
    return _relative(rows, float(r @ r))


def _equation(
    rows: Rows, columns: Columns, whole: AllRows, one: Sum, error: float, held: int, kind: str
) -> Equation:
    full = whole.exponents.full(one.u, whole.power)
    matrix, p = whole.exponents.matrix, whole.power
    with np.errstate(over="ignore", under="ignore"):
        shift = np.exp(-full @ columns.log_mean + p * math.log(whole.scale))
    factor = whole.outer_signs(one.u) * (whole.sign if abs(p) == 1 else 1.0)
    C = _covariance(whole, one)
    K = len(one.c)
    k, i = np.nonzero(one.free)
    # The constants in the units of the data: d log c = d c' / c' - sum_i (Z^T mean)_i d u_i.
    T = np.zeros((K, len(C)))
    T[np.arange(K), np.arange(K)] = 1.0
    T[k, K + np.arange(len(k))] = -one.c[k] * (matrix.T @ columns.log_mean)[i]
    coef_std = np.sqrt(np.maximum(np.diag(T @ C @ T.T), 0.0)) * shift
    spread = np.zeros_like(full)
    for term in range(K):
        mine = k == term
        Z = matrix[:, i[mine]]
        spread[term] = np.sqrt(np.maximum(np.diag(Z @ C[K:, K:][np.ix_(mine, mine)] @ Z.T), 0.0))
    free = (one.free @ (matrix != 0).T) > 0
    parts = (
        (p.terms(one.u, one.parity) * one.c * p.weight[:, None]) ** 2 for _, p in whole.blocks()
    )
    order = np.argsort(-np.sum([squares.sum(0) for squares in parts], axis=0), kind="stable")
    positive = tuple(bool(v) for v in ~columns.negative)
    return Equation(
        names=rows.names, output=rows.output, power=p, sign=whole.sign if abs(p) != 1 else 1.0,
        coef=(one.c * shift * factor)[order], coef_std=coef_std[order], exponents=full[order],
        exponents_std=spread[order], free=free[order], positive=positive,
        rms=_relative(whole, one.rss), error=error, held_out=held, bic=one.cost, exact=is_exact(whole, one),
        degrees=float(whole.rows - one.parameters), scaled=(one.c * factor)[order], log_mean=columns.log_mean,
        scale=whole.scale, constraint=rows.exponents, relative=kind == "relative",
    )  # fmt: skip


def _covariance(whole: AllRows, one: Sum) -> Array:
    """Of the coefficients and the free exponents."""
    if whole.noise is not None:
        variance = whole.noise**2
    else:
        degrees = whole.rows - one.parameters
        variance = one.rss / degrees if degrees > 0 else math.inf
    C = refine.covariance(whole, one)
    return C * variance if math.isfinite(variance) else np.full_like(C, math.inf)
