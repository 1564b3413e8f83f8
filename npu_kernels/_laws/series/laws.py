"""One law for time series: its criterion, its uncertainty, and how it is made simpler.

The criterion is the Bayesian information criterion of the trajectory: minus twice the logarithm of the likelihood plus
log n for each free number; an exponent that is a fraction costs what its description takes. Where the errors are not
known, each column has a variance of its own, the mean square of its residuals, but never below that of `EXACT`.

What may go is proposed by the quadratic approximation of the sum of squares ("optimal brain surgeon"): a coefficient or
an exponent that becomes 0, a term, an exponent that becomes a fraction. A list of proposals in order of their price is
tried in many lengths at once, one batch of least-squares problems; the criterion of the fitted laws decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor

from npu_kernels._laws.series.sensitivity import Stretches, Trajectories
from npu_kernels._laws.series.work import Descent, Work
from npu_kernels.optim import least_squares

EXACT = 1e-5  # of a column's size: residuals below count as exact
DONE = 1e-2  # of the square of that: a mean square that need not fall any more
CALM = 3  # steps
TRIED = 12  # laws of one batch
HOPE = 10.0  # price up to which a change belongs to the list that is tried at once
TRIAL, STEPS = 12, 25  # of least squares: for laws that are tried, for the one that stays
POOR = 30.0  # price from which a change is not tried by itself
WEIGHINGS = 4  # times that the weights follow from the residuals
GREATEST = 4.0  # exponents beyond are not rounded
SINGULAR = (
    1e-10  # of squared singular values, over the greatest: below, the data do not tell a direction
)


@dataclass(frozen=True)
class Law:
    """A law ``x [N]`` for some series; free ``[N]``: what was fitted. The rest is 0, a fraction or a known start."""

    problem: Trajectories
    x: Tensor
    free: Tensor

    # ---- how likely --------------------------------------------------------------------------------------------------

    def deviations(self) -> Tensor:
        """Standard deviations of the weighted residuals by column ``[D]``; 1 where the user gave them."""
        seen = self.problem.data.seen
        if self.problem.data.known:
            return torch.ones(seen.shape[2], dtype=self.x.dtype)
        count = seen.sum((0, 1)).clamp(min=1)
        squares = self.residuals().square().sum((0, 1))
        share = 1 - int(self.free.sum()) / int(seen.sum())
        return (squares / (count * max(share, 0.1))).sqrt().clamp(min=EXACT)

    def residuals(self) -> Tensor:
        """Weighted ``[S, M, D]``."""
        return self.problem.residual(self.x.unsqueeze(0)).view(self.problem.data.values.shape)

    def criterion(self) -> float:
        return float(criteria(self.problem, self.x.unsqueeze(0), self.free.unsqueeze(0))[0])

    def weighted(self) -> Trajectories:
        """The problem with residuals in units of their standard deviations."""
        return replace(self.problem, data=self.problem.data.weighted(1 / self.deviations()))

    def refitted(self, work: Work | None = None) -> Law:
        """The most likely numbers: least squares, with weights that follow from the residuals."""
        law, before = self, self.deviations()
        for _ in range(WEIGHINGS):
            x, _ = minimise(
                law.weighted(),
                law.x.unsqueeze(0),
                law.free.unsqueeze(0),
                STEPS,
                1e-6,
                work,
                whole=True,
            )
            law = replace(law, x=x[0])
            now = law.deviations()
            if torch.allclose(now, before, rtol=1e-3, atol=0):
                break
            before = now
        return law

    # ---- how certain -------------------------------------------------------------------------------------------------

    def information(self) -> Tensor:
        """``J'J`` of the free numbers, in units of the errors."""
        _, j = self.weighted().jacobian(self.x.unsqueeze(0))
        j = j[0][:, self.free]
        return j.mT @ j

    def uncertainty(self) -> tuple[Tensor, list[Tensor]]:
        """Covariance of the free numbers, infinite variances for those that the data do not tell; these directions.

        A direction is a unit vector of the free numbers, in units of their own precision.
        """
        information = self.information()
        length = information.diagonal().sqrt()
        dead = length <= length.max() * math.sqrt(SINGULAR)
        length = torch.where(dead, 1.0, length)
        normed = torch.where(
            dead | dead.unsqueeze(1), 0.0, information / torch.outer(length, length)
        )
        values, vectors = torch.linalg.eigh(normed)
        blind = values <= SINGULAR * values.max()
        inverse = (
            (vectors[:, ~blind] / values[~blind])
            @ vectors[:, ~blind].mT
            / torch.outer(length, length)
        )
        touched = (vectors[:, blind].abs() > 1e-3).any(1)
        inverse[touched.nonzero().squeeze(1), touched.nonzero().squeeze(1)] = math.inf
        return inverse, list(vectors[:, blind].mT)


