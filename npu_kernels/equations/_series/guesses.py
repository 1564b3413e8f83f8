"""Starts of the search: smoothed series, and products of powers that explain them.

Cubic smoothing splines give states and derivatives. All columns of a series have one smoothness, by
generalised cross-validation (Craven and Wahba 1979): states of one system change at one pace, and
few points of one column may not tell it. The sets of terms that explain states and derivatives best
become the starts; coefficients are least squares of the derivatives.

Half of the sets are of simple products, and a third of products of integer powers, whose exponents
stay. The others are drawn.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npu_kernels._common.checks import stream
from npu_kernels.equations._series.data import Series
from npu_kernels.equations._series.sensitivity import Shape

# ---- sets of products ----------------------------------------------------------------------------
# Sets of products of powers whose integrals explain time series best.
#
# The sets are of simple products, from the library of `npu_kernels.equations`, or of products of
# integer powers. They are chosen for all states together: all pairs are tried, with each of the
# best smaller sets. Their integrals are to explain the distance of the states from the first ones,
# which is less noisy than derivatives (Dattner and Klaassen 2015).

MAX_DEGREES = {1: 6, 2: 6}  # of products of integer powers, by the number of states
MAX_DEGREE = 3  # of more states
SMALLER_SETS = 4  # of each number of terms below the largest
BEAM_WIDTH = 128  # sets of simple products that are continued by two terms
CONTINUATIONS = 32  # of a set, the best ones
MIN_NEW = 1e-8  # of a product's square: the part that the products before it must not explain
COMPARED = 60  # sets of each kind, of which the best ones become starts
QUADRATIC = 8  # of products of degree 2 at most, as reactions and populations have them
RENEWED = 12  # further sets of all kinds, the simplest among them, from which a search goes on
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

    fixed ``[n, D]``: exponents that each set has. max_terms: of a set, None for the candidate's
    number.
    """
    import numpy as np

    from npu_kernels.equations._library import Library
    from npu_kernels.equations._problem import Columns, Output
    from npu_kernels.equations._units import Exponents

    X = course.states.flatten(0, 1).numpy()
    n, d = X.shape
    output = Output(Columns.of(X), np.ones(n), np.ones(n), Exponents.unrestricted(d))
    rows = output.scaled(1.0)
    assert rows is not None
    library = Library(rows.take(slice(None)), np.random.default_rng(seed))
    values = torch.from_numpy(library.A).view((*course.states.shape[:2], -1))
    return _sets(values, torch.from_numpy(library.u), course, shape, fixed, max_terms)


def integer_sets(
    course: Course,
    shape: Shape,
    fixed: Tensor,
    max_terms: int | None = None,
    degree: int | None = None,
) -> Sets:
    """Return sets of products of integer powers up to a degree; see `simple_sets`.

    degree: None for that of `MAX_DEGREES`.
    """
    d = course.states.shape[2]
    exponents = integer_products(d, degree or MAX_DEGREES.get(d, MAX_DEGREE))
    return _sets(_products(course.states, exponents), exponents, course, shape, fixed, max_terms)


def integer_products(states: int, degree: int = MAX_DEGREE) -> Tensor:
    """Return the exponents ``[n, D]`` of products of integer powers, the smallest degree first."""
    rows = itertools.product(range(degree + 1), repeat=states)
    degrees = sorted((row for row in rows if sum(row) <= degree), key=sum)
    return torch.tensor(degrees, dtype=torch.float64)


def plain_sets(
    exponents: Tensor, constant: Tensor, shape: Shape, fixed: Tensor, max_terms: int
) -> Sets:
    """Return the simplest sets: the states, the states and 1, a candidate's products made simpler.

    exponents ``[n, D]``: of the candidate. Each of them becomes -1, 0 or 1. constant ``[D]``:
    states of one value, which are no products.
    """
    states = torch.eye(shape.states, dtype=torch.float64)
    unity, states = states.new_zeros(1, shape.states), states[~constant]
    sets = {}
    for products in (states, torch.cat([states, unity]), exponents.sign()):
        rows = torch.cat([fixed, products[allowed(products, shape)]]).tolist()
        rows = list(dict.fromkeys(map(tuple, rows)))
        if len(rows) <= min(max_terms, shape.terms):
            sets[frozenset(rows)] = rows
    for rows in sets.values():
        powers = unity.new_zeros(shape.terms, shape.states)
        powers[: len(rows)] = unity.new_tensor(rows).view(-1, shape.states)
        yield powers, torch.arange(shape.terms) < len(rows)


