"""Other forms of the equations that a search has found, where all rows suggest them.

Free exponents in place of simple ones, other products in place of terms, one product more, simple
exponents nearby, and fewer terms.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from npu_kernels.equations._functions import Functions
from npu_kernels.equations._library import Library
from npu_kernels.equations._numbers import exponent_nats
from npu_kernels.equations._problem import AllRows, Output, Problem
from npu_kernels.equations._rows import (
    NARROW,
    have_two_values,
    products_of_columns,
    spread,
    widths,
)
from npu_kernels.equations._table import refine
from npu_kernels.equations._table.estimates import freed
from npu_kernels.equations._table.refine import Rules, Sum, is_exact
from npu_kernels.equations._table.search import MORE_ROWS, Settings, chosen_rows

Array = Any

# ---- products in place of terms ------------------------------------------------------------------
# Simple products in place of one or two terms of a sum, and one product more.
#
# The search may miss terms: the exponents of the others make up for them. So a term often stands
# for two simple ones, and two terms for two others that no change of single exponents reaches.

OF_EACH = 4  # sums for each choice of terms that leave
EXCHANGED, SIMPLE = 8, 3  # sums that are fitted, and those that are made simple
SLACK = 6.0  # of the criterion to first order


def exchanged(
    problem: Problem | AllRows, library: Library, candidate: Sum, max_terms: int, rules: Rules
) -> list[Sum]:
    """Return sums with products in place of up to two terms, or with one product more.

    The products are those that lower the criterion most where the other terms stay, with simple
    exponents, and where their exponents change as well, to first order. problem: the rows that
    choose the sums; those of the library choose its products.
    """
    library, fixed = library.with_neighbours(candidate.u[problem.fixed :]), problem.fixed
    seen = [_products(candidate)]

    def distinct(candidate: Sum, count: int) -> list[Sum]:
        sums = list[Sum]()
        for other in _proposed(library, candidate, fixed, max_terms):
            if len(sums) < count and _products(other) not in seen:
                seen.append(_products(other))
                sums.append(other)
        return sums

    simple = distinct(_nearest(problem, candidate, rules), EXCHANGED)
    simple = [refine.refit(problem, other, rules.loss) for other in simple]
    simple = sorted(simple, key=lambda other: other.cost)[:SIMPLE]
    sums = simple + distinct(_freed(candidate, fixed), SIMPLE)
    sums = [refine.simplified(problem, _freed(other, fixed), rules) for other in sums]
    sums += simple if rules.exponents != "real" else []
    return [other for other in sums if math.isfinite(other.cost)]


def _proposed(library: Library, candidate: Sum, fixed: int, max_terms: int) -> list[Sum]:
    """Sums with other products that are hardly worse to first order, the best first."""
    sums, terms, limit = list[tuple[float, int, Sum]](), len(candidate.c), math.inf
    choices = (itertools.combinations(range(fixed, terms), count) for count in range(3))
    for leaving in itertools.chain.from_iterable(choices):
        stay = candidate.take(np.setdiff1d(np.arange(terms), leaving))
        A = library.tangents(stay.u, stay.parity, stay.free)
        if not leaving:
            limit = library.price_of(A, stay.u) + SLACK
        room, sets = max_terms - len(stay.c), list[tuple[int, ...]]()
        if room and len(leaving) < 2:
            sets += [(k,) for k in library.best(library.remainder(A), A, OF_EACH)]
        if room > 1 and leaving:
            sets += library.pairs(OF_EACH, A, near=candidate.u[list(leaving)])
        for chosen in sets:
            price = library.price_of(A, stay.u, chosen)
            if price < limit:
                sums.append((price, len(sums), with_products(stay, library, chosen)))
    return [other for _, _, other in sorted(sums)]


def _freed(candidate: Sum, fixed: int) -> Sum:
    """The sum with free exponents, except 0 and those of its first terms."""
    return replace(
        candidate, free=(candidate.u != 0) & (np.arange(len(candidate.u)) >= fixed)[:, None]
    )


def _nearest(problem: Problem | AllRows, candidate: Sum, rules: Rules) -> Sum:
    """The sum with the nearest simple exponents in place of free ones."""
    near = np.stack([np.round(candidate.u * q) / q for q in rules.denominators])
    near = np.clip(near, problem.low, problem.high)
    nearest = np.take_along_axis(near, np.abs(near - candidate.u).argmin(0)[None], 0)[0]
    return replace(
        candidate,
        u=np.where(candidate.free, nearest, candidate.u),
        free=np.zeros_like(candidate.free),
    )


def with_products(candidate: Sum, library: Library, chosen: tuple[int, ...]) -> Sum:
    """Return a sum with some products of the library, whose exponents are not free."""
    products = list(chosen)
    u = np.vstack([candidate.u, library.u[products]])
    parity = np.vstack([candidate.parity, library.parity[products]])
    free = np.vstack([candidate.free, np.zeros((len(products), u.shape[1]), dtype=bool)])
    return Sum(u, parity, free, library.coefficients(library.terms(u, parity)))


# ---- terms that nearly cancel --------------------------------------------------------------------
# Pairs of near powers of opposite sign, whose sum is far smaller than either of them.
#
# Such a pair stands for another function, ``c (x**(w + d) - x**w)`` for a logarithm, or for powers
# that are not near each other. Its exponents mean nothing.

NEAR = 0.5  # difference of the exponents of near powers
CANCEL = 0.2  # size of a sum over that of its smaller term, below which the terms nearly cancel


def cancelling_pair(terms: Array, exponents: Array) -> tuple[int, int] | None:
    """Return the two terms that nearly cancel, the pair of which least is left.

    terms: their values ``[N, K]``. exponents: theirs ``[K, n]``.
    """
    size = np.linalg.norm(terms, axis=0)
    nearest: tuple[float, int, int] | None = None
    for k in range(1, len(exponents)):
        for j in range(k):
            if np.abs(exponents[j] - exponents[k]).max(initial=0.0) < NEAR:
                rest = float(np.linalg.norm(terms[:, j] + terms[:, k]))
                rest /= max(min(size[j], size[k]), 1e-300)
                if rest < (nearest[0] if nearest else CANCEL):
                    nearest = rest, j, k
    return nearest[1:] if nearest else None


# ---- equal functions -----------------------------------------------------------------------------
# Equations that are the same function: by sin**2 + cos**2 = 1, by a function of y, or by a power of
# it.
#
# ``a - a cos(t)**2`` is ``a sin(t)**2``, ``exp(log(a) + log(b))`` is ``a b``, and of exact
# equations ``a**2 + 2 a + 1`` is ``(a + 1)**2``. Only the shortest of identical equations stays.

# All rows, an equation that was fitted without those held out, and one fitted to all rows: of the
# same form, or of one near it that all rows chose.
Fit = tuple[AllRows, Sum, Sum]

HIGHEST = 6  # even power that is written with the other function
EQUAL = 1e-9  # of y's deviation: the difference of equations that are the same
COMPARED_ROWS = 300


def resolved(fits: list[Fit], functions: Functions, held: Array, loss: str) -> list[Fit]:
    """Return the fits, each also written with the other function of a circle, without equal ones.

    held: indices of rows held out.
    """
    is_one_kind = not functions.columns and all(data.function is None for data, _, _ in fits)
    data, _, best = min(fits, key=lambda fit: fit[2].cost)
    if is_one_kind and not is_exact(data, best):
        return fits
    written = list[Fit]()
    for pair in functions.circles():
        for columns in (pair, pair[::-1]):
            for data, candidate, _ in fits:
                training = data.choose(np.setdiff1d(np.arange(data.rows), held))
                for other in _rewritten(data, candidate, *columns):
                    other = refine.refit(training, other, loss)
                    if math.isfinite(other.cost):
                        written.append((data, other, refine.refit(data, other, loss)))
    return _distinct(fits + [fit for fit in written if math.isfinite(fit[2].cost)])


def _rewritten(data: AllRows, candidate: Sum, column: int, other: int) -> list[Sum]:
    """The sum with ``1 - other**2`` for the square of a column, and that without each term.

    There are none with more terms.
    """
    free = data.exponents.free
    if not np.isin((column, other), free).all() or data.fixed:
        return []
    i, j = (int(np.flatnonzero(free == index)[0]) for index in (column, other))
    half = np.where(
        candidate.free[:, i] | (candidate.u[:, i] > HIGHEST), 0.0, candidate.u[:, i] / 2
    )
    if not ((half > 0) & (half % 1 == 0)).any():
        return []
    sizes = np.exp(2 * data.columns.log_mean[[column, other]])  # squares of the columns' scales
    terms = dict[Any, tuple[Array, Array, Array, float]]()
    for k, c in enumerate(candidate.c):
        m = int(half[k]) if half[k] > 0 and half[k] % 1 == 0 else 0
        for power in range(m + 1):
            w, factor = (
                candidate.u[k].copy(),
                math.comb(m, power) * (-sizes[1]) ** power / sizes[0] ** m,
            )
            w[i] -= 2 * m
            w[j] += 2 * power
            key = tuple((np.concatenate([w, candidate.parity[k]]).round(9) + 0.0).tolist())
            before = terms[key][3] if key in terms else 0.0
            terms[key] = w, candidate.parity[k], candidate.free[k] & (w != 0), before + c * factor
    if len(terms) > len(candidate.c) + 1:
        return []
    u, parity, fitted, c = (np.stack(part) for part in zip(*terms.values(), strict=True))
    written = Sum(u, parity, fitted, c)
    index = np.arange(len(c)) if len(c) > 1 else np.empty(0, dtype=int)
    shorter = [written.take(index != k) for k in index]
    return [form for form in (written, *shorter) if len(form.c) <= len(candidate.c)]


def _distinct(fits: list[Fit]) -> list[Fit]:
    """The shortest of identical equations, or that whose functions come first."""

    def length(fit: Fit) -> Any:
        data, _, candidate = fit
        columns = data.exponents.free[np.flatnonzero((candidate.u != 0).any(0))].tolist()
        return (
            len(candidate.c),
            candidate.parameters,
            data.function is not None,
            round(candidate.cost, 4),
            columns,
        )

    stay, values = list[Fit](), list[Array]()
    for fit in sorted(fits, key=length):
        data, _, candidate = fit
        some = data.take(spread(data.rows, COMPARED_ROWS))
        y = data.sign * data.unit * some.predict(candidate.u, candidate.parity, candidate.c)[0]
        deviation = data.unit * math.sqrt(data.size / data.rows)
        limit = EQUAL * deviation + data.digits * np.abs(y).max()
        if not any(np.abs(y - other).max() <= limit for other in values):
            stay.append(fit)
            values.append(y)
    return stay


# ---- columns that are products of others ---------------------------------------------------------
# Where a column is a product of others, every term has other forms: the shortest is taken.


def _with_shortest_terms(fits: list[Fit], held: Array, loss: str) -> list[Fit]:
    """Return the fits, and those whose terms are shorter with other columns for the same product.

    held: indices of rows held out.
    """
    data = fits[0][0]
    logs = data.take(spread(data.rows, COMPARED_ROWS)).logs
    directions = products_of_columns(np.where(data.held, 0.0, logs))
    if not directions:
        return fits
    added = list[Fit]()
    for data, _, candidate in fits:
        other = _shortest(data, candidate, directions)
        if other is not None:
            training = data.choose(np.setdiff1d(np.arange(data.rows), held))
            added.append(
                (data, refine.refit(training, other, loss), refine.refit(data, other, loss))
            )
    return fits + [fit for fit in added if math.isfinite(fit[2].cost)]


def _shortest(data: AllRows, candidate: Sum, directions: list[Array]) -> Sum | None:
    """The sum with the shortest exponents of its terms; None if they are."""
    u = candidate.u.copy()

    def length(w: Array) -> float:
        return sum(exponent_nats(value, len(w)) for value in w.round(9).tolist())

    for k in range(data.fixed, len(u)):
        for direction in directions * 2:
            steps = [u[k, i] / direction[i] for i in np.flatnonzero(direction)]
            forms = (np.round(u[k] - step * direction, 9) + 0.0 for step in steps)
            possible = [
                w
                for w in forms
                if (data.low <= w).all()
                and (w <= data.high).all()
                and not (w[data.signed] % 1).any()
            ]
            u[k] = min([u[k], *possible], key=length)
    if (u == candidate.u).all():
        return None
    parity = np.where(data.signed, np.abs(u) % 2, 0.0)
    return replace(candidate, u=u, parity=parity, free=candidate.free & (u != 0))


# ---- all forms -----------------------------------------------------------------------------------

RIVAL_ERRORS = 1.1  # ratio of squared errors to the best: see `_reconsidered`
AS_GOOD = 2.0  # difference of the criteria up to which the simplest of some forms is taken
TELL = 6.0  # difference of BICs below which two equations are not distinguishable
FREE_TELL = 12.0  # the same of fractions and free exponents in one equation, for each exponent


def other_forms(fits: list[Fit], output: Output, held: Array, settings: Settings) -> list[Fit]:
    """Return the fits, and those of other forms. held: indices of rows held out."""
    fits = _with_shortest_terms(fits, held, settings.rules.loss)
    fits = _with_single_power(_reconsidered(fits, settings), settings)
    fits = _exchanged(fits, held, settings)
    fits = _with_neighbours(fits, settings)
    fits = _shortened(fits, output, held, settings.rules.loss)
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
    for data, candidate, fitted in fits:
        if len(fitted.c) <= len(best.c) and fitted.press < RIVAL_ERRORS * best.press:
            other = partial(refine.reconsidered, data, fitted, settings.rules)
            fitted = settings.steps.sum(other)
        result.append((data, candidate, fitted))
    return result


def _with_single_power(fits: list[Fit], settings: Settings) -> list[Fit]:
    """The fits, with the product of free powers of all inputs, and its simpler forms."""
    data, _, best = min(fits, key=lambda fit: fit[2].cost)
    products = [fit for fit in fits if len(fit[2].c) == 1 and _is_plain(fit[0])]
    rules = settings.rules
    if not products or is_exact(data, best) or data.fixed or rules.exponents == "integer":
        return fits
    data, candidate, product = min(products, key=lambda fit: fit[2].cost)

    def powers() -> list[Sum]:
        free = replace(product, free=~data.signed[None, :])
        free = refine.refit(data, free, rules.loss)
        return [free, refine.simplified(data, free, rules)]

    candidates = settings.steps.sums(powers)
    return fits + [(data, candidate, other) for other in candidates if math.isfinite(other.cost)]


def _exchanged(fits: list[Fit], held: Array, settings: Settings) -> list[Fit]:
    """The fits, and sums with products in place of terms of the best one, until none is better.

    An equation for another power of y, or a ratio, often stands for a sum for y: the best of these
    gets the products. Many are tried: a sum that is hardly better does not count, and a longer one
    in place of free exponents must be far better.
    """
    sums, rules = [fit for fit in fits if _is_plain(fit[0])], settings.rules
    if not sums or any(is_exact(data, candidate) for data, _, candidate in fits):
        return fits
    data, _, candidate = min(sums, key=lambda fit: fit[2].cost)
    if not data.inputs:
        return fits
    rows = np.setdiff1d(np.arange(data.rows), held)
    few, more = chosen_rows(data, rows, settings.seed)
    library = Library(few, np.random.default_rng([settings.seed, 3]), integers=rules.are_whole)
    problem, training = data if data.rows <= MORE_ROWS else more, data.choose(rows)
    best, cost, tried = candidate, math.inf, list[Sum]()
    while best.cost < cost:
        cost = best.cost
        of_best = partial(exchanged, problem, library, best, settings.max_terms, rules)
        exchanges = settings.steps.sums(of_best)
        if problem is not data:
            exchanges = [refine.refit(data, other, rules.loss) for other in exchanges]
        tried += exchanges
        best = min([best, *exchanges], key=lambda candidate: candidate.cost)
    for other in tried:
        longer = candidate.free.any() and len(other.c) > len(candidate.c)
        better = other.cost < candidate.cost - (FREE_TELL if longer else AS_GOOD)
        if better or candidate.cost <= other.cost < candidate.cost + TELL:
            fits = [*fits, (data, refine.refit(training, other, rules.loss), other)]
    return fits


def _with_neighbours(fits: list[Fit], settings: Settings) -> list[Fit]:
    """The fits, and every sum that changes of one exponent after another reach from the best one.

    Beyond `MORE_ROWS` rows the exponents are certain, and no change is tried.
    """
    data, candidate, best = min(fits, key=lambda fit: fit[2].cost)
    if is_exact(data, best) or data.rows > MORE_ROWS or settings.rules.exponents == "real":
        return fits
    steps = partial(_steps, data, best, settings.rules)
    return fits + [(data, candidate, near) for near in settings.steps.sums(steps)]


def _steps(data: AllRows, candidate: Sum, rules: Rules) -> list[Sum]:
    """The neighbours of a sum, of the best of them, and so on until none is better."""
    tried = list[Sum]()
    while True:
        neighbours = refine.neighbours(data, candidate, rules)
        tried += neighbours
        better = min(neighbours, key=lambda neighbour: neighbour.cost, default=candidate)
        if better.cost >= candidate.cost:
            return tried
        candidate = better


def _shortened(fits: list[Fit], output: Output, held: Array, loss: str) -> list[Fit]:
    """The fits, and the best one without terms whose absence hardly raises the criterion.

    They leave one by one as long as it falls. A search that missed a short equation may have found
    it with one term more, above or below the line.
    """
    while True:
        data, _, best = min(fits, key=lambda fit: fit[2].cost)
        iterations = 0 if is_exact(data, best) else 20  # its terms stay that are not rounding
        of_form = replace(output, error=math.inf, function=data.function)
        shorter, terms = list[Fit](), len(best.c)
        for k in range(data.fixed, terms):
            below = data.below - (k >= terms - data.below)
            rows = data if below == data.below else of_form.scaled(data.power, below)
            if rows is None or below == terms - 1:  # no term is left above the line
                continue
            candidate = best.take(np.arange(terms) != k)
            fitted = refine.refit(rows, candidate, loss, iterations)
            if fitted.cost < best.cost + TELL:
                training = rows.choose(np.setdiff1d(np.arange(rows.rows), held))
                shorter.append((rows, refine.refit(training, candidate, loss), fitted))
        fits = fits + shorter
        if not any(fit[2].cost < best.cost for fit in shorter):
            return fits


def _standing(fits: list[Fit], rules: Rules) -> list[Fit]:
    """The fits, with free exponents in place of fractions that the rows exclude.

    A fraction stands where the criterion tells it from the free exponent: one that is known to
    many digits is near a fraction by chance hardly ever, and small errors may have any cause.
    This concerns the best sum and, of not too many rows, those that the data hardly tell from it.
    The best one with free exponents in place of fractions that stand is one more of these.
    """
    checked, window = list[Sum](), TELL if fits[0][0].rows <= MORE_ROWS else 0.0
    limit = min(fit[2].cost for fit in fits) + TELL  # of an equation with several free ones as well
    while rules.exponents == "rational":
        best = min(fit[2].cost for fit in fits)
        near = [fit for fit in fits if fit[2].cost <= best + window]
        near = [fit for fit in near if not any(fit[2] is candidate for candidate in checked)]
        if not near:
            break
        data, candidate, fitted = min(near, key=lambda fit: fit[2].cost)
        checked.append(fitted)
        full = data.exponents.full(fitted.u, data.power, data.below)
        others = list(freed(data, fitted, rules.loss))
        close = [other for other in others if other.candidate.cost < min(fitted.cost + TELL, limit)]
        stands = not any(other.excludes(full) for other in close)
        if not stands:
            fits = [fit for fit in fits if fit[2] is not fitted]
        if not stands or fitted.cost == best:
            fits = fits + [(data, candidate, other.candidate) for other in others]
    return fits


def free_form(fits: list[Fit], held: Array, rules: Rules) -> Fit | None:
    """Return the best equation with free exponents in place of fractions, integers too, if near.

    A fraction is a guess, and the intervals of the other parameters are those of this guess: the
    equation with free exponents shows how much hangs on it. There is none for an equation without
    fractions, nor beyond `MORE_ROWS` rows.
    """
    data, _, best = min(fits, key=lambda fit: fit[2].cost)
    fractions = data.exponents.full(best.u, data.power, data.below) % 1 != 0
    rounded = (best.u != 0) & ~best.free & ~data.signed
    rounded[: data.fixed] = False
    if is_exact(data, best) or data.rows > MORE_ROWS or rules.exponents != "rational":
        return None
    if not (rounded & (fractions @ (data.matrix != 0))).any():
        return None
    free = refine.refit(data, replace(best, free=best.free | rounded), rules.loss)
    if not best.cost < free.cost < best.cost + FREE_TELL * int(rounded.sum()):
        return None
    training = data.choose(np.setdiff1d(np.arange(data.rows), held))
    return data, refine.refit(training, free, rules.loss), free


def _as_lines(fits: list[Fit], output: Output, held: Array, settings: Settings) -> list[Fit]:
    """The fits; without those that are no better than lines in narrow columns or of two values.

    Every power is nearly a line in a column of hardly any width, and one in a column of two values:
    the simplest form is taken, one without more parameters.
    """
    best, loss = (
        min((fit[2] for fit in fits), key=lambda candidate: candidate.cost),
        settings.rules.loss,
    )
    sums = [fit for fit in fits if _is_plain(fit[0])]
    tied = fits[0][0].inputs < len(fits[0][0].matrix)  # by units, which say what the powers are
    if not sums or tied or settings.rules.exponents == "real":
        return fits
    data, _, fitted = min(sums, key=lambda fit: fit[2].cost)
    X = data.columns.X
    two = have_two_values(X)
    narrow = (fitted.u != 0).any(0) & ((widths(X) < NARROW) | two)
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
    same = _products(simplest[2])  # of two values the line is no approximation
    rest = [fit for fit in fits if fit[2].cost > simplest[2].cost]
    rest = [fit for fit in rest if not _is_plain(fit[0]) or _products(_line(fit[2], two)) != same]
    return [simplest, *rest]


def _is_plain(data: AllRows) -> bool:
    """Whether equations are sums for y itself."""
    return data.power == 1 and data.function is None and not data.below


def _products(candidate: Sum) -> set[Any]:
    """What the terms of a sum are but for their coefficients."""
    return {
        tuple(row)
        for row in (np.column_stack([candidate.u, candidate.parity]).round(6) + 0.0).tolist()
    }


def _line(candidate: Sum, narrow: Array) -> Sum:
    """The sum of first order in some columns, around their geometric means."""
    terms = dict[Any, Array]()
    for u, parity, free, c in zip(
        candidate.u, candidate.parity, candidate.free, candidate.c, strict=True
    ):
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
