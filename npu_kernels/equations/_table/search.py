"""The search: the best sums of 1, 2, ... products of powers for each output power.

It adds one term at a time to the best sums so far: the products of the library that explain most of
the residuals. For two terms it also takes the best of all pairs. All
starts are fitted in one batch (`varpro`), the best are fitted to more rows, and their exponents
made simple (`refine.simplified`).
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import astuple, dataclass, field, fields, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from npu_kernels._jobs.checkpoint import Memo
from npu_kernels.equations._functions import OutputFunction
from npu_kernels.equations._library import Library
from npu_kernels.equations._limits import BOUND
from npu_kernels.equations._problem import AllRows, Output, Problem
from npu_kernels.equations._rows import alike, balanced
from npu_kernels.equations._table import refine
from npu_kernels.equations._table.refine import Rules, Sum, is_exact
from npu_kernels.equations._table.varpro import Points, Solver, solver_of

Array = Any

# ---- checkpoints ---------------------------------------------------------------------------------
# What a fit has computed, kept in a checkpoint.
#
# An interrupted fit continues from it to bitwise identical results.
#
# A fit is a sequence of steps, and each of them is determined by the data, the parameters and the
# steps before it. The results of nearly all of its time are kept in their order. A fit that is
# started again takes them and computes the rest.

FORMAT = 2  # of a saved state: another one where steps are added or change


class Work(Memo):
    """The steps of a fit's outputs.

    seed: of the search. determined: the data and parameters, by name.

    drawn: whether the seed is another one each time; a fit that continues then has the seed of the
    one before.
    """

    def __init__(self, seed: int, drawn: bool, determined: dict[str, str]) -> None:
        random_state = "None" if drawn else str(seed)
        facts = {"format": str(FORMAT), "numpy": np.__version__, **determined}
        super().__init__("NPURegressor.fit", facts | {"random_state": random_state})
        self.seed = seed

    def steps(self, output: int) -> Steps:
        """The steps of an output by its index."""
        return Steps(self, output)

    def state(self) -> dict[str, Any]:
        """All that `restore` needs, in tensors and numbers."""
        return super().state() | {"seed": self.seed}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`.

        Raises ValueError, which says what differs, if it is another fit's.
        """
        super().restore(state)
        self.seed = state["seed"]


class Steps:
    """The steps of one output in their order; those that were made before are not made again.

    work: None keeps nothing.
    """

    def __init__(self, store: Work | None = None, output: int = 0) -> None:
        self._work, self._output, self._made = store, output, 0

    def points(self, generator: Any, compute: Callable[[], Points]) -> Points:
        """Return the points that `compute` gives, which draws from the generator."""

        def packed() -> Any:
            points = compute()
            tensors = [getattr(points, field.name) for field in fields(points)]
            return [tensors, json.dumps(generator.bit_generator.state)]

        if self._work is None:
            return compute()
        tensors, state = self._work(self._key(), packed)
        generator.bit_generator.state = json.loads(state)
        return Points(*tensors)

    def sums(self, compute: Callable[[], list[Sum]]) -> list[Sum]:
        """Return the sums that `compute` gives."""
        if self._work is None:
            return compute()
        steps = self._work(self._key(), lambda: [_packed(candidate) for candidate in compute()])
        return [_unpacked(parts) for parts in steps]

    def sum(self, compute: Callable[[], Sum]) -> Sum:
        """Return the sum that `compute` gives."""
        [candidate] = self.sums(lambda: [compute()])
        return candidate

    def _key(self) -> str:
        """Return the key of the next step."""
        self._made += 1
        return f"{self._output}.{self._made - 1}"


def _packed(candidate: Sum) -> list[Any]:
    """A sum in tensors and numbers; each has its own memory."""
    return [
        torch.from_numpy(part.copy()) if isinstance(part, np.ndarray) else float(part)
        for part in astuple(candidate)
    ]


def _unpacked(parts: list[Any]) -> Sum:
    values: list[Any] = [part.numpy() if isinstance(part, torch.Tensor) else part for part in parts]
    return Sum(*values)


# ---- the search ----------------------------------------------------------------------------------

Form = tuple[OutputFunction | None, float, int]  # of y, its power, and `Scaled.below`

