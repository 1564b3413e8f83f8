"""Sets of products of powers whose integrals explain time series best.

The sets are of simple products, from the library of `npu_kernels.equations`, or of products of
whole powers. They are chosen for all states together: all pairs are tried, beside each of the best
smaller sets. Their integrals are to explain the distance of the states from the first ones, which
is less noisy than slopes (Dattner and Klaassen 2015).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from npu_kernels.equations._series.data import Series
from npu_kernels.equations._series.sensitivity import Shape

MAX_DEGREES = {1: 6, 2: 6}  # of products of whole powers, by the number of states
MAX_DEGREE = 3  # of more states
SMALLER_SETS = 4  # of each number of terms below the greatest
BEAM_WIDTH = 128  # sets of simple products that are continued by two terms
CONTINUATIONS = 32  # of a set, the best ones
MIN_NEW = 1e-8  # of a product's square: the part that the products before it must not explain
COMPARED = 60  # sets of each kind, of which the best ones become starts
INTEGRALS_RIDGE = 1e-12  # of the normal equations, whose columns have length 1

Sets = Iterator[tuple[Tensor, Tensor]]  # exponents [h, D] and used terms [h], the best set first


class Course(NamedTuple):
    """States along which products are integrated, and what the integrals are to explain."""

    lengths: Tensor  # [S, P (M - 1)]: the distance of two nodes has P equal parts
    states: Tensor  # [S, P (M - 1) + 1, D]
    targets: Tensor  # [S, M - 1, D], distances of the states from the first ones
    is_shifted: bool  # whether the first states are unknown: then a constant may be added

    @property
    def parts(self) -> int:
        return self.lengths.shape[1] // self.targets.shape[1]

    def integrals(self, values: Tensor) -> Tensor:
        """Integrate ``values [S, P (M - 1) + 1, n]`` to each node but the first."""
        return integrals(values, self.lengths)[:, self.parts - 1 :: self.parts]


def simple_sets(
    course: Course, shape: Shape, fixed: Tensor, seed: int, max_terms: int | None = None
) -> Sets:
    """Return sets of simple products.

    fixed ``[n, D]``: exponents that each set has. max_terms: of a set, None for the law's number.
    """
    import numpy as np

    from npu_kernels.equations._products.library import Library
    from npu_kernels.equations._products.problem import Columns, all_rows
    from npu_kernels.equations._products.units import Exponents

    X = course.states.flatten(0, 1).numpy()
    n, d = X.shape
    free = Exponents.unrestricted(d)
    rows = all_rows(Columns.of(X), np.ones(n), np.ones(n), 1.0, free, None)
    assert rows is not None
    library = Library(rows.take(slice(None)), np.random.default_rng(seed))
    values = torch.from_numpy(library.A).view(*course.states.shape[:2], -1)
    return _sets(values, torch.from_numpy(library.u), course, shape, fixed, max_terms)


def integer_sets(course: Course, shape: Shape, fixed: Tensor, max_terms: int | None = None) -> Sets:
    """Return sets of products of whole powers up to `MAX_DEGREES`; see `simple_sets`."""
    d = course.states.shape[2]
    exponents = whole_products(d, MAX_DEGREES.get(d, MAX_DEGREE))
    return _sets(_products(course.states, exponents), exponents, course, shape, fixed, max_terms)


def whole_products(states: int, degree: int = MAX_DEGREE) -> Tensor:
    """Return the exponents ``[n, D]`` of products of whole powers, the smallest degree first."""
    rows = itertools.product(range(degree + 1), repeat=states)
    degrees = sorted((row for row in rows if sum(row) <= degree), key=sum)
    return torch.tensor(degrees, dtype=torch.float64)


class Ranked(NamedTuple):
    """Some sets for a law, the best first."""

    exponents: Tensor  # [K, h, D]
    coefficients: Tensor  # [K, D, h]
    free: Tensor  # [K, h, D], which exponents are
    used: Tensor  # [K, h], which terms are there
    criteria: Tensor  # [K], approximate: those of the integrals

    def some(self, index: Tensor | slice) -> Ranked:
        return Ranked(*(part[index] for part in self))


def ranked(
    data: Series,
    path: Tensor,
    shape: Shape,
    fixed: Tensor,
    signed: Tensor,
    seed: int,
    max_terms: int | None = None,
) -> Ranked:
    """Return the sets whose integrals along a trajectory explain the measurements best.

    path ``[S, P (M - 1) + 1, D]``: its states, at the nodes and between them. fixed ``[n, D]``:
    exponents of the first terms. signed: the states with whole exponents. max_terms: of a set.
    Coefficients are least squares of the measurements.
    """
    parts = (path.shape[1] - 1) // data.lengths.shape[1]
    lengths = data.lengths.repeat_interleave(parts, 1) / parts
    values = torch.where(data.seen, data.values, path[:, ::parts])
    unknown = data.start.isnan()
    course = Course(lengths, path, values[:, 1:] - path[:, :1], bool(unknown.any()))
    kinds = (
        simple_sets(course, shape, fixed, seed, max_terms),
        integer_sets(course, shape, fixed, max_terms),
    )
    simple, integer = (list(itertools.islice(kind, COMPARED)) for kind in kinds)
    no_terms = torch.zeros(shape.terms, shape.states).double(), torch.zeros(shape.terms).bool()
    exponents, used = map(torch.stack, zip(*(simple + integer or [no_terms]), strict=True))
    free = (exponents != 0) & ~signed
    free[len(simple) :] = False
    A = course.integrals(_products(path, exponents.flatten(0, 1)))
    A = A.unflatten(2, used.shape).nan_to_num(0.0, 0.0, 0.0) * used  # [S, M - 1, K, h]
    weight = data.weight[:, 1:] / (path[:, parts::parts] if data.relative else 1.0)
    count, fitted = data.seen.sum((0, 1)), shape.states - shape.inputs
    coefficients = exponents.new_zeros(len(used), shape.states, shape.terms)
    criteria = math.log(int(count.sum())) * used.sum(1).double() * fitted
    for d in range(fitted):
        c, square = explained(A, course.targets[..., d], weight[..., d], unknown[:, d])
        if not data.has_sigma:
            mean = (square / count[d].clamp(min=1)).maximum(data.exact[d].square())
            square = count[d] * mean.clamp(min=1e-300).log()
        criteria, coefficients[:, d] = criteria + square, c * used
    best = Ranked(exponents, coefficients, free, used, criteria)
    return best.some(criteria.argsort(stable=True))


def explained(A: Tensor, y: Tensor, weight: Tensor, unknown: Tensor) -> tuple[Tensor, Tensor]:
    """Return coefficients ``[K, h]`` and weighted squares ``[K]`` of what they do not explain.

    A ``[S, M, K, h]``; y, weight ``[S, M]``. unknown ``[S]``: a constant is added to these series.
    """
    X, Y = weight[..., None, None] * A, weight * y
    share = weight / weight.square().sum(1, keepdim=True).clamp(min=1e-300) * unknown.unsqueeze(1)
    Y = Y - weight * (share * Y).sum(1, keepdim=True)
    means = (share[..., None, None] * X).sum(1, keepdim=True)
    X = (X - weight[..., None, None] * means).flatten(0, 1).movedim(1, 0)  # [K, S M, h]
    size = X.norm(dim=1, keepdim=True).clamp(min=1e-300)
    X, Y = X / size, Y.reshape(-1, 1)
    gram = X.mT @ X + INTEGRALS_RIDGE * torch.eye(X.shape[2], dtype=X.dtype)
    c = torch.linalg.solve(gram, X.mT @ Y)
    return (c / size.mT).squeeze(2), (Y - X @ c).square().sum((1, 2))


def _sets(
    values: Tensor,
    exponents: Tensor,
    course: Course,
    shape: Shape,
    fixed: Tensor,
    max_terms: int | None,
) -> Sets:
    """Return sets of products whose integrals explain the states best.

    Between the sets of all terms are some of fewer. values ``[S, P (M - 1) + 1, n]``, exponents
    ``[n, D]``: of the products. Every set begins with the products that are given.
    """
    terms = (shape.terms if max_terms is None else min(max_terms, shape.terms)) - len(fixed)
    first = tuple(range(len(fixed)))
    possible = allowed(exponents, shape)
    exponents = torch.cat([fixed, exponents[possible]])
    values = torch.cat([_products(course.states, fixed), values[:, :, possible]], 2)
    A = course.integrals(values).flatten(0, 1)
    Y = course.targets.flatten(0, 1)[:, : shape.states - shape.inputs]
    if course.is_shifted:
        A, Y = A - A.mean(0), Y - Y.mean(0)
    A = A / A.norm(dim=0).clamp(min=1e-300)
    Y = Y / Y.norm(dim=0).clamp(min=1e-300)
    ranking = (A.mT @ Y).square().sum(1).argsort(descending=True, stable=True)
    singles = [(*first, k) for k in ranking.tolist() if k not in first]
    beams: list[list[tuple[int, ...]]] = [[first], singles]
    while len(beams) <= terms:
        beams.append(_extended(A, Y, beams[-2][:BEAM_WIDTH]) if beams[-2] else [])
    fewer = [
        beams[size][n]
        for n in range(SMALLER_SETS)
        for size in range(terms - 1, 0, -1)
        if n < len(beams[size])
    ]
    chosen = beams[terms][:1]
    for n, largest in enumerate(beams[terms][1:]):
        chosen += [largest, *fewer[n : n + 1]]
    for products in chosen + fewer[max(len(beams[terms]) - 1, 0) :]:
        powers = exponents.new_zeros(shape.terms, exponents.shape[1])
        powers[: len(products)] = exponents[list(products)]
        yield powers, torch.arange(shape.terms) < len(products)


def _products(states: Tensor, exponents: Tensor) -> Tensor:
    """Return the products ``[S, M, n]`` of powers of states ``[S, M, D]``; exponents ``[n, D]``."""
    return (states.unsqueeze(2) ** exponents).prod(3)


def allowed(exponents: Tensor, shape: Shape) -> Tensor:
    """Return which products ``[n]`` have exponents within what is known."""
    possible = torch.ones(len(exponents), dtype=torch.bool)
    if shape.low is not None and shape.high is not None:
        possible &= ((exponents >= shape.low) & (exponents <= shape.high)).all(1)
    if shape.integer is not None:
        possible &= ((exponents == exponents.round()) | ~shape.integer).all(1)
    return possible


def integrals(values: Tensor, lengths: Tensor) -> Tensor:
    """Integrate ``values [S, M, n]`` from the first node to each later one.

    lengths ``[S, M - 1]``: from node to node; 0 behind the last node of a shorter series.

    The trapezoidal rule with its first correction, whose slopes are those of parabolas through
    three nodes: without noise, sets of nearly the same integrals are told apart.
    """
    h = lengths.unsqueeze(2)
    chords = torch.where(h > 0, values.diff(dim=1) / h.clamp(min=1e-300), 0.0)
    areas = (values[:, 1:] + values[:, :-1]) / 2 * h
    if h.shape[1] == 1:  # two nodes
        return areas
    share = h[:, 1:] / (h[:, 1:] + h[:, :-1]).clamp(min=1e-300)
    inner = share * chords[:, :-1] + (1 - share) * chords[:, 1:]
    slopes = torch.cat([2 * chords[:, :1] - inner[:, :1], inner], 1)
    ends = 2 * chords - slopes  # slopes where an interval ends, by the same parabola
    is_last = torch.nn.functional.pad(h[:, 1:] == 0, (0, 0, 0, 1), value=True)
    after = torch.where(is_last, ends, torch.cat([slopes[:, 1:], ends[:, -1:]], 1))
    corrections = h.square() / 12 * (after - slopes)
    return (areas - corrections).cumsum(1)


def _extended(A: Tensor, Y: Tensor, sets: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the best sets that have two columns of A more than one of `sets`, all pairs tried."""
    errors: dict[tuple[int, ...], float] = {}
    n = A.shape[1]
    for chosen in torch.tensor(sets, dtype=torch.long).view(len(sets), -1).split(16):
        Q = torch.linalg.qr(A.T[chosen].mT)[0]  # [sets, rows, size]
        rest, columns = Y - Q @ (Q.mT @ Y), A - Q @ (Q.mT @ A)
        squares = columns.square().sum(1, keepdim=True)
        columns = torch.where(squares > MIN_NEW, columns / squares.clamp(min=MIN_NEW).sqrt(), 0.0)
        cosine, along = columns.mT @ columns, columns.mT @ rest
        single_gain, angle = along.square().sum(2), 1 - cosine.square()
        sums = single_gain.unsqueeze(2) + single_gain.unsqueeze(1)
        gain = (sums - 2 * cosine * (along @ along.mT)) / angle.clamp(min=MIN_NEW)
        is_dependent = (angle < MIN_NEW) | (squares < MIN_NEW) | (squares.mT < MIN_NEW)
        gain = torch.where(is_dependent, -math.inf, gain).triu(1)
        best, pair_index = gain.flatten(1).topk(min(CONTINUATIONS, n * n))
        remainders = rest.square().sum((1, 2)).unsqueeze(1) - best
        results = chosen.tolist(), pair_index.tolist(), remainders.tolist()
        for row, pairs, values in zip(*results, strict=True):
            for pair, value in zip(pairs, values, strict=True):
                if pair // n < pair % n and math.isfinite(value):
                    errors[tuple(sorted((*row, pair // n, pair % n)))] = value
    return sorted(errors, key=errors.__getitem__)
