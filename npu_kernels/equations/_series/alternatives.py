"""Other laws that the data hardly tell from the best one.

A law belongs to them if its posterior odds to the best one are above 1:20 ("Occam's window",
Madigan and Raftery 1994), which by the Bayesian information criterion is a difference below
2 log 20. The candidates are the forms that the search met, and the best law without one of its
numbers. A form is fitted with all of its numbers free, and its exponents are rounded anew:
fractions that suit the best law need not suit another one.
"""

from __future__ import annotations

import math
from dataclasses import replace

from npu_kernels.equations._series.criterion import FRACTION_NATS, SAME_CRITERION, criteria
from npu_kernels.equations._series.forms import Form, Met, form, loosened
from npu_kernels.equations._series.job import Job
from npu_kernels.equations._series.laws import REFIT_STEPS, Law, minimise, refitted, stacked
from npu_kernels.equations._series.simplify import changed, covariance, foreseen, rounded
from npu_kernels.equations._series.steps import accurate

WINDOW = 2 * math.log(20)  # of the criterion
UNFORESEEN = 4.0  # of the criterion: the error of the quadratic approximation that is allowed
MOST_MET = 40  # laws that the search met: those that are tried


def alternatives(
    best: Law, free: Law, met: Met, max_denominator: int, job: Job
) -> list[tuple[Law, Law]]:
    """Return the laws within the window beside the best one, the best first.

    Each is paired with the same law whose numbers are all free. free: the best law with all numbers
    free. met: laws of other forms. max_denominator: of exponents.
    """
    limit = best.criterion() + WINDOW
    candidates = _candidates(free, met, limit)
    candidates.pop(form(best), None)
    pairs: list[tuple[Law, Law]] = []
    for law, loose in _fitted(candidates, best, free, limit, max_denominator, job):
        fine = None if form(law) == form(best) else accurate(law, job)
        if fine is not None and fine.criterion() < limit:
            is_same = fine.problem is law.problem
            pairs.append((fine, loose if is_same else replace(loose, problem=fine.problem)))
    return sorted(pairs, key=lambda pair: pair[0].criterion())


def better_laws(
    best: Law, free: Law, met: Met, max_denominator: int, job: Job
) -> list[tuple[Law, Law]]:
    """Return the laws of lower criteria than the best one's, as `alternatives` does.

    The best law's own form is tried, too: its exponents are rounded anew.
    """
    limit = best.criterion() - SAME_CRITERION
    candidates = _candidates(free, met, limit) | {form(best): free}
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
        value, kind = law.criterion(), form(law)
        bound = min(limit, laws[kind][0] if kind in laws else math.inf)
        if _distinct(law) and value < bound:
            laws[kind] = value, law, model
    return [pair[1:] for pair in sorted(laws.values(), key=lambda rival: rival[0])]


def _candidates(free: Law, met: Met, limit: float) -> dict[Form, Law]:
    """Return the laws whose criterion may come below the limit, by their forms."""
    laws = {form(law): law for law in _smaller(free)}
    hopes = [(value - _gain(law), kind) for kind, (value, law) in met.items()]
    for hope, kind in sorted(hopes, key=lambda pair: pair[0])[:MOST_MET]:
        if hope < limit:
            laws.setdefault(kind, met[kind][1])
    return laws


def _gain(law: Law) -> float:
    """Return how much the criterion may fall, at most, if free exponents become fractions."""
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