class Ranked(NamedTuple):
    """Some sets for a candidate, the best first."""

    exponents: Tensor  # [K, h, D]
    coefficients: Tensor  # [K, D, h]
    free: Tensor  # [K, h, D], which exponents are
    used: Tensor  # [K, h], which terms are there
    criteria: Tensor  # [K], approximate: those of the integrals

    def some(self, index: Tensor | slice) -> Ranked:
        return Ranked._make(part[index] for part in self)


def ranked(
    data: Series,
    path: Tensor,
    exponents: Tensor,
    shape: Shape,
    fixed: Tensor,
    signed: Tensor,
    seed: int,
    max_terms: int,
) -> Ranked:
    """Return the simplest sets, and those whose integrals along a trajectory explain the rest best.

    path ``[S, P (M - 1) + 1, D]``: its states, at the nodes and between them. exponents ``[n, D]``:
    of its candidate. fixed ``[n, D]``: exponents of the first terms. signed: the states with
    integer exponents. max_terms: of a set. Coefficients are least squares of the measurements.
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
    plain = list(plain_sets(exponents, data.constant, shape, fixed, max_terms))
    products = integer_sets(course, shape, fixed, max_terms, 2) if shape.states > 1 else iter(())
    plain += (quadratic := list(itertools.islice(products, QUADRATIC)))
    no_terms = torch.zeros(shape.terms, shape.states).double(), torch.zeros(shape.terms).bool()
    exponents, used = map(torch.stack, zip(*(simple + integer + plain or [no_terms]), strict=True))
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
    order = criteria.argsort(stable=True)
    is_plain = order >= len(criteria) - len(plain)
    order = torch.cat([order[is_plain], order[~is_plain]])[: RENEWED + len(quadratic)]
    return Ranked(exponents, coefficients, free, used, criteria).some(order)


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

    The trapezoidal rule with its first correction, whose derivatives are those of parabolas through
    three nodes: without noise, sets of nearly the same integrals are distinguished.
    """
    h = lengths.unsqueeze(2)
    chords = torch.where(h > 0, values.diff(dim=1) / h.clamp(min=1e-300), 0.0)
    areas = (values[:, 1:] + values[:, :-1]) / 2 * h
    if h.shape[1] == 1:  # two nodes
        return areas
    share = h[:, 1:] / (h[:, 1:] + h[:, :-1]).clamp(min=1e-300)
    inner = share * chords[:, :-1] + (1 - share) * chords[:, 1:]
    derivatives = torch.cat([2 * chords[:, :1] - inner[:, :1], inner], 1)
    ends = 2 * chords - derivatives  # derivatives where an interval ends, by the same parabola
    is_last = torch.nn.functional.pad(h[:, 1:] == 0, (0, 0, 0, 1), value=True)
    after = torch.where(is_last, ends, torch.cat([derivatives[:, 1:], ends[:, -1:]], 1))
    corrections = h.square() / 12 * (after - derivatives)
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


# ---- starts --------------------------------------------------------------------------------------

MIN_SAMPLES = 4  # of a column, for a smoothing spline
EXACT_SPLINE = 1e-6  # relative residuals below count as exact
MIN_SIZE = 0.1  # of a column's root mean square: of a value, where errors are in proportion
MIN_AMOUNT = 1e-5  # of a column's size, where derivatives are matched
SAMPLED = (-1.0, -0.5, 0.0, 0.0, 0.0, 0.5, 0.5, 1.0, 1.0, 1.0, 1.5, 2.0)
SAMPLED_SETS = 4096  # of exponents
DERIVATIVES_RIDGE = 1e-6  # of the normal equations, whose columns have length 1
KINDS = "simple", "whole", "simple", "drawn", "simple", "whole"  # of the starts, in turn


