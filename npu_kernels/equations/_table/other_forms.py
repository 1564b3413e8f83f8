"""Other forms of the laws that a search has found, where all rows suggest them.

Free exponents in place of simple ones, two terms in place of one, simple exponents nearby, other
terms in place of two that nearly cancel, and fewer terms.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from npu_kernels.equations._products.groups import of_rows
from npu_kernels.equations._products.problem import AllRows, Output, Problem
from npu_kernels.equations._table import cancelling, refine, rounding, splitting
from npu_kernels.equations._table.free_exponents import freed
from npu_kernels.equations._table.identities import Fit
from npu_kernels.equations._table.refine import Rules, Sum
from npu_kernels.equations._table.rows import NARROW, spread, widths
from npu_kernels.equations._table.search import (
    MORE_ROWS,
    SEARCH_ROWS,
    Settings,
    chosen_rows,
    is_exact,
)

Array = Any

RIVAL_ERRORS = 1.1  # ratio of squared errors to the best: see `_reconsidered`
AS_GOOD = 2.0  # difference of the criteria up to which the simplest of some forms is taken
TELL = 6.0  # difference of the criteria below which the data hardly tell two equations apart


def other_forms(fits: list[Fit], output: Output, held: Array, settings: Settings) -> list[Fit]:
    """Return the fits, and those of other forms. held: indices of rows held out."""
    fits = _with_single_power(_reconsidered(fits, settings), settings)
    fits = _with_neighbours(_split(fits, held, settings), settings)
    fits = _shortened(_uncancelled(fits, held, settings), output, held, settings.rules.loss)
    return _as_lines(_standing(fits, settings.rules), output, held, settings)


def _reconsidered(fits: list[Fit], settings: Settings) -> list[Fit]:
    """The fits with exponents that all rows tell from the fractions of the search, which has fewer.

    This concerns the best sum and those with fewer terms whose errors are nearly as small. Others
    cannot become the best: fractions cost the search only little.
    """
    data, _, best = min(fits, key=lambda fit: fit[2].cost)
    if is_exact(data, best):
        return fits
    result = []
    for data, law, fitted in fits:
        if len(fitted.c) <= len(best.c) and fitted.press < RIVAL_ERRORS * best.press:
            other = partial(rounding.reconsidered, data, fitted, settings.rules)
            fitted = settings.steps.sum(data.inputs, other)
        result.append((data, law, fitted))
    return result


def _with_single_power(fits: list[Fit], settings: Settings) -> list[Fit]:
    """The fits, with the product of free powers of all inputs, and its simpler forms."""
    data, _, best = min(fits, key=lambda fit: fit[2].cost)
    products = [fit for fit in fits if len(fit[2].c) == 1 and _is_plain(fit[0])]
    rules = settings.rules
    if not products or is_exact(data, best) or data.fixed or rules.exponents == "integers":
        return fits
    data, law, product = min(products, key=lambda fit: fit[2].cost)

    def powers() -> list[Sum]:
        free = replace(product, free=~data.signed[None, :])
        free = refine.refit(data, free, rules.loss)
        return [free, rounding.simplified(data, free, rules)]

    laws = settings.steps.sums(data.inputs, powers)
    return fits + [(data, law, other) for other in laws if math.isfinite(other.cost)]


def _split(fits: list[Fit], held: Array, settings: Settings) -> list[Fit]:
    """The fits, and if the best has terms that are not simple, those with pairs in their place.

    Such a sum for another power of y often stands for a law of another form: it stays as it is.
    """
    data, _, best = min(fits, key=lambda fit: fit[2].cost)
    rules = settings.rules
    halves = rules.exponents == "fractions" and rules.max_denominator > 1  # as the products have
    if not (halves and best.free.any()) or data.power != 1 or data.below or is_exact(data, best):
        return fits
    generator = np.random.default_rng([settings.seed, 3])
    few, more = chosen_rows(data, np.setdiff1d(np.arange(data.rows), held), settings.seed)
    split = partial(splitting.split, few, more, best, rules, settings.max_terms, generator)
    sums = settings.steps.sums(data.inputs, split)
    added = [(data, law, refine.refit(data, law, rules.loss)) for law in sums]
    return fits + [fit for fit in added if math.isfinite(fit[2].cost)]


def _with_neighbours(fits: list[Fit], settings: Settings) -> list[Fit]:
    """The fits, and every sum that changes of one exponent after another reach from the best one.

    Beyond `MORE_ROWS` rows the exponents are certain, and no change is tried.
    """
    data, law, best = min(fits, key=lambda fit: fit[2].cost)
    if is_exact(data, best) or data.rows > MORE_ROWS or settings.rules.exponents == "real":
        return fits
    steps = partial(_steps, data, best, settings.rules)
    return fits + [(data, law, near) for near in settings.steps.sums(data.inputs, steps)]


def _steps(data: AllRows, law: Sum, rules: Rules) -> list[Sum]:
    """The neighbours of a sum, of the best of them, and so on until none is better."""
    tried = list[Sum]()
    while True:
        neighbours = rounding.neighbours(data, law, rules)
        tried += neighbours
        better = min(neighbours, key=lambda neighbour: neighbour.cost, default=law)
        if better.cost >= law.cost:
            return tried
        law = better


def _uncancelled(fits: list[Fit], held: Array, settings: Settings) -> list[Fit]:
    """The fits; with a sum of other terms if the best has two that nearly cancel.

    The best is left out where the data hardly tell it from the next one.
    """
    rules, tried = settings.rules, False
    if rules.exponents != "fractions" or rules.max_denominator < 2:
        return fits
    while True:
        data, _, best = min(fits, key=lambda fit: fit[2].cost)
        if data.below:
            return fits
        if data.group is None:
            part = data.take(spread(data.rows, SEARCH_ROWS))
        else:  # rows of every group
            part, _ = chosen_rows(data, np.arange(data.rows), settings.seed)
        terms = part.predict(best.u, best.parity, best.c)[2] * of_rows(best.c, part.group)
        near = None if is_exact(data, best) else cancelling.pair(terms, best.u)
        if near is None or min(near) < data.fixed:
            return fits
        if not tried:
            tried = True
            other = partial(_instead, data, part, best, near, held, settings)
            laws_of_search = settings.steps.sums(data.inputs, other)
            fits = fits + [
                (data, other, refine.refit(data, other, rules.loss)) for other in laws_of_search
            ]
            continue
        rest = [fit for fit in fits if fit[2] is not best]
        if min((fit[2].cost for fit in rest), default=math.inf) > best.cost + TELL:
            return fits
        fits = rest


def _instead(
    data: AllRows, part: Problem, best: Sum, near: tuple[int, int], held: Array, settings: Settings
) -> list[Sum]:
    """Sums with other terms than two that nearly cancel, fitted to the rows that are not held out.

    part: the rows that choose them.
    """
    rules, generator = settings.rules, np.random.default_rng([settings.seed, 2])
    sums = cancelling.instead(part, best, near, settings.max_terms, generator)
    training = data.choose(np.setdiff1d(np.arange(data.rows), held))
    fitted = [refine.refit(training, law, rules.loss) for law in sums]
    return [law for law in fitted if math.isfinite(law.cost)]


def _shortened(fits: list[Fit], output: Output, held: Array, loss: str) -> list[Fit]:
    """The fits, and the best one without terms whose absence lowers the criterion, one by one.

    A search that missed a short law may have found it with one term more, above or below the line.
    """
    while True:
        data, _, best = min(fits, key=lambda fit: fit[2].cost)
        if is_exact(data, best):
            return fits
        of_form = replace(output, error=math.inf, function=data.function)
        shorter, terms = list[Fit](), len(best.c)
        for k in range(data.fixed, terms):
            below = data.below - (k >= terms - data.below)
            rows = data if below == data.below else of_form.scaled(data.power, below)
            if rows is None or below == terms - 1:  # no term is left above the line
                continue
            law = best.take(np.arange(terms) != k)
            fitted = refine.refit(rows, law, loss)
            if fitted.cost < best.cost:
                training = rows.choose(np.setdiff1d(np.arange(rows.rows), held))
                shorter.append((rows, refine.refit(training, law, loss), fitted))
        if not shorter:
            return fits
        fits = [*fits, min(shorter, key=lambda fit: fit[2].cost)]


def _standing(fits: list[Fit], rules: Rules) -> list[Fit]:
    """The fits, with free exponents in place of fractions that the rows exclude.

    A fraction stands where the criterion tells it from the free exponent: one that is known to
    many digits is near a fraction by chance hardly ever, and small errors may have any cause.
    This concerns the best sum and, of not too many rows, those that the data hardly tell from it.
    The best one with free exponents in place of fractions that stand is one more of these.
    """
    checked, window = list[Sum](), TELL if fits[0][0].rows <= MORE_ROWS else 0.0
    while rules.exponents == "fractions":
        best = min(fit[2].cost for fit in fits)
        near = [fit for fit in fits if fit[2].cost <= best + window]
        near = [fit for fit in near if not any(fit[2] is law for law in checked)]
        if not near:
            break
        data, law, fitted = min(near, key=lambda fit: fit[2].cost)
        checked.append(fitted)
        full = data.exponents.full(fitted.u, data.power, data.below)
        rivals = list(freed(data, fitted, rules.loss))
        close = [rival for rival in rivals if rival.law.cost < fitted.cost + TELL]
        stands = not any(rival.excludes(full) for rival in close)
        if not stands:
            fits = [fit for fit in fits if fit[2] is not fitted]
        if not stands or fitted.cost == best:
            fits = fits + [(data, law, rival.law) for rival in rivals]
    return fits


def _as_lines(fits: list[Fit], output: Output, held: Array, settings: Settings) -> list[Fit]:
    """The fits; without those that are no better than lines in columns of hardly any width.

    Every power is nearly a line there: the simplest form is taken, one without more parameters.
    """
    best, loss = min((fit[2] for fit in fits), key=lambda law: law.cost), settings.rules.loss
    sums = [fit for fit in fits if _is_plain(fit[0])]
    tied = fits[0][0].inputs < len(fits[0][0].matrix)  # by units, which say what the powers are
    if not sums or tied or settings.rules.exponents == "real":
        return fits
    data, _, fitted = min(sums, key=lambda fit: fit[2].cost)
    narrow = (fitted.u != 0).any(0) & (widths(data.columns.X) < NARROW)
    line = _line(fitted, narrow)
    if not narrow.any() or data.fixed or ((line.u < data.low) | (line.u > data.high)).any():
        return fits
    training = data.choose(np.setdiff1d(np.arange(data.rows), held))
    pair = refine.refit(training, line, loss), refine.refit(data, line, loss)
    lines = fits + _shortened([(data, *pair)], output, held, loss)

    def is_line(fit: Fit) -> bool:
        u = fit[2].u[:, narrow]
        return _is_plain(fit[0]) and bool(((u == 0) | (u == 1)).all())

    lines = [fit for fit in lines if is_line(fit) and len(fit[2].c) <= settings.max_terms]
    lines = [fit for fit in lines if fit[2].parameters <= best.parameters]
    simplest = min(lines, key=lambda fit: fit[2].cost, default=None)
    if simplest is None or not simplest[2].cost <= best.cost + AS_GOOD:
        return fits
    return [simplest, *(fit for fit in fits if fit[2].cost > simplest[2].cost)]


def _is_plain(data: AllRows) -> bool:
    """Whether laws are sums for y itself."""
    return data.power == 1 and data.function is None and not data.below


def _line(law: Sum, narrow: Array) -> Sum:
    """The sum of first order in some columns, around their geometric means."""
    terms = dict[Any, Array]()
    for u, parity, free, c in zip(law.u, law.parity, law.free, law.c, strict=True):
        rest = np.where(narrow, 0.0, [u, parity, free])
        parts = [(rest, c * (1 - u[narrow].sum()))]
        for i in np.flatnonzero(narrow):
            term = rest.copy()
            term[0, i] = 1.0
            parts.append((term, c * u[i]))
        for term, part in parts:
            key = tuple(term.ravel().tolist())
            terms[key] = terms.get(key, 0.0) + part
    shape = -1, 3, len(narrow)
    u, parity, free = np.array(list(terms)).reshape(shape).swapaxes(0, 1)
    return Sum(u, parity, free > 0, np.stack(list(terms.values())))
