"""Sums for a table without a law: terms are added one by one, and held-out errors say how many.

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

from npu_kernels._laws.products.library import Library
from npu_kernels._laws.products.limits import APART
from npu_kernels._laws.products.problem import AllRows, Problem
from npu_kernels._laws.table import refine
from npu_kernels._laws.table.estimates import Rows, equation_of
from npu_kernels._laws.table.output import Laws, measured
from npu_kernels._laws.table.refine import Sum
from npu_kernels._laws.table.search import Settings, chosen_rows

Array = Any

MOST_TERMS = 10
FOLDS = 5  # parts of the rows, each of which is held out once
POWERS_OF_ONE = (1.0, 2.0, 0.5, -1.0, -0.5)
MOST_INPUTS_OF_PAIRS = 16  # more are those of the best sum of single inputs
INDEPENDENT = 1e-8  # share of a column's square that the others have to leave
EXCHANGES = 3  # rounds in which every term may be replaced


def laws(rows: Rows, settings: Settings, powers: tuple[float, ...] | None) -> Laws:
    """Return the equations of one output, and the one with the least held-out error.

    powers: of y, of which the first is taken; None: y itself.
    """
    output, kind = measured(rows)
    data = replace(output, function=rows.output_functions[0]).scaled((powers or (1.0,))[0])
    fits = [] if data is None else sums(data, settings)
    if data is None or not fits:
        rule = "no sum of simple products could be fitted"
        raise ValueError(f"NPURegressor: {rule} to {rows.output}")
    equations = [
        equation_of(rows, data, law, math.sqrt(error), data.rows, kind) for law, error in fits
    ]
    chosen = int(np.argmin([equation.error for equation in equations]))
    return Laws(equations, chosen, [], kind, True, rows.notes)


def sums(data: AllRows, settings: Settings) -> list[tuple[Sum, float]]:
    """Return sums of 1, 2, ... terms of the best level, each with its squared held-out error.

    The error is the mean of the weighted squares over that of the target.
    """
    generator = np.random.default_rng([settings.seed, 4])
    _, rows = chosen_rows(data, np.arange(data.rows), generator)
    fold = generator.permutation(rows.rows) % FOLDS
    best = list[tuple[Sum, float]]()
    inputs = np.arange(rows.inputs)
    for level in range(3):
        if level == 2 and len(inputs) > MOST_INPUTS_OF_PAIRS:
            inputs = np.flatnonzero(np.any([(law.u != 0).any(0) for law, _ in best], axis=0))
        library = Library(rows, generator, _lattice(rows, level, inputs))
        laws_of_level = _of_level(data, rows, fold, library)
        if laws_of_level and (not best or _lowest(laws_of_level) < _lowest(best)):
            best = laws_of_level
    return best


def _lowest(laws: list[tuple[Sum, float]]) -> float:
    return min(error for _, error in laws)


def _of_level(
    data: AllRows, rows: Problem, fold: Array, library: Library
) -> list[tuple[Sum, float]]:
    """The sums of some products, with their errors."""
    A = np.column_stack([library.A, library.target])
    parts = [A[fold == part].T @ A[fold == part] for part in range(FOLDS)]
    total = np.sum(parts, axis=0)
    fixed, constant = rows.fixed, np.flatnonzero((library.u == 0).all(1))
    begin = list(range(fixed)) if fixed else constant.tolist()
    limit = min(MOST_TERMS, rows.rows // 2)
    squares = dict[int, list[float]]()
    for part in parts:
        for chosen in _chosen(total - part, begin, limit):
            c = _solved(total - part, chosen)
            index = [*chosen, -1]
            error = np.append(-c, 1.0) @ part[np.ix_(index, index)] @ np.append(-c, 1.0)
            squares.setdefault(len(chosen), []).append(max(float(error), 0.0))
    laws = []
    for chosen in _chosen(total, begin, limit):
        u = library.u[chosen]
        c = _solved(total, chosen) / library.size[0, chosen]
        law = Sum(u, library.parity[chosen], np.zeros(u.shape, dtype=bool), c)
        law = refine.refit(data, law)
        errors = squares.get(len(chosen), [])
        if math.isfinite(law.cost) and len(errors) == FOLDS:
            laws.append((law, sum(errors) / float(total[-1, -1] or 1.0)))
    return laws


def _lattice(problem: Problem, level: int, inputs: Array) -> Array:
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
    rough = problem.signed & ((u < 0) | (u % 1 != 0))
    u = u[~(rough | (u < problem.low) | (u > problem.high)).any(1)]
    if problem.limits is None:
        return u
    fixed = problem.limits.u
    barred = np.concatenate([fixed, problem.limits.excluded])
    like = (np.abs(u[:, None] - barred) < APART).all(2).any(1)
    return np.concatenate([fixed, u[~like]])


def _solved(gram: Array, chosen: list[int]) -> Array:
    """The coefficients of some columns for the last one."""
    return np.linalg.lstsq(gram[np.ix_(chosen, chosen)], gram[chosen, -1], rcond=1e-13)[0]


def _chosen(gram: Array, begin: list[int], limit: int) -> list[list[int]]:
    """The columns of sums of more and more terms, each from the one before, after exchanges."""
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


def _next(gram: Array, chosen: list[int]) -> int | None:
    """The column that lowers the error of some columns most."""
    size, gain = np.diag(gram)[:-1], gram[:-1, -1].copy()
    rest = size.copy()
    if chosen:
        inner = gram[np.ix_(chosen, chosen)]
        root = np.linalg.cholesky(inner + 1e-12 * np.diag(np.diag(inner)))
        W = np.linalg.solve(root, gram[chosen])
        rest -= (W[:, :-1] ** 2).sum(0)
        gain -= W[:, -1] @ W[:, :-1]
    usable = rest > INDEPENDENT * size
    usable[chosen] = False
    score = np.where(usable, gain**2 / np.maximum(rest, 1e-300), 0.0)
    k = int(np.argmax(score))
    return k if score[k] > 0 else None
