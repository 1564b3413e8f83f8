"""Other laws that the data hardly tell from the best one.

A law belongs to them if its posterior odds to the best one are above 1:20 ("Occam's window", Madigan and Raftery 1994),
which by the Bayesian information criterion is a difference below 2 log 20. Tried are the forms that the search met, and
what the best law becomes without one of its numbers. A form is fitted with all of its numbers free, and its exponents
are rounded anew: fractions that suit the best law need not suit another one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from npu_kernels._laws.series.laws import (
    STEPS,
    Form,
    Law,
    cleaned,
    criteria,
    form,
    minimise,
    rounded,
)
from npu_kernels._laws.series.work import Work

WINDOW = 2 * math.log(20)


def alternatives(
    best: Law, free: Law, met: Sequence[Law], most: int, work: Work
) -> list[tuple[Law, Law]]:
    """Laws within the window beside the best one, the best first, each with itself where all numbers are free.

    free: the best law with all numbers free. met: laws of other forms. most: denominator of exponents.
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
    x, _ = minimise(best.weighted(), x, masks, STEPS, 1e-4, work)
    values = criteria(best.problem, x, masks)
    powers = masks[:, : best.problem.shape.terms * best.problem.shape.states].sum(1)
    gain = math.log(int(best.problem.data.seen.sum())) * powers  # at most, by fractions
    found: dict[Form, tuple[float, Law, Law]] = {}
    for n in (values - gain < limit).nonzero().squeeze(1).tolist():
        loose = replace(starts[n], x=x[n]).refitted(work)
        law = rounded(loose, most, work)
        value, kind = law.criterion(), form(law)
        if (
            kind != form(best)
            and _distinct(law)
            and value < min(limit, found[kind][0] if kind in found else math.inf)
        ):
            found[kind] = value, law, loose
    return [pair[1:] for pair in sorted(found.values(), key=lambda one: one[0])]


def _smaller(law: Law) -> list[Law]:
    """The law without one of its free exponents or coefficients."""
    found = []
    for i in law.free[: law.problem.shape.weights].nonzero().squeeze(1).tolist():
        x, free = law.x.clone(), law.free.clone()
        x[i], free[i] = 0.0, False
        found.append(cleaned(replace(law, x=x, free=free)))
    return [one for one in found if form(one)]


def _distinct(law: Law) -> bool:
    """Whether no two terms have the same exponents: they would be one."""
    exponents, coefficients, _ = law.problem.shape.split(law.x)
    own = exponents[(coefficients != 0).any(0)]
    return len(own.unique(dim=0)) == len(own)


def _loosened(law: Law, like: Law) -> Law:
    """With all numbers free that are not 0, but for exponents of signed states. First states as in another law, and no
    exponent if it has none that is free."""
    exponents, coefficients, _ = law.problem.shape.split(law.x)
    free_exponents, _, starts = like.problem.shape.split(like.free)
    powers = (exponents != 0) & law.problem.data.positive & free_exponents.any()
    return replace(law, free=law.problem.shape.join(powers, coefficients != 0, starts))
