"""The candidates of a fit, their held-out errors, and the choice."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from npu_kernels._jobs.checkpoint import like
from npu_kernels.fitting._data import Data
from npu_kernels.fitting._population import (
    COEFFICIENT,
    FREE,
    GATE,
    LINEAR,
    POWER,
    LastSum,
    Population,
    Scale,
    Template,
)
from npu_kernels.fitting._recipe import Candidate, Recipe

KINDS = ("raw", "refined", "powers", "rounded")
# Levels of simplicity: the denominator, plus _PARAMETER for each parameter that is not 0, plus
# _POWERS or _PLAIN if only powers or nothing is rounded.
_PARAMETER, _POWERS, _PLAIN = 100, 10**7, 10**8
WORST_RATIO = 1.5  # of the smallest error: models of larger ones are not chosen
STANDARD_ERRORS = 2.0  # of the difference of two models' held-out errors that count as none
COMPARED_MODELS = 16  # whose rows are compared at once

# The squared errors [C, M] of models [C, P] on rows of a problem.
Losses = Callable[[Tensor, int], Tensor]


def ranks(problem: Tensor, holdout_error: Tensor) -> Tensor:
    """Return the rank ``[A]`` of each error in its problem, from 0; the first of equals first."""
    order = holdout_error.argsort(stable=True)
    order = order[problem[order].argsort(stable=True)]
    owner = problem[order]
    index = torch.arange(len(order), device=order.device)
    rank = torch.empty_like(order)
    rank[order] = index - torch.searchsorted(owner, owner)
    return rank


class Pool(NamedTuple):
    """Models that may be chosen, C of them."""

    flat: Tensor  # their parameters [C, P], float64
    problem: Tensor  # [C], as the others
    start: Tensor
    kind: Tensor  # its number in `KINDS`
    denominator: Tensor
    holdout_error: Tensor
    base: Tensor  # the held-out error before rounding
    parameter_kind: Tensor  # [P]

    @classmethod
    def empty(cls, parameter_kind: Tensor) -> Pool:
        """Return the pool without models; parameter_kind: the template's."""
        index, real = parameter_kind[:0], parameter_kind[:0].double()
        flat = torch.empty(0, len(parameter_kind)).to(real)
        return cls(flat, index, index, index, index, real, real, parameter_kind)

    def add(
        self,
        models: Population,
        kind: str,
        denominator: int,
        holdout_error: Tensor,
        base: Tensor,
        count: int,
    ) -> Pool:
        """Return a pool with the best `count` models of each problem, too.

        base: the held-out errors before rounding.
        """
        best = (ranks(models.problem, holdout_error) < count) & holdout_error.isfinite()
        models = models.take(best)
        kinds = torch.full_like(models.problem, KINDS.index(kind))
        denominators = torch.full_like(models.problem, denominator)
        return Pool(
            flat=torch.cat([self.flat, models.flat]),
            problem=torch.cat([self.problem, models.problem]),
            start=torch.cat([self.start, models.start]),
            kind=torch.cat([self.kind, kinds]),
            denominator=torch.cat([self.denominator, denominators]),
            holdout_error=torch.cat([self.holdout_error, holdout_error[best]]),
            base=torch.cat([self.base, base[best]]),
            parameter_kind=self.parameter_kind,
        )

    def best(self, problems: int) -> Tensor:
        """Return the smallest held-out error of each problem ``[problems]``."""
        return _smallest(self.holdout_error, self.problem, problems)

    def choose(
        self, problems: int, tolerance: float, slack: float, losses: Losses, training: Losses
    ) -> tuple[Tensor, list[Candidate]]:
        """Return the parameters ``[problems, P]`` and candidate that are chosen for each problem.

        The simplest of all that are about as good as the best, or as good as the data's rounding
        can tell. About as good: the difference of the held-out errors is within `slack` of the
        smallest, or within two of its own standard errors; or the Bayesian information criterion of
        the training rows is lower, and the held-out error at most 1.5 times the smallest. None
        whose training error is more than 1.5 times that of the model of the lowest criterion.
        Parameters are nan for a problem of which no start stayed finite.

        Args:
            problems: their number.
            tolerance: the error of a solved problem.
            slack: of the recipe.
            losses, training: the errors on held-out and on training rows.
        """
        holdout_error = self._likely(self.best(problems), tolerance, training)
        best_error = _smallest(holdout_error, self.problem, problems)[self.problem]
        limit = torch.clamp(best_error * (1 + slack), min=tolerance)
        unclear = (holdout_error > limit) & (holdout_error <= WORST_RATIO * best_error)
        for owner in self.problem[unclear].unique().tolist():
            index = (unclear & (self.problem == owner)).nonzero().squeeze(1)
            top = holdout_error.where(self.problem == owner, math.inf).argmin().unsqueeze(0)
            best, fitted = losses(self.flat[top], owner), training(self.flat[top], owner)
            count, rows = fitted.shape[1], best.shape[1]
            cost = math.log(count) / count
            for part in index.split(COMPARED_MODELS):
                differences = losses(self.flat[part], owner) - best
                error = differences.std(1) / math.sqrt(rows) if rows > 1 else 0 * limit[part]
                close = best_error[part] + STANDARD_ERRORS * error
                limit[part] = torch.maximum(limit[part], close)
                ratio = training(self.flat[part], owner).mean(1) / fitted.mean()
                simpler = ratio.log() + cost * (self._freedom(part) - self._freedom(top)) < 0
                limit[part] = limit[part].masked_fill(simpler, math.inf)
        level = self._level().masked_fill(holdout_error > limit, math.inf)
        order = holdout_error.argsort(stable=True)
        order = order[level[order].argsort(stable=True)]
        flat = self.flat.new_full((problems, self.flat.shape[1]), math.nan)
        chosen = [Candidate("none", 0, -1, math.inf, math.nan) for _ in range(problems)]
        owners = self.problem[order].tolist()
        for owner, index in reversed(list(zip(owners, order.tolist(), strict=True))):
            chosen[owner] = self._candidate(index)
            flat[owner] = self.flat[index]
        return flat, chosen

    def listed(self, problems: int) -> list[list[Candidate]]:
        """Return each problem's candidates, the best first; equal ones once, as the simplest."""
        lists: list[list[Candidate]] = [[] for _ in range(problems)]
        seen: set[tuple[int, int, float]] = set()
        order = self._level().argsort(stable=True)
        order = order[self.holdout_error[order].argsort(stable=True)]
        owners = self.problem.tolist()
        for index in order.tolist():
            candidate = self._candidate(index)
            key = (owners[index], candidate.init_index, candidate.loss)
            if key not in seen:
                seen.add(key)
                lists[owners[index]].append(candidate)
        return lists

    def _likely(self, smallest: Tensor, tolerance: float, training: Losses) -> Tensor:
        """Return the held-out errors, inf for models that the training rows exclude.

        A low error on few held-out rows may be luck. The training rows exclude a model whose
        error on them is more than `WORST_RATIO` times that of the model of the lowest criterion.
        smallest ``[problems]``: held-out errors.
        """
        holdout_error = self.holdout_error.clone()
        open_problems = (smallest > tolerance) & smallest.isfinite()
        for owner in open_problems.nonzero().squeeze(1).tolist():
            near = (holdout_error <= WORST_RATIO * smallest[owner]) & (self.problem == owner)
            index = near.nonzero().squeeze(1)
            parts = [training(self.flat[part], owner) for part in index.split(COMPARED_MODELS)]
            error, count = torch.cat([part.mean(1) for part in parts]), parts[0].shape[1]
            criterion = error.log() + math.log(count) / count * self._freedom(index)
            worse = error > WORST_RATIO * error[criterion.argmin()]
            holdout_error[index[worse]] = math.inf
        return holdout_error

    def _freedom(self, index: Tensor) -> Tensor:
        """Return the count of fitted numbers, half for a rounded one: it was chosen from few."""
        flat, kind = self.flat[index], self.kind[index].unsqueeze(1)
        powers = (kind == KINDS.index("powers")) & (self.parameter_kind == POWER)
        share = torch.where((kind == KINDS.index("rounded")) | powers, 0.5, 1.0)
        return ((flat != 0) * share * (self.parameter_kind != GATE)).double().sum(1)

    def _level(self) -> Tensor:
        """Return the level of simplicity ``[C]``, least for the simplest."""
        plain = torch.tensor([2 * _PLAIN, _PLAIN, _POWERS, 0], device=self.kind.device)
        count = (self.flat != 0).sum(1) * _PARAMETER
        return (self.denominator + plain[self.kind] + count).double()

    def _candidate(self, index: int) -> Candidate:
        holdout_error, base = float(self.holdout_error[index]), float(self.base[index])
        kind, denominator = KINDS[int(self.kind[index])], int(self.denominator[index])
        return Candidate(
            kind, denominator, int(self.start[index]), holdout_error, holdout_error - base
        )


