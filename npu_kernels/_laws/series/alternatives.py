"""Other laws that the data hardly tell from the best one.

A law belongs to them if its posterior odds to the best one are above 1:20 ("Occam's window",
Madigan and Raftery 1994), which by the Bayesian information criterion is a difference below
2 log 20. The candidates are the forms that the search met, and the best law without one of its
numbers. A form is fitted with all of its numbers free, and its exponents are rounded anew:
fractions that suit the best law need not suit another one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from npu_kernels._laws.series import laws as series_laws
from npu_kernels._laws.series.job import Job
from npu_kernels._laws.series.laws import Form, Law, cleaned, criteria, form, minimise, rounded

WINDOW = 2 * math.log(20)  # of the criterion


def alternatives(
    best: Law, free: Law, met: Sequence[Law], max_denominator: int, job: Job
) -> list[tuple[Law, Law]]:
    """Return the laws within the window beside the best one, the best first.

    Each is paired with the same law whose numbers are all free. free: the best law with all numbers
    free. met: laws of other forms. max_denominator: of exponents.
    """
    begin: dict[Form, Law] = {}
    for law in (*_smaller(free), *met):
        begin.setdefault(form(law), law)
    begin.pop(form(best), None)
    if not begin:
        return []
    limit = best.criterion() + WINDOW
    starts = [_loosened(replace(law, problem=best.problem), free) for law in begin.values()]
    x, masks = torch.stack([law.x for law in starts]), torch.stack([law.free for law in starts])
    x, _ = minimise(best.weighted(), x, masks, series_laws.REFIT_STEPS, 1e-4, job)
    values = criteria(best.problem, x, masks)
    powers = masks[:, : best.problem.shape.terms * best.problem.shape.states].sum(1)
    gain = math.log(int(best.problem.data.seen.sum())) * powers  # at most, by fractions
    rivals: dict[Form, tuple[float, Law, Law]] = {}
    for n in (values - gain < limit).nonzero().squeeze(1).tolist():
        loose = replace(starts[n], x=x[n]).refitted(job)
        law = rounded(loose, max_denominator, job)
        value, kind = law.criterion(), form(law)
        bound = min(limit, rivals[kind][0] if kind in rivals else math.inf)
        if kind != form(best) and _distinct(law) and value < bound:
            rivals[kind] = value, law, loose
    return [pair[1:] for pair in sorted(rivals.values(), key=lambda rival: rival[0])]


def _smaller(law: Law) -> list[Law]:
    """Return the law without one of its free exponents or coefficients, for each of them."""
    laws = []
    for i in law.free[: law.problem.shape.weights].nonzero().squeeze(1).tolist():
        x, free = law.x.clone(), law.free.clone()
        x[i], free[i] = 0.0, False
        laws.append(cleaned(replace(law, x=x, free=free)))
    return [candidate for candidate in laws if form(candidate)]


def _distinct(law: Law) -> bool:
    """Return whether no two terms have the same exponents: they would be one."""
    exponents, coefficients, _ = law.problem.shape.split(law.x)
    rows = exponents[(coefficients != 0).any(0)]
    return len(rows.unique(dim=0)) == len(rows)


def _loosened(law: Law, model: Law) -> Law:
    """Free all numbers that are not 0, but for exponents of signed states.

    First states are free as in the law `model`, and no exponent is if `model` has none that is.
    """
    exponents, coefficients, _ = law.problem.shape.split(law.x)
    free_exponents, _, starts = model.problem.shape.split(model.free)
    powers = (exponents != 0) & law.problem.data.positive & free_exponents.any()
    return replace(law, free=law.problem.shape.join(powers, coefficients != 0, starts))
