"""Candidate equations: their most likely numbers, their BIC, and the steps that solve them."""

from __future__ import annotations

import functools
import itertools
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npu_kernels._jobs.checkpoint import Memo, digest
from npu_kernels._jobs.driver import Progress
from npu_kernels.equations._numbers import FLOAT64_ROUNDING, exponent_nats, factor_nats
from npu_kernels.equations._series.data import Series
from npu_kernels.equations._series.sensitivity import FIXED, IMPLICIT, Segments, Trajectories
from npu_kernels.optim import least_squares

# ---- minimisations that continue -----------------------------------------------------------------
# The minimisations of one fit of time series: their progress, Ctrl-C, and their checkpoint.
#
# Nearly all of a fit's time is spent in `minimise`. The progress of each minimisation is saved
# under a digest of its arguments. A fit that is started again reads those that are done, continues
# the one that was interrupted, and so is bitwise identical.

VERSION = 3  # of a saved state


class Descent(NamedTuple):
    """The progress of a minimisation of K candidates."""

    x: Tensor  # [K, N], the candidates
    damping: Tensor  # [K]
    error: Tensor  # [K], half of the sum of squares
    calm: Tensor  # [K], last steps without a gain
    steps: int


class Job(Memo):
    """The progress of a fit.

    function: the user's. total: the steps that it may take. determined: its data and options by
    name, in text.
    """

    def __init__(self, function: str, total: int, determined: dict[str, str]) -> None:
        super().__init__(function, {"format": str(VERSION), **determined})
        self.total = total
        self.bar: Progress | None = None
        self.pressed: Sequence[bool] = ()
        self._done = self._before = 0
        self._seconds, self._begin = 0.0, time.monotonic()
        self._ended = False  # by Ctrl-C: later minimisations are no part of the fit

    @property
    def seconds(self) -> float:
        """The time of this process and those before it."""
        return self._seconds + time.monotonic() - self._begin

    def go_on(self) -> bool:
        """Count one step more; return False after Ctrl-C."""
        self._done = min(self._done + 1, self.total - 1)
        if self.bar is not None:
            self.bar.update(self._done, before=self._before)
        return not self.pressed

    # ---- minimisations -------------------------------------------------------------------------

    def key(self, *determined: Any) -> str:
        """Return the digest of a minimisation's arguments; empty without a checkpoint."""
        return "" if self.checkpoint is None else digest(*determined)

    def saved(self, key: str) -> Descent | None:
        """Return a minimisation's progress from the checkpoint, None without any."""
        if key not in self.kept:
            return None
        descent = Descent._make(self.kept[key])
        self._before = min(self._before + descent.steps, self.total - 1)
        self._done = min(self._done + descent.steps, self.total - 1)
        return descent

    def keep(self, key: str, descent: Descent) -> None:
        """Save a minimisation's progress."""
        if self.checkpoint is not None and not self._ended:
            self._ended = bool(self.pressed)
            super().keep(key, tuple(descent))

    # ---- saved and continued -------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return all that `restore` needs, in tensors and numbers."""
        return super().state() | {"seconds": self.seconds}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from a `state`; raise ValueError, which says what differs, for another fit's."""
        super().restore(state)
        self._seconds = state["seconds"]


# ---- the BIC -------------------------------------------------------------------------------
# The BIC by which candidates of time series are compared.
#
# It is the Bayesian information criterion of the trajectory: minus twice the logarithm of the
# likelihood plus log n for each free number, and twice the length of the products' description.
# That says of each factor which state it is a power of, and which power. Where the errors are
# unknown, each column has a variance of its own, the mean square of its residuals, but never below
# that of residuals that count as exact.

SAME_BIC = 0.05  # difference of the BIC below which a candidate is no better than another
# The description of a negative exponent is longer, and that of one that is not an integer, a free
# one too: of those of equations about one in six is negative, and about one in six no integer.
NEGATIVE_NATS = FRACTION_NATS = math.log(5)