POWERS = (1.0, -1.0, 2.0, -2.0, 0.5, -0.5)
SEARCH_ROWS = 300  # rows to which all starts are fitted
MORE_ROWS = 3000  # rows to which the best sums are fitted
ROWS_OF_GROUP = 12  # of each group, as far as it has them, among both of these
BEAM = 6  # sums to which a term is added
SIMPLE_PAIRS = 16  # of simple products, among which the criterion chooses
FEW_TERMS = 4  # of an exact equation that is no approximation
SIMPLIFIED = 4  # sums of one number of terms whose exponents are made simple
ITERATIONS = 40  # of a batch of starts
HALVINGS = (6, 12, 20)  # iterations after which only the better half continues
ROUGH_ERROR = 0.2  # over the deviation of y: from it on a sum may lack several terms
# Below so many rows the residuals hardly show a pattern: only a product with a smaller error ends
# the search.
SMALL_TABLE, SMALL_ERROR = 30, 0.03
POWER_ERRORS = 4.0  # ratio of squared errors to those of the first power, up to which to go on


@dataclass
class Settings:
    """What the search may do."""

    max_terms: int = 4  # 0: as many as `stepwise` chooses
    rules: Rules = field(default_factory=Rules)
    starts: int = 64  # for each number of terms
    seed: int = 0
    leave_out: bool | None = None  # outliers; None: they are not looked for
    show: Callable[[str], None] | None = None  # tells a line of progress
    patient: bool = False  # see `search_on`
    ratios: bool | str = "auto"  # see `NPURegressor`
    steps: Steps = field(default_factory=Steps)  # of a checkpoint


@dataclass
class Candidates:
    """The best sum of each form and number of terms so far; complete is False after Ctrl-C."""

    sums: dict[tuple[Form, int], tuple[Problem, Sum]] = field(default_factory=dict)
    errors: list[float] = field(default_factory=list)  # of the first power, by number of terms
    complete: bool = True
    near: list[tuple[Problem, Sum]] = field(default_factory=list)  # simple sums close to the best

    def add(self, problem: Problem, candidate: Sum) -> None:
        key = (form(problem), len(candidate.c))
        if candidate.cost < (self.sums[key][1].cost if key in self.sums else math.inf):
            self.sums[key] = (problem, candidate)

    def best(self) -> tuple[Problem, Sum] | None:
        return min(self.sums.values(), key=lambda pair: pair[1].cost, default=None)

    def exact(self) -> bool:
        """Whether a sum's residuals are those of rounding."""
        return bool(self.shortest_exact())

    def shortest_exact(self) -> int:
        """The number of terms of the shortest exact sum; 0 if there is none."""
        exact = (
            len(candidate.c)
            for problem, candidate in self.sums.values()
            if is_exact(problem, candidate)
        )
        return min(exact, default=0)

    def may_be_shorter(self, power: float) -> bool:
        """Whether an equation for this power of y may be shorter than the exact ones.

        An exact equation of few terms with simple exponents approximates no other function. Its
        terms are fewer for another power only if it is a square, or another whole power, of a sum.
        A ratio of so few terms is none.
        """
        exact = [pair for pair in self.sums.values() if is_exact(*pair)]
        few = [pair for pair in exact if len(pair[1].c) <= FEW_TERMS and pair[1].is_simple]
        ratios = [problem.power / power for problem, _ in few if not problem.below]
        return not few or any(ratio >= 2 and ratio % 1 == 0 for ratio in ratios)

    def structure(self) -> float:
        """How alike the residuals of the best sum are in neighbouring rows: see `alike`.

        Ctrl-C ends the search.
        """
        best = self.best()
        if best is None:
            return 0.0
        problem, candidate = best
        residuals = problem.predict(candidate.u, candidate.parity, candidate.c)[1]
        used = (candidate.u != 0).any(0)
        try:
            likeness = max(alike(problem.logs[:, c], residuals) for c in (used, slice(None)))
            return max(likeness, refine.pattern_of(problem, candidate, problem.logs))
        except KeyboardInterrupt:
            self.complete = False
            return 0.0

    def settled(self) -> bool:
        """Whether no other output power is tried: the best sum is a simple product.

        A power of a sum is often close to a sum of simple products, but not to one product, which
        has every power.
        """
        best = self.best()
        if best is None or self.exact():
            return False
        problem, candidate = best
        rough = ROUGH_ERROR if problem.rows >= SMALL_TABLE else SMALL_ERROR
        close = candidate.rss < rough**2 * problem.size
        close &= bool((np.abs(candidate.u) < BOUND).all())
        simple = (
            close
            and not candidate.free.any()
            and len(candidate.c) == 1
            and (form(problem), 2) in self.sums
        )
        return simple and not self.structure()


