"""The search for ratios of sums, ``y**p = N / D``, N and D sums of a few products of powers.

For the right terms ``y**p D - N`` is 0 in every row but for the noise, and linear in all of the
coefficients. The errors of y enter by the terms of D. So the coefficients are the least of the
generalised eigenvectors of two Gram matrices, that of ``y**p D - N`` and that of D (Koopmans,
1937): it has no bias by the noise, which least squares of one of these columns has. All pairs of
terms of N are tried with all pairs of D, then terms are added to the best. Rows are divided by the
sizes of the terms of D. Every set of terms is judged by the criterion, after least squares of
``y - (N / D)**(1/p)`` by `refine`. A ratio whose D is not positive between the rows is refused.

In a `Sum` every term is over one of D, which is a 1 there: see `Scaled.below`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from npu_kernels.equations._numbers import exponent_nats
from npu_kernels.equations._problem import AllRows, Output, Problem
from npu_kernels.equations._rows import alike
from npu_kernels.equations._table import refine
from npu_kernels.equations._table.refine import Rules, Sum, is_exact
from npu_kernels.equations._table.search import Candidates, Settings, chosen_rows

Array = Any
Terms = tuple[tuple[int, ...], tuple[int, ...]]  # of N and of D, indices into the lattices

OUTPUT_POWERS = (1.0, 2.0, 0.5)  # of y
MAX_INPUTS = 6  # of a ratio
MAX_PRODUCTS = 150  # of N
DEGREES = {1: 4, 2: 3, 3: 3}  # of the products of D, by the number of inputs; else 2
STARTS = 40  # pairs of terms that are fitted
PAIRS = 3  # of N with the same D
MAX_TRIPLES = 3000  # of terms of N
ELIMINATED = 60  # pairs of D for which all terms of N are tried at once
MORE = 12  # sets of three and more terms of N that are fitted
DIAGONAL = 1e-12  # added to the diagonal of a Gram matrix of columns of length 1
PARENTS = 4  # ratios to which a term is added
CHILDREN = 5  # of each of them
KEPT = 2  # ratios of each number of terms of N and D
REFINED = 3  # ratios whose exponents are made free, and the best of each number of few terms
FEW_TERMS = 4  # of N and D together
BETWEEN = 400  # points between rows where D has to be positive


@dataclass(frozen=True)
class Fitted:
    """A ratio with what it was made of."""

    terms: Terms
    candidate: Sum

    @property
    def size(self) -> tuple[int, int]:
        """The numbers of terms of N and of D."""
        return len(self.terms[0]), len(self.terms[1])


def may_be_ratio(candidates: Candidates, settings: Settings) -> bool:
    """Whether ratios are looked for: the best sum is none that looks like an equation."""
    best = candidates.best()
    if best is None or settings.ratios is False or settings.max_terms < 2:
        return False
    problem, candidate = best
    if candidates.exact():  # a ratio of few terms may be shorter than one of many
        return candidates.shortest_exact() >= FEW_TERMS and (
            problem.below > 0 or not candidate.is_simple
        )
    if settings.ratios is True:
        return True
    return (
        not candidate.is_simple
        or len(candidate.c) >= settings.max_terms
        or candidates.structure() > 0
    )


def one_power(
    data: AllRows, training: Array, settings: Settings, candidates: Candidates
) -> list[float]:
    """Add ratios for one power of y to the candidates: a part of `search`."""
    best = candidates.best()
    if best is None or not data.inputs or not may_be_ratio(candidates, settings):
        return []
    few, more = chosen_rows(data, training, settings.seed)
    used = np.flatnonzero((best[1].u != 0).any(0))
    if len(used) > MAX_INPUTS:
        used = np.sort(np.argsort(-np.abs(best[1].u).sum(0), kind="stable")[:MAX_INPUTS])
    if not len(used):
        return []
    by_terms = functools.cache(partial(_ratios, few, more, used, settings))

    def with_terms(below: int) -> list[Sum]:
        return by_terms().get(below, [])

    for below in range(1, settings.max_terms):
        problem = replace(more, below=below)
        for candidate in settings.steps.sums(partial(with_terms, below)):
            candidates.add(problem, candidate)
    if settings.show is not None:
        cost = min(candidate.cost for _, candidate in candidates.sums.values())
        settings.show(f"power {data.power:g}, ratios: criterion {cost:.1f}")
    return []


def reciprocals(
    output: Output, training: Array, settings: Settings, candidates: Candidates
) -> Candidates:
    """Return the candidates with sums for 1 / y in place of ratios with one term above."""
    data = output.scaled(-1.0)
    ratios = [
        key
        for key in candidates.sums
        if key[0] == (None, 1.0, key[1] - 1) and key[1] > 1  # with one term above
    ]
    if data is None or not ratios:
        return candidates
    _, more = chosen_rows(data, training, settings.seed)
    for key in ratios:
        problem, candidate = candidates.sums[key]
        u = np.vstack([-candidate.u[:1], candidate.u[1:] - candidate.u[0]])
        if ((u < more.low) | (u > more.high)).any():
            continue
        free = np.vstack([candidate.free[:1], candidate.free[1:] | candidate.free[0]]) & (u != 0)
        c = np.append(1.0, candidate.c[1:]) / candidate.c[0] * problem.scale / more.scale
        parity = np.where(more.signed, np.abs(np.round(u)) % 2, 0.0)
        candidate = refine.refit(more, Sum(u, parity, free, c), settings.rules.loss)
        if math.isfinite(candidate.cost):
            candidates.add(more, candidate)
            del candidates.sums[key]
    return candidates


@np.errstate(over="ignore", invalid="ignore", divide="ignore")  # the results are checked
def _ratios(few: Problem, more: Problem, used: Array, settings: Settings) -> dict[int, list[Sum]]:
    """The best ratios by the number of terms of D next to the 1.

    few, more: the rows that choose terms, and those that choose among few ratios and the exponents.
    used: the inputs that may occur.
    """
    rules = settings.rules
    cells: dict[tuple[int, int], list[Sum]] = {}
    for fitted in sorted(_Search(few, used, rules).run(settings.max_terms), key=_cost):
        cells.setdefault(fitted.size, []).append(fitted.candidate)
    pairs = list[tuple[int, Sum]]()
    simple = list[tuple[int, Sum]]()  # those with few terms whose exponents are made free
    for (above, terms), candidates in cells.items():
        problem = _with_below(more, terms - 1)
        for k, candidate in enumerate(candidates[:KEPT]):
            candidate = refine.refit(problem, candidate, rules.loss)
            if math.isfinite(candidate.cost):
                pairs.append((terms - 1, candidate))
                if k == 0 and above + terms <= FEW_TERMS:
                    simple.append(pairs[-1])
    pairs.sort(key=lambda pair: pair[1].cost)
    chosen = [*pairs[:REFINED], *simple]
    if rules.exponents == "real":
        pairs = []
    pairs += [
        (below, _refined(_with_below(more, below), candidate, rules)) for below, candidate in chosen
    ]
    results: dict[int, list[Sum]] = {}
    for below, candidate in pairs:
        if _positive_between(_with_below(more, below), candidate):
            results.setdefault(below, []).append(candidate)
    return results


def _with_below(problem: Problem, below: int) -> Problem:
    """The problem of ratios: a term below may have a negative exponent of a column with zeros."""
    return replace(problem, below=below, low=-problem.high)


def _cost(fitted: Fitted) -> float:
    return fitted.candidate.cost


def _refined(problem: Problem, candidate: Sum, rules: Rules) -> Sum:
    """The ratio with other exponents where these are likelier."""
    free = (candidate.u != 0) & ~problem.signed
    if rules.exponents == "integer" or not free.any():
        return candidate
    other = refine.simplified(problem, replace(candidate, free=free), rules)
    return other if other.cost < candidate.cost or rules.exponents == "real" else candidate


def _positive_between(problem: Problem, candidate: Sum) -> bool:
    """Whether D has one sign at points between rows too: no pole is hidden between them."""
    above = len(candidate.c) - problem.below
    u, parity, c = candidate.u[above:], candidate.parity[above:], candidate.c[above:]
    used = np.flatnonzero((u != 0).any(0))
    rows = np.linspace(0, problem.rows - 1, BETWEEN).astype(int)
    other = np.random.default_rng(0).permutation(rows)
    if len(used) == 1:  # between all neighbours
        order = np.argsort(problem.logs[:, used[0]], kind="stable")
        rows, other = order[:-1], order[1:]
    for share in (0.25, 0.5, 0.75):
        logs = share * problem.logs[rows] + (1 - share) * problem.logs[other]
        negative = None if problem.negative is None else problem.negative[rows]
        between = replace(problem, logs=logs, negative=negative, zeros=None)
        if not (1 + between.products(u, parity) @ c > 0).all():
            return False
    return True


class _Search:
    """The products on some rows, and the fits of ratios of them."""

    def __init__(self, problem: Problem, used: Array, rules: Rules) -> None:
        self.problem, self.rules = problem, rules
        z, weight = problem.linear()
        self.weight = weight
        halves = rules.exponents == "rational" and rules.max_denominator > 1
        self.above, self.below = lattices(problem, used, problem.held, halves)
        self.N, self.D = (problem.products(u, self._parity(u)) for u in (self.above, self.below))
        good = np.isfinite(self.D).all(0)
        self.D, self.below = self.D[:, good], self.below[good]
        self.target = z * weight  # of unit errors, up to a factor
        self.fits: dict[Terms, Fitted | None] = {}

    def _parity(self, u: Array) -> Array:
        return np.where(self.problem.signed, np.abs(np.round(u)) % 2, 0.0)

    def run(self, max_terms: int) -> list[Fitted]:
        """Return all ratios that were fitted."""
        starts = sorted(self._pairs(max_terms), key=lambda start: start[0])
        last = self._fitted([terms for _, terms in starts[:STARTS]])
        if not last or self._misses(last[0]):
            more = self._fitted([*self._triples(max_terms), *self._eliminated(max_terms)])
            last = sorted([*last, *more], key=_cost)
        best = math.inf
        for _ in range(3):
            if (
                not last
                or last[0].candidate.cost >= best
                or is_exact(self.problem, last[0].candidate)
            ):
                break
            best = last[0].candidate.cost
            children: list[Terms] = []
            for parent in last[:PARENTS]:
                grown = sorted(self._grown(parent.terms, max_terms), key=lambda child: child[0])
                children += [terms for _, terms in grown[:CHILDREN]]
            last = self._fitted(children)
        fits = (fitted for fitted in self.fits.values() if fitted is not None)
        best_fit = min(fits, key=_cost, default=None)
        while best_fit is not None:
            shorter = self._fitted(list(_shorter(best_fit.terms)))
            if not shorter or not shorter[0].candidate.cost < best_fit.candidate.cost:
                break
            best_fit = shorter[0]
        return [fitted for fitted in self.fits.values() if fitted is not None]

    def _misses(self, fitted: Fitted) -> bool:
        """Whether the residuals are no noise."""
        candidate = fitted.candidate
        problem = replace(self.problem, below=len(fitted.terms[1]) - 1)
        used = (candidate.u != 0).any(0)
        residuals = problem.predict(candidate.u, candidate.parity, candidate.c)[1]
        return not is_exact(problem, candidate) and alike(problem.logs[:, used], residuals) > 0

    # ---- terms by eigenvalues --------------------------------------------------------------------

    def _divided(self, below: tuple[int, ...]) -> tuple[Array, Array, Array]:
        """The rows of N and of ``y**p D`` for these terms of D, and the factor of the latter.

        All are divided by the sizes of the terms of D, the columns of N have length 1. The factor
        makes the errors of the columns of ``y**p D`` orthonormal.
        """
        D = self.D[:, list(below)]
        D = D / np.abs(D).sum(1, keepdims=True)
        root = np.linalg.qr(D, mode="r")
        factor = np.linalg.pinv(root, rcond=1e-9)
        Y = self.target[:, None] * (D @ factor)
        size = np.abs(self.D[:, list(below)]).sum(1)
        N = self.N * (self.weight / size)[:, None]
        length = np.sqrt((N**2).sum(0))
        good = np.isfinite(length) & (length > 0)
        N = np.where(good, N, 0.0) / np.where(good, length, 1.0)
        return N, Y, factor

    def _pairs(self, max_terms: int) -> Iterator[tuple[float, Terms]]:
        """One or two terms of N with two of D, with their error."""
        if max_terms < 2 or len(self.above) < 2:
            return
        i, j = np.triu_indices(len(self.above), 1)
        for pair in self._pairs_below():
            N, Y, _ = self._divided(pair)
            G, b, C = N.T @ N, N.T @ Y, Y.T @ Y
            if not np.isfinite(C).all():
                continue
            squares = b[:, :, None] * b[:, None, :]
            errors = _smallest_eigenvalue(C - squares)
            for k in np.argsort(errors)[:PAIRS].tolist():
                yield float(errors[k]), ((k,), pair)
            g = G[i, j, None, None]
            cross = b[i, :, None] * b[j, None, :]
            both = squares[i] + squares[j] - g * (cross + cross.transpose(0, 2, 1))
            errors = np.where(
                abs(g[:, 0, 0]) < 1 - 1e-6, _smallest_eigenvalue(C - both / (1 - g * g)), math.inf
            )
            for k in np.argpartition(errors, min(PAIRS, len(errors) - 1))[:PAIRS].tolist():
                yield float(errors[k]), ((int(i[k]), int(j[k])), pair)

    def _triples(self, max_terms: int) -> list[Terms]:
        """Three terms of N with two of D, where there are few."""
        count = len(self.above)
        if max_terms < 3 or math.comb(count, 3) > MAX_TRIPLES:
            return []
        sets = np.array(list(itertools.combinations(range(count), 3)), dtype=int).reshape(-1, 3)
        scored = list[tuple[float, Terms]]()
        for pair in self._pairs_below():
            N, Y, _ = self._divided(pair)
            G = (N.T @ N + DIAGONAL * np.eye(count))[sets[:, :, None], sets[:, None, :]]
            b = (N.T @ Y)[sets]
            errors = _smallest_eigenvalue(
                (Y.T @ Y)[None] - b.transpose(0, 2, 1) @ np.linalg.solve(G, b)
            )
            for k in np.argsort(errors)[:PAIRS].tolist():
                scored.append((float(errors[k]), (tuple(sets[k].tolist()), pair)))
        return [terms for _, terms in sorted(scored, key=lambda pair: pair[0])[:MORE]]

    def _pairs_below(self) -> list[tuple[int, int]]:
        """The pairs of terms of D without a common factor."""
        pairs = itertools.combinations(range(len(self.below)), 2)
        return [
            pair
            for pair in pairs
            if not self.below[list(pair)].min(0).any() and self._divides(pair)
        ]

    def _divides(self, below: tuple[int, ...]) -> bool:
        """Whether one of these terms of D at least is other than 0 in every row."""
        return bool(self.D[:, list(below)].any(1).all())

    def _eliminated(self, max_terms: int) -> list[Terms]:
        """The pairs of D with three and more terms of N that stay of all.

        The one without which the error grows least leaves first.
        """
        if max_terms < 3 or len(self.problem.target) < 2 * len(self.above):
            return []
        scored = list[tuple[float, tuple[int, int], Array, Array]]()
        for pair in self._pairs_below():
            N, Y, _ = self._divided(pair)
            inverse = np.linalg.inv(N.T @ N + DIAGONAL * np.eye(N.shape[1]))
            solution = inverse @ (N.T @ Y)
            rest = Y - N @ solution
            if np.isfinite(rest).all():
                values, vectors = np.linalg.eigh(rest.T @ rest)
                scored.append((float(values[0]), pair, inverse, solution @ vectors[:, 0]))
        scored.sort(key=lambda pair: pair[0])
        shorter: dict[int, list[tuple[float, Terms]]] = {}
        for _, pair, inverse, c in scored[:ELIMINATED]:
            N, Y, _ = self._divided(pair)
            stay = np.arange(len(c))
            while len(stay) > 3:
                k = int(np.argmin(c**2 / np.diag(inverse)))
                c = c - inverse[:, k] * (c[k] / inverse[k, k])
                inverse = inverse - np.outer(inverse[:, k], inverse[k] / inverse[k, k])
                c, inverse = np.delete(c, k), np.delete(np.delete(inverse, k, 0), k, 1)
                stay = np.delete(stay, k)
                if len(stay) <= max_terms:
                    Q = np.linalg.qr(N[:, stay])[0]
                    rest = Y - Q @ (Q.T @ Y)
                    error = float(_smallest_eigenvalue((rest.T @ rest)[None])[0])
                    shorter.setdefault(len(stay), []).append((error, (tuple(stay.tolist()), pair)))
        best = (sorted(sets, key=lambda pair: pair[0])[:MORE] for sets in shorter.values())
        return [terms for sets in best for _, terms in sets]

    def _grown(self, terms: Terms, max_terms: int) -> Iterator[tuple[float, Terms]]:
        """The ratios with one term more, of N or of D, with their error."""
        above, below = terms
        if len(above) < max_terms:
            N, Y, _ = self._divided(below)
            Q = np.linalg.qr(N[:, list(above)])[0]
            N, Y = N - Q @ (Q.T @ N), Y - Q @ (Q.T @ Y)
            length = (N**2).sum(0)
            b = N.T @ Y / np.sqrt(np.maximum(length, 1e-9))[:, None]
            errors = _smallest_eigenvalue((Y.T @ Y)[None] - b[:, :, None] * b[:, None, :])
            for k in np.flatnonzero(length > 1e-6).tolist():
                yield float(errors[k]), (tuple(sorted((*above, k))), below)
        if len(below) < max_terms:
            for k in set(range(len(self.below))) - set(below):
                more = tuple(sorted((*below, k)))
                N, Y, _ = self._divided(more)
                Q = np.linalg.qr(N[:, list(above)])[0]
                Y = Y - Q @ (Q.T @ Y)
                yield float(_smallest_eigenvalue((Y.T @ Y)[None])[0]), (above, more)

    # ---- fits ------------------------------------------------------------------------------------

    def _fitted(self, sets: list[Terms]) -> list[Fitted]:
        """The fits of these terms that were not tried before, the best first."""
        new = [terms for terms in dict.fromkeys(sets) if terms not in self.fits]
        for terms in new:
            candidate = self._start(terms)
            if candidate is not None:
                problem = _with_below(self.problem, len(terms[1]) - 1)
                candidate = refine.refit(problem, candidate, self.rules.loss, 8)
            finite = candidate is not None and math.isfinite(candidate.cost)
            self.fits[terms] = (
                Fitted(terms, candidate) if candidate is not None and finite else None
            )
        fits = [fitted for fitted in map(self.fits.get, new) if fitted is not None]
        return sorted(fits, key=_cost)

    def _start(self, terms: Terms) -> Sum | None:
        """The ratio with the coefficients of the smallest error, over a term of D."""
        above, below = map(list, terms)
        if not self._divides(terms[1]):
            return None
        N, Y, factor = self._divided(terms[1])
        if not (np.isfinite(N).all() and np.isfinite(Y).all()):
            return None
        solution = np.linalg.lstsq(N[:, above], Y, rcond=1e-12)[0]
        rest = Y - N[:, above] @ solution
        vector = np.linalg.svd(rest, full_matrices=False)[2][-1]
        d = factor @ vector
        size = np.abs(self.D[:, below]).sum(1)
        length = np.sqrt(((self.N[:, above] * (self.weight / size)[:, None]) ** 2).sum(0))
        c = solution @ vector / length
        values = self.D[:, below] @ d
        best: tuple[float, Sum] | None = None
        for k, term in enumerate(below):
            u = np.concatenate([self.above[above], np.delete(self.below[below], k, axis=0)])
            u = u - self.below[term]
            if d[k] == 0 or (np.sign(values) * np.sign(d[k] * self.D[:, term]) < 0).any():
                continue
            if (u[: len(above), self.problem.held] < 0).any():
                continue
            nats = sum(exponent_nats(w, 1) for w in u.ravel().tolist())
            if best is None or nats < best[0]:
                c_all = np.concatenate([c, np.delete(d, k)]) / d[k]
                best = nats, Sum(u, self._parity(u), np.zeros(u.shape, dtype=bool), c_all)
        return None if best is None else best[1]


def _shorter(terms: Terms) -> Iterator[Terms]:
    """The terms without each one of them."""
    above, below = terms
    if len(above) > 1:
        yield from ((above[:k] + above[k + 1 :], below) for k in range(len(above)))
    if len(below) > 2:
        yield from ((above, below[:k] + below[k + 1 :]) for k in range(len(below)))


def _smallest_eigenvalue(C: Array) -> Array:
    """The smallest eigenvalues of matrices ``[S, d, d]``."""
    C = np.nan_to_num(C, nan=1e300, posinf=1e300, neginf=1e300)
    if C.shape[1] == 2:
        half = (C[:, 0, 0] - C[:, 1, 1]) / 2
        mean = (C[:, 0, 0] + C[:, 1, 1]) / 2
        return mean - np.sqrt(half**2 + C[:, 0, 1] ** 2)
    return np.linalg.eigvalsh(C)[:, 0]


@functools.lru_cache(maxsize=32)
def _monomials(inputs: int, degree: int, negative: bool) -> Array:
    """Integer exponents ``[M, n]`` of sizes of at most this sum."""
    values = range(-degree if negative else 0, degree + 1)
    rows = [w for w in itertools.product(values, repeat=inputs) if sum(map(abs, w)) <= degree]
    return np.array(sorted(rows, key=lambda w: (sum(map(abs, w)), w)), dtype=float)


def lattices(problem: Problem, used: Array, zero: Array, halves: bool) -> tuple[Array, Array]:
    """Return the exponents ``[M, m]`` of the products of N and of D.

    Those of D are not negative: a common factor of its terms belongs to N. halves: with one input,
    also multiples of 1/2.
    """
    count = len(used)
    below = _monomials(count, DEGREES.get(count, 2), False)
    above = _monomials(count, 4 if count == 1 else 3 if count < 5 else 2, True)
    if len(above) > MAX_PRODUCTS:
        above = _monomials(count, 2, True)
    if count > 4:
        above = np.unique(np.concatenate([above, below]), axis=0)
    if halves and count == 1 and not problem.signed[used[0]]:
        above, below = (np.unique(np.concatenate([u, u / 2]), axis=0) for u in (above, below))
    results = []
    for w in (above, below):
        u = np.zeros((len(w), problem.inputs))
        u[:, used] = w
        outside = (u > problem.high).any(1) | (u[:, zero] < 0).any(1)
        results.append(u[~outside])
    return results[0], results[1]
