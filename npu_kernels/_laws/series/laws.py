"""One law for time series: its criterion, its uncertainty, and its simplification.

The criterion is the Bayesian information criterion of the trajectory: minus twice the logarithm of
the likelihood plus log n for each free number, and for an exponent that is a fraction the length of
its description. Where the errors are unknown, each column has a variance of its own, the mean
square of its residuals, but never below that of `EXACT_RESIDUAL`.

The quadratic approximation of the sum of squares ("optimal brain surgeon") proposes changes: a
coefficient or an exponent that becomes 0, a term that goes, an exponent that becomes a fraction. A
list of proposals in order of their price is tried in many lengths at once, one batch of
least-squares problems; the criterion of the fitted laws decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from npu_kernels._laws.products.description import exponent_nats
from npu_kernels._laws.series.job import Descent, Job
from npu_kernels._laws.series.sensitivity import Stretches, Trajectories
from npu_kernels.optim import least_squares

EXACT_RESIDUAL = 1e-5  # of a column's size: smaller residuals count as exact
EXACT_SHARE = 1e-2  # of the square of EXACT_RESIDUAL: a mean square that need not fall any more
MAX_CALM_STEPS = 3  # without a gain: then a minimisation ends
TRIALS = 12  # laws of one batch
HOPE = 10.0  # price up to which a change belongs to the list that is tried at once
TRIAL_STEPS, REFIT_STEPS = 12, 25  # of least squares
MAX_PRICE = 30.0  # of a change that is tried by itself
WEIGHINGS = 4  # times that the weights follow from the residuals
MAX_ROUNDED = 4.0  # greatest exponent that is rounded
# Of squared singular values, over the greatest: below, the data do not tell a direction.
SINGULAR = 1e-10


@dataclass(frozen=True)
class Law:
    """A law for some series. Its fixed numbers are 0, fractions or known first states."""

    problem: Trajectories
    x: Tensor  # [N], the law's vector (`Shape`)
    free: Tensor  # [N], which numbers were fitted

    # ---- likelihood ----------------------------------------------------------------------------

    def deviations(self) -> Tensor:
        """Standard deviations of the weighted residuals ``[D]``; 1 where the user gave them."""
        seen = self.problem.data.seen
        if self.problem.data.has_sigma:
            return torch.ones(seen.shape[2], dtype=self.x.dtype)
        count = seen.sum((0, 1)).clamp(min=1)
        squares = self.residuals().square().sum((0, 1))
        share = 1 - int(self.free.sum()) / int(seen.sum())
        return (squares / (count * max(share, 0.1))).sqrt().clamp(min=EXACT_RESIDUAL)

    def residuals(self) -> Tensor:
        """The weighted residuals ``[S, M, D]``."""
        return self.problem.residual(self.x.unsqueeze(0)).view(self.problem.data.values.shape)

    def criterion(self) -> float:
        return float(criteria(self.problem, self.x.unsqueeze(0), self.free.unsqueeze(0))[0])

    def weighted(self) -> Trajectories:
        """The problem with residuals in units of their standard deviations."""
        return replace(self.problem, data=self.problem.data.weighted(1 / self.deviations()))

    def refitted(self, job: Job | None = None) -> Law:
        """The most likely numbers: least squares, with weights that follow from the residuals."""
        law, before = self, self.deviations()
        for _ in range(WEIGHINGS):
            start = law.x.unsqueeze(0), law.free.unsqueeze(0)
            x, _ = minimise(law.weighted(), *start, REFIT_STEPS, 1e-6, job, is_short=True)
            law = replace(law, x=x[0])
            after = law.deviations()
            if torch.allclose(after, before, rtol=1e-3, atol=0):
                break
            before = after
        return law

    # ---- uncertainty ---------------------------------------------------------------------------

    def information(self) -> Tensor:
        """``J'J`` of the free numbers, in units of the errors."""
        _, j = self.weighted().jacobian(self.x.unsqueeze(0))
        j = j[0][:, self.free]
        return j.mT @ j

    def uncertainty(self) -> tuple[Tensor, list[Tensor]]:
        """Return the covariance of the free numbers, and the directions that the data do not tell.

        A direction is a unit vector of the free numbers, in units of their own precision. Variances
        of numbers in these directions are infinite.
        """
        information = self.information()
        length = information.diagonal().sqrt()
        dead = length <= length.max() * math.sqrt(SINGULAR)
        length = torch.where(dead, 1.0, length)
        lengths = torch.outer(length, length)
        normed = torch.where(dead | dead.unsqueeze(1), 0.0, information / lengths)
        values, vectors = torch.linalg.eigh(normed)
        blind = values <= SINGULAR * values.max()
        inverse = (vectors[:, ~blind] / values[~blind]) @ vectors[:, ~blind].mT / lengths
        touched = (vectors[:, blind].abs() > 1e-3).any(1).nonzero().squeeze(1)
        inverse[touched, touched] = math.inf
        return inverse, list(vectors[:, blind].mT)