def criteria(
    problem: Trajectories, x: Tensor, free: Tensor, residual: Tensor | None = None
) -> Tensor:
    """Return the BIC of K candidates ``[K, N]``.

    It is inf where a candidate is not finite, or lacks a required term. residual:
    the candidates', if it is known.
    """
    data, n = problem.data, int(problem.data.seen.sum())
    residual = problem.residual(x) if residual is None else residual
    squares = residual.view(len(x), -1, data.values.shape[2]).square().sum(1)  # [K, D]
    if data.has_sigma:
        likelihood = squares.sum(1)
    else:
        count = data.seen.sum((0, 1))
        mean = (squares / count.clamp(min=1)).maximum(data.exact.square().clamp(min=1e-300))
        likelihood = (count * mean.log()).sum(1)
    shape = problem.shape
    exponents, rates, _ = shape.split(x)
    free_exponents, free_rates, _ = shape.split(free)
    exponents, fixed = exponents.flatten(1), ~free_exponents.flatten(1)
    pairs = zip(exponents, fixed, strict=True)
    nats = [sum(map(exponent_nats, row[keep].tolist())) for row, keep in pairs]
    described = torch.tensor(nats, dtype=torch.float64)
    described += factor_nats(shape.states) * (exponents != 0).sum(1).double()
    described += NEGATIVE_NATS * (exponents < 0).sum(1).double()
    described += FRACTION_NATS * (exponents != exponents.round()).sum(1).double()
    values = likelihood + math.log(n) * free.sum(1).double() + 2 * described
    if not data.still.all():  # else no equation has a term
        has_terms = ((rates != 0) | free_rates)[:, :, : shape.fixed].any(1).all(1)
        values = values.where(has_terms, math.inf)
    return values.nan_to_num(math.inf, math.inf)


# ---- candidates ----------------------------------------------------------------------------------

EXACT_SHARE = 1e-2  # of the square of an exact residual: a mean square that need not fall more
MAX_CALM_STEPS = 3  # without a gain: then the minimisation of a candidate ends
REFIT_STEPS = 30  # of least squares
# Of squared singular values, over the largest: below, the data do not determine a direction.
SINGULAR = 1e-10
MAX_DERIVATIVE = 1e100  # of a residual; the square of a greater one may overflow


@dataclass(frozen=True)
class Candidate:
    """Equations for some series. Their fixed numbers are 0, fractions or known first states."""

    problem: Trajectories
    x: Tensor  # [N], the candidate's vector (`Shape`)
    free: Tensor  # [N], which numbers were fitted

    # ---- likelihood ----------------------------------------------------------------------------

    def deviations(self) -> Tensor:
        """Standard deviations of the weighted residuals ``[D]``; 1 where the user gave them."""
        residual = self.problem.residual(self.x.unsqueeze(0))
        return deviations(self.problem, residual, self.free.unsqueeze(0))[0]

    def residuals(self) -> Tensor:
        """The weighted residuals ``[S, M, D]``."""
        return self.problem.residual(self.x.unsqueeze(0)).view(self.problem.data.values.shape)

    def bic(self) -> float:
        return float(criteria(self.problem, self.x.unsqueeze(0), self.free.unsqueeze(0))[0])

    def weighted(self) -> Trajectories:
        """The problem with residuals in units of their standard deviations."""
        return replace(self.problem, data=self.problem.data.weighted(1 / self.deviations()))

    def refitted(self, job: Job | None = None) -> Candidate:
        """The most likely numbers."""
        return refitted([self], job)[0]

    # ---- uncertainty ---------------------------------------------------------------------------

    def information(self) -> Tensor:
        """``J'J`` of the free numbers, in units of the errors."""
        return information([self])[0]

    def uncertainty(self) -> tuple[Tensor, list[Tensor]]:
        """Return the covariance of the free numbers, and the directions that the data do not tell.

        A direction is a unit vector of the free numbers, in units of their own precision. Variances
        of numbers in these directions are infinite.
        """
        information = self.information()
        if not len(information):  # no number is free
            return information, []
        length = information.diagonal().sqrt()
        dead = length <= length.max() * math.sqrt(SINGULAR)
        length = torch.where(dead, 1.0, length)
        lengths = torch.outer(length, length)
        normed = torch.where(dead | dead.unsqueeze(1), 0.0, information / lengths)
        values, vectors = torch.linalg.eigh(normed)
        unidentified = values <= SINGULAR * values.max()
        inverse = (
            (vectors[:, ~unidentified] / values[~unidentified])
            @ vectors[:, ~unidentified].mT
            / lengths
        )
        touched = (vectors[:, unidentified].abs() > 1e-3).any(1).nonzero().squeeze(1)
        inverse[touched, touched] = math.inf
        return inverse, list(vectors[:, unidentified].mT)