def minimise(
    problem: Trajectories | Stretches,
    x: Tensor,
    free: Tensor,
    steps: int,
    tolerance: float = 1e-6,
    work: Work | None = None,
    whole: bool = False,
) -> tuple[Tensor, Tensor]:
    """Levenberg-Marquardt until no law's mean square falls by more than this share in some steps, or all are exact.

    work: that this belongs to; Ctrl-C ends it after a step, unless it is `whole`: short, and not counted.
    """
    inf, low = torch.full_like(x[:, 0], math.inf), lowest(problem)
    exact = DONE * (EXACT * float(problem.data.weight.amax())) ** 2
    key = "" if work is None else work.key(problem, x, free, steps, tolerance)
    kept = work.kept(key, x, steps, CALM) if work is not None and key else None
    now = (
        Descent(x, torch.full_like(inf, least_squares.FIRST_DAMPING), inf, 0, 0)
        if kept is None
        else kept
    )
    while now.steps < steps and now.calm < CALM:
        x, damping, error = least_squares.step(
            now.x, now.damping, free, problem.residual, problem.jacobian, low
        )
        fell = (now.error > error * (1 + tolerance)) & error.isfinite() & (error > exact)
        now = Descent(x, damping, error, 0 if fell.any() else now.calm + 1, now.steps + 1)
        if work is not None:
            work.keep(key, now)
            if not whole and not work.go_on():
                break
    return now.x, now.error


def lowest(problem: Trajectories | Stretches) -> Tensor:
    """The least value of every number: amounts do not start below 0."""
    shape, low = problem.shape, torch.full((problem.shape.size,), -math.inf, dtype=torch.float64)
    starts = torch.where(problem.data.positive, 0.0, -math.inf)
    low[shape.weights :] = starts.repeat(shape.series)
    return low


def criteria(problem: Trajectories, x: Tensor, free: Tensor) -> Tensor:
    """The criterion of K laws ``[K, N]``; inf where one is not finite."""
    data, n = problem.data, int(problem.data.seen.sum())
    squares = problem.residual(x).view(len(x), -1, data.values.shape[2]).square().sum(1)  # [K, D]
    if data.known:
        likelihood = squares.sum(1)
    else:
        count = data.seen.sum((0, 1))
        mean = (squares / count.clamp(min=1)).clamp(min=EXACT**2)
        likelihood = (count * mean.log()).sum(1)
    shape = problem.shape
    exponents, fixed = shape.split(x)[0].flatten(1), ~shape.split(free)[0].flatten(1)
    described = torch.tensor(
        [sum(map(describe, row[keep].tolist())) for row, keep in zip(exponents, fixed, strict=True)]
    )
    found = likelihood + math.log(n) * free.sum(1) + 2 * described
    return found.nan_to_num(math.inf, math.inf)


def describe(w: float) -> float:
    """Nats that a simple exponent takes beside 1."""
    fraction = Fraction(w).limit_denominator(64)
    return 0.6 * max(0.0, abs(w) - 1) + 1.3 * math.log(fraction.denominator)


# ---- simpler laws ----------------------------------------------------------------------------------------------------

Change = tuple[tuple[int, ...], float]  # numbers, and what they become
Form = tuple[
    tuple[bool, ...], ...
]  # of each term, which exponents and which coefficients are not 0
Met = dict[Form, tuple[float, Law]]  # the best law of each form, with its criterion


def pruned(law: Law, work: Work, met: Met | None = None) -> Law:
    """Without the coefficients, exponents and terms whose loss the criterion welcomes. met: gets the laws tried."""
    return _simpler(law, _removals, work, met)


def rounded(law: Law, most: int, work: Work) -> Law:
    """With exponents that are fractions of a denominator up to `most`, where the criterion falls."""
    return _simpler(law, lambda one: _fractions(one, most), work, None)


def form(law: Law) -> Form:
    """In any order of the terms; empty if there is none."""
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


