"""The form of a law: which of its numbers are not 0."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from npu_kernels.equations._series.laws import Law

# For each term, which exponents and which coefficients are not 0.
Form = tuple[tuple[bool, ...], ...]
Met = dict[Form, tuple[float, Law]]  # the best law of each form, with its criterion


def form(law: Law) -> Form:
    """Return the law's form, whatever the order of its terms; empty without any term."""
    exponents, coefficients, _ = law.problem.shape.split(law.x != 0)
    rows = torch.cat([exponents, coefficients.mT], 1)[coefficients.any(0)]
    return tuple(sorted(tuple(row) for row in rows.tolist()))


def meet(met: Met, value: float, law: Law) -> None:
    """Add a law if it is the best one of its form."""
    kind = form(law)
    if kind and value < met.get(kind, (math.inf,))[0]:
        met[kind] = value, law


def cleaned(law: Law) -> Law:
    """Remove the exponents of terms that are in no equation."""
    exponents, coefficients, starts = law.problem.shape.split(law.x)
    free_e, free_c, free_s = law.problem.shape.split(law.free)
    used = (coefficients != 0).any(0).unsqueeze(1)
    exponents, free_e = torch.where(used, exponents, 0.0), free_e & used
    join = law.problem.shape.join
    return replace(law, x=join(exponents, coefficients, starts), free=join(free_e, free_c, free_s))


def loosened(law: Law, loosen: bool) -> Law:
    """Free all numbers that are not 0, but for coefficients that stay.

    Exponents are free only where they may be fractions, if `loosen`.
    """
    exponents, coefficients, _ = law.problem.shape.split(law.x)
    _, _, starts = law.problem.shape.split(law.free)
    allowed = law.problem.shape.free_exponents(law.problem.data.positive)
    powers = (exponents != 0) & allowed & loosen
    free_coefficients = (coefficients != 0) & (law.problem.shape.log_sizes is None)
    return replace(law, free=law.problem.shape.join(powers, free_coefficients, starts))
