"""Pairs of near powers of opposite sign, whose sum is far smaller than either of them.

Such a pair stands for another function, ``c (x**(w + d) - x**w)`` for a logarithm, or for powers
that are not near each other. Its exponents are no law.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npu_kernels.equations._products.library import Library
from npu_kernels.equations._products.problem import Problem
from npu_kernels.equations._table.refine import Sum
from npu_kernels.equations._table.splitting import with_products

Array = Any

NEAR = 0.5  # difference of the exponents of near powers
CANCEL = 0.2  # size of a sum over that of its smaller term, below which the terms nearly cancel
BEAM = 6  # sets of products of each number


def pair(terms: Array, exponents: Array) -> tuple[int, int] | None:
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


def instead(
    problem: Problem, law: Sum, terms: tuple[int, int], max_terms: int, generator: Any
) -> list[Sum]:
    """Return sums with one to three simple products in place of two terms."""
    stay = np.array([k not in terms for k in range(len(law.c))])
    library = Library(problem, generator)
    rest = library.terms(law.u[stay], law.parity[stay])
    rest = rest / np.maximum(np.linalg.norm(rest, axis=0), 1e-300)
    sets: list[tuple[int, ...]] = [()]
    sums = list[Sum]()
    for _ in range(min(3, max_terms - int(stay.sum()))):
        scored = dict[tuple[int, ...], float]()
        for chosen in sets:
            present = np.column_stack([rest, library.A[:, list(chosen)]])
            for k in library.best(library.remainder(present), present, BEAM):
                more = tuple(sorted((*chosen, k)))
                if k not in chosen and more not in scored:
                    A = np.column_stack([rest, library.A[:, list(more)]])
                    r = library.remainder(A)
                    scored[more] = float(r @ r)
        sets = sorted(scored, key=scored.__getitem__)[:BEAM]
        for chosen in sets[:3]:
            sums.append(with_products(law.take(stay), library, chosen))
    return sums