def minimise(
    problem: Trajectories | Stretches,
    x: Tensor,
    free: Tensor,
    steps: int,
    tolerance: float = 1e-6,
    job: Job | None = None,
    is_short: bool = False,
) -> tuple[Tensor, Tensor]:
    """Minimise by Levenberg-Marquardt; return K laws ``[K, N]`` and their errors ``[K]``.

    It ends where no law's mean square falls by more than the share `tolerance` in some steps, or
    all are exact. job: the fit; Ctrl-C ends the minimisation after a step, unless it `is_short`:
    then its steps are not counted.
    """
    bounds = lowest(problem)
    exact = EXACT_SHARE * (EXACT_RESIDUAL * float(problem.data.weight.amax())) ** 2
    key = "" if job is None else job.key(problem, x, free, steps, tolerance)
    state = job.saved(key, x, steps, MAX_CALM_STEPS) if job is not None and key else None
    if state is None:
        error = torch.full_like(x[:, 0], math.inf)
        state = Descent(x, torch.full_like(error, least_squares.FIRST_DAMPING), error, 0, 0)
    while state.steps < steps and state.calm < MAX_CALM_STEPS:
        x, damping, error = least_squares.step(
            state.x, state.damping, free, problem.residual, problem.jacobian, bounds
        )
        fell = (state.error > error * (1 + tolerance)) & error.isfinite() & (error > exact)
        calm = 0 if fell.any() else state.calm + 1
        state = Descent(x, damping, error, calm, state.steps + 1)
        if job is not None:
            job.keep(key, state)
            if not is_short and not job.go_on():
                break
    return state.x, state.error


def lowest(problem: Trajectories | Stretches) -> Tensor:
    """Return the lower bound of every number: amounts do not start below 0."""
    shape, low = problem.shape, torch.full((problem.shape.size,), -math.inf, dtype=torch.float64)
    starts = torch.where(problem.data.positive, 0.0, -math.inf)
    low[shape.weights :] = starts.repeat(shape.series)
    return low


def criteria(problem: Trajectories, x: Tensor, free: Tensor) -> Tensor:
    """Return the criterion of K laws ``[K, N]``; inf where one is not finite."""
    data, n = problem.data, int(problem.data.seen.sum())
    squares = problem.residual(x).view(len(x), -1, data.values.shape[2]).square().sum(1)  # [K, D]
    if data.has_sigma:
        likelihood = squares.sum(1)
    else:
        count = data.seen.sum((0, 1))
        mean = (squares / count.clamp(min=1)).clamp(min=EXACT_RESIDUAL**2)
        likelihood = (count * mean.log()).sum(1)
    shape = problem.shape
    exponents, fixed = shape.split(x)[0].flatten(1), ~shape.split(free)[0].flatten(1)
    pairs = zip(exponents, fixed, strict=True)
    described = torch.tensor([sum(map(exponent_nats, row[keep].tolist())) for row, keep in pairs])
    values = likelihood + math.log(n) * free.sum(1) + 2 * described
    return values.nan_to_num(math.inf, math.inf)


# ---- simpler laws ------------------------------------------------------------------------------

Change = tuple[tuple[int, ...], float]  # numbers, and what they become
# For each term, which exponents and which coefficients are not 0.
Form = tuple[tuple[bool, ...], ...]
Met = dict[Form, tuple[float, Law]]  # the best law of each form, with its criterion


def pruned(law: Law, job: Job, met: Met | None = None) -> Law:
    """Remove the coefficients, exponents and terms that the criterion does not want.

    met: gets the laws that were tried.
    """
    return _simpler(law, _removals, job, met)


def rounded(law: Law, max_denominator: int, job: Job) -> Law:
    """Make exponents fractions of small denominators where the criterion falls."""
    return _simpler(law, lambda candidate: _fractions(candidate, max_denominator), job, None)


def form(law: Law) -> Form:
    """Return the law's form, whatever the order of its terms; empty without any term."""
    exponents, coefficients, _ = law.problem.shape.split(law.x != 0)
    rows = torch.cat([exponents, coefficients.mT], 1)[coefficients.any(0)]
    return tuple(sorted(tuple(row) for row in rows.tolist()))


def _meet(met: Met, value: float, law: Law) -> None:
    kind = form(law)
    if kind and value < met.get(kind, (math.inf,))[0]:
        met[kind] = value, law


def _removals(law: Law) -> Iterator[Change]:
    shape = law.problem.shape
    h, d = shape.terms, shape.states
    for i in law.free[: shape.weights].nonzero().squeeze(1).tolist():
        yield (i,), 0.0
    for k in range(h):  # all coefficients of a term
        column = tuple(h * d + j * h + k for j in range(d) if law.free[h * d + j * h + k])
        if len(column) > 1:
            yield column, 0.0


