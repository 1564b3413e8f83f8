"""Simpler laws: what the criterion does not want is removed, and exponents become fractions.

The quadratic approximation of the sum of squares ("optimal brain surgeon") proposes changes: a
coefficient or an exponent that becomes 0, a term that goes, an exponent that becomes a fraction. A
list of proposals in order of their price is tried in many lengths at once, and that of all laws:
one batch of least-squares problems, which begin where the approximation has its minimum, if that is
nearer. The criterion of the fitted laws decides.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from npu_kernels.equations._products.exponent_length import exponent_nats, factor_nats
from npu_kernels.equations._series.criterion import FRACTION_NATS, NEGATIVE_NATS, criteria
from npu_kernels.equations._series.forms import Met, cleaned, meet
from npu_kernels.equations._series.job import Job
from npu_kernels.equations._series.laws import Law, information, limits, minimise, refitted, stacked

TRIALS = 12  # changed laws of a law in one batch
HOPE = 10.0  # price up to which a change belongs to the list that is tried at once
MAX_PRICE = 30.0  # of a change that is tried by itself
TRIAL_STEPS = 12  # of least squares
MAX_ROUNDED = 4.0  # greatest exponent that is rounded
# Standard errors: an exponent may become a whole number within so many, not the nearest one alone.
WITHIN = 2.0
WHOLE = -3.0, -2.0, -1.0, 1.0, 2.0, 3.0
RIDGE = 1e-9  # of the information, whose diagonal is 1

Change = tuple[tuple[int, ...], float]  # numbers, and what they become
Proposals = Callable[[Law, Any], Iterator[Change]]  # of a law and its covariance


def pruned(laws: Sequence[Law], job: Job, met: Met | None = None) -> list[Law]:
    """Remove the coefficients, exponents and terms that the criterion does not want.

    laws: of one problem. met: gets the laws that were tried.
    """
    return _simpler(laws, _removals, job, met)


def rounded(laws: Sequence[Law], max_denominator: int, job: Job) -> list[Law]:
    """Make exponents fractions of small denominators where the criterion falls."""
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
    """Propose fractions for free exponents: the nearest, and whole numbers within their errors."""
    exponents = law.free[: law.problem.shape.terms * law.problem.shape.states]
    low, high = (bound.tolist() for bound in limits(law.problem))
    for n, i in enumerate(exponents.nonzero().squeeze(1).tolist()):
        w, reach = float(law.x[i]), WITHIN * math.sqrt(max(C[n, n], 0.0))
        near = [round(w * q) / q for q in range(1, 1 + max_denominator)]
        whole = [float(k) for k in WHOLE if abs(k - w) < reach]
        for fraction in dict.fromkeys((*near, *whole)):
            if 0 < abs(fraction) <= MAX_ROUNDED and low[i] <= fraction <= high[i]:
                yield (i,), fraction


def _simpler(laws: Sequence[Law], proposals: Proposals, job: Job, met: Met | None) -> list[Law]:
    """Change the laws as long as the criterion falls, all laws at once."""
    best, problem = list(laws), laws[0].problem
    values: list[float] = criteria(problem, *stacked(best)).tolist()
    met = {} if met is None else met
    for value, law in zip(values, best, strict=True):
        meet(met, value, law)
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
            meet(met, score, law)
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
    errors = (criteria(laws[0].problem, *stacked(laws)).tolist() for laws in (still, moved))
    return [
        after if lower < value else before
        for before, after, value, lower in zip(still, moved, *errors, strict=True)
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
