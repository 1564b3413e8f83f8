"""One law for time series: its most likely numbers and their uncertainty."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from npu_kernels.equations._series.criterion import criteria
from npu_kernels.equations._series.data import Series
from npu_kernels.equations._series.job import Descent, Job
from npu_kernels.equations._series.sensitivity import Stretches, Trajectories
from npu_kernels.optim import least_squares

EXACT_SHARE = 1e-2  # of the square of an exact residual: a mean square that need not fall more
MAX_CALM_STEPS = 3  # without a gain: then the minimisation of a law ends
REFIT_STEPS = 30  # of least squares
# Of squared singular values, over the greatest: below, the data do not tell a direction.
SINGULAR = 1e-10
MAX_DERIVATIVE = 1e100  # of a residual; the square of a greater one may overflow


@dataclass(frozen=True)
class Law:
    """A law for some series. Its fixed numbers are 0, fractions or known first states."""

    problem: Trajectories
    x: Tensor  # [N], the law's vector (`Shape`)
    free: Tensor  # [N], which numbers were fitted

    # ---- likelihood ----------------------------------------------------------------------------

    def deviations(self) -> Tensor:
        """Standard deviations of the weighted residuals ``[D]``; 1 where the user gave them."""
        residual = self.problem.residual(self.x.unsqueeze(0))
        return deviations(self.problem, residual, self.free.unsqueeze(0))[0]

    def residuals(self) -> Tensor:
        """The weighted residuals ``[S, M, D]``."""
        return self.problem.residual(self.x.unsqueeze(0)).view(self.problem.data.values.shape)

    def criterion(self) -> float:
        return float(criteria(self.problem, self.x.unsqueeze(0), self.free.unsqueeze(0))[0])

    def weighted(self) -> Trajectories:
        """The problem with residuals in units of their standard deviations."""
        return replace(self.problem, data=self.problem.data.weighted(1 / self.deviations()))

    def refitted(self, job: Job | None = None) -> Law:
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
        blind = values <= SINGULAR * values.max()
        inverse = (vectors[:, ~blind] / values[~blind]) @ vectors[:, ~blind].mT / lengths
        touched = (vectors[:, blind].abs() > 1e-3).any(1).nonzero().squeeze(1)
        inverse[touched, touched] = math.inf
        return inverse, list(vectors[:, blind].mT)


def deviations(problem: Trajectories, residual: Tensor, free: Tensor) -> Tensor:
    """Return the standard deviations of the residuals of K laws ``[K, D]``, as `Law` has them."""
    data, seen = problem.data, problem.data.seen
    if data.has_sigma:
        return residual.new_ones(len(residual), seen.shape[2])
    count = seen.sum((0, 1)).clamp(min=1).double()
    squares = residual.unflatten(1, (-1, seen.shape[2])).square().sum(1)
    share = (1 - free.sum(1, keepdim=True).double() / int(seen.sum())).clamp(min=0.1)
    errors: Tensor = (squares / (count * share)).sqrt().maximum(data.exact)
    return errors


def refitted(laws: Sequence[Law], job: Job | None = None) -> list[Law]:
    """Return the most likely numbers of some laws of one problem."""
    problem = laws[0].problem
    x, free = stacked(laws)
    x, _ = minimise(problem, x, free, REFIT_STEPS, 1e-6, job, is_short=True, likely=True)
    return [replace(law, x=numbers) for law, numbers in zip(laws, x, strict=True)]


def stacked(laws: Sequence[Law]) -> tuple[Tensor, Tensor]:
    """Return the vectors ``[K, N]`` of some laws, and which of their numbers are free."""
    return torch.stack([law.x for law in laws]), torch.stack([law.free for law in laws])


def information(laws: Sequence[Law]) -> list[Tensor]:
    """Return ``J'J`` of the free numbers of some laws of one problem, in units of the errors.

    A measurement whose derivatives are not finite, as those of a root of 0, tells nothing, and so
    does one of a column that the law does not keep finite.
    """
    _, jacobians = laws[0].problem.jacobian(stacked(laws)[0])
    matrices = []
    for law, jacobian in zip(laws, jacobians, strict=True):
        j = jacobian[:, law.free]
        deviations = law.deviations().repeat(len(j) // law.problem.shape.states)
        usable = (j.abs() < MAX_DERIVATIVE).all(1) & deviations.isfinite()
        j = torch.where(usable.unsqueeze(1), j / deviations.unsqueeze(1), 0.0)
        matrices.append(j.mT @ j)
    return matrices


def minimise(
    problem: Trajectories | Stretches,
    x: Tensor,
    free: Tensor,
    steps: int,
    tolerance: float = 1e-6,
    job: Job | None = None,
    is_short: bool = False,
    likely: bool = False,
) -> tuple[Tensor, Tensor]:
    """Minimise by Levenberg-Marquardt; return K laws ``[K, N]`` and their errors ``[K]``.

    A law ends where its error has not fallen by more than the share `tolerance` in some steps, or
    is exact: it does not depend on the other laws. The error is the mean square of the residuals,
    or, if `likely` and sigma is unknown, what `likelihood` says. job: the fit; Ctrl-C ends the
    minimisation after a step, unless it `is_short`: then its steps are not counted.
    """
    bounds, objective = limits(problem), least_squares.MEAN_SQUARE
    exact = EXACT_SHARE * _exact(problem.data) ** 2
    if likely and not problem.data.has_sigma:
        objective, exact = likelihood(problem.data), 0.0
    key = "" if job is None else job.key(problem, x, free, steps, tolerance, likely)
    state = job.saved(key, x, steps) if job is not None and key else None
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
    """Steps of K laws, which make the normal equations anew only for laws that have moved.

    Four steps in ten move no law. The states of a trial that became the law are not computed again.
    """

    def __init__(
        self,
        problem: Trajectories | Stretches,
        x: Tensor,
        free: Tensor,
        bounds: tuple[Tensor, Tensor],
        objective: least_squares.Objective,
    ) -> None:
        self.problem, self.free, self.bounds, self.objective = problem, free, bounds, objective
        zeros = x.new_zeros(*x.shape, x.shape[1])
        self.equations = least_squares.Normal(zeros[:, 0, 0].clone(), zeros, zeros[:, 0].clone())
        self.moved = torch.ones(len(x), dtype=torch.bool)
        self.trials: Tensor | None = None  # states of the last trials; None before the first ones

    def step(self, x: Tensor, damping: Tensor, lanes: Tensor) -> tuple[Tensor, ...]:
        """Take a step of the laws `lanes`; see `least_squares.step`."""
        if (moved := self.moved[lanes]).any():
            self._linearise(x[moved], lanes[moved])
        part = self.problem.lanes(lanes)

        def residual(trial: Tensor) -> Tensor:
            states = part.states(trial)
            if self.trials is None:
                self.trials = states.new_empty(len(self.moved), *states.shape[1:])
            self.trials[lanes] = states
            return part.compare(states)

        equations = least_squares.Normal(*(tensor[lanes] for tensor in self.equations))
        free = self.free[lanes]
        result = least_squares.damped_step(
            x, damping, free, residual, equations, self.bounds, self.objective
        )
        self.moved[lanes] = (result[0] != x).any(1)
        return result

    def _linearise(self, x: Tensor, lanes: Tensor) -> None:
        """Make the normal equations of the laws `lanes`."""
        states = None if self.trials is None else self.trials[lanes]
        jacobian = functools.partial(self.problem.lanes(lanes).jacobian, states=states)
        equations = least_squares.normal(x, self.free[lanes], jacobian, self.objective)
        for all_laws, some in zip(self.equations, equations, strict=True):
            all_laws[lanes] = some


def likelihood(data: Series) -> least_squares.Objective:
    """Return the most likely law's objective, where each column has an unknown variance.

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


def limits(problem: Trajectories | Stretches) -> tuple[Tensor, Tensor]:
    """Return the bounds of every number: amounts do not start below 0."""
    low, high = problem.shape.limits()
    low[problem.shape.weights :] = torch.where(problem.data.positive, 0.0, -math.inf).repeat(
        problem.shape.series
    )
    return low, high