def _fractions(law: Law, most: int) -> Iterator[Change]:
    for i in (
        law.free[: law.problem.shape.terms * law.problem.shape.states].nonzero().squeeze(1).tolist()
    ):
        w = float(law.x[i])
        whole = not bool(law.problem.data.positive[i % law.problem.shape.states])
        for o in dict.fromkeys(round(w * q) / q for q in range(1, 1 + (1 if whole else most))):
            if 0 < abs(o) <= GREATEST:
                yield (i,), o


def _simpler(
    law: Law, proposals: Callable[[Law], Iterator[Change]], work: Work, met: Met | None
) -> Law:
    best, value = law, law.criterion()
    if met is not None:
        _meet(met, value, law)
    vain: set[tuple[tuple[int, ...], float]] = set()
    while True:
        priced = [pair for pair in _plan(best, list(proposals(best))) if pair[0] not in vain]
        plan = [change for change, price in priced if price < POOR]
        if not plan or not work.go_on():
            return best
        cheap = sum(price < HOPE for _, price in priced)
        ends = sorted(
            {max(1, math.ceil(cheap * share / (TRIED // 2))) for share in range(1, TRIED // 2 + 1)}
        )
        tried = [plan[:end] for end in ends] + [[one] for one in plan[1 : 1 + TRIED // 2]]
        laws = [_changed(best, changes) for changes in tried]
        x, free = torch.stack([one.x for one in laws]), torch.stack([one.free for one in laws])
        x, _ = minimise(best.weighted(), x, free, TRIAL, 1e-3, work, whole=True)
        found = criteria(best.problem, x, free)
        if met is not None:
            for value_of, one, numbers in zip(found.tolist(), laws, x, strict=True):
                _meet(met, value_of, replace(one, x=numbers))
        which = int(found.argmin())
        if float(found[which]) < value:
            best = replace(best, x=x[which], free=free[which]).refitted(work)
            value = best.criterion()
        else:
            vain.update(one[0] for one in tried if len(one) == 1)


def _plan(law: Law, proposals: list[Change]) -> list[tuple[Change, float]]:
    """Changes in order of their price by the quadratic approximation, each after those before it.

    Changing the numbers b by d raises the squared error by ``d' C_bb^-1 d`` and moves the others along their
    covariance with b.
    """
    index = law.free.nonzero().squeeze(1)
    information = law.information()
    length = information.diagonal().sqrt().clamp(min=1e-12)
    normed = information / torch.outer(length, length) + 1e-9 * torch.eye(
        len(index), dtype=law.x.dtype
    )
    C = torch.linalg.inv(normed) / torch.outer(length, length)
    x, place = law.x[index].clone(), {int(i): n for n, i in enumerate(index)}
    each = math.log(int(law.problem.data.seen.sum()))
    left, gone = proposals, set[int]()
    found: list[tuple[Change, float]] = []
    while left:
        prices = []
        for numbers, value in left:
            b = [place[i] for i in numbers]
            off = x[b] - value
            cost = float(off @ torch.linalg.lstsq(C[b][:, b], off.unsqueeze(1)).solution.squeeze(1))
            prices.append(cost - each * len(b) + 2 * (describe(value) if value else 0.0))
        least = min(range(len(left)), key=lambda n: prices[n])
        numbers, value = left[least]
        found.append((left[least], prices[least]))
        b = [place[i] for i in numbers]
        gain = torch.linalg.lstsq(C[b][:, b], C[b]).solution  # [b, n]
        x = x - (x[b] - value) @ gain
        C = C - C[:, b] @ gain
        gone.update(numbers)
        left = [change for change in left if not gone & set(change[0])]
    return found


def _changed(law: Law, changes: list[Change]) -> Law:
    x, free = law.x.clone(), law.free.clone()
    for numbers, value in changes:
        x[list(numbers)], free[list(numbers)] = value, False
    return cleaned(replace(law, x=x, free=free))


def cleaned(law: Law) -> Law:
    """Without exponents of terms that are in no equation."""
    exponents, coefficients, starts = law.problem.shape.split(law.x)
    free_e, free_c, free_s = law.problem.shape.split(law.free)
    used = (coefficients != 0).any(0).unsqueeze(1)
    exponents, free_e = torch.where(used, exponents, 0.0), free_e & used
    join = law.problem.shape.join
    return replace(law, x=join(exponents, coefficients, starts), free=join(free_e, free_c, free_s))
