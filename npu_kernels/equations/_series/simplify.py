"""Simpler candidates: what the BIC does not need is removed, and exponents become fractions.

The quadratic approximation of the sum of squares ("optimal brain surgeon") proposes changes: a
coefficient or an exponent that becomes 0, a term that goes, an exponent that becomes a fraction. A
list of proposals in order of their price is tried in many lengths at once, and that of all
candidates: one batch of least-squares problems, which begin where the approximation has its
minimum, if that is nearer. The BIC of the fitted candidates decides.
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
from npu_kernels.equations._series.candidates import (
    FRACTION_NATS,
    MAX_DERIVATIVE,
    NEGATIVE_NATS,
    REFIT_STEPS,
    SAME_BIC,
    Candidate,
    Form,
    Job,
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
from npu_kernels.equations._series.guesses import allowed, integer_products

TRIALS = 12  # changed candidates of a candidate in one batch
HOPE = 10.0  # price up to which a change belongs to the list that is tried at once
MAX_PRICE = 30.0  # of a change that is tried by itself
TRIAL_STEPS = 12  # of least squares
MAX_ROUNDED = 4.0  # largest exponent that is rounded
# Standard errors: an exponent may become an integer within so many, not the nearest one alone.
WITHIN = 2.0
WHOLE = -3.0, -2.0, -1.0, 1.0, 2.0, 3.0
RIDGE = 1e-9  # of the information, whose diagonal is 1

Change = tuple[tuple[int, ...], float]  # numbers, and what they become
Proposals = Callable[[Candidate, Any], Iterator[Change]]  # of a candidate and its covariance


def pruned(
    candidates: Sequence[Candidate], job: Job, visited: Visited | None = None
) -> list[Candidate]:
    """Remove the coefficients, exponents and terms whose removal lowers the BIC.

    candidates: of one problem. visited: gets the candidates that were tried.
    """
    return _simpler(candidates, _removals, job, visited)


def rounded(candidates: Sequence[Candidate], max_denominator: int, job: Job) -> list[Candidate]:
    """Make exponents fractions of small denominators where the BIC falls."""
    return _simpler(
        candidates, lambda candidate, C: _fractions(candidate, C, max_denominator), job, None
    )


def foreseen(candidates: Sequence[Candidate], max_denominator: int) -> Tensor:
    """Return by how much `rounded` may lower the criteria, by the quadratic approximation."""
    falls = []
    for candidate, matrix in zip(candidates, information(candidates), strict=True):
        C = covariance(candidate, matrix)
        prices = [
            price
            for _, price in _plan(candidate, list(_fractions(candidate, C, max_denominator)), C)
        ]
        falls.append(-min(0.0, *itertools.accumulate(prices)) if prices else 0.0)
    return torch.tensor(falls, dtype=torch.float64)


def _removals(candidate: Candidate, _: Any) -> Iterator[Change]:
    shape = candidate.problem.shape
    h, first = shape.terms, shape.terms * shape.states
    for i in candidate.free[: shape.weights].nonzero().squeeze(1).tolist():
        yield (i,), 0.0
    for k in range(h):  # all coefficients of a term
        column = tuple(i for i in range(first + k, shape.weights, h) if candidate.free[i])
        if len(column) > 1:
            yield column, 0.0


def _fractions(candidate: Candidate, C: Any, max_denominator: int) -> Iterator[Change]:
    """Propose fractions for free exponents: the nearest, and integers within their errors."""
    exponents = candidate.free[: candidate.problem.shape.terms * candidate.problem.shape.states]
    low, high = (bound.tolist() for bound in limits(candidate.problem))
    for n, i in enumerate(exponents.nonzero().squeeze(1).tolist()):
        w, reach = float(candidate.x[i]), WITHIN * math.sqrt(max(C[n, n], 0.0))
        near = [round(w * q) / q for q in range(1, 1 + max_denominator)]
        integers = [float(k) for k in WHOLE if abs(k - w) < reach]
        for fraction in dict.fromkeys((*near, *integers)):
            if 0 < abs(fraction) <= MAX_ROUNDED and low[i] <= fraction <= high[i]:
                yield (i,), fraction


def _simpler(
    candidates: Sequence[Candidate], proposals: Proposals, job: Job, visited: Visited | None
) -> list[Candidate]:
    """Change the candidates as long as the BIC falls, all candidates at once."""
    best, problem = list(candidates), candidates[0].problem
    values: list[float] = criteria_of(best).tolist()
    visited = {} if visited is None else visited
    for value, candidate in zip(values, best, strict=True):
        visit(visited, value, candidate)
    rejected: list[set[Change]] = [set() for _ in best]
    active = list(range(len(best)))
    while active and job.go_on():
        plans, covariances = {}, {}
        for n, matrix in zip(active, information([best[n] for n in active]), strict=True):
            covariances[n] = covariance(best[n], matrix)
            priced = _plan(best[n], list(proposals(best[n], covariances[n])), covariances[n])
            plans[n] = _trials([pair for pair in priced if pair[0] not in rejected[n]])
        tried = [(n, changes) for n in active for changes in plans[n]]
        if not tried:
            break
        trials = changed([(best[n], changes, covariances[n]) for n, changes in tried])
        x, free = stacked(trials)
        x, _ = minimise(problem, x, free, TRIAL_STEPS, 1e-3, job, is_short=True, likely=True)
        scores: list[float] = criteria(problem, x, free).tolist()
        trials = [
            replace(candidate, x=numbers) for candidate, numbers in zip(trials, x, strict=True)
        ]
        for score, candidate in zip(scores, trials, strict=True):
            visit(visited, score, candidate)
        winners: dict[int, int] = {}
        for n in active:
            lanes = [lane for lane, (m, _) in enumerate(tried) if m == n]
            if lanes and min(scores[lane] for lane in lanes) < values[n]:
                winners[n] = min(lanes, key=scores.__getitem__)
            else:
                rejected[n].update(plan[0] for plan in plans[n] if len(plan) == 1)
        if winners:
            fitted = refitted([trials[lane] for lane in winners.values()], job)
            for n, candidate, value in zip(
                winners, fitted, criteria(problem, *stacked(fitted)).tolist(), strict=True
            ):
                best[n], values[n] = candidate, value
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


def covariance(candidate: Candidate, matrix: Tensor) -> Any:
    """Return the covariance of the free numbers as an array; matrix: their information."""
    length = matrix.diagonal().sqrt().clamp(min=1e-12)
    lengths = torch.outer(length, length)
    normed = matrix / lengths + RIDGE * torch.eye(len(matrix), dtype=candidate.x.dtype)
    return (torch.linalg.inv(normed) / lengths).numpy()


def _plan(candidate: Candidate, proposals: list[Change], C: Any) -> list[tuple[Change, float]]:
    """Return changes in order of their price by the quadratic approximation.

    Each price is that after the changes before it. C: the covariance of the free numbers.

    Changing the numbers b by d raises the squared error by ``d' C_bb^-1 d`` and moves the others
    along their covariance with b.
    """
    import numpy as np

    index = candidate.free.nonzero().squeeze(1).tolist()
    position = {i: n for n, i in enumerate(index)}
    x = candidate.x.numpy()[index]
    log_n = math.log(int(candidate.problem.data.seen.sum()))
    rows = [[position[i] for i in numbers] for numbers, _ in proposals]
    prices = np.array(
        [2 * exponent_nats(value) - log_n * len(numbers) for numbers, value in proposals]
    )
    powers = candidate.problem.shape.terms * candidate.problem.shape.states
    gone_negative = [
        sum(float(candidate.x[i]) < 0 for i in row if i < powers) for row, _ in proposals
    ]
    targets = np.array([value for _, value in proposals])
    prices -= 2 * NEGATIVE_NATS * np.array(gone_negative) * (targets == 0)
    factors = np.array([sum(i < powers for i in numbers) for numbers, _ in proposals])
    prices -= 2 * factor_nats(candidate.problem.shape.states) * factors * (targets == 0)
    made_whole = [
        sum(float(candidate.x[i]) % 1 != 0 for i in row if i < powers) for row, _ in proposals
    ]
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


def changed(trials: Sequence[tuple[Candidate, list[Change], Any]]) -> list[Candidate]:
    """Return candidates of one problem after changes, each with the covariance of its free numbers.

    The other numbers stay, or move along their covariance with those that change, whichever
    candidate has the smaller error.
    """
    still = [_set(candidate, changes) for candidate, changes, _ in trials]
    moved = [
        replace(result, x=_followed(candidate, changes, C).where(result.free, result.x))
        for result, (candidate, changes, C) in zip(still, trials, strict=True)
    ]
    errors = zip(criteria_of(still).tolist(), criteria_of(moved).tolist(), strict=True)
    return [
        after if lower < value else before
        for before, after, (value, lower) in zip(still, moved, errors, strict=True)
    ]


def _set(candidate: Candidate, changes: list[Change]) -> Candidate:
    x, free = candidate.x.clone(), candidate.free.clone()
    for numbers, value in changes:
        x[list(numbers)], free[list(numbers)] = value, False
    return cleaned(replace(candidate, x=x, free=free))


def _followed(candidate: Candidate, changes: list[Change], C: Any) -> Tensor:
    """Return all numbers where the quadratic approximation has its minimum after the changes."""
    import numpy as np

    position = {i: n for n, i in enumerate(candidate.free.nonzero().squeeze(1).tolist())}
    numbers = [i for changed_numbers, _ in changes for i in changed_numbers]
    values = [value for changed_numbers, value in changes for _ in changed_numbers]
    rows = [position[i] for i in numbers]
    off = candidate.x.numpy()[numbers] - values
    move = C[:, rows] @ np.linalg.lstsq(C[np.ix_(rows, rows)], off)[0]
    x = candidate.x.clone()
    x[candidate.free] -= torch.from_numpy(move)
    low, high = limits(candidate.problem)
    return x.clamp(low, high)


# ---- exchange of products ------------------------------------------------------------------------
# Candidates that differ from one candidate by a coefficient more, or by a product for another.
#
# New coefficients are those of the candidate's products in other equations, and of products of
# whole powers. The trajectory's derivatives for all of these numbers say by how much the sum of
# squares would fall, as if it were quadratic. The candidates that promise most are fitted.

TRIED = 24  # candidates that are fitted
TRIED_STEPS = 12  # of least squares
PRODUCTS_AT_ONCE = 16  # of which derivatives are computed


class Exchange(NamedTuple):
    """A change of a candidate with p free numbers."""

    gone: tuple[int, ...]  # which of these become 0
    product: int  # that gets coefficients
    rows: tuple[int, ...]  # the equations, or reactions, of these coefficients


def exchanged(candidate: Candidate, job: Job) -> list[Candidate]:
    """Return the fitted candidates that one exchange leads to, the best first."""
    shape, constant = candidate.problem.shape, candidate.problem.data.constant
    exponents, rates, _ = shape.split(candidate.x)
    products_of_candidate = exponents[(rates != 0).any(0)]
    library = integer_products(shape.states)
    library = library[allowed(library, shape) & ~library[:, constant].any(1)]
    products = torch.cat(
        [
            products_of_candidate,
            library[(library.unsqueeze(1) != products_of_candidate).any(2).all(1)],
        ]
    )
    plans = _plans(candidate, len(products_of_candidate), len(products))
    prices, moves = _foreseen(candidate, products, plans)
    trials: list[Candidate] = []
    for n in prices.argsort(stable=True).tolist():
        trial = _after(candidate, products, plans[n], moves[n])
        trials += [] if trial is None else [trial]
        if len(trials) == TRIED:
            break
    if not trials:
        return []
    x, free = stacked(trials)
    x, _ = minimise(candidate.problem, x, free, TRIED_STEPS, 1e-3, job, is_short=True, likely=True)
    values = criteria(candidate.problem, x, free)
    order = values.argsort(stable=True).tolist()
    return [replace(trials[n], x=x[n]) for n in order if values[n].isfinite()]


def _plans(candidate: Candidate, products_of_candidate: int, products: int) -> list[Exchange]:
    """Return all exchanges: of no coefficient, of one, and of all that a product has.

    products_of_candidate: how many the candidate has, which come first.
    """
    shape = candidate.problem.shape
    h, first = shape.terms, shape.terms * shape.states
    rates = shape.split(candidate.x)[1]
    is_there = torch.nn.functional.pad(
        rates[:, (rates != 0).any(0)] != 0, (0, products - products_of_candidate)
    )
    new = (~is_there.mT).nonzero().tolist()
    index = enumerate(candidate.free.nonzero().squeeze(1).tolist())
    numbers = [(n, divmod(i - first, h)) for n, i in index if first <= i < shape.weights]
    plans = [Exchange((), product, (d,)) for product, d in new]
    plans += [Exchange((n,), product, (d,)) for n, _ in numbers for product, d in new]
    for k in range(h):
        column = [(n, d) for n, (d, term) in numbers if term == k]
        if len(column) > 1:
            gone, rows = zip(*column, strict=True)
            plans += [
                Exchange(gone, product, rows) for product in range(products_of_candidate, products)
            ]
    return plans


def _foreseen(
    candidate: Candidate, products: Tensor, plans: list[Exchange]
) -> tuple[Tensor, Tensor]:
    """Return the criteria after exchanges ``[P]``, and how the numbers move ``[P, p + n R + 1]``.

    Both are those of the quadratic approximation. The numbers are the p free ones, and the
    coefficients of the n products, which are 0 before.
    """
    rates, p = candidate.problem.shape.rates, int(candidate.free.sum())
    A, r = _derivatives(candidate, products)
    none = A.shape[1] - 1  # a number without effect: so all exchanges have as many
    size = A.norm(dim=0).clamp(min=1e-300)
    size[none] = 1.0
    A = A / size
    gram, along = A.mT @ A, A.mT @ r
    gram.diagonal().add_(RIDGE)
    width = p + max((len(plan.rows) for plan in plans), default=0)
    rows, gone = [], torch.zeros(len(plans), p, dtype=candidate.x.dtype)
    for n, (lost, product, equations) in enumerate(plans):
        columns = [m for m in range(p) if m not in lost]
        columns += [p + product * rates + d for d in equations]
        rows.append(columns + [none] * (width - len(columns)))
        gone[n, list(lost)] = 1.0
    chosen = torch.tensor(rows, dtype=torch.long).view(-1, width)
    off = gone * (candidate.x[candidate.free] * size[:p])
    gradient = along[chosen] - (off @ gram[:p]).gather(1, chosen)
    matrix = gram[chosen.unsqueeze(2), chosen.unsqueeze(1)]
    is_none = (chosen == none).unsqueeze(2)
    matrix = torch.where(is_none, torch.eye(width, dtype=matrix.dtype), matrix)
    move = -torch.linalg.solve(matrix, gradient.unsqueeze(2)).squeeze(2)
    squares = ((off @ gram[:p, :p]) * off).sum(1) - 2 * off @ along[:p] + (move * gradient).sum(1)
    count = [len(plan.rows) - len(plan.gone) for plan in plans]
    price = math.log(int(candidate.problem.data.seen.sum()))
    moves = torch.zeros(len(plans), none + 1, dtype=move.dtype).scatter(1, chosen, move) / size
    return squares + price * torch.tensor(count, dtype=squares.dtype), moves


def _derivatives(candidate: Candidate, products: Tensor) -> tuple[Tensor, Tensor]:
    """Return derivatives of the residuals ``[M, p + n R + 1]``, and these ``[M]``.

    They are for the free numbers, for coefficients of the products, and 0. All are in units of the
    errors.
    """
    problem, shape, count = candidate.problem, candidate.problem.shape, len(products)
    wide = replace(shape, terms=shape.terms + 1, signs=None)
    parts = (part.expand(count, -1, -1) for part in shape.split(candidate.x))
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
    residual, jacobian = problem.jacobian(candidate.x.unsqueeze(0))
    by_candidate, none = jacobian[0][:, candidate.free], residual.mT * 0
    A = torch.cat([by_candidate, by_products.movedim(0, 1).flatten(1), none], 1)
    deviations = candidate.deviations().repeat(len(A) // shape.states)
    usable = (A.abs() < MAX_DERIVATIVE).all(1) & deviations.isfinite()
    A = torch.where(usable.unsqueeze(1), A / deviations.unsqueeze(1), 0.0)
    return A, torch.where(usable, residual[0] / deviations, 0.0)


def _after(
    candidate: Candidate, products: Tensor, plan: Exchange, moves: Tensor
) -> Candidate | None:
    """Return the candidate after an exchange; None if it has too many products."""
    shape, index = candidate.problem.shape, candidate.free.nonzero().squeeze(1)
    x, free = candidate.x.clone(), candidate.free.clone()
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
    low, high = limits(candidate.problem)
    return cleaned(replace(candidate, x=x.clamp(low, high), free=free))


# ---- alternatives --------------------------------------------------------------------------------
# Candidates that are not distinguishable from the best one.
#
# A candidate belongs to them if its posterior odds to the best one are above 1:20 ("Occam's
# window", Madigan and Raftery 1994), which by the Bayesian information criterion is a difference
# below 2 log 20. The candidates are the forms that the search visited, and the best candidate
# without one of its numbers. A form is fitted with all of its numbers free, and its exponents are
# rounded again: fractions that fit the best candidate need not fit another one.

WINDOW = 2 * math.log(20)  # of the BIC
UNFORESEEN = 4.0  # of the BIC: the error of the quadratic approximation that is allowed
MAX_VISITED = 40  # candidates that the search visited: those that are tried


def alternatives(
    best: Candidate, free: Candidate, visited: Visited, max_denominator: int, job: Job
) -> list[tuple[Candidate, Candidate]]:
    """Return the candidates within the window of the best one, the best first.

    Each is paired with the same candidate whose numbers are all free. free: the best candidate with
    all numbers free. visited: candidates of other forms. max_denominator: of exponents.
    """
    limit = best.bic() + WINDOW
    candidates = [c for c in _candidates(best, free, visited, limit) if form(c) != form(best)]
    pairs: list[tuple[Candidate, Candidate]] = []
    for candidate, loose in _fitted(candidates, best, free, limit, max_denominator, job):
        fine = None if form(candidate) == form(best) else accurate(candidate, job)
        if fine is not None and fine.bic() < limit:
            is_same = fine.problem is candidate.problem
            pairs.append((fine, loose if is_same else replace(loose, problem=fine.problem)))
    return sorted(pairs, key=lambda pair: pair[0].bic())


def better_candidates(
    best: Candidate, free: Candidate, visited: Visited, max_denominator: int, job: Job
) -> list[tuple[Candidate, Candidate]]:
    """Return the candidates of lower criteria than the best one's, as `alternatives` does.

    The best candidate's own form is tried, too: its exponents are rounded again.
    """
    limit = best.bic() - SAME_BIC
    candidates = [*_candidates(best, free, visited, limit), free]
    return _fitted(candidates, best, free, limit, max_denominator, job)


def _fitted(
    candidates: list[Candidate],
    best: Candidate,
    free: Candidate,
    limit: float,
    max_denominator: int,
    job: Job,
) -> list[tuple[Candidate, Candidate]]:
    """Return the best of each form below the limit, the best first, as `alternatives` does."""
    if not candidates:
        return []
    loosen = bool(free.problem.shape.split(free.free)[0].any())
    starts = [
        loosened(replace(candidate, problem=best.problem), loosen) for candidate in candidates
    ]
    x, masks = stacked(starts)
    x, _ = minimise(best.problem, x, masks, REFIT_STEPS, 1e-4, job, is_short=True, likely=True)
    starts = [replace(candidate, x=numbers) for candidate, numbers in zip(starts, x, strict=True)]
    values = criteria(best.problem, x, masks) - foreseen(starts, max_denominator)
    near = (values < limit + UNFORESEEN).nonzero().squeeze(1).tolist()
    if not near or not job.go_on():
        return []
    loose = refitted([starts[n] for n in near], job)
    best_of_form: dict[Form, tuple[float, Candidate, Candidate]] = {}
    for candidate, model in zip(rounded(loose, max_denominator, job), loose, strict=True):
        value, kind = candidate.bic(), form(candidate)
        bound = min(limit, best_of_form[kind][0] if kind in best_of_form else math.inf)
        if _distinct(candidate) and value < bound:
            best_of_form[kind] = value, candidate, model
    return [pair[1:] for pair in sorted(best_of_form.values(), key=lambda pair: pair[0])]


def _candidates(
    best: Candidate, free: Candidate, visited: Visited, limit: float
) -> list[Candidate]:
    """Return the candidates whose BIC may come below the limit."""
    candidates = _smaller(best, free)
    forms = set(map(form, candidates))
    hopes = [(value - _gain(candidate), kind) for kind, (value, candidate) in visited.items()]
    for hope, kind in sorted(hopes, key=lambda pair: pair[0])[:MAX_VISITED]:
        if hope < limit and kind not in forms:
            candidates.append(visited[kind][1])
    return candidates


def _gain(candidate: Candidate) -> float:
    """Return how much the BIC may fall, at most, if free exponents become fractions."""
    powers = candidate.free[: candidate.problem.shape.terms * candidate.problem.shape.states]
    return (math.log(int(candidate.problem.data.seen.sum())) + 2 * FRACTION_NATS) * int(
        powers.sum()
    )


def _smaller(best: Candidate, free: Candidate) -> list[Candidate]:
    """Return the candidate without one of its free exponents or coefficients, for each of them.

    Those without an exponent begin from the best candidate as well: free exponents may be far off.
    """
    C = covariance(free, free.information())
    shape = free.problem.shape
    numbers = free.free[: shape.weights].nonzero().squeeze(1).tolist()
    candidates = changed([(free, [((i,), 0.0)], C) for i in numbers]) if numbers else []
    powers = [i for i in numbers if i < shape.terms * shape.states and not best.free[i]]
    candidates += [_set(best, [((i,), 0.0)]) for i in powers]
    return [candidate for candidate in candidates if form(candidate)]


def _distinct(candidate: Candidate) -> bool:
    """Return whether no two terms have the same exponents: they would be one."""
    exponents, coefficients, _ = candidate.problem.shape.split(candidate.x)
    rows = exponents[(coefficients != 0).any(0)]
    return len(rows.unique(dim=0)) == len(rows)