def _smallest(holdout_error: Tensor, problem: Tensor, problems: int) -> Tensor:
    """Return the smallest held-out error of each problem ``[problems]``."""
    holdout_errors = torch.full(
        (problems,), math.inf, dtype=torch.float64, device=holdout_error.device
    )
    return holdout_errors.scatter_reduce_(0, problem, holdout_error, "amin")


SUM_ROWS = 2048  # of the least squares for the weights of a sum
SOLVED_EPSILONS = 16  # machine epsilons of the data that a solved problem's relative error may have


class Judge:
    """The held-out errors of the models of a fit, and the pool of those that may be chosen.

    Args:
        template, recipe, data, scale: of the fit.
        starts: of each problem.
        dtype: of y; a problem is solved where the error of a rounded model is its rounding.
    """

    def __init__(
        self,
        template: Template,
        recipe: Recipe,
        data: Data,
        scale: Scale,
        starts: int,
        dtype: torch.dtype,
    ) -> None:
        self.template, self.recipe, self.data, self.scale = template, recipe, data, scale
        self.problems, self.starts = len(data.training.x), starts
        self.tolerance = float((SOLVED_EPSILONS * torch.finfo(dtype).eps) ** 2)
        fractions = template.has(GATE, POWER, LINEAR, COEFFICIENT)
        self.denominators = recipe.denominators if fractions else ()
        self.last, self._sum_rows = LastSum(template), data.training.first(SUM_ROWS)
        self.pool = Pool.empty(template.kind)
        zeros = functools.partial(torch.zeros, device=template.device)
        shape = (self.problems, starts)
        self.holdout_errors = zeros(shape, dtype=torch.float64) + math.inf  # each start's last one
        self.retired = zeros(shape, dtype=torch.long)  # the stages after which starts were dropped
        self.solved = zeros(self.problems, dtype=torch.bool)

    # ---- saved and continued ---------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            "pool": self.pool._asdict(),
            "holdout_errors": self.holdout_errors,
            "retired": self.retired,
            "solved": self.solved,
        }

    def restore(self, state: Any) -> None:
        """Continue from a state; ValueError, before any change, for a wrong one."""
        empty = Pool.empty(self.template.kind)._asdict()
        state = like(state, self.state() | {"pool": empty}, "judge")
        self.pool, self.holdout_errors = Pool(**state["pool"]), state["holdout_errors"]
        self.retired, self.solved = state["retired"], state["solved"]

    # ---- held-out errors -------------------------------------------------------------------------

    def errors(self, models: Population) -> Tensor:
        """Return the held-out errors ``[A]``."""
        return self.template.errors(models.flat, self.data.held_out, models.problem)

    def holdout_error(self, models: Population, kind: str, count: int) -> Tensor:
        """Score models and their roundings; return the smallest errors ``[A]``.

        The best `count` of each problem enter the pool, and the best of each rounding.
        """
        raw = self.errors(models)
        self.holdout_errors[models.problem, models.start] = raw
        self.pool = self.pool.add(models, kind, 0, raw, raw, count)
        min_errors = raw.clone()
        for denominator in self.denominators:
            min_errors = torch.minimum(min_errors, self.add_rounded(models, denominator, raw))
        return min_errors

    def survivors(
        self, models: Population, holdout_error: Tensor, count: int, stage: int
    ) -> Tensor:
        """Return the mask of the best `count` of each unsolved problem; the others retire."""
        problem = models.problem
        mask = (
            (ranks(problem, holdout_error) < count)
            & holdout_error.isfinite()
            & ~self.solved[problem]
        )
        self.retired[problem[~mask], models.start[~mask]] = stage + 1
        return mask

    def add_rounded(
        self, models: Population, denominator: int, base: Tensor, solved_only: bool = False
    ) -> Tensor:
        """Add the best rounded model of each problem to the pool; return the errors ``[A]``.

        Coefficients are those of least squares: they have units and are no fractions, except where
        the data are exact.

        Args:
            models: before rounding.
            denominator: of the powers.
            base: the errors before rounding.
            solved_only: only models that solve a problem which was not solved before.
        """
        free, problem = self.template.has(COEFFICIENT), models.problem
        rounded = models.rounded(self.template, denominator, (GATE, POWER, LINEAR))
        if free:
            rounded = rounded.at(self.last.solved(rounded.flat, problem, self._sum_rows))
        holdout_error = self.errors(rounded)
        solves = holdout_error <= self.tolerance
        used = solves & ~self.solved[problem] if solved_only else torch.ones_like(solves)
        kind = "powers" if free else "rounded"
        self.pool = self.pool.add(
            rounded, kind, denominator, holdout_error.masked_fill(~used, math.inf), base, 1
        )
        for divisor in (0, denominator) if free else ():
            simple = rounded.at(self.scale.coefficients(rounded.flat, problem, divisor))
            error = self.errors(simple)
            exact = error <= self.tolerance
            allowed = used if divisor == 0 and not solved_only else exact
            error = error.masked_fill(~allowed, math.inf)
            self.pool = self.pool.add(simple, "rounded", denominator, error, base, 1)
            solves |= exact
        self.solved[problem[solves]] = True
        return holdout_error

    def add_settled(self, models: Population, denominator: int, base: Tensor) -> None:
        """Add models whose powers are fractions, with their other weights plain and rounded."""
        if self.template.has(COEFFICIENT):
            self.add_rounded(models, denominator, base)
            return
        if self.template.has(LINEAR, FREE):
            self.pool = self.pool.add(models, "powers", denominator, self.errors(models), base, 1)
        divisors = self.denominators if self.template.has(LINEAR) else self.denominators[:1]
        for divisor in divisors:
            rounded = models.rounded(self.template, divisor, (LINEAR,))
            holdout_error = self.errors(rounded)
            self.pool = self.pool.add(
                rounded, "rounded", max(denominator, divisor), holdout_error, base, 1
            )
            self.solved[models.problem[holdout_error <= self.tolerance]] = True

    def add_with_fewer_units(self) -> None:
        """Add the chosen models without the units of the last sum that they do not need."""
        flat, chosen = self.choose(self.pool)
        owners = [p for p, candidate in enumerate(chosen) if candidate.init_index >= 0]
        if not self.last.exists or not owners:
            return
        long, real = (
            functools.partial(torch.tensor, device=flat.device, dtype=dtype)
            for dtype in (torch.long, torch.float64)
        )
        problem, start = long(owners), long([chosen[p].init_index for p in owners])
        base = real([chosen[p].loss for p in owners])
        for fewer in self.last.fewer(flat[problem], problem, self._sum_rows):
            models = Population(fewer, problem, start)
            error = self.errors(models)
            for n, p in enumerate(owners):
                part, (kind, denominator) = slice(n, n + 1), (chosen[p].kind, chosen[p].denominator)
                self.pool = self.pool.add(
                    models.take(part), kind, denominator, error[part], base[part], 1
                )

    def choose(self, pool: Pool) -> tuple[Tensor, list[Candidate]]:
        """Return the parameters ``[problems, P]`` and the candidate that each problem gets."""
        losses, training = (
            functools.partial(self.template.losses, rows)
            for rows in (self.data.held_out, self._sum_rows)
        )
        return pool.choose(self.problems, self.tolerance, self.recipe.slack, losses, training)
