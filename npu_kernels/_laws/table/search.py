"""The search: sums of 1, 2, ... products of powers for each output power, and the best of each number of terms.

It adds one term at a time to the best sums so far: the products of the library that explain most of what is left. For
two terms it also takes the best of all pairs. Then terms are exchanged. All starts are fitted in one batch (`varpro`),
the best are fitted to more rows, and their exponents made simple (`refine`).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from npu_kernels._laws.products.library import Library
from npu_kernels._laws.products.problem import AllRows, Problem
from npu_kernels._laws.table import refine
from npu_kernels._laws.table.refine import Rules, Sum
from npu_kernels._laws.table.varpro import Points, Solver
from npu_kernels._laws.table.work import Steps

Array = Any

POWERS = (1.0, -1.0, 2.0, -2.0, 0.5, -0.5)
ROWS = 300  # of the search
MORE_ROWS = 3000  # of the best ones
BEAM = 6  # sums to which a term is added
TRIED = 4  # sums whose exponents are made simple
ITERATIONS = 40
HALVINGS = (6, 12, 20)
POOR = 0.2  # relative root mean square error above which a sum may lack several terms at once
BEHIND = 4.0  # an output power continues while its squared error is below this many times that of power 1


@dataclass
class Settings:
    """What the search may do."""

    max_terms: int = 4
    rules: Rules = field(default_factory=Rules)
    starts: int = 64
    seed: int = 0
    show: Callable[[str], None] | None = None
    steps: Steps = field(default_factory=Steps)


@dataclass
class Found:
    """The best sum of each power and number of terms so far; complete is False after Ctrl-C."""

    sums: dict[tuple[float, int], tuple[Problem, Sum]] = field(default_factory=dict)
    errors: list[float] = field(
        default_factory=list
    )  # least squared errors of the first power, by number of terms
    complete: bool = True

    def add(self, problem: Problem, one: Sum) -> None:
        key = (problem.power, len(one.c))
        if len({tuple(row) for row in one.u.tolist()}) < len(one.u):
            return  # one term in two parts
        if math.isfinite(one.cost) and (key not in self.sums or one.cost < self.sums[key][1].cost):
            self.sums[key] = (problem, one)

    def best(self) -> tuple[Problem, Sum] | None:
        return min(self.sums.values(), key=lambda pair: pair[1].cost, default=None)

    def exact(self) -> bool:
        """Whether a sum's residuals are those of rounding."""
        return any(is_exact(problem, one) for problem, one in self.sums.values())

    def settled(self) -> bool:
        """Whether no other output power is to be tried: a sum is exact, or the best is one simple product.

        A power of a sum is often close to a sum of simple products, but not to one product, which has every power.
        """
        best = self.best()
        if best is None or self.exact():
            return best is not None
        problem, one = best
        close = one.rss < POOR**2 * problem.size
        return close and not one.free.any() and len(one.c) == 1 and (problem.power, 2) in self.sums


def is_exact(problem: Problem | AllRows, one: Sum) -> bool:
    return one.rss <= refine.EXACT**2 * problem.size


def search(
    whole: Callable[[float], AllRows | None],
    training: Array,
    settings: Settings,
    powers: tuple[float, ...],
    found: Found,
) -> Found:
    """Search these output powers and add to what is found.

    whole: gives the rows for a power, or None. training: the indices of those that may be used.

    Ctrl-C ends it with what is found until then; before that it raises KeyboardInterrupt.
    """
    try:
        for power in powers:
            if found.settled():
                break
            rows = whole(power)
            if rows is not None:
                errors = _one_power(rows, training, settings, found)
                found.errors = found.errors or errors
    except KeyboardInterrupt:
        print("NPURegressor: interrupted; what was found until now is returned", file=sys.stderr)
        if not found.sums:
            raise
        found.complete = False
    return found