def deviations(problem: Trajectories, residual: Tensor, free: Tensor) -> Tensor:
    """Return standard deviations ``[K, D]`` of K candidates' residuals, as `Candidate` does."""
    data, seen = problem.data, problem.data.seen
    if data.has_sigma:
        return residual.new_ones(len(residual), seen.shape[2])
    count = seen.sum((0, 1)).clamp(min=1).double()
    squares = residual.unflatten(1, (-1, seen.shape[2])).square().sum(1)
    share = (1 - free.sum(1, keepdim=True).double() / int(seen.sum())).clamp(min=0.1)
    errors: Tensor = (squares / (count * share)).sqrt().maximum(data.exact)
    return errors


def refitted(candidates: Sequence[Candidate], job: Job | None = None) -> list[Candidate]:
    """Return the most likely numbers of some candidates of one problem."""
    problem = candidates[0].problem
    x, free = stacked(candidates)
    x, _ = minimise(problem, x, free, REFIT_STEPS, 1e-6, job, is_short=True, likely=True)
    return [replace(candidate, x=numbers) for candidate, numbers in zip(candidates, x, strict=True)]


def stacked(candidates: Sequence[Candidate]) -> tuple[Tensor, Tensor]:
    """Return the vectors ``[K, N]`` of some candidates, and which of their numbers are free."""
    return torch.stack([candidate.x for candidate in candidates]), torch.stack(
        [candidate.free for candidate in candidates]
    )


def criteria_of(candidates: Sequence[Candidate]) -> Tensor:
    """Return the criteria ``[K]`` of candidates of one problem."""
    x, free = stacked(candidates)
    return criteria(candidates[0].problem, x, free)