def smoothed(data: Series) -> tuple[Tensor, Tensor]:
    """Return states and derivatives ``[S, M, D]`` at the nodes; nan without enough samples."""
    import numpy as np

    states = torch.full_like(data.values, math.nan)
    derivatives = torch.full_like(data.values, math.nan)
    noise = torch.zeros(data.values.shape[2], dtype=torch.float64)
    for s in range(len(data.times)):
        for curve in _splines(data, s):
            d, distinct, line = curve.column, curve.times, curve.line
            nodes = data.times[s].clamp(float(distinct[0]), float(distinct[-1])).numpy()
            value, rate = torch.from_numpy(line(nodes)), torch.from_numpy(line.derivative()(nodes))
            states[s, :, d] = value.exp() if data.relative else value
            derivatives[s, :, d] = value.exp() * rate if data.relative else rate
            noise[d] = max(float(noise[d]), math.sqrt(float(np.mean(curve.residuals**2))))
    states[:, 0] = torch.where(data.start.isnan() | ~data.observed, states[:, 0], data.start)
    # Below a tenth of the noise nothing is known of an amount's logarithm.
    floor = torch.where(data.positive, (noise / 10).clamp(min=MIN_AMOUNT), -math.inf)
    return torch.maximum(states, floor) if not data.relative else states, derivatives


def sized(data: Series) -> Series:
    """Return the series with weights 1 over the size of the smooth curve."""
    size = smoothed(data.scaled())[0].abs().nan_to_num(1.0).clamp(min=MIN_SIZE)
    return replace(data, weight=data.seen / size)


def spline_errors(data: Series) -> tuple[Tensor, Tensor]:
    """Return the standard deviations ``[D]`` of the errors, and their degrees of freedom ``[D]``.

    They are those of the smoothing splines, without any equation; nan in columns of too few
    samples.
    """
    import numpy as np

    squares, freedom = torch.zeros(2, data.values.shape[2], dtype=torch.float64).unbind(0)
    for s in range(len(data.times)):
        for curve in _splines(data, s):
            seen = data.seen[s, :, curve.column]
            weights = data.weight[s, seen, curve.column].numpy()
            weight = np.interp(curve.times, data.times[s, seen].numpy(), weights)
            squares[curve.column] += float(((weight * curve.residuals) ** 2).sum())
            freedom[curve.column] += curve.freedom
    errors = torch.where(freedom > 0, squares / freedom.clamp(min=1e-3), math.nan).sqrt()
    return errors, freedom


class _Curve(NamedTuple):
    """A smoothing spline of one column of a series."""

    column: int
    times: Any  # [n], distinct ones
    residuals: Any  # of the means at these times
    freedom: float  # degrees that the residuals have
    line: Any  # the spline, a function of time


def _splines(data: Series, s: int) -> list[_Curve]:
    """Return the smoothing splines of the columns of series s that have enough samples."""
    import numpy as np

    columns = []
    for d in range(data.values.shape[2]):
        seen = data.seen[s, :, d]
        t, y = data.times[s, seen].numpy(), data.values[s, seen, d].numpy()
        distinct, time_index = np.unique(t, return_inverse=True)
        sums = np.bincount(time_index, np.log(y) if data.relative else y)
        mean = sums / np.maximum(np.bincount(time_index), 1)
        if len(distinct) >= MIN_SAMPLES:
            columns.append((d, distinct, mean))
    return _curves(columns)


def _curves(columns: list[tuple[int, Any, Any]]) -> list[_Curve]:
    """Return the natural smoothing splines of columns: number, times and values of each."""
    import numpy as np
    from scipy.interpolate import CubicSpline

    smoothness = 10.0 ** np.arange(-12, 3, 0.25)[:, None]
    score, parts = 0.0, []
    for _, t, y in columns:
        n, (values, vectors) = len(t), _roughness(t.tobytes())
        keep = 1 / (1 + smoothness * np.maximum(values, 0))
        z = vectors.T @ y
        rest = (((1 - keep) * z) ** 2).sum(1) / max(float(((y - y.mean()) ** 2).sum()), 1e-300)
        score = score + n * np.log(np.maximum(rest, EXACT_SPLINE**2) / (1 - keep.sum(1) / n) ** 2)
        parts.append((keep, vectors, z))
    if not columns:
        return []
    best = int(np.argmin(score))
    curves = []
    for (d, t, y), (keep, vectors, z) in zip(columns, parts, strict=True):
        fitted = vectors @ (keep[best] * z)
        line = CubicSpline(t, fitted, bc_type="natural")
        curves.append(_Curve(d, t, y - fitted, len(t) - float(keep[best].sum()), line))
    return curves


