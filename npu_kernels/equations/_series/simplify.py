"""Simpler laws: what the BIC does not need is removed, and exponents become fractions.

The quadratic approximation of the sum of squares ("optimal brain surgeon") proposes changes: a
coefficient or an exponent that becomes 0, a term that goes, an exponent that becomes a fraction. A
list of proposals in order of their price is tried in many lengths at once, and that of all laws:
one batch of least-squares problems, which begin where the approximation has its minimum, if that is
nearer. The BIC of the fitted laws decides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npu_kernels.equations._numbers import exponent_nats, factor_nats
from npu_kernels.equations._series.guesses import allowed, integer_products
from npu_kernels.equations._series.laws import (
    FRACTION_NATS,
    MAX_DERIVATIVE,
    NEGATIVE_NATS,
    REFIT_STEPS,
    SAME_BIC,
    Form,
    Job,
    Law,
    Visited,
    accurate,
    cleaned,
    criteria,
    criteria_of,
    form,
    information,
    limits,
    loosened,
    minimise,
    refitted,
    stacked,
    visit,
)

TRIALS = 12  # changed laws of a law in one batch
HOPE = 10.0  # price up to which a change belongs to the list that is tried at once
MAX_PRICE = 30.0  # of a change that is tried by itself
TRIAL_STEPS = 12  # of least squares
MAX_ROUNDED = 4.0  # largest exponent that is rounded
# Standard errors: an exponent may become an integer within so many, not the nearest one alone.
WITHIN = 2.0
WHOLE = -3.0, -2.0, -1.0, 1.0, 2.0, 3.0
RIDGE = 1e-9  # of the information, whose diagonal is 1

Change = tuple[tuple[int, ...], float]  # numbers, and what they become
Proposals = Callable[[Law, Any], Iterator[Change]]  # of a law and its covariance


def pruned(laws: Sequence[Law], job: Job, visited: Visited | None = None) -> list[Law]:
    """Remove the coefficients, exponents and terms whose removal lowers the BIC.

    laws: of one problem. visited: gets the laws that were tried.
    """
    return _simpler(laws, _removals, job, visited)


def rounded(laws: Sequence[Law], max_denominator: int, job: Job) -> list[Law]:
    """Make exponents fractions of small denominators where the BIC falls."""
    return _simpler(laws, lambda law, C: _fractions(law, C, max_denominator), job, None)


def foreseen(laws: Sequence[Law], max_denominator: int) -> Tensor:
    """Return by how much `rounded` may lower the criteria, by the quadratic approximation."""
    falls = []
    for law, matrix in zip(laws, information(laws), strict=True):
        C = covariance(law, matrix)
        prices = [price for _, price in _plan(law, list(_fractions(law, C, max_denominator)), C)]
        falls.append(-min(0.0, *itertools.accumulate(prices)) if prices else 0.0)
    return torch.tensor(falls, dtype=torch.float64)


def _removals(law: Law, _: Any) -> Iterator[Change]:
    shape = law.problem.shape
    h, first = shape.terms, shape.terms * shape.states
    for i in law.free[: shape.weights].nonzero().squeeze(1).tolist():
        yield (i,), 0.0
    for k in range(h):  # all coefficients of a term
        column = tuple(i for i in range(first + k, shape.weights, h) if law.free[i])
        if len(column) > 1:
            yield column, 0.0


def _fractions(law: Law, C: Any, max_denominator: int) -> Iterator[Change]:
    """Propose fractions for free exponents: the nearest, and integers within their errors."""
    exponents = law.free[: law.problem.shape.terms * law.problem.shape.states]
    low, high = (bound.tolist() for bound in limits(law.problem))
    for n, i in enumerate(exponents.nonzero().squeeze(1).tolist()):
        w, reach = float(law.x[i]), WITHIN * math.sqrt(max(C[n, n], 0.0))
        near = [round(w * q) / q for q in range(1, 1 + max_denominator)]
        integers = [float(k) for k in WHOLE if abs(k - w) < reach]
        for fraction in dict.fromkeys((*near, *integers)):
            if 0 < abs(fraction) <= MAX_ROUNDED and low[i] <= fraction <= high[i]:
                yield (i,), fraction


def _simpler(
    laws: Sequence[Law], proposals: Proposals, job: Job, visited: Visited | None
) -> list[Law]:
    """Change the laws as long as the BIC falls, all laws at once."""
    best, problem = list(laws), laws[0].problem
    values: list[float] = criteria_of(best).tolist()
    visited = {} if visited is None else visited
    for value, law in zip(values, best, strict=True):
        visit(visited, value, law)
    vain: list[set[Change]] = [set() for _ in best]
    active = list(range(len(best)))
    while active and job.go_on():
        plans, covariances = {}, {}
        for n, matrix in zip(active, information([best[n] for n in active]), strict=True):
            covariances[n] = covariance(best[n], matrix)
            priced = _plan(best[n], list(proposals(best[n], covariances[n])), covariances[n])
            plans[n] = _trials([pair for pair in priced if pair[0] not in vain[n]])
        tried = [(n, changes) for n in active for changes in plans[n]]
        if not tried:
            break
        trials = changed([(best[n], changes, covariances[n]) for n, changes in tried])
        x, free = stacked(trials)
        x, _ = minimise(problem, x, free, TRIAL_STEPS, 1e-3, job, is_short=True, likely=True)
        scores: list[float] = criteria(problem, x, free).tolist()
        trials = [replace(law, x=numbers) for law, numbers in zip(trials, x, strict=True)]
        for score, law in zip(scores, trials, strict=True):
            visit(visited, score, law)
        winners: dict[int, int] = {}
        for n in active:
            lanes = [lane for lane, (m, _) in enumerate(tried) if m == n]
            if lanes and min(scores[lane] for lane in lanes) < values[n]:
                winners[n] = min(lanes, key=scores.__getitem__)
            else:
                vain[n].update(plan[0] for plan in plans[n] if len(plan) == 1)
        if winners:
            fitted = refitted([trials[lane] for lane in winners.values()], job)
            for n, law, value in zip(
                winners, fitted, criteria(problem, *stacked(fitted)).tolist(), strict=True
            ):
                best[n], values[n] = law, value
        active = [n for n in active if plans[n]]
    return best


def _trials(priced: list[tuple[Change, float]]) -> list[list[Change]]:
    """Return the lists of changes that are tried: the cheapest ones together, and some alone."""
    plan = [change for change, price in priced if price < MAX_PRICE]
    if not plan:
        return []
    cheap = sum(price < HOPE for _, price in priced)
    half = TRIALS // 2
    lengths = sorted({max(1, math.ceil(cheap * n / half)) for n in range(1, half + 1)})
    return [plan[:end] for end in lengths] + [[change] for change in plan[1 : 1 + half]]


def covariance(law: Law, matrix: Tensor) -> Any:
    """Return the covariance of the free numbers as an array; matrix: their information."""
    length = matrix.diagonal().sqrt().clamp(min=1e-12)
    lengths = torch.outer(length, length)
    normed = matrix / lengths + RIDGE * torch.eye(len(matrix), dtype=law.x.dtype)
    return (torch.linalg.inv(normed) / lengths).numpy()


def _plan(law: Law, proposals: list[Change], C: Any) -> list[tuple[Change, float]]:
    """Return changes in order of their price by the quadratic approximation.

    Each price is that after the changes before it. C: the covariance of the free numbers.

    Changing the numbers b by d raises the squared error by ``d' C_bb^-1 d`` and moves the others
    along their covariance with b.
    """
    import numpy as np

    index = law.free.nonzero().squeeze(1).tolist()
    position = {i: n for n, i in enumerate(index)}
    x = law.x.numpy()[index]
    log_n = math.log(int(law.problem.data.seen.sum()))
    rows = [[position[i] for i in numbers] for numbers, _ in proposals]
    prices = np.array(
        [2 * exponent_nats(value) - log_n * len(numbers) for numbers, value in proposals]
    )
    powers = law.problem.shape.terms * law.problem.shape.states
    gone_negative = [sum(float(law.x[i]) < 0 for i in row if i < powers) for row, _ in proposals]
    targets = np.array([value for _, value in proposals])
    prices -= 2 * NEGATIVE_NATS * np.array(gone_negative) * (targets == 0)
    factors = np.array([sum(i < powers for i in numbers) for numbers, _ in proposals])
    prices -= 2 * factor_nats(law.problem.shape.states) * factors * (targets == 0)
    made_whole = [sum(float(law.x[i]) % 1 != 0 for i in row if i < powers) for row, _ in proposals]
    prices -= 2 * FRACTION_NATS * np.array(made_whole) * (targets % 1 == 0)
    single = np.array([len(row) == 1 for row in rows], dtype=bool)
    first = np.array([row[0] for row in rows], dtype=int)
    remaining = np.ones(len(rows), dtype=bool)
    plan: list[tuple[Change, float]] = []
    while remaining.any():
        variance = np.maximum(C.diagonal(), 1e-300)
        costs = (x[first] - targets) ** 2 / variance[first]
        for n in np.flatnonzero(remaining & ~single):
            b = rows[n]
            off = x[b] - targets[n]
            costs[n] = off @ np.linalg.lstsq(C[np.ix_(b, b)], off)[0]
        total = np.where(remaining, costs + prices, math.inf)
        cheapest = int(np.argmin(total))
        plan.append((proposals[cheapest], float(total[cheapest])))
        b = rows[cheapest]
        block = C[np.ix_(b, b)]
        gain = C[b] / variance[b] if len(b) == 1 else np.linalg.lstsq(block, C[b])[0]  # [b, n]
        x = x - (x[b] - targets[cheapest]) @ gain
        C = C - C[:, b] @ gain
        gone = set(b)
        remaining &= np.array([not gone & set(row) for row in rows])
    return plan


def changed(trials: Sequence[tuple[Law, list[Change], Any]]) -> list[Law]:
    """Return laws of one problem after changes, each with the covariance of its free numbers.

    The other numbers stay, or move along their covariance with those that change, whichever law has
    the smaller error.
    """
    still = [_set(law, changes) for law, changes, _ in trials]
    moved = [
        replace(result, x=_followed(law, changes, C).where(result.free, result.x))
        for result, (law, changes, C) in zip(still, trials, strict=True)
    ]
    errors = zip(criteria_of(still).tolist(), criteria_of(moved).tolist(), strict=True)
    return [
        after if lower < value else before
        for before, after, (value, lower) in zip(still, moved, errors, strict=True)
    ]


def _set(law: Law, changes: list[Change]) -> Law:
    x, free = law.x.clone(), law.free.clone()
    for numbers, value in changes:
        x[list(numbers)], free[list(numbers)] = value, False
    return cleaned(replace(law, x=x, free=free))


def _followed(law: Law, changes: list[Change], C: Any) -> Tensor:
    """Return all numbers where the quadratic approximation has its minimum after the changes."""
    import numpy as np

    position = {i: n for n, i in enumerate(law.free.nonzero().squeeze(1).tolist())}
    numbers = [i for changed_numbers, _ in changes for i in changed_numbers]
    values = [value for changed_numbers, value in changes for _ in changed_numbers]
    rows = [position[i] for i in numbers]
    off = law.x.numpy()[numbers] - values
    move = C[:, rows] @ np.linalg.lstsq(C[np.ix_(rows, rows)], off)[0]
    x = law.x.clone()
    x[law.free] -= torch.from_numpy(move)
    low, high = limits(law.problem)
    return x.clamp(low, high)


# ---- exchange of products ------------------------------------------------------------------------
# Laws that differ from one law by a coefficient more, or by a product for another.
#
# New coefficients are those of the law's products in other equations, and of products of whole
# powers. The trajectory's derivatives for all of these numbers say by how much the sum of squares
# would fall, as if it were quadratic. The laws that promise most are fitted.

TRIED = 24  # laws that are fitted
TRIED_STEPS = 12  # of least squares
PRODUCTS_AT_ONCE = 16  # of which derivatives are computed


class Exchange(NamedTuple):
    """A change of a law with p free numbers."""

    gone: tuple[int, ...]  # which of these become 0
    product: int  # that gets coefficients
    rows: tuple[int, ...]  # the equations, or reactions, of these coefficients


def exchanged(law: Law, job: Job) -> list[Law]:
    """Return the fitted laws that one exchange leads to, the best first."""
    shape, constant = law.problem.shape, law.problem.data.constant
    exponents, rates, _ = shape.split(law.x)
    products_of_law = exponents[(rates != 0).any(0)]
    library = integer_products(shape.states)
    library = library[allowed(library, shape) & ~library[:, constant].any(1)]
    products = torch.cat(
        [products_of_law, library[(library.unsqueeze(1) != products_of_law).any(2).all(1)]]
    )
    plans = _plans(law, len(products_of_law), len(products))
    prices, moves = _foreseen(law, products, plans)
    trials: list[Law] = []
    for n in prices.argsort(stable=True).tolist():
        trial = _after(law, products, plans[n], moves[n])
        trials += [] if trial is None else [trial]
        if len(trials) == TRIED:
            break
    if not trials:
        return []
    x, free = stacked(trials)
    x, _ = minimise(law.problem, x, free, TRIED_STEPS, 1e-3, job, is_short=True, likely=True)
    values = criteria(law.problem, x, free)
    order = values.argsort(stable=True).tolist()
    return [replace(trials[n], x=x[n]) for n in order if values[n].isfinite()]


def _plans(law: Law, products_of_law: int, products: int) -> list[Exchange]:
    """Return all exchanges: of no coefficient, of one, and of all that a product has.

    products_of_law: how many the law has, which come first.
    """
    shape = law.problem.shape
    h, first = shape.terms, shape.terms * shape.states
    rates = shape.split(law.x)[1]
    is_there = torch.nn.functional.pad(
        rates[:, (rates != 0).any(0)] != 0, (0, products - products_of_law)
    )
    new = (~is_there.mT).nonzero().tolist()
    index = enumerate(law.free.nonzero().squeeze(1).tolist())
    numbers = [(n, divmod(i - first, h)) for n, i in index if first <= i < shape.weights]
    plans = [Exchange((), product, (d,)) for product, d in new]
    plans += [Exchange((n,), product, (d,)) for n, _ in numbers for product, d in new]
    for k in range(h):
        column = [(n, d) for n, (d, term) in numbers if term == k]
        if len(column) > 1:
            gone, rows = zip(*column, strict=True)
            plans += [Exchange(gone, product, rows) for product in range(products_of_law, products)]
    return plans


def _foreseen(law: Law, products: Tensor, plans: list[Exchange]) -> tuple[Tensor, Tensor]:
    """Return the criteria after exchanges ``[P]``, and how the numbers move ``[P, p + n R + 1]``.

    Both are those of the quadratic approximation. The numbers are the p free ones, and the
    coefficients of the n products, which are 0 before.
    """
    rates, p = law.problem.shape.rates, int(law.free.sum())
    A, r = _derivatives(law, products)
    none = A.shape[1] - 1  # a number without effect: so all exchanges have as many
    size = A.norm(dim=0).clamp(min=1e-300)
    size[none] = 1.0
    A = A / size
    gram, along = A.mT @ A, A.mT @ r
    gram.diagonal().add_(RIDGE)
    width = p + max((len(plan.rows) for plan in plans), default=0)
    rows, gone = [], torch.zeros(len(plans), p, dtype=law.x.dtype)
    for n, (lost, product, equations) in enumerate(plans):
        columns = [m for m in range(p) if m not in lost]
        columns += [p + product * rates + d for d in equations]
        rows.append(columns + [none] * (width - len(columns)))
        gone[n, list(lost)] = 1.0
    chosen = torch.tensor(rows, dtype=torch.long).view(-1, width)
    off = gone * (law.x[law.free] * size[:p])
    slope = along[chosen] - (off @ gram[:p]).gather(1, chosen)
    matrix = gram[chosen.unsqueeze(2), chosen.unsqueeze(1)]
    is_none = (chosen == none).unsqueeze(2)
    matrix = torch.where(is_none, torch.eye(width, dtype=matrix.dtype), matrix)
    move = -torch.linalg.solve(matrix, slope.unsqueeze(2)).squeeze(2)
    squares = ((off @ gram[:p, :p]) * off).sum(1) - 2 * off @ along[:p] + (move * slope).sum(1)
    count = [len(plan.rows) - len(plan.gone) for plan in plans]
    price = math.log(int(law.problem.data.seen.sum()))
    moves = torch.zeros(len(plans), none + 1, dtype=move.dtype).scatter(1, chosen, move) / size
    return squares + price * torch.tensor(count, dtype=squares.dtype), moves


def _derivatives(law: Law, products: Tensor) -> tuple[Tensor, Tensor]:
    """Return derivatives of the residuals ``[M, p + n R + 1]``, and these ``[M]``.

    They are for the free numbers, for coefficients of the products, and 0. All are in units of the
    errors.
    """
    problem, shape, count = law.problem, law.problem.shape, len(products)
    wide = replace(shape, terms=shape.terms + 1, signs=None)
    parts = (part.expand(count, -1, -1) for part in shape.split(law.x))
    exponents, rates, starts = parts
    more = torch.nn.functional.pad(rates, (0, 1))
    x = wide.join(torch.cat([exponents, products.unsqueeze(1)], 1), more, starts)
    last = wide.terms * shape.states + shape.terms
    columns = slice(last, wide.weights, wide.terms)
    by_products = torch.cat(
        [
            replace(problem, shape=wide).jacobian(part)[1][:, :, columns]
            for part in x.split(PRODUCTS_AT_ONCE)
        ]
    )
    residual, jacobian = problem.jacobian(law.x.unsqueeze(0))
    by_law, none = jacobian[0][:, law.free], residual.mT * 0
    A = torch.cat([by_law, by_products.movedim(0, 1).flatten(1), none], 1)
    deviations = law.deviations().repeat(len(A) // shape.states)
    usable = (A.abs() < MAX_DERIVATIVE).all(1) & deviations.isfinite()
    A = torch.where(usable.unsqueeze(1), A / deviations.unsqueeze(1), 0.0)
    return A, torch.where(usable, residual[0] / deviations, 0.0)


def _after(law: Law, products: Tensor, plan: Exchange, moves: Tensor) -> Law | None:
    """Return the law after an exchange; None if it has too many products."""
    shape, index = law.problem.shape, law.free.nonzero().squeeze(1)
    x, free = law.x.clone(), law.free.clone()
    terms = (shape.split(x)[1] != 0).any(0).nonzero().squeeze(1).tolist()
    x[index] += moves[: len(index)]
    gone = index[list(plan.gone)]
    x[gone], free[gone] = 0.0, False
    exponents, rates, _ = shape.split(x)  # views, as are those below
    free_exponents, free_rates, _ = shape.split(free)
    is_own = plan.product < len(terms)
    spare = [k for k in range(shape.fixed, shape.terms) if not rates[:, k].any()]
    if not is_own and not spare:
        return None
    k = terms[plan.product] if is_own else spare[0]
    if not is_own:
        exponents[k], free_exponents[k] = products[plan.product], False
    rows, first = list(plan.rows), len(index) + plan.product * shape.rates
    rates[rows, k], free_rates[rows, k] = moves[first : first + shape.rates][rows], True
    low, high = limits(law.problem)
    return cleaned(replace(law, x=x.clamp(low, high), free=free))


# ---- alternatives --------------------------------------------------------------------------------
# Other laws that the data hardly tell from the best one.
#
# A law belongs to them if its posterior odds to the best one are above 1:20 ("Occam's window",
# Madigan and Raftery 1994), which by the Bayesian information criterion is a difference below 2 log
# 20. The candidates are the forms that the search visited, and the best law without one of its
# numbers. A form is fitted with all of its numbers free, and its exponents are rounded again:
# fractions that suit the best law need not suit another one.

WINDOW = 2 * math.log(20)  # of the BIC
UNFORESEEN = 4.0  # of the BIC: the error of the quadratic approximation that is allowed
MAX_VISITED = 40  # laws that the search visited: those that are tried


def alternatives(
    best: Law, free: Law, visited: Visited, max_denominator: int, job: Job
) -> list[tuple[Law, Law]]:
    """Return the laws within the window of the best one, the best first.

    Each is paired with the same law whose numbers are all free. free: the best law with all numbers
    free. visited: laws of other forms. max_denominator: of exponents.
    """
    limit = best.bic() + WINDOW
    candidates = _candidates(free, visited, limit)
    candidates.pop(form(best), None)
    pairs: list[tuple[Law, Law]] = []
    for law, loose in _fitted(candidates, best, free, limit, max_denominator, job):
        fine = None if form(law) == form(best) else accurate(law, job)
        if fine is not None and fine.bic() < limit:
            is_same = fine.problem is law.problem
            pairs.append((fine, loose if is_same else replace(loose, problem=fine.problem)))
    return sorted(pairs, key=lambda pair: pair[0].bic())


def better_laws(
    best: Law, free: Law, visited: Visited, max_denominator: int, job: Job
) -> list[tuple[Law, Law]]:
    """Return the laws of lower criteria than the best one's, as `alternatives` does.

    The best law's own form is tried, too: its exponents are rounded again.
    """
    limit = best.bic() - SAME_BIC
    candidates = _candidates(free, visited, limit) | {form(best): free}
    return _fitted(candidates, best, free, limit, max_denominator, job)


def _fitted(
    candidates: dict[Form, Law],
    best: Law,
    free: Law,
    limit: float,
    max_denominator: int,
    job: Job,
) -> list[tuple[Law, Law]]:
    """Return the best law of each form below the limit, the best first, as `alternatives` does."""
    if not candidates:
        return []
    loosen = bool(free.problem.shape.split(free.free)[0].any())
    starts = [loosened(replace(law, problem=best.problem), loosen) for law in candidates.values()]
    x, masks = stacked(starts)
    x, _ = minimise(best.problem, x, masks, REFIT_STEPS, 1e-4, job, is_short=True, likely=True)
    starts = [replace(law, x=numbers) for law, numbers in zip(starts, x, strict=True)]
    values = criteria(best.problem, x, masks) - foreseen(starts, max_denominator)
    near = (values < limit + UNFORESEEN).nonzero().squeeze(1).tolist()
    if not near or not job.go_on():
        return []
    loose = refitted([starts[n] for n in near], job)
    laws: dict[Form, tuple[float, Law, Law]] = {}
    for law, model in zip(rounded(loose, max_denominator, job), loose, strict=True):
        value, kind = law.bic(), form(law)
        bound = min(limit, laws[kind][0] if kind in laws else math.inf)
        if _distinct(law) and value < bound:
            laws[kind] = value, law, model
    return [pair[1:] for pair in sorted(laws.values(), key=lambda rival: rival[0])]


def _candidates(free: Law, visited: Visited, limit: float) -> dict[Form, Law]:
    """Return the laws whose BIC may come below the limit, by their forms."""
    laws = {form(law): law for law in _smaller(free)}
    hopes = [(value - _gain(law), kind) for kind, (value, law) in visited.items()]
    for hope, kind in sorted(hopes, key=lambda pair: pair[0])[:MAX_VISITED]:
        if hope < limit:
            laws.setdefault(kind, visited[kind][1])
    return laws


def _gain(law: Law) -> float:
    """Return how much the BIC may fall, at most, if free exponents become fractions."""
    powers = law.free[: law.problem.shape.terms * law.problem.shape.states]
    return (math.log(int(law.problem.data.seen.sum())) + 2 * FRACTION_NATS) * int(powers.sum())


def _smaller(free: Law) -> list[Law]:
    """Return the law without one of its free exponents or coefficients, for each of them."""
    C = covariance(free, free.information())
    numbers = free.free[: free.problem.shape.weights].nonzero().squeeze(1).tolist()
    laws = changed([(free, [((i,), 0.0)], C) for i in numbers]) if numbers else []
    return [candidate for candidate in laws if form(candidate)]


def _distinct(law: Law) -> bool:
    """Return whether no two terms have the same exponents: they would be one."""
    exponents, coefficients, _ = law.problem.shape.split(law.x)
    rows = exponents[(coefficients != 0).any(0)]
    return len(rows.unique(dim=0)) == len(rows)