def form(problem: Problem | AllRows) -> Form:
    """The function of y and its power that are a sum, or a ratio with so many terms below."""
    return problem.function, problem.power, problem.below


def search_on(
    output: Output, training: Array, settings: Settings, candidates: Candidates
) -> Candidates:
    """Search the forms again, without an early end, and add to the candidates.

    Starts are fitted with errors in proportion to y: with equal ones the largest rows would decide
    alone. The forms whose search ended with fewer terms come first.
    """
    reached = dict[Form, int]()
    for key, terms in candidates.sums:
        reached[key] = max(terms, reached.get(key, 0))
    patient = replace(settings, patient=True)
    for function, power, below in sorted(reached, key=reached.__getitem__):
        if below:
            continue
        of_form = replace(output, function=function)
        candidates = search(of_form, training, patient, (power,), candidates)
        if not candidates.complete:
            break
    return candidates


def search(
    output: Output,
    training: Array,
    settings: Settings,
    powers: tuple[float, ...],
    candidates: Candidates,
    one_power: Callable[..., list[float]] | None = None,
) -> Candidates:
    """Search some output powers and add to the candidates. training: indices of the rows to use.

    one_power: what searches one of them; None: the search for sums.

    Ctrl-C ends it with the candidates so far; if there are none, it raises KeyboardInterrupt.
    """
    try:
        for power in powers:
            shortest = candidates.shortest_exact()
            if shortest and output.function is None:  # only a shorter equation is better
                settings = replace(settings, max_terms=min(settings.max_terms, shortest - 1))
            end = settings.max_terms < 2 if shortest else candidates.settled()
            if end and output.function is None:
                break
            if output.function is None and not candidates.may_be_shorter(power):
                continue
            rows = output.scaled(power)
            if rows is not None:
                errors = (one_power or _one_power)(rows, training, settings, candidates)
                candidates.errors = candidates.errors or errors
    except KeyboardInterrupt:
        if not candidates.sums:
            raise
        candidates.complete = False
    return candidates


