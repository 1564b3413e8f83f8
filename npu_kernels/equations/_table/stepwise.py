"""Sums for a table without an equation: terms are added one by one, as long as they predict.

The products are simple ones of one input, and of two. They are compared at three levels: the inputs
themselves, their simple powers, and products of two inputs. All is computed from the products' Gram
matrix: that of the rows outside of a part of the rows is a difference, so that cross-validation
with the whole choice of terms in every part costs little. Several divisions into parts, or
rows weighted by the sizes of y, choose no better on real tables.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np

from npu_kernels.equations._library import Library
from npu_kernels.equations._problem import AllRows, Problem, about_mean
from npu_kernels.equations._table import refine
from npu_kernels.equations._table.doubts import copied
from npu_kernels.equations._table.estimates import Rows, equation_of
from npu_kernels.equations._table.notes import beyond_notes
from npu_kernels.equations._table.output import (
    POWERS_NEED,
    SearchResult,
    in_proportion,
    measured,
)
from npu_kernels.equations._table.refine import Rules, Sum, is_exact
from npu_kernels.equations._table.search import Settings, chosen_rows

Array = Any

MAX_TERMS = 10
FOLDS = 5  # parts of the rows, each of which is held out once
POWERS_OF_ONE = (1.0, 2.0, 0.5, -1.0, -0.5)
MAX_INPUTS_OF_PAIRS = 16  # more are those of the best sum of single inputs
INDEPENDENT = 1e-8  # share of a column's square that the others have to leave
EXCHANGES = 3  # rounds in which every term may be replaced


def find_equations(
    rows: Rows, settings: Settings, powers: tuple[float, ...] | None
) -> SearchResult:
    """Return the equations of one output, and the equation with the smallest held-out error.

    powers: of y, of which the first is taken; None: y itself.
    """
    output, kind = measured(rows)
    output, power = replace(output, function=rows.output_functions[0]), (powers or (1.0,))[0]
    data = output.scaled(power)
    fits = [] if data is None else sums(data, settings)
    if data is not None and fits and kind == "proportional":
        best = min(fits, key=lambda fit: fit[1])[0]
        prediction = data.predict(best.u, best.parity, best.c)[0]
        data = in_proportion(output, rows.root, prediction).scaled(power)
        fits = [] if data is None else sums(data, settings)
    if data is None or not fits:
        rule = "no sum of simple products could be fitted"
        raise ValueError(f"NPURegressor: {rule} to {rows.output}; {POWERS_NEED}")
    equations = [
        equation_of(rows, data, candidate, math.sqrt(error), data.rows, kind)
        for candidate, error in fits
    ]
    chosen = int(np.argmin([equation.holdout_nrmse for equation in equations]))
    copies = copied(rows)
    notes = (*rows.notes, *beyond_notes(equations[chosen]), *([copies] if copies else []))
    inflation = np.ones(len(rows.y))
    return SearchResult(equations, chosen, [], kind, True, notes, inflation, weighted=rows.weighted)


def sums(data: AllRows, settings: Settings) -> list[tuple[Sum, float]]:
    """Return sums of 1, 2, ... terms of the best level, each with its squared held-out error.

    The error is the mean of the weighted squares over that which a constant leaves.
    """
    generator = np.random.default_rng([settings.seed, 4])
    _, rows = chosen_rows(data, np.arange(data.rows), settings.seed)
    fold = generator.permutation(rows.rows) % FOLDS
    best = list[tuple[Sum, float]]()
    inputs = np.arange(rows.inputs)
    for level in range(3):
        if best and is_exact(data, best[-1][0]):
            break
        if level == 2 and len(inputs) > MAX_INPUTS_OF_PAIRS:
            inputs = np.flatnonzero(
                np.any([(candidate.u != 0).any(0) for candidate, _ in best], axis=0)
            )
        library = Library(rows, generator, _lattice(rows, settings.rules, level, inputs))
        if not len(library.u):  # units leave the excluded products only
            continue
        candidates_of_level = _of_level(data, rows, fold, library)
        if candidates_of_level and (not best or _lowest(candidates_of_level) < _lowest(best)):
            best = candidates_of_level
    return best


def _lowest(candidates: list[tuple[Sum, float]]) -> float:
    return min(error for _, error in candidates)


def _of_level(
    data: AllRows, rows: Problem, fold: Array, library: Library
) -> list[tuple[Sum, float]]:
    """The sums of some products, with their errors; none behind an exact one."""
    A = np.column_stack([library.A, library.target])
    parts = [A[fold == part].T @ A[fold == part] for part in range(FOLDS)]
    total = np.sum(parts, axis=0)
    weight = rows.linear()[1]
    size = float((about_mean(library.target, weight) ** 2).sum())
    size += rows.digits**2 * float(total[-1, -1])
    fixed, constant = rows.fixed, np.flatnonzero((library.u == 0).all(1))
    begin = list(range(fixed)) if fixed else constant.tolist()
    limit = min(MAX_TERMS, rows.rows // 2)
    bounds = None
    if rows.limits is not None:
        bounds = np.array(rows.limits.bounds(library.u)) * library.size[0]
    squares = dict[int, list[float]]()
    for part in parts:
        sums_of_part = _chosen(total - part, begin, limit, bounds, fixed)
        for chosen in sums_of_part:
            c = _solved(total - part, chosen, bounds)
            index = [*chosen, -1]
            error = np.append(-c, 1.0) @ part[np.ix_(index, index)] @ np.append(-c, 1.0)
            squares.setdefault(len(chosen), []).append(max(float(error), 0.0))
    candidates = list[tuple[Sum, float]]()
    for chosen in _chosen(total, begin, limit, bounds, fixed):
        u = library.u[chosen]
        c = _solved(total, chosen, bounds) / library.size[0, chosen]
        candidate = Sum(u, library.parity[chosen], np.zeros(u.shape, dtype=bool), c)
        candidate = refine.refit(data, candidate)
        errors = squares.get(len(chosen), [])
        if not math.isfinite(candidate.cost) or len(errors) < FOLDS:
            continue
        error = sum(errors) / (size or 1.0)
        if is_exact(data, candidate):
            candidate = _without_rounding(data, rows, candidate)
            return [
                *(pair for pair in candidates if len(pair[0].c) < len(candidate.c)),
                (candidate, error),
            ]
        candidates.append((candidate, error))
    return candidates


def _without_rounding(data: AllRows, rows: Problem, candidate: Sum) -> Sum:
    """The exact sum without terms that are no more than its error."""
    products = rows.predict(candidate.u, candidate.parity, candidate.c)[2] * candidate.c
    sizes = np.linalg.norm(products * rows.weight[:, None], axis=0)
    stay = sizes > math.sqrt(rows.exact)
    stay[: rows.fixed] = True
    stay[sizes.argmax()] = True
    short = refine.refit(data, candidate.take(stay))
    return short if is_exact(data, short) and math.isfinite(short.cost) else candidate


def _lattice(problem: Problem, rules: Rules, level: int, inputs: Array) -> Array:
    """The exponents ``[M, m]`` of the products of a level, first those that every sum has."""
    m = problem.inputs
    rows = [np.zeros((1, m))]
    for w in POWERS_OF_ONE[: 1 if level == 0 else None]:
        rows.append(w * np.eye(m))
    pairs = itertools.combinations(inputs, 2) if level == 2 else ()
    for i, j in pairs:
        both = np.zeros((4, m))
        both[:, i], both[:, j] = (1, 1, -1, -1), (1, -1, 1, -1)
        rows.append(both)
    u = np.concatenate(rows)
    integer = problem.signed | rules.are_whole
    rough = (problem.signed & (u < 0)) | (integer & (u % 1 != 0))
    u = u[~(rough | (u < problem.low) | (u > problem.high)).any(1)]
    if problem.limits is None:
        return u
    return np.concatenate([problem.limits.u, u[~problem.limits.excludes(u)]])


def _solved(gram: Array, chosen: list[int], bounds: Array | None) -> Array:
    """The coefficients of some columns for the last one. bounds: of those of all columns."""
    inner, products = gram[np.ix_(chosen, chosen)], gram[chosen, -1]
    c: Array = np.linalg.lstsq(inner, products, rcond=1e-13)[0]
    if bounds is None or not chosen:
        return c
    low, high = bounds[:, chosen]
    if ((low <= c) & (c <= high)).all():
        return c
    from scipy.optimize import lsq_linear

    root = _root(inner)
    wide = np.maximum(high, np.nextafter(low, np.inf))  # equal bounds are refused
    target = np.linalg.solve(root, products)
    c = lsq_linear(root.T, target, (low, wide), method="bvls").x
    return np.clip(c, low, high)


def _root(inner: Array) -> Array:
    """The triangular factor of the Gram matrix of some columns."""
    root: Array = np.linalg.cholesky(inner + 1e-12 * np.diag(np.diag(inner)))
    return root


def _error(gram: Array, chosen: list[int], bounds: Array | None) -> float:
    """The squares that the best sum of some columns leaves."""
    index, c = [*chosen, -1], np.append(-_solved(gram, chosen, bounds), 1.0)
    return float(c @ gram[np.ix_(index, index)] @ c)


def _chosen(
    gram: Array, begin: list[int], limit: int, bounds: Array | None = None, fixed: int = 0
) -> list[list[int]]:
    """The columns of sums of more and more terms, each from the one before, after exchanges.

    Without bounds the columns to begin with stay. With bounds of the coefficients the first `fixed`
    ones do, and others whose coefficient becomes 0 are left out again.
    """
    if bounds is not None:
        return _chosen_within(gram, begin, limit, bounds, fixed)
    chosen, results = begin, [begin] if begin else []
    while len(chosen) < limit:
        following = _next(gram, chosen)
        if following is None:
            break
        chosen = [*chosen, following]
        for _ in range(EXCHANGES):
            before = chosen
            for k in range(len(begin), len(chosen)):
                rest = chosen[:k] + chosen[k + 1 :]
                better = _next(gram, rest)
                if better is not None and better not in chosen:
                    chosen = [*rest, better]
            if chosen == before:
                break
        results.append(chosen)
    return results


def _chosen_within(
    gram: Array, begin: list[int], limit: int, bounds: Array, fixed: int
) -> list[list[int]]:
    """`_chosen` with bounds of the coefficients; every sum has a smaller error than those before.

    So a sum replaces another one of as many terms.
    """

    def used(columns: list[int]) -> list[int]:
        c = _solved(gram, columns, bounds)
        return [j for k, j in enumerate(columns) if k < fixed or c[k] != 0]

    chosen, results = used(begin), dict[int, list[int]]()
    error = _error(gram, chosen, bounds)
    while True:
        if chosen:
            results = {k: v for k, v in results.items() if k < len(chosen)}
            results[len(chosen)] = chosen
        following = _next(gram, chosen, bounds)
        if following is None:
            break
        longer = used([*chosen, following])
        error_before, error = error, _error(gram, longer, bounds)
        if len(longer) > limit or not error < error_before:
            break
        chosen = longer
        for _ in range(EXCHANGES):
            before = chosen
            for column in before[fixed:]:
                if column not in chosen:
                    continue
                rest = [j for j in chosen if j != column]
                better = _next(gram, rest, bounds)
                if better is None or better in chosen:
                    continue
                other = used([*rest, better])
                error_of_other = _error(gram, other, bounds)
                if error_of_other < error:
                    chosen, error = other, error_of_other
            if chosen == before:
                break
    return list(results.values())


def _next(gram: Array, chosen: list[int], bounds: Array | None = None) -> int | None:
    """The column that lowers the error of some columns most."""
    size, gain = np.diag(gram)[:-1], gram[:-1, -1].copy()
    rest = size.copy()
    if chosen:
        root = _root(gram[np.ix_(chosen, chosen)])
        W = np.linalg.solve(root, gram[chosen])
        rest -= (W[:, :-1] ** 2).sum(0)
        gain -= W[:, -1] @ W[:, :-1]
    usable = rest > INDEPENDENT * size
    usable[chosen] = False
    if bounds is not None:
        if chosen:
            gain = gram[:-1, -1] - _solved(gram, chosen, bounds) @ gram[chosen, :-1]
        usable &= np.where(gain > 0, bounds[1] > 0, bounds[0] < 0)
    score = np.where(usable, gain**2 / np.maximum(rest, 1e-300), 0.0)
    k = int(np.argmax(score))
    return k if score[k] > 0 else None
