"""Two simple products in place of one or two terms of a law whose exponents are not simple.

Such a term often stands for two that have simple exponents. The search may miss these: it fits all
exponents, and the errors of its rows then make other terms fit as well.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from npu_kernels.equations._products.library import Library
from npu_kernels.equations._products.problem import Problem
from npu_kernels.equations._table import refine, rounding
from npu_kernels.equations._table.refine import Rules, Sum
from npu_kernels.equations._table.search import SIMPLIFIED

PRODUCT_PAIRS = 20  # for each choice of terms that leave


def split(
    few: Problem, more: Problem, law: Sum, rules: Rules, max_terms: int, generator: Any
) -> list[Sum]:
    """Return sums with two simple products in place of terms, one of which has free exponents.

    few, more: the rows that choose the products, and the sums.
    """
    library, sums = Library(few, generator), list[Sum]()
    for leaving in _leaving(law, few.fixed, max_terms):
        stay = law.take(np.setdiff1d(np.arange(len(law.c)), leaving))
        for pair in library.pairs(PRODUCT_PAIRS, library.terms(stay.u, stay.parity)):
            sums.append(refine.refit(more, with_products(stay, library, pair), rules.loss, 4))
    sums = sorted(sums, key=lambda law: law.cost)[:SIMPLIFIED]
    return [rounding.simplified(more, law, rules) for law in sums if math.isfinite(law.cost)]


def _leaving(law: Sum, fixed: int, max_terms: int) -> list[tuple[int, ...]]:
    """The terms that leave: each with free exponents alone, and with another one."""
    terms, free = len(law.c), law.free.any(1)
    single = [(k,) for k in range(fixed, terms) if free[k] and terms < max_terms]
    pairs = itertools.combinations(range(fixed, terms), 2)
    return [*single, *((j, k) for j, k in pairs if free[j] or free[k])]


def with_products(law: Sum, library: Library, chosen: tuple[int, ...]) -> Sum:
    """Return a sum with some products of the library, whose exponents are not free."""
    products = list(chosen)
    u = np.vstack([law.u, library.u[products]])
    parity = np.vstack([law.parity, library.parity[products]])
    free = np.vstack([law.free, np.zeros((len(products), u.shape[1]), dtype=bool)])
    return Sum(u, parity, free, library.coefficients(library.terms(u, parity)))