@functools.lru_cache(maxsize=32)
def _roughness(times: bytes) -> tuple[Any, Any]:
    """Return eigenvalues and eigenvectors of the roughness of natural splines through times.

    Columns that were measured at the same times have the same.
    """
    import numpy as np

    gap = np.diff(np.frombuffer(times))
    n = len(gap) + 1
    Q, R = np.zeros((n, n - 2)), np.zeros((n - 2, n - 2))
    for i in range(n - 2):  # Green and Silverman (1994), section 2.3
        Q[i : i + 3, i] = 1 / gap[i], -1 / gap[i] - 1 / gap[i + 1], 1 / gap[i + 1]
        R[i, i] = (gap[i] + gap[i + 1]) / 3
        if i:
            R[i, i - 1] = R[i - 1, i] = gap[i] / 6
    values, vectors = np.linalg.eigh(Q @ np.linalg.solve(R, Q.T))
    return values, vectors


def matched(
    data: Series,
    states: Tensor,
    derivatives: Tensor,
    shape: Shape,
    fixed: Tensor,
    signed: Tensor,
    count: int,
    seed: int,
) -> tuple[Tensor, ...]:
    """Return exponents ``[count, h, D]``, coefficients ``[count, D, h]``, and what is free of them.

    fixed ``[n, D]``: exponents of the first terms. signed: the states with integer exponents.
    The free parameters are exponents ``[count, h, D]`` and terms ``[count, h]``. The first guesses
    do not depend on their count.
    """
    course = Course(data.lengths, states, states[:, 1:] - states[:, :1], False)
    simple = simple_sets(course, shape, fixed, seed)
    integer = integer_sets(course, shape, fixed)
    random = drawn(max(SAMPLED_SETS, count), shape, signed, stream("time series", seed))
    random[:, : len(fixed)] = fixed
    remainders = torch.cat([_solved(part, states, derivatives)[1] for part in random.split(512)])
    random = random[remainders.nan_to_num(math.inf).argsort(stable=True)]
    kinds = {
        "simple": ((u, (u != 0) & ~signed, used) for u, used in simple),
        "whole": ((u, torch.zeros_like(u, dtype=torch.bool), used) for u, used in integer),
        "drawn": ((u, (~signed).expand_as(u), u.new_ones(len(u)).bool()) for u in random),
    }
    starts: list[tuple[Tensor, ...]] = []
    for kind in itertools.cycle(KINDS):
        if len(starts) == count:
            break
        starts.append(next(kinds[kind], ()) or next(kinds["drawn"]))
    exponents, free, used = map(torch.stack, zip(*starts, strict=True))
    coefficients = _solved(exponents, states, derivatives, used.unsqueeze(1).double())[0]
    return exponents, coefficients, free, used


def drawn(count: int, shape: Shape, signed: Tensor, generator: torch.Generator) -> Tensor:
    """Draw exponents ``[count, h, D]``, integers for states of both signs."""
    lattice = torch.tensor(SAMPLED, dtype=torch.float64)
    pick = torch.randint(len(SAMPLED), (count, shape.terms, shape.states), generator=generator)
    exponents = lattice[pick]
    noise = 0.05 * torch.randn(exponents.shape, generator=generator, dtype=torch.float64)
    exponents = torch.where(signed, exponents.round(), exponents + noise)
    if shape.low is not None and shape.high is not None:
        exponents = exponents.clamp(shape.low, shape.high)
    return exponents


def _solved(
    exponents: Tensor, states: Tensor, derivatives: Tensor, used: Tensor | float = 1.0
) -> tuple[Tensor, Tensor]:
    """Fit the derivatives: coefficients ``[K, D, h]``, and relative remainders ``[K]``.

    used ``[K, 1, h]``: 0 for absent terms.
    """
    keep = derivatives.isfinite().all(-1) & states.isfinite().all(-1)
    X, Y = states[keep], derivatives[keep]
    logarithms = (X.abs().clamp(min=1e-12).log() @ exponents.mT).clamp(-30, 30)
    P = torch.exp(logarithms) * used  # [K, rows, h]
    if (X < 0).any():
        P = P * (1 - 2 * (((X < 0).double() @ exponents.round().abs().mT) % 2))
    length = P.norm(dim=1, keepdim=True).clamp(min=1e-30)
    Q = P / length
    gram = Q.mT @ Q + DERIVATIVES_RIDGE * torch.eye(Q.shape[2], dtype=Q.dtype)
    c = torch.linalg.solve(gram, Q.mT @ Y)
    remainder = (Y - Q @ c).square().sum(1) / Y.square().sum(0).clamp(min=1e-30)
    return (c / length.mT).mT, remainder.sum(1)