def _one_power(
    data: AllRows, training: Array, settings: Settings, candidates: Candidates
) -> list[float]:
    """Add sums of 1 to `max_terms` terms for one power; return the squared error of each number."""
    generator = np.random.default_rng([settings.seed, round(12 * data.power) % 1000])
    few, more = chosen_rows(data, training, settings.seed)
    rules, steps, inputs = settings.rules, settings.steps, data.inputs
    patient = settings.patient
    if patient:
        few = few.proportional()
    library = Library(few, generator, integers=rules.are_whole)
    solver = solver_of(few, rules.loss)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = float(library.target @ library.target)
    if not ((len(library.u) or data.fixed) and math.isfinite(squares)):
        return []  # this power of y spans more decades than there are numbers
    large = solver if more is few else solver_of(more, rules.loss)
    beam: Points | None = None
    of_function = data.function is not None
    reference, best = [] if patient or of_function else candidates.errors, math.inf
    errors, simple = list[float](), list[Sum]()
    worse, first = 0, not reference  # the other powers have half as many starts
    starts, count = settings.starts, SIMPLIFIED
    if not first:
        starts, count = max(8, starts // 2), count // 2
    fixed, min_terms = data.fixed, max(1, data.fixed)
    # Where the units leave no exponent free there is one product of powers.
    has_choice = inputs and len(library.u)
    max_terms = min(settings.max_terms, max(1, len(training) - 1)) if has_choice else min_terms
    errors += [math.inf] * (min_terms - 1)
    for terms in range(min_terms, max_terms + 1):
        fitted = partial(_fitted, solver, large, library, beam, terms, starts, generator)
        beam = steps.points(generator, fitted)
        if terms == 1 and not (first or fixed) and max_terms > 1:  # each power has the same
            errors.append(math.inf)
            continue
        distinct = _distinct(beam, count, fixed)
        sums = steps.sums(partial(_simplified, more, distinct, rules))
        if not fixed and not any(is_exact(more, candidate) for candidate in sums):
            simple = steps.sums(partial(_of_simple, more, library, terms, simple, rules))
            sums += simple
            candidates.near += [(more, candidate) for candidate in simple[1:]]
        if not sums and more.limits is not None and len(more.limits.barred):
            sums = steps.sums(partial(_of_library, more, library, terms, rules))
        if not sums:
            break
        best_sum = min(sums, key=lambda candidate: candidate.cost)
        for candidate in [*sums, *steps.sums(partial(_shortened, more, best_sum, rules))]:
            candidates.add(more, candidate)
        errors.append(min(candidate.rss for candidate in sums))
        cost = best_sum.cost
        if settings.show is not None:
            name = f"power {data.power:g}" if data.function is None else data.function.name
            settings.show(f"{name}, {terms} terms: criterion {cost:.1f}")
        worse = worse + 1 if cost > best else 0
        rough = errors[-1] > ROUGH_ERROR**2 * more.size
        if (worse > rough and not (patient or more.coded.all())) or any(
            is_exact(more, candidate) for candidate in sums
        ):
            break
        if reference and errors[-1] > POWER_ERRORS * reference[min(terms, len(reference)) - 1]:
            break
        best = min(best, cost)
    return errors


def chosen_rows(data: AllRows, training: Array, seed: int) -> tuple[Problem, Problem]:
    """Return the problems with the rows to which all starts are fitted, and the best sums.

    They are the same rows for every form: criteria of other rows could not be compared.
    """
    order, min_rows = np.random.default_rng([seed, 3]).permutation(len(training)), 0
    if data.group is not None:
        group = data.group[training]
        order, min_rows = balanced(group, order), ROWS_OF_GROUP * int(group[-1] + 1)
    first = max(SEARCH_ROWS, min_rows)
    few = data.take(training[np.sort(order[:first])])
    if len(training) <= first:
        return few, few
    return few, data.take(training[np.sort(order[: max(MORE_ROWS, min_rows)])])


def _simplified(problem: Problem, sums: list[Sum], rules: Rules) -> list[Sum]:
    """The sums with simple exponents and finite errors; none behind an exact sum."""
    candidates: list[Sum] = []
    for candidate in sums:
        simple = refine.simplified(problem, candidate, rules)
        if math.isfinite(simple.cost):
            candidates.append(simple)
        if is_exact(problem, simple) and not simple.free.any():
            break
    return candidates


def _of_simple(
    problem: Problem, library: Library, terms: int, shorter: list[Sum], rules: Rules
) -> list[Sum]:
    """Sums of products of the library, the best first; the criterion chooses among many of them.

    Their exponents are simple from the beginning, unless none shall be. Many sums with free
    exponents fit nearly as well as the equation where errors or a constant are large, and simple
    ones near them are no longer the equation. A logarithm is near to powers that cancel.

    shorter: such sums with one term less, to which products are added.
    """
    sets = library.single(BEAM) if terms == 1 else []
    sets += library.pairs(SIMPLE_PAIRS) if terms == 2 else []
    products = dict[Any, tuple[Array, Array]]()  # each once, in whatever order of its terms

    def add(u: Array, parity: Array) -> None:
        products.setdefault(frozenset(map(tuple, np.hstack([u, parity]).tolist())), (u, parity))

    for chosen in sets:
        add(library.u[list(chosen)], library.parity[list(chosen)])
    for candidate in shorter[:SIMPLIFIED] if terms > 2 else []:
        A = library.terms(candidate.u, candidate.parity)
        for k in library.best(library.remainder(A), A, SIMPLIFIED):
            add(
                np.vstack([candidate.u, library.u[k]]),
                np.vstack([candidate.parity, library.parity[k]]),
            )
    candidates: list[Sum] = []
    for u, parity in products.values():
        free = (u != 0) & ~problem.signed & (rules.exponents == "real")
        c = library.coefficients(library.terms(u, parity))
        candidates.append(refine.refit(problem, Sum(u, parity, free, c), rules.loss, 4))
    candidates = sorted(candidates, key=lambda candidate: candidate.cost)[:SIMPLIFIED]
    candidates = [
        refine.refit(problem, candidate, rules.loss)
        for candidate in candidates
        if math.isfinite(candidate.cost)
    ]
    return sorted(
        (candidate for candidate in candidates if math.isfinite(candidate.cost)),
        key=lambda candidate: candidate.cost,
    )


def _of_library(problem: Problem, library: Library, terms: int, rules: Rules) -> list[Sum]:
    """Sums of simple products, of which none is like a barred one.

    Exponents that move end at a barred product where this is the best one.
    """
    limits = problem.limits
    assert limits is not None
    candidates: list[Sum] = []
    for chosen in library.sets(terms - problem.fixed, BEAM, limits.u, limits.parity):
        u = np.vstack([limits.u, library.u[list(chosen)]])
        parity = np.vstack([limits.parity, library.parity[list(chosen)]])
        c = library.coefficients(library.terms(u, parity))
        candidate = Sum(u, parity, np.zeros(u.shape, dtype=bool), c)
        candidates.append(refine.refit(problem, candidate, rules.loss))
    return [candidate for candidate in candidates if math.isfinite(candidate.cost)]


def _shortened(problem: Problem, candidate: Sum, rules: Rules) -> list[Sum]:
    """A sum without each of its terms: the search for fewer terms may have missed it."""
    candidates: list[Sum] = []
    for removed in range(problem.fixed, len(candidate.c)) if len(candidate.c) > 1 else ():
        stay = np.arange(len(candidate.c)) != removed
        short = refine.refit(problem, candidate.take(stay), rules.loss)
        if math.isfinite(short.cost) and short.rss < 2 * candidate.rss:
            free = (short.u != 0) & (np.arange(len(short.c)) >= problem.fixed)[:, None]
            candidates.append(refine.simplified(problem, replace(short, free=free), rules))
    return [short for short in candidates if math.isfinite(short.cost)]


def _fitted(
    solver: Solver,
    large: Solver,
    library: Library,
    beam: Points | None,
    terms: int,
    starts: int,
    generator: Any,
) -> Points:
    """The best sums of `terms` terms, the best first. large: the solver with more rows."""
    u, parity = _starts(solver, library, beam, terms, starts, generator)
    points = solver.run(u, parity, ITERATIONS, HALVINGS)
    points = points.take(points.rss.argsort()[:BEAM])
    if large is not solver:
        points = large.run(points.u, points.parity, 12)
        points = points.take(points.rss.argsort())
    return points


def _starts(
    solver: Solver, library: Library, beam: Points | None, terms: int, starts: int, generator: Any
) -> tuple[Array, Array]:
    """Exponents and parities ``[S, K, m]`` to start from."""
    picks: list[tuple[Array, Array]] = []
    fixed = solver.fixed
    limits = solver.limits if fixed else None

    def add(*chosen: int) -> None:
        u, parity = library.u[list(chosen)], library.parity[list(chosen)]
        if limits is not None:
            u, parity = np.vstack([limits.u, u]), np.vstack([limits.parity, parity])
        picks.append((u, parity))

    if terms == fixed:
        add()
        starts = 1
    elif terms == 1:
        for chosen in library.single(starts // 2):
            add(*chosen)
    elif beam is not None:
        share = max(4, starts // (2 * len(beam.rss)))
        for b in range(len(beam.rss)):
            u, parity = beam.u[b].numpy(), beam.parity[b].numpy()
            for v, odd in _beside(solver, library, beam.u[b], beam.parity[b], share):
                picks.append((np.vstack([u, v]), np.vstack([parity, odd])))
        if terms == 2 and not fixed:
            for pair in library.pairs(starts // 2):
                add(*pair)
    while len(picks) < starts:
        add(*generator.integers(len(library.u), size=terms - fixed))
    u, parity = (np.stack([pick[part] for pick in picks]) for part in (0, 1))
    moved = u + 0.02 * generator.standard_normal(u.shape)
    moved[:, :fixed] = u[:, :fixed]
    return np.where((u == 0) & solver.held.numpy(), 0.0, moved), parity


def _beside(
    solver: Solver, library: Library, u: Any, parity: Any, count: int
) -> list[tuple[Array, Array]]:
    """Exponents and parities of products to add to a sum.

    These are products of the library, and products of a term of the sum and a factor.
    """
    A = solver.terms(u, parity).T.numpy()
    A = A / np.maximum(np.linalg.norm(A, axis=0), 1e-300)
    r = library.remainder(A)
    if solver.robust:
        limit = 3 * refine.robust_scale(r)
        r = np.clip(r, -limit, limit)
    near = library.near(r, A, u.numpy(), parity.numpy(), count // 2)
    return [(library.u[k], library.parity[k]) for k in library.best(r, A, count - len(near))] + near


def _distinct(points: Points, count: int, fixed: int) -> list[Sum]:
    """The best sums whose errors differ, at most `count`. fixed: terms whose exponents stay."""
    candidates: list[Sum] = []
    seen: list[float] = []
    for j, error in enumerate(points.rss.tolist()):
        if len(candidates) == count:
            break
        if not math.isfinite(error) or any(abs(error / max(s, 1e-300) - 1) < 1e-5 for s in seen):
            continue
        seen.append(error)
        u, parity, c = (part[j].numpy().copy() for part in (points.u, points.parity, points.c))
        free = np.ones(u.shape, dtype=bool)
        free[:fixed] = False
        candidates.append(Sum(u, parity, free, c))
    return candidates