def _fractions(law: Law, max_denominator: int) -> Iterator[Change]:
    states = law.problem.shape.states
    exponents = law.free[: law.problem.shape.terms * states]
    for i in exponents.nonzero().squeeze(1).tolist():
        w = float(law.x[i])
        limit = max_denominator if bool(law.problem.data.positive[i % states]) else 1
        for fraction in dict.fromkeys(round(w * q) / q for q in range(1, 1 + limit)):
            if 0 < abs(fraction) <= MAX_ROUNDED:
                yield (i,), fraction


def _simpler(
    law: Law, proposals: Callable[[Law], Iterator[Change]], job: Job, met: Met | None
) -> Law:
    best, value = law, law.criterion()
    if met is not None:
        _meet(met, value, law)
    vain: set[tuple[tuple[int, ...], float]] = set()
    while True:
        priced = [pair for pair in _plan(best, list(proposals(best))) if pair[0] not in vain]
        plan = [change for change, price in priced if price < MAX_PRICE]
        if not plan or not job.go_on():
            return best
        cheap = sum(price < HOPE for _, price in priced)
        half = TRIALS // 2
        lengths = sorted({max(1, math.ceil(cheap * n / half)) for n in range(1, half + 1)})
        trials = [plan[:end] for end in lengths] + [[change] for change in plan[1 : 1 + half]]
        laws = [_changed(best, changes) for changes in trials]
        x, free = torch.stack([law.x for law in laws]), torch.stack([law.free for law in laws])
        x, _ = minimise(best.weighted(), x, free, TRIAL_STEPS, 1e-3, job, is_short=True)
        values = criteria(best.problem, x, free)
        if met is not None:
            for trial_value, trial, numbers in zip(values.tolist(), laws, x, strict=True):
                _meet(met, trial_value, replace(trial, x=numbers))
        winner = int(values.argmin())
        if float(values[winner]) < value:
            best = replace(best, x=x[winner], free=free[winner]).refitted(job)
            value = best.criterion()
        else:
            vain.update(changes[0] for changes in trials if len(changes) == 1)


def _plan(law: Law, proposals: list[Change]) -> list[tuple[Change, float]]:
    """Return changes in order of their price by the quadratic approximation.

    Each price is that after the changes before it.

    Changing the numbers b by d raises the squared error by ``d' C_bb^-1 d`` and moves the others
    along their covariance with b.
    """
    index = law.free.nonzero().squeeze(1)
    information = law.information()
    length = information.diagonal().sqrt().clamp(min=1e-12)
    lengths = torch.outer(length, length)
    normed = information / lengths + 1e-9 * torch.eye(len(index), dtype=law.x.dtype)
    C = torch.linalg.inv(normed) / lengths
    x, position = law.x[index].clone(), {int(i): n for n, i in enumerate(index)}
    log_n = math.log(int(law.problem.data.seen.sum()))
    open_changes, gone = proposals, set[int]()
    plan: list[tuple[Change, float]] = []
    while open_changes:
        prices = []
        for numbers, value in open_changes:
            b = [position[i] for i in numbers]
            off = x[b] - value
            cost = float(off @ torch.linalg.lstsq(C[b][:, b], off.unsqueeze(1)).solution.squeeze(1))
            prices.append(cost - log_n * len(b) + 2 * exponent_nats(value))
        cheapest = min(range(len(open_changes)), key=lambda n: prices[n])
        numbers, value = open_changes[cheapest]
        plan.append((open_changes[cheapest], prices[cheapest]))
        b = [position[i] for i in numbers]
        gain = torch.linalg.lstsq(C[b][:, b], C[b]).solution  # [b, n]
        x = x - (x[b] - value) @ gain
        C = C - C[:, b] @ gain
        gone.update(numbers)
        open_changes = [change for change in open_changes if not gone & set(change[0])]
    return plan


def _changed(law: Law, changes: list[Change]) -> Law:
    x, free = law.x.clone(), law.free.clone()
    for numbers, value in changes:
        x[list(numbers)], free[list(numbers)] = value, False
    return cleaned(replace(law, x=x, free=free))


def cleaned(law: Law) -> Law:
    """Remove the exponents of terms that are in no equation."""
    exponents, coefficients, starts = law.problem.shape.split(law.x)
    free_e, free_c, free_s = law.problem.shape.split(law.free)
    used = (coefficients != 0).any(0).unsqueeze(1)
    exponents, free_e = torch.where(used, exponents, 0.0), free_e & used
    join = law.problem.shape.join
    return replace(law, x=join(exponents, coefficients, starts), free=join(free_e, free_c, free_s))