def information(candidates: Sequence[Candidate]) -> list[Tensor]:
    """Return ``J'J`` of the free numbers of some candidates of one problem, in units of the errors.

    A measurement whose derivatives are not finite, as those of a root of 0, tells nothing, and so
    does one of a column that the candidate does not keep finite.
    """
    _, jacobians = candidates[0].problem.jacobian(stacked(candidates)[0])
    matrices = []
    for candidate, jacobian in zip(candidates, jacobians, strict=True):
        j = jacobian[:, candidate.free]
        deviations = candidate.deviations().repeat(len(j) // candidate.problem.shape.states)
        usable = (j.abs() < MAX_DERIVATIVE).all(1) & deviations.isfinite()
        j = torch.where(usable.unsqueeze(1), j / deviations.unsqueeze(1), 0.0)
        matrices.append(j.mT @ j)
    return matrices


def minimise(
    problem: Trajectories | Segments,
    x: Tensor,
    free: Tensor,
    steps: int,
    tolerance: float = 1e-6,
    job: Job | None = None,
    is_short: bool = False,
    likely: bool = False,
) -> tuple[Tensor, Tensor]:
    """Minimise by Levenberg-Marquardt; return K candidates ``[K, N]`` and their errors ``[K]``.

    A candidate ends where its error has not fallen by more than the share `tolerance` in some
    steps, or is exact: it does not depend on the other candidates. The error is the mean square of
    the residuals, or, if `likely` and sigma is unknown, what `likelihood` says. job: the fit;
    Ctrl-C ends the minimisation after a step, unless it `is_short`: then its steps are not counted.
    """
    bounds, objective = limits(problem), least_squares.MEAN_SQUARE
    exact = EXACT_SHARE * _exact(problem.data) ** 2
    if likely and not problem.data.has_sigma:
        objective, exact = likelihood(problem.data), 0.0
    key = "" if job is None else job.key(problem, x, free, steps, tolerance, likely)
    state = job.saved(key) if job is not None and key else None
    if state is None:
        error = torch.full_like(x[:, 0], math.inf)
        damping = torch.full_like(error, least_squares.FIRST_DAMPING)
        state = Descent(x, damping, error, torch.zeros_like(error), 0)
    descending = _Descending(problem, x, free, bounds, objective)
    while state.steps < steps and bool((state.calm < MAX_CALM_STEPS).any()):
        lanes = (state.calm < MAX_CALM_STEPS).nonzero().squeeze(1)
        before = state.error[lanes]
        x, damping, error = descending.step(state.x[lanes], state.damping[lanes], lanes)
        fell = (before > error * (1 + tolerance)) & error.isfinite()
        calm = torch.where(fell, 0.0, state.calm[lanes] + 1)
        calm = torch.where(error <= exact, float(MAX_CALM_STEPS), calm)
        pairs = zip(state[:4], (x, damping, error, calm), strict=True)
        x, damping, error, calm = (old.index_copy(0, lanes, new) for old, new in pairs)
        state = Descent(x, damping, error, calm, state.steps + 1)
        if job is not None:
            job.keep(key, state)
            if not is_short and not job.go_on():
                break
    return state.x, state.error


class _Descending:
    """Steps of K candidates, with new normal equations only for candidates that have moved.

    Four steps in ten move no candidate. The states of a trial that became the candidate are not
    computed again.
    """

    def __init__(
        self,
        problem: Trajectories | Segments,
        x: Tensor,
        free: Tensor,
        bounds: tuple[Tensor, Tensor],
        objective: least_squares.Objective,
    ) -> None:
        self.problem, self.free, self.bounds, self.objective = problem, free, bounds, objective
        zeros = x.new_zeros((*x.shape, x.shape[1]))
        self.equations = least_squares.Normal(zeros[:, 0, 0].clone(), zeros, zeros[:, 0].clone())
        self.moved = torch.ones(len(x), dtype=torch.bool)
        self.trials: Tensor | None = None  # states of the last trials; None before the first ones

    def step(self, x: Tensor, damping: Tensor, lanes: Tensor) -> tuple[Tensor, ...]:
        """Take a step of the candidates `lanes`; see `least_squares.step`."""
        if (moved := self.moved[lanes]).any():
            self._linearise(x[moved], lanes[moved])
        part = self.problem.lanes(lanes)

        def residual(trial: Tensor) -> Tensor:
            states = part.states(trial)
            if self.trials is None:
                self.trials = states.new_empty((len(self.moved), *states.shape[1:]))
            self.trials[lanes] = states
            return part.compare(states)

        equations = least_squares.Normal._make(tensor[lanes] for tensor in self.equations)
        free = self.free[lanes]
        result = least_squares.damped_step(
            x, damping, free, residual, equations, self.bounds, self.objective
        )
        self.moved[lanes] = (result[0] != x).any(1)
        return result

    def _linearise(self, x: Tensor, lanes: Tensor) -> None:
        """Make the normal equations of the candidates `lanes`."""
        states = None if self.trials is None else self.trials[lanes]
        jacobian = functools.partial(self.problem.lanes(lanes).jacobian, states=states)
        equations = least_squares.normal(x, self.free[lanes], jacobian, self.objective)
        for stored, some in zip(self.equations, equations, strict=True):
            stored[lanes] = some


def likelihood(data: Series) -> least_squares.Objective:
    """Return the most likely candidate's objective, where each column has an unknown variance.

    It is the geometric mean of the columns' mean squares, which are weighted by their numbers.
    """
    count = data.seen.sum((0, 1)).clamp(min=1).double()
    shares = count * data.observed / int(data.seen.sum())
    floor = EXACT_SHARE * data.exact.square()

    def squares(residual: Tensor) -> Tensor:
        columns = residual.unflatten(1, (-1, len(floor))).square().sum(1)
        squares: Tensor = (columns / count).maximum(floor)
        return squares

    def error(residual: Tensor) -> Tensor:
        mean: Tensor = (squares(residual).log() * shares).sum(1).exp()
        return mean.nan_to_num(math.inf, math.inf)

    def weights(residual: Tensor) -> Tensor:
        return squares(residual).rsqrt().repeat(1, residual.shape[1] // len(floor))

    return least_squares.Objective(error, weights)


def _exact(data: Series) -> float:
    """Return the weighted residual that counts as exact in every column."""
    residuals = data.exact * data.weight.amax((0, 1))
    return float(residuals[data.observed].min()) if data.observed.any() else 0.0


def limits(problem: Trajectories | Segments) -> tuple[Tensor, Tensor]:
    """Return the bounds of every number: amounts do not start below 0."""
    low, high = problem.shape.limits()
    low[problem.shape.weights :] = torch.where(problem.data.positive, 0.0, -math.inf).repeat(
        problem.shape.series
    )
    return low, high


# ---- forms ---------------------------------------------------------------------------------------
# The form of a candidate: which of its numbers are not 0.

# For each term, which exponents and which coefficients are not 0.
Form = tuple[tuple[bool, ...], ...]
Visited = dict[Form, tuple[float, Candidate]]  # the best candidate of each form, with its BIC


def form(candidate: Candidate) -> Form:
    """Return the candidate's form, whatever the order of its terms; empty without any term."""
    exponents, coefficients, _ = candidate.problem.shape.split(candidate.x != 0)
    rows = torch.cat([exponents, coefficients.mT], 1)[coefficients.any(0)]
    return tuple(sorted(tuple(row) for row in rows.tolist()))


def visit(visited: Visited, value: float, candidate: Candidate) -> None:
    """Add a candidate if it is the best one of its form."""
    kind = form(candidate)
    if kind and value < visited.get(kind, (math.inf,))[0]:
        visited[kind] = value, candidate


def cleaned(candidate: Candidate) -> Candidate:
    """Remove the exponents of terms that are in no equation."""
    exponents, coefficients, starts = candidate.problem.shape.split(candidate.x)
    free_e, free_c, free_s = candidate.problem.shape.split(candidate.free)
    used = (coefficients != 0).any(0).unsqueeze(1)
    exponents, free_e = torch.where(used, exponents, 0.0), free_e & used
    join = candidate.problem.shape.join
    return replace(
        candidate, x=join(exponents, coefficients, starts), free=join(free_e, free_c, free_s)
    )


def loosened(candidate: Candidate, loosen: bool) -> Candidate:
    """Free all numbers that are not 0, but for coefficients that stay.

    Exponents are free only where they may be fractions, if `loosen`.
    """
    exponents, coefficients, _ = candidate.problem.shape.split(candidate.x)
    _, _, starts = candidate.problem.shape.split(candidate.free)
    allowed = candidate.problem.shape.free_exponents(candidate.problem.data.positive)
    powers = (exponents != 0) & allowed & loosen
    free_coefficients = (coefficients != 0) & (candidate.problem.shape.log_sizes is None)
    return replace(candidate, free=candidate.problem.shape.join(powers, free_coefficients, starts))


# ---- steps ---------------------------------------------------------------------------------------
# Steps from node to node that solve a candidate of time series, and candidates that none of them
# solves.
#
# A candidate whose residuals change with the steps describes the steps and not the series. So
# candidates are compared by steps whose error is a small share of the measurements' errors: classic
# Runge-Kutta steps, halved until it is, or implicit ones. The error is the change by steps of half
# the size.

STEP_ERROR = 0.1  # of the errors' standard deviation: the error that the steps may have
# Steps from node to node. Where no implicit ones may follow Runge and Kutta's, there are up to
# MAX_STEPS of these, in a series of ALL_EXPLICIT_STEPS.
FIRST_STEPS, MANY_STEPS, MAX_STEPS, ALL_EXPLICIT_STEPS = 8, 64, 4096, 100_000
HOPELESS_CRITERION = 30.0  # above the best candidate's: finer steps are not tried for worse ones


def solved(problem: Trajectories, x: Tensor, free: Tensor) -> tuple[Trajectories, Tensor]:
    """Return the problem whose steps solve the best of K candidates ``[K, N]``; criteria ``[K]``.

    These are inf for candidates that the steps do not solve.
    """
    values = x.new_full((len(x),), math.inf)
    level = torch.zeros(len(x), dtype=torch.long)
    is_open = torch.arange(len(x))
    problems: list[Trajectories] = []
    residual, method = problem.residual(x), problem.method
    rounding = FLOAT64_ROUNDING * problem.data.weight.flatten(0, 1)  # which no steps avoid
    for finer in _ladder(problem):
        if finer.method != method:
            residual, method = finer.residual(x[is_open]), finer.method
        problems.append(finer)
        finer_criteria = criteria(finer, x[is_open], free[is_open], residual)
        halved = finer.finer().residual(x[is_open])
        off = (halved - residual).unflatten(1, (-1, problem.shape.states))
        errors = deviations(finer, residual, free[is_open]).unsqueeze(1)
        limit = (STEP_ERROR * errors).maximum(rounding)
        good = (off.abs() < limit).flatten(1).all(1) & finer_criteria.isfinite()
        values[is_open[good]], level[is_open[good]] = finer_criteria[good], len(problems) - 1
        rest = ~good & ~(finer_criteria >= values.min() + HOPELESS_CRITERION)
        if not values.isfinite().any():  # coarse steps may leave the finite numbers
            rest = ~good
        is_open, residual = is_open[rest], halved[rest]
        if not len(is_open):
            break
    number = int(level[values.argmin()]) if len(x) else 0
    return problems[number], values.where(level <= number, math.inf)


def _ladder(problem: Trajectories) -> Iterator[Trajectories]:
    """Yield the problem, and those of twice as many steps each; then implicit ones, if may be."""
    is_implicit, limit = problem.method == IMPLICIT, MANY_STEPS
    if not is_implicit and not problem.stiff:
        limit = max(limit, min(MAX_STEPS, ALL_EXPLICIT_STEPS // problem.data.times.shape[1]))
    yield problem
    while 2 * problem.steps <= limit:
        problem = problem.finer()
        yield problem
    if not is_implicit and problem.stiff:
        yield from _ladder(replace(problem, method=IMPLICIT, steps=FIRST_STEPS))


def accurate(candidate: Candidate, job: Job) -> Candidate | None:
    """Return a candidate fitted by steps that solve it; None where no steps do."""
    while True:
        problem, value = solved(
            candidate.problem, candidate.x.unsqueeze(0), candidate.free.unsqueeze(0)
        )
        if not value.isfinite():
            return None
        if (problem.steps, problem.method) == (candidate.problem.steps, candidate.problem.method):
            return candidate
        candidate = replace(candidate, problem=problem).refitted(job)


def explicit(candidate: Candidate, job: Job) -> Candidate:
    """Return a candidate by explicit steps where they solve it; others may need implicit steps."""
    problem = candidate.problem
    if problem.method == IMPLICIT and problem.stiff:
        begun = replace(problem, method=FIXED, steps=FIRST_STEPS)
        fine = accurate(replace(candidate, problem=begun), job)
        if fine is not None and fine.problem.method == FIXED:
            return fine.refitted(job)
    return candidate


def settled(candidate: Candidate, job: Job) -> Candidate:
    """Return a candidate whose numbers finer steps leave as they are.

    Explicit steps follow no rate beyond a limit, which may keep a candidate from a better one.
    """
    for finer in itertools.islice(_ladder(candidate.problem), 1, None):
        fine = accurate(replace(candidate, problem=finer).refitted(job), job)
        if fine is None or not fine.bic() < candidate.bic() - SAME_BIC:
            break
        candidate = fine
    return candidate


def best_accurate(candidates: Iterable[Candidate], job: Job) -> Candidate | None:
    """Return the best of some candidates by steps that solve them; None where none is solved.

    The candidates are in order of their criteria. Those behind the first one that finer steps make
    no worse are not tried.
    """
    best, lowest = None, math.inf
    for candidate in candidates:
        coarse = candidate.bic()
        if best is not None and coarse >= lowest:
            break
        fine = accurate(candidate, job)
        value = math.inf if fine is None else fine.bic()
        if value < lowest:
            best, lowest = fine, value
        if best is not None and lowest <= coarse + SAME_BIC:
            break
    return best
