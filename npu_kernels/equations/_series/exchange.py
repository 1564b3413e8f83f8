"""Laws that differ from one law by a coefficient more, or by a product for another.

New coefficients are those of the law's products in other equations, and of products of whole
powers. The trajectory's derivatives for all of these numbers say by how much the sum of squares
would fall, as if it were quadratic. The laws that promise most are fitted.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from npu_kernels.equations._series.criterion import criteria
from npu_kernels.equations._series.forms import cleaned
from npu_kernels.equations._series.job import Job
from npu_kernels.equations._series.laws import MAX_DERIVATIVE, Law, limits, minimise, stacked
from npu_kernels.equations._series.sets import allowed, whole_products

TRIED = 24  # laws that are fitted
TRIED_STEPS = 12  # of least squares
PRODUCTS_AT_ONCE = 16  # of which derivatives are computed
RIDGE = 1e-9  # of the information, whose diagonal is 1


class Exchange(NamedTuple):
    """A change of a law with p free numbers."""

    gone: tuple[int, ...]  # which of these become 0
    product: int  # that gets coefficients
    rows: tuple[int, ...]  # the equations, or reactions, of these coefficients


def exchanged(law: Law, job: Job) -> list[Law]:
    """Return the fitted laws that one exchange leads to, the best first."""
    shape, constant = law.problem.shape, law.problem.data.constant
    exponents, rates, _ = shape.split(law.x)
    law_products = exponents[(rates != 0).any(0)]
    library = whole_products(shape.states)
    library = library[allowed(library, shape) & ~library[:, constant].any(1)]
    products = torch.cat(
        [law_products, library[(library.unsqueeze(1) != law_products).any(2).all(1)]]
    )
    plans = _plans(law, len(law_products), len(products))
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


def _plans(law: Law, law_products: int, products: int) -> list[Exchange]:
    """Return all exchanges: of no coefficient, of one, and of all that a product has.

    law_products: how many the law has, which come first.
    """
    shape = law.problem.shape
    h, first = shape.terms, shape.terms * shape.states
    rates = shape.split(law.x)[1]
    is_there = torch.nn.functional.pad(
        rates[:, (rates != 0).any(0)] != 0, (0, products - law_products)
    )
    new = [(k, (d,)) for k, d in (~is_there.mT).nonzero().tolist()]
    index = enumerate(law.free.nonzero().squeeze(1).tolist())
    numbers = [(n, divmod(i - first, h)) for n, i in index if first <= i < shape.weights]
    plans = [Exchange((), *pair) for pair in new]
    plans += [Exchange((n,), *pair) for n, _ in numbers for pair in new]
    for k in range(h):
        column = [(n, d) for n, (d, term) in numbers if term == k]
        if len(column) > 1:
            gone, rows = zip(*column, strict=True)
            plans += [Exchange(gone, product, rows) for product in range(law_products, products)]
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