def _one_power(whole: AllRows, training: Array, settings: Settings, found: Found) -> list[float]:
    """Sums of 1 to `max_terms` terms for one power; the least squared error of each number of terms."""
    generator = np.random.default_rng([settings.seed, round(12 * whole.power) % 1000])
    order = generator.permutation(len(training))
    some = whole.take(training[np.sort(order[:ROWS])])
    more = some if len(training) <= ROWS else whole.take(training[np.sort(order[:MORE_ROWS])])
    loss = settings.rules.loss
    library, solver = Library(some, generator), Solver(some, loss)
    large = solver if more is some else Solver(more, loss)
    beam: Points | None = None
    reference, best = found.errors, math.inf
    errors: list[float] = []
    worse, first = 0, not reference  # the other powers have half as many starts
    starts, tries = (
        (settings.starts, TRIED) if first else (max(8, settings.starts // 2), TRIED // 2)
    )
    # Where the units leave no exponent free there is one product of powers.
    most = min(settings.max_terms, max(1, len(training) - 1)) if whole.inputs else 1
    for terms in range(1, most + 1):
        fitted = partial(_fitted, solver, large, library, beam, terms, starts, generator)
        beam = settings.steps.points(generator, terms, whole.inputs, fitted)
        if terms == 1 and not first and most > 1:  # single products are the same with every power
            errors.append(math.inf)
            continue
        tried = settings.steps.sums(
            whole.inputs, partial(_simplified, more, _distinct(beam, tries), settings.rules)
        )
        if not tried:
            break
        best_one = min(tried, key=lambda s: s.cost)
        shortened = settings.steps.sums(
            whole.inputs, partial(_shortened, more, best_one, settings.rules)
        )
        for one in [*tried, *shortened]:
            found.add(more, one)
        errors.append(min(one.rss for one in tried))
        cost = min(one.cost for one in tried)
        if settings.show is not None:
            settings.show(f"power {whole.power:g}, {terms} terms: criterion {cost:.1f}")
        worse = worse + 1 if cost > best else 0
        if worse > (errors[-1] > POOR**2 * more.size) or any(is_exact(more, one) for one in tried):
            break
        if reference and errors[-1] > BEHIND * reference[min(terms, len(reference)) - 1]:
            break
        best = min(best, cost)
    return errors


def _simplified(problem: Problem, sums: list[Sum], rules: Rules) -> list[Sum]:
    """The sums with simple exponents, without those whose errors are not finite; none behind an exact one."""
    found: list[Sum] = []
    for one in sums:
        simple = refine.simplified(problem, one, rules)
        if math.isfinite(simple.cost):
            found.append(simple)
        if is_exact(problem, simple) and not simple.free.any():
            break
    return found


def _shortened(problem: Problem, one: Sum, rules: Rules) -> list[Sum]:
    """A sum without each of its terms: the search for fewer terms may have missed it."""
    found: list[Sum] = []
    for gone in range(len(one.c)) if len(one.c) > 1 else ():
        stay = np.arange(len(one.c)) != gone
        less = Sum(one.u[stay], one.parity[stay], one.free[stay], one.c[stay])
        less = refine.refit(problem, less, rules.loss)
        if math.isfinite(less.cost) and less.rss < 2 * one.rss:
            found.append(refine.simplified(problem, replace(less, free=less.u != 0), rules))
    return [less for less in found if math.isfinite(less.cost)]


def _fitted(
    solver: Solver,
    large: Solver,
    library: Library,
    beam: Points | None,
    terms: int,
    starts: int,
    generator: Any,
) -> Points:
    """The best sums of so many terms, the best first."""
    u, parity = _starts(solver, library, beam, terms, starts, generator)
    points = solver.run(u, parity, ITERATIONS, HALVINGS)
    points = points.take(points.rss.argsort()[:BEAM])
    if terms > 1:
        u, parity = _exchanged(solver, library, points.take(torch.arange(min(2, len(points.rss)))))
        other = solver.run(u, parity, ITERATIONS // 2, HALVINGS)
        points = _joined(points, other)
    if large is not solver:
        points = large.run(points.u, points.parity, 12)
        points = points.take(points.rss.argsort())
    return points


def _joined(one: Points, two: Points) -> Points:
    both = Points(
        *(
            torch.cat([getattr(one, name), getattr(two, name)])
            for name in ("u", "parity", "c", "rss")
        )
    )
    order = both.rss.argsort()
    kept: list[int] = []
    for j in order.tolist():
        if all(abs(float(both.rss[j]) / max(float(both.rss[i]), 1e-300) - 1) > 1e-6 for i in kept):
            kept.append(j)
    return both.take(torch.tensor(kept[:BEAM]))


def _starts(
    solver: Solver, library: Library, beam: Points | None, terms: int, starts: int, generator: Any
) -> tuple[Array, Array]:
    """Exponents and parities ``[S, K, m]`` to start from."""
    picks: list[tuple[Array, Array]] = []

    def add(*chosen: int) -> None:
        picks.append((library.u[list(chosen)], library.parity[list(chosen)]))

    if terms == 1:
        for k in library.best(library.target, np.empty((len(library.target), 0)), starts // 2):
            add(k)
        picks.append(logarithmic(solver))
    elif beam is not None:
        share = max(4, starts // (2 * len(beam.rss)))
        for b in range(len(beam.rss)):
            u, parity = beam.u[b].numpy(), beam.parity[b].numpy()
            for v, odd in _beside(solver, library, beam.u[b], beam.parity[b], share):
                picks.append((np.vstack([u, v]), np.vstack([parity, odd])))
        if terms == 2:
            for pair in library.pairs(starts // 2):
                add(*pair)
    while len(picks) < starts:
        add(*generator.integers(len(library.u), size=terms))
    u, parity = (np.stack([pick[part] for pick in picks]) for part in (0, 1))
    return u + 0.02 * generator.standard_normal(u.shape), parity


def _beside(
    solver: Solver, library: Library, u: Any, parity: Any, count: int
) -> list[tuple[Array, Array]]:
    """Exponents and parities of products to add to one sum: of the library, and of one of its terms by a factor."""
    A = solver.terms(u, parity).T.numpy()
    A = A / np.maximum(np.linalg.norm(A, axis=0), 1e-300)
    c = np.linalg.lstsq(A, library.target, rcond=1e-12)[0]
    r = library.target - A @ c
    if solver.robust:
        limit = 3 * refine.robust_scale(r)
        r = np.clip(r, -limit, limit)
    near = library.near(r, A, u.numpy(), parity.numpy(), count // 2)
    return [(library.u[k], library.parity[k]) for k in library.best(r, A, count - len(near))] + near


def _exchanged(solver: Solver, library: Library, points: Points) -> tuple[Array, Array]:
    """Each sum with each of its terms replaced by one of the library."""
    us: list[Array] = []
    parities: list[Array] = []
    for u, parity in zip(points.u, points.parity, strict=True):
        for gone in range(len(u)):
            stay = [k for k in range(len(u)) if k != gone]
            for v, odd in _beside(solver, library, u[stay], parity[stay], 4):
                us.append(np.vstack([u[stay].numpy(), v]))
                parities.append(np.vstack([parity[stay].numpy(), odd]))
    return np.stack(us), np.stack(parities)


def logarithmic(solver: Solver) -> tuple[Array, Array]:
    """Least squares of the logarithms: one product, rows weighted as the target's errors are."""
    L, weight = solver.logs.numpy(), solver.weight.numpy()
    z = solver.target.numpy() / np.where(weight > 0, weight, 1.0)
    size = np.maximum(np.abs(z), 1e-12)
    scale = weight * np.abs(z)
    A = np.concatenate([L, np.ones((len(L), 1))], 1) * scale[:, None]
    u = np.linalg.lstsq(A, np.log(size) * scale, rcond=1e-10)[0][None, :-1]
    u = np.clip(u, solver.low.numpy(), solver.high.numpy())
    parity = np.zeros_like(u)
    if solver.negative is not None:
        negative = solver.negative.numpy()
        for i in np.flatnonzero(negative.any(0)):
            parity[0, i] = round(u[0, i]) % 2
    return u, parity


def _distinct(points: Points, count: int) -> list[Sum]:
    """The best sums, each fit once."""
    found: list[Sum] = []
    seen: list[float] = []
    for j in range(len(points.rss)):
        error = float(points.rss[j])
        if len(found) == count:
            break
        if not math.isfinite(error) or any(abs(error / max(s, 1e-300) - 1) < 1e-5 for s in seen):
            continue
        seen.append(error)
        u, parity, c = (
            points.u[j].numpy().copy(),
            points.parity[j].numpy().copy(),
            points.c[j].numpy().copy(),
        )
        found.append(Sum(u, parity, np.ones(u.shape, dtype=bool), c))
    return found
